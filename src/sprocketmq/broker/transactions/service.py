"""The transactions of one broker: storing half messages, committing or rolling them back, and recovering them at a restart.

The two topics and the offsets of ``CID_RMQ_SYS_TRANS`` are all that is kept, in the reference's form. A commit stores the message and the
mark that its transaction has ended with one write, in this order. A kill in the middle of that write leaves a message without its mark
at the end of its queue; a start looks for it there, so that no transaction is committed twice.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.metrics.counters import TRANSACTION, BrokerCounters
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.send_rules import SendRefused, SendRules
from sprocketmq.broker.staged_sends import StagedSends
from sprocketmq.broker.topics import OVERLOAD, Topic, TopicTable
from sprocketmq.broker.transactions.halves import (
    QUEUE_ID,
    committed_flag,
    committed_properties,
    ended_offsets,
    half_at,
    half_properties,
    immunity_s,
    real_queue,
    stage_ended,
)
from sprocketmq.broker.transactions.open import OpenHalf, OpenTransactions
from sprocketmq.clock import Clock
from sprocketmq.errors import ProtocolError
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.layout import COPY_OF_FIRST
from sprocketmq.protocol.message import TransactionOutcome
from sprocketmq.protocol.names import DISCARDED_HALVES_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_GROUP
from sprocketmq.protocol.properties import DELAY, FIRST_HALF_OFFSET, PRODUCER_GROUP, REAL_TOPIC, TAGS, decode_properties, encode_properties
from sprocketmq.protocol.records import ReceivedMessage, Record
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

# Units read at a time at a start.
_STEP = 1024
# How far back from the end of its queue a start looks for a committed message.
_LOOK_BACK = 256


class _Progress(NamedTuple):
    """The first offsets that are still needed, and the end of the log that they refer to."""

    halves: int
    marks: int
    log_end: int


class TransactionService:
    """Half messages of one broker. ``open`` reads them from the store, on a master only; ``note_progress`` is called from time to time.

    ``opened`` is called when a half message was added; the part that asks producers sets it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        offsets: OffsetTable,
        delays: DelayService,
        staged: StagedSends,
        counters: BrokerCounters,
        *,
        clock: Clock,
    ) -> None:
        self._counters = counters
        self.store = store
        self._topics = topics
        self._offsets = offsets
        self._delays = delays
        self._staged = staged
        self._rules = SendRules(config, delays)
        self._clock = clock
        self.timeout_s = config.transaction_timeout_s
        self.opened: Callable[[], None] = lambda: None
        self._half_topic = topics.create_internal(HALF_TOPIC, 1)
        self.rejects = config.reject_transactions
        self.open_halves = OpenTransactions()
        self._waiting: _Progress | None = None
        self._saved: tuple[int, int] | None = None

    # --- life ---

    def open(self) -> None:
        """Find the half messages without an outcome in the store; blocks."""
        store, halves = self.store, self.open_halves
        halves.clear()
        self._waiting = self._saved = None
        ended: set[int] = set()
        for mark, log_offset in self._units(OP_TOPIC):
            named = ended_offsets(store, log_offset)
            ended.update(named)
            halves.note_mark(mark, max(named, default=0))
        now, now_ms = self._clock.monotonic(), self._clock.time_ms()
        for offset, log_offset in self._units(HALF_TOPIC):
            if offset in ended:
                continue
            try:
                half = half_at(store, log_offset, offset)
                pairs = half.properties if half is not None else {}
            except ProtocolError as e:
                event(log, logging.ERROR, "half_message_damaged", offset=offset, log_offset=log_offset, reason=e)
                continue
            first = pairs.get(FIRST_HALF_OFFSET, "")
            if half is None or (first.isdigit() and int(first[:18]) in ended) or self._is_committed(half, pairs):
                continue
            # Producers have to connect again before they can be asked.
            left_s = (half.store_timestamp_ms - now_ms) / 1000 + max(self.timeout_s, immunity_s(pairs))
            halves.add(offset, OpenHalf(log_offset, pairs.get(REAL_TOPIC, ""), now + max(left_s, self.timeout_s)))

    def _units(self, topic: str) -> list[tuple[int, int]]:
        """Return the queue offset and log offset from which the queue of ``topic`` is still needed."""
        low, high = self.store.min_offset(topic, QUEUE_ID), self.store.max_offset(topic, QUEUE_ID)
        offset = min(max(self._offsets.get(TRANSACTION_GROUP, topic, QUEUE_ID) or 0, low), high)
        found: list[tuple[int, int]] = []
        while units := self.store.units(topic, QUEUE_ID, offset, _STEP):
            found += [(offset + index, unit[0]) for index, unit in enumerate(units)]
            offset += len(units)
        return found

    def _is_committed(self, half: ReceivedMessage, pairs: Mapping[str, str]) -> bool:
        """Return whether the message of a half without a mark exists, at the end of one of the queues that a commit writes to."""
        store = self.store
        level = pairs.get(DELAY, "")
        # As it is stored; ``copied_from`` is that of parked messages.
        source = half.commitlog_offset or COPY_OF_FIRST
        places = [(pairs.get(REAL_TOPIC, ""), real_queue(pairs)), (TIMER_TOPIC, 0)]
        if level.isdigit() and level != "0":
            places.append((SCHEDULE_TOPIC, min(int(level[:9]), self._delays.max_level) - 1))
        for topic, queue_id in places:
            end = store.max_offset(topic, queue_id)
            begin = max(store.min_offset(topic, queue_id), end - _LOOK_BACK)
            for log_offset, _, _ in reversed(store.units(topic, queue_id, begin, end - begin)):
                if log_offset <= half.commitlog_offset:
                    break
                view = store.record_at(log_offset)
                if view is not None and Record(view, 0, len(view)).prepared_offset == source:
                    return True
        return False

    def note_progress(self) -> None:
        """Commit the progress in both queues, up to what is flushed of the log: after a crash nothing may be skipped."""
        store = self.store
        waiting = self._waiting
        if waiting is not None and store.commitlog_flushed_offset >= waiting.log_end:
            self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, QUEUE_ID, waiting.halves)
            self._offsets.commit(TRANSACTION_GROUP, OP_TOPIC, QUEUE_ID, waiting.marks)
            self._saved, self._waiting = (waiting.halves, waiting.marks), None
        if self._waiting is None:
            progress = self.open_halves.progress(store.max_offset(HALF_TOPIC, QUEUE_ID), store.max_offset(OP_TOPIC, QUEUE_ID))
            if progress != self._saved and any(progress):
                self._waiting = _Progress(*progress, store.commitlog_max_offset)

    # --- half messages ---

    def stage(
        self,
        topic: Topic,
        queue_id: int,
        body: bytes | memoryview,
        pairs: dict[str, str],
        *,
        group: str,
        host: str,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> tuple[Topic, int, int]:
        """Stage half of a transaction, and return the topic of halves, and its offsets in their queue and in the log.

        ``group`` is that of its producer, ``host`` this broker as refusals name it. Raises SendRefused, and what the store raises.
        """
        if self.rejects:
            remark = f"the broker[{host}] sending transaction message is forbidden: reject_transactions is set there"
            raise SendRefused(ResponseCode.NO_PERMISSION, remark)
        if self.open_halves.full:
            raise SendRefused(ResponseCode.SYSTEM_BUSY, f"{OVERLOAD}: {len(self.open_halves)} transactions have no outcome yet")
        pairs = half_properties(pairs, topic.name, queue_id, group=group)
        offset, log_offset = self.store.stage_copy(
            HALF_TOPIC,
            QUEUE_ID,
            body,
            encode_properties(pairs),
            copied_from=None,
            tags_code=tags_code(pairs.get(TAGS)),
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            reconsume_times=reconsume_times,
        )
        ask_at = self._clock.monotonic() + max(self.timeout_s, immunity_s(pairs))
        self.open_halves.add(offset, OpenHalf(log_offset, topic.name, ask_at))
        self.opened()
        return self._half_topic, offset, log_offset

    # --- outcomes ---

    def commit(self, conn: ServerConnection, command: Command, half: ReceivedMessage, *, waits: bool) -> None:
        """Store the message of a half for its consumers, and answer ``command`` when it is as durable as a send.

        When the store refuses it, ``command`` is answered so, and the transaction stays open. It does, too, when this raises: SendRefused
        when the topic is gone.
        """
        store = self.store
        pairs = committed_properties(half)
        name, queue_id = half.properties.get(REAL_TOPIC, ""), real_queue(half.properties)
        topic = self._topics.get(name)
        if topic is None:
            raise SendRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] of the transaction not exist on this broker")
        if topic.unsupported:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be written: {topic.unsupported}")
        queue_id %= topic.max_queue_id + 1  # the topic may have fewer queues by now
        level, due_ms, text = self._rules.delay_asked(encode_properties(pairs).decode())
        self._staged.finish()  # messages of other senders must not fail together with this one
        begin, tag = store.commitlog_staged_offset, tags_code(pairs.get(TAGS))
        born_host, store_host = half.raw_hosts
        more: dict[str, Any] = {
            "copied_from": half.commitlog_offset,
            "flag": half.flag,
            "sys_flag": committed_flag(half),
            "born_timestamp_ms": half.born_timestamp_ms,
            "born_host": born_host,
            "reconsume_times": half.reconsume_times,
        }
        pairs = decode_properties(text.encode())
        try:
            if level:
                self._delays.stage(level, name, queue_id, half.stored_body, pairs, **more)
            elif due_ms:
                self._delays.stage_timed(due_ms, name, queue_id, half.stored_body, pairs, **more)
            else:
                body, properties = half.stored_body, encode_properties(pairs)
                store.stage_copy(name, queue_id, body, properties, tags_code=tag, store_host=store_host, **more)
            size = store.commitlog_staged_offset - begin
            mark = self._mark(half.queue_offset)
        except BaseException:
            store.discard()
            raise
        arrives = None if level or due_ms else topic
        self._staged.stage_answer(conn, command, arrives, queue_id, tag, size=size, waits=waits, message_type=TRANSACTION)
        if self._end(half, mark, TransactionOutcome.COMMIT):
            self._counters.of_topic(topic).note_commit(self._clock.time_ms() - half.born_timestamp_ms)

    def roll_back(self, conn: ServerConnection, command: Command, half: ReceivedMessage, *, waits: bool) -> None:
        """Forget a half message, and answer ``command``; when the store refuses that, the transaction stays open."""
        self._staged.finish()
        mark = self._mark(half.queue_offset)
        self._staged.stage_answer(conn, command, self._half_topic, QUEUE_ID, 0, size=0, waits=waits)
        topic = self._topics.get(half.properties.get(REAL_TOPIC, ""))
        if self._end(half, mark, TransactionOutcome.ROLLBACK) and topic is not None:
            self._counters.of_topic(topic).rollbacks += 1

    def _end(self, half: ReceivedMessage, mark: tuple[int, int], outcome: TransactionOutcome) -> bool:
        offset, log_offset = mark
        self._staged.finish()
        if self.store.commitlog_max_offset <= log_offset:
            return False
        self._ended(half.queue_offset, offset, outcome)
        return True

    def discard(self, half: ReceivedMessage) -> None:
        """Store a half message that was given up on where operators find it, and end its transaction.

        Raises what the store raises; the transaction stays open then.
        """
        topic = self._topics.create_internal(DISCARDED_HALVES_TOPIC, 1)
        self._staged.finish()
        store = self.store
        begin, tag = store.commitlog_staged_offset, tags_code(half.properties.get(TAGS))
        born_host, store_host = half.raw_hosts
        try:
            store.stage_copy(
                topic.name,
                QUEUE_ID,
                half.stored_body,
                half.raw_properties,
                copied_from=half.commitlog_offset,
                tags_code=tag,
                flag=half.flag,
                sys_flag=half.sys_flag,
                born_timestamp_ms=half.born_timestamp_ms,
                born_host=born_host,
                store_host=store_host,
                reconsume_times=half.reconsume_times,
            )
            size = store.commitlog_staged_offset - begin
            mark, _ = self._mark(half.queue_offset)
            store.commit()
        except BaseException:
            store.discard()
            raise
        self._staged.stored(topic, QUEUE_ID, tag, size, TRANSACTION)
        self._ended(half.queue_offset, mark, TransactionOutcome.ROLLBACK)

    def resume(self, conn: ServerConnection, command: Command, kept: ReceivedMessage, *, waits: bool) -> None:
        """Reopen the transaction of a message that was given up on, and answer ``command`` when its half is as durable as a send.

        Raises SendRefused when its topic is gone, and what the store raises.
        """
        pairs = kept.properties
        name = pairs.get(REAL_TOPIC, "")
        topic = self._topics.get(name)
        if topic is None:
            raise SendRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] of the transaction not exist on this broker")
        self._staged.finish()
        begin = self.store.commitlog_staged_offset
        self.stage(
            topic,
            real_queue(pairs),
            kept.stored_body,
            pairs,
            group=pairs.get(PRODUCER_GROUP, ""),
            host=self._rules.host,
            flag=kept.flag,
            sys_flag=kept.sys_flag,
            born_timestamp_ms=kept.born_timestamp_ms,
            born_host=kept.raw_hosts[0],
            reconsume_times=kept.reconsume_times,
        )
        size = self.store.commitlog_staged_offset - begin
        self._staged.stage_answer(conn, command, self._half_topic, QUEUE_ID, 0, size=size, waits=waits, message_type=TRANSACTION)

    def _mark(self, half_offset: int) -> tuple[int, int]:
        return stage_ended(self.store, half_offset, self._clock.time_ms())

    def _ended(self, half_offset: int, mark: int, outcome: TransactionOutcome) -> None:
        self.open_halves.end(half_offset, outcome)
        self.open_halves.note_mark(mark, half_offset)
