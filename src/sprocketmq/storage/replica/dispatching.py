"""Queues and index of a replica: derived from the records of its log as they arrive, as recovery would derive them.

Many records are parsed with arrays, as by the bulk pipeline, and few one by one. Both ways give the units and keys that appending the
messages would have made.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH
from sprocketmq.protocol.layout import INT32, MAX_RECORD_SIZE
from sprocketmq.protocol.names import MAX_INTERNAL_TOPIC_LENGTH, name_problem
from sprocketmq.storage.appender import Appender
from sprocketmq.storage.chunks import QueueChunk
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import DamagedRange, LogScan, Scanned, parse_records
from sprocketmq.storage.maintenance import Maintenance
from sprocketmq.storage.queues.queue_table import Queue, QueueTable, first_unit
from sprocketmq.storage.replica.boundaries import Found, look_at
from sprocketmq.storage.replica.derive import queue_chunks

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries

# Fewer records than this are parsed one by one: 64 records cost 0.3 ms so and 0.5 ms as arrays, 1,024 records 4 ms and 1.5 ms. Their
# number is estimated by the size of the first one; a record with an inner batch has tens of KiB.
ARRAYS_FROM_RECORDS = 64
_MIN_RECORD_BYTES = 1 << 10
# The amount that is copied at once.
_FEW_BYTES = 256 << 10
# After damage, a valid record is searched for again when this much more has arrived, or an eighth of what was searched in vain.
_SEARCH_AGAIN_BYTES = 64 << 10


class Dispatcher:
    """Brings the records of a log into queues and index. They have those before ``end``; ``damaged`` gets the ranges it passes over."""

    def __init__(
        self,
        log: CommitLog,
        table: QueueTable,
        index: StoreIndex | None,
        appender: Appender,
        maintenance: Maintenance,
        damaged: list[DamagedRange],
    ) -> None:
        self._log = log
        self._table = table
        self._index = index
        self._appender = appender
        self._maintenance = maintenance
        self._damaged = damaged
        self.end = log.committed_end
        self._search_at = 0  # the log's end at which the search after damage continues
        self._asked_at = -1  # the log's end when that was too early: if asked again without a further byte, the search continues
        self._batch_topics: tuple[frozenset[str], frozenset[bytes]] = (frozenset(), frozenset())

    def dispatch(self, budget_bytes: int) -> bool:
        """See ``Replica.dispatch``."""
        log = self._log
        begin = self.end
        segment = log.locate(begin)
        if segment is None:
            return False
        base = segment.start
        file_pos = begin - base
        held = min(log.committed_end - base, segment.size)
        if min(held - file_pos, budget_bytes) < ARRAYS_FROM_RECORDS * max(_MIN_RECORD_BYTES, _record_bytes(segment, file_pos, held)):
            taken = self._take_few(segment, file_pos, held)
            while taken and begin + budget_bytes > self.end < base + held and self._take_few(segment, self.end - base, held):
                pass
        else:
            taken = self._take_many(segment, file_pos, min(file_pos + budget_bytes, held), held)
        return (taken or self._pass_over(segment, file_pos, held)) and self.end < log.committed_end

    def _take_few(self, segment: Segment, file_pos: int, held: int) -> bool:
        data = segment.view[file_pos : min(file_pos + _FEW_BYTES, held)]
        room = segment.size - file_pos
        records, used, wanted = parse_records(data, segment.start + file_pos, room, check_crc=True)
        if not records and len(data) < wanted <= held - file_pos:
            data = segment.view[file_pos : file_pos + wanted]
            records, used, wanted = parse_records(data, segment.start + file_pos, room, check_crc=True)
        if records:
            end = segment.start + file_pos + used
            self._declare(record.topic for record in records if record.sys_flag & SYSFLAG_INNER_BATCH)
            chunks = queue_chunks(records, self._table, self._encoded_batch_topics())
            self._take(chunks, end, records[-1].log_offset, max(record.store_time_ms for record in records), records=records)
        return bool(records)

    def _take_many(self, segment: Segment, file_pos: int, limit: int, held: int) -> bool:
        from sprocketmq.storage.bulk.parsing import parse_chunk

        view = segment.view[:held]  # a record is whole only if it ends there
        keys = self._index is not None
        chunk = parse_chunk(view, segment.start, file_pos, limit, batch_topics=self._encoded_batch_topics(), keys=keys)
        if chunk.unqueued and self._declare(chunk.unqueued):
            chunk = parse_chunk(view, segment.start, file_pos, limit, batch_topics=self._encoded_batch_topics(), keys=keys)
        if chunk.records:
            self._take(chunk.queue_chunks, chunk.end, chunk.last_log_offset, chunk.last_time_ms, entries=chunk.keys)
        return bool(chunk.records)

    def declare_batch_topic(self, topic: str) -> None:
        """Make the queues of a topic batch queues.

        If it has plain ones, as its first records came before its settings, they are derived from the log again.
        """
        table, log = self._table, self._log
        queues = [queue for (name, _), queue in table.queues.items() if name == topic]
        if topic in table.batch_topics or not queues:
            table.declare_batch_topic(topic)
            return
        filled = [queue for queue in queues if first_unit(queue) < queue.end_unit]
        begin = min((queue.unit(first_unit(queue))[0] for queue in filled), default=self.end)
        self._maintenance.drop_queues(topic)
        table.declare_batch_topic(topic)
        chunks = []
        for records in LogScan(log, begin, check_crc=False, resync=True, stop=self.end).batches():
            chunks += queue_chunks([record for record in records if record.topic == topic.encode()], table, self._encoded_batch_topics())
        _, last_log_offset, last_ms = self._appender.committed
        self._take(chunks, self.end, last_log_offset, last_ms)

    def _declare(self, topics: Iterable[bytes]) -> bool:
        """Give batch queues to topics that have inner batches, which a master stores only there; return whether any topic changed."""
        found = False
        for name in set(topics) - self._encoded_batch_topics():
            topic = name.decode("utf-8", "replace")
            if name_problem(topic, MAX_INTERNAL_TOPIC_LENGTH) is None and self._table.deleted.get(topic, 0) <= self.end:
                self.declare_batch_topic(topic)
                found = True
        return found

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
        """Add the units and keys of the records up to ``end``."""
        table, index = self._table, self._index
        grown: list[tuple[Queue, int]] = []
        holds_back = self._appender.holds_back
        for chunk in chunks:
            known = table.queues.get((chunk.topic.decode("utf-8", "replace"), chunk.queue_id)) if holds_back else None
            visible = known.visible if known is not None else chunk.first_offset
            queue = table.take_chunk(chunk, live=True)
            if queue is not None and holds_back:
                grown.append((queue, visible))
        self.end = end
        self._appender.took(end, last_log_offset, max(last_ms, self._appender.last_ms), grown)
        if index is not None and records is not None:
            index.offer_records(records, end)
        if index is not None and entries is not None:
            index.offer_entries(entries, end)

    def _pass_over(self, segment: Segment, file_pos: int, held: int) -> bool:
        """Continue after a BLANK or after damage; return whether that was possible."""
        log_end = self._log.committed_end
        found, found_end = look_at(segment, file_pos, held)
        if found is Found.BLANK:
            self._skip_to(segment.start + found_end)
            return True
        if found in (Found.NOTHING, Found.PART) or (log_end < self._search_at and log_end != self._asked_at):
            self._asked_at = log_end
            return False
        self._asked_at = -1
        begin = self.end
        scan = LogScan(self._log, begin, check_crc=True, resync=True, stop=log_end, last_time=self._appender.last_ms)
        records = next(scan.batches(), None)
        if records is None or records[0].log_offset <= begin:
            self._search_at = log_end + max(_SEARCH_AGAIN_BYTES, (log_end - begin) // 8)
            return False
        self._damaged.append(DamagedRange(segment.file.path, begin, records[0].log_offset))
        self._skip_to(records[0].log_offset)
        return True

    def go_to(self, log_offset: int) -> None:
        """Continue with the record at ``log_offset``."""
        self.end = log_offset
        self._search_at = 0

    def _skip_to(self, log_offset: int) -> None:
        self.go_to(log_offset)
        _, last_log_offset, last_ms = self._appender.committed
        self._appender.took(log_offset, last_log_offset, last_ms)


def _record_bytes(segment: Segment, file_pos: int, held: int) -> int:
    """Return the size of the record at ``file_pos``, 0 when it is not there or no record has it."""
    if held - file_pos < INT32.size:
        return 0
    (size,) = INT32.unpack_from(segment.view, file_pos)
    return size if size <= MAX_RECORD_SIZE else 0
