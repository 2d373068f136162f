"""Latencies of requests, by request and response code."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sprocketmq.broker.metrics.counters import Histogram
from sprocketmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.names import is_system_topic

# Milliseconds, as in RIP-46.
LATENCY_BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
CREATION_BOUNDS = (10, 100, 1000, 3000, 5000)
UNKNOWN = "unknown"

_REQUESTS = {int(code): code.name.lower() for code in RequestCode}
_RESPONSES = {int(code): code.name.lower() for code in ResponseCode}
_ONEWAY = 1 << 16
_LONG_POLLING = 1 << 63


def pack_answer(request: Command, code: int) -> int:
    """Return one number for what was asked and answered: request code, one-way bit, response code."""
    return request.code << 17 | (request.flag & FLAG_ONEWAY) << 15 | code


class Answered(NamedTuple):
    """One kind of answers: lower-case names of both codes, and how long they took in milliseconds."""

    request: str
    response: str
    oneway: bool
    long_polling: bool
    latency: Histogram


class Latencies:
    """Observes the answers of a server. Answers of one read of a socket are counted in one step.

    ``topics`` and ``groups`` have the time that creating or changing one took: topics by (succeeded, is a system topic), groups by whether
    it succeeded. Request codes that this broker does not know count as one.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._kinds: dict[int, Histogram] = {}
        self._creations: set[int] = set()  # those among them that answer the creation of a topic or group
        self.topics: dict[tuple[bool, bool], Histogram] = {}
        self.groups: dict[bool, Histogram] = {}

    def answered(self, answers: list[int], since: float) -> None:
        """Count answers that were given together, to requests that were read at ``since``."""
        took_ms = (self.now() - since) * 1000
        first = answers[0]
        if answers.count(first) == len(answers):
            self._add(first, took_ms, len(answers))
        else:
            for answer, count in Counter(answers).items():
                self._add(answer, took_ms, count)

    def answered_late(self, request: Command, code: int, since: float, *, long_polling: bool) -> None:
        """Count an answer that was given later than the request was handled."""
        took_ms = (self.now() - since) * 1000
        topic = request.ext.get("topic", "") if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC else ""
        self._add(pack_answer(request, code) | (_LONG_POLLING if long_polling else 0), took_ms, 1, topic)

    def _add(self, answer: int, took_ms: float, count: int, topic: str = "") -> None:
        kind = self._kinds.get(answer)
        if kind is None:
            kind = self._new(answer)
        kind.add(took_ms, count)
        if answer in self._creations:
            self._created(answer, took_ms, count, topic)

    def _created(self, answer: int, took_ms: float, count: int, topic: str) -> None:
        succeeded = not answer & 0xFFFF
        if answer >> 17 == RequestCode.UPDATE_AND_CREATE_TOPIC:
            self.topics.setdefault((succeeded, is_system_topic(topic)), Histogram(CREATION_BOUNDS)).add(took_ms, count)
        else:
            self.groups.setdefault(succeeded, Histogram(CREATION_BOUNDS)).add(took_ms, count)

    def _new(self, answer: int) -> Histogram:
        request = (answer & ~_LONG_POLLING) >> 17
        if request in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP):
            self._creations.add(answer)
        if request not in _REQUESTS:
            answer &= 0x1FFFF  # a peer may send any number
        return self._kinds.setdefault(answer, Histogram(LATENCY_BOUNDS))

    @property
    def kinds(self) -> Iterator[Answered]:
        """All kinds of answers so far."""
        for answer, latency in list(self._kinds.items()):
            request = _REQUESTS.get((answer & ~_LONG_POLLING) >> 17, UNKNOWN)
            response = _RESPONSES.get(answer & 0xFFFF, UNKNOWN)
            yield Answered(request, response, bool(answer & _ONEWAY), bool(answer & _LONG_POLLING), latency)
