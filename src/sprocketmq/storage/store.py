"""The MessageStore, which the broker calls: messages are stored by topic and queue, and read by queue offset, time or log offset.

It only connects its parts: ``Appender`` (staging and commits), ``QueueReader`` (reads by queue offset and time), ``StoreRecovery``
(opening) and ``Maintenance`` (flushes, deletion). One thread stages, commits and reads; ``flush`` may run in another thread at the same
time. Nothing here waits, sleeps or locks while a message is stored or read.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import NoReturn

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import (
    FatalError,
    LogOffsetOutside,
    SprocketError,
    StoreDamaged,
    StoreFailed,
    StoreIsReplica,
    StoreNotSupported,
    StoreNotWritable,
    StoreWriteFailed,
)
from sprocketmq.protocol.names import APACHE_TIMER_TOPIC
from sprocketmq.protocol.records import Record
from sprocketmq.storage.appender import Appender
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.directory_checks import check_directory, check_mapping
from sprocketmq.storage.foreign_timers import check_timer_log, check_timer_queue
from sprocketmq.storage.fs import NO_ROOM, REAL_FS, FileSystem, will_need
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.lock import DirectoryLock
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.loaded_blocks import LoadedBlocks
from sprocketmq.storage.log.recovery import DamagedRange, LogScan, RecoveryReport, record_properties, record_view
from sprocketmq.storage.log.unmapping import unmap_in_steps
from sprocketmq.storage.maintenance import Maintenance
from sprocketmq.storage.queues.cold_reads import ColdFinder, ColdRead, NotInMemory
from sprocketmq.storage.queues.queue_table import QueueTable
from sprocketmq.storage.queues.reading import DiskLimits, QueueReader, ReadResult, ReadStatus
from sprocketmq.storage.replica.epochs import EpochFile
from sprocketmq.storage.replica.replica import Replica
from sprocketmq.storage.store_recovery import StoreRecovery

__all__ = ["ColdRead", "DiskLimits", "MessageStore", "NotInMemory", "ReadResult", "ReadStatus", "RecoveryReport", "StoreConfig"]


class MessageStore:
    """The store in one directory: commit log, consume queues, key index and recovery files.

    Call ``open`` first and ``close`` last. ``store_host`` (``pack_host`` of the broker's address) goes into every record. The methods that
    stage and commit are those of ``Appender``, without a call in between; ``index`` is None when the configuration has none.
    """

    def __init__(self, config: StoreConfig, *, fs: FileSystem = REAL_FS, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self._fs = fs
        self._clock = clock
        self._root = str(config.root)
        self._log = CommitLog(fs, f"{self._root}/commitlog", config.commitlog_segment_bytes, preallocate=config.preallocate)
        self._table = QueueTable(fs, self._log, config)
        self.index = StoreIndex(fs, self._log, config, clock) if config.message_index_enable else None
        self._blocks = LoadedBlocks(self._log)
        self._reader = QueueReader(self._log, self._blocks, self._table, config.max_filter_units)
        self._cold = ColdFinder(self._log, self._blocks, self._reader, clock)
        self._appender = appender = Appender(config, clock, self._log, self._table, self.index)
        self._maintenance = Maintenance(fs, self._root, self._log, self._table, self.index, appender)
        self.epochs = EpochFile(fs, self._root)
        self._replica: Replica | None = None
        self._damaged: list[DamagedRange] = []
        self._lock: DirectoryLock | None = None
        # Whether names of topics that differ only in case are one directory, as on macOS; known once the store is open.
        self.folds_case = False
        self._take_messages()

    def _take_messages(self) -> None:
        appender = self._appender
        self.stage_message = appender.stage_message
        self.stage_batch = appender.stage_batch
        self.stage_inner_batch = appender.stage_inner_batch
        self.stage_copy = appender.stage_copy
        self.commit = appender.commit
        self.publish = appender.publish
        self.hold_back = appender.hold_back
        self.discard = appender.discard

    def _refuse_messages(self, *_: object, **__: object) -> NoReturn:
        raise StoreIsReplica(self._root)

    @property
    def store_host(self) -> bytes:
        return self._appender.store_host

    @store_host.setter
    def store_host(self, host: bytes) -> None:
        self._appender.store_host = host

    # --- opening and closing ---

    def open(self, progress: Callable[[int, int], None] | None = None) -> RecoveryReport:
        """Lock the directory, recover its contents and report the result. ``progress`` gets the bytes of log read and their total.

        Missing or damaged derived files are rebuilt. Raises StoreLocked when another broker has the directory, StoreNotWritable when it
        cannot be created or written, StoreNotSupported when it is not a store, one that only Apache's broker reads or one with messages
        that only Apache's broker delivers, StoreDamaged when the commit log itself is beyond recovery.
        """
        began = self._clock.monotonic()
        try:
            check_directory(self._fs, self._root)
            check_timer_log(self._fs, self._root)
            for name in ("", "/commitlog", "/consumequeue", "/config"):
                self._fs.make_dirs(self._root + name)
            self.folds_case = self._fs.exists(f"{self._root}/COMMITLOG")
            self._lock = DirectoryLock(self._fs, self._root)
            check_mapping(self._fs, self._root)
            recovered = StoreRecovery(self._fs, self.config, self._log, self._table, self.index).run(progress)
            check_timer_queue(self._fs, self._root, self.max_offset(APACHE_TIMER_TOPIC, 0))
            self._maintenance.start(recovered.snapshot, recovered.checkpoint)
            self._appender.start(recovered.last_log_offset, recovered.last_ms)
            self.epochs.load(self._log.committed_end)
            self._write_abort_marker()
            self._sync_names()
            self._reader.opened()
        except OSError as e:
            self.abandon()
            if e.errno == errno.EIO:
                raise StoreDamaged(e.filename or self._root, 0, e.strerror or str(e)) from e
            if e.errno == errno.ENODEV:
                reason = "its file system cannot map files into memory, which is how messages are read"
                raise StoreNotSupported(self._root, reason, "choose a directory on a local disk (--store)") from e
            raise StoreNotWritable(self._root, e.strerror or str(e)) from e
        except SprocketError:
            self.abandon()
            raise
        report = recovered.report
        self._damaged = report.damaged
        report.elapsed_ms = (self._clock.monotonic() - began) * 1000
        return report

    def close(self) -> None:
        """Flush everything, mark the stop as clean and unlock the directory. Staged messages are dropped. May be called twice.

        Raises StoreFailed when the disk refuses; the directory is unlocked all the same, and the next start recovers. When a full disk has
        no room for the queues there is no error, as the log is complete; the next start recovers as well.
        """
        if self._lock is None:
            return
        self.discard()
        try:
            if self._replica is not None:
                self._replica.settle()
            self.index_pending()
            self.flush(thorough=True)
            if self._replica is None or not self._replica.doubtful:
                self._fs.unlink(f"{self._root}/abort")
                self._fs.fsync_dir(self._root)
        except StoreWriteFailed:
            pass
        except OSError as e:
            raise StoreFailed(self._root, e.strerror or str(e)) from e
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files and unlock the directory without flushing or marking anything: what a killed process leaves behind."""
        self._replica = None
        self._maintenance.close()
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
                raise  # otherwise the marker exists, but is empty
        finally:
            file.close()

    def _sync_names(self) -> None:
        """Sync the names of the marker and the directories: a synced file in a directory that is lost is lost as well."""
        self._fs.fsync_dir(self._root)
        with contextlib.suppress(PermissionError):  # a parent that cannot be opened was not created here
            self._fs.fsync_dir(str(self.config.root.parent))

    # --- replication ---

    def raw(self, log_offset: int, max_bytes: int) -> memoryview:
        """Return committed bytes of the log from ``log_offset`` on, at most up to the end of its segment; none at the log's end.

        Records, BLANKs and the bytes after them come as they are on disk. The view may begin and end inside a record; it stays valid
        while it is held. Raises LogOffsetOutside.
        """
        log = self._log
        end = log.committed_end
        segment = log.locate(log_offset)
        if segment is None:
            if log_offset == end:
                return memoryview(b"")
            raise LogOffsetOutside(log_offset, log.min_offset if log.segments else end, end)
        file_pos = log_offset - segment.start
        return segment.view[file_pos : min(file_pos + max_bytes, end - segment.start, segment.size)]

    def read_ahead(self, log_offset: int, count: int) -> None:
        """Tell the system that ``count`` bytes from ``log_offset`` on are about to be read, as far as their segment has them."""
        segment = self._log.locate(log_offset)
        if segment is not None:
            file_pos = log_offset - segment.start
            will_need(segment.view, file_pos, file_pos + count)

    def follow(self) -> Replica:
        """Turn this open store into a replica, which takes no messages of its own; drop staged messages. Staging raises StoreIsReplica.

        The same object while it is one. Raises FatalError when the store is not open.
        """
        if self._lock is None:
            raise FatalError(f"store {self._root} is not open: open it before it follows a master")
        if self._replica is None:
            self.discard()
            self._replica = Replica(self._log, self._table, self.index, self._appender, self._maintenance, self.epochs, self._damaged)
            self.stage_message = self.stage_batch = self.stage_inner_batch = self.stage_copy = self._refuse_messages
        return self._replica

    def lead(self) -> None:
        """Turn a replica back into a store that takes messages of its own; no effect when the store is not a replica.

        All complete records are dispatched, an incomplete one at the end is cut off, and the next message follows them. Begin an
        epoch at ``commitlog_max_offset`` (``epochs.begin``) before the first message is staged. Raises StoreWriteFailed or StoreFailed
        when the disk refuses; it remains a replica then.
        """
        if self._replica is not None:
            self._replica.settle()
            self._replica.release()
            self._table.take_held()
            self._replica = None
            self._take_messages()

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
        disk: DiskLimits | None = None,
        max_units: int | None = None,
    ) -> ReadResult:
        """Return stored records of a queue from queue offset ``offset`` on: at most ``max_count`` messages and ``max_bytes``, at least one.

        With ``tag_codes`` only records with one of these tag codes; codes may collide, so the caller compares the tags. For an offset
        outside the queue the status says on which side, and ``next_offset`` where to go on. An inner batch is never cut: an offset inside
        it returns all of it. After ``stop_count`` messages no record is added; a batch may exceed the count. ``disk`` are lower limits
        for what is far behind the end of the log. ``max_units`` limits the queue units that are examined, as ``find_cold`` says.
        """
        return self._reader.read(topic, queue_id, offset, max_count, max_bytes, stop_count, tag_codes, disk, max_units)

    @property
    def max_filter_units(self) -> int:
        """How many queue units a read with tag codes examines at least."""
        return self.config.max_filter_units

    def find_cold(self, topic: str, queue_id: int, offset: int, max_units: int, max_count: int | None = None) -> ColdRead | None:
        """Return what a read from ``offset`` on needs from the disk; None for nothing.

        It examines up to ``max_units`` queue units, and ends earlier with ``max_count`` messages; None for a read with tag codes.

        Call ``load`` of the result in another thread, then ask again, then read at most its ``max_units``, then ``release`` it.
        """
        return self._cold.find(topic, queue_id, offset, max_units, max_count)

    def find_cold_first_unit(self, topic: str, queue_id: int) -> ColdRead | None:
        """Return what ``units`` needs from the disk for a queue's first message; None for nothing."""
        return self._cold.find_first_unit(topic, queue_id)

    def give_back_blocks(self) -> None:
        """Give back the memory of what was read around the page cache, unless it was used since the last call."""
        self._blocks.give_back()

    def unmap_in_steps(self) -> Iterator[None]:
        """Remove all but the end of the mapped log from this process's memory; see ``log.unmapping``."""
        return unmap_in_steps(self._log)

    def declare_batch_topic(self, topic: str) -> None:
        """Make the queues of a topic without messages batch queues. Raises FatalError when it already has plain queues.

        A replica derives plain queues again instead: a record may have come before the settings of its topic.
        """
        if self._replica is not None:
            self._replica.declare_batch_topic(topic)
            return
        self._table.declare_batch_topic(topic)

    @property
    def batch_topics(self) -> frozenset[str]:
        """The topics whose queues are batch queues."""
        return self._table.batch_topics

    def record_at(self, log_offset: int) -> memoryview | None:
        """Return the record that begins at a log offset, or None when none begins there."""
        return record_view(self._log, log_offset, self._log.committed_end)

    def properties_at(self, log_offset: int) -> bytes | None:
        """Return the encoded properties of the record that ``record_at`` returns."""
        return record_properties(self._log, log_offset, self._log.committed_end)

    def deliveries_since(self, log_offset: int) -> Iterator[tuple[int, int]]:
        """Yield the log offset of each delivered record from ``log_offset`` on, and that of the parked record ``stage_copy`` made it from.

        Reads the log from there to its end, without damaged records. A delivered one is of an ordinary topic and still has REAL_TOPIC.
        """
        log = self._log
        begin = max(log_offset, log.min_offset)
        for records in LogScan(log, begin, check_crc=True, resync=True, stop=log.committed_end).batches():
            for record in records:
                if b"REAL_TOPIC\x01" in record.properties:
                    view = record_view(log, record.log_offset, log.committed_end)
                    source = Record(view, 0, len(view)).copied_from if view is not None else None
                    if source is not None:
                        yield record.log_offset, source

    def query(
        self, topic: str, key: str, *, max_count: int = 64, begin_ms: int = 0, end_ms: int = (1 << 63) - 1, by_tag: bool = False
    ) -> list[memoryview]:
        """Return the newest ``max_count`` records of a topic with ``key`` as one of their keys or unique key, oldest first.

        With ``by_tag`` those with that tag. Only exact matches stored in ``[begin_ms, end_ms]``. A store without an index finds nothing.
        May raise OSError.
        """
        if self.index is None:
            return []
        end = self.commitlog_visible_offset
        return self.index.query(topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms, by_tag=by_tag, visible_end=end)

    def find_cold_record(self, log_offset: int) -> ColdRead | None:
        """Return what ``record_at`` needs from the disk; None for nothing. Ask again after loading it, as records may be long."""
        return self._cold.find_record(log_offset) if log_offset >= 0 else None

    @property
    def has_old_messages(self) -> bool:
        """Whether the log has more than its end that counts as in memory."""
        return self._cold.beyond_the_end

    def load_for_query(
        self, topic: str, key: str, *, max_count: int = 64, begin_ms: int = 0, end_ms: int = (1 << 63) - 1, by_tag: bool = False
    ) -> None:
        """Read into the page cache what ``query`` would read from the disk, in another thread than that. May raise OSError."""
        if self.index is not None:
            self.index.load_for_query(topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms, by_tag=by_tag)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return log offset, size and tag code of the records of ``count`` messages from queue offset ``offset`` on.

        In a batch queue a record holds one message or many. Empty for an offset that readers do not see.
        """
        return self._reader.units(topic, queue_id, offset, count)

    @property
    def indexed_until(self) -> tuple[int, int]:
        """Store time (ms) and log offset of the newest record in the key index; zeros without one."""
        return self.index.newest if self.index is not None else (0, 0)

    @property
    def index_lag(self) -> tuple[int, int]:
        """Bytes of log offered to the key index that are not in it yet, and for how many milliseconds the oldest message has waited.

        A replica offers records when it brings them into queues: ``Replica.derived_end`` shows what both lack.
        """
        return self.index.lag() if self.index is not None else (0, 0)

    @property
    def index_failure(self) -> str | None:
        """Why the key index has stopped for now; None while it works, and without one."""
        return self.index.failure if self.index is not None else None

    def index_pending(self) -> None:
        """Index all commits that are still waiting; may run in another thread than the rest."""
        if self.index is not None:
            self.index.drain()

    # --- offsets ---

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read; 0 for a queue that was never written to."""
        queue = self._reader.queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message that readers see; 0 for a queue that was never written to."""
        queue = self._table.queues.get((topic, queue_id))
        return queue.visible if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False, waits: bool = True) -> int:
        """Return the first queue offset stored at ``timestamp_ms`` or later, the max offset when there is none.

        With ``upper`` the last one stored at that time or earlier, the min offset when there is none. An empty queue gives its min
        offset. For a batch queue these are first offsets of batches; from the store time of the last batch on it is that of the last batch.

        The search looks at about 20 messages that lie far apart. Without ``waits`` it does not wait for the disk: it raises NotInMemory.
        """
        if waits:
            return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper=upper)

        def check(offset: int) -> None:
            cold = self.find_cold(topic, queue_id, offset, 1, 1)
            if cold is not None and cold.waits:
                raise NotInMemory(cold)

        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper=upper, before_read=check)

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
        """Where the commit log ends, in bytes, without staged records."""
        return self._log.committed_end

    @property
    def commitlog_flushed_offset(self) -> int:
        """The log offset up to which the commit log is known to be on disk."""
        return min(self._log.flushed_end, self._log.committed_end)

    @property
    def commitlog_visible_offset(self) -> int:
        """The log offset up to which readers see the log: what was published while the store holds back, else all of it."""
        return self._appender.visible_end

    @property
    def holds_back(self) -> bool:
        """Whether readers see only what was published."""
        return self._appender.holds_back

    @property
    def commitlog_staged_offset(self) -> int:
        """Where the commit log will end after the next commit."""
        return self._log.staged_end

    @property
    def newest_ms(self) -> int:
        """The store time of the newest record, 0 without records; no later record has an earlier one, whatever the clock says."""
        return self._appender.last_ms

    def segments(self) -> list[tuple[int, int, str]]:
        """Return ``(log offset of its first byte, length, path)`` of the commit log's files, oldest first."""
        return [(segment.start, segment.size, segment.file.path) for segment in self._log.segments]

    def topics_on_disk(self) -> list[str]:
        """Return the topics that have queues, sorted."""
        return sorted({topic for topic, _ in self._table.queues})

    @property
    def queue_count(self) -> int:
        """How many queues have messages, or had some."""
        return len(self._table.queues)

    # --- maintenance ---

    def delete_topic(self, topic: str) -> None:
        """Drop the queues of a topic; its records stay in the log until they expire, and no restart brings the queues back.

        A topic of the same name starts again at offset 0, with plain queues until it is declared otherwise. Raises FatalError while
        messages of the topic are staged, StoreWriteFailed when the deletion cannot be recorded; nothing is dropped then.
        """
        self._maintenance.delete_topic(topic)

    def delete_before(self, log_offset: int) -> list[str]:
        """Delete the commit log files that end at or before ``log_offset`` and the queue files with units of only those; return the paths.

        The file being written stays, and so does data that is not on disk yet. While a flush runs in the other thread only log files are
        deleted, the others at the next call. Raises StoreWriteFailed when the disk refuses. ``release_deleted`` frees the space.
        """
        return self._maintenance.delete_before(log_offset)

    def delete_steps(self, log_offset: int, paths: list[str]) -> Iterator[Callable[[], None] | None]:
        """Do what ``delete_before`` does in steps of a few milliseconds; the caller may use the store between them.

        A step may yield a function that waits for the disk: run it in another thread before the next step. The paths are added to
        ``paths``. Raises StoreWriteFailed when the disk refuses. A later deletion completes steps that were not run.
        """
        return self._maintenance.delete_steps(log_offset, paths)

    def release_deleted(self) -> None:
        """Free the space of deleted log files, except where readers still hold buffers; may run in another thread. Raises OSError."""
        self._maintenance.release_deleted()

    @property
    def settle_every_bytes(self) -> int:
        """Bytes of log after the last thorough flush at which the next one is due; a start after a kill reads that much."""
        return self._maintenance.settle_every_bytes

    def flush(self, *, thorough: bool = False) -> int:
        """Flush the commit log to disk and return the flushed end; with ``thorough`` also flush queues and index, and save a snapshot.

        After a kill the next start reads the log from the last thorough flush on, and for the key index from up to 32 MiB before that. A
        flush is thorough by itself when the log has grown by 256 MiB since (with more than 4,096 queues: 64 KiB per queue). May run in
        another thread than the rest.

        Raises StoreWriteFailed when the log is flushed and a full disk has no room for the queues, which the next thorough flush retries.
        Raises StoreFailed when the disk fails. The store then takes no more messages: the state of the page cache is unknown until a
        restart reads the files.
        """
        return self._maintenance.flush(thorough=thorough)

    def flush_log(self) -> int:
        """Flush the commit log to disk and return the flushed end, without waiting for a running ``flush`` of queues.

        May run in a thread of its own. Raises StoreFailed as ``flush`` does.
        """
        return self._maintenance.flush_log()

    def refuse(self, reason: str) -> None:
        """Refuse further messages, as after a failed flush; reads still work."""
        self._maintenance.refuse(reason)
