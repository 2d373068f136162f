"""What an audit's tasks do: lay stretches of the log beside the queue and index files, array by array. No Spark in here, but numpy.

A *chain* is a row of parsed chunks each of which begins where the one before ended: when its first record counts, all of them do. What a
chain says of a queue comes down to ranges of queue offsets whose units are as they should be, and the few that are not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.layout import (
    BATCH_UNIT_BYTES,
    FILLER_SIZE,
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_LAYOUT,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    QUEUE_UNIT_BYTES,
)
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.properties import find_property
from sprocketmq.storage.bulk.splits import Split
from sprocketmq.storage.bulk.stitching import Answer
from sprocketmq.storage.chunks import KeyEntries, ParsedChunk, QueueRun
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.index.record_keys import key_hash, key_string
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.queue_check import Ranges
from sprocketmq.storage.inspect.queue_units import OpenFiles, QueueUnits
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, INDEX_ENTRY_DTYPE, QUEUE_UNIT_DTYPE
from sprocketmq.storage.log.recovery import parse_record
from sprocketmq.storage.log.segments import segment_entries, segment_size_of

# Of each kind of difference a chain tells so many in full for each queue, or each index file, and only counts the others.
MAX_TOLD = 20
# Smaller tag codes are addresses in consumequeue_ext.
_LOWEST_TAG_CODE = -(1 << 31)
_SCHEDULE = SCHEDULE_TOPIC.encode()
_LOG_OFFSET = INDEX_ENTRY_LAYOUT.part("log_offset")
_LATEST_SECONDS = 0x7FFFFFFF
_Longs = NDArray[np.int64]


class Range(NamedTuple):
    """Consecutive records of a queue: queue offsets ``[first, next)``, ``[unit, unit_end)`` what was compared with them in the files.

    ``physical`` is the place of the first record, ``last_physical`` of the last that was looked at on its own. ``records`` may be fewer than
    offsets where a record covers several.
    """

    first: int
    next: int
    unit: int
    unit_end: int
    physical: int
    last_physical: int
    records: int


class Difference(NamedTuple):
    """A unit that is not what its record makes of it, or that is not there at all (``said`` empty)."""

    offset: int
    next_offset: int
    unit: int
    physical: int
    said: str
    expected: str


class QueueFacts(NamedTuple):
    """What a chain says of one queue, in log order; ``missing`` and ``wrong`` count all ``differences``, of which some are told."""

    ranges: list[Range]
    differences: list[Difference]
    missing: int
    wrong: int


class KeyDifference(NamedTuple):
    """An index entry that belongs to no key (``path`` says where it is), or a key without an entry (``path`` empty)."""

    physical: int
    hash: int
    path: str
    at: int


class KeyFacts(NamedTuple):
    """What a chain says of the key index. ``places`` are those of all missing keys but tags, ``tag_places`` of missing tags."""

    matched: int
    missing: int
    places: tuple[int, int]
    missing_tags: int
    before: int
    behind: int
    orphans: int
    wrong_times: int
    told: list[KeyDifference]


class Chain(NamedTuple):
    """Records of the log from ``start`` to ``end`` and what they say. Fields are those of ``ParsedChunk`` otherwise."""

    start: int
    end: int
    records: int
    last_physical: int
    last_time_ms: int
    queues: dict[tuple[str, int], QueueFacts]
    keys: KeyFacts | None


class AuditTarget(NamedTuple):
    """The derived files that are looked at, and how their store reads the log."""

    root: str
    batch_topics: frozenset[str]
    deleted: Mapping[str, int]
    index_files: "tuple[AuditedIndexFile, ...]"


class AuditedIndexFile(NamedTuple):
    """An index file: entries 1 to ``entries``, which point to places of the log from ``begin`` to ``end``."""

    path: str
    slots: int
    entries: int
    begin: int
    end: int
    begin_ms: int

    def entry_at(self, number: int) -> int:
        """Return the byte of the file where an entry is."""
        return INDEX_HEADER_BYTES + 4 * self.slots + INDEX_ENTRY_BYTES * number


def index_file(fs: FileSystem, path: str, slots: int | None) -> AuditedIndexFile | None:
    """Return what is in an index file, None when it has no entries or their number cannot be told. Raises OSError.

    ``slots`` is its number of hash slots, when something tells it.
    """
    with FileView(fs, path) as view:
        raw = view.read(0, INDEX_HEADER_BYTES)
        slots = (slots or hash_slots_of(view)) if len(raw) == INDEX_HEADER_BYTES else None
        if not slots:
            return None
        begin_ms, _, _, _, _, count = INDEX_HEADER.unpack(raw)
        entries = min(count, (view.size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES) - 1
        if entries <= 0:
            return None
        file = AuditedIndexFile(path, slots, entries, 0, 0, begin_ms)
        begin, end = (_LOG_OFFSET.unpack(view.read(file.entry_at(number), _LOG_OFFSET.size))[0] for number in (1, entries))
    return file._replace(begin=begin, end=end)


def chains(answers: Iterable[Answer[ParsedChunk]], comparison: "Comparison") -> Iterator[Answer[Chain]]:
    """Compare chunks as they come and yield them as chains, without a gap between the answers."""
    begin = 0
    position = -1
    for answer in answers:
        chunk = answer.stretch
        if position >= 0 and (chunk is None or chunk.start != position):
            yield Answer(begin, position, comparison.finish())
            position = -1
        if chunk is None:
            yield Answer(answer.begin, answer.limit, None)
            continue
        if position < 0:
            begin = answer.begin
        comparison.take(chunk)
        position = chunk.end
    if position >= 0:
        yield Answer(begin, position, comparison.finish())


class Comparison:
    """Lays chunks of one chain after the other beside the files of a store. ``split`` is what the chunks are from."""

    def __init__(self, fs: FileSystem, target: AuditTarget, split: Split, *, keys: bool) -> None:
        self._fs = fs
        self._target = target
        self._files = OpenFiles(fs)
        self._checks: dict[tuple[bytes, int], QueueUnits] = {}
        self._view = memoryview(b"")
        self._split = split
        self._index = _IndexReader(fs, target.index_files) if keys else None
        self._start = self._end = -1
        self._reset()

    def _reset(self) -> None:
        self._start = -1
        self._records = self._last_physical = self._last_ms = 0
        self._queues: dict[tuple[str, int], _QueueLog] = {}
        self._keys = _KeyLog()

    def take(self, chunk: ParsedChunk) -> None:
        """Compare the next chunk of the chain. Raises OSError."""
        if self._start < 0:
            self._start = chunk.start
        self._end = chunk.end
        self._records += chunk.records
        self._last_physical, self._last_ms = chunk.last_physical, chunk.last_time_ms
        for run in chunk.runs:
            self._take_run(run)
        if self._index is not None and chunk.keys is not None:
            self._keys.take(chunk, chunk.keys, self._index, self._split, self._log_view)

    def finish(self) -> Chain:
        """Return the chain so far, and begin another."""
        queues = {key: log.facts() for key, log in self._queues.items()}
        keys = self._keys.facts() if self._index is not None else None
        chain = Chain(self._start, self._end, self._records, self._last_physical, self._last_ms, queues, keys)
        self._reset()
        return chain

    @staticmethod
    def nothing(position: int) -> Chain:
        """Return the chain of a place where no record begins."""
        return Chain(position, position, 0, 0, 0, {}, None)

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        if self._index is not None:
            self._index.close()

    def _log_view(self) -> memoryview:
        if not len(self._view):
            file = self._fs.open(self._split.path, read_only=True)
            try:
                self._view = file.map(self._split.size)
            finally:
                file.close()
        return self._view

    def _check(self, topic: bytes, name: str, queue_id: int) -> QueueUnits:
        check = self._checks.get((topic, queue_id))
        if check is None:
            check = self._checks[topic, queue_id] = open_queue(
                self._fs, self._target.root, name, queue_id, batch=name in self._target.batch_topics
            )
        return check

    def _take_run(self, run: QueueRun) -> None:
        name = run.topic.decode("utf-8", "replace")
        check = self._check(run.topic, name, run.queue_id)
        units = np.frombuffer(run.units, BATCH_UNIT_DTYPE if check.batch else QUEUE_UNIT_DTYPE)
        first = run.first_offset
        deleted = self._target.deleted.get(name, 0)
        if deleted > run.first_physical:  # messages before their topic's deletion have no units
            skip = int(np.searchsorted(units["log_offset"].astype(np.int64), deleted))
            units = units[skip:]
            if not len(units):
                return
            first = int(units["queue_offset"][0]) if check.batch else first + skip
        log = self._queues.get((name, run.queue_id))
        if log is None:
            log = self._queues[name, run.queue_id] = _QueueLog()
        if check.batch:
            log.compare_batch(check, self._files, units, run.next_offset)
        else:
            log.compare_plain(check, self._files, first, units, codes=run.topic != _SCHEDULE)


class _QueueLog:
    """What a chain has said of one queue so far."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []
        self._differences: list[Difference] = []
        self._missing = self._wrong = 0

    def facts(self) -> QueueFacts:
        return QueueFacts(self._ranges, self._differences, self._missing, self._wrong)

    def _add(self, new: Range) -> None:
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.next == new.first and last.unit_end == new.unit:
            records = last.records + new.records
            self._ranges[-1] = last._replace(next=new.next, unit_end=new.unit_end, last_physical=new.last_physical, records=records)
        else:
            self._ranges.append(new)

    def _differs(self, difference: Difference) -> None:
        if difference.said:
            self._wrong += 1
        else:
            self._missing += difference.next_offset - difference.offset
            last = self._differences[-1] if self._differences else None
            if last is not None and not last.said and last.next_offset == difference.offset:
                self._differences[-1] = last._replace(next_offset=difference.next_offset)
                return
        if len(self._differences) < MAX_TOLD:
            self._differences.append(difference)

    def compare_plain(self, check: QueueUnits, files: OpenFiles, first: int, units: NDArray[Any], *, codes: bool) -> None:
        """Compare the units in the files from queue offset ``first`` on with those the log gives."""
        count = len(units)
        found = check.read(files, first, count)
        physicals = units["log_offset"]
        self._add(Range(first, first + count, first, first + count, int(physicals[0]), int(physicals[-1]), count))
        if codes and found.tobytes() == units.tobytes():
            return
        same = (found["log_offset"] == physicals) & (found["size"] == units["size"])
        if codes:
            same &= (found["tags_code"] == units["tags_code"]) | (found["tags_code"] < _LOWEST_TAG_CODE)
        for i in np.flatnonzero(~same).tolist():
            unit, expected = found[i], units[i]
            said = ""
            if unit["size"] not in (0, FILLER_SIZE):
                said = f"place {unit['log_offset']}, size {unit['size']}, tag code {unit['tags_code']}"
            due = f"place {expected['log_offset']}, size {expected['size']}, tag code {expected['tags_code'] if codes else 'any'}"
            self._differs(Difference(first + i, first + i + 1, first + i, int(expected["log_offset"]), said, due))

    def compare_batch(self, check: QueueUnits, files: OpenFiles, units: NDArray[Any], next_offset: int) -> None:
        """Compare the units in the files of consecutive records of a batch queue with those the log gives."""
        count = len(units)
        start = self._ranges[-1].unit_end if self._ranges and self._ranges[-1].next == int(units["queue_offset"][0]) else -1
        if start < 0:
            start = check.unit_at(files, int(units["log_offset"][0]))
        found = check.read(files, start, count)
        base, physical = int(units["queue_offset"][0]), int(units["log_offset"][0])
        if all((found[name] == units[name]).all() for name in _JUDGED):
            self._add(Range(base, next_offset, start, start + count, physical, int(units["log_offset"][-1]), count))
            return
        number = start
        for expected in units:
            base, covered, physical = int(expected["queue_offset"]), int(expected["count"]), int(expected["log_offset"])
            unit = check.read(files, number, 1)[0]
            if unit["log_offset"] != physical or unit["size"] <= 0:
                number = check.unit_at(files, physical)
                unit = check.read(files, number, 1)[0]
            there = unit["log_offset"] == physical and unit["size"] > 0
            self._add(Range(base, base + covered, number, number + there, physical, physical, 1))
            if not there:
                self._differs(Difference(base, base + covered, -1, physical, "", f"place {physical}"))
                continue
            names = [name for name in _JUDGED if unit[name] != expected[name]]
            if names:
                said, due = (", ".join(f"{name} {row[name]}" for name in names) for row in (unit, expected))
                self._differs(Difference(base, base + covered, number, physical, said, due))
            number += 1


# Fields of a batch queue's unit that follow from its record.
_JUDGED = ("log_offset", "size", "tags_code", "store_time_ms", "queue_offset", "count")


def open_queue(fs: FileSystem, root: str, topic: str, queue_id: int, *, batch: bool) -> QueueUnits:
    """Return a queue's files, for looking only; none when there are none."""
    directory = f"{root}/{'batchconsumequeue' if batch else 'consumequeue'}/{topic}/{queue_id}"
    found = segment_entries(fs.list(directory))
    size = segment_size_of(found) or 0
    if size % (BATCH_UNIT_BYTES if batch else QUEUE_UNIT_BYTES):
        found, size = [], 0
    files = {start: min(entry.size, size) for start, entry in found if size and not start % size}
    return QueueUnits(topic, queue_id, directory, files, size, batch=batch)


class _IndexReader:
    """Entries of several index files by the places they point to."""

    def __init__(self, fs: FileSystem, files: tuple[AuditedIndexFile, ...]) -> None:
        self._files = files
        self._open = OpenFiles(fs)

    @property
    def begin(self) -> int:
        """The place of the first entry."""
        return self._files[0].begin if self._files else 0

    @property
    def end(self) -> int:
        """The place of the last entry, -1 without one."""
        return self._files[-1].end if self._files else -1

    def between(self, start: int, end: int) -> Iterator[tuple[AuditedIndexFile, int, NDArray[Any]]]:
        """Yield file, number of the first, and entries that point to places in ``[start, end)``."""
        for file in self._files:
            if file.end < start or file.begin >= end:
                continue
            first, stop = self._lower(file, start), self._lower(file, end)
            if stop > first:
                data = self._open.read(file.path, (stop - first) * INDEX_ENTRY_BYTES, file.entry_at(first))
                yield file, first, np.frombuffer(data[: len(data) - len(data) % INDEX_ENTRY_BYTES], INDEX_ENTRY_DTYPE)

    def _lower(self, file: AuditedIndexFile, place: int) -> int:
        low, high = 1, file.entries + 1
        while low < high:
            middle = (low + high) // 2
            data = self._open.read(file.path, _LOG_OFFSET.size, file.entry_at(middle))
            if len(data) == _LOG_OFFSET.size and _LOG_OFFSET.unpack(data)[0] < place:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        self._open.close()


class _KeyLog:
    """What a chain has said of the key index so far."""

    def __init__(self) -> None:
        self._matched = self._missing = self._missing_tags = self._before = self._behind = self._orphans = self._wrong_times = 0
        self._places = (-1, -1)
        self._told: list[KeyDifference] = []

    def facts(self) -> KeyFacts:
        return KeyFacts(
            self._matched,
            self._missing,
            self._places,
            self._missing_tags,
            self._before,
            self._behind,
            self._orphans,
            self._wrong_times,
            self._told,
        )

    def take(self, chunk: ParsedChunk, keys: KeyEntries, index: _IndexReader, split: Split, view: Any) -> None:
        """Lay the keys of a chunk beside the entries that point into it. Raises OSError."""
        # Place and hash in one number; a chunk is far shorter than 2^32.
        wanted = ((keys.physicals - chunk.start) << 31) | keys.hashes.astype(np.int64)
        met = np.zeros(len(wanted), np.bool_)
        done = 0
        for file, first, found in index.between(chunk.start, chunk.end):
            actual = ((found["log_offset"].astype(np.int64) - chunk.start) << 31) | found["key_hash"].astype(np.int64)
            some = slice(done, done + len(actual))
            done += len(actual)
            if np.array_equal(actual, wanted[some]):
                met[some] = True
                self._compare_times(file, first, found, keys.times_ms[some])
                continue
            orphans = np.flatnonzero(~np.isin(actual, wanted))
            self._orphans += len(orphans)
            for i in orphans[:MAX_TOLD].tolist():
                self._tell(int(found["log_offset"][i]), int(found["key_hash"][i]), file.path, file.entry_at(first + i))
            met |= np.isin(wanted, actual)
        self._matched += int(met.sum())
        if not met.all():
            self._count_missing(keys, np.flatnonzero(~met), index, split, view)

    def _tell(self, physical: int, hash_: int, path: str, at: int) -> None:
        if len(self._told) < MAX_TOLD:
            self._told.append(KeyDifference(physical, hash_, path, at))

    def _compare_times(self, file: AuditedIndexFile, first: int, found: NDArray[Any], times_ms: _Longs) -> None:
        seconds = np.clip((times_ms - file.begin_ms) // 1000, 0, _LATEST_SECONDS)
        # The first entry counts from whatever its header was filled with before it, and is read as if it were 0.
        self._wrong_times += int(((found["seconds"] != seconds) & (np.arange(first, first + len(found)) > 1)).sum())

    def _count_missing(self, keys: KeyEntries, rows: _Longs, index: _IndexReader, split: Split, view: Any) -> None:
        places = keys.physicals[rows]
        before = places < index.begin
        behind = places > index.end
        self._before += int(before.sum())
        self._behind += int(behind.sum())
        tags: dict[int, int] = {}
        for row in rows[~before & ~behind].tolist():
            physical, hash_ = int(keys.physicals[row]), int(keys.hashes[row])
            if physical not in tags:
                tags[physical] = _tag_hash(view(), split.base, physical)
            if tags[physical] == hash_:
                self._missing_tags += 1
            elif physical == index.end:
                self._behind += 1
            else:
                self._missing += 1
                self._places = (physical if self._places[0] < 0 else self._places[0], physical)
                self._tell(physical, hash_, "", -1)


def _tag_hash(view: memoryview, base: int, physical: int) -> int:
    """Return the hash of the tag of the record at a place, -1 without one."""
    record = parse_record(view, base, physical - base, check_crc=False)
    tag = find_property(record.properties, b"TAGS") if record is not None else None
    if record is None or not tag:
        return -1
    return key_hash(key_string(record.topic.decode("utf-8", "replace"), tag.decode("utf-8", "replace"), tag=True))


class Others(NamedTuple):
    """Units of a queue's files that no record of the log has, by what is wrong with them: how many, and the number of the first.

    ``lost`` point into stretches without records, ``ahead`` behind the log's end, ``orphans`` to where none of its messages is. ``used`` counts
    all units that are neither empty, filler nor expired.
    """

    used: int
    lost: tuple[int, int]
    ahead: tuple[int, int]
    orphans: tuple[int, int]


def other_units(
    check: QueueUnits, files: OpenFiles, met: Iterable[tuple[int, int]], log: tuple[int, int], lost: Iterable[tuple[int, int]]
) -> Others:
    """Look at the units outside the ranges ``met``. ``log`` is where the log begins and ends. Raises OSError."""
    ranges = Ranges()
    used = 0
    for start, stop in met:
        ranges.pairs.append([start, stop])
        used += stop - start
    kinds: dict[str, tuple[int, int]] = {"lost": (0, -1), "ahead": (0, -1), "orphans": (0, -1)}
    for start, stop in ranges.outside(check.count):
        for at, units in check.written(files, start, stop):
            place, size = units["log_offset"].astype(np.int64), units["size"]
            is_used = ((size != 0) | (place != 0)) & ((size != FILLER_SIZE) | (place != 0))
            is_used &= (place >= log[0]) | (place < 0) | (size < 0)
            if not is_used.any():
                continue
            used += int(is_used.sum())
            is_lost = np.zeros(len(units), np.bool_)
            for begin, end in lost:
                is_lost |= is_used & (place >= begin) & (place < end)
            is_ahead = is_used & ~is_lost & (place >= log[1])
            for kind, which in (("lost", is_lost), ("ahead", is_ahead), ("orphans", is_used & ~is_lost & ~is_ahead)):
                count, first = kinds[kind]
                if which.any():
                    kinds[kind] = count + int(which.sum()), at + int(np.argmax(which)) if first < 0 else first
    return Others(used, kinds["lost"], kinds["ahead"], kinds["orphans"])
