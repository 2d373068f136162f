"""Reading the commit log from a position to its end: what recovery, rebuild and repair of derived files are made of.

A scan accepts a record only when everything about it fits: magic number, lengths that add up, its own position written in it and,
when asked, the body's CRC. Where something does not fit the log either ends or is damaged: the scan looks for a later record, and only
when there is none the log ends at the last good one. So damage in the middle costs the damaged records and never what follows.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from sprocketmq.protocol.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from sprocketmq.protocol.hashing import crc32, tags_code_raw
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.properties import find_property
from sprocketmq.protocol.records import FIXED_OVERHEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from sprocketmq.storage.commitlog import CommitLog, Segment

# size, magic, CRC, queue id, (flag), queue offset, physical offset, sysFlag; the times and lengths follow behind hosts of two sizes.
HEAD = Struct(">iiii4xqqi")
_INT = Struct(">i")
_SHORT = Struct(">h")
_LONG = Struct(">q")
_TIME_AND_LENGTH_V4 = Struct(">q20xi")  # at 56: store time; at 84: body length

_MAGICS = (_INT.pack(MAGIC_V1), _INT.pack(MAGIC_V2))
_SEARCH_BYTES = 1 << 20

# Apache's default delay levels 1 to 18, in ms: the unit of a parked message holds its delivery time instead of a tag code.
DELAY_LEVELS_MS = tuple(
    seconds * 1000 for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class ScannedRecord(NamedTuple):
    """What a queue unit, and the check of one, needs of a record."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical: int
    size: int
    tags_code: int
    sys_flag: int
    store_timestamp_ms: int


class DamagedRange(NamedTuple):
    """A stretch ``[start, end)`` of the commit log that holds no valid record although valid ones follow."""

    path: str
    start: int
    end: int


@dataclass
class RecoveryReport:
    """What opening a store found and did."""

    clean: bool = True  # the last broker stopped in order
    rebuilt: bool = False  # the queues were derived from the whole log
    reason: str = ""  # why, in words
    scanned_from: int = 0
    log_end: int = 0
    records: int = 0  # read from the log
    cut_bytes: int = 0  # leftovers dropped behind the log's end
    damaged: list[DamagedRange] = field(default_factory=list)
    elapsed_ms: float = 0.0


class LogScan:
    """Walk the records of a log from ``start`` on; ``end`` is where the last one ended, ``damaged`` what was skipped.

    With ``resync`` damage is skipped when later records are found, else the first thing that is no record ends the log. Records found
    behind damage must not be older than ``last_time`` or what was read before. ``stop`` bounds the scan.
    """

    def __init__(self, log: CommitLog, start: int, *, check_crc: bool, resync: bool, stop: int | None = None, last_time: int = 0) -> None:
        self._log = log
        self._start = start
        self._check_crc = check_crc
        self._resync = resync
        self._stop = stop
        self.end = start
        self.damaged: list[DamagedRange] = []
        self._last_time = last_time

    def __iter__(self) -> Iterator[ScannedRecord]:
        gap: tuple[str, int] | None = None  # damage whose end is not known yet
        for segment in self._log.segments:
            start = max(self._start, segment.start)
            if start >= segment.start + segment.size:
                continue
            pos = start - segment.start
            while pos < segment.size:
                pos = yield from self._records(segment, pos, gap)
                if gap is not None and self.end > gap[1]:
                    gap = None
                if pos >= segment.size or (self._stop is not None and segment.start + pos >= self._stop):
                    break
                # Something here is no record.
                if not self._resync:
                    return
                if gap is None:
                    gap = (segment.file.path, segment.start + pos)
                pos = self._next_record(segment, pos)
            if self._stop is not None and self.end >= self._stop:
                return

    def _records(self, segment: Segment, pos: int, gap: tuple[str, int] | None) -> Generator[ScannedRecord, None, int]:
        """Yield the records from ``pos`` to the first thing that is none; return its position, or the segment's size after a BLANK."""
        view, base, size = segment.view, segment.start, segment.size
        stop = size if self._stop is None else min(size, self._stop - base)
        check_crc = self._check_crc
        while pos < stop:
            record = parse_record(view, base, pos, check_crc=check_crc)
            if record is None:
                if is_blank(view, pos):
                    self.end = base + size
                    return size
                return pos
            if gap is not None:
                self.damaged.append(DamagedRange(gap[0], gap[1], base + pos))
                gap = None
            pos += record.size
            self.end = base + pos
            self._last_time = record.store_timestamp_ms
            yield record
        return pos

    def _next_record(self, segment: Segment, pos: int) -> int:
        """Return where the next valid record of the segment begins, or its size."""
        at = segment.file.data_after(pos + 1)
        while at is not None and at < segment.size:
            # Magic numbers stand 4 bytes into a record; windows overlap so that one across their border is seen.
            window = bytes(segment.view[max(at - 7, pos + 1) : at + _SEARCH_BYTES])
            begin = max(at - 7, pos + 1)
            found = [i for magic in _MAGICS for i in _all(window, magic)]
            for i in sorted(found):
                candidate = begin + i - 4
                if candidate <= pos:
                    continue
                record = parse_record(segment.view, segment.start, candidate, check_crc=True)
                # An older time is a remnant of a log that once was longer, not what followed the damage.
                if record is not None and record.store_timestamp_ms >= self._last_time:
                    return candidate
            at = segment.file.data_after(at + _SEARCH_BYTES) if at + _SEARCH_BYTES < segment.size else None
        return segment.size


def _all(data: bytes, needle: bytes) -> Iterator[int]:
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def is_blank(view: memoryview, pos: int) -> bool:
    """Tell whether a BLANK that fills the segment begins at ``pos``."""
    if len(view) - pos < 8:
        return False
    size, magic = _INT.unpack_from(view, pos)[0], _INT.unpack_from(view, pos + 4)[0]
    return bool(magic == MAGIC_BLANK and size == len(view) - pos)


def parse_record(view: memoryview, base: int, pos: int, *, check_crc: bool) -> ScannedRecord | None:
    """Return the record at ``pos`` of a segment that starts at ``base``, or None when what is there is not a whole, valid record."""
    room = len(view) - pos
    if room < FIXED_OVERHEAD:
        return None
    size, magic, crc, queue_id, queue_offset, physical, sys_flag = HEAD.unpack_from(view, pos)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or physical != base + pos or size < FIXED_OVERHEAD or size > room:  # noqa: PLR1714
        return None
    if sys_flag & (SYSFLAG_BORN_HOST_V6 | SYSFLAG_STORE_HOST_V6):
        time_at = pos + (68 if sys_flag & SYSFLAG_BORN_HOST_V6 else 56)
        body_at = time_at + (44 if sys_flag & SYSFLAG_STORE_HOST_V6 else 32)
        if body_at + 3 > pos + size:
            return None
        store_time = _LONG.unpack_from(view, time_at)[0]
        body_length = _INT.unpack_from(view, body_at - 4)[0]
    else:
        body_at = pos + 88
        store_time, body_length = _TIME_AND_LENGTH_V4.unpack_from(view, pos + 56)
    end = pos + size
    topic_at = body_at + body_length
    if body_length < 0 or topic_at + 3 > end or queue_id < 0 or queue_offset < 0:
        return None
    if magic == MAGIC_V1:
        topic_length = view[topic_at]
        topic_at += 1
    else:
        topic_length = _SHORT.unpack_from(view, topic_at)[0]
        topic_at += 2
    props_at = topic_at + topic_length + 2
    if topic_length <= 0 or props_at > end:
        return None
    if props_at + _SHORT.unpack_from(view, props_at - 2)[0] != end:
        return None
    if check_crc and body_length and crc32(view[body_at : body_at + body_length]) != crc:
        return None
    topic = bytes(view[topic_at : props_at - 2])
    properties = bytes(view[props_at:end])
    if topic == _SCHEDULE_TOPIC and (level := find_property(properties, b"DELAY")):
        code = store_time + _delay_ms(level)
    else:
        tag = find_property(properties, b"TAGS")
        code = tags_code_raw(tag) if tag else 0
    return ScannedRecord(topic, queue_id, queue_offset, physical, size, code, sys_flag, store_time)


def _delay_ms(level: bytes) -> int:
    try:
        number = int(level)
    except ValueError:
        return 0
    return DELAY_LEVELS_MS[min(number, len(DELAY_LEVELS_MS)) - 1] if number > 0 else 0
