"""Sends that are staged into the store: committing them together, and answering them.

``finish`` commits with one write everything that one read of the socket brought. A send is answered then, or when disk and replicas have
it, as the mode says (acks.py): never before its bytes are in the log.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from sprocketmq.broker.acks import LOST, STORED
from sprocketmq.broker.arrivals import Arrivals
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import Arrival
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.metrics.counters import DELAY, DELIVERY_GROUP, NORMAL, BrokerCounters
from sprocketmq.broker.send_answers import SendAnswers, json_text
from sprocketmq.broker.send_rules import SendRefused
from sprocketmq.broker.topics import OVERLOAD, Topic, TopicTable
from sprocketmq.errors import FatalError, RetriableError, StoreFailed
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.properties import MSG_REGION, TRACE_ON
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

# The number of queues that the topic of parked messages is listed with, as in the reference.
_SCHEDULE_QUEUES = 18
# After a slow write, sends are refused for as long as the write took, at most this long.
MAX_BUSY_S = 1.0
PAGE_CACHE_BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


class Room(Protocol):
    """Whether the disk has room for messages."""

    writable: bool
    refusal: str

    def disk_refused(self, error: BaseException) -> None:
        """Record that a write failed."""
        ...


# Requests whose answers report how durably their messages are stored. Others, such as the end of a transaction, report success.
_TOLD_HOW_SAFELY = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


class Stored(NamedTuple):
    """A send that is written and waits for disk or replicas: connection, request, the fields of the answer, if any, and its start time."""

    conn: ServerConnection
    command: Command
    ext: bytes | None
    since: float


# A staged send: connection, request, topic, queue id, queue offset, log offset (several for a batch stored as single messages), unique key,
# tag code (None for several), number of messages of an inner batch (else 0; negative where the key has the answer's fields instead, if
# any), type of the message and bytes of its records (0: nothing new is stored), whether the answer waits for disk or replicas. A tuple,
# because one is made for every send.
StagedSend = tuple[ServerConnection, Command, Topic, int, int, int | Sequence[int], str | None, int | None, int, str, int, bool]


class StagedSends:
    """The sends that the next commit stores. ``flusher`` takes those that wait for disk or replicas; ``arrivals`` wakes pulls.

    ``sends`` is appended to for every send, ``busy_until`` and ``closing`` say that none may be (``refuse_for_now``), ``waits`` whether
    their answers wait.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        counters: BrokerCounters,
        *,
        flusher: Flusher[Stored],
        room: Room,
        arrivals: Arrivals,
    ) -> None:
        self._store = store
        self._counters = counters
        self._flusher = flusher
        self._acks = flusher.acks
        self._room = room
        self._arrivals = arrivals
        self.sends: list[StagedSend] = []
        self.waits = flusher.acks.waits
        self.closing = False
        self.schedule_topic = topics.create_internal(SCHEDULE_TOPIC, _SCHEDULE_QUEUES)
        self._slow_s = config.os_page_cache_busy_timeout_ms / 1000
        self.busy_until = self._slow_took_s = 0.0
        self._failing = False
        self._region = config.region
        self._answers = SendAnswers(config.region, b"")
        self.error_ext = msgspec.json.encode({TRACE_ON: "true", MSG_REGION: config.region})

    def timed_answer(self, queue_id: int, uniq: str, log_offset: int, queue_offset: int, handle: str) -> str:
        """Return the fields of the answer to a timed message, with its recall handle."""
        return self._answers.timed(queue_id, uniq, log_offset, queue_offset, handle)

    def listens_at(self, store_host: bytes) -> None:
        """Record the address message ids carry; called before the first send."""
        self._answers = SendAnswers(self._region, store_host)

    def finish(self) -> None:
        """Commit what is staged and answer what need not wait; all with one error when the store cannot write."""
        staged = self.sends
        if not staged:
            return
        self.sends = []
        counters = self._counters
        began = counters.now()
        try:
            self._store.commit()
        except (RetriableError, FatalError, OSError) as e:
            if not self._failing:  # a full disk refuses thousands a second; say it once
                self._failing = True
                event(log, logging.WARNING, "sends_refused", reason=e)
            counters.put_failed += len(staged)
            self._acks.release(sum(one[-1] for one in staged))
            if isinstance(e, StoreFailed):
                self._flusher.fail(e)
            else:
                self._room.disk_refused(e)
            for conn, command, *_ in staged:
                self.unavailable(conn, command, e)
            return
        self._flusher.wrote()
        if self._failing:
            self._failing = False
            event(log, logging.WARNING, "sends_accepted_again")
        counters.put_requests += len(staged)
        now = counters.now()
        took = now - began
        counters.max_commit_s = max(counters.max_commit_s, took)
        counters.commit.add(took, len(staged))
        if took > self._slow_s:
            self._note_slow(took)
        ext: bytes | None
        answers = self._answers
        single = answers.single
        waiting: list[Stored] = []
        messages = body_bytes = 0
        run_topic, run_type, run_messages, run_bytes = staged[0][2], staged[0][9], 0, 0
        run_sizes: list[int] = []  # for consecutive sends to one topic, which are counted together
        for conn, command, topic, queue_id, queue_offset, log_offset, uniq, _, inner, message_type, size, waits in staged:
            body_bytes += len(command.body)
            if type(log_offset) is int:
                count = 1
                if inner < 0:
                    ext = uniq.encode() if uniq else None
                elif inner:
                    count = inner
                    counters.note_batch(counters.inner_batches, count, len(command.body))
                    ext = answers.inner(queue_id, uniq or "", log_offset, queue_offset)
                else:
                    ext = single % (queue_id, json_text(uniq or ""), log_offset, queue_offset)
            else:
                count = len(log_offset)  # type: ignore[arg-type]
                counters.note_batch(counters.batches, count, len(command.body))
                ext = answers.several(queue_id, uniq, log_offset, queue_offset)  # type: ignore[arg-type]
            if size:
                if topic is not run_topic or message_type is not run_type:
                    if run_sizes:
                        counters.of_type(run_topic, run_type).add(run_messages, run_bytes, run_sizes, took)
                        messages += run_messages
                    run_topic, run_type, run_messages, run_bytes, run_sizes = topic, message_type, 0, 0, []
                run_messages += count
                run_bytes += size
                run_sizes.append(size if count == 1 else size // count)
            if waits:
                command.body = b""  # a view would keep a receive buffer alive
                waiting.append(Stored(conn, command, ext, now))
            elif ext is not None:
                conn.succeed(command, ext)
            else:
                conn.respond(command, 0)
        if run_sizes:
            counters.of_type(run_topic, run_type).add(run_messages, run_bytes, run_sizes, took)
        counters.put_messages += messages + run_messages
        counters.put_bytes += body_bytes
        if self._arrivals.late:
            self._arrivals.note_unseen([(topic, queue_id, tag) for _, _, topic, queue_id, _, _, _, tag, *_ in staged])
        if waiting or self._acks.replicas:
            self._flusher.wait(waiting)
        if self._arrivals.late:
            return
        topics = {one[2] for one in staged}
        if not any(topic.pops or topic.held for topic in topics):
            return
        for _, _, topic, queue_id, _, _, _, tag, _, _, _, _ in staged:
            if topic.pops or (topic.held and queue_id in topic.held):
                self._arrivals.arrived(topic, queue_id, tag)

    def refuse_for_now(self) -> None:
        """Raise SendRefused when no send may be taken at the moment."""
        if self.closing:
            raise SendRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now. It may be caused by: the broker is stopping")
        if not self._room.writable:
            raise SendRefused(ResponseCode.SERVICE_NOT_AVAILABLE, self._room.refusal)
        if self.busy_until > self._counters.now():
            raise SendRefused(ResponseCode.SYSTEM_BUSY, PAGE_CACHE_BUSY)
        self.busy_until = 0.0

    def check_takes(self) -> bool:
        """Return whether the messages staged now are answered after their commit. Raises SendRefused when nothing may be staged."""
        if self.busy_until or self.closing or not self._room.writable:
            self.refuse_for_now()
        if self.waits and not self._flusher.admits(waits=True):
            raise SendRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        return self.waits

    def stage_answer(
        self,
        conn: ServerConnection,
        command: Command,
        topic: Topic | None,
        queue_id: int,
        tag: int,
        *,
        size: int,
        waits: bool,
        message_type: str = NORMAL,
        ext: Mapping[str, str] | None = None,
    ) -> None:
        """Answer ``command``, with the fields ``ext``, once the message that was staged for it is stored; without a topic it was parked.

        ``size`` is that of its record, 0 for an answer that waits for an older record.
        """
        fields = msgspec.json.encode(ext).decode() if ext else None
        if topic is None:
            message_type = DELAY
        self.sends.append((conn, command, topic or self.schedule_topic, queue_id, 0, 0, fields, tag, -1, message_type, size, waits))
        if waits:
            self._acks.hold()

    def committed(self, arrivals: list[Arrival], size: int, timed: int) -> None:
        """Record messages of ``size`` bytes that the broker itself committed; the last ``timed`` of them have a delivery time."""
        self._flusher.wrote()
        counters = self._counters
        counters.put_messages += len(arrivals)
        counters.put_bytes += size
        mean = size // max(1, len(arrivals))
        delayed = len(arrivals) - timed
        if delayed:
            parked = counters.of_group(self.schedule_topic, DELIVERY_GROUP)
            parked.get_requests += 1
            parked.get_messages += delayed
            parked.get_bytes += delayed * mean
        for topic, _, _ in arrivals[delayed:]:
            counters.of_topic(topic).timed_out += 1
        for topic, _, _ in arrivals:
            counters.of_topic(topic).of_type(DELAY).add(1, mean, [mean], 0.0)
        self._wake(arrivals)

    def stored(self, topic: Topic, queue_id: int, tag: int, size: int, message_type: str) -> None:
        """Record a message of ``size`` bytes that the broker itself committed."""
        self._flusher.wrote()
        self._counters.put_messages += 1
        self._counters.put_bytes += size
        self._counters.of_topic(topic).of_type(message_type).add(1, size, [size], 0.0)
        self._wake([(topic, queue_id, tag)])

    def _wake(self, arrivals: list[Arrival]) -> None:
        if self._arrivals.late:
            self._arrivals.note_unseen(arrivals)
        if self._acks.replicas:
            self._flusher.wait([])
        if self._arrivals.late:
            return
        for topic, queue_id, tag in arrivals:
            if topic.pops or (topic.held and queue_id in topic.held):
                self._arrivals.arrived(topic, queue_id, tag)

    def answer(self, sends: list[Stored], code: int) -> None:
        """Answer sends that have waited, with the code from ``acks.py``."""
        if code == LOST:
            self._counters.put_failed += len(sends)
            cause = "the disk failed, or this broker is no longer the master: whether the message is stored is unknown"
            remark = f"service not available now. It may be caused by: {cause}"
            for conn, command, *_ in sends:
                conn.respond(command, code, ext=self.error_ext, remark=remark)
            return
        now = self._counters.now()
        for since, count in Counter([stored.since for stored in sends]).items():
            self._counters.flush.add(now - since, count)
        for conn, command, ext, since in sends:
            told = code == STORED or command.code in _TOLD_HOW_SAFELY
            conn.respond(command, code if told else STORED, ext=ext, since=since)

    def mode_changed(self) -> None:
        """Record that ``acks`` waits for another condition than before, and that the store may defer the visibility of commits."""
        self.waits = self._acks.waits
        self._arrivals.mode_changed()

    def give_up(self) -> None:
        """Answer everything staged with an error and store nothing of it: this broker is no longer the master."""
        staged, self.sends = self.sends, []
        self._store.discard()
        self._acks.release(sum(one[-1] for one in staged))
        for conn, command, *_ in staged:
            self.unavailable(conn, command, FatalError("this broker is no longer the master"))

    def close(self) -> None:
        """Commit what is staged, and accept nothing more."""
        self.finish()
        self.closing = True

    def busy_ms(self) -> int:
        """Return the duration of the slow write after which sends are refused now; 0 when they are not."""
        return round(self._slow_took_s * 1000) if self.busy_until > self._counters.now() else 0

    def _note_slow(self, took_s: float) -> None:
        event(log, logging.WARNING, "slow_commit", took_s=took_s)
        self._slow_took_s = took_s
        self.busy_until = self._counters.now() + min(took_s, MAX_BUSY_S)

    def unavailable(self, conn: ServerConnection, command: Command, error: BaseException) -> None:
        remark = f"service not available now. It may be caused by: {error}"
        conn.respond(command, ResponseCode.SERVICE_NOT_AVAILABLE, ext=self.error_ext, remark=remark)
