"""Pub records: one for each message that a broker has stored, also for those inside a batch."""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from sprocketmq.client.instance import Instance
from sprocketmq.client.stats import ProducerCounts
from sprocketmq.client.traces.config import TraceConfig
from sprocketmq.client.traces.cpu_budget import CpuBudget
from sprocketmq.client.traces.sampling import Sampler
from sprocketmq.client.traces.writer import TraceWriter
from sprocketmq.protocol.batch import entries_at
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import Receipt, SendStatus
from sprocketmq.protocol.properties import DELAY, KEYS, MSG_REGION, TAGS, TIMER_DELIVER_MS, TRACE_ON, find_property
from sprocketmq.protocol.traces import DEFAULT_REGION, MessageType, PubForm

log = logging.getLogger(__name__)

_TAGS, _KEYS, _DELAY, _DELIVER_MS = TAGS.encode(), KEYS.encode(), DELAY.encode(), TIMER_DELIVER_MS.encode()
_NONE: list[tuple[int, str]] = []
_decode = msgspec.json.Decoder(str).decode
# The number of records between two checks of the time.
_RECORDS_AT_ONCE = 64


class SentRequest(NamedTuple):
    """A send request that a broker has stored, as it was written; ``duration_s`` since the producer first tried to send it."""

    topic: str
    ids: str | Sequence[str]
    body: bytes | memoryview
    properties: bytes
    batch: bool
    address: str
    duration_s: float


class _Member(NamedTuple):
    """The fields of a record about a message, besides its id."""

    tags: str
    keys: str
    body_bytes: int


class SendTraces:
    """Makes the Pub records of a producer of ``group``, which counts its messages in ``counts``.

    While ``resting`` there is no time to trace even one message. Senders check it, which costs less than a call for each message.
    """

    def __init__(self, config: TraceConfig, group: str, instance: Instance, writer: TraceWriter, counts: ProducerCounts) -> None:
        self._topic = config.topic
        self._group = group
        self._failed = False
        self._instance = instance
        self._writer = writer
        self._sampler = Sampler(config.sample)
        self._budget = CpuBudget(config.cpu_share)
        self._counts = counts
        self.resting: bool = False
        self._rested_from = 0

    def chosen(self, ids: str | Sequence[str]) -> list[tuple[int, str]]:
        """Return the messages of a request that are to be traced, by index and id; none of a request that the program has encoded."""
        sampler = self._sampler
        if type(ids) is str:
            if not ids or ids[:-2] == sampler.passed_over:
                return _NONE
            return [(0, ids)] if sampler.chooses(ids) else _NONE
        return sampler.choose(ids)

    def stored(self, request: SentRequest, chosen: list[tuple[int, str]], receipt: Receipt, response: Command) -> None:
        """Make the records of the ``chosen`` messages of a request, as far as there is time and room for them."""
        if request.topic == self._topic or not self._writer.open:  # no traces of traces
            return
        if not self._budget.begin():
            self._writer.drop(len(chosen))
            if self._sampler.everything and not self.resting:
                self._rest()
            return
        done = 0
        try:
            done = self._record(request, chosen, receipt, response)
        except Exception:  # the messages are stored, and their senders know
            if not self._failed:
                log.exception("a message of group %s could not be traced; further failures are only counted as dropped", self._group)
            self._failed = True
        finally:
            self._budget.end(done)
        self._writer.drop(len(chosen) - done)

    def _rest(self) -> None:
        self.resting = True
        self._rested_from = self._counts.messages
        self._instance.timers.call_later(self._budget.rests_until - self._budget.now(), self._wake)

    def _wake(self) -> None:
        self._writer.drop(self.passed_over)
        self.resting = False

    @property
    def passed_over(self) -> int:
        """How many messages were stored since the present rest began; they count as dropped when it ends."""
        return self._counts.messages - self._rested_from if self.resting else 0

    def _record(self, request: SentRequest, chosen: list[tuple[int, str]], receipt: Receipt, response: Command) -> int:
        """Return how many messages were recorded, or need no record."""
        ext = response.ext or {}
        if ext.get(TRACE_ON) == "false":
            return len(chosen)
        cost_ms = max(0, round(request.duration_s * 1000))
        delayed = False
        if request.batch:
            members = _in_batch(request, chosen)
        else:
            text = _decode(request.properties).encode()
            delayed = find_property(text, _DELAY) is not None or find_property(text, _DELIVER_MS) is not None
            members = iter([_member(text, len(request.body))])
        form = PubForm.of(
            self._instance.clock.time_ms() - cost_ms,
            ext.get(MSG_REGION) or DEFAULT_REGION,
            self._group,
            request.topic,
            request.address,
            cost_ms,
            int(MessageType.DELAY if delayed else MessageType.NORMAL),
            success=receipt.status is SendStatus.SEND_OK,
        )
        add, room = self._writer.add, self._writer.room
        done = 0
        for (index, msg_id), (tags, keys, body_bytes) in zip(chosen, members, strict=False):
            if done >= room or (done % _RECORDS_AT_ONCE == _RECORDS_AT_ONCE - 1 and self._budget.over()):
                break
            add(form.record(msg_id, tags, keys, body_bytes, receipt.offset_msg_id(index)), msg_id, keys)
            done += 1
        return done


def _in_batch(request: SentRequest, chosen: Sequence[tuple[int, str]]) -> Iterator[_Member]:
    """Yield the facts about these messages of a batch, in order."""
    body = bytes(request.body)
    last_prefix, last, last_bytes = b"", _Member("", "", 0), 0
    behind = len(chosen[0][1]) + 1  # the id comes last, and all ids of a batch have the same length
    for body_bytes, start, end in entries_at(body, [index for index, _ in chosen]):
        prefix = body[start : end - behind]
        if prefix != last_prefix:
            last_prefix, last, last_bytes = prefix, _member(prefix, body_bytes), body_bytes
        elif body_bytes != last_bytes:
            last, last_bytes = _Member(last.tags, last.keys, body_bytes), body_bytes
        yield last


def _member(properties: bytes, body_bytes: int) -> _Member:
    tags, keys = find_property(properties, _TAGS), find_property(properties, _KEYS)
    return _Member(tags.decode() if tags else "", keys.decode() if keys else "", body_bytes)
