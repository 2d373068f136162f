"""The ConsumeQueue: an array of 20-byte units per queue, which maps a queue offset to its record in O(1).

``protocol/layout.py`` draws the unit. A queue offset is the number of its unit.
"""

from sprocketmq.protocol.layout import FILLER_SIZE, QUEUE_UNIT, QUEUE_UNIT_BYTES
from sprocketmq.storage.queues.queue_files import UnitQueue
from sprocketmq.storage.snapshot import QueueState

FILLER = QUEUE_UNIT.pack(0, FILLER_SIZE, 0)


class ConsumeQueue(UnitQueue):
    """A queue of single messages. ``bad`` are queue offsets whose record is known to be damaged."""

    __slots__ = ()

    unit_bytes = QUEUE_UNIT_BYTES

    @property
    def end_unit(self) -> int:
        return self.committed

    def start_at(self, offset: int, *, min_offset: int | None = None) -> None:
        """Set the end of the queue to ``offset``; all units before it are in the files. ``min_offset`` defaults to it (an empty queue)."""
        self.next = self.committed = self.visible = self.written = self.synced = offset
        self.min_offset = offset if min_offset is None else min_offset
        self.tail = (offset, bytearray())

    def begin_at(self, offset: int) -> None:
        """Start an empty queue at ``offset``: its first file holds filler units up to there."""
        self.start_at(offset)
        first = offset - offset % (self._file_bytes // QUEUE_UNIT_BYTES)
        if offset > first:
            self.written = self.synced = first
            self.tail = (first, bytearray(FILLER * (offset - first)))

    # --- the owning thread ---

    def roll_back(self) -> None:
        """Drop the units after ``committed``."""
        start, tail = self.tail
        del tail[(self.committed - start) * QUEUE_UNIT_BYTES :]
        self.next = self.committed

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return ``(log offset, size, tag code)`` of one queue offset."""
        return QUEUE_UNIT.unpack(self.read_units(offset, offset + 1))

    # --- recovery ---

    def skip_to(self, offset: int) -> None:
        """Make ``offset`` the next one. The skipped offsets have no record and get filler units."""
        tail = self.tail[1]
        tail += FILLER * (offset - self.next)
        self.next = self.committed = self.visible = offset

    def go_back(self, offset: int) -> None:
        """Make ``offset`` the next one again. Units from it on are dropped; all units, if it is at or before the min offset."""
        if offset <= self.min_offset:
            self.begin_at(offset)
            return
        start, tail = self.tail
        if offset >= start:
            del tail[(offset - start) * QUEUE_UNIT_BYTES :]
            self.next = self.committed = self.visible = offset
            self.written = min(self.written, offset)
            self.synced = min(self.synced, offset)
        else:
            self.start_at(offset, min_offset=self.min_offset)

    def end_of_expired(self, log_min: int) -> int:
        """Return the queue offset after the last unit on disk when that points before ``log_min``, else 0.

        Like the reference, this reads only the last three files, each up to its first invalid unit.
        """
        end = last_log_offset = 0
        for start in sorted(self.files())[-3:]:
            end = start // QUEUE_UNIT_BYTES
            for log_offset, size, _ in QUEUE_UNIT.iter_unpack(self._read(start, start + self._file_bytes)):
                if log_offset < 0 or size <= 0:
                    return end if last_log_offset < log_min else 0
                end += 1
                last_log_offset = log_offset
        return end if last_log_offset < log_min else 0

    def intact(self, last: tuple[int, int]) -> bool:
        """Return whether the files can hold [min_offset, next) and the last unit is ``last`` (log offset and size)."""
        if self.next == self.min_offset:
            return True
        return self.has_files(self.min_offset, self.next) and self.unit(self.next - 1)[:2] == last

    # --- the flushing thread ---

    def _has_units(self, end: int) -> bool:
        return end > self.min_offset

    def _state_at(self, end: int, last: bytes) -> QueueState:
        log_offset, size = QUEUE_UNIT.unpack(last)[:2] if last else (0, 0)
        return QueueState(self.topic, self.queue_id, min(self.min_offset, end), end, (log_offset, size))
