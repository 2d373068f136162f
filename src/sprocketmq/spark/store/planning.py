"""Which bytes of which files a read of stores covers, and which task reads which: settled in the driver, before a job starts.

A store may be in use. So a read is planned up to where its data ends at that moment; what comes behind is not read, whatever a task
finds there later. Pieces of the commit log begin and end where a record begins, so no task reads another one's records, and damage never
reaches beyond the piece it is in.
"""

import difflib
import glob
import logging
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from struct import Struct
from typing import NamedTuple, Self

from sprocketmq.errors import StoreDamaged, StoreNotSupported
from sprocketmq.protocol.records import FIXED_OVERHEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.store.options import FORMAT, StoreOptions, path_error
from sprocketmq.storage.bulk.parsing import find_record
from sprocketmq.storage.directory_checks import check_directory, check_version
from sprocketmq.storage.file_view import WINDOW_BYTES, FileView
from sprocketmq.storage.fs import REAL_FS, Entry, File, FileSystem
from sprocketmq.storage.index.index_format import ENTRY_BYTES, HEADER, HEADER_BYTES
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.inspection import NotAStoreFile, dissect, next_record
from sprocketmq.storage.inspect.overview import StoreDirectory
from sprocketmq.storage.log.recovery import parse_record
from sprocketmq.storage.log.segments import parse_segment_name, segment_entries, segment_name, segment_size_of
from sprocketmq.storage.queues.batch_queue import BATCH_UNIT_BYTES
from sprocketmq.storage.queues.consume_queue import FILLER_SIZE, UNIT_BYTES

log = logging.getLogger(__name__)

QUEUE_DIRECTORIES = {"consumequeue": "consumequeue", "batchcq": "batchconsumequeue"}
# Queues that are asked where records begin near a place of the log: with so many the next record one of them has is near, too.
_ASKED_QUEUES = 64
_FAR = 2**63 - 1

_HEAD = Struct(">ii20xq")  # size, magic, place in the log
_PLACE_AND_SIZE = Struct(">qi")  # how the units of both kinds of queues begin
_RECORD_MAGICS = frozenset({MAGIC_V1, MAGIC_V2})


class LogPiece(NamedTuple):
    """Bytes ``[start, end)`` of a segment whose first byte has log position ``base``; a record begins at ``start``, and at ``end`` or none does."""

    path: str
    base: int
    start: int
    end: int
    segment_bytes: int

    @property
    def weight(self) -> int:
        return self.end - self.start


class UnitPiece(NamedTuple):
    """Bytes ``[start, end)`` of a queue's file whose first unit has number ``first``."""

    path: str
    topic: str
    queue_id: int
    first: int
    start: int
    end: int

    @property
    def weight(self) -> int:
        return self.end - self.start


class IndexPiece(NamedTuple):
    """Entries in bytes ``[start, end)`` of an index file with ``slots`` hash slots whose times count from ``begin_ms``."""

    path: str
    slots: int
    begin_ms: int
    start: int
    end: int

    @property
    def weight(self) -> int:
        return self.end - self.start


class DamagePiece(NamedTuple):
    """Bytes ``[start, end)`` of a file that hold nothing to be read, and why: a row of a report."""

    path: str
    start: int
    end: int
    problem: str

    @property
    def weight(self) -> int:
        return 0


Piece = LogPiece | UnitPiece | IndexPiece | DamagePiece


def plan_store(options: StoreOptions, fs: FileSystem = REAL_FS) -> list[list[Piece]]:
    """Return what each task reads, in the order of the files; empty for stores without messages.

    Raises OptionError when a path leads to nothing, to no store, or to what cannot be read, and StoreDamaged for damage that shows
    already, when that is to fail the read.
    """
    try:
        pieces = list(_Plan(options, fs).pieces())
    except OSError as e:
        raise path_error(f"{e.filename or ', '.join(options.paths)} cannot be read: {e.strerror or e}") from None
    except (NotAStoreFile, StoreNotSupported) as e:
        raise path_error(str(e)) from None
    return pack(pieces, options.split_bytes)


def pack(pieces: Iterable[Piece], split_bytes: int) -> list[list[Piece]]:
    """Put neighbouring small pieces together, up to ``split_bytes`` a task."""
    tasks: list[list[Piece]] = []
    room = -1
    for piece in pieces:
        if piece.weight > room:
            tasks.append([])
            room = split_bytes
        tasks[-1].append(piece)
        room -= piece.weight
    return tasks


def check_paths(options: StoreOptions) -> None:
    """Raise OptionError when a path of a read leads to nothing: the cheap part of planning, for the moment the frame is made."""
    list(_existing(options.paths))


def _existing(paths: Iterable[str]) -> Iterator[str]:
    """Yield what the paths and patterns stand for, each thing once."""
    seen = set()
    for path in paths:
        if _exists(path):  # also a name that looks like a pattern
            found = [path]
        elif glob.has_magic(path):
            found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207
            if not found:
                raise path_error(f"nothing matches the pattern {path}")
        else:
            raise path_error(f"{path} does not exist; on a cluster every worker must see the store under this path, the driver too")
        for name in found:
            real = os.path.realpath(name)
            if real not in seen:
                seen.add(real)
                yield name


def _exists(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        raise path_error(f"{path} cannot be read: {e.strerror}") from None
    return True


class _Row(NamedTuple):
    """Segments of one log, in order: all of a store (``store`` is it), or what a directory of copies has."""

    segments: list[tuple[int, Entry, str]]
    segment_bytes: int
    store: StoreDirectory | None


class _Plan:
    def __init__(self, options: StoreOptions, fs: FileSystem) -> None:
        self._options = options
        self._fs = fs
        self._seen: set[str] = set()

    def pieces(self) -> Iterator[Piece]:
        table = self._options.table
        rows = [self._row(path) for path in _existing(self._options.paths)]
        if table == "commitlog":
            for row in rows:
                yield from self._log_pieces(row)
            return
        stores = []
        for path, row in zip(_existing(self._options.paths), rows, strict=True):
            if row.store is None:
                raise path_error(f"{path} is a part of a commit log; table {table} needs the directory of the whole store")
            stores.append(row.store)
        if table == "index":
            for store in stores:
                yield from self._index_pieces(store)
        else:
            self._check_topics(stores)
            for store in stores:
                yield from self._queue_pieces(store)

    def _damage(self, piece: DamagePiece) -> Iterator[DamagePiece]:
        """Deal with damage as the read wants it: raise, say and leave out, or report."""
        if self._options.on_corrupt == "fail":
            raise damaged(piece.path, piece.start, piece.problem)
        if self._options.on_corrupt == "report":
            yield piece
        else:
            log.warning("leaving out bytes %d to %d of %s (onCorrupt is skip): %s", piece.start, piece.end, piece.path, piece.problem)

    # --- what a path is ---

    def _row(self, path: str) -> _Row:
        fs = self._fs
        if os.path.isfile(path):  # noqa: PTH113
            return self._copies([(os.path.dirname(path), os.path.basename(path))], path)  # noqa: PTH119, PTH120
        os.listdir(path)  # noqa: PTH208 - what cannot be listed is said so, not taken for empty
        try:
            store = StoreDirectory(path, fs)
        except NotAStoreFile:
            names = [(path, entry.name) for _, entry in segment_entries(fs.list(path))]
            if not names:
                raise
            return self._copies(names, path)
        # The version is what must be known of a store that is only read; only one without a log is asked for everything.
        check_version(fs, store.root)
        if self._options.table == "commitlog" and not any(entry.size for _, entry in store.segments):
            check_directory(fs, store.root)
        directory = f"{store.root}/commitlog"
        return _Row([(start, entry, f"{directory}/{entry.name}") for start, entry in store.segments], store.segment_bytes, store)

    def _copies(self, names: list[tuple[str, str]], path: str) -> _Row:
        """Return segments that lie by themselves: a commitlog directory, some files of one, or a single file."""
        found = []
        for directory, name in names:
            start = parse_segment_name(name)
            full = f"{directory}/{name}"
            if start is None or not self._is_log(full, start):
                raise path_error(
                    f"{path} is no part of a commit log (20 digits name a segment, and records are in it): give the directory of a store,"
                    " its commitlog directory, or a file of that"
                )
            found.append((start, Entry(name, False, os.stat(full).st_size), full))  # noqa: PTH116
        size = segment_size_of([(start, entry) for start, entry, _ in found]) or 0
        return _Row(found, max(size, *(entry.size for _, entry, _ in found)), None)

    def _is_log(self, path: str, start: int) -> bool:
        """Tell a segment from a queue's file, which has a name like it: by a record in it, or by having no data yet."""
        with FileView(self._fs, path) as view:
            head = view.read(0, 8)
            if int.from_bytes(head[4:], "big", signed=True) in {*_RECORD_MAGICS, MAGIC_BLANK} or view.data_from(0) >= view.size:
                return True
            return next_record(view, 0, start, view.size) < view.size

    # --- the commit log ---

    def _log_pieces(self, row: _Row) -> Iterator[Piece]:
        options = self._options
        low = options.from_physical or 0
        high = _FAR if options.to_physical is None else options.to_physical
        starts = _KnownStarts(row.store, self._fs) if row.store is not None and options.align != "walk" else None
        last = self._last_with_data(row)
        expected = None
        for number, (base, entry, path) in enumerate(row.segments[: last + 1]):
            if row.store is not None and expected is not None and expected < base and low < base and expected < high:
                missing = f"{row.store.root}/commitlog/{segment_name(expected)}"
                what = f"the segment is missing, the next one there is {entry.name}"
                yield from self._damage(DamagePiece(missing, 0, base - expected, what))
            expected = base + row.segment_bytes
            real = os.path.realpath(path)
            if base >= high or expected <= low or real in self._seen:
                continue
            self._seen.add(real)
            try:
                file = self._fs.open(path, read_only=True)
            except FileNotFoundError:
                # Expired since the directory was listed, as the oldest of a store in use do.
                log.info("segment %s is gone since the read began to be planned", path)
                continue
            try:
                segment = _Segment(self._fs, path, base, row.segment_bytes, file)
            finally:
                file.close()
            with segment:
                yield from self._segment_pieces(segment, low - base, high - base, starts, is_last=number == last)

    def _segment_pieces(self, segment: "_Segment", low: int, high: int, starts: "_KnownStarts | None", *, is_last: bool) -> Iterator[Piece]:
        end = segment.size
        if is_last:
            known = segment.known_start(starts, segment.size - 1)
            end, rest = segment.end_of_data(known)
            if rest is not None and high > end and self._options.on_corrupt == "report":
                # Every start of a broker cuts this off; it is no reason to fail.
                yield rest
        elif segment.size < min(segment.nominal, high):
            what = f"the file has {segment.size} bytes where segments have {segment.nominal}"
            yield from self._damage(DamagePiece(segment.path, segment.size, segment.nominal, what))
        # In the middle of damage a piece begins with damage, which must show.
        begin = 0 if low <= 0 else low if (found := segment.follow_to(0, low, starts)) is None else found
        if high < end:
            end = segment.start_from(begin, high, starts)
        if begin >= end:
            return
        resync = self._options.align == "resync"
        cuts = [begin]
        count = max(1, round((end - begin) / self._options.split_bytes))
        for i in range(1, count):
            target = begin + (end - begin) * i // count
            if target <= cuts[-1]:
                continue
            cut = segment.searched(target) if resync else segment.start_from(cuts[-1], target, starts)
            if cut >= end:
                break
            cuts.append(cut)
        for start, stop in pairwise([*cuts, end]):
            yield LogPiece(segment.path, segment.base, start, stop, segment.nominal)

    def _last_with_data(self, row: _Row) -> int:
        """Return which segment is the last that is not only reserved room, -1 when none has data."""
        for number in range(len(row.segments) - 1, -1, -1):
            try:
                with FileView(self._fs, row.segments[number][2]) as view:
                    if view.data_from(0) < view.size:
                        return number
            except FileNotFoundError:
                continue
        return -1

    # --- queues and index ---

    def _check_topics(self, stores: list[StoreDirectory]) -> None:
        table = self._options.table
        directory = QUEUE_DIRECTORIES[table]
        for store in stores:
            if self._fs.exists(f"{store.root}/{directory}/CURRENT") and not any(store.queues(directory)):
                raise OptionError(
                    "table",
                    f"the queues of {store.root} are in a RocksDB database, which only Apache's broker reads; read table commitlog",
                    FORMAT,
                )
        there = {topic for store in stores for topic, _, _ in store.queues(directory)}
        for topic in self._options.topics:
            if topic not in there:
                near = difflib.get_close_matches(topic, there, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise OptionError("topic", f"no store has a queue of topic {topic!r} in its {directory} directory{hint}", FORMAT)

    def _queue_pieces(self, store: StoreDirectory) -> Iterator[Piece]:
        directory = QUEUE_DIRECTORIES[self._options.table]
        width = UNIT_BYTES if directory == "consumequeue" else BATCH_UNIT_BYTES
        for topic, queue_id, path in store.queues(directory):
            if self._options.topics and topic not in self._options.topics:
                continue
            files = segment_entries(self._fs.list(path))
            for number, (start, entry) in enumerate(files):
                name = f"{path}/{entry.name}"
                yield from self._unit_pieces(name, topic, queue_id, start // width, width, is_last=number == len(files) - 1)

    def _unit_pieces(self, path: str, topic: str, queue_id: int, first: int, width: int, *, is_last: bool) -> Iterator[Piece]:
        try:
            view = FileView(self._fs, path)
        except FileNotFoundError:
            return  # expired since the directory was listed
        with view:
            whole = view.size - view.size % width
            if whole < view.size and view.data_from(whole) < view.size:
                what = f"{view.size - whole} bytes at the end are no whole unit"
                yield from self._damage(DamagePiece(path, whole, view.size, what))
            end = whole
            if is_last:
                # Units behind the last one there is now are zeros; damage among the units may look so, too.
                end = bisect_right(range(whole // width), False, key=lambda i: not _is_written(view, i * width)) * width
                if view.data_from(end) < whole:
                    data = _data_end(view)
                    end = min(data - data % -width, whole)
        for start in range(0, end, step := self._options.split_bytes // width * width):
            yield UnitPiece(path, topic, queue_id, first, start, min(start + step, end))

    def _index_pieces(self, store: StoreDirectory) -> Iterator[Piece]:
        for entry in store.index_files():
            path = f"{store.root}/index/{entry.name}"
            try:
                view = FileView(self._fs, path)
            except FileNotFoundError:
                continue
            with view:
                if view.size < HEADER_BYTES:
                    what = f"{view.size} bytes are too few for the header of {HEADER_BYTES}"
                    yield from self._damage(DamagePiece(path, 0, view.size, what))
                    continue
                begin_ms, _, _, _, _, count = HEADER.unpack(view.read(0, HEADER_BYTES))
                slots = hash_slots_of(view)
                room = (view.size - HEADER_BYTES - 4 * (slots or 0)) // ENTRY_BYTES
                if not 0 <= count <= room or (slots is None and count > 1):
                    what = (
                        "no number of hash slots fits the file"
                        if 0 <= count <= room
                        else f"it says its next entry is {count}, there is room for {room}"
                    )
                    yield from self._damage(DamagePiece(path, 0, view.size, what))
                    continue
            if slots is None:
                continue
            first = HEADER_BYTES + 4 * slots
            end = first + count * ENTRY_BYTES
            step = self._options.split_bytes // ENTRY_BYTES * ENTRY_BYTES
            for start in range(first + ENTRY_BYTES, end, step):  # entry 0 is never used
                yield IndexPiece(path, slots, begin_ms, start, min(start + step, end))


def _is_written(view: FileView, at: int) -> bool:
    """Tell whether anything is written where a queue's unit begins."""
    return any(view.read(at, _PLACE_AND_SIZE.size))


def _data_end(view: FileView) -> int:
    """Return where the last non-zero byte of a file ends, 0 for none."""
    for start in range((view.size - 1) // WINDOW_BYTES * WINDOW_BYTES, -1, -WINDOW_BYTES):
        if data := view.read(start, WINDOW_BYTES).rstrip(b"\0"):
            return start + len(data)
    return 0


def damaged(path: str, at: int, problem: str) -> StoreDamaged:
    """Return the error that fails a read at damage, to be raised."""
    return StoreDamaged(path, at, f"{problem}. Option onCorrupt=skip reads on behind it, onCorrupt=report also lists it in column corrupt")


class _Segment:
    """One segment of the log, mapped, for finding where its records begin; places are bytes of the file."""

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

    def known_start(self, starts: "_KnownStarts | None", target: int) -> int:
        """Return where the queues say that a record begins, at ``target`` or the nearest before, when that is so; else 0."""
        if starts is None:
            return 0
        at = starts.at_or_before(self.base + target) - self.base
        return at if at > 0 and parse_record(self._view, self.base, at, check_crc=False) is not None else 0

    def follow_to(self, begin: int, target: int, starts: "_KnownStarts | None") -> int | None:
        """Return where the first record at or behind ``target`` begins, following sizes from ``begin`` on, or nearer from what queues say.

        That is the segment's size when there is none, and None when something before it is no record.
        """
        at = max(begin, self.known_start(starts, target))
        unpack, view, last = _HEAD.unpack_from, self._view, self.size - FIXED_OVERHEAD
        while at < target:
            size, magic, physical = unpack(view, at) if at <= last else (0, 0, 0)
            if magic not in _RECORD_MAGICS or physical != self.base + at or not FIXED_OVERHEAD <= size <= self.size - at:
                return self.size if magic == MAGIC_BLANK else None
            at += size
        return at

    def start_from(self, begin: int, target: int, starts: "_KnownStarts | None") -> int:
        """Return where the first record at or behind ``target`` begins, behind damage by its looks; the segment's size when there is none."""
        found = self.follow_to(begin, target, starts)
        return self.searched(target) if found is None else found

    def searched(self, target: int) -> int:
        """Return the first place at or behind ``target`` that looks like a whole record, body CRC included; the segment's size when none does."""
        found = find_record(self._view, self.base, target, self.size)
        return self.size if found < 0 else found

    def end_of_data(self, begin: int) -> tuple[int, DamagePiece | None]:
        """Return where the last whole record ends, searched from the one at ``begin`` on, and what lies behind when that is not just zeros.

        As for a broker that starts, the log ends where nothing valid follows. Its last record must have its CRC right: it may have been
        on its way to the file while the power failed, or be just now.
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
                found = next_record(file, at, self.base, self.nominal, since_ms=0 if record is None else record[7])
                if found >= self.size:
                    break
                at = found
            if file.data_from(at) >= self.size:
                return at, None
            problem = dissect(file, at, self.base, self.nominal - at).problem or "its body is damaged"
            return at, DamagePiece(self.path, at, self.size, f"the log ends here; behind it are remnants or a torn record ({problem})")

    def _follow(self, at: int, chain: list[int]) -> int:
        """Follow the sizes of records from ``at`` on, noting where each begins; return where there is none any more."""
        unpack, view, last = _HEAD.unpack_from, self._view, self.size - FIXED_OVERHEAD
        while at <= last:
            size, magic, physical = unpack(view, at)
            if magic not in _RECORD_MAGICS or physical != self.base + at or not FIXED_OVERHEAD <= size <= self.size - at:
                break
            chain.append(at)
            at += size
        return at

    def _is_blank(self, at: int) -> bool:
        if self.size - at < 8:
            return False
        size, magic = Struct(">ii").unpack_from(self._view, at)
        return magic == MAGIC_BLANK and size == self.nominal - at


class _KnownStarts:
    """Where records of a log begin, by what a store's queues say. They may be wrong: who asks looks whether a record is there."""

    def __init__(self, store: StoreDirectory, fs: FileSystem) -> None:
        self._fs = fs
        queues = [*store.queues("consumequeue"), *store.queues("batchconsumequeue")]
        self._queues: list[list[tuple[str, int, int]]] = []  # files of a queue: path, bytes of a unit, units
        for _, _, directory in queues[:: len(queues) // _ASKED_QUEUES + 1]:
            width = UNIT_BYTES if f"/{QUEUE_DIRECTORIES['consumequeue']}/" in directory else BATCH_UNIT_BYTES
            self._queues.append([(f"{directory}/{e.name}", width, e.size // width) for _, e in segment_entries(fs.list(directory))])
        self._firsts: dict[str, int] = {}

    def at_or_before(self, position: int) -> int:
        """Return the largest place up to ``position`` that a queue has a record at, -1 when there is none."""
        return max((self._in_queue(files, position) for files in self._queues), default=-1)

    def _in_queue(self, files: list[tuple[str, int, int]], position: int) -> int:
        try:
            for path, width, count in reversed(files[: bisect_right(files, position, key=self._first)]):
                file = self._fs.open(path, read_only=True)
                try:
                    if units := bisect_right(range(count), position, key=lambda i: _unit_place(file, i * width)):
                        return _unit_place(file, (units - 1) * width)
                finally:
                    file.close()
        except OSError:
            pass  # an expired or unreadable file is no help, and no harm
        return -1

    def _first(self, file: tuple[str, int, int]) -> int:
        path, _, count = file
        if path not in self._firsts:
            opened = self._fs.open(path, read_only=True)
            try:
                self._firsts[path] = _unit_place(opened, 0) if count else _FAR
            finally:
                opened.close()
        return self._firsts[path]


def _unit_place(file: File, at: int) -> int:
    """Return the place of a unit's record; what is no unit yet counts as far away, a filler as before everything."""
    data = file.pread(_PLACE_AND_SIZE.size, at)
    if len(data) < _PLACE_AND_SIZE.size:
        return _FAR
    place, size = _PLACE_AND_SIZE.unpack(data)
    return _FAR if size <= 0 else -1 if size == FILLER_SIZE else int(place)
