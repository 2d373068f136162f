"""Plan a read of stores: which bytes of which files are read, and by which task.

A store may be in use, so a read ends where the data ended when it was planned; what is appended later is not read. Pieces of the commit
log begin and end at record boundaries: no task reads records of another one, and damage stays within its piece.
"""

import difflib
import glob
import logging
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from sprocketmq.arrow.store.pieces import DamagePiece, IndexPiece, LogPiece, Piece, UnitPiece, damaged, pack
from sprocketmq.arrow.store.record_starts import FAR, RECORD_MAGICS, KnownStarts, SegmentView
from sprocketmq.arrow.store.tables import PathAbsent, ReadRefused, StoreOptions
from sprocketmq.errors import StoreNotSupported
from sprocketmq.protocol.layout import (
    BATCH_UNIT_BYTES,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    MAGIC_BLANK,
    QUEUE_UNIT_BYTES,
    QUEUE_UNIT_LAYOUT,
)
from sprocketmq.storage.directory_checks import check_directory, check_version
from sprocketmq.storage.file_view import WINDOW_BYTES, FileView
from sprocketmq.storage.fs import REAL_FS, Entry, FileSystem
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.segment_items import next_record
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.log.segments import parse_segment_name, segment_entries, segment_name, segment_size_of

log = logging.getLogger(__name__)

QUEUE_DIRECTORIES = {"consumequeue": "consumequeue", "batchcq": "batchconsumequeue"}
_UNIT_HEAD_BYTES = QUEUE_UNIT_LAYOUT.offset("tags_code")  # log offset and size, the first fields of both kinds of units


def plan_store(options: StoreOptions, fs: FileSystem = REAL_FS) -> list[list[Piece]]:
    """Return what each task reads, in the order of the files; empty for stores without messages.

    Raises ReadRefused when a path does not exist, is not a store or cannot be read, and StoreDamaged for damage found while planning with
    onCorrupt=fail.
    """
    try:
        pieces = list(_Planner(options, fs).pieces())
    except OSError as e:
        raise _path_refused(f"{e.filename or ', '.join(options.paths)} cannot be read: {e.strerror or e}") from None
    except (NotAStoreFile, StoreNotSupported) as e:
        raise _path_refused(str(e)) from None
    return pack(pieces, options.split_bytes)


def check_paths(options: StoreOptions) -> None:
    """Raise OptionError when a path does not exist. The cheap part of planning, for when the DataFrame is made."""
    list(_existing(options.paths))


def _existing(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths, with patterns expanded, each file or directory once."""
    seen = set()
    for path in paths:
        if _exists(path):  # also a name that looks like a pattern
            found = [path]
        elif glob.has_magic(path):
            found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207
            if not found:
                raise _path_refused(f"nothing matches the pattern {path}")
        else:
            raise PathAbsent(path)
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
        raise _path_refused(f"{path} cannot be read: {e.strerror}") from None
    return True


class _Log(NamedTuple):
    """Segments of one log, in order: those of ``store``, or copies in a plain directory (``store`` is None)."""

    segments: list[tuple[int, Entry, str]]
    segment_bytes: int
    store: StoreDirectory | None


class _Planner:
    """Plans one read. Segments reached by several paths are read once."""

    def __init__(self, options: StoreOptions, fs: FileSystem) -> None:
        self._options = options
        self._fs = fs
        self._seen: set[str] = set()

    def pieces(self) -> Iterator[Piece]:
        table = self._options.table
        commit_logs = [self._log_at(path) for path in _existing(self._options.paths)]
        if table == "commitlog":
            for commit_log in commit_logs:
                yield from self._log_pieces(commit_log)
            return
        stores = []
        for path, commit_log in zip(_existing(self._options.paths), commit_logs, strict=True):
            if commit_log.store is None:
                raise _path_refused(f"{path} is a part of a commit log; table {table} needs the directory of the whole store")
            stores.append(commit_log.store)
        if table == "index":
            for store in stores:
                yield from self._index_pieces(store)
        else:
            self._check_topics(stores)
            for store in stores:
                yield from self._queue_pieces(store)

    def _damage(self, piece: DamagePiece) -> Iterator[DamagePiece]:
        """Handle damage as option onCorrupt says: raise, log a warning, or yield it for the report."""
        if self._options.on_corrupt == "fail":
            raise damaged(piece.path, piece.start, piece.problem)
        if self._options.on_corrupt == "report":
            yield piece
        else:
            log.warning("leaving out bytes %d to %d of %s (onCorrupt is skip): %s", piece.start, piece.end, piece.path, piece.problem)

    # --- what a path is ---

    def _log_at(self, path: str) -> _Log:
        fs = self._fs
        if os.path.isfile(path):  # noqa: PTH113
            return self._copies([(os.path.dirname(path), os.path.basename(path))], path)  # noqa: PTH119, PTH120
        os.listdir(path)  # noqa: PTH208 - raises for a directory that cannot be listed; fs.list takes it for empty
        try:
            store = StoreDirectory(path, fs)
        except NotAStoreFile:
            names = [(path, entry.name) for _, entry in segment_entries(fs.list(path))]
            if not names:
                raise
            return self._copies(names, path)
        # Reading needs only the version check; a store without a log is checked completely for a better error.
        check_version(fs, store.root)
        if self._options.table == "commitlog" and not any(entry.size for _, entry in store.segments):
            check_directory(fs, store.root)
        directory = f"{store.root}/commitlog"
        return _Log([(start, entry, f"{directory}/{entry.name}") for start, entry in store.segments], store.segment_bytes, store)

    def _copies(self, names: list[tuple[str, str]], path: str) -> _Log:
        """Return segments outside a store directory: a commitlog directory, some of its files, or a single file."""
        found = []
        for directory, name in names:
            start = parse_segment_name(name)
            full = f"{directory}/{name}"
            if start is None or not self._is_log(full, start):
                raise _path_refused(
                    f"{path} is not part of a commit log (20 digits name a segment, and records are in it): give the directory of a store,"
                    " its commitlog directory, or a file of that"
                )
            found.append((start, Entry(name, False, os.stat(full).st_size), full))  # noqa: PTH116
        size = segment_size_of([(start, entry) for start, entry, _ in found]) or 0
        return _Log(found, max(size, *(entry.size for _, entry, _ in found)), None)

    def _is_log(self, path: str, start: int) -> bool:
        """Distinguish a segment from a queue file, which has the same kind of name: it contains a record, or no data yet."""
        with FileView(self._fs, path) as view:
            head = view.read(0, 8)
            if int.from_bytes(head[4:], "big", signed=True) in {*RECORD_MAGICS, MAGIC_BLANK} or view.data_from(0) >= view.size:
                return True
            return next_record(view, 0, start, view.size) < view.size

    # --- the commit log ---

    def _log_pieces(self, commit_log: _Log) -> Iterator[Piece]:
        options = self._options
        low = options.from_physical or 0
        high = FAR if options.to_physical is None else options.to_physical
        starts = KnownStarts(commit_log.store, self._fs) if commit_log.store is not None and options.align != "walk" else None
        last = self._last_with_data(commit_log)
        expected = None
        for number, (base, entry, path) in enumerate(commit_log.segments[: last + 1]):
            if commit_log.store is not None and expected is not None and expected < base and low < base and expected < high:
                missing = f"{commit_log.store.root}/commitlog/{segment_name(expected)}"
                what = f"the segment is missing, the next one there is {entry.name}"
                yield from self._damage(DamagePiece(missing, 0, base - expected, what))
            expected = base + commit_log.segment_bytes
            real = os.path.realpath(path)
            if base >= high or expected <= low or real in self._seen:
                continue
            self._seen.add(real)
            try:
                file = self._fs.open(path, read_only=True)
            except FileNotFoundError:
                # Expired since the directory was listed: the oldest segments of a store in use may do so.
                log.info("segment %s was deleted while the read was planned", path)
                continue
            try:
                segment = SegmentView(self._fs, path, base, commit_log.segment_bytes, file)
            finally:
                file.close()
            with segment:
                yield from self._segment_pieces(segment, low - base, high - base, starts, is_last=number == last)

    def _segment_pieces(self, segment: SegmentView, low: int, high: int, starts: KnownStarts | None, *, is_last: bool) -> Iterator[Piece]:
        end = segment.size
        if is_last:
            known = segment.known_start(starts, segment.size - 1)
            end, rest = segment.end_of_data(known)
            if rest is not None and high > end and self._options.on_corrupt == "report":
                # A broker cuts this off at every start: report it, but never fail for it.
                yield rest
        elif segment.size < min(segment.nominal, high):
            what = f"the file has {segment.size} bytes where segments have {segment.nominal}"
            yield from self._damage(DamagePiece(segment.path, segment.size, segment.nominal, what))
        # A start in the middle of damage is kept, so that the damage is reported.
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

    def _last_with_data(self, commit_log: _Log) -> int:
        """Return the index of the last segment that has data and is not only preallocated, -1 when there is none."""
        for number in range(len(commit_log.segments) - 1, -1, -1):
            try:
                with FileView(self._fs, commit_log.segments[number][2]) as view:
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
                raise ReadRefused(
                    "table",
                    f"the queues of {store.root} are in a RocksDB database, which only Apache's broker reads; read table commitlog",
                )
        there = {topic for store in stores for topic, _, _ in store.queues(directory)}
        for topic in self._options.topics:
            if topic not in there:
                near = difflib.get_close_matches(topic, there, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ReadRefused("topic", f"no store has a queue of topic {topic!r} in its {directory} directory{hint}")

    def _queue_pieces(self, store: StoreDirectory) -> Iterator[Piece]:
        directory = QUEUE_DIRECTORIES[self._options.table]
        width = QUEUE_UNIT_BYTES if directory == "consumequeue" else BATCH_UNIT_BYTES
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
                what = f"{view.size - whole} bytes at the end are not a whole unit"
                yield from self._damage(DamagePiece(path, whole, view.size, what))
            end = whole
            if is_last:
                # Unwritten units are zeros, but damage among the units may be zeros too.
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
                if view.size < INDEX_HEADER_BYTES:
                    what = f"{view.size} bytes are too few for the header of {INDEX_HEADER_BYTES}"
                    yield from self._damage(DamagePiece(path, 0, view.size, what))
                    continue
                begin_ms, _, _, _, _, count = INDEX_HEADER.unpack(view.read(0, INDEX_HEADER_BYTES))
                slots = hash_slots_of(view)
                room = (view.size - INDEX_HEADER_BYTES - 4 * (slots or 0)) // INDEX_ENTRY_BYTES
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
            first = INDEX_HEADER_BYTES + 4 * slots
            end = first + count * INDEX_ENTRY_BYTES
            step = self._options.split_bytes // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES
            for start in range(first + INDEX_ENTRY_BYTES, end, step):  # entry 0 is never used
                yield IndexPiece(path, slots, begin_ms, start, min(start + step, end))


def _is_written(view: FileView, at: int) -> bool:
    """Return whether a queue unit is written: its first bytes are not all zero."""
    return any(view.read(at, _UNIT_HEAD_BYTES))


def _data_end(view: FileView) -> int:
    """Return the end of the last non-zero byte of a file, 0 for none."""
    for start in range((view.size - 1) // WINDOW_BYTES * WINDOW_BYTES, -1, -WINDOW_BYTES):
        if data := view.read(start, WINDOW_BYTES).rstrip(b"\0"):
            return start + len(data)
    return 0


def _path_refused(problem: str) -> ReadRefused:
    return ReadRefused("path", problem)
