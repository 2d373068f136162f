"""Comparing key index files with themselves and with the log. Import it late: it brings numpy.

Entries stand in log order, across files too. So each window of the log is laid beside the entries whose places lie in it: the hashes of
its records' keys should be just those. Chains follow from the entries alone: each entry's link must name the entry of the same slot
before it, and each slot the last one; one pass with an array of what every slot holds so far shows both.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.codes import SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.layout import INDEX_HEADER
from sprocketmq.protocol.properties import find_property
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.index.key_hashing import entries_of_topics
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Findings
from sprocketmq.storage.inspect.log_windows import Window
from sprocketmq.storage.inspect.overview import StoreDirectory
from sprocketmq.storage.layout_arrays import INDEX_ENTRY_DTYPE, INT32_DTYPE

# Far above the reference's five million; a file that claims more is not believed.
MAX_SLOTS = 100_000_000
_CHUNK_ENTRIES = 1 << 17
_Longs = NDArray[np.int64]


class IndexFileCheck:
    """One index file, read once from its first entry to its last; what its chains should be is worked out on the way.

    Iterate over ``chunks`` and then ``finish``: what is wrong in the file itself is in ``findings`` then. The number of hash ``slots`` is found out
    when it is not given. Raises OSError.
    """

    def __init__(self, fs: FileSystem, path: str, findings: Findings, repair: str, *, slots: int | None = None) -> None:
        self.path = path
        self._findings = findings
        self._repair = repair
        self.next = 1
        self.entries = 0
        self.slots = 0
        with FileView(fs, self.path) as view:
            size = view.size
            header = view.read(0, INDEX_HEADER.size)
            slots = (slots or hash_slots_of(view)) if len(header) == INDEX_HEADER.size else None
        if len(header) < INDEX_HEADER.size:
            self._say(ERROR, "index header", size, f"the file has {size} bytes, too few for a header")
            return
        self.begin_ms, self.end_ms, self.begin, self.end, self.used, count = INDEX_HEADER.unpack(header)
        if slots is None and 0 <= count <= 1:
            return  # a new file without entries, of a proportion that nothing in it tells
        if slots is None or slots > MAX_SLOTS:
            self._say(ERROR, "index header", 0, "no number of hash slots fits the file: its header or its entries are damaged")
            return
        capacity = (size - INDEX_HEADER.size - 4 * slots) // INDEX_ENTRY_DTYPE.itemsize
        if not 0 <= count <= capacity:
            self._say(ERROR, "index header", 36, f"the next entry's number {count} is impossible, the file has room for {capacity}")
            count = min(max(count, 0), capacity)
        self.slots = slots
        self.entries = max(count - 1, 0)
        self._newest = np.zeros(slots, np.int32)
        self._file: File = fs.open(self.path, read_only=True)
        self._last = self.begin

    def _say(self, severity: str, kind: str, at: int, what: str) -> None:
        self._findings.add(severity, kind, self.path, at, what, self._repair)

    def entry_at(self, number: int) -> int:
        """Return the byte of the file where an entry is."""
        return INDEX_HEADER.size + 4 * self.slots + INDEX_ENTRY_DTYPE.itemsize * number

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the number of a first entry and some entries from it on, all with possible values."""
        while self.next <= self.entries:
            first = self.next
            count = min(_CHUNK_ENTRIES, self.entries + 1 - first)
            data = self._file.pread(count * INDEX_ENTRY_DTYPE.itemsize, self.entry_at(first))
            found = np.frombuffer(data[: len(data) - len(data) % INDEX_ENTRY_DTYPE.itemsize], INDEX_ENTRY_DTYPE)
            if not len(found):
                return
            self.next = first + len(found)
            if not self._follow(first, found):
                what = f"most links of the entries from {first} on are wrong; what follows was not looked at"
                self._say(ERROR, "index chain", self.entry_at(first), what)
                self.next = first
                return
            places = found["log_offset"].astype(np.int64)
            if (places[1:] < places[:-1]).any() or int(places[0]) < self._last:
                at = int(np.argmax(places[1:] < places[:-1])) + 1 if int(places[0]) >= self._last else 0
                self._say(ERROR, "index order", self.entry_at(first + at), f"entry {first + at} lies before its predecessor in the log")
                self.next = first
                return
            self._last = int(places[-1])
            yield first, found

    def _follow(self, first: int, found: NDArray[Any]) -> bool:
        """Check the links of some entries; return whether they are worth going on for."""
        hashes = found["key_hash"].astype(np.int64)
        if (hashes < 0).any():
            at = first + int(np.argmax(hashes < 0))
            self._say(ERROR, "index entry", self.entry_at(at), f"entry {at} has the negative hash {hashes[at - first]}")
        slot = np.abs(hashes) % self.slots
        numbers = np.arange(first, first + len(found), dtype=np.int32)
        order = np.argsort(slot, kind="stable")
        ordered = slot[order]
        same = ordered[1:] == ordered[:-1]
        expected = np.empty(len(found), np.int32)
        expected[order[0]] = self._newest[ordered[0]]
        expected[order[1:]] = np.where(same, numbers[order[:-1]], self._newest[ordered[1:]])
        lasts = np.append(~same, True)
        self._newest[ordered[lasts]] = numbers[order[lasts]]
        wrong = np.flatnonzero(found["previous"] != expected)
        for i in wrong[:5].tolist():
            what = f"entry {first + i} links to entry {found['previous'][i]}, the one before it in its slot is {expected[i]}"
            self._say(ERROR, "index chain", self.entry_at(first + i) + 16, what)
        if len(wrong) > 5:
            self._say(ERROR, "index chain", self.entry_at(first + int(wrong[5])) + 16, f"{len(wrong) - 5:,} more links are wrong")
        return len(wrong) < 1000 or len(wrong) < len(found) // 2

    def finish(self) -> None:
        """Compare the slots and the header with what the entries make them."""
        if not self.slots:
            return
        if self.next <= self.entries:  # it was given up on; that is reported
            self.close()
            return
        used = 0
        for at in range(0, self.slots, _CHUNK_ENTRIES):
            count = min(_CHUNK_ENTRIES, self.slots - at)
            data = self._file.pread(4 * count, INDEX_HEADER.size + 4 * at)
            said = np.frombuffer(data.ljust(4 * count, b"\0"), INT32_DTYPE)
            expected = self._newest[at : at + count]
            used += int(np.count_nonzero(expected))
            wrong = np.flatnonzero(said != expected)
            for i in wrong[:5].tolist():
                kind = "orphan slot" if not expected[i] else "index slot"
                what = f"slot {at + i} points to entry {said[i]}, the newest entry with such a hash is {expected[i] or 'none'}"
                self._say(ERROR, kind, INDEX_HEADER.size + 4 * (at + i), what)
            if len(wrong) > 5:
                self._say(ERROR, "index slot", INDEX_HEADER.size + 4 * (at + int(wrong[5])), f"{len(wrong) - 5:,} more slots are wrong")
        if used != self.used:
            self._say(WARNING, "index header", 32, f"the header counts {self.used} used slots, there are {used}")
        if self.entries and self._last != self.end:
            self._say(ERROR, "index header", 24, f"the header's last place is {self.end}, that of the last entry {self._last}")
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self.slots:
            self._file.close()


class IndexChecks:
    """All index files of a store. ``take`` gets the log's windows in order, ``finish`` reports."""

    def __init__(self, store: StoreDirectory, findings: Findings, *, in_use: bool) -> None:
        self._store = store
        self._findings = findings
        self._in_use = in_use
        self._repair = f"sprocketmq rebuild {store.root} --only index"
        self._names = [entry.name for entry in store.index_files()]
        self._files = self._open_each()
        self._file: IndexFileCheck | None = None
        self._chunks: Iterator[tuple[int, NDArray[Any]]] = iter(())
        self._waiting: tuple[IndexFileCheck, int, NDArray[Any]] | None = None
        self.entries = 0
        self._begins: int | None = None
        self._done_to = -1  # the place of the last entry
        self._missing = 0
        self._first_missing = -1
        self._missing_tags = 0
        self._missing_before = 0
        self._behind = 0

    def _open_each(self) -> Iterator[IndexFileCheck]:
        for name in self._names:
            yield IndexFileCheck(self._store.fs, f"{self._store.root}/index/{name}", self._findings, self._repair)

    def _next_entries(self) -> tuple[IndexFileCheck, int, NDArray[Any]] | None:
        """Return the next entries of all files, in order; None behind the last."""
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
        """Take the entries whose places lie before log position ``end``; those before ``start`` are dropped, as they may be millions."""
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
        """Lay the keys of a window's records beside the entries that point into it."""
        if not self._names or not len(window):
            return
        keyed = np.flatnonzero(window.sys_flags & SYSFLAG_TRANSACTION_MASK != SYSFLAG_TRANSACTION_MASK)
        topics: dict[bytes, int] = {}
        owners = np.fromiter((topics.setdefault(window.topics[i], len(topics)) for i in keyed.tolist()), np.int64, len(keyed))
        properties = [window.properties[i] for i in keyed.tolist()]
        expected = entries_of_topics(list(topics), owners, properties, window.log_offsets[keyed], window.times_ms[keyed])
        start = int(window.log_offsets[0])
        taken = self._entries_between(start, window.end)
        # Place and hash in one number; a window is far shorter than 2^32.
        wanted = ((expected.physicals - start) << 31) | expected.hashes.astype(np.int64)
        done = 0
        met = np.zeros(len(wanted), bool)
        for file, first, found in taken:
            places = found["log_offset"].astype(np.int64)
            skip = int(np.searchsorted(places, start))  # of records before this window, which were lost or have expired
            numbers, places = first + skip, places[skip:] - start
            actual = (places << 31) | found["key_hash"][skip:].astype(np.int64)
            if np.array_equal(actual, wanted[done : done + len(actual)]):
                met[done : done + len(actual)] = True
                self._check_times(file, numbers, found[skip:], expected.times_ms[done : done + len(actual)])
                done += len(actual)
                continue
            wrong = np.flatnonzero(~np.isin(actual, wanted))
            for i in wrong[:5].tolist():
                known = np.isin(places[i], expected.physicals - start)
                why = "belongs to no key of the message there" if known else "points to where no message with keys is"
                what = f"entry {numbers + i} (hash {found['key_hash'][skip + i]}, place {places[i] + start}) {why}"
                self._findings.add(ERROR, "index entry", file.path, file.entry_at(numbers + i), what, self._repair)
            if len(wrong) > 5:
                what = f"{len(wrong) - 5:,} more entries are wrong"
                self._findings.add(ERROR, "index entry", file.path, file.entry_at(numbers + int(wrong[5])), what, self._repair)
            met |= np.isin(wanted, actual)
        if not met.all():
            tags = [_only_tag(text) for text in properties]
            tagged = entries_of_topics(list(topics), owners, tags, window.log_offsets[keyed], window.times_ms[keyed])
            of_tags = np.isin(wanted[~met], ((tagged.physicals - start) << 31) | tagged.hashes.astype(np.int64))
            self._count_missing(expected.physicals[~met], of_tags)

    def _check_times(self, file: IndexFileCheck, first: int, found: NDArray[Any], times_ms: _Longs) -> None:
        seconds = np.clip((times_ms - file.begin_ms) // 1000, 0, 0x7FFFFFFF)
        # The first entry counts from whatever its header was filled with before it, and is read as if it were 0.
        wrong = np.flatnonzero((found["seconds"] != seconds) & (np.arange(first, first + len(found)) > 1))
        if len(wrong):
            i = int(wrong[0])
            what = f"{len(wrong):,} entries have another time than their message, the first is entry {first + i}"
            self._findings.add(ERROR, "index time", file.path, file.entry_at(first + i) + 12, what, self._repair)

    def _count_missing(self, places: _Longs, of_tags: NDArray[np.bool_]) -> None:
        before = places < self._begins if self._begins is not None else np.zeros(len(places), bool)
        behind = (places > self._done_to) | ((places == self._done_to) & ~of_tags) if self._waiting is None else np.zeros(len(places), bool)
        self._missing_tags += int((of_tags & ~before & ~behind).sum())
        inside = ~before & ~behind & ~of_tags
        self._missing_before += int(before.sum())
        self._behind += int((behind & ~before).sum())
        if inside.any():
            self._missing += int(inside.sum())
            if self._first_missing < 0:
                self._first_missing = int(places[inside][0])

    def finish(self, log_end: int) -> None:
        """Report what is missing and what points behind the log's end."""
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
