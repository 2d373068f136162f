"""Maintenance of an open store: flushing, snapshots and the checkpoint, deleting topics and expired files."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from sprocketmq.errors import FatalError, StoreFailed, StoreWriteFailed
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.layout import INT32
from sprocketmq.storage.appender import Appender
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.fs import NO_ROOM, FileSystem
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.queues.queue_table import Queue, QueueTable, first_unit
from sprocketmq.storage.snapshot import Snapshot

# A thorough flush takes about 50 us per queue, which should be a fraction of the time it takes to write the log in between.
SNAPSHOT_EVERY_BYTES = 256 << 20
SNAPSHOT_EVERY_BYTES_A_QUEUE = 64 << 10
# Correcting a queue's min offset and looking at its files takes 40 to 100 us.
QUEUES_PER_STEP = 50


class Maintenance:
    """Flushes and deletes for ``MessageStore``. ``flush``, ``flush_log`` and ``release_deleted`` may run in other threads."""

    def __init__(self, fs: FileSystem, root: str, log: CommitLog, table: QueueTable, index: StoreIndex | None, appender: Appender) -> None:
        self._fs = fs
        self._root = root
        self._log = log
        self._table = table
        self._index = index
        self._appender = appender
        self._min_known = 0  # the log's first offset when the queues were last corrected
        self._checkpoint = Checkpoint()
        self._snapshot = Snapshot()
        self._flush_lock = threading.Lock()
        self._log_lock = threading.Lock()

    def start(self, snapshot: Snapshot, checkpoint: Checkpoint) -> None:
        """Continue from the result of recovery."""
        self._snapshot = snapshot
        self._checkpoint = checkpoint
        self._min_known = self._log.min_offset

    def close(self) -> None:
        """Close all files without flushing, after a running flush has ended."""
        with self._flush_lock, self._log_lock:
            self._log.close()
            self._table.pool.forget()
            if self._index is not None:
                self._index.close()

    def delete_topic(self, topic: str) -> None:
        """See ``MessageStore.delete_topic``."""
        if self._appender.has_staged(topic):
            raise FatalError(f"topic {topic} has staged messages: commit or discard them before deleting it")
        if any(name == topic for name, _ in self._table.queues):
            self._delete_queues(topic)
            return
        # Without messages it may still be declared to have batch queues, which a new topic of its name does not have.
        with self._flush_lock, contextlib.suppress(OSError):
            self._table.remove(topic)

    def _delete_queues(self, topic: str) -> None:
        with self._flush_lock:
            deleted = {t: log_offset for t, log_offset in self._table.deleted.items() if log_offset > self._log.min_offset}
            # If a power failure shortened the log, later records of the topic would lie before its deletion.
            deleted[topic] = self.flush_log()
            remaining = tuple(q for q in self._snapshot.queues if q.topic != topic)
            snapshot = Snapshot(self._snapshot.log_offset, self._snapshot.last_record, remaining, deleted, self._snapshot.index)
            try:
                snapshot.save(self._fs, self._root)
            except OSError as e:
                raise StoreWriteFailed(self._root, e.strerror or str(e)) from e
            self._snapshot = snapshot
            self._table.deleted = deleted
            with contextlib.suppress(OSError):  # a later start has no queue for leftovers
                self._table.remove(topic)

    def drop_queues(self, topic: str) -> None:
        """Remove the queues of a topic, which will be derived again; files left behind do no harm."""
        with self._flush_lock, contextlib.suppress(OSError):
            self._table.remove(topic)

    def delete_before(self, log_offset: int) -> list[str]:
        """See ``MessageStore.delete_before``."""
        try:
            paths = self._log.drop_before(min(log_offset, self._appender.committed[0]))
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

    def delete_steps(self, log_offset: int, paths: list[str]) -> Iterator[Callable[[], None] | None]:
        """See ``MessageStore.delete_steps``."""
        table, log = self._table, self._log
        try:
            paths += log.drop_before(min(log_offset, self._appender.committed[0]))
            log_min = log.min_offset
            if self._min_known == log_min:
                return
            expired: list[Queue] = []
            for group in table.correct_in_steps(QUEUES_PER_STEP):
                expired += [queue for queue in group if queue.files_before(first_unit(queue))]
                yield None
            yield lambda: self._settle_deletion(expired, paths)
            for queue in expired:
                if self._table.queues.get((queue.topic, queue.queue_id)) is queue:
                    paths += queue.drop_files(first_unit(queue))
                    yield None
            self._min_known = log_min
        except OSError as e:
            raise StoreWriteFailed(self._root, e.strerror or str(e)) from e

    def _settle_deletion(self, expired: list[Queue], paths: list[str]) -> None:
        """Make the deletion of log files durable, drop index files, and prepare the deletion of files of ``expired`` queues."""
        self.release_deleted()  # first: a full disk has no room for a snapshot
        if self._index is not None:
            paths += self._index.expire(self._log.min_offset)
        try:
            if expired:
                with self._flush_lock:
                    self._note_expired()
        except OSError as e:
            if e.errno not in NO_ROOM:
                raise
            expired.clear()  # the next deletion removes them

    def _note_expired(self) -> None:
        """Save a snapshot without expired units: if their files went first, the next start would read the whole log."""
        known = self._snapshot
        states = tuple(self._table.past_expired(state) for state in known.queues)
        if states != known.queues:
            snapshot = Snapshot(known.log_offset, known.last_record, states, known.deleted, known.index)
            snapshot.save(self._fs, self._root)
            self._snapshot = snapshot

    def _expire_queues(self) -> list[str]:
        """Drop the queue and index files that refer only to records that are no longer in the log."""
        self._log.settle_dropped()  # if the records came back without their units, queues would not match the log
        self._note_expired()
        paths = self._table.drop_expired()
        if self._index is not None:
            paths += self._index.expire(self._log.min_offset)
        self._min_known = self._log.min_offset
        return paths

    def release_deleted(self) -> None:
        """See ``MessageStore.release_deleted``."""
        if self._log.dropped:
            with self._flush_lock:
                pass  # a running flush may be reading the dropped files
            self._log.release_dropped()

    @property
    def settle_every_bytes(self) -> int:
        """See ``MessageStore.settle_every_bytes``."""
        return max(SNAPSHOT_EVERY_BYTES, SNAPSHOT_EVERY_BYTES_A_QUEUE * len(self._table.queues))

    def flush_log(self) -> int:
        """See ``MessageStore.flush_log``."""
        with self._log_lock:
            return self._log.flush()

    def refuse(self, reason: str) -> None:
        """See ``MessageStore.refuse``."""
        if self._log.failure is None:
            self._log.failure = reason

    def flush(self, *, thorough: bool = False) -> int:
        """See ``MessageStore.flush``."""
        with self._flush_lock:
            end, last_log_offset, store_time = self._appender.committed
            behind = end - self._snapshot.log_offset >= self.settle_every_bytes or self._snapshot.log_offset < self._log.min_offset
            flushed = self.flush_log()
            self._checkpoint.commitlog_timestamp_ms = store_time
            if not thorough and not behind:
                return flushed
            try:
                # Units and keys of records after ``end`` may be included; recovery derives them again, with the same result. Keys of
                # earlier records may be missing: the index's own state has the log offset from which recovery indexes.
                states = self._table.sync()
                index = self._index.sync() if self._index is not None else b""
                # The log must be on disk before a snapshot or checkpoint refers to it, and expired files must be gone.
                self.flush_log()
                snapshot = Snapshot(end, self._last_record(last_log_offset, end), states, self._table.deleted, index)
                if snapshot != self._snapshot:
                    snapshot.save(self._fs, self._root)
                    self._snapshot = snapshot
                self._checkpoint.queues_timestamp_ms = store_time
                self._checkpoint.queues_physical_offset = last_log_offset
                if self._index is not None:
                    self._checkpoint.index_timestamp_ms = self._index.full_until_ms
                self._checkpoint.save(self._fs, f"{self._root}/checkpoint")
            except OSError as e:
                raise self._refusal(e) from e
            return flushed

    def cut_back(self, end: int, last_log_offset: int, last_ms: int) -> None:
        """Cut log, queues and index of a replica at log offset ``end``, given the last record before it, and bring that to the disk.

        A crash at any point leaves a store whose log ends at ``end`` or later, where it ended before or at a segment's end. Raises
        StoreWriteFailed when a full disk has no room for the snapshot: the log is as it was, and its records after ``end`` are
        in no queue. Raises StoreFailed when the disk fails.
        """
        if self._index is not None:
            self._index.drain()
        with self._flush_lock, self._log_lock:
            try:
                changed = self._table.cut_back(end)
                self._appender.cut_back(end, last_log_offset, last_ms)
                if self._index is not None:
                    self._index.end_at(end)
                # First a snapshot that is right for the shorter log and for the longer one, which recovery reads from ``end`` on.
                states = self._table.sync()
                index = self._index.sync() if self._index is not None else b""
                self._log.flush()
                snapshot = Snapshot(end, self._last_record(last_log_offset, end), states, self._table.deleted, index)
                snapshot.save(self._fs, self._root)
                self._snapshot = snapshot
                self._log.cut_at(end)
                self._table.settle_cut(changed)
                self._checkpoint.commitlog_timestamp_ms = self._checkpoint.queues_timestamp_ms = last_ms
                self._checkpoint.queues_physical_offset = last_log_offset
                self._checkpoint.save(self._fs, f"{self._root}/checkpoint")
            except OSError as e:
                raise self._refusal(e) from e

    def _refusal(self, error: OSError) -> StoreWriteFailed | StoreFailed:
        """Return the error of a flush: a full disk may have room later, any other failure is final for the log."""
        reason = error.strerror or str(error)
        if error.errno in NO_ROOM:
            return StoreWriteFailed(self._root, reason)
        self._log.failure = reason
        return StoreFailed(self._root, reason)

    def _last_record(self, log_offset: int, end: int) -> tuple[int, int, int]:
        segment = self._log.locate(log_offset)
        if segment is None or end == segment.start:
            return (0, 0, 0)
        file_pos = log_offset - segment.start
        size = INT32.unpack_from(segment.view, file_pos)[0]
        return log_offset, size, crc32(segment.view[file_pos : file_pos + size])
