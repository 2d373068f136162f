"""Record boundaries in a log that is received in pieces: which records are complete, and which record covers a log offset."""

from enum import Enum
from functools import cache
from typing import Any

from sprocketmq.protocol.layout import FIXED_OVERHEAD, INT32, INT64, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MAX_RECORD_SIZE, RECORD_LAYOUT
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import LogScan, parse_record
from sprocketmq.storage.queues.queue_table import QueueTable

_BEGINNING = RECORD_LAYOUT.part("size", "magic", "log_offset")
_SIZE_AND_MAGIC = RECORD_LAYOUT.part("size", "magic")
_MAGICS = (MAGIC_V1, MAGIC_V2)
# Records of one size before several are examined together, and how many at first.
_ALIKE, _FIRST_PROBE = 64, 128
_MAGIC_POS = RECORD_LAYOUT.offset("magic")
_LOG_OFFSET_POS = RECORD_LAYOUT.offset("log_offset")


class Found(Enum):
    """The kinds of what begins at a position of a segment, judged by sizes and log offset but not by the CRC."""

    NOTHING = "the bytes end there"
    PART = "the beginning of a record or of a BLANK"
    RECORD = "a whole record"
    BLANK = "a BLANK that fills the segment"
    OTHER = "neither"


def look_at(segment: Segment, file_pos: int, held: int) -> tuple[Found, int]:
    """Return what begins at ``file_pos`` of a segment of which ``held`` bytes are there, and where it ends."""
    left = held - file_pos
    if left < FIXED_OVERHEAD and held < segment.size:
        return (Found.PART if left > 0 else Found.NOTHING), segment.size
    if left < 8:
        return Found.OTHER, segment.size
    view = segment.view
    (size,) = INT32.unpack_from(view, file_pos)
    (magic,) = INT32.unpack_from(view, file_pos + _MAGIC_POS)
    end = file_pos + size
    if magic == MAGIC_BLANK and end == segment.size:
        return (Found.BLANK if held == end else Found.PART), end
    if magic not in _MAGICS or not FIXED_OVERHEAD <= size <= min(MAX_RECORD_SIZE, segment.size - file_pos):
        return Found.OTHER, segment.size
    if INT64.unpack_from(view, file_pos + _LOG_OFFSET_POS)[0] != segment.start + file_pos:
        return Found.OTHER, segment.size
    return (Found.RECORD if end <= held else Found.PART), end


def whole_records(data: memoryview, log_offset: int, segment_bytes: int) -> tuple[int, int, bool]:
    """Return how many bytes of ``data``, which begins at ``log_offset``, are whole records and BLANKs.

    Also return how long ``data`` must be to decide more, and whether the bytes after those records cannot be a record. If they cannot, both
    numbers are the length of ``data``.
    """
    total = len(data)
    pos = previous = repeated = 0
    probe = _FIRST_PROBE
    room = segment_bytes - log_offset % segment_bytes
    unpack, head_bytes = _BEGINNING.unpack_from, _BEGINNING.size
    while True:
        left = total - pos
        if repeated >= _ALIKE:  # many of one size: look at a stride of them at once
            wanted = min(probe, min(left, room) // previous)
            found = _records_alike(data, pos, log_offset, previous, wanted)
            pos += found * previous
            room = room - found * previous or segment_bytes
            left = total - pos
            repeated = 0
            probe = 2 * probe if found == wanted else _FIRST_PROBE
        own = log_offset + pos
        if left >= head_bytes:
            size, magic, own = unpack(data, pos)
        elif left >= _SIZE_AND_MAGIC.size:
            size, magic = _SIZE_AND_MAGIC.unpack_from(data, pos)
        elif room >= _SIZE_AND_MAGIC.size:
            return pos, pos + _SIZE_AND_MAGIC.size, False
        else:
            return total, total, True
        if magic in _MAGICS and own == log_offset + pos and FIXED_OVERHEAD <= size <= room:
            needed = size if left >= head_bytes else head_bytes
        elif magic == MAGIC_BLANK and size == room:
            needed = size
        else:
            return total, total, True
        if needed > MAX_RECORD_SIZE:
            return total, total, True
        if needed > left:
            return pos, pos + needed, False
        repeated = repeated + 1 if size == previous else 0
        previous = size
        pos += size
        room = room - size or segment_bytes


def _records_alike(data: memoryview, pos: int, log_offset: int, size: int, count: int) -> int:
    """Return how many of ``count`` records of ``size`` bytes follow each other at ``pos`` of ``data``, as far as their heads tell."""
    import numpy as np

    heads: Any = np.ndarray((count,), _head_dtype(), data, pos, (size,))
    own = np.arange(count) * size + (log_offset + pos)
    right = (heads["size"] == size) & (heads["magic"] == MAGIC_V1) & (heads["log_offset"] == own)
    return count if right.all() else int(right.argmin())


@cache
def _head_dtype() -> Any:
    from sprocketmq.storage.layout_arrays import dtype_of

    return dtype_of(RECORD_LAYOUT, "size", "magic", "log_offset")


def last_boundary(log: CommitLog, begin: int, stop: int, end: int) -> int:
    """Return the last log offset up to ``stop`` where a record begins or ends, from that at ``begin`` on; the log ends at ``end``.

    After damage it continues at the next valid record; damage that reaches up to ``stop`` begins at a boundary.
    """
    log_offset = begin
    while log_offset < stop and (segment := log.locate(log_offset)) is not None:
        held = min(end - segment.start, segment.size)
        found, found_end = look_at(segment, log_offset - segment.start, held)
        if found in (Found.RECORD, Found.BLANK):
            following = segment.start + found_end
        elif found is Found.OTHER and (after := _behind_damage(log, log_offset, end)) is not None:
            following = after
        else:
            break
        if following > stop:
            break
        log_offset = following
    return log_offset


def _behind_damage(log: CommitLog, log_offset: int, end: int) -> int | None:
    scan = LogScan(log, log_offset, check_crc=True, resync=True, stop=end)
    records = next(scan.batches(), None)
    return records[0].log_offset if records and records[0].log_offset > log_offset else None


def known_boundary(log: CommitLog, table: QueueTable, log_offset: int) -> int:
    """Return the log offset of a record at or before ``log_offset`` in its segment, by the queues, or the start of that segment."""
    segment = log.locate(log_offset)
    if segment is None:
        return log_offset
    begin = table.last_record_before(log_offset)
    if begin > segment.start and parse_record(segment.view, segment.start, begin - segment.start, check_crc=True) is not None:
        return begin
    return segment.start
