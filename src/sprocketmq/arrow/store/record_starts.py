"""Find where records begin in a segment of the commit log, so that tasks can start in the middle of it.

The store's queues know where records begin; without them, or where they are wrong, record sizes are followed or a record is searched for.
"""

from bisect import bisect_right
from typing import Self

from sprocketmq.arrow.store.pieces import DamagePiece
from sprocketmq.protocol.layout import (
    BATCH_UNIT_BYTES,
    BLANK,
    FILLER_SIZE,
    FIXED_OVERHEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_UNIT_BYTES,
    QUEUE_UNIT_LAYOUT,
    RECORD_LAYOUT,
)
from sprocketmq.storage.bulk.record_search import find_record
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.inspect.record_items import dissect
from sprocketmq.storage.inspect.segment_items import next_record
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.log.recovery import parse_record
from sprocketmq.storage.log.segments import segment_entries

# So many queues are asked for record starts: one of them then has a record near any log offset.
_ASKED_QUEUES = 64
# Behind every log offset.
FAR = 2**63 - 1
RECORD_MAGICS = frozenset({MAGIC_V1, MAGIC_V2})

_HEAD = RECORD_LAYOUT.part("size", "magic", "log_offset")
_OFFSET_AND_SIZE = QUEUE_UNIT_LAYOUT.part("log_offset", "size")  # the first fields of the units of both kinds of queues


class SegmentView:
    """One mapped segment of the log, to find record starts in. Positions are bytes of the file."""

    def __init__(self, fs: FileSystem, path: str, base: int, nominal: int, file: File) -> None:
        self._fs = fs
        self.path = path
        self.base = base
        self.nominal = nominal
        self.size = file.size()
        self._view = file.map(self.size) if self.size else memoryview(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._view.release()

    def known_start(self, starts: "KnownStarts | None", target: int) -> int:
        """Return the last record start at or before ``target`` that the queues know and that holds a record, else 0."""
        if starts is None:
            return 0
        at = starts.at_or_before(self.base + target) - self.base
        return at if at > 0 and parse_record(self._view, self.base, at, check_crc=False) is not None else 0

    def follow_to(self, begin: int, target: int, starts: "KnownStarts | None") -> int | None:
        """Return the first record start at or after ``target``, following sizes from ``begin`` or from the last start the queues know.

        Returns the segment's size when no record follows, and None when the chain of sizes is broken before ``target``.
        """
        at = max(begin, self.known_start(starts, target))
        unpack, view, last = _HEAD.unpack_from, self._view, self.size - FIXED_OVERHEAD
        while at < target:
            size, magic, physical = unpack(view, at) if at <= last else (0, 0, 0)
            if magic not in RECORD_MAGICS or physical != self.base + at or not FIXED_OVERHEAD <= size <= self.size - at:
                return self.size if magic == MAGIC_BLANK else None
            at += size
        return at

    def start_from(self, begin: int, target: int, starts: "KnownStarts | None") -> int:
        """Return the first record start at or after ``target``, searching for one after damage; the segment's size when there is none."""
        found = self.follow_to(begin, target, starts)
        return self.searched(target) if found is None else found

    def searched(self, target: int) -> int:
        """Return the first position at or after ``target`` of a whole record with a correct body CRC, else the segment's size."""
        found = find_record(self._view, self.base, target, self.size)
        return self.size if found < 0 else found

    def end_of_data(self, begin: int) -> tuple[int, DamagePiece | None]:
        """Return the end of the last whole record, following records from ``begin``, and what follows it unless that is all zeros.

        As in a broker's recovery, the log ends where nothing valid follows. The last record must have a correct CRC: its write may have
        been cut short by a power failure, or may still be under way.
        """
        with FileView(self._fs, self.path) as file:
            chain: list[int] = []
            at = begin
            while True:
                at = self._follow(at, chain)
                if at >= self.size or self._is_blank(at):
                    return self.size, None
                while chain and parse_record(self._view, self.base, chain[-1], check_crc=True) is None:
                    at = chain.pop()
                record = parse_record(self._view, self.base, chain[-1], check_crc=False) if chain else None
                found = next_record(file, at, self.base, self.nominal, since_ms=0 if record is None else record.store_time_ms)
                if found >= self.size:
                    break
                at = found
            if file.data_from(at) >= self.size:
                return at, None
            problem = dissect(file, at, self.base, self.nominal - at).problem or "its body is damaged"
            return at, DamagePiece(self.path, at, self.size, f"the log ends here; behind it are remnants or a torn record ({problem})")

    def _follow(self, at: int, chain: list[int]) -> int:
        """Follow record sizes from ``at``, appending each start to ``chain``; return the position of the first non-record."""
        unpack, view, last = _HEAD.unpack_from, self._view, self.size - FIXED_OVERHEAD
        while at <= last:
            size, magic, physical = unpack(view, at)
            if magic not in RECORD_MAGICS or physical != self.base + at or not FIXED_OVERHEAD <= size <= self.size - at:
                break
            chain.append(at)
            at += size
        return at

    def _is_blank(self, at: int) -> bool:
        if self.size - at < 8:
            return False
        size, magic = BLANK.unpack_from(self._view, at)
        return magic == MAGIC_BLANK and size == self.nominal - at


class KnownStarts:
    """Record starts as a store's queues state them. Queues may be wrong: callers check that a record is there."""

    def __init__(self, store: StoreDirectory, fs: FileSystem) -> None:
        self._fs = fs
        queues = [*store.queues("consumequeue"), *store.queues("batchconsumequeue")]
        self._queues: list[list[tuple[str, int, int]]] = []  # for each queue its files: path, bytes of a unit, units
        for _, _, directory in queues[:: len(queues) // _ASKED_QUEUES + 1]:
            width = QUEUE_UNIT_BYTES if "/consumequeue/" in directory else BATCH_UNIT_BYTES
            self._queues.append([(f"{directory}/{e.name}", width, e.size // width) for _, e in segment_entries(fs.list(directory))])
        self._firsts: dict[str, int] = {}

    def at_or_before(self, log_offset: int) -> int:
        """Return the largest log offset up to ``log_offset`` at which a queue states a record, -1 when there is none."""
        return max((self._in_queue(files, log_offset) for files in self._queues), default=-1)

    def _in_queue(self, files: list[tuple[str, int, int]], log_offset: int) -> int:
        try:
            for path, width, count in reversed(files[: bisect_right(files, log_offset, key=self._first)]):
                file = self._fs.open(path, read_only=True)
                try:
                    if units := bisect_right(range(count), log_offset, key=lambda i: _unit_log_offset(file, i * width)):
                        return _unit_log_offset(file, (units - 1) * width)
                finally:
                    file.close()
        except OSError:
            pass  # an expired or unreadable file only means fewer known starts
        return -1

    def _first(self, file: tuple[str, int, int]) -> int:
        path, _, count = file
        if path not in self._firsts:
            opened = self._fs.open(path, read_only=True)
            try:
                self._firsts[path] = _unit_log_offset(opened, 0) if count else FAR
            finally:
                opened.close()
        return self._firsts[path]


def _unit_log_offset(file: File, at: int) -> int:
    """Return the log offset of a unit's record. An unwritten unit counts as after all offsets, a filler as before all."""
    data = file.pread(_OFFSET_AND_SIZE.size, at)
    if len(data) < _OFFSET_AND_SIZE.size:
        return FAR
    place, size = _OFFSET_AND_SIZE.unpack(data)
    return FAR if size <= 0 else -1 if size == FILLER_SIZE else int(place)
