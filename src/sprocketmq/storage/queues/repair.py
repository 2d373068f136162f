"""Repair of queue files: checks units against the records of the log, and derives damaged ones from the log again.

Reads call it when a unit does not lead to the record of its queue offset. At a start, ``store_recovery.py`` completes queue files.
"""

from collections.abc import Iterator

from sprocketmq.protocol.layout import BATCH_UNIT, MAGIC_V1, MAGIC_V2, QUEUE_UNIT, RECORD_LAYOUT
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.loaded_blocks import LoadedBlocks, LogPart
from sprocketmq.storage.log.recovery import LogScan, Scanned, parse_record
from sprocketmq.storage.queues.batch_queue import COMPACTED, BatchConsumeQueue, BatchUnit
from sprocketmq.storage.queues.consume_queue import ConsumeQueue
from sprocketmq.storage.queues.queue_table import QueueTable

# The fields that identify a record.
RECORD_IDENTITY = RECORD_LAYOUT.part("size", "magic", "queue_id", "queue_offset", "log_offset")
# Repaired units are written this many at a time.
_REPAIR_UNITS = 4096


class QueueRepair:
    """Compares the units of a table's queues with the records of a log, and repairs them. Only for the thread that owns both."""

    def __init__(self, log: CommitLog, blocks: LoadedBlocks, table: QueueTable) -> None:
        self._log = log
        self._locate = blocks.locate
        self._table = table

    def is_record(self, queue: ConsumeQueue, offset: int, log_offset: int, size: int) -> bool:
        """Return whether the log has the record of queue offset ``offset`` at ``log_offset`` with this size."""
        segment = self._locate(log_offset, size)
        if segment is None or size < queue.overhead or log_offset + size > segment.start + segment.size:
            return False
        return _identifies(segment, queue.queue_id, offset, log_offset, size)

    def batch_segment(self, queue: BatchConsumeQueue, unit: BatchUnit) -> Segment | LogPart | None:
        """Return the part of the log that holds the record of a unit; None when there is no such record."""
        log_offset, size, _, _, base, covered, _, _ = unit
        segment = self._locate(log_offset, size)
        if segment is None or covered <= 0 or size < queue.overhead or log_offset + size > segment.start + segment.size:
            return None
        return segment if _identifies(segment, queue.queue_id, base, log_offset, size) else None

    def has_count(self, unit: BatchUnit) -> bool:
        """Return whether a unit covers as many queue offsets as its record."""
        segment = self._locate(unit[0], unit[1])
        record = parse_record(segment.view, segment.start, unit[0] - segment.start, check_crc=False) if segment else None
        return record is not None and record.count == unit[5]

    def repair_messages(self, queue: ConsumeQueue, offset: int, stop: int) -> bool:
        """Derive the units of ``[offset, stop)`` from the log again and note those whose record is gone. True unless known before."""
        if offset in queue.bad:
            return False
        begin = 0
        step = 1
        while offset - step >= queue.min_offset:  # the nearest earlier valid unit tells where in the log to begin
            log_offset, size, _ = queue.unit(offset - step)
            if self.is_record(queue, offset - step, log_offset, size):
                begin = log_offset + size
                break
            step *= 2
        found: dict[int, bytes] = {}
        for record in self._scan(queue, begin):
            if offset <= record.queue_offset < stop:
                code = self._table.unit_code(record.topic, record.queue_id, record.tags_code)
                found[record.queue_offset] = QUEUE_UNIT.pack(record.log_offset, record.size, code)
            if record.queue_offset == stop - 1:
                break
        lost = []
        for q in range(offset, stop):
            log_offset, size, _ = queue.unit(q)
            if self.is_record(queue, q, log_offset, size):
                continue  # even if a record with a damaged queue offset claims this one
            if q in found:
                queue.rewrite(q, found[q])
            else:
                lost.append(q)
        queue.bad |= frozenset(lost)
        return True

    def repair_batches(self, queue: BatchConsumeQueue, number: int) -> bool:
        """Derive a damaged unit and those after it from the log again until they match the existing ones. True when anything changed."""
        if number in queue.bad:
            return False
        first, begin, expected = queue.min_unit, 0, 0
        step = 1
        while number - step >= queue.min_unit:  # the nearest earlier valid unit tells where in the log to begin
            unit = queue.unit(number - step)
            if self.batch_segment(queue, unit) is not None:
                first, begin, expected = number - step + 1, unit[0] + unit[1], unit[4] + 1
                break
            step *= 2
        changed = False
        next_unit = first
        units = bytearray()
        to_end = True
        for record in _in_line(self._scan(queue, begin), expected):
            derived = BATCH_UNIT.pack(
                record.log_offset,
                record.size,
                record.tags_code,
                record.store_time_ms,
                record.queue_offset,
                record.count,
                COMPACTED,
                0,
            )
            same = next_unit < queue.end_unit and queue.read_units(next_unit, next_unit + 1) == derived
            if same and next_unit > number:
                to_end = False
                break
            changed |= not same
            units += derived
            next_unit += 1
            if next_unit - first >= _REPAIR_UNITS and next_unit <= queue.end_unit:
                queue.replace_from(first, bytes(units), to_end=False)
                first = next_unit
                units.clear()
        # Lost records have no unit any more: later units moved up.
        changed |= to_end and next_unit != queue.end_unit
        queue.replace_from(first, bytes(units), to_end=to_end)
        if not changed:
            queue.bad |= {number}
        return changed

    def _scan(self, queue: ConsumeQueue | BatchConsumeQueue, begin: int) -> Iterator[Scanned]:
        """Yield the queue's records from log offset ``begin`` on."""
        topic = queue.topic.encode()
        begin = max(begin, self._log.min_offset, self._table.deleted.get(queue.topic, 0))
        for records in LogScan(self._log, begin, check_crc=True, resync=True, stop=self._log.committed_end).batches():
            for record in records:
                if record.queue_id == queue.queue_id and record.topic == topic and self._table.has_unit(record):
                    yield record


def _in_line(records: Iterator[Scanned], expected: int) -> Iterator[Scanned]:
    """Drop records whose queue offset is damaged: below ``expected`` or an offset already yielded, or above that of the next record."""
    held: Scanned | None = None
    for record in records:
        if record.queue_offset < expected:
            continue
        if held is not None and record.queue_offset >= held.queue_offset + held.count:
            yield held
            expected = held.queue_offset + held.count
        held = record
    if held is not None:
        yield held


def _identifies(segment: Segment | LogPart, queue_id: int, offset: int, log_offset: int, size: int) -> bool:
    """Return whether the record at ``log_offset`` has these identifying fields."""
    own_size, magic, *rest = RECORD_IDENTITY.unpack_from(segment.view, log_offset - segment.start)
    return own_size == size and magic in (MAGIC_V1, MAGIC_V2) and rest == [queue_id, offset, log_offset]
