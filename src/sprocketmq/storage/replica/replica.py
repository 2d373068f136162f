"""A store that follows a master: it takes the raw bytes of the master's log and derives queues and index from them.

::

    the log     ... | record | record | record | rec
                                      ^dispatched_end
                                               ^record_end: what is written ends there
                                                    ^end: bytes arrive cut anywhere; those of an incomplete record wait in memory

A record is written as a whole: no CRC covers its properties, so recovery must be able to tell from lost sectors alone that a power failure
tore it. It is in no queue before its CRC is right. Appending and dispatching are for the thread that owns the store.
docs/internals/replication.md#the-replicas-store says what a crash leaves.
"""

from sprocketmq.errors import FatalError, LogOffsetOutside, ReplicaGap, StoreFailed, StoreWriteFailed
from sprocketmq.storage.appender import Appender
from sprocketmq.storage.fs import Buffer
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.recovery import DamagedRange, parse_record
from sprocketmq.storage.maintenance import Maintenance
from sprocketmq.storage.queues.queue_table import QueueTable
from sprocketmq.storage.replica.boundaries import known_boundary, last_boundary, whole_records
from sprocketmq.storage.replica.dispatching import Dispatcher
from sprocketmq.storage.replica.epochs import EpochFile

_COMPARE_BYTES = 64 << 10
_CATCH_UP_BYTES = 16 << 20


class Replica:
    """The replica's side of an open store, made by ``MessageStore.follow``. ``damaged`` are the ranges of the log without a valid record.

    With SYNC_FLUSH readers see what ``MessageStore.publish`` was told, as on a master.
    """

    def __init__(
        self,
        log: CommitLog,
        table: QueueTable,
        index: StoreIndex | None,
        appender: Appender,
        maintenance: Maintenance,
        epochs: EpochFile,
        damaged: list[DamagedRange],
    ) -> None:
        self._log = log
        self._table = table
        self._index = index
        self._appender = appender
        self._maintenance = maintenance
        self._epochs = epochs
        self._dispatcher = Dispatcher(log, table, index, appender, maintenance, damaged)
        self.damaged = damaged
        self._part = bytearray()  # what has arrived of the record after the written ones
        self._part_bytes = 0  # how many bytes of it must have arrived before they are looked at again
        self._unknown = False  # after bytes that are no record the start of the next one is unknown: everything is written as it comes
        # Where the first damage begins that recovery found: what is behind it stays readable, until the master sends it again.
        self._doubtful_from: int | None = min((found.start for found in damaged), default=None)
        self._recovered = appender.committed
        if self._doubtful_from is not None:
            self._dispatcher.go_to(self._doubtful_from)
            appender.took(self._doubtful_from, *self._last_record_before(self._doubtful_from))

    @property
    def end(self) -> int:
        """The end of the log held here in bytes, maybe in the middle of a record.

        When a power failure left a hole in the log it is where the hole begins. Records after it can be read, and are cut off by the next
        ``append``.
        """
        return self._log.committed_end + len(self._part) if self._doubtful_from is None else self._doubtful_from

    @property
    def record_end(self) -> int:
        """The end of the last complete record, which is written; ``dispatch`` compares its CRC."""
        if self._doubtful_from is not None:
            return self._doubtful_from
        return self.dispatched_end if self._unknown else self._log.committed_end

    @property
    def doubtful(self) -> bool:
        """Whether the log continues after ``end``, with a hole: the store must be recovered again at the next start."""
        return self._doubtful_from is not None

    @property
    def derived_end(self) -> int:
        """The end of what both queues and key index have."""
        return self.dispatched_end - (self._index.lag()[0] if self._index is not None else 0)

    # --- appending ---

    def start_at(self, log_offset: int) -> None:
        """Make the log of an empty replica begin at ``log_offset``, the start of a segment and of its master's log.

        Raises FatalError when the replica has data, or no segment begins there; StoreWriteFailed when the disk refuses.
        """
        log = self._log
        if log.segments and (log.committed_end > log.min_offset or log.min_offset):
            raise FatalError(f"the replica's log has [{log.min_offset}, {log.committed_end}): only an empty one can start elsewhere")
        if log_offset % log.segment_bytes:
            raise FatalError(
                f"log offset {log_offset} is not the start of a segment of {log.segment_bytes} bytes: master and replica need the same"
                " commitlog_segment_bytes"
            )
        try:
            log.begin_at(log_offset)
        except OSError as e:
            raise StoreWriteFailed(log.directory, e.strerror or str(e)) from e
        self._forget_part()
        self._dispatcher.go_to(log_offset)
        self._appender.took(log_offset, 0, 0)

    def append(self, log_offset: int, data: Buffer) -> None:
        """Take raw bytes of the master's log at ``log_offset``, which must be ``end``. Whole records are in the page cache then.

        Raises ReplicaGap for another log offset, StoreWriteFailed when the disk is full, StoreFailed after a failed flush; ``end`` says
        how much of ``data`` is held then, at most the rest of a record that had begun before.
        """
        log = self._log
        if log_offset != self.end:
            raise ReplicaGap(log_offset, self.end)
        if log.failure is not None:
            raise StoreFailed(log.directory, log.failure)
        if self._doubtful_from is not None:
            self._cut_log(self._doubtful_from)
        part = self._part
        if len(part) + len(data) < self._part_bytes:  # most of a large record comes in small pieces
            part += data
            return
        view = self._finish_part(data) if part else memoryview(data)
        if not view:
            return
        start = log.committed_end
        if self._unknown and (start == self.dispatched_end or not start % log.segment_bytes):
            self._unknown = False
        stop = wanted = len(view)
        if not self._unknown:
            stop, wanted, self._unknown = whole_records(view, start, log.segment_bytes)
        if stop:
            log.append_raw(view[:stop])
        self._part = bytearray(view[stop:])
        self._part_bytes = wanted - stop

    def _finish_part(self, data: Buffer) -> memoryview:
        """Write the record of which a part has arrived, when ``data`` completes it; return the bytes after it.

        Joined with all of ``data`` the part would have that copied once more.
        """
        log = self._log
        view = memoryview(data)
        record, held, wanted, taken = self._part, len(self._part), self._part_bytes, 0
        stop, unknown = 0, False
        while not stop and not unknown:
            missing = wanted - len(record)
            record += view[taken : taken + missing]
            taken += missing
            if taken > len(view):
                self._part_bytes = wanted
                return view[:0]
            stop, wanted, unknown = whole_records(memoryview(record), log.committed_end, log.segment_bytes)
        try:
            log.append_raw(memoryview(record))
        except (StoreFailed, StoreWriteFailed):
            self._part = record[:held]
            raise
        self._forget_part()
        self._unknown = unknown
        return view[taken:]

    # --- queues and index ---

    @property
    def dispatched_end(self) -> int:
        """Records up to here are in queues, and were offered to the key index."""
        return self._dispatcher.end

    def dispatch(self, budget_bytes: int) -> bool:
        """Add the queue units and keys of complete records that have arrived, of about ``budget_bytes``; return whether there are more."""
        return self._doubtful_from is None and self._dispatcher.dispatch(budget_bytes)

    def declare_batch_topic(self, topic: str) -> None:
        """See ``MessageStore.declare_batch_topic``."""
        self._dispatcher.declare_batch_topic(topic)

    # --- comparing and cutting back ---

    def differs(self, log_offset: int, data: Buffer) -> int | None:
        """Return the first log offset at which ``data`` differs from what is held, None when equal; bytes after ``end`` do not count.

        Raises LogOffsetOutside when ``log_offset`` is before the log or past its end.
        """
        log = self._log
        begin = log.min_offset if log.segments else self.end
        if not begin <= log_offset <= self.end:
            raise LogOffsetOutside(log_offset, begin, self.end)
        view = memoryview(data)[: self.end - log_offset]
        done = 0
        written = min(len(view), log.committed_end - log_offset)
        while done < written and (segment := log.locate(log_offset + done)) is not None:
            file_pos = log_offset + done - segment.start
            theirs = bytes(view[done : done + min(_COMPARE_BYTES, segment.size - file_pos, written - done)])
            ours = bytes(segment.view[file_pos : file_pos + len(theirs)])
            if ours != theirs:
                return log_offset + done + next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            done += len(theirs)
        ours = bytes(self._part[log_offset + done - log.committed_end :])
        return next((log_offset + done + i for i, (a, b) in enumerate(zip(ours, view[done:], strict=False)) if a != b), None)

    def record_boundary(self, log_offset: int) -> int:
        """Return where the record that covers ``log_offset`` begins; for a log offset in a BLANK, where that begins.

        From the last complete record's end on it is that. Raises LogOffsetOutside before the log.
        """
        log = self._log
        if log_offset < log.min_offset:
            raise LogOffsetOutside(log_offset, log.min_offset, self.end)
        stop = self.record_end
        log_offset = min(log_offset, stop)
        begin = self.dispatched_end if log_offset >= self.dispatched_end else known_boundary(log, self._table, log_offset)
        return last_boundary(log, begin, log_offset, stop)

    def truncate(self, log_offset: int) -> None:
        """Cut log, queues, index and epochs at the last record boundary up to ``log_offset``; on the disk when this returns.

        Raises LogOffsetOutside before the log, StoreWriteFailed when a full disk has no room for it, StoreFailed when the disk fails.
        """
        while self.dispatch(_CATCH_UP_BYTES):
            pass
        end = min(self.record_boundary(log_offset), self.dispatched_end)
        self._forget_part()
        if end < self._log.committed_end:
            self._cut(end)

    def _forget_part(self) -> None:
        self._part = bytearray()
        self._part_bytes = 0

    def _cut(self, end: int) -> None:
        self._cut_log(end)
        self._epochs.cut_back(end)

    def _cut_log(self, end: int) -> None:
        """Cut log, queues and index. The epochs stay: those of bytes that follow may have been adopted."""
        last_log_offset, last_ms = self._last_record_before(end)
        self._dispatcher.go_to(end)
        self._maintenance.cut_back(end, last_log_offset, last_ms)
        self._unknown = False
        self._doubtful_from = None
        self.damaged[:] = [found for found in self.damaged if found.end <= end]

    def settle(self) -> None:
        """Dispatch everything, and drop what has arrived of an incomplete record: the log ends with its last whole record then.

        A log with a hole stays as recovery found it.
        """
        while self.dispatch(_CATCH_UP_BYTES):
            pass
        self._forget_part()
        if self._doubtful_from is None and self._log.committed_end > self.dispatched_end:
            self._cut(self.dispatched_end)

    def release(self) -> None:
        """Leave the log to a store that takes messages of its own, after ``settle``."""
        if self._doubtful_from is not None:
            self._appender.took(*self._recovered)

    def _last_record_before(self, end: int) -> tuple[int, int]:
        """Return log offset and store time of the last record that ends at ``end`` or before it; those of the log's start without one."""
        log = self._log
        begin = end
        while begin > max(log.min_offset, end - 2 * log.segment_bytes):
            before = begin
            begin = self.record_boundary(begin - 1)
            segment = log.locate(begin)
            if segment is None or begin == before:
                break
            record = parse_record(segment.view, segment.start, begin - segment.start, check_crc=False)
            if record is not None:
                return begin, record.store_time_ms
        return 0, 0
