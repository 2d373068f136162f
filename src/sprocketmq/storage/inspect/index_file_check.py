"""Checking one key index file in itself: header, order, chains and slots. Loads numpy.

Chains follow from the entries alone: each entry must link to the previous entry of its slot, and each slot must name its last entry. One
pass over the entries, with an array of the last entry of every slot so far, checks both.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.layout import INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.findings import ERROR, WARNING, Findings
from sprocketmq.storage.layout_arrays import INDEX_ENTRY_DTYPE, INT32_DTYPE

# Far above the reference's five million; a file that claims more is not believed.
MAX_SLOTS = 100_000_000
_CHUNK_ENTRIES = 1 << 17


class IndexFileCheck:
    """One index file, read once from its first entry to its last, during which its chains are checked.

    Iterate over ``chunks``, then call ``finish``: after that ``findings`` has what is wrong in the file itself. Without a given number of
    hash ``slots``, it is found from the content. While a store is ``in_use`` its slots may point to entries that are newer than the header
    was when it was read; these are left out. Raises OSError.
    """

    def __init__(
        self, fs: FileSystem, path: str, findings: Findings, repair: str, *, slots: int | None = None, in_use: bool = False
    ) -> None:
        self.path = path
        self._in_use = in_use
        self._findings = findings
        self._repair = repair
        self.next = 1
        self.entries = 0
        self.slots = 0
        with FileView(fs, self.path) as view:
            size = view.size
            header = view.read(0, INDEX_HEADER_BYTES)
            slots = (slots or hash_slots_of(view)) if len(header) == INDEX_HEADER_BYTES else None
        if len(header) < INDEX_HEADER_BYTES:
            self._report(ERROR, "index header", size, f"the file has {size} bytes, too few for a header")
            return
        self.begin_ms, self.end_ms, self.begin, self.end, self.used, count = INDEX_HEADER.unpack(header)
        if slots is None and 0 <= count <= 1:
            return  # a new file without entries, whose number of slots nothing in it states
        if slots is None or slots > MAX_SLOTS:
            self._report(ERROR, "index header", 0, "no number of hash slots fits the file: its header or its entries are damaged")
            return
        capacity = (size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES
        if not 0 <= count <= capacity:
            self._report(ERROR, "index header", 36, f"the next entry's number {count} is impossible, the file has room for {capacity}")
            count = min(max(count, 0), capacity)
        self.slots = slots
        self.entries = max(count - 1, 0)
        self._newest = np.zeros(slots, np.int32)
        self._file: File = fs.open(self.path, read_only=True)
        self._last = self.begin

    def _report(self, severity: str, kind: str, file_pos: int, what: str) -> None:
        self._findings.add(severity, kind, self.path, file_pos, what, self._repair)

    def entry_at(self, number: int) -> int:
        """Return the file position of an entry."""
        return INDEX_HEADER_BYTES + 4 * self.slots + INDEX_ENTRY_BYTES * number

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the entries in log order, many at a time, with the number of the first; stop at an entry that cannot be right."""
        while self.next <= self.entries:
            first = self.next
            count = min(_CHUNK_ENTRIES, self.entries + 1 - first)
            data = self._file.pread(count * INDEX_ENTRY_BYTES, self.entry_at(first))
            found = np.frombuffer(data[: len(data) - len(data) % INDEX_ENTRY_BYTES], INDEX_ENTRY_DTYPE)
            if not len(found):
                return
            self.next = first + len(found)
            if not self._follow(first, found):
                what = f"most links of the entries from {first} on are wrong; what follows was not looked at"
                self._report(ERROR, "index chain", self.entry_at(first), what)
                self.next = first
                return
            log_offsets = found["log_offset"].astype(np.int64)
            back = log_offsets[1:] < log_offsets[:-1]
            if back.any() or int(log_offsets[0]) < self._last:
                number = first + (int(np.argmax(back)) + 1 if int(log_offsets[0]) >= self._last else 0)
                self._report(ERROR, "index order", self.entry_at(number), f"entry {number} lies before its predecessor in the log")
                self.next = first
                return
            self._last = int(log_offsets[-1])
            yield first, found

    def _follow(self, first: int, found: NDArray[Any]) -> bool:
        """Check the links of some entries; return False when most of them are wrong, so that going on is useless."""
        hashes = found["key_hash"].astype(np.int64)
        if (hashes < 0).any():
            number = first + int(np.argmax(hashes < 0))
            self._report(ERROR, "index entry", self.entry_at(number), f"entry {number} has the negative hash {hashes[number - first]}")
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
            self._report(ERROR, "index chain", self.entry_at(first + i) + 16, what)
        if len(wrong) > 5:
            self._report(ERROR, "index chain", self.entry_at(first + int(wrong[5])) + 16, f"{len(wrong) - 5:,} more links are wrong")
        return len(wrong) < 1000 or len(wrong) < len(found) // 2

    def finish(self) -> None:
        """Compare the slots and the header with the entries."""
        if not self.slots:
            return
        if self.next <= self.entries:  # an entry that cannot be right, which is reported already
            self.close()
            return
        used = newer = 0
        for first in range(0, self.slots, _CHUNK_ENTRIES):
            count = min(_CHUNK_ENTRIES, self.slots - first)
            data = self._file.pread(4 * count, INDEX_HEADER_BYTES + 4 * first)
            said = np.frombuffer(data.ljust(4 * count, b"\0"), INT32_DTYPE)
            expected = self._newest[first : first + count]
            used += int(np.count_nonzero(expected))
            unequal = said != expected
            if self._in_use:
                since = said > self.entries
                newer += int(np.count_nonzero(since))
                unequal &= ~since
            wrong = np.flatnonzero(unequal)
            for i in wrong[:5].tolist():
                kind = "orphan slot" if not expected[i] else "index slot"
                what = f"slot {first + i} points to entry {said[i]}, the newest entry with such a hash is {expected[i] or 'none'}"
                self._report(ERROR, kind, INDEX_HEADER_BYTES + 4 * (first + i), what)
            if len(wrong) > 5:
                file_pos = INDEX_HEADER_BYTES + 4 * (first + int(wrong[5]))
                self._report(ERROR, "index slot", file_pos, f"{len(wrong) - 5:,} more slots are wrong")
        if used != self.used and not newer:
            self._report(WARNING, "index header", 32, f"the header counts {self.used} used slots, there are {used}")
        if self.entries and self._last != self.end:
            self._report(ERROR, "index header", 24, f"the header's last log offset is {self.end}, that of the last entry {self._last}")
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self.slots:
            self._file.close()
