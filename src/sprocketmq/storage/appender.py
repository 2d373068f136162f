"""Appending to a store: messages become staged records and queue units, and a commit writes them and makes them visible."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sprocketmq.clock import Clock
from sprocketmq.errors import InvalidMessage, MessageTooLarge, StoreFailed, StoreWriteFailed
from sprocketmq.protocol.batch import BatchColumns, BatchEntry
from sprocketmq.protocol.codes import (
    SYSFLAG_ANY_HOST_V6,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_TRANSACTION_COMMITTED,
    SYSFLAG_TRANSACTION_MASK,
)
from sprocketmq.protocol.hashing import full_crc32, tags_code_raw
from sprocketmq.protocol.layout import BLANK, COPY_OF_FIRST, HOST_V4_BYTES, INT16, MAGIC_V1, QUEUE_UNIT, RECORD_HEAD
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, find_property
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.fs import Buffer
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.exploding import BATCH_SHARED, Rows, explode
from sprocketmq.storage.queues.batch_queue import MAX_COUNT, BatchConsumeQueue
from sprocketmq.storage.queues.queue_table import Queue, QueueTable

if TYPE_CHECKING:
    from sprocketmq.storage.index.staging import StagedSend

# Inner batches and parts of transactions do not take the fast path of appending.
_UNUSUAL = SYSFLAG_INNER_BATCH | SYSFLAG_TRANSACTION_MASK
# Length byte and name of the longest topic of a v1 record.
_MAX_V1_TOPIC_FIELD = 128
# A segment keeps room for a BLANK after its last record.
_BLANK_BYTES = BLANK.size
_HOSTS_V4_BYTES = 2 * HOST_V4_BYTES
_pack_short = INT16.pack
_pack_head = RECORD_HEAD.pack
_pack_unit = QUEUE_UNIT.pack
_pack_shared = BATCH_SHARED.pack


class Appender:
    """Stages and commits messages. One thread calls it; its methods are those of ``MessageStore`` of the same names.

    ``committed`` describes the last commit whose queue units are visible to a flush in another thread: end of the log, log offset of the
    last record, its store time.
    """

    def __init__(self, config: StoreConfig, clock: Clock, log: CommitLog, table: QueueTable, index: StoreIndex | None) -> None:
        self.store_host: bytes = pack_host("127.0.0.1", 0)
        self._time_ms = clock.time_ms
        self._max_body = config.max_message_bytes
        self._log = log
        self._table = table
        self._queues = table.queues
        self._index = index
        self._staged_sends: list[StagedSend] | None = [] if index is not None else None
        self._touched: list[Queue] = []
        # (end of the log, queue, its end) of commits that readers must not see yet.
        self._may_hold_back = not config.read_uncommitted
        self._holds_back = config.flush_disk_type == "SYNC_FLUSH" and self._may_hold_back
        self._unpublished: deque[tuple[int, Queue, int]] = deque()
        self._published_end = 0
        self._last_ms = 0
        self._last_log_offset = 0
        self.committed = (0, 0, 0)

    def start(self, last_log_offset: int, last_ms: int) -> None:
        """Continue after the recovered log, given its last record. Raises StoreFailed when the log cannot be flushed."""
        log = self._log
        self._last_log_offset = last_log_offset
        self._last_ms = last_ms
        self.committed = (log.committed_end, last_log_offset, last_ms)
        if self._holds_back and log.flushed_end < log.committed_end:
            log.flush()  # readers are about to see records that a killed broker had not flushed
        self._published_end = log.committed_end

    @property
    def visible_end(self) -> int:
        """The end of the log that readers see."""
        return self._published_end if self.holds_back else self.committed[0]

    @property
    def last_ms(self) -> int:
        """The store time of the newest record, 0 without records."""
        return self._last_ms

    def has_staged(self, topic: str) -> bool:
        """Return whether messages of a topic are staged."""
        return any(queue.topic == topic for queue in self._touched)

    def stage_message(
        self,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: bytes,
        *,
        tags_code: int,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> tuple[int, int]:
        """Prepare one message for the next ``commit`` and return its queue offset and its log offset.

        The body is copied. Prepared and rolled back parts of transactions are in no queue and have the queue offset 0.

        Raises MessageTooLarge, or InvalidMessage for properties over 32,767 bytes and for a topic or queue id that cannot be a directory
        name; nothing of the message is staged then.
        """
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        body_length = len(body)
        properties_length = len(properties)
        size = queue.overhead + body_length + properties_length
        log = self._log
        log_offset = log.staged_end
        store_host = self.store_host
        if (
            body_length > self._max_body
            or properties_length > MAX_PROPERTIES_LENGTH
            or queue.unusual
            or len(born_host) + len(store_host) != _HOSTS_V4_BYTES
            or sys_flag & _UNUSUAL
        ):
            return self._stage_unusual(queue, body, properties, tags_code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)
        if log_offset + size + _BLANK_BYTES > log.limit:
            log_offset = self._roll(size)
        if log.pieces:  # of this commit, whose messages have one store time
            now = self._last_ms
        else:
            self._last_ms = now = max(self._time_ms(), self._last_ms)  # times never go back, or looking up by time would miss
        offset = queue.next
        head = _pack_head(
            size,
            MAGIC_V1,
            full_crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            offset,
            log_offset,
            sys_flag,
            born_timestamp_ms,
            born_host,
            now,
            store_host,
            reconsume_times,
            0,
            body_length,
        )
        log.pieces.append(b"".join((head, body, queue.topic_field, _pack_short(properties_length), properties)))
        log.staged_end = log_offset + size
        self._last_log_offset = log_offset
        if self._staged_sends is not None:
            self._staged_sends.append((topic, properties, log_offset, now))
        if offset == queue.committed:
            self._touched.append(queue)
        tail = queue.tail[1]
        tail += _pack_unit(log_offset, size, tags_code)
        queue.next = offset + 1
        return offset, log_offset

    def _stage_unusual(
        self,
        queue: Queue,
        body: Buffer,
        properties: bytes,
        tags_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> tuple[int, int]:
        """Stage a record of a batch topic, with IPv6 hosts or a long topic name, or raise what is wrong with it."""
        if sys_flag & SYSFLAG_INNER_BATCH:
            raise InvalidMessage(
                "a record flagged as an inner batch needs a topic with batch queues: stage it with stage_inner_batch and its count"
            )
        self._check_sizes(body, properties)
        return self._stage_any(queue, body, properties, tags_code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)

    def _check_sizes(self, body: Buffer, properties: bytes) -> None:
        if len(body) > self._max_body:
            raise MessageTooLarge(len(body), self._max_body)
        if len(properties) > MAX_PROPERTIES_LENGTH:
            raise InvalidMessage(f"the properties take {len(properties)} bytes, the limit is {MAX_PROPERTIES_LENGTH}")

    def stage_inner_batch(
        self,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: bytes,
        *,
        count: int,
        tags_code: int,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> tuple[int, int]:
        """Prepare a whole batch as one record of a topic with batch queues and return its first queue offset and its log offset.

        ``body`` is the batch as the client encoded it, ``count`` its number of messages (1 to 32,767); each gets a queue offset. INNER_NUM
        and INNER_BASE are added to the properties. Raises MessageTooLarge, or InvalidMessage for a topic without batch queues, a count out
        of range, or properties that are too long or already have INNER_NUM or INNER_BASE; nothing is staged then.
        """
        if topic not in self._table.batch_topics:
            raise InvalidMessage(f"topic {topic!r} has no batch queues: its messages are stored one by one")
        if not 0 < count <= MAX_COUNT:
            raise InvalidMessage(f"an inner batch has 1 to {MAX_COUNT} messages, not {count}")
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        if properties.find(b"INNER_") >= 0 and (find_property(properties, b"INNER_NUM") or find_property(properties, b"INNER_BASE")):
            raise InvalidMessage("the properties INNER_NUM and INNER_BASE are set by the broker: send the batch without them")
        end = b"" if not properties or properties[-1] == 2 else b"\x02"
        properties = b"%b%bINNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (properties, end, count, queue.next)
        self._check_sizes(body, properties)
        sys_flag |= SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
        return self._stage_any(queue, body, properties, tags_code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times, count)

    def _stage_any(
        self,
        queue: Queue,
        body: Buffer,
        properties: bytes,
        tags_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
        count: int = 1,
        now: int = 0,
        prepared_offset: int = 0,
        store_host: bytes | None = None,
    ) -> tuple[int, int]:
        log = self._log
        if store_host is None:
            store_host = self.store_host
        size = _record_size(queue, body, properties, born_host, store_host)
        log_offset = log.staged_end
        if log_offset + size + _BLANK_BYTES > log.limit:
            log_offset = self._roll(size)
        self._last_ms = now = now or max(self._time_ms(), self._last_ms)
        transaction = sys_flag & SYSFLAG_TRANSACTION_MASK
        in_queue = transaction in (0, SYSFLAG_TRANSACTION_COMMITTED)
        offset = queue.next if in_queue else 0
        queue_id = queue.queue_id
        if (
            len(queue.topic_field) > _MAX_V1_TOPIC_FIELD
            or len(born_host) + len(store_host) != _HOSTS_V4_BYTES
            or sys_flag & SYSFLAG_ANY_HOST_V6
        ):
            record = encode_record(
                topic=queue.topic.encode(),
                body=memoryview(body),
                properties=properties,
                queue_id=queue_id,
                queue_offset=offset,
                physical_offset=log_offset,
                born_timestamp_ms=born_timestamp_ms,
                born_host=born_host,
                store_timestamp_ms=now,
                store_host=store_host,
                flag=flag,
                sys_flag=sys_flag,
                reconsume_times=reconsume_times,
                prepared_offset=prepared_offset,
            )
        else:
            crc = full_crc32(body) & 0x7FFFFFFF
            rest = (born_timestamp_ms, born_host, now, store_host, reconsume_times, prepared_offset, len(body))
            head = _pack_head(size, MAGIC_V1, crc, queue_id, flag, offset, log_offset, sys_flag, *rest)
            record = b"".join((head, body, queue.topic_field, _pack_short(len(properties)), properties))
        log.pieces.append(record)
        log.staged_end = log_offset + size
        self._last_log_offset = log_offset
        if self._staged_sends is not None and transaction != SYSFLAG_TRANSACTION_MASK:
            self._staged_sends.append((queue.topic, properties, log_offset, now))
        if not in_queue:
            return offset, log_offset
        if offset == queue.committed:
            self._touched.append(queue)
        if isinstance(queue, BatchConsumeQueue):
            queue.add(log_offset, size, tags_code, now, count)
        else:
            tail = queue.tail[1]
            tail += _pack_unit(log_offset, size, tags_code)
            queue.next = offset + 1
        return offset, log_offset

    def stage_copy(
        self,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: bytes,
        *,
        copied_from: int | None,
        tags_code: int = 0,
        delay_ms: int | None = None,
        not_before_ms: int = 0,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int,
        born_host: bytes,
        store_host: bytes | None = None,
        reconsume_times: int = 0,
    ) -> tuple[int, int]:
        """Prepare a message that the broker made itself, as ``stage_message`` does.

        ``copied_from`` is the log offset of the record it was made from; it becomes the prepared offset. With ``delay_ms`` its unit gets
        the delivery time instead of a tag code: ``delay_ms`` after its store time, or after ``not_before_ms`` when that is later.
        ``store_host`` defaults to that of the store.
        """
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        if sys_flag & SYSFLAG_INNER_BATCH:
            raise InvalidMessage("an inner batch cannot be copied whole: copy its messages one by one")
        self._check_sizes(body, properties)
        now = max(self._time_ms(), self._last_ms)
        if delay_ms is not None:
            tags_code = max(now, not_before_ms) + delay_ms
        rest = (tags_code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)
        prepared_offset = 0 if copied_from is None else copied_from or COPY_OF_FIRST
        return self._stage_any(queue, body, properties, *rest, now=now, prepared_offset=prepared_offset, store_host=store_host)

    def stage_batch(
        self,
        topic: str,
        queue_id: int,
        entries: list[BatchEntry] | BatchColumns | Rows,
        *,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> tuple[int, Sequence[int]]:
        """Prepare each message of a batch as a record of its own and return the first queue offset and the records' log offsets.

        ``entries`` is the result of ``split``, which is fastest, of ``split_columns``, or of ``split_batch``. Each message keeps its flag,
        body and properties; the tag codes come from the properties. A batch never spans two segments. Raises what ``stage_message``
        raises; MessageTooLarge also when the batch would not fit an empty segment.
        """
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        first = queue.next
        batch = _columns_of(entries) if isinstance(entries, list) else entries
        if isinstance(batch, BatchColumns) and not batch.bodies:
            return first, []
        store_host = self.store_host
        if queue.unusual or len(born_host) + len(store_host) != _HOSTS_V4_BYTES or sys_flag & _UNUSUAL:
            columns = batch if isinstance(batch, BatchColumns) else batch.columns()
            rows = list(zip(columns.flags, columns.bodies, columns.properties, strict=True))
            return self._stage_unusual_batch(queue, rows, sys_flag, born_timestamp_ms, born_host, reconsume_times)
        self._last_ms = now = max(self._time_ms(), self._last_ms)
        shared = _pack_shared(sys_flag, born_timestamp_ms, born_host, now, store_host, reconsume_times, 0)
        log = self._log
        start = log.staged_end
        record_bytes, properties, log_offsets, end, units = explode(queue, batch, queue_id, first, start, shared)
        if end + _BLANK_BYTES > log.limit:
            start = self._roll(end - start)
            record_bytes, properties, log_offsets, end, units = explode(queue, batch, queue_id, first, start, shared)
        log.pieces.append(record_bytes)
        log.staged_end = end
        self._last_log_offset = log_offsets[-1]
        if self._staged_sends is not None:
            self._staged_sends.append((topic, properties, log_offsets, now))
        if first == queue.committed:
            self._touched.append(queue)
        tail = queue.tail[1]
        tail += units
        queue.next = first + len(log_offsets)
        return first, log_offsets

    def _stage_unusual_batch(
        self,
        queue: Queue,
        entries: Sequence[tuple[int, Buffer, bytes]],
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> tuple[int, list[int]]:
        for _, body, properties in entries:
            self._check_sizes(body, properties)
        total = sum(_record_size(queue, body, properties, born_host, self.store_host) for _, body, properties in entries)
        if self._log.staged_end + total + _BLANK_BYTES > self._log.limit:
            self._roll(total)
        first = queue.next
        log_offsets = []
        for flag, body, properties in entries:
            code = tags_code_raw(find_property(properties, b"TAGS") or b"")
            staged = self._stage_any(queue, body, properties, code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)
            log_offsets.append(staged[1])
        return first, log_offsets

    def _roll(self, size: int) -> int:
        """Continue in the next segment and return its log offset. Raises MessageTooLarge when no segment has room for ``size`` bytes."""
        log = self._log
        if size + _BLANK_BYTES > log.segment_bytes:
            raise MessageTooLarge(size, log.segment_bytes - _BLANK_BYTES)
        return log.roll()

    def commit(self) -> None:
        """Write everything staged at once and make it visible to readers. After that, killing the process loses none of it.

        While the store holds back, readers see it once ``publish`` was called.

        Raises StoreWriteFailed when the write fails (disk full or broken): nothing staged is stored then; its offsets are assigned again.
        Raises StoreFailed after a failed flush: the store takes no more messages.
        """
        log = self._log
        if log.staged_end == log.committed_end:
            return
        touched = self._touched
        try:
            log.commit()
        except (StoreWriteFailed, StoreFailed):
            self._forget_staged()
            raise
        end = log.committed_end
        if self._holds_back or self._unpublished:
            for queue in touched:
                queue.commit()
                self._unpublished.append((end, queue, queue.committed))
        else:
            for queue in touched:
                queue.commit()
                queue.visible = queue.committed
        touched.clear()
        self.committed = (end, self._last_log_offset, self._last_ms)
        if self._staged_sends:
            assert self._index is not None
            self._index.offer(self._staged_sends, end)
            self._staged_sends = []

    def publish(self, end: int) -> None:
        """Make commits up to log offset ``end`` visible to readers. Only needed while, or after, the store defers visibility."""
        waiting = self._unpublished
        while waiting and waiting[0][0] <= end:
            _, queue, offset = waiting.popleft()
            queue.visible = offset
        self._published_end = max(self._published_end, min(end, self.committed[0]))

    def hold_back(self, wanted: bool) -> None:
        """Defer the visibility of later commits until they are published, or make them visible at once; publish deferred ones first.

        Never holds back with ``read_uncommitted``.
        """
        if not self.holds_back:
            self._published_end = self.committed[0]
        self._holds_back = wanted and self._may_hold_back

    # --- a replica ---

    @property
    def holds_back(self) -> bool:
        """Whether readers see only what was published: with SYNC_FLUSH, and on a master that waits for slaves."""
        return self._holds_back or bool(self._unpublished)

    def took(self, end: int, last_log_offset: int, last_ms: int, grown: Sequence[tuple[Queue, int]] = ()) -> None:
        """Record that queues and index have the records up to log offset ``end``, which a replica received; the last one is given.

        ``grown`` are the queues with new units and what readers saw of each before: until ``publish`` they see no more.
        """
        if self.holds_back:
            for queue, visible in grown:
                queue.visible = min(visible, queue.committed)
                self._unpublished.append((end, queue, queue.committed))
        self._last_log_offset = last_log_offset
        self._last_ms = last_ms
        self.committed = (end, last_log_offset, last_ms)

    def cut_back(self, end: int, last_log_offset: int, last_ms: int) -> None:
        """Record that the log of a replica was cut at ``end``, and its queues."""
        kept = deque(waiting for waiting in self._unpublished if waiting[0] <= end)
        for queue in {id(queue): queue for log_offset, queue, _ in self._unpublished if log_offset > end}.values():
            if queue.committed > queue.visible:  # the cut is inside a commit, a part of which remains
                kept.append((end, queue, queue.committed))
        self._unpublished = kept
        self._published_end = min(self._published_end, end)
        self.took(end, last_log_offset, last_ms)

    def discard(self) -> None:
        """Drop what was staged since the last commit."""
        self._log.discard()
        self._forget_staged()

    def _forget_staged(self) -> None:
        for queue in self._touched:
            queue.roll_back()
        self._touched.clear()
        if self._staged_sends:
            self._staged_sends.clear()
        self._last_log_offset = self.committed[1]


def _columns_of(entries: list[BatchEntry]) -> BatchColumns:
    flags, bodies, strings = zip(*entries, strict=True) if entries else ((), (), ())
    return BatchColumns(flags, bodies, strings, b"".join(strings))


def _record_size(queue: Queue, body: Buffer, properties: bytes, born_host: bytes, store_host: bytes) -> int:
    return queue.overhead - _HOSTS_V4_BYTES + len(born_host) + len(store_host) + len(body) + len(properties)
