"""One file of the key index: reading it, adding entries, bringing header and slots to disk. The format is in ``index_format``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sprocketmq.protocol.layout import INDEX_ENTRY, INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES, INDEX_SLOT
from sprocketmq.storage.fs import File, FileSystem, data_places
from sprocketmq.storage.index.index_format import PAGE_SLOTS, FileShape, IndexHeader, elapsed_seconds
from sprocketmq.storage.index.numpy_loading import arrays_loaded

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries

# Returns the store time (ms) of the record at a log offset, None when it is not known.
TimeAt = Callable[[int], int | None]
_unpack_slot = INDEX_SLOT.unpack_from
_pack_slot = INDEX_SLOT.pack_into
_pack_entry = INDEX_ENTRY.pack

# Entries read at once: 1.3 MB.
BLOCK_ENTRIES = 1 << 16
_SLOT_PIECE_BYTES = 1 << 20
_MAX_PAGES_AT_ONCE = 256  # changed pages next to each other are written in pieces of at most 1 MiB


class IndexFile:
    """One file. Methods raise OSError.

    While entries are added the file is open and ``slots`` has the slots as they should be on disk. ``doubtful``: slots on disk may point to
    entries that the header does not count. ``unsynced``: the disk may lack some of what was written. ``last_entry`` is as in the file.
    """

    __slots__ = ("_changed_pages", "_file", "_fs", "doubtful", "header", "last_entry", "name", "path", "shape", "slots", "unsynced")

    def __init__(self, fs: FileSystem, directory: str, name: str, shape: FileShape, header: IndexHeader) -> None:
        self._fs = fs
        self.name = name
        self.path = f"{directory}/{name}"
        self.shape = shape
        self.header = header
        self.last_entry = b""
        self.slots = bytearray()
        self._changed_pages = bytearray()  # 1 for each page of ``slots`` that differs from the disk
        self._file: File | None = None
        self.doubtful = False
        self.unsynced = False

    @property
    def full(self) -> bool:
        return self.header.next_entry >= self.shape.entries

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return self.shape.entries - self.header.next_entry

    # --- reading ---

    @contextmanager
    def _opened(self, *, read_only: bool = False) -> Iterator[File]:
        if self._file is not None:
            yield self._file
            return
        opened = self._fs.open(self.path, read_only=read_only)
        try:
            yield opened
        finally:
            opened.close()

    def read(self, file_pos: int, length: int) -> bytes:
        """Return bytes of the file, zero-padded past its end."""
        with self._opened(read_only=True) as opened:
            return opened.pread(length, file_pos).ljust(length, b"\0")

    def read_header(self) -> IndexHeader:
        """Return the header on disk."""
        return IndexHeader(*INDEX_HEADER.unpack(self.read(0, INDEX_HEADER_BYTES)))

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return key hash, log offset, seconds and previous entry of an entry."""
        return INDEX_ENTRY.unpack(self.read(self.shape.entry_pos(number), INDEX_ENTRY_BYTES))

    def read_last_entry(self) -> bytes:
        """Return the last entry that the header counts, as in the file."""
        return self.read(self.shape.entry_pos(self.header.next_entry - 1), INDEX_ENTRY_BYTES)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the entries in blocks, with the number of each block's first entry."""
        for first in range(1, self.header.next_entry, BLOCK_ENTRIES):
            stop = min(first + BLOCK_ENTRIES, self.header.next_entry)
            yield first, self.read(self.shape.entry_pos(first), (stop - first) * INDEX_ENTRY_BYTES)

    def first_entry_from(self, log_offset: int) -> int:
        """Return the number of the first entry whose record is at or after a log offset."""
        low, high = 1, self.header.next_entry
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def read_slots(self) -> bytearray:
        """Return the slots on disk. Holes, which most slots of a file with few entries are in, are not read."""
        slots = bytearray(4 * self.shape.hash_slots)
        end = self.shape.entries_pos
        with self._opened(read_only=True) as opened:
            for file_pos in data_places(opened, INDEX_HEADER_BYTES, end, _SLOT_PIECE_BYTES):
                data = opened.pread(min(_SLOT_PIECE_BYTES, end - file_pos), file_pos)
                slots[file_pos - INDEX_HEADER_BYTES : file_pos - INDEX_HEADER_BYTES + len(data)] = data
        return slots

    # --- adding entries ---

    def create(self) -> None:
        """Make the file on disk, without entries and ready to take some. When that fails it is removed again."""
        self._file = self._fs.open(self.path, create=True)
        try:
            self._file.truncate(self.shape.file_bytes)
        except OSError:
            self.remove()
            raise
        self.slots = bytearray(4 * self.shape.hash_slots)  # the system allocates the memory page by page as slots are used
        self._changed_pages = bytearray(self.shape.page_count)

    def prepare(self) -> None:
        """Open the file and load its slots, so that it can take entries."""
        if self._file is None:
            self._file = self._fs.open(self.path)
        if not self.slots:
            self.load_slots()

    def load_slots(self) -> None:
        """Load the slots into memory; when they do not fit the header, compute them and their number from the entries."""
        slots = self.read_slots()
        self._changed_pages = bytearray(self.shape.page_count)
        if self.doubtful or arrays_loaded():
            from sprocketmq.storage.index import index_arrays

            if index_arrays.used_slots(slots, self.header.next_entry) != self.header.used_slots:
                slots = bytearray(4 * self.shape.hash_slots)
                for first, block in self.blocks():
                    index_arrays.fill_slots(slots, block, first)
                self.header = self.header._replace(used_slots=index_arrays.used_slots(slots, self.header.next_entry))
                self._changed_pages = bytearray(b"\x01") * self.shape.page_count
                self.unsynced = True
            self.doubtful = False
        self.slots = slots

    def drop_slots(self) -> None:
        """Drop the slots in memory: they point to entries that are not in the file."""
        self.slots = bytearray()
        self.doubtful = True

    def add(self, entries: "KeyEntries") -> None:
        """Append entries, for which there must be room."""
        from sprocketmq.storage.index import index_arrays

        hashes, log_offsets, times_ms = entries
        begin_ms, end_ms = int(times_ms[0]), int(times_ms[-1])
        seconds = self.header.first_seconds(begin_ms)
        data, used = index_arrays.link(self.slots, self._changed_pages, self.header, seconds, hashes, log_offsets, times_ms)
        self._append(data, used, begin_ms, end_ms)

    def add_plainly(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Append entries given as key hash, log offset and store time, without numpy. There must be room."""
        header, slots, pages, hash_slots = self.header, self.slots, self._changed_pages, self.shape.hash_slots
        first = header.next_entry
        begin_ms = header.begin_ms if first > 1 else entries[0][2]
        data = []
        used = 0
        for number, (hash_, log_offset, time_ms) in enumerate(entries, first):
            slot_pos = 4 * (hash_ % hash_slots)
            previous = _unpack_slot(slots, slot_pos)[0]
            used += not previous
            _pack_slot(slots, slot_pos, number)
            pages[slot_pos // (4 * PAGE_SLOTS)] = 1
            seconds = header.first_seconds(time_ms) if number == first else elapsed_seconds(time_ms - begin_ms)
            data.append(_pack_entry(hash_, log_offset, seconds, previous))
        self._append(b"".join(data), used, entries[0][2], entries[-1][2])

    def _append(self, data: bytes, used_slots: int, begin_ms: int, end_ms: int) -> None:
        """Write new entries, whose slots are set already, and count them in the header."""
        header = self.header
        assert self._file is not None
        self.unsynced = True
        self._file.pwrite(data, self.shape.entry_pos(header.next_entry))
        first, last = INDEX_ENTRY.unpack_from(data), INDEX_ENTRY.unpack(data[-INDEX_ENTRY_BYTES:])
        self.last_entry = data[-INDEX_ENTRY_BYTES:]
        new = header.next_entry == 1
        self.header = IndexHeader(
            begin_ms if new else header.begin_ms,
            end_ms,
            first[1] if new else header.begin_log_offset,
            last[1],
            header.used_slots + used_slots,
            header.next_entry + len(data) // INDEX_ENTRY_BYTES,
        )

    # --- to disk ---

    def write_out(self) -> None:
        """Write the header and the slots that changed."""
        if self.doubtful:
            self.load_slots()
        page_bytes = 4 * PAGE_SLOTS
        with self._opened() as opened:
            for first, stop in _runs_of_ones(self._changed_pages):
                opened.pwrite(self.slots[first * page_bytes : stop * page_bytes], INDEX_HEADER_BYTES + first * page_bytes)
            opened.pwrite(INDEX_HEADER.pack(*self.header), 0)
        self._changed_pages = bytearray(len(self._changed_pages))

    def sync(self) -> None:
        """Wait until the disk has what was written. Safe beside a thread that adds entries."""
        opened = self._fs.open(self.path)
        try:
            opened.fdatasync()
        finally:
            opened.close()

    def cut(self, next_entry: int, time_at: TimeAt) -> None:
        """Drop the entries from number ``next_entry`` (at least 2) on.

        ``time_at`` gives the store time of the record at a log offset if it is known: entries have whole seconds only.
        """
        self.last_entry = self.read(self.shape.entry_pos(next_entry - 1), INDEX_ENTRY_BYTES)
        _, log_offset, seconds, _ = INDEX_ENTRY.unpack(self.last_entry)
        end_ms = time_at(log_offset)
        if end_ms is None:
            end_ms = min(self.header.end_ms, self.header.begin_ms + seconds * 1000)
        self.header = self.header._replace(end_ms=end_ms, end_log_offset=log_offset, next_entry=next_entry)
        self.drop_slots()
        self.unsynced = True
        self.clear_rest()

    def clear_rest(self) -> None:
        """Fill the room after the last entry with zeros."""
        with self._opened() as opened:
            opened.truncate(self.shape.entry_pos(self.header.next_entry))
            opened.truncate(self.shape.file_bytes)

    def close(self) -> None:
        """Close the file and release the slots' memory without writing anything."""
        self.slots = bytearray()
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Close the file and remove it from disk, where it may be missing."""
        self.close()
        with suppress(FileNotFoundError):
            self._fs.unlink(self.path)


def _runs_of_ones(pages: bytearray) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of ones, at most ``_MAX_PAGES_AT_ONCE`` long."""
    begin = pages.find(1)
    while begin >= 0:
        end = pages.find(0, begin, begin + _MAX_PAGES_AT_ONCE)
        if end < 0:
            end = min(begin + _MAX_PAGES_AT_ONCE, len(pages))
        yield begin, end
        begin = pages.find(1, end)
