"""The MessageStore: what the broker calls. Messages go in by topic and queue, and come out by queue offset, time or log position.

One thread stages, commits and reads. ``flush`` may run in one other thread at the same time. Nothing here waits, sleeps or locks on the
way of a message.
"""

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

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
from sprocketmq.protocol.batch import BatchColumns, BatchEntry
from sprocketmq.protocol.codes import (
    SYSFLAG_ANY_HOST_V6,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_TRANSACTION_COMMITTED,
    SYSFLAG_TRANSACTION_MASK,
)
from sprocketmq.protocol.hashing import crc32, tags_code_raw
from sprocketmq.protocol.layout import COPY_OF_FIRST, INT16, INT32, MAGIC_V1, QUEUE_UNIT, RECORD_HEAD
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, find_property
from sprocketmq.protocol.records import Record, encode_record, pack_host
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.directory_checks import check_directory
from sprocketmq.storage.fs import NO_ROOM, REAL_FS, Buffer, FileSystem, RealFileSystem
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.index.staging import StagedSend
from sprocketmq.storage.lock import DirectoryLock
from sprocketmq.storage.log import recovery
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.exploding import BATCH_SHARED, explode
from sprocketmq.storage.log.recovery import LogScan, RecoveryReport, data_end, parse_record, record_view
from sprocketmq.storage.queues.batch_queue import MAX_COUNT, BatchConsumeQueue
from sprocketmq.storage.queues.queue_table import Queue, QueueTable, first_unit
from sprocketmq.storage.queues.reading import QueueReader, ReadResult, ReadStatus
from sprocketmq.storage.snapshot import Snapshot

__all__ = ["MessageStore", "ReadResult", "ReadStatus", "RecoveryReport", "StoreConfig"]

# Inner batches and parts of transactions are not for the fast way of appending.
_UNUSUAL = SYSFLAG_INNER_BATCH | SYSFLAG_TRANSACTION_MASK
_pack_short = INT16.pack
# A thorough flush takes some 50 us a queue, which should not be more than a fraction of what writing the log in between takes.
SNAPSHOT_EVERY_BYTES = 256 << 20
SNAPSHOT_EVERY_BYTES_A_QUEUE = 64 << 10
# Correcting a queue's min offset and looking at its files takes 40 to 100 us.
QUEUES_PER_STEP = 50


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
        self._table = QueueTable(fs, self._log, config)
        self._reader = QueueReader(self._log, self._table, config.max_filter_units)
        self._queues = self._table.queues
        self.index: StoreIndex | None = None
        # What is staged for the key index: topic, properties, place, store time of each send; None without an index.
        self._offers: list[StagedSend] | None = None
        self._touched: list[Queue] = []
        # With SYNC_FLUSH: (end of the log, queue, its end) of commits readers must not see yet.
        self._holds_back = config.flush_disk_type == "SYNC_FLUSH" and not config.read_uncommitted
        self._unpublished: deque[tuple[int, Queue, int]] = deque()
        self._visible_end = 0
        self._min_known = 0  # where the log began when the queues were last corrected
        self._checkpoint = Checkpoint()
        self._snapshot = Snapshot()
        self._flush_lock = threading.Lock()
        self._log_lock = threading.Lock()
        self._lock: DirectoryLock | None = None
        self._last_ms = 0
        self._last_physical = 0
        # (end of the log, start of its last record, that record's store time) as of the last commit whose queue units are visible.
        self._mark = (0, 0, 0)

    # --- opening and closing ---

    def open(self, progress: Callable[[int, int], None] | None = None) -> RecoveryReport:
        """Take the directory, recover what is in it and return what that found. ``progress`` gets the bytes of log read and their total.

        Derived files that are missing or damaged are made anew. Raises StoreLocked when another broker has the directory,
        StoreNotWritable when it cannot be made or written, StoreNotSupported when it is no store or one of a kind that only Apache's broker
        reads, StoreDamaged when the commit log itself is beyond recovery.
        """
        began = self._clock.monotonic()
        try:
            check_directory(self._fs, self._root)
            for name in ("", "/commitlog", "/consumequeue", "/config"):
                self._fs.make_dirs(self._root + name)
            self._lock = DirectoryLock(self._fs, self._root)
            report = self._recover(progress)
            self._write_abort_marker()
            self._sync_names()
            self._reader.opened()
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

        Raises StoreFailed when the disk refuses; the directory is given back all the same, and the next start recovers. That is also so,
        without an error, when a full disk has no room for the queues: the log is complete.
        """
        if self._lock is None:
            return
        self.discard()
        try:
            self.flush(thorough=True)
            self._fs.unlink(f"{self._root}/abort")
            self._fs.fsync_dir(self._root)
        except StoreWriteFailed:
            pass
        except OSError as e:
            raise StoreFailed(self._root, e.strerror or str(e)) from e
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of files and directory without flushing or marking anything: what a killed process leaves behind."""
        with self._flush_lock, self._log_lock:
            self._log.close()
            self._table.pool.forget()
            if self.index is not None:
                self.index.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _write_abort_marker(self) -> None:
        file = self._fs.open(f"{self._root}/abort", create=True)
        try:
            file.truncate(0)
            file.pwrite(b"%d" % os.getpid(), 0)
            file.fdatasync()
        except OSError as e:
            if e.errno not in NO_ROOM:
                raise  # else there is a marker, if an empty one
        finally:
            file.close()

    def _sync_names(self) -> None:
        """Bring the names of the marker and the directories to the disk: a synced file in a directory that was lost is lost as well."""
        self._fs.fsync_dir(self._root)
        with contextlib.suppress(PermissionError):  # a parent we may not look into was not made by us either
            self._fs.fsync_dir(str(self.config.root.parent))

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

        The body is copied. Prepared and rolled back parts of transactions are in no queue and have the offset 0. Raises MessageTooLarge, or InvalidMessage for properties over 32,767 bytes and for a topic or queue id that
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
            or queue.unusual
            or len(born_host) + len(store_host) != 16
            or sys_flag & _UNUSUAL
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
        head = RECORD_HEAD.pack(
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
        if self._offers is not None:
            self._offers.append((topic, properties, physical, now))
        if offset == queue.committed:
            self._touched.append(queue)
        tail = queue.tail[1]
        tail += QUEUE_UNIT.pack(physical, size, tags_code)
        queue.next = offset + 1
        return offset, physical

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
        """Stage a record of a batch topic, with IPv6 hosts or a long topic name, or say why it cannot be."""
        if sys_flag & SYSFLAG_INNER_BATCH:
            raise InvalidMessage("a record that says it is an inner batch goes to a topic with batch queues, with its count")
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
        """Prepare a whole batch as one record of a topic with batch queues and return its first queue offset and its place in the log.

        ``body`` is the batch as the client encoded it, ``count`` how many messages are in it (1 to 32,767); each gets a queue offset.
        INNER_NUM and INNER_BASE are added to the properties. Raises MessageTooLarge, or InvalidMessage for a topic without batch
        queues, another count, or properties that are too long or say themselves what the batch covers; then nothing is staged of it.
        """
        if topic not in self._table.batch_topics:
            raise InvalidMessage(f"topic {topic!r} has no batch queues: its messages are stored one by one")
        if not 0 < count <= MAX_COUNT:
            raise InvalidMessage(f"an inner batch has 1 to {MAX_COUNT} messages, not {count}")
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        if properties.find(b"INNER_") >= 0 and (find_property(properties, b"INNER_NUM") or find_property(properties, b"INNER_BASE")):
            raise InvalidMessage("INNER_NUM and INNER_BASE are given by the broker")
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
        prepared: int = 0,
        store_host: bytes | None = None,
    ) -> tuple[int, int]:
        log = self._log
        if store_host is None:
            store_host = self.store_host
        size = _record_size(queue, body, properties, born_host, store_host)
        physical = log.staged_end
        if physical + size + 8 > log.limit:
            physical = self._roll(size)
        self._last_ms = now = now or max(self._time_ms(), self._last_ms)
        transaction = sys_flag & SYSFLAG_TRANSACTION_MASK
        in_queue = transaction in (0, SYSFLAG_TRANSACTION_COMMITTED)
        offset = queue.next if in_queue else 0
        queue_id = queue.queue_id
        if queue.overhead > 218 or len(born_host) + len(store_host) != 16 or sys_flag & SYSFLAG_ANY_HOST_V6:
            record = encode_record(
                topic=queue.topic.encode(),
                body=memoryview(body),
                properties=properties,
                queue_id=queue_id,
                queue_offset=offset,
                physical_offset=physical,
                born_timestamp_ms=born_timestamp_ms,
                born_host=born_host,
                store_timestamp_ms=now,
                store_host=store_host,
                flag=flag,
                sys_flag=sys_flag,
                reconsume_times=reconsume_times,
                prepared_offset=prepared,
            )
        else:
            crc = _crc32(body) & 0x7FFFFFFF
            rest = (born_timestamp_ms, born_host, now, store_host, reconsume_times, prepared, len(body))
            head = RECORD_HEAD.pack(size, MAGIC_V1, crc, queue_id, flag, offset, physical, sys_flag, *rest)
            record = b"".join((head, body, queue.topic_field, _pack_short(len(properties)), properties))
        log.pieces.append(record)
        log.staged_end = physical + size
        self._last_physical = physical
        if self._offers is not None and transaction != SYSFLAG_TRANSACTION_MASK:
            self._offers.append((queue.topic, properties, physical, now))
        if not in_queue:
            return offset, physical
        if offset == queue.committed:
            self._touched.append(queue)
        if isinstance(queue, BatchConsumeQueue):
            queue.add(physical, size, tags_code, now, count)
        else:
            tail = queue.tail[1]
            tail += QUEUE_UNIT.pack(physical, size, tags_code)
            queue.next = offset + 1
        return offset, physical

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
        """Prepare a message that comes from another place than a sender, as ``stage_message`` does.

        ``copied_from`` is the place in the log of the record it was made from, which is kept in its prepared offset. With
        ``delay_ms`` its unit gets the delivery time instead of a tag code: that long after its store time, or after ``not_before_ms``
        when that is later. Without ``store_host`` it is the store's.
        """
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        if sys_flag & SYSFLAG_INNER_BATCH:
            raise InvalidMessage("an inner batch is not copied whole")
        self._check_sizes(body, properties)
        now = max(self._time_ms(), self._last_ms)
        if delay_ms is not None:
            tags_code = max(now, not_before_ms) + delay_ms
        rest = (tags_code, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times)
        prepared = 0 if copied_from is None else copied_from or COPY_OF_FIRST
        return self._stage_any(queue, body, properties, *rest, now=now, prepared=prepared, store_host=store_host)

    def stage_batch(
        self,
        topic: str,
        queue_id: int,
        entries: Sequence[BatchEntry] | BatchColumns,
        *,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> tuple[int, list[int]]:
        """Prepare the messages of a batch as records of their own, one behind the other, and return the first queue offset and their places.

        ``entries`` is what ``split_batch`` or ``split_columns`` returns. Each keeps its flag, body and properties; the tag codes come from
        the properties. A batch never spans two segments. Raises as ``stage_message`` does; MessageTooLarge also when the whole would not
        fit an empty segment.
        """
        queue = self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)
        first = queue.next
        if not entries:
            return first, []
        store_host = self.store_host
        if queue.unusual or len(born_host) + len(store_host) != 16 or sys_flag & _UNUSUAL:
            rows = list(zip(*entries, strict=True)) if isinstance(entries, BatchColumns) else entries
            return self._stage_unusual_batch(queue, rows, sys_flag, born_timestamp_ms, born_host, reconsume_times)
        self._last_ms = now = max(self._time_ms(), self._last_ms)
        shared = BATCH_SHARED.pack(sys_flag, born_timestamp_ms, born_host, now, store_host, reconsume_times, 0)
        log = self._log
        start = log.staged_end
        built = explode(queue, entries, queue_id, first, start, shared)
        if built[3] + 8 > log.limit:
            start = self._roll(built[3] - start)
            built = explode(queue, entries, queue_id, first, start, shared)
        record_bytes, properties, physicals, end, units = built
        log.pieces.append(record_bytes)
        log.staged_end = end
        self._last_physical = physicals[-1]
        if self._offers is not None:
            self._offers.append((topic, properties, physicals, now))
        if first == queue.committed:
            self._touched.append(queue)
        tail = queue.tail[1]
        tail += units
        queue.next = first + len(physicals)
        return first, physicals

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

        With SYNC_FLUSH readers see it when it is published after a flush, unless ``read_uncommitted`` is set.

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
        end = log.committed_end
        if self._holds_back:
            for queue in touched:
                queue.commit()
                self._unpublished.append((end, queue, queue.committed))
        else:
            for queue in touched:
                queue.commit()
                queue.visible = queue.committed
        touched.clear()
        self._mark = (end, self._last_physical, self._last_ms)
        if self._offers:
            assert self.index is not None
            self.index.offer(self._offers, end)
            self._offers = []

    def publish(self, end: int) -> None:
        """Let readers see what was committed up to the place ``end`` of the log, as ``flush`` returned it. Only SYNC_FLUSH needs it."""
        waiting = self._unpublished
        while waiting and waiting[0][0] <= end:
            _, queue, offset = waiting.popleft()
            queue.visible = offset
        self._visible_end = max(self._visible_end, min(end, self._log.committed_end))

    def discard(self) -> None:
        """Forget what is staged since the last commit."""
        self._log.discard()
        self._forget_staged()

    def _forget_staged(self) -> None:
        for queue in self._touched:
            queue.roll_back()
        self._touched.clear()
        if self._offers:
            self._offers.clear()
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
        stop_count: int = 1 << 31,
        tag_codes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Return stored records of a queue from ``offset`` on: at most ``max_count`` messages, and at most ``max_bytes``, but at least one.

        With ``tag_codes`` only records whose tag code is among them (the reader compares the tags themselves, codes may collide).
        An offset outside the queue gives the status that says on which side, and where to go on. An inner batch is never cut: an offset
        inside one gives all of it. Once ``stop_count`` messages are there nothing is added any more; a batch may take the count past it.
        """
        return self._reader.read(topic, queue_id, offset, max_count, max_bytes, stop_count, tag_codes)

    def declare_batch_topic(self, topic: str) -> None:
        """Let the queues of a topic without messages be batch queues. Raises FatalError when it has plain queues already."""
        self._table.declare_batch_topic(topic)

    @property
    def batch_topics(self) -> frozenset[str]:
        """The topics whose queues are batch queues."""
        return self._table.batch_topics

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Return the record that begins at a place in the log, or None when none begins there."""
        return record_view(self._log, physical_offset, self._log.committed_end)

    def deliveries_since(self, physical: int) -> Iterator[tuple[int, int]]:
        """Yield the place of each delivered record from ``physical`` on and the place of the parked one ``stage_copy`` made it from.

        Reads that much of the log. A delivered record is one of an ordinary topic that still says what its real topic is.
        """
        log = self._log
        begin = max(physical, log.min_offset)
        for records in LogScan(log, begin, check_crc=False, resync=True, stop=log.committed_end).batches():
            for record in records:
                if b"REAL_TOPIC\x01" in record[9]:
                    view = record_view(log, record[3], log.committed_end)
                    source = Record(view, 0, len(view)).copied_from if view is not None else None
                    if source is not None:
                        yield record[3], source

    def query(
        self, topic: str, key: str, *, max_count: int = 64, begin_ms: int = 0, end_ms: int = (1 << 63) - 1, by_tag: bool = False
    ) -> list[memoryview]:
        """Return the newest ``max_count`` records of a topic that have ``key`` among their keys or as unique key, oldest first.

        With ``by_tag`` those with that tag. Only records stored in ``[begin_ms, end_ms]``, only exact matches. A store without an index
        finds nothing. May raise OSError.
        """
        if self.index is None:
            return []
        end = self.commitlog_visible_offset
        return self.index.query(topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms, by_tag=by_tag, visible_end=end)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return what a queue holds of the records of ``count`` messages from ``offset`` on: place in the log, size, tag code.

        In a batch queue a record holds one message or many. Nothing for an offset that readers do not see.
        """
        return self._reader.units(topic, queue_id, offset, count)

    @property
    def indexed_until(self) -> tuple[int, int]:
        """Store time (ms) and place in the log of the newest record of the key index, zeros when there is none."""
        return self.index.newest if self.index is not None else (0, 0)

    @property
    def dispatch_lag(self) -> tuple[int, int]:
        """How many bytes of the log are not in the key index yet, and for how many milliseconds the oldest message has been waiting.

        Queues never lag: their units are made with the records.
        """
        return self.index.lag() if self.index is not None else (0, 0)

    @property
    def index_failure(self) -> str | None:
        """Why the key index has stopped for now; None while it works, and without one."""
        return self.index.failure if self.index is not None else None

    def index_pending(self) -> None:
        """Index what commits left for later, so that nothing lags; may run in another thread than the rest."""
        if self.index is not None:
            self.index.drain()

    # --- offsets ---

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read; 0 for a queue nobody wrote to."""
        queue = self._reader.queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last message readers see; 0 for a queue nobody wrote to."""
        queue = self._queues.get((topic, queue_id))
        return queue.visible if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at ``timestamp_ms`` or later, the max offset when there is none.

        With ``upper`` the last one stored at that time or earlier, the min offset when there is none. An empty queue gives its min. Of a
        batch queue these are first offsets of batches, and from the last one's time on it is that of the last one.
        """
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper=upper)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp (ms) of one queue offset, -1 when there is no such message."""
        return self._reader.store_time(topic, queue_id, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store timestamp (ms) of the queue's first message, -1 when it is empty."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    @property
    def commitlog_min_offset(self) -> int:
        """Where the commit log begins, in bytes."""
        return self._log.min_offset

    @property
    def commitlog_max_offset(self) -> int:
        """Where the commit log ends, in bytes; what is staged does not count."""
        return self._log.committed_end

    @property
    def commitlog_flushed_offset(self) -> int:
        """Up to where the commit log is known to be on the disk."""
        return min(self._log.flushed_end, self._log.committed_end)

    @property
    def commitlog_visible_offset(self) -> int:
        """Up to where readers see the commit log: with SYNC_FLUSH what was published, else all of it."""
        return self._visible_end if self._holds_back else self._log.committed_end

    @property
    def newest_ms(self) -> int:
        """The store time of the newest record; the next one's is not below it, whatever the clock says. 0 without records."""
        return self._last_ms

    def segments(self) -> list[tuple[int, int, str]]:
        """Return ``(place of its first byte in the log, length, path)`` of the commit log's files, oldest first."""
        return [(segment.start, segment.size, segment.file.path) for segment in self._log.segments]

    def topics_on_disk(self) -> list[str]:
        """Return the topics that have queues, sorted."""
        return sorted({topic for topic, _ in self._queues})

    # --- upkeep ---

    def delete_topic(self, topic: str) -> None:
        """Drop the queues of a topic; its records stay in the log until they expire, and no restart brings the queues back.

        A topic of the same name starts again at offset 0, with plain queues until it is declared otherwise. What is staged for it is dropped with everything else staged. Raises
        StoreWriteFailed when the deletion cannot be recorded; then nothing was dropped.
        """
        if not self._touched_by(topic):
            if any(name == topic for name, _ in self._queues):
                self._delete_queues(topic)
            else:  # it may have been declared to have batch queues, which a new topic of its name is not
                with self._flush_lock, contextlib.suppress(OSError):
                    self._table.remove(topic)
            return
        raise FatalError(f"topic {topic} has staged messages: commit or discard them before deleting it")

    def _touched_by(self, topic: str) -> bool:
        return any(queue.topic == topic for queue in self._touched)

    def _delete_queues(self, topic: str) -> None:
        with self._flush_lock:
            deleted = {t: at for t, at in self._table.deleted.items() if at > self._log.min_offset}
            # Were the log shorter after a power failure, later records of the topic would come to lie before its deletion.
            deleted[topic] = self.flush_log()
            remaining = tuple(q for q in self._snapshot.queues if q.topic != topic)
            snapshot = Snapshot(self._snapshot.position, self._snapshot.last_record, remaining, deleted, self._snapshot.index)
            try:
                snapshot.save(self._fs, self._root)
            except OSError as e:
                raise StoreWriteFailed(self._root, e.strerror or str(e)) from e
            self._snapshot = snapshot
            self._table.deleted = deleted
            with contextlib.suppress(OSError):  # a start that finds leftovers has no queue for them
                self._table.remove(topic)

    def delete_before(self, physical: int) -> list[str]:
        """Delete the files of the commit log that end at ``physical`` or before it, and those of queues that hold nothing else any more.

        The file written to stays, and so does what is not on the disk yet. Returns the paths. While a flush runs in the other thread
        only the log's files go, the others with the next call. Raises StoreWriteFailed when the disk refuses. ``release_deleted`` gives the
        space back.
        """
        try:
            paths = self._log.drop_before(physical)
            if self._table.corrected_to != self._log.min_offset:
                self._table.correct_min_offsets()
            if self._min_known != self._log.min_offset and self._flush_lock.acquire(blocking=False):
                try:
                    paths += self._expire_queues()
                finally:
                    self._flush_lock.release()
        except OSError as e:
            raise StoreWriteFailed(self._root, e.strerror or str(e)) from e
        else:
            return paths

    def delete_steps(self, physical: int, paths: list[str]) -> Iterator[Callable[[], None] | None]:
        """Do what ``delete_before`` does in steps of a few milliseconds; the owner may do anything else between them.

        A step may yield a function: run it in another thread before going on, it waits for the disk. The paths are added to ``paths``.
        Raises StoreWriteFailed when the disk refuses. What is left undone when the steps are not gone through is done by a later deletion.
        """
        table, log = self._table, self._log
        try:
            paths += log.drop_before(physical)
            log_min = log.min_offset
            if self._min_known == log_min:
                return
            expired: list[Queue] = []
            for group in table.correct_in_steps(QUEUES_PER_STEP):
                expired += [queue for queue in group if queue.files_before(first_unit(queue))]
                yield None
            yield lambda: self._settle_deletion(expired, paths)
            for queue in expired:
                if self._queues.get((queue.topic, queue.queue_id)) is queue:
                    paths += queue.drop_files(first_unit(queue))
                    yield None
            self._min_known = log_min
        except OSError as e:
            raise StoreWriteFailed(self._root, e.strerror or str(e)) from e

    def _settle_deletion(self, expired: list[Queue], paths: list[str]) -> None:
        """Make the deletion of log files last, drop index files, and prepare for the files of ``expired`` queues to go."""
        self.release_deleted()  # first of all, as a full disk takes no snapshot
        if self.index is not None:
            paths += self.index.expire(self._log.min_offset)
        try:
            if expired:
                with self._flush_lock:
                    self._note_expired()
        except OSError as e:
            if e.errno not in NO_ROOM:
                raise
            expired.clear()  # they go with the next deletion

    def _note_expired(self) -> None:
        """Save a snapshot without what has left the log: were the files gone first, a start would read the whole log."""
        known = self._snapshot
        states = tuple(self._table.past_expired(state) for state in known.queues)
        if states != known.queues:
            snapshot = Snapshot(known.position, known.last_record, states, known.deleted, known.index)
            snapshot.save(self._fs, self._root)
            self._snapshot = snapshot

    def _expire_queues(self) -> list[str]:
        """Drop the files that hold only units of records that have left the log."""
        self._log.settle_dropped()  # were the records to come back without their units, queues would not fit the log
        self._note_expired()
        paths = self._table.drop_expired()
        if self.index is not None:
            paths += self.index.expire(self._log.min_offset)
        self._min_known = self._log.min_offset
        return paths

    def release_deleted(self) -> None:
        """Give back the space of deleted log files, except where readers still hold buffers; may run in another thread. Raises OSError."""
        if self._log.dropped:
            with self._flush_lock:
                pass  # a flush under way may be reading what was dropped
            self._log.release_dropped()

    @property
    def settle_every_bytes(self) -> int:
        """How much log there may be behind the last thorough flush before the next one is due; a start after a kill reads that much."""
        return max(SNAPSHOT_EVERY_BYTES, SNAPSHOT_EVERY_BYTES_A_QUEUE * len(self._queues))

    def flush_log(self) -> int:
        """Bring the commit log to the disk and return up to where; a ``flush`` of queues under way does not hold it up.

        May run in a thread of its own. Raises StoreFailed as ``flush`` does.
        """
        with self._log_lock:
            return self._log.flush()

    def refuse(self, reason: str) -> None:
        """Take no messages any more, as after a failed flush; reads go on."""
        if self._log.failure is None:
            self._log.failure = reason

    def flush(self, *, thorough: bool = False) -> int:
        """Bring the commit log to the disk and return up to where; with ``thorough`` the queues as well, and note how far all that is.

        A killed broker's next start reads the log from the last thorough flush on; the log growing by 256 MiB since,
        with more than 4,096 queues by 64 KiB a queue, makes any flush one.
        May run in another thread than the rest. Raises StoreWriteFailed when the log is flushed and a full disk has no room for the queues,
        which the next thorough flush tries again. Raises StoreFailed when the disk fails, and from then on the store takes no messages:
        what the system still holds of them is unknown, and only a restart finds out.
        """
        with self._flush_lock:
            end, last_physical, store_time = self._mark
            behind = end - self._snapshot.position >= self.settle_every_bytes or self._snapshot.position < self._log.min_offset
            flushed = self.flush_log()
            self._checkpoint.commitlog_timestamp_ms = store_time
            if not thorough and not behind:
                return flushed
            try:
                # Units and keys of records behind ``end`` may come along; recovery derives those again and finds them equal.
                states = self._table.sync()
                index = self.index.sync() if self.index is not None else b""
                # These records must be on the disk, and expired ones gone from it, before anything says so of queues and index.
                self.flush_log()
                snapshot = Snapshot(end, self._last_record(last_physical, end), states, self._table.deleted, index)
                if snapshot != self._snapshot:
                    snapshot.save(self._fs, self._root)
                    self._snapshot = snapshot
                self._checkpoint.queues_timestamp_ms = store_time
                self._checkpoint.queues_physical_offset = last_physical
                if self.index is not None:
                    self._checkpoint.index_timestamp_ms = self.index.full_until_ms
                self._checkpoint.save(self._fs, f"{self._root}/checkpoint")
            except OSError as e:
                if e.errno in NO_ROOM:
                    raise StoreWriteFailed(self._root, e.strerror or str(e)) from e
                self._log.failure = e.strerror or str(e)
                raise StoreFailed(self._root, self._log.failure) from e
            return flushed

    def _last_record(self, physical: int, end: int) -> tuple[int, int, int]:
        segment = self._log.locate(physical)
        if segment is None or end == segment.start:
            return (0, 0, 0)
        at = physical - segment.start
        size = INT32.unpack_from(segment.view, at)[0]
        return physical, size, crc32(segment.view[at : at + size])

    # --- recovery ---

    def _recover(self, progress: Callable[[int, int], None] | None) -> RecoveryReport:
        report = RecoveryReport(clean=not self._fs.exists(f"{self._root}/abort"))
        log = self._log
        log.load()
        self._checkpoint = Checkpoint.load(self._fs, f"{self._root}/checkpoint")
        table = self._table
        on_disk = table.load(clean=report.clean)
        snapshot = Snapshot.load(self._fs, self._root)
        report.reason = self._restore(snapshot)
        if report.reason or snapshot is None:
            report.rebuilt = bool(log.segments) or on_disk
            table.queues.clear()
            self._snapshot = Snapshot(deleted=table.deleted)
            queued = log.min_offset
            last_time = 0
        else:
            self._snapshot = snapshot
            queued = log.flushed_end = snapshot.position
            last_time = self._last_ms
        indexed = self._open_index(snapshot if snapshot is self._snapshot else None, clean=report.clean)
        report.scanned_from = min(queued, indexed)
        end = self._read_log(queued, last_time, report, progress)
        if self.index is not None:
            self.index.end_at(end)
        if end == log.min_offset and report.clean and log.has_data():
            raise StoreDamaged(log.segments[0].file.path, 0, "there is data but not one valid record; is this a RocketMQ commit log?")
        if not (report.clean and snapshot is self._snapshot and log.ends_in_last_segment(end) and not report.records):
            report.cut_bytes = log.end_at(end, cut=not report.clean, quarantine=f"{self._root}/damaged")
        else:
            log.start_at(end)  # we left it in order, so nothing is behind its end
        if report.rebuilt or not report.clean:
            table.settle()
            table.forget_leftovers()
        table.take_held()
        table.correct_min_offsets()
        self._min_known = log.min_offset
        self._checkpoint.confirm_offset = self._last_physical
        self._mark = (log.committed_end, self._last_physical, self._last_ms)
        if self._holds_back and log.flushed_end < log.committed_end:
            log.flush()  # what a killed broker had not flushed yet is about to be read
        self._visible_end = log.committed_end
        return report

    def _open_index(self, snapshot: Snapshot | None, *, clean: bool) -> int:
        """Open the key index and return up to which place in the log it is complete."""
        if not self.config.message_index_enable:
            return self._log.min_offset + len(self._log.segments) * self._log.segment_bytes
        self.index = StoreIndex(self._fs, self._log, self.config, self._clock)
        self._offers = []
        return self.index.load(snapshot.index if snapshot is not None else b"", clean=clean)

    def _read_log(self, queued: int, last_time: int, report: RecoveryReport, progress: Callable[[int, int], None] | None) -> int:
        """Give the records that are not in queues and index yet to these and return where the log ends.

        The queues have everything before ``queued``. Several processes read a long stretch.
        """
        log, table, index, config = self._log, self._table, self.index, self.config
        start = report.scanned_from
        # What is read for the index alone has been read before: damage in it is not the end of the log.
        resync = not report.clean or report.rebuilt or start < queued
        if start < queued:
            last_time = 0
        total = max(data_end(log) - start, 1)
        if config.enable_build_consume_queue_concurrently and total >= recovery.CONCURRENT_BYTES and isinstance(self._fs, RealFileSystem):
            from sprocketmq.storage.bulk import pipeline

            report.workers = pipeline.workers_for(config.pipeline_workers)
            concurrent = pipeline.LogPipeline(
                log,
                start,
                workers=report.workers,
                resync=resync,
                last_time=last_time,
                batch_topics=table.batch_topics,
                keys=index is not None,
                progress=progress,
            )
            with contextlib.closing(concurrent.chunks()) as chunks:
                for chunk in chunks:
                    report.records += chunk.records
                    for run in chunk.runs:
                        table.take_run(run, queued)
                    if index is not None and chunk.keys is not None:
                        index.take_entries(chunk.keys, chunk.end)
                    self._last_physical = chunk.last_physical
                    self._last_ms = max(self._last_ms, chunk.last_time_ms)
            report.lost_workers = concurrent.lost_workers
            report.damaged = concurrent.damaged
            report.log_end = concurrent.end
            return report.log_end
        scan = LogScan(log, start, check_crc=True, resync=resync, last_time=last_time)
        for records in scan.batches():
            report.records += len(records)
            table.take_records(records if records[0][3] >= queued else [record for record in records if record[3] >= queued])
            if index is not None:
                index.take_records(records, scan.end)
            self._last_physical = records[-1][3]
            self._last_ms = max(self._last_ms, records[-1][7])
            if progress is not None:
                progress(scan.end - start, total)
        report.damaged = scan.damaged
        report.log_end = scan.end
        return report.log_end

    def _restore(self, snapshot: Snapshot | None) -> str:
        """Take the queues as the snapshot has them; return why that is not possible, or an empty text."""
        log = self._log
        if snapshot is None:
            return "there is no queue snapshot" if log.segments else ""
        if snapshot.position < log.min_offset:
            self._table.take_deletions(snapshot)  # nothing else tells of topics that were deleted since
            return "the queue snapshot is older than this commit log"
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
        if snapshot.position > log.min_offset + len(log.segments) * log.segment_bytes:
            return "the queue snapshot does not belong to this commit log"
        return self._table.restore(snapshot)


def _record_size(queue: Queue, body: Buffer, properties: bytes, born_host: bytes, store_host: bytes) -> int:
    return queue.overhead - 16 + len(born_host) + len(store_host) + len(body) + len(properties)
