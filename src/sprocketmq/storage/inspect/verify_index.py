"""Comparing the key index with the log. Loads numpy.

Entries are in log order, across files too. So each window of the log is compared with the entries whose log offsets are in it: their hashes
must be exactly those of its records' keys.
"""

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.codes import SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.properties import find_property
from sprocketmq.storage.index.key_hashing import entries_of_topics
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Findings
from sprocketmq.storage.inspect.index_file_check import IndexFileCheck
from sprocketmq.storage.inspect.log_windows import Window
from sprocketmq.storage.inspect.store_directory import StoreDirectory

_Longs = NDArray[np.int64]


class IndexChecks:
    """All index files of a store. ``take`` gets the log's windows in order, ``finish`` reports."""

    def __init__(self, store: StoreDirectory, findings: Findings, *, in_use: bool) -> None:
        self._store = store
        self._findings = findings
        self._in_use = in_use
        self._repair = f"sprocketmq rebuild {shlex.quote(store.root)} --only index"
        self._names = [entry.name for entry in store.index_files()]
        self._files = self._open_each()
        self._file: IndexFileCheck | None = None
        self._chunks: Iterator[tuple[int, NDArray[Any]]] = iter(())
        self._waiting: tuple[IndexFileCheck, int, NDArray[Any]] | None = None
        self.entries = 0
        self._begins: int | None = None
        self._done_to = -1  # the log offset of the last entry
        self._missing = 0
        self._first_missing = -1
        self._missing_tags = 0
        self._missing_before = 0
        self._behind = 0

    def _open_each(self) -> Iterator[IndexFileCheck]:
        for name in self._names:
            yield IndexFileCheck(self._store.fs, f"{self._store.root}/index/{name}", self._findings, self._repair, in_use=self._in_use)

    def _next_entries(self) -> tuple[IndexFileCheck, int, NDArray[Any]] | None:
        """Return the next entries of all files, in order; None after the last."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        while True:
            found = next(self._chunks, None)
            if found is not None and self._file is not None:
                self.entries += len(found[1])
                self._done_to = max(self._done_to, int(found[1]["log_offset"][-1]))
                if self._begins is None:
                    self._begins = int(found[1]["log_offset"][0])
                return self._file, *found
            if self._file is not None:
                self._file.finish()
            self._file = next(self._files, None)
            if self._file is None:
                return None
            self._chunks = self._file.chunks()

    def _entries_between(self, start: int, end: int) -> list[tuple[IndexFileCheck, int, NDArray[Any]]]:
        """Take the entries before log offset ``end``; those before ``start``, which may be millions, are dropped."""
        taken = []
        while (entries := self._next_entries()) is not None:
            file, first, found = entries
            count = int(np.searchsorted(found["log_offset"].astype(np.int64), end))
            if count and int(found["log_offset"][count - 1]) >= start:
                taken.append((file, first, found[:count]))
            if count < len(found):
                self._waiting = (file, first + count, found[count:])
                break
        return taken

    def take(self, window: Window) -> None:
        """Compare the keys of a window's records with the entries that point into it."""
        if not self._names or not len(window):
            return
        keyed = np.flatnonzero(window.sys_flags & SYSFLAG_TRANSACTION_MASK != SYSFLAG_TRANSACTION_MASK)
        topics: dict[bytes, int] = {}
        owners = np.fromiter((topics.setdefault(window.topics[i], len(topics)) for i in keyed.tolist()), np.int64, len(keyed))
        properties = [window.properties[i] for i in keyed.tolist()]
        expected = entries_of_topics(list(topics), owners, properties, window.log_offsets[keyed], window.times_ms[keyed])
        start = int(window.log_offsets[0])
        taken = self._entries_between(start, window.end)
        # Log offset and hash in one number; a window is far shorter than 2^32.
        wanted = ((expected.log_offsets - start) << 31) | expected.hashes.astype(np.int64)
        done = 0
        met = np.zeros(len(wanted), bool)
        for file, first, found in taken:
            log_offsets = found["log_offset"].astype(np.int64)
            skip = int(np.searchsorted(log_offsets, start))  # entries of records before this window, which were lost or have expired
            numbers, log_offsets = first + skip, log_offsets[skip:]
            actual = ((log_offsets - start) << 31) | found["key_hash"][skip:].astype(np.int64)
            if np.array_equal(actual, wanted[done : done + len(actual)]):
                met[done : done + len(actual)] = True
                self._check_times(file, numbers, found[skip:], expected.times_ms[done : done + len(actual)])
                done += len(actual)
                continue
            wrong = np.flatnonzero(~np.isin(actual, wanted))
            for i in wrong[:5].tolist():
                known = np.isin(log_offsets[i], expected.log_offsets)
                why = "belongs to no key of the message there" if known else "points to where no message with keys is"
                what = f"entry {numbers + i} (hash {found['key_hash'][skip + i]}, log offset {log_offsets[i]}) {why}"
                self._findings.add(ERROR, "index entry", file.path, file.entry_at(numbers + i), what, self._repair)
            if len(wrong) > 5:
                what = f"{len(wrong) - 5:,} more entries are wrong"
                self._findings.add(ERROR, "index entry", file.path, file.entry_at(numbers + int(wrong[5])), what, self._repair)
            met |= np.isin(wanted, actual)
        if not met.all():
            tags = [_only_tag(text) for text in properties]
            tagged = entries_of_topics(list(topics), owners, tags, window.log_offsets[keyed], window.times_ms[keyed])
            of_tags = np.isin(wanted[~met], ((tagged.log_offsets - start) << 31) | tagged.hashes.astype(np.int64))
            self._count_missing(expected.log_offsets[~met], of_tags)

    def _check_times(self, file: IndexFileCheck, first: int, found: NDArray[Any], times_ms: _Longs) -> None:
        seconds = np.clip((times_ms - file.begin_ms) // 1000, 0, 0x7FFFFFFF)
        # The first entry counts from the time that its new file's header was filled with, and is read as if it were 0.
        wrong = np.flatnonzero((found["seconds"] != seconds) & (np.arange(first, first + len(found)) > 1))
        if len(wrong):
            i = int(wrong[0])
            what = f"{len(wrong):,} entries have another time than their message, the first is entry {first + i}"
            self._findings.add(ERROR, "index time", file.path, file.entry_at(first + i) + 12, what, self._repair)

    def _count_missing(self, log_offsets: _Longs, of_tags: NDArray[np.bool_]) -> None:
        none = np.zeros(len(log_offsets), bool)
        before = log_offsets < self._begins if self._begins is not None else none
        behind = (log_offsets > self._done_to) | ((log_offsets == self._done_to) & ~of_tags) if self._waiting is None else none
        self._missing_tags += int((of_tags & ~before & ~behind).sum())
        inside = ~before & ~behind & ~of_tags
        self._missing_before += int(before.sum())
        self._behind += int((behind & ~before).sum())
        if inside.any():
            self._missing += int(inside.sum())
            if self._first_missing < 0:
                self._first_missing = int(log_offsets[inside][0])

    def finish(self, log_end: int) -> None:
        """Report missing entries and entries after the log's end."""
        if not self._names:
            return
        directory = f"{self._store.root}/index"
        beyond = 0
        first: tuple[str, int] | None = None
        while (entries := self._next_entries()) is not None:
            file, number, found = entries
            start = int(np.searchsorted(found["log_offset"].astype(np.int64), log_end))
            if start < len(found):
                first = first or (file.path, file.entry_at(number + start))
                beyond += len(found) - start
        if first is not None:
            severity = NOTE if self._in_use else ERROR
            what = f"{beyond:,} entries point behind the log's end at {log_end}"
            self._findings.add(severity, "index ahead", *first, what, "" if self._in_use else self._repair)
        if self._missing:
            what = f"{self._missing:,} keys of messages are not in the index, the first belongs to the message at {self._first_missing}"
            self._findings.add(WARNING, "index gap", directory, None, what, self._repair)
        if self._missing_tags:
            what = f"{self._missing_tags:,} tags of messages are not in the index, as brokers before 5.5 leave them out"
            self._findings.add(NOTE, "index without tags", directory, None, what, self._repair)
        if self._missing_before:
            what = f"{self._missing_before:,} keys of messages older than the oldest index file are not in the index"
            self._findings.add(NOTE, "index begins later", directory, None, what, self._repair)
        if self._behind:
            severity = NOTE if self._in_use else WARNING
            what = f"{self._behind:,} keys of the newest messages are not in the index yet"
            self._findings.add(severity, "index behind", directory, None, what, "" if self._in_use else self._repair)

    def close(self) -> None:
        """Close the file that is being read."""
        if self._file is not None:
            self._file.close()


def _only_tag(properties: bytes) -> bytes:
    tag = find_property(properties, b"TAGS")
    return b"TAGS\x01" + tag + b"\x02" if tag else b""
