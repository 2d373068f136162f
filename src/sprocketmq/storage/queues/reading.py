"""Reading messages by queue offset or store time."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import msgspec

from sprocketmq.protocol.codes import SYSFLAG_BORN_HOST_V6
from sprocketmq.protocol.layout import (
    BATCH_UNIT,
    BATCH_UNIT_BYTES,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    INT32,
    INT64,
    LOWEST_TAGS_CODE,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_UNIT,
    QUEUE_UNIT_BYTES,
    RECORD_LAYOUT,
)
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.loaded_blocks import LoadedBlocks, LogPart
from sprocketmq.storage.queues.batch_queue import UNIT_COVERS, BatchConsumeQueue, BatchUnit
from sprocketmq.storage.queues.consume_queue import ConsumeQueue
from sprocketmq.storage.queues.queue_table import Queue, QueueTable
from sprocketmq.storage.queues.repair import RECORD_IDENTITY, QueueRepair

_SYS_FLAG_AT = RECORD_LAYOUT.offset("sys_flag")
_TIME_AT = RECORD_LAYOUT.offset("store_time_ms")
_unpack_int32 = INT32.unpack_from
_unpack_int64 = INT64.unpack_from
_unpack_covers = UNIT_COVERS.unpack_from
_unpack_batch_unit = BATCH_UNIT.unpack_from
_queue_units = QUEUE_UNIT.iter_unpack
_batch_units = BATCH_UNIT.iter_unpack
# Units of a batch queue fetched at a time: a read needs few, as its bytes are limited.
_UNITS_AT_ONCE = 64
# The cost of examining a unit of a batch queue relative to one of a plain queue: its record is examined as well.
_BATCH_UNIT_WORK = 10
# A read that finds more contiguous ranges than this returns one joined copy: sending thousands of small pieces costs more than copying.
MAX_BUFFERS = 64
_NOTHING = memoryview(b"")
_NEVER = 1 << 63


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
    """The result of a read: ``buffers`` hold whole records in queue order; records that are contiguous in the log share one view.

    ``count`` is their number of messages, all of an inner batch included. ``next_offset`` is the queue offset of the next read. ``work`` is
    the cost of the read in lookups of a plain queue's unit; 12,000 take about a millisecond. ``log_offset`` is that of the last unit that
    was examined, -1 when none was. Views are read-only and valid while held.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    buffers: list[memoryview]
    count: int
    work: int = 0
    log_offset: int = -1


class DiskLimits(NamedTuple):
    """The limits of a read whose first record begins before log offset ``before``: it is likely to be read from the disk."""

    before: int
    max_count: int
    max_bytes: int


class QueueReader:
    """Reads the queues of a table from a log. Only for the thread that owns both."""

    def __init__(self, log: CommitLog, blocks: LoadedBlocks, table: QueueTable, max_filter_units: int) -> None:
        self._log = log
        self._blocks = blocks
        self._locate = blocks.locate
        self._table = table
        self._queues = table.queues
        self._repair = QueueRepair(log, blocks, table)
        self._filter_messages = max_filter_units
        self._filter_batched_messages = -(-max_filter_units * QUEUE_UNIT_BYTES // BATCH_UNIT_BYTES)
        self._written_from = _NEVER
        # What was looked up for the read that follows at once: its queue and offset, the number of the first unit, and units from there on.
        self._ahead: tuple[Queue, int, int, bytes | bytearray] | None = None

    def opened(self) -> None:
        """Record that everything after the current end of the log is written by this process: reads need not check each such record."""
        self._written_from = self._log.committed_end

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue, its min offset corrected for deleted records; None if nothing was ever written to it."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None and self._table.corrected_to != self._log.min_offset:
            self._table.correct(queue)  # a deletion is in progress and has not reached this queue
        return queue

    # --- by offset ---

    def look_up(self, queue: BatchConsumeQueue, offset: int) -> tuple[int, bytes | bytearray]:
        """Return what ``queue.locate(offset)`` returns, and keep it for the read that follows at once. The queue must have units."""
        located = queue.locate(offset)
        self._ahead = (queue, offset, *located)
        return located

    def remember(self, queue: ConsumeQueue, offset: int, units: bytes | bytearray) -> None:
        """Keep the units of a plain queue from ``offset`` on for the read that follows at once."""
        self._ahead = queue, offset, offset, units

    def _looked_up(self, queue: Queue, offset: int) -> tuple[int, bytes | bytearray] | None:
        """Return what was looked up for this read, once: the number of a unit and units from there on."""
        ahead, self._ahead = self._ahead, None
        return ahead[2:] if ahead is not None and ahead[0] is queue and ahead[1] == offset else None

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        stop_count: int,
        tag_codes: frozenset[int] | None,
        disk: DiskLimits | None = None,
        max_units: int | None = None,
    ) -> ReadResult:
        """Read as ``MessageStore.read`` says."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0)
        low = queue.min_offset
        high = queue.visible
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [], 0)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high, [], 0)
        if offset == high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0)
        if offset > high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0)
        if isinstance(queue, BatchConsumeQueue):
            return self._read_batches(queue, offset, max(max_count, 1), max_bytes, stop_count, tag_codes, disk, max_units)
        return self._read_messages(queue, offset, max(min(max_count, stop_count), 1), max_bytes, tag_codes, disk, max_units)

    def _read_messages(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
        disk: DiskLimits | None,
        max_units: int | None,
    ) -> ReadResult:
        low, high = queue.min_offset, queue.visible
        queue_id = queue.queue_id
        count = 0
        total = 0
        next_offset = offset
        missing = False
        overhead = queue.overhead
        buffers: list[memoryview] = []
        segment: Segment | LogPart | None = None
        view = group_view = _NOTHING
        segment_start = segment_end = group_start = start = last = 0
        end = -1
        unchecked = False
        written_from = self._written_from
        reach = max_count if tag_codes is None else max(self._filter_messages, max_count)
        stop = min(offset + (reach if max_units is None else min(reach, max_units)), high)
        log_offset = -1
        identity = RECORD_IDENTITY.unpack_from
        needed = (stop - offset) * QUEUE_UNIT_BYTES
        _, ahead = self._looked_up(queue, offset) or (offset, b"")
        units = ahead[:needed] if len(ahead) >= needed else queue.read_units(offset, stop)
        # What is in a loaded block ends with the block, and its memory is used again.
        loaded = 0 < self._blocks.end > _unpack_int64(units)[0]
        for log_offset, size, code in _queue_units(units):
            # Extension units match until they themselves are read.
            if tag_codes is not None and code not in tag_codes and code >= LOWEST_TAGS_CODE and size > 0:
                next_offset += 1
                continue
            if log_offset == end and log_offset >= written_from and log_offset + size <= segment_end:
                # Among contiguous records the log offset of each unit confirms the size of the one before; only the last record is read.
                if total + size > max_bytes:
                    break
                unchecked = True
            else:
                if unchecked and not self._has_size(last, end - last):
                    return self._read_doubting(queue, offset, max_count, max_bytes, tag_codes, disk, max_units)
                unchecked = False
                if segment is None or not segment_start <= log_offset < segment_end or log_offset + size > segment_end:
                    segment = self._locate(log_offset, size) if loaded else self._log.locate(log_offset)
                    if segment is not None:
                        segment_start, segment_end = segment.start, segment.start + segment.size
                        view = segment.view
                # Queue files may be damaged, and the CRC of a record covers only its body: check the fields that a reader relies on.
                if (
                    segment is None
                    or size < overhead
                    or log_offset + size > segment_end
                    or (
                        (found := identity(view, log_offset - segment_start)) != (size, MAGIC_V1, queue_id, next_offset, log_offset)
                        and found != (size, MAGIC_V2, queue_id, next_offset, log_offset)
                    )
                ):
                    if self._repair.repair_messages(queue, next_offset, stop):
                        return self._read_messages(queue, offset, max_count, max_bytes, tag_codes, disk, max_units)
                    missing = True
                    next_offset += 1
                    continue
                if log_offset != end or view is not group_view:  # not contiguous in memory with the record before
                    if count:
                        if total + size > max_bytes:
                            break
                        buffers.append(group_view[start - group_start : end - group_start])
                    elif disk is not None and log_offset < disk.before:
                        max_count, max_bytes = min(max_count, disk.max_count), min(max_bytes, disk.max_bytes)
                    start = log_offset
                    group_view = view
                    group_start = segment_start
                elif total + size > max_bytes:
                    break
            last = log_offset
            end = log_offset + size
            total += size
            count += 1
            next_offset += 1
            if count == max_count:
                break
        if unchecked and not self._has_size(last, end - last):
            return self._read_doubting(queue, offset, max_count, max_bytes, tag_codes, disk, max_units)
        if not count:
            status = ReadStatus.MESSAGE_WAS_REMOVING if missing else ReadStatus.NO_MATCHED_MESSAGE
            return ReadResult(status, next_offset, low, high, [], 0, next_offset - offset, log_offset)
        buffers.append(group_view[start - group_start : end - group_start])
        if loaded or len(buffers) > MAX_BUFFERS:
            buffers = [memoryview(b"".join(buffers))]
        return ReadResult(ReadStatus.FOUND, next_offset, low, high, buffers, count, next_offset - offset, last)

    def _read_doubting(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
        disk: DiskLimits | None,
        max_units: int | None,
    ) -> ReadResult:
        """Read again, and check every record from now on: something changed what this process had written."""
        self._written_from = _NEVER
        return self._read_messages(queue, offset, max_count, max_bytes, tag_codes, disk, max_units)

    def _has_size(self, log_offset: int, size: int) -> bool:
        """Return whether the size field of the record at ``log_offset`` has this value."""
        segment = self._locate(log_offset, size)
        return segment is not None and _unpack_int32(segment.view, log_offset - segment.start)[0] == size

    def _read_batches(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        stop_count: int,
        tag_codes: frozenset[int] | None,
        disk: DiskLimits | None,
        max_units: int | None,
    ) -> ReadResult:
        low, high = queue.min_offset, queue.visible
        batch_segment = self._repair.batch_segment
        number, units, first_segment = self._find(queue, offset)
        # Like the reference, count the messages of the units, not the units.
        reach = max(self._filter_batched_messages, max_count)
        first = number
        last = min(queue.end_unit, number + (reach if max_units is None else min(reach, max_units)))
        next_offset = offset if number < queue.end_unit else high
        count = total = 0
        units = units[: (last - number) * BATCH_UNIT_BYTES]
        missing = seen = full = False
        log_offset = -1
        # Number and unit whose count is not yet confirmed by the next one; units in memory need not be, as no file can have damaged them.
        before: tuple[int, BatchUnit] | None = None
        in_memory = queue.tail[0]
        pieces: list[tuple[Segment | LogPart, int, int]] = []
        while number < last and not full:
            for unit in _batch_units(units or queue.read_units(number, min(number + _UNITS_AT_ONCE, last))):
                log_offset, size, code, _, base, covered, _, _ = unit
                if base == next_offset:
                    before = None
                if count and (count + covered > max_count or total + size > max_bytes or count >= stop_count):
                    full = True
                    break
                segment = first_segment if first_segment is not None else batch_segment(queue, unit)
                first_segment = None
                if segment is None:
                    if self._repair.repair_batches(queue, number):
                        return self._read_batches(queue, offset, max_count, max_bytes, stop_count, tag_codes, disk, max_units)
                    missing = True
                    number += 1
                    continue
                if base >= high or base - offset >= reach:  # committed but not visible yet; or beyond the reach of this read
                    full = True
                    break
                if before is not None and not self._repair.has_count(before[1]) and self._repair.repair_batches(queue, before[0]):
                    return self._read_batches(queue, offset, max_count, max_bytes, stop_count, tag_codes, disk, max_units)
                before = (number, unit) if number < in_memory else None
                seen = True
                number += 1
                next_offset = base + covered
                if tag_codes is not None and code not in tag_codes and code >= LOWEST_TAGS_CODE:
                    continue
                if not count and disk is not None and log_offset < disk.before:
                    max_count, max_bytes = min(max_count, disk.max_count), min(max_bytes, disk.max_bytes)
                count += covered
                total += size
                if pieces and pieces[-1][2] == log_offset and pieces[-1][0].view is segment.view:
                    pieces[-1] = (segment, pieces[-1][1], log_offset + size)
                else:
                    pieces.append((segment, log_offset, log_offset + size))
            units = b""
        if before is not None and not self._repair.has_count(before[1]) and self._repair.repair_batches(queue, before[0]):
            return self._read_batches(queue, offset, max_count, max_bytes, stop_count, tag_codes, disk, max_units)
        if not count:
            status = ReadStatus.NO_MATCHED_MESSAGE if seen else ReadStatus.MESSAGE_WAS_REMOVING
            if missing and not seen:
                next_offset = high if number >= queue.end_unit else queue.unit(number)[4]
            work = _BATCH_UNIT_WORK * (number - first)
            return ReadResult(status, min(max(next_offset, offset + 1), high), low, high, [], 0, work, log_offset)
        buffers = [segment.view[start - segment.start : end - segment.start] for segment, start, end in pieces]
        if len(buffers) > MAX_BUFFERS or any(isinstance(segment, LogPart) for segment, _, _ in pieces):
            buffers = [memoryview(b"".join(buffers))]
        return ReadResult(ReadStatus.FOUND, next_offset, low, high, buffers, count, _BATCH_UNIT_WORK * (number - first), log_offset)

    def _find(self, queue: BatchConsumeQueue, offset: int) -> tuple[int, bytes | bytearray, Segment | LogPart | None]:
        """Return the number of the first unit to read for ``offset``, the units from there on that were read, and the part of the log.

        The number is ``end_unit`` when the log has no record from there on. The last is None when the record was not looked up.
        """
        ahead = self._looked_up(queue, offset)
        while queue.min_unit < queue.end_unit:
            number, units = ahead or queue.locate(offset)
            ahead = None
            base, covered = _unpack_covers(units)
            covers = base <= offset < base + covered
            if covers and (segment := self._repair.batch_segment(queue, _unpack_batch_unit(units))) is not None:
                return number, units, segment
            # Either the record of the covering unit is lost, or no unit covers the offset. The latter is normal after a lost record;
            # otherwise a damaged unit misled the bisection, and it is one of these.
            suspects = [n for n in ((number,) if covers else (number, number + 1)) if n < queue.end_unit]
            damaged = [n for n in suspects if self._repair.batch_segment(queue, queue.unit(n)) is None]
            if not any(self._repair.repair_batches(queue, n) for n in damaged):
                return (number, units, None) if base + covered > offset else (number + 1, b"", None)
        return queue.end_unit, b"", None

    # --- by time ---

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool, before_read: Callable[[int], None] | None = None
    ) -> int:
        """Look up as ``MessageStore.offset_by_time`` says; ``before_read`` is called with the offset of each message that is looked at.

        Batch queues have the times of batches in their units.
        """
        queue = self.queue(topic, queue_id)
        if queue is None or queue.visible <= queue.min_offset:
            return queue.min_offset if queue is not None else 0
        low = queue.min_offset
        if isinstance(queue, BatchConsumeQueue):
            return min(max(low, self._batch_by_time(queue, timestamp_ms, upper)), queue.visible)
        plain = queue
        offsets = range(low, queue.visible)

        def store_time(offset: int) -> int:
            if before_read is not None:
                before_read(offset)
            return self._message_time(plain, offset)

        if upper:
            return max(low, low + bisect_right(offsets, timestamp_ms, key=store_time) - 1)
        return low + bisect_left(offsets, timestamp_ms, key=store_time)

    def _batch_by_time(self, queue: BatchConsumeQueue, timestamp_ms: int, upper: bool) -> int:
        while queue.min_unit < queue.end_unit:
            number = queue.find_time(timestamp_ms, upper=upper)
            suspects = [n for n in (number - 1, number, number + 1) if queue.min_unit <= n < queue.end_unit]
            damaged = [n for n in suspects if self._batch_time(queue, n) != queue.unit(n)[3]]
            if not any(self._repair.repair_batches(queue, n) for n in damaged):
                base = queue.unit(number)[4]
                if base >= queue.visible:  # committed but not visible yet: take the last visible one
                    base = queue.unit(self._find(queue, queue.visible - 1)[0])[4]
                return base
        return queue.min_offset

    def _batch_time(self, queue: BatchConsumeQueue, number: int) -> int:
        unit = queue.unit(number)
        segment = self._repair.batch_segment(queue, unit)
        return -1 if segment is None else _store_time(segment, unit[0])

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp (ms) of one queue offset, -1 when there is no such message."""
        queue = self.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible:
            return -1
        if isinstance(queue, BatchConsumeQueue):
            number, *_ = self._find(queue, offset)
            covers = number < queue.end_unit and queue.unit(number)[4] <= offset
            return self._batch_time(queue, number) if covers else -1
        return self._message_time(queue, offset)

    def _message_time(self, queue: ConsumeQueue, offset: int) -> int:
        log_offset, size, _ = queue.unit(offset)
        if not self._repair.is_record(queue, offset, log_offset, size):
            self._repair.repair_messages(queue, offset, offset + 1)
            log_offset, size, _ = queue.unit(offset)
            if not self._repair.is_record(queue, offset, log_offset, size):
                return -1
        segment = self._locate(log_offset, size)
        assert segment is not None
        return _store_time(segment, log_offset)

    # --- units ---

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Look up as ``MessageStore.units`` says."""
        queue = self.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible:
            return []
        if isinstance(queue, BatchConsumeQueue):
            first = self._find(queue, offset)[0]
            units = queue.read_units(first, min(first + count, queue.end_unit))
            end = min(offset + count, queue.visible)
            return [unit[:3] for unit in _batch_units(units) if unit[4] < end]
        return list(_queue_units(queue.read_units(offset, min(offset + count, queue.visible))))


def _store_time(segment: Segment | LogPart, log_offset: int) -> int:
    file_pos = log_offset - segment.start
    born_v6 = _unpack_int32(segment.view, file_pos + _SYS_FLAG_AT)[0] & SYSFLAG_BORN_HOST_V6
    time_at = file_pos + _TIME_AT + (HOST_V6_BYTES - HOST_V4_BYTES if born_v6 else 0)
    return int(_unpack_int64(segment.view, time_at)[0])
