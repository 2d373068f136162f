"""Compare the entries of the key index with the keys of the log's records, in arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.layout import INDEX_ENTRY_BYTES, INDEX_ENTRY_LAYOUT
from sprocketmq.protocol.properties import find_property
from sprocketmq.spark.jobs.audit.facts import MAX_EXAMPLES, KeyDifference, KeyFacts
from sprocketmq.spark.jobs.audit.index_files import AuditedIndexFile
from sprocketmq.storage.bulk.splits import Split
from sprocketmq.storage.chunks import KeyEntries, ParsedChunk
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.index.record_keys import key_hash, key_string
from sprocketmq.storage.inspect.queue_units import OpenFiles
from sprocketmq.storage.layout_arrays import INDEX_ENTRY_DTYPE
from sprocketmq.storage.log.recovery import parse_record

_LOG_OFFSET = INDEX_ENTRY_LAYOUT.part("log_offset")
_LATEST_SECONDS = 0x7FFFFFFF
_Longs = NDArray[np.int64]


class IndexReader:
    """Reads entries of several index files by the log offsets they point to."""

    def __init__(self, fs: FileSystem, files: tuple[AuditedIndexFile, ...]) -> None:
        self._files = files
        self._open = OpenFiles(fs)

    @property
    def begin(self) -> int:
        """The log offset of the first entry."""
        return self._files[0].begin if self._files else 0

    @property
    def end(self) -> int:
        """The log offset of the last entry, -1 without entries."""
        return self._files[-1].end if self._files else -1

    def between(self, start: int, end: int) -> Iterator[tuple[AuditedIndexFile, int, NDArray[Any]]]:
        """Yield (file, number of the first entry, entries) for the entries with log offsets in ``[start, end)``."""
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
        """Close the files."""
        self._open.close()


class KeyComparison:
    """Compares the keys of one chain with the entries of the key index."""

    def __init__(self) -> None:
        self._matched = self._missing = self._missing_tags = self._before = self._behind = self._orphans = self._wrong_times = 0
        self._places = (-1, -1)
        self._examples: list[KeyDifference] = []

    def facts(self) -> KeyFacts:
        """Return the results so far."""
        return KeyFacts(
            self._matched,
            self._missing,
            self._places,
            self._missing_tags,
            self._before,
            self._behind,
            self._orphans,
            self._wrong_times,
            self._examples,
        )

    def take(self, chunk: ParsedChunk, keys: KeyEntries, index: IndexReader, split: Split, view: Any) -> None:
        """Compare the keys of a chunk with the entries that point into it. Raises OSError."""
        # Log offset and hash in one number; a chunk is far shorter than 2^32 bytes.
        wanted = ((keys.log_offsets - chunk.start) << 31) | keys.hashes.astype(np.int64)
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
            for i in orphans[:MAX_EXAMPLES].tolist():
                self._add_example(int(found["log_offset"][i]), int(found["key_hash"][i]), file.path, file.entry_at(first + i))
            met |= np.isin(wanted, actual)
        self._matched += int(met.sum())
        if not met.all():
            self._count_missing(keys, np.flatnonzero(~met), index, split, view)

    def _add_example(self, log_offset: int, hash_: int, path: str, at: int) -> None:
        if len(self._examples) < MAX_EXAMPLES:
            self._examples.append(KeyDifference(log_offset, hash_, path, at))

    def _compare_times(self, file: AuditedIndexFile, first: int, found: NDArray[Any], times_ms: _Longs) -> None:
        seconds = np.clip((times_ms - file.begin_ms) // 1000, 0, _LATEST_SECONDS)
        # The time of the first entry is relative to an older value of its header; readers take it for 0.
        self._wrong_times += int(((found["seconds"] != seconds) & (np.arange(first, first + len(found)) > 1)).sum())

    def _count_missing(self, keys: KeyEntries, rows: _Longs, index: IndexReader, split: Split, view: Any) -> None:
        places = keys.log_offsets[rows]
        before = places < index.begin
        behind = places > index.end
        self._before += int(before.sum())
        self._behind += int(behind.sum())
        tags: dict[int, int] = {}
        for row in rows[~before & ~behind].tolist():
            log_offset, hash_ = int(keys.log_offsets[row]), int(keys.hashes[row])
            if log_offset not in tags:
                tags[log_offset] = _tag_hash(view(), split.base, log_offset)
            if tags[log_offset] == hash_:
                self._missing_tags += 1
            elif log_offset == index.end:
                self._behind += 1
            else:
                self._missing += 1
                self._places = (log_offset if self._places[0] < 0 else self._places[0], log_offset)
                self._add_example(log_offset, hash_, "", -1)


def _tag_hash(view: memoryview, base: int, log_offset: int) -> int:
    """Return the hash of the tag of the record at a log offset, -1 without a tag."""
    record = parse_record(view, base, log_offset - base, check_crc=False)
    tag = find_property(record.properties, b"TAGS") if record is not None else None
    if record is None or not tag:
        return -1
    return key_hash(key_string(record.topic.decode("utf-8", "replace"), tag.decode("utf-8", "replace"), tag=True))
