"""The BatchConsumeQueue: one 46-byte unit per record, so that a whole batch costs one unit, one lookup and one read.

``protocol/layout.py`` draws the unit.

Only the unit itself stores its queue offset, so an offset is found by bisection: first over the first unit of every 256, whose offsets
are cached, then in one block of 256. That takes a few microseconds, independent of the number of files.
"""

from bisect import bisect_left, bisect_right

from sprocketmq.protocol.layout import BATCH_UNIT, BATCH_UNIT_BYTES, BATCH_UNIT_LAYOUT, INT64
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.log.segments import FilePool
from sprocketmq.storage.queues.queue_files import UnitQueue
from sprocketmq.storage.snapshot import QueueState

UNIT_COVERS = BATCH_UNIT_LAYOUT.part("queue_offset", "count")  # the first queue offset a unit covers, and how many
COMPACTED = -1  # the compacted offset of a topic that is not compacted
MAX_COUNT = 0x7FFF

# log offset of the record, size, tag code, store time, first queue offset, count, compacted offset, reserved
BatchUnit = tuple[int, int, int, int, int, int, int, int]

_LOG_OFFSET_POS = BATCH_UNIT_LAYOUT.offset("log_offset")
_TIME_POS = BATCH_UNIT_LAYOUT.offset("store_time_ms")
_BASE_POS = BATCH_UNIT_LAYOUT.offset("queue_offset")
_pack_unit = BATCH_UNIT.pack
_unpack_int64 = INT64.unpack_from
_BLOCK_UNITS = 256
# First offsets of blocks cached per queue: enough for a million units; the cache is cleared when it is full.
_MAX_BLOCKS = 4096


class BatchConsumeQueue(UnitQueue):
    """A queue whose units cover one or more queue offsets each.

    Readers find units by number; ``min_unit`` is the first whose record is in the log, ``end_unit`` the first that is not committed.
    """

    __slots__ = ("_bases", "_end_unit", "min_unit")

    unit_bytes = BATCH_UNIT_BYTES

    def __init__(self, fs: FileSystem, pool: FilePool, directory: str, topic: str, queue_id: int, file_bytes: int) -> None:
        super().__init__(fs, pool, directory, topic, queue_id, file_bytes)
        self.unusual = True
        self.min_unit = self._end_unit = 0
        self._bases: dict[int, int] = {}

    @property
    def end_unit(self) -> int:
        return self._end_unit

    def start_at(self, offset: int, units: tuple[int, int], *, min_offset: int | None = None) -> None:
        """Set the end of the queue to ``offset``, with units ``[first, end)`` in the files; ``min_offset`` defaults to ``offset``."""
        self.next = self.committed = self.visible = offset
        self.min_offset = offset if min_offset is None else min_offset
        self.min_unit, self._end_unit = units
        self.written = self.synced = self._end_unit
        self.tail = (self._end_unit, bytearray())
        self._bases.clear()

    def begin_at(self, offset: int) -> None:
        """Start an empty queue at ``offset``. Its units begin at number 0 all the same."""
        self.start_at(offset, (0, 0))

    # --- the owning thread ---

    def add(self, log_offset: int, size: int, code: int, store_time_ms: int, count: int) -> None:
        """Append the unit of a record that covers the next ``count`` queue offsets."""
        tail = self.tail[1]
        tail += _pack_unit(log_offset, size, code, store_time_ms, self.next, count, COMPACTED, 0)
        self.next += count

    def commit(self) -> None:
        start, tail = self.tail
        self._end_unit = start + len(tail) // BATCH_UNIT_BYTES
        super().commit()

    def roll_back(self) -> None:
        """Drop the units after ``committed``."""
        start, tail = self.tail
        del tail[(self._end_unit - start) * BATCH_UNIT_BYTES :]
        self.next = self.committed

    def unit(self, number: int) -> BatchUnit:
        """Return one unit."""
        return BATCH_UNIT.unpack(self.read_units(number, number + 1))

    def find(self, offset: int) -> int:
        """Return the number of the unit that covers ``offset``, or when none does, of the first one after it.

        ``offset`` must lie within [min_offset, committed). Where units are damaged the answer may be any unit.
        """
        return self.covering(offset, *self.locate(offset))

    def covering(self, offset: int, number: int, units: bytes | bytearray) -> int:
        """Return what ``find`` returns, given the result of ``locate``."""
        base, count = UNIT_COVERS.unpack_from(units)
        return number + 1 if base + count <= offset and number + 1 < self._end_unit else number

    def locate(self, offset: int) -> tuple[int, bytes | bytearray]:
        """Return the number of the last unit that begins at ``offset`` or before it, and this and some of the units after it.

        ``offset`` must lie within [min_offset, committed). Where units are damaged the answer may be any unit.
        """
        return self._last_at_most(offset, _BASE_POS)

    def find_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """Return the number of the first unit stored at ``timestamp_ms`` or later, the last unit when there is none.

        With ``upper`` the last one stored then or earlier, the first unit when there is none. The queue must not be empty. As in the
        reference, a time at or after that of the last unit gives the last unit.
        """
        number, _ = self._last_at_most(timestamp_ms, _TIME_POS)
        if upper or number == self._end_unit - 1:
            return number
        # The last one before the time, and from there the next: equal times may stretch over many units.
        before, _ = self._last_at_most(timestamp_ms - 1, _TIME_POS)
        return before if self.unit(before)[3] >= timestamp_ms else before + 1

    def _last_at_most(self, value: int, field_pos: int) -> tuple[int, bytes | bytearray]:
        """Return the number of the last unit whose field at byte ``field_pos`` is at most ``value``, the first unit when there is none.

        Also return the units read from it on, at least its own.
        """
        low, end = self.min_unit, self._end_unit
        start = max(self.tail[0], low)
        if start >= end or self._field(start, field_pos) > value:
            # Blocks begin at multiples of their size, so cached offsets stay valid while the queue grows.
            first = low // _BLOCK_UNITS + 1
            block = bisect_right(range(first, -(-min(start, end) // _BLOCK_UNITS)), value, key=lambda b: self._block_field(b, field_pos))
            start = max((first + block - 1) * _BLOCK_UNITS, low)
            end = min(start + _BLOCK_UNITS, end)
        units = self.read_units(start, end)
        found = bisect_right(range(end - start), value, key=lambda i: _unpack_int64(units, i * BATCH_UNIT_BYTES + field_pos)[0])
        if not found and start > low:  # only where units are damaged
            return start - 1, self.read_units(start - 1, end)
        return start + max(found - 1, 0), units[max(found - 1, 0) * BATCH_UNIT_BYTES :]

    def _block_field(self, block: int, field_pos: int) -> int:
        if field_pos != _BASE_POS:
            return self._field(block * _BLOCK_UNITS, field_pos)
        base = self._bases.get(block)
        if base is None:
            base = self._field(block * _BLOCK_UNITS, field_pos)
            if len(self._bases) >= _MAX_BLOCKS:
                self._bases.clear()
            self._bases[block] = base
        return base

    def _field(self, number: int, field_pos: int) -> int:
        return int(_unpack_int64(self.read_units(number, number + 1), field_pos)[0])

    def replace_from(self, number: int, units: bytes, *, to_end: bool) -> None:
        """Replace damaged committed units; with ``to_end`` only staged units follow them. Raises OSError."""
        self._bases.clear()
        if not to_end:
            self.rewrite(number, units)
            return
        start, tail = self.tail
        staged = tail[(self._end_unit - start) * BATCH_UNIT_BYTES :]
        end = number + len(units) // BATCH_UNIT_BYTES
        if number >= start:
            tail[(number - start) * BATCH_UNIT_BYTES :] = units + staged
        else:
            self._write(number, units, self._pooled)
            self.tail = (end, staged)
            self.written = end
        self._end_unit = end
        self.written = min(self.written, end)
        self.synced = min(self.synced, number)

    def first_in_log(self, log_min: int) -> int:
        """Return the number of the first unit whose record begins at log offset ``log_min`` or later, ``end_unit`` when there is none."""
        low = self.min_unit
        return low + bisect_left(range(low, self._end_unit), log_min, key=lambda number: self._field(number, _LOG_OFFSET_POS))

    # --- recovery ---

    def skip_to(self, offset: int) -> None:
        """Make ``offset`` the next one. The skipped offsets have no record and no unit."""
        self.next = self.committed = self.visible = offset

    def go_back(self, offset: int) -> None:
        """Make ``offset`` the next one again. Drop the units that cover it or later offsets; all units, if it is at most the min offset."""
        if offset <= self.min_offset or self.min_unit == self._end_unit:
            self.begin_at(offset)
            return
        number = self._end_unit
        if offset < self.committed:
            number, units = self.locate(offset)
            base, count = UNIT_COVERS.unpack_from(units)
            number += base + count <= offset
        start, tail = self.tail
        if number >= start:
            del tail[(number - start) * BATCH_UNIT_BYTES :]
            self.written = min(self.written, number)
            self.synced = min(self.synced, number)
        else:
            self.tail = (number, bytearray())
            self.written = self.synced = number
        self._end_unit = number
        self.next = self.committed = self.visible = offset
        self._bases.clear()

    def end_of_expired(self, log_min: int) -> tuple[int, int]:
        """Return the queue offset and the unit number after the last unit on disk when that points before ``log_min``, else (0, 0).

        Like the reference, this reads only the last three files, up to the first invalid unit.
        """
        offset = number = last_log_offset = 0
        for start in sorted(self.files())[-3:]:
            number = start // BATCH_UNIT_BYTES
            for log_offset, size, _, _, base, count, _, _ in BATCH_UNIT.iter_unpack(self._read(start, start + self._file_bytes)):
                if log_offset < 0 or size <= 0 or base < 0 or count <= 0:
                    return (offset, number) if last_log_offset < log_min else (0, 0)
                number += 1
                offset = base + count
                last_log_offset = log_offset
        return (offset, number) if last_log_offset < log_min else (0, 0)

    def intact(self, last: tuple[int, int]) -> bool:
        """Return whether the files can hold all units and the last one is ``last`` (log offset and size) and ends the queue."""
        if self.min_unit == self._end_unit:
            return True
        if not self.has_files(self.min_unit, self._end_unit):
            return False
        log_offset, size, _, _, base, count, _, _ = self.unit(self._end_unit - 1)
        return (log_offset, size) == last and base + count == self.next

    # --- the flushing thread ---

    def _has_units(self, end: int) -> bool:
        return end > self.min_unit

    def _state_at(self, end: int, last: bytes) -> QueueState:
        if not last:
            # Empty: all expired, or nothing committed yet.
            return QueueState(self.topic, self.queue_id, self.min_offset, self.min_offset, (0, 0), (end, end))
        log_offset, size, _, _, base, count, _, _ = BATCH_UNIT.unpack(last)
        low = min(self.min_offset, base + count)
        return QueueState(self.topic, self.queue_id, low, base + count, (log_offset, size), (min(self.min_unit, end), end))
