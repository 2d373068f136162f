"""The MessageStore: what the broker calls. Messages go in by topic and queue, and come out by queue offset, time or log position.

One thread stages, commits and reads. ``flush`` may run in one other thread at the same time. Nothing here waits, sleeps or locks on the
way of a message.
"""

import contextlib
import errno
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import Enum
from struct import Struct

import msgspec
from isal.isal_zlib import crc32 as _crc32

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import (
    FatalError,
    InvalidMessage,
    MessageTooLarge,
    SprocketError,
    StoreDamaged,
    StoreFailed,
    StoreNotWritable,
    StoreWriteFailed,
)
from sprocketmq.protocol.batch import BatchEntry
from sprocketmq.protocol.codes import SYSFLAG_BORN_HOST_V6
from sprocketmq.protocol.hashing import crc32, tags_code_raw
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, find_property
from sprocketmq.protocol.records import HEAD, MAGIC_V1, encode_record, pack_host
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.commitlog import CommitLog, Segment
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.consumequeue import TAIL_LIMIT_BYTES, UNIT, ConsumeQueue
from sprocketmq.storage.fs import REAL_FS, Buffer, FileSystem
from sprocketmq.storage.lock import DirectoryLock
from sprocketmq.storage.queues import QueueTable
from sprocketmq.storage.recovery import LogScan, RecoveryReport, parse_record
from sprocketmq.storage.snapshot import Snapshot

__all__ = ["MessageStore", "ReadResult", "ReadStatus", "RecoveryReport", "StoreConfig"]

# The 88 bytes before the body; what all messages of a batch share is packed once, as the 48 bytes from sysFlag on.
_BATCH_HEAD = Struct(">iiiiiqq48si")
_BATCH_SHARED = Struct(">iq8sq8siq")
# What identifies a record: size, (magic, CRC), queue id, (flag), queue offset, physical offset.
_IDENTITY = Struct(">i8xi4xqq")
_SHORT = Struct(">h")
_INT = Struct(">i")
_LONG = Struct(">q")
_pack_short = _SHORT.pack
# Tag codes are 32-bit hashes; smaller values are addresses of extension units, which match until the unit itself is read.
_LOWEST_TAG_CODE = -(1 << 31)
SNAPSHOT_EVERY_BYTES = 256 << 20
# A read that finds more runs than this gives one joined copy: sending thousands of small pieces costs more than copying them.
MAX_RUNS = 64
_NOTHING = memoryview(b"")


class ReadStatus(Enum):
    """How a read by queue offset ended; the names are the reference's and travel as remarks."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"


class ReadResult(msgspec.Struct, frozen=True):
    """What a read found: ``buffers`` hold ``count`` whole records in queue order, neighbours in the log sharing one view.

    ``next_offset`` is where the next read should begin. Views are read-only and stay valid as long as they are held.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    buffers: list[memoryview]
    count: int


class MessageStore:
    """The store in one directory: commit log, consume queues and what recovery needs.

    Call ``open`` first and ``close`` last. ``store_host`` (``pack_host`` of the broker's address) goes into every record.
    """

    def __init__(self, config: StoreConfig, *, fs: FileSystem = REAL_FS, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.store_host: bytes = pack_host("127.0.0.1", 0)
        self._fs = fs
        self._clock = clock
        self._time_ms = clock.time_ms
        self._max_body = config.max_message_bytes
        self._root = str(config.root)
        self._log = CommitLog(fs, f"{self._root}/commitlog", config.commitlog_segment_bytes, preallocate=config.preallocate)
        self._table = QueueTable(fs, self._root, self._log, config.consumequeue_segment_bytes)
        self._queues = self._table.queues
        self._touched: list[ConsumeQueue] = []
        self._checkpoint = Checkpoint()
        self._snapshot = Snapshot()
        self._flush_lock = threading.Lock()
        self._lock: DirectoryLock | None = None
        self._last_ms = 0
        self._last_physical = 0
        # (end of the log, start of its last record, that record's store time) as of the last commit whose queue units are visible.
        self._mark = (0, 0, 0)

    # --- opening and closing ---

    def open(self) -> RecoveryReport:
        """Take the directory, recover what is in it and return what that found.

        Derived files that are missing or damaged are made anew. Raises StoreLocked when another broker has the directory,
        StoreNotWritable when it cannot be made or written, StoreDamaged when the commit log itself is beyond recovery.
        """
        began = self._clock.monotonic()
        try:
            for name in ("", "/commitlog", "/consumequeue", "/config"):
                self._fs.make_dirs(self._root + name)
            self._lock = DirectoryLock(self._fs, self._root)
            report = self._recover()
            self._write_abort_marker()
        except OSError as e:
            self.abandon()
            if e.errno == errno.EIO:
                raise StoreDamaged(e.filename or self._root, 0, e.strerror or str(e)) from e
            raise StoreNotWritable(self._root, e.strerror or str(e)) from e
        except SprocketError:
            self.abandon()
            raise
        report.elapsed_ms = (self._clock.monotonic() - began) * 1000
        return report

    def close(self) -> None:
        """Flush everything, mark the stop as clean and give the directory back. Staged messages are dropped; twice is fine.

        Raises StoreFailed when the disk refuses; the directory is given back all the same, and the next start recovers.
        """
        if self._lock is None:
            return
        self.discard()
        try:
            self.flush(thorough=True)
            self._fs.unlink(f"{self._root}/abort")
            self._fs.fsync_dir(self._root)
        except OSError as e:
            raise StoreFailed(self._root, e.strerror or str(e)) from e
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of files and directory without flushing or marking anything: what a killed process leaves behind."""
        with self._flush_lock:
            self._log.close()
            self._table.pool.forget()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _write_abort_marker(self) -> None:
        file = self._fs.open(f"{self._root}/abort", create=True)
        try:
            file.truncate(0)
            file.pwrite(b"%d" % os.getpid(), 0)
            file.fdatasync()
        finally:
            file.close()

    # --- appending ---

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
        """Prepare one message for the next ``commit`` and return its queue offset and its place in the log.

        The body is copied. Raises MessageTooLarge, or InvalidMessage for properties over 32,767 bytes and for a topic or queue id that
        cannot be a directory name; then nothing is staged of it.
        """
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        body_length = len(body)
        properties_length = len(properties)
        size = queue.overhead + body_length + properties_length
        log = self._log
        physical = log.staged_end
        store_host = self.store_host
        if (
            body_length > self._max_body
            or properties_length > MAX_PROPERTIES_LENGTH
            or queue.overhead > 218
            or len(born_host) + len(store_host) != 16
        ):
            return self._stage_unusual(queue, body, properties, tags_code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)
        if physical + size + 8 > log.limit:
            physical = self._roll(size)
        now = self._time_ms()
        if now < self._last_ms:
            now = self._last_ms  # store times never go back, or looking up by time would miss
        else:
            self._last_ms = now
        offset = queue.next
        head = HEAD.pack(
            size,
            MAGIC_V1,
            _crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            offset,
            physical,
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
        log.staged_end = physical + size
        self._last_physical = physical
        if offset == queue.committed:
            self._touched.append(queue)
        tail = queue.tail[1]
        tail += UNIT.pack(physical, size, tags_code)
        queue.next = offset + 1
        return offset, physical

    def _stage_unusual(
        self,
        queue: ConsumeQueue,
        body: Buffer,
        properties: bytes,
        tags_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> tuple[int, int]:
        """Stage a record with IPv6 hosts or a long topic name, or say why it cannot be."""
        if len(body) > self.config.max_message_bytes:
            raise MessageTooLarge(len(body), self.config.max_message_bytes)
        if len(properties) > MAX_PROPERTIES_LENGTH:
            raise InvalidMessage(f"the properties take {len(properties)} bytes, the limit is {MAX_PROPERTIES_LENGTH}")
        return self._stage_any(queue, body, properties, tags_code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)

    def _stage_any(
        self,
        queue: ConsumeQueue,
        body: Buffer,
        properties: bytes,
        tags_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> tuple[int, int]:
        log = self._log
        size = _record_size(queue, body, properties, born_host, self.store_host)
        physical = log.staged_end
        if physical + size + 8 > log.limit:
            physical = self._roll(size)
        self._last_ms = now = max(self._time_ms(), self._last_ms)
        offset = queue.next
        record = encode_record(
            topic=queue.topic.encode(),
            body=memoryview(body),
            properties=properties,
            queue_id=queue.queue_id,
            queue_offset=offset,
            physical_offset=physical,
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            store_timestamp_ms=now,
            store_host=self.store_host,
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
        )
        log.pieces.append(record)
        log.staged_end = physical + size
        self._last_physical = physical
        if offset == queue.committed:
            self._touched.append(queue)
        tail = queue.tail[1]
        tail += UNIT.pack(physical, size, tags_code)
        queue.next = offset + 1
        return offset, physical

    def stage_batch(
        self,
        topic: str,
        queue_id: int,
        entries: Sequence[BatchEntry],
        *,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> tuple[int, list[int]]:
        """Prepare the messages of a batch as records of their own, one behind the other, and return the first queue offset and their places.

        Each keeps its flag, body and properties; the tag codes come from the properties. A batch never spans two segments. Raises as
        ``stage_message`` does; MessageTooLarge also when the whole would not fit an empty segment.
        """
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        first = queue.next
        if not entries:
            return first, []
        store_host = self.store_host
        if queue.overhead > 218 or len(born_host) + len(store_host) != 16:
            return self._stage_unusual_batch(queue, entries, sys_flag, born_timestamp_ms, born_host, reconsume_times)
        self._last_ms = now = max(self._time_ms(), self._last_ms)
        shared = _BATCH_SHARED.pack(sys_flag, born_timestamp_ms, born_host, now, store_host, reconsume_times, 0)
        log = self._log
        start = log.staged_end
        built = _explode(queue, entries, queue_id, first, start, shared)
        if built[2] + 8 > log.limit:
            start = self._roll(built[2] - start)
            built = _explode(queue, entries, queue_id, first, start, shared)
        record_bytes, physicals, end, units = built
        log.pieces.append(record_bytes)
        log.staged_end = end
        self._last_physical = physicals[-1]
        if first == queue.committed:
            self._touched.append(queue)
        tail = queue.tail[1]
        tail += units
        queue.next = first + len(entries)
        return first, physicals

    def _stage_unusual_batch(
        self,
        queue: ConsumeQueue,
        entries: Sequence[BatchEntry],
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> tuple[int, list[int]]:
        total = sum(_record_size(queue, body, properties, born_host, self.store_host) for _, body, properties in entries)
        if self._log.staged_end + total + 8 > self._log.limit:
            self._roll(total)
        first = queue.next
        physicals = []
        for flag, body, properties in entries:
            code = tags_code_raw(find_property(properties, b"TAGS") or b"")
            staged = self._stage_any(queue, body, properties, code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)
            physicals.append(staged[1])
        return first, physicals

    def _roll(self, size: int) -> int:
        log = self._log
        if size + 8 > log.segment_bytes:
            raise MessageTooLarge(size, log.segment_bytes - 8)
        return log.roll()

    def commit(self) -> None:
        """Write everything staged in one go; when it returns, readers see it and a killed process loses nothing of it.

        Raises StoreWriteFailed when the disk refuses (full, broken): nothing staged is stored then, and the offsets are given out
        again. Raises StoreFailed after a failed flush: the store takes nothing more.
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
        for queue in touched:
            queue.committed = queue.next
            if len(queue.tail[1]) >= TAIL_LIMIT_BYTES:
                with contextlib.suppress(OSError):  # the log has the messages; the units wait in memory for a later try
                    queue.write_out()
        touched.clear()
        self._mark = (log.committed_end, self._last_physical, self._last_ms)

    def discard(self) -> None:
        """Forget what is staged since the last commit."""
        self._log.discard()
        self._forget_staged()

    def _forget_staged(self) -> None:
        for queue in self._touched:
            queue.roll_back()
        self._touched.clear()
        self._last_physical = self._mark[1]

    # --- reading ---

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 32,
        max_bytes: int = 262_144,
        tag_codes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Return stored records of a queue from ``offset`` on: at most ``max_count``, and at most ``max_bytes`` but at least one.

        With ``tag_codes`` only records whose tag code is among them (the reader compares the tags themselves, codes may collide).
        An offset outside the queue gives the status that says on which side, and where to go on.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0)
        low = queue.min_offset
        high = queue.committed
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [], 0)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high, [], 0)
        if offset == high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0)
        if offset > high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0)
        count = 0
        total = 0
        position = offset
        missing = False
        bad = queue.bad
        buffers: list[memoryview] = []
        segment: Segment | None = None
        view = run_view = _NOTHING
        segment_start = segment_end = run_start = start = last = last_position = 0
        end = -1
        max_count = max(max_count, 1)
        stop = min(offset + (max_count if tag_codes is None else max(self.config.max_filter_units, max_count)), high)
        identity = _IDENTITY.unpack_from
        for physical, size, code in UNIT.iter_unpack(queue.read_units(offset, stop)):
            if tag_codes is not None and code not in tag_codes and code >= _LOWEST_TAG_CODE and size > 0:
                position += 1
                continue
            if physical != end or (bad and position in bad):
                # The run of neighbours in the log ends here. Its sizes were confirmed by the next unit's offset each, the last one
                # is by its record; queues are derived files and may be damaged.
                if last != start and not self._has_size(last, end - last) and self._repair_units(queue, last_position, stop):
                    return self.read(topic, queue_id, offset, max_count=max_count, max_bytes=max_bytes, tag_codes=tag_codes)
                if segment is None or not segment_start <= physical < segment_end:
                    segment = self._log.locate(physical)
                    if segment is not None:
                        segment_start, segment_end = segment.start, segment.start + segment.size
                        view = segment.view
                if (
                    segment is None
                    or size < 88
                    or physical + size > segment_end
                    or identity(view, physical - segment_start) != (size, queue_id, position, physical)
                ):
                    if self._repair_units(queue, position, stop):
                        return self.read(topic, queue_id, offset, max_count=max_count, max_bytes=max_bytes, tag_codes=tag_codes)
                    missing = True
                    position += 1
                    continue
                if count:
                    if total + size > max_bytes:
                        break
                    buffers.append(run_view[start - run_start : end - run_start])
                start = physical
                run_view = view
                run_start = segment_start
            elif total + size > max_bytes:
                break
            last = physical
            last_position = position
            end = physical + size
            total += size
            count += 1
            position += 1
            if count == max_count:
                break
        if not count:
            status = ReadStatus.MESSAGE_WAS_REMOVING if missing else ReadStatus.NO_MATCHED_MESSAGE
            return ReadResult(status, position, low, high, [], 0)
        if last != start and not self._has_size(last, end - last) and self._repair_units(queue, last_position, stop):
            return self.read(topic, queue_id, offset, max_count=max_count, max_bytes=max_bytes, tag_codes=tag_codes)
        buffers.append(run_view[start - run_start : end - run_start])
        if len(buffers) > MAX_RUNS:
            buffers = [memoryview(b"".join(buffers))]
        return ReadResult(ReadStatus.FOUND, position, low, high, buffers, count)

    def _has_size(self, physical: int, size: int) -> bool:
        """Tell whether the record at a place in the log says it has this size."""
        segment = self._log.locate(physical)
        return segment is not None and _INT.unpack_from(segment.view, physical - segment.start)[0] == size

    def _is_record(self, queue: ConsumeQueue, offset: int, physical: int, size: int) -> bool:
        """Tell whether the log has the record of ``offset`` of the queue at this place and with this size."""
        segment = self._log.locate(physical)
        if segment is None or size < queue.overhead or physical + size > segment.start + segment.size:
            return False
        return _IDENTITY.unpack_from(segment.view, physical - segment.start) == (size, queue.queue_id, offset, physical)

    def _repair_units(self, queue: ConsumeQueue, offset: int, stop: int) -> bool:
        """Derive the units of ``[offset, stop)`` from the log again; remember those whose record is gone. True when anything changed."""
        if offset in queue.bad:
            return False
        begin = self._log.min_offset
        step = 1
        while offset - step >= queue.min_offset:  # the nearest earlier unit that holds tells where in the log to begin
            physical, size, _ = queue.unit(offset - step)
            if self._is_record(queue, offset - step, physical, size):
                begin = physical + size
                break
            step *= 2
        topic = queue.topic.encode()
        begin = max(begin, self._table.deleted.get(queue.topic, 0))
        found: dict[int, bytes] = {}
        for records in LogScan(self._log, begin, check_crc=True, resync=True, stop=self._log.committed_end).batches():
            for name, queue_id, q, physical, size, code, _, _, _, _ in records:
                if queue_id == queue.queue_id and name == topic and offset <= q < stop:
                    found[q] = UNIT.pack(physical, size, code)
            if stop - 1 in found:
                break
        lost = []
        for q in range(offset, stop):
            if q in found:
                queue.rewrite(q, found[q])
            else:
                physical, size, _ = queue.unit(q)
                if not self._is_record(queue, q, physical, size):
                    lost.append(q)
        queue.bad |= frozenset(lost)
        return True

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Return the record that begins at a place in the log, or None when none begins there."""
        segment = self._log.locate(physical_offset)
        if segment is None:
            return None
        at = physical_offset - segment.start
        record = parse_record(segment.view, segment.start, at, check_crc=False)
        if record is None or physical_offset + record[4] > self._log.committed_end:
            return None
        return segment.view[at : at + record[4]]

    # --- offsets ---

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read; 0 for a queue nobody wrote to."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset the next message will get; 0 for a queue nobody wrote to."""
        queue = self._queues.get((topic, queue_id))
        return queue.committed if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at ``timestamp_ms`` or later, the max offset when there is none.

        With ``upper`` the last one stored at that time or earlier, the min offset when there is none. An empty queue gives its min.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.committed <= queue.min_offset:
            return queue.min_offset if queue is not None else 0
        low = queue.min_offset
        offsets = range(low, queue.committed)

        def store_time(offset: int) -> int:
            return self._store_time(queue, offset)

        if upper:
            return max(low, low + bisect_right(offsets, timestamp_ms, key=store_time) - 1)
        return low + bisect_left(offsets, timestamp_ms, key=store_time)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp (ms) of one queue offset, -1 when there is no such message."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.committed:
            return -1
        return self._store_time(queue, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store timestamp (ms) of the queue's first message, -1 when it is empty."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def _store_time(self, queue: ConsumeQueue, offset: int) -> int:
        physical, size, _ = queue.unit(offset)
        if not self._is_record(queue, offset, physical, size):
            self._repair_units(queue, offset, offset + 1)
            physical, size, _ = queue.unit(offset)
            if not self._is_record(queue, offset, physical, size):
                return -1
        segment = self._log.locate(physical)
        assert segment is not None
        at = physical - segment.start
        born_v6 = _INT.unpack_from(segment.view, at + 36)[0] & SYSFLAG_BORN_HOST_V6
        return int(_LONG.unpack_from(segment.view, at + (68 if born_v6 else 56))[0])

    @property
    def commitlog_min_offset(self) -> int:
        """Where the commit log begins, in bytes."""
        return self._log.min_offset

    @property
    def commitlog_max_offset(self) -> int:
        """Where the commit log ends, in bytes; what is staged does not count."""
        return self._log.committed_end

    def topics_on_disk(self) -> list[str]:
        """Return the topics that have queues, sorted."""
        return sorted({topic for topic, _ in self._queues})

    # --- upkeep ---

    def delete_topic(self, topic: str) -> None:
        """Drop the queues of a topic; its records stay in the log until they expire, and no restart brings the queues back.

        A topic of the same name starts again at offset 0. What is staged for it is dropped with everything else staged. Raises
        StoreWriteFailed when the deletion cannot be recorded; then nothing was dropped.
        """
        if not self._touched_by(topic):
            if any(name == topic for name, _ in self._queues):
                self._delete_queues(topic)
            return
        raise FatalError(f"topic {topic} has staged messages: commit or discard them before deleting it")

    def _touched_by(self, topic: str) -> bool:
        return any(queue.topic == topic for queue in self._touched)

    def _delete_queues(self, topic: str) -> None:
        with self._flush_lock:
            deleted = {t: at for t, at in self._table.deleted.items() if at > self._log.min_offset}
            deleted[topic] = self._log.committed_end
            remaining = tuple(q for q in self._snapshot.queues if q.topic != topic)
            snapshot = Snapshot(self._snapshot.position, self._snapshot.last_record, remaining, deleted)
            try:
                snapshot.save(self._fs, self._root)
            except OSError as e:
                raise StoreWriteFailed(self._root, e.strerror or str(e)) from e
            self._snapshot = snapshot
            self._table.deleted = deleted
            with contextlib.suppress(OSError):  # a start that finds leftovers has no queue for them
                self._table.remove(topic)

    def flush(self, *, thorough: bool = False) -> None:
        """Bring the commit log to the disk; with ``thorough`` the queues as well, and note how far all that is.

        A killed broker's next start reads the log from the last thorough flush on; the log growing by 256 MiB since makes any flush one.
        May run in another thread than the rest. Raises StoreFailed when the disk fails, and from then on the store takes no messages:
        what the system still holds of them is unknown, and only a restart finds out.
        """
        with self._flush_lock:
            end, last_physical, store_time = self._mark
            thorough = thorough or end - self._snapshot.position >= SNAPSHOT_EVERY_BYTES
            self._log.flush()
            self._checkpoint.commitlog_timestamp_ms = store_time
            if not thorough:
                return
            try:
                # Units of records behind ``end`` may come along; recovery derives those again and finds them equal.
                states = self._table.sync()
                snapshot = Snapshot(end, self._last_record(last_physical, end), states, self._table.deleted)
                if snapshot != self._snapshot:
                    snapshot.save(self._fs, self._root)
                    self._snapshot = snapshot
                self._checkpoint.queues_timestamp_ms = store_time
                self._checkpoint.queues_physical_offset = last_physical
                self._checkpoint.save(self._fs, f"{self._root}/checkpoint")
            except OSError as e:
                self._log.failure = e.strerror or str(e)
                raise StoreFailed(self._root, self._log.failure) from e

    def _last_record(self, physical: int, end: int) -> tuple[int, int, int]:
        segment = self._log.locate(physical)
        if segment is None or end == segment.start:
            return (0, 0, 0)
        at = physical - segment.start
        size = _INT.unpack_from(segment.view, at)[0]
        return physical, size, crc32(segment.view[at : at + size])

    # --- recovery ---

    def _recover(self) -> RecoveryReport:
        report = RecoveryReport(clean=not self._fs.exists(f"{self._root}/abort"))
        log = self._log
        log.load()
        self._checkpoint = Checkpoint.load(self._fs, f"{self._root}/checkpoint")
        table = self._table
        on_disk = table.load()
        snapshot = Snapshot.load(self._fs, self._root)
        report.reason = self._restore(snapshot)
        if report.reason or snapshot is None:
            report.rebuilt = bool(log.segments) or on_disk
            table.queues.clear()
            self._snapshot = Snapshot(deleted=table.deleted)
            start = log.min_offset
            last_time = 0
        else:
            self._snapshot = snapshot
            start = log.flushed_end = snapshot.position
            last_time = self._last_ms
        report.scanned_from = start
        scan = LogScan(log, start, check_crc=True, resync=not report.clean or report.rebuilt, last_time=last_time)
        for records in scan.batches():
            report.records += len(records)
            table.take_records(records)
            self._last_physical = records[-1][3]
            self._last_ms = max(self._last_ms, records[-1][7])
        report.damaged = scan.damaged
        report.log_end = scan.end
        if scan.end == log.min_offset and report.clean and log.has_data():
            raise StoreDamaged(log.segments[0].file.path, 0, "there is data but not one valid record; is this a RocketMQ commit log?")
        if not (report.clean and snapshot is self._snapshot and log.ends_in_last_segment(scan.end) and not report.records):
            report.cut_bytes = log.end_at(scan.end, cut=not report.clean, quarantine=f"{self._root}/damaged")
        else:
            log.start_at(scan.end)  # we left it in order, so nothing is behind its end
        if report.rebuilt or not report.clean:
            table.settle()
        table.correct_min_offsets()
        self._checkpoint.confirm_offset = self._last_physical
        self._mark = (log.committed_end, self._last_physical, self._last_ms)
        return report

    def _restore(self, snapshot: Snapshot | None) -> str:
        """Take the queues as the snapshot has them; return why that is not possible, or an empty text."""
        log = self._log
        if snapshot is None:
            return "there is no queue snapshot" if log.segments else ""
        physical, size, crc = snapshot.last_record
        if size:
            segment = log.find(physical)
            record = parse_record(segment.view, segment.start, physical - segment.start, check_crc=False) if segment else None
            if segment is None or record is None or record[4] != size or physical + size > snapshot.position:
                return "the queue snapshot does not belong to this commit log"
            at = physical - segment.start
            if crc32(segment.view[at : at + size]) != crc:
                return "the queue snapshot does not belong to this commit log"
            self._last_physical = physical
            self._last_ms = record[7]
        if not log.min_offset <= snapshot.position <= log.min_offset + len(log.segments) * log.segment_bytes:
            return "the queue snapshot does not belong to this commit log"
        return self._table.restore(snapshot.queues, snapshot.deleted)


def _record_size(queue: ConsumeQueue, body: Buffer, properties: bytes, born_host: bytes, store_host: bytes) -> int:
    return queue.overhead - 16 + len(born_host) + len(store_host) + len(body) + len(properties)


def _explode(
    queue: ConsumeQueue, entries: Iterable[BatchEntry], queue_id: int, offset: int, physical: int, shared: bytes
) -> tuple[bytes, list[int], int, bytes]:
    """Return the records of a batch as one piece, where each begins, where the last ends, and their queue units.

    This loop runs for every message of every batch: one head packed, one CRC, one look for the tag.
    """
    parts: list[Buffer] = []
    add = parts.append
    physicals: list[int] = []
    add_physical = physicals.append
    units: list[int] = []
    pack_head = _BATCH_HEAD.pack
    crc = _crc32
    overhead = queue.overhead
    topic_field = queue.topic_field
    topic_and_length = b""
    known_length = -1
    known_pair = b"\x02TAGS\x01\x02"
    known_code = 0
    for flag, body, properties in entries:
        n = len(body)
        p = len(properties)
        size = overhead + n + p
        add(pack_head(size, MAGIC_V1, crc(body) & 0x7FFFFFFF, queue_id, flag, offset, physical, shared, n))
        add(body)
        if p != known_length:
            known_length = p
            topic_and_length = topic_field + _pack_short(p)
        add(topic_and_length)
        add(properties)
        code = known_code
        if properties.find(known_pair) < 0:
            # Another tag than the last one, at the front, or none at all.
            before, found, after = properties.partition(b"TAGS\x01")
            code = 0
            if found:
                inside = before and before[-1] != 2  # of another name or value
                tag = find_property(properties, b"TAGS") if inside else after.partition(b"\x02")[0]
                if tag:
                    code = known_code = tags_code_raw(tag)
                    known_pair = b"\x02TAGS\x01" + tag + b"\x02"
        units += (physical, size, code)
        add_physical(physical)
        physical += size
        offset += 1
    return b"".join(parts), physicals, physical, _units_layout(len(physicals)).pack(*units)


_layouts: dict[int, Struct] = {}


def _units_layout(count: int) -> Struct:
    """Return the layout of ``count`` queue units in a row."""
    layout = _layouts.get(count)
    if layout is None:
        layout = Struct(">" + "qiq" * count)
        if len(_layouts) < 256:  # batches come in few sizes; a layout takes a few kilobytes
            _layouts[count] = layout
    return layout
