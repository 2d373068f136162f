"""Scanning the commit log from a log offset to its end, for recovery, rebuild and repair of derived files.

A scan accepts a record only if its magic number, its lengths, the log offset stored in it and, on request, the body's CRC are all
correct. Where they are not, the log either ends or is damaged: the scan searches for a later record, and only if there is none the log
ends at the last valid one. Damage in the middle therefore costs the damaged records and never later ones.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sprocketmq.protocol.codes import (
    SYSFLAG_ANY_HOST_V6,
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_STORE_HOST_V6,
)
from sprocketmq.protocol.hashing import crc32, full_crc32, tags_code_raw
from sprocketmq.protocol.layout import (
    FIXED_OVERHEAD,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    INT16,
    INT32,
    INT64,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_RECORD_SIZE,
    RECORD_HEAD_BYTES,
    RECORD_LAYOUT,
)
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.properties import find_property
from sprocketmq.storage.config import DELAY_LEVELS, delay_levels_ms
from sprocketmq.storage.fs import data_places
from sprocketmq.storage.log.commit_log import CommitLog, Segment

_BEFORE_HOSTS = ("size", "magic", "crc", "queue_id", "queue_offset", "log_offset", "sys_flag")
_HEAD = RECORD_LAYOUT.part(*_BEFORE_HOSTS)
# For the usual record with two IPv4 hosts.
_HEAD_V4 = RECORD_LAYOUT.part(*_BEFORE_HOSTS, "store_time_ms", "body_length")
# The position of the topic in such a record when its body is empty.
_TOPIC_AT = RECORD_HEAD_BYTES + 1
_TIME_AT = RECORD_LAYOUT.offset("store_time_ms")
_FROM_TIME_TO_BODY = RECORD_HEAD_BYTES - _TIME_AT
# An IPv6 host is longer by this.
_MORE_FOR_V6 = HOST_V6_BYTES - HOST_V4_BYTES
_unpack_int16 = INT16.unpack_from
_unpack_int32 = INT32.unpack_from
_unpack_int64 = INT64.unpack_from

_RECORD_MAGICS = (INT32.pack(MAGIC_V1), INT32.pack(MAGIC_V2))
_SEARCH_BYTES = 1 << 20
# A hostile producer can nest thousands of forged records in a body, each as long as the rest of it. After damage each costs a checksum,
# so beyond this many bytes only short ones are accepted: some seconds instead of hours.
SEARCH_BUDGET_BYTES = 4 << 30
_ALWAYS_SEARCHED_BYTES = 64 << 10
# Disks write a sector atomically.
SECTOR_BYTES = 512
# The log is parsed in windows that double up to the size the reference cuts its log into; the first is small as most starts find
# nothing to read.
_FIRST_WINDOW_BYTES = 1 << 16
_WINDOW_BYTES = 4 << 20
# A longer log is read by several processes. Starting them takes as long as reading 64 MiB in this one.
CONCURRENT_BYTES = 64 << 20

# The unit of a parked message holds its delivery time instead of a tag code. Records do not say how long their level was: the queues of
# a store with other levels correct what is told here (QueueTable.unit_code).
DELAY_LEVELS_MS = delay_levels_ms(DELAY_LEVELS)
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class Scanned(msgspec.Struct, gc=False):
    """The fields of a record that the derived files need.

    ``count`` is the number of queue offsets it covers from ``queue_offset`` on: INNER_NUM from INNER_BASE on for an inner batch, else one.
    """

    topic: bytes
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    sys_flag: int
    store_time_ms: int
    count: int
    properties: bytes


class DamagedRange(NamedTuple):
    """A stretch ``[start, end)`` of the commit log that holds no valid record although valid ones follow."""

    path: str
    start: int
    end: int


@dataclass
class RecoveryReport:
    """The result of recovering a store when it is opened."""

    clean: bool = True  # the last broker stopped cleanly
    rebuilt: bool = False  # the queues were derived from the whole log
    reason: str = ""  # why, in words
    scanned_from: int = 0
    log_end: int = 0
    records: int = 0  # read from the log
    cut_bytes: int = 0  # leftovers dropped after the log's end
    damaged: list[DamagedRange] = field(default_factory=list)
    elapsed_ms: float = 0.0
    workers: int = 0  # processes that read the log, this one included; 0 when it was read record by record
    lost_workers: int = 0  # of these, the processes that died; the rest was read without them

    @property
    def sound_end(self) -> int:
        """The log offset up to which the log is as it was before the crash: the first damage, or its end.

        What a master writes from there on belongs to a new epoch: a slave may hold what was lost.
        """
        return min((found.start for found in self.damaged), default=self.log_end)


class LogScan:
    """Iterates over the records of a log from ``start`` on. ``end`` is the end of the last one, ``damaged`` the ranges skipped.

    With ``resync`` damage is skipped if valid records follow; otherwise the first bytes that are not a record end the log. Records found
    after damage must not be older than ``last_time`` or what was read before. ``stop`` bounds the scan.
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
        self._searched = 0
        # Where the segment that was searched last, by its start, may hold data.
        self._places: tuple[int, list[int]] = (-1, [])

    def batches(self) -> Iterator[list[Scanned]]:
        """Yield the records in log order, some thousand at a time."""
        gap: tuple[str, int] | None = None  # damage whose end is not known yet
        window_bytes = _FIRST_WINDOW_BYTES
        stop = self._stop
        for segment in self._log.segments:
            base = segment.start
            size = segment.size if stop is None else min(segment.size, stop - base)
            view = segment.view if size == segment.size else segment.view[: max(size, 0)]
            pos = max(self._start, base) - base
            while pos < size:
                window = view[pos : min(pos + window_bytes, size)]
                records, used, wanted = parse_records(window, base + pos, segment.size - pos, check_crc=self._check_crc)
                if not records and wanted > MAX_RECORD_SIZE:
                    # Checked where it lies: no copy of what may be a gigabyte.
                    record = parse_record(view, base, pos, check_crc=self._check_crc)
                    records, used = ([], 0) if record is None else ([record], wanted)
                if records:
                    if gap is not None:
                        self.damaged.append(DamagedRange(gap[0], gap[1], base + pos))
                        gap = None
                    pos += used
                    self.end = base + pos
                    self._last_time = records[-1].store_time_ms
                    yield records
                    window_bytes = min(window_bytes * 2, _WINDOW_BYTES)
                elif window_bytes < wanted <= min(size - pos, MAX_RECORD_SIZE):
                    window_bytes = wanted
                elif is_blank(segment.view, pos):
                    self.end = base + segment.size
                    break
                elif not self._resync:
                    return
                else:
                    gap = gap or (segment.file.path, base + pos)
                    pos = self._next_record(segment, view, pos)

    def _next_record(self, segment: Segment, view: memoryview, pos: int) -> int:
        """Return the position of the next valid record in ``view``, the part of the segment that is scanned, or its length."""
        size = len(view)
        if self._places[0] != segment.start:
            self._places = segment.start, data_places(segment.file, pos + 1, size, _SEARCH_BYTES)
        places = self._places[1]
        for number in range(max(0, bisect_right(places, pos) - 1), len(places)):
            # The magic number is at byte 4 of a record; windows overlap so that one across a border is found.
            begin = max(places[number] - 7, pos + 1)
            window = bytes(view[begin : places[number] + _SEARCH_BYTES])
            for i in magics_in(window):
                candidate = begin + i - 4
                if candidate <= pos:
                    continue
                # An older record is a remnant of a log that used to be longer, not one that followed the damage.
                record = parse_record(view, segment.start, candidate, check_crc=False)
                if record is None or record.store_time_ms < self._last_time:
                    continue
                self._searched += record.size
                if self._searched > SEARCH_BUDGET_BYTES and record.size > _ALWAYS_SEARCHED_BYTES:
                    continue
                if parse_record(view, segment.start, candidate, check_crc=True) is not None:
                    return candidate
        return size


def data_end(log: CommitLog) -> int:
    """Return about where the data of a log ends: not before its last record, and at most some MiB of reserved room after it."""
    if not log.segments:
        return 0
    segment = log.segments[-1]
    places = data_places(segment.file, 0, segment.size, _WINDOW_BYTES)
    return segment.start + (min(places[-1] + _WINDOW_BYTES, segment.size) if places else 0)


def magics_in(data: bytes) -> list[int]:
    """Return the positions of the magic numbers of records in ``data``, in ascending order."""
    found = []
    for magic in _RECORD_MAGICS:
        pos = data.find(magic)
        while pos >= 0:
            found.append(pos)
            pos = data.find(magic, pos + 1)
    return sorted(found)


def is_blank(view: memoryview, pos: int) -> bool:
    """Return whether a BLANK that fills the segment begins at ``pos``."""
    if len(view) - pos < 8:
        return False
    size, magic = _unpack_int32(view, pos)[0], _unpack_int32(view, pos + 4)[0]
    return bool(magic == MAGIC_BLANK and size == len(view) - pos)


def parse_records(data: memoryview, log_offset: int, room: int, *, check_crc: bool) -> tuple[list[Scanned], int, int]:
    """Return the records at the beginning of ``data``, how many bytes they take, and how many the next one needs to be judged.

    ``data`` is a part of a segment that begins at ``log_offset``; the segment has ``room`` bytes from there on. Parsing stops at the first
    bytes that are not a record, or at a record that ``data`` does not hold completely; the third value is then the bytes it needs.
    """
    records: list[Scanned] = []
    add = records.append
    total = len(data)
    unpack = _HEAD_V4.unpack_from
    pos = 0
    previous_topic = b""
    parked = False
    known_pair = b"\x02TAGS\x01\x02"
    known_code = 0
    while total - pos >= FIXED_OVERHEAD:
        size, magic, crc, queue_id, queue_offset, own, sys_flag, store_time, n = unpack(data, pos)
        end = pos + size
        if end > total:
            whole = magic in (MAGIC_V1, MAGIC_V2) and own == log_offset + pos and size <= room - pos
            return records, pos, size if whole else 0
        topic_at = pos + _TOPIC_AT + n
        if magic != MAGIC_V1 or sys_flag & SYSFLAG_ANY_HOST_V6:
            record = parse_record(data, log_offset, pos, check_crc=check_crc)
            if record is None:
                return records, pos, 0
            add(record)
            pos = end
            continue
        if own != log_offset + pos or n < 0 or topic_at + 2 > end or queue_id < 0 or queue_offset < 0:
            return records, pos, 0
        rest = bytes(data[topic_at:end])
        topic_length = data[topic_at - 1]
        props_at = topic_length + 2
        if not topic_length or props_at > len(rest) or rest[topic_length] > 127:
            return records, pos, 0
        if rest[topic_length] << 8 | rest[topic_length + 1] != len(rest) - props_at:
            return records, pos, 0
        if check_crc and n and full_crc32(data[pos + RECORD_HEAD_BYTES : topic_at - 1]) & 0x7FFFFFFF != crc:
            return records, pos, 0
        topic = rest[:topic_length]
        if topic != previous_topic:
            previous_topic = topic
            parked = topic == _SCHEDULE_TOPIC
        if parked:
            code = unit_code(topic, rest[props_at:], store_time)
        elif rest.find(known_pair, props_at) >= 0:
            code = known_code
        else:
            at = rest.find(b"TAGS\x01", props_at)
            code = unit_code(topic, rest[props_at:], store_time) if at >= 0 else 0
            if code:
                tag = find_property(rest[props_at:], b"TAGS") or b""
                known_pair = b"\x02TAGS\x01" + tag + b"\x02"
                known_code = code
        properties = rest[props_at:]
        if check_crc and b"\0" in properties and sector_lost(properties, log_offset + topic_at + props_at):
            return records, pos, 0
        count = 1
        if sys_flag & SYSFLAG_INNER_BATCH:
            queue_offset, count = covered_offsets(properties, queue_offset)
            if check_crc and not is_whole_batch(data[pos + RECORD_HEAD_BYTES : topic_at - 1], count, sys_flag):
                return records, pos, 0
        add(Scanned(topic, queue_id, queue_offset, own, size, code, sys_flag, store_time, count, properties))
        pos = end
    return records, pos, min(FIXED_OVERHEAD, room - pos) if pos < total else 0


def parse_record(view: memoryview, base: int, pos: int, *, check_crc: bool) -> Scanned | None:
    """Return the record at ``pos`` of a view whose first byte has log offset ``base``, or None when no whole, valid one is there."""
    room = len(view) - pos
    if room < FIXED_OVERHEAD:
        return None
    size, magic, crc, queue_id, queue_offset, log_offset, sys_flag = _HEAD.unpack_from(view, pos)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or log_offset != base + pos or size < FIXED_OVERHEAD or size > room:  # noqa: PLR1714
        return None
    time_at = pos + _TIME_AT + (_MORE_FOR_V6 if sys_flag & SYSFLAG_BORN_HOST_V6 else 0)
    body_at = time_at + _FROM_TIME_TO_BODY + (_MORE_FOR_V6 if sys_flag & SYSFLAG_STORE_HOST_V6 else 0)
    end = pos + size
    if body_at + 3 > end:
        return None
    store_time = _unpack_int64(view, time_at)[0]
    body_length = _unpack_int32(view, body_at - 4)[0]
    topic_at = body_at + body_length
    if body_length < 0 or topic_at + 3 > end or queue_id < 0 or queue_offset < 0:
        return None
    if magic == MAGIC_V1:
        topic_length = view[topic_at]
        topic_at += 1
    else:
        topic_length = _unpack_int16(view, topic_at)[0]
        topic_at += 2
    props_at = topic_at + topic_length + 2
    if topic_length <= 0 or props_at > end:
        return None
    if props_at + _unpack_int16(view, props_at - 2)[0] != end:
        return None
    if check_crc and body_length and crc32(view[body_at : body_at + body_length]) != crc:
        return None
    topic = bytes(view[topic_at : props_at - 2])
    properties = bytes(view[props_at:end])
    if check_crc and b"\0" in properties and sector_lost(properties, base + props_at):
        return None
    code = unit_code(topic, properties, store_time)
    count = 1
    if sys_flag & SYSFLAG_INNER_BATCH:
        queue_offset, count = covered_offsets(properties, queue_offset)
        if check_crc and not is_whole_batch(view[body_at : body_at + body_length], count, sys_flag):
            return None
    return Scanned(topic, queue_id, queue_offset, log_offset, size, code, sys_flag, store_time, count, properties)


def record_view(log: CommitLog, log_offset: int, end: int) -> memoryview | None:
    """Return the record at a log offset, or None when none begins there or it goes past ``end``; its CRC is not compared."""
    found = _find_record(log, log_offset, end)
    if found is None:
        return None
    segment, record = found
    file_pos = log_offset - segment.start
    return segment.view[file_pos : file_pos + record.size]


def record_properties(log: CommitLog, log_offset: int, end: int) -> bytes | None:
    """Return the properties of the record that ``record_view`` returns."""
    found = _find_record(log, log_offset, end)
    return None if found is None else found[1].properties


def _find_record(log: CommitLog, log_offset: int, end: int) -> tuple[Segment, Scanned] | None:
    segment = log.locate(log_offset) if log_offset < end else None
    if segment is None:
        return None
    record = parse_record(segment.view, segment.start, log_offset - segment.start, check_crc=False)
    return None if record is None or log_offset + record.size > end else (segment, record)


def sector_lost(properties: bytes, log_offset: int) -> bool:
    """Return whether the properties of a record, which begin at log offset ``log_offset``, are zero where a disk sector begins in them.

    That is what a power failure in the middle of a write leaves. The CRC covers the body alone, and everything before the properties
    would not add up.
    """
    first = -log_offset % SECTOR_BYTES
    return any(not properties[start : start + SECTOR_BYTES].strip(b"\0") for start in range(first, len(properties), SECTOR_BYTES))


def covered_offsets(properties: bytes, queue_offset: int) -> tuple[int, int]:
    """Return the first queue offset an inner batch covers and their number; one like any record's unless its properties say both."""
    base, count = find_property(properties, b"INNER_BASE"), find_property(properties, b"INNER_NUM")
    if base and count and base.isdigit() and count.isdigit() and len(base) < 19 and 0 < int(count) <= 0x7FFF:
        return int(base), int(count)
    return queue_offset, 1


def is_whole_batch(body: memoryview, count: int, sys_flag: int) -> bool:
    """Return whether the body of an inner batch has as many messages as its properties say.

    Readers count the body's, queues go by the properties, which no CRC covers: were they to differ, two messages could get one offset.
    """
    if sys_flag & SYSFLAG_COMPRESSED:
        return True
    pos, end = 0, len(body)
    if count > 1 and end >= INT32.size and end == INT32.unpack_from(body)[0] * count and _all_sizes_equal(body, count):
        return True
    while pos + INT32.size <= end and count:
        (size,) = _unpack_int32(body, pos)
        if size < INT32.size:
            return False
        pos += size
        count -= 1
    return pos == end and not count


def _all_sizes_equal(body: memoryview, count: int) -> bool:
    """Return whether ``count`` messages of equal length begin with the same size. Compares them at once, a third of the time of a loop."""
    step = len(body) // count
    return all(body[i::step].tobytes() == bytes((byte,)) * count for i, byte in enumerate(INT32.pack(step)))


def unit_code(topic: bytes, properties: bytes, store_time: int) -> int:
    """Return the tag code for the queue unit of a record: the hash of its tag, or for a parked message its delivery time."""
    if topic == _SCHEDULE_TOPIC and (level := find_property(properties, b"DELAY")):
        return store_time + _delay_ms(level)
    tag = find_property(properties, b"TAGS")
    return tags_code_raw(tag) if tag else 0


def _delay_ms(level: bytes) -> int:
    try:
        number = int(level)
    except ValueError:
        return 0
    return DELAY_LEVELS_MS[min(number, len(DELAY_LEVELS_MS)) - 1] if number > 0 else 0
