"""A store that follows a master: it takes the raw bytes of the master's log and derives queues and index from them.

::

    the log     ... record | record | record | rec
                           ^dispatched_end   ^record_end
                                                 ^end: bytes arrive cut anywhere, also inside a record

Appending and dispatching are for the thread that owns the store. A record is in no queue before all of it has arrived and its CRC is
right. docs/internals/replication.md#the-replicas-store says what a crash leaves.
"""

from typing import TYPE_CHECKING

from sprocketmq.errors import FatalError, LogOffsetOutside, ReplicaGap
from sprocketmq.storage.appender import Appender
from sprocketmq.storage.chunks import QueueChunk
from sprocketmq.storage.fs import Buffer
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import DamagedRange, LogScan, Scanned, parse_record, parse_records
from sprocketmq.storage.maintenance import Maintenance
from sprocketmq.storage.queues.queue_table import Queue, QueueTable
from sprocketmq.storage.replica.boundaries import Found, known_boundary, last_boundary, look_at
from sprocketmq.storage.replica.derive import queue_chunks
from sprocketmq.storage.replica.epochs import EpochFile

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries

# Fewer bytes than this are parsed record by record.
ARRAYS_FROM_BYTES = 16 << 10
# Behind damage, a valid record is searched again when so much more has arrived, or an eighth of what was searched in vain.
_SEARCH_AGAIN_BYTES = 64 << 10
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
    ) -> None:
        self._log = log
        self._table = table
        self._index = index
        self._appender = appender
        self._maintenance = maintenance
        self._epochs = epochs
        self.dispatched_end = self._walked_end = log.committed_end
        self.damaged: list[DamagedRange] = []
        self._search_at = 0  # the log's end at which the search behind damage goes on
        self._batch_topics: tuple[frozenset[str], frozenset[bytes]] = (frozenset(), frozenset())

    @property
    def end(self) -> int:
        """The end of the log held here in bytes, maybe in the middle of a record."""
        return self._log.committed_end

    @property
    def record_end(self) -> int:
        """The end of the last complete record, by its size: its CRC is compared by ``dispatch``."""
        self._walked_end = last_boundary(self._log, max(self._walked_end, self.dispatched_end), self.end)
        return self._walked_end

    # --- appending ---

    def start_at(self, log_offset: int) -> None:
        """Let the log of an empty replica begin at ``log_offset``, the start of a segment, as its master's log begins there.

        Raises FatalError when the replica has data, or no segment begins there.
        """
        log = self._log
        if log.segments and log.committed_end > log.min_offset:
            raise FatalError(f"the replica's log has [{log.min_offset}, {log.committed_end}): only an empty one can start elsewhere")
        if log_offset % log.segment_bytes:
            raise FatalError(
                f"log offset {log_offset} is no start of a segment of {log.segment_bytes} bytes: master and replica need the same"
                " commitlog_segment_bytes"
            )
        log.start_at(log_offset)
        self.dispatched_end = self._walked_end = log_offset
        self._appender.took(log_offset, 0, 0)

    def append(self, log_offset: int, data: Buffer) -> None:
        """Write raw bytes of the master's log at ``log_offset``, which must be ``end``. They are in the page cache when this returns.

        Raises ReplicaGap for another log offset, StoreWriteFailed when the disk is full, StoreFailed after a failed flush; nothing of
        ``data`` is in the log then.
        """
        if log_offset != self._log.committed_end:
            raise ReplicaGap(log_offset, self._log.committed_end)
        if data:
            self._log.append_raw(memoryview(data))

    # --- queues and index ---

    def dispatch(self, budget_bytes: int) -> bool:
        """Add the queue units and keys of complete records that have arrived, of about ``budget_bytes``; return whether there are more."""
        log = self._log
        begin = self.dispatched_end
        segment = log.locate(begin)
        if segment is None:
            return False
        base = segment.start
        file_pos = begin - base
        held = min(log.committed_end - base, segment.size)
        if min(held - file_pos, budget_bytes) < ARRAYS_FROM_BYTES:
            taken = self._take_few(segment, file_pos, held)
        else:
            taken = self._take_many(segment, file_pos, min(file_pos + budget_bytes, held), held)
        return (taken or self._pass_over(segment, file_pos, held)) and self.dispatched_end < log.committed_end

    def _take_few(self, segment: Segment, file_pos: int, held: int) -> bool:
        data = bytes(segment.view[file_pos : min(file_pos + ARRAYS_FROM_BYTES, held)])
        room = segment.size - file_pos
        records, used, wanted = parse_records(data, segment.start + file_pos, room, check_crc=True)
        if not records and len(data) < wanted <= held - file_pos:
            data = bytes(segment.view[file_pos : file_pos + wanted])
            records, used, wanted = parse_records(data, segment.start + file_pos, room, check_crc=True)
        if records:
            end = segment.start + file_pos + used
            chunks = queue_chunks(records, self._table, self._encoded_batch_topics())
            self._take(chunks, end, records[-1].log_offset, max(record.store_time_ms for record in records), records=records)
        return bool(records)

    def _take_many(self, segment: Segment, file_pos: int, limit: int, held: int) -> bool:
        from sprocketmq.storage.bulk.parsing import parse_chunk

        view = segment.view[:held]  # a record is whole only if it ends there
        keys = self._index is not None
        chunk = parse_chunk(view, segment.start, file_pos, limit, batch_topics=self._encoded_batch_topics(), keys=keys)
        if chunk.records:
            self._take(chunk.queue_chunks, chunk.end, chunk.last_log_offset, chunk.last_time_ms, entries=chunk.keys)
        return bool(chunk.records)

    def _encoded_batch_topics(self) -> frozenset[bytes]:
        topics = self._table.batch_topics
        if self._batch_topics[0] is not topics:
            self._batch_topics = (topics, frozenset(topic.encode() for topic in topics))
        return self._batch_topics[1]

    def _take(
        self,
        chunks: list[QueueChunk],
        end: int,
        last_log_offset: int,
        last_ms: int,
        *,
        records: list[Scanned] | None = None,
        entries: "KeyEntries | None" = None,
    ) -> None:
        """Take what the records up to ``end`` give."""
        table, index = self._table, self._index
        grown: list[tuple[Queue, int]] = []
        holds_back = self._appender.holds_back
        for chunk in chunks:
            known = table.queues.get((chunk.topic.decode("utf-8", "replace"), chunk.queue_id)) if holds_back else None
            visible = known.visible if known is not None else chunk.first_offset
            queue = table.take_chunk(chunk, live=True)
            if queue is not None and holds_back:
                grown.append((queue, visible))
        self.dispatched_end = end
        self._appender.took(end, last_log_offset, max(last_ms, self._appender.last_ms), grown)
        if index is not None and records is not None:
            index.offer_records(records, end)
        if index is not None and entries is not None:
            index.offer_entries(entries, end)

    def _pass_over(self, segment: Segment, file_pos: int, held: int) -> bool:
        """Go on behind a BLANK or behind damage; return whether that was possible."""
        found, found_end = look_at(segment, file_pos, held)
        if found is Found.BLANK:
            self._skip_to(segment.start + found_end)
            return True
        if found in (Found.NOTHING, Found.PART) or self.end < self._search_at:
            return False
        begin = self.dispatched_end
        scan = LogScan(self._log, begin, check_crc=True, resync=True, stop=self.end, last_time=self._appender.last_ms)
        records = next(scan.batches(), None)
        if records is None or records[0].log_offset <= begin:
            self._search_at = self.end + max(_SEARCH_AGAIN_BYTES, (self.end - begin) // 8)
            return False
        self.damaged.append(DamagedRange(segment.file.path, begin, records[0].log_offset))
        self._search_at = 0
        self._skip_to(records[0].log_offset)
        return True

    def _skip_to(self, log_offset: int) -> None:
        self.dispatched_end = log_offset
        _, last_log_offset, last_ms = self._appender.committed
        self._appender.took(log_offset, last_log_offset, last_ms)

    # --- comparing and cutting back ---

    def differs(self, log_offset: int, data: Buffer) -> int | None:
        """Return the first log offset at which ``data`` differs from what is held, None when equal; bytes behind ``end`` do not count.

        Raises LogOffsetOutside when ``log_offset`` is before the log or behind its end.
        """
        log = self._log
        begin = log.min_offset if log.segments else log.committed_end
        if not begin <= log_offset <= log.committed_end:
            raise LogOffsetOutside(log_offset, begin, log.committed_end)
        view = memoryview(data)[: log.committed_end - log_offset]
        done = 0
        while done < len(view) and (segment := log.locate(log_offset + done)) is not None:
            file_pos = log_offset + done - segment.start
            theirs = bytes(view[done : done + min(_COMPARE_BYTES, segment.size - file_pos)])
            ours = bytes(segment.view[file_pos : file_pos + len(theirs)])
            if ours != theirs:
                return log_offset + done + next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            done += len(theirs)
        return None

    def record_boundary(self, log_offset: int) -> int:
        """Return where the record that covers ``log_offset`` begins; for a log offset in a BLANK, where that begins; ``end`` at the end.

        Behind ``end`` it is ``record_end``. Raises LogOffsetOutside before the log.
        """
        log = self._log
        if log_offset < log.min_offset:
            raise LogOffsetOutside(log_offset, log.min_offset, log.committed_end)
        log_offset = min(log_offset, log.committed_end)
        if log_offset >= self.dispatched_end:
            return last_boundary(log, self.dispatched_end, log_offset)
        return last_boundary(log, known_boundary(log, self._table, log_offset), log_offset)

    def truncate(self, log_offset: int) -> None:
        """Cut log, queues, index and epochs at the last record boundary up to ``log_offset``; on the disk when this returns.

        Raises LogOffsetOutside before the log, StoreWriteFailed when a full disk has no room for it, StoreFailed when the disk fails.
        """
        while self.dispatch(_CATCH_UP_BYTES):
            pass
        end = min(self.record_boundary(log_offset), self.dispatched_end)
        if end == self.end:
            return
        last_log_offset, last_ms = self._last_record_before(end)
        self.dispatched_end = self._walked_end = end
        self._search_at = 0
        self._maintenance.cut_back(end, last_log_offset, last_ms)
        self._epochs.cut_back(end)

    def settle(self) -> None:
        """Dispatch everything, and cut off what has arrived of an incomplete record: the log ends with its last whole record then."""
        while self.dispatch(_CATCH_UP_BYTES):
            pass
        if self.end > self.dispatched_end:
            self.truncate(self.dispatched_end)

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
