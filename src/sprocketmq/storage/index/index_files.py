"""The files of the index in log order: adding entries to the newest, starting a new one when it is full, dropping old and wrong ones."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sprocketmq.clock import Clock
from sprocketmq.protocol.layout import INDEX_HEADER
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.index.index_file import IndexFile, TimeAt
from sprocketmq.storage.index.index_format import FileShape, IndexHeader, next_name
from sprocketmq.storage.index.index_state import FileState, IndexState

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries


class IndexFiles:
    """The files, the oldest first. Methods raise OSError; the caller lets one thread at a time in.

    ``newest_record`` is the log offset of the newest indexed record and how many entries it has: when it is added again, it gets only the
    missing ones. ``names_changed``: the directory has to be synced.
    """

    def __init__(self, fs: FileSystem, directory: str, shape: FileShape, clock: Clock) -> None:
        self._fs = fs
        self._clock = clock
        self.directory = directory
        self.shape = shape
        self.files: list[IndexFile] = []
        self.newest_record = (-1, 0)
        self.names_changed = False

    def open(self, files: list[IndexFile], shape: FileShape, found: Collection[str]) -> None:
        """Start with these files, which have this shape; all other files ``found`` in the directory are removed."""
        self.files = files
        self.shape = shape
        kept = {file.name for file in files}
        for name in found:
            if name not in kept:
                self._fs.unlink(f"{self.directory}/{name}")
                self.names_changed = True
        self.find_newest_record()

    def find_newest_record(self) -> None:
        """Read ``newest_record`` from the files."""
        newest, entries = -1, 0
        for file in reversed(self.files):
            for number in range(file.header.next_entry - 1, 0, -1):
                log_offset = file.entry(number)[1]
                if entries and log_offset != newest:
                    self.newest_record = newest, entries
                    return
                newest = log_offset
                entries += 1
        self.newest_record = newest, entries

    # --- adding ---

    def add(self, entries: "KeyEntries") -> None:
        """Add entries in log order, except those that are there already."""
        from sprocketmq.storage.index import index_arrays

        done, self.newest_record = index_arrays.known(entries.log_offsets, self.newest_record)
        while done < len(entries.log_offsets):
            file = self._writable()
            part = slice(done, done + file.room)
            hashes, log_offsets, times_ms = entries
            file.add(entries._replace(hashes=hashes[part], log_offsets=log_offsets[part], times_ms=times_ms[part]))
            done = part.stop

    def add_plainly(self, entries: Sequence[tuple[int, int, int]], newest_record: tuple[int, int]) -> None:
        """Add entries given as key hash, log offset and store time, without numpy; ``newest_record`` is the newest with them."""
        done = 0
        while done < len(entries):
            file = self._writable()
            part = entries[done : done + file.room]
            file.add_plainly(part)
            done += len(part)
        self.newest_record = newest_record

    def _writable(self) -> IndexFile:
        """Return the newest file, or a new one when it is full, ready to take entries."""
        if not self.files:
            self._start_file(next_name("", self._clock.time_ms()), IndexHeader())
        elif self.files[-1].full:
            full = self.files[-1]
            full.write_out()
            full.close()
            self._start_file(next_name(full.name, self._clock.time_ms()), full.header.successor())
        file = self.files[-1]
        file.prepare()
        return file

    def begin(self, name: str, before: IndexHeader | None) -> None:
        """Make the first file of an index that has none, with this name; ``before`` is the header of the full file it follows.

        So several indexes can make the files of one sequence side by side.
        """
        assert not self.files
        self._start_file(name, IndexHeader() if before is None else before.successor())

    def _start_file(self, name: str, header: IndexHeader) -> None:
        self._fs.make_dirs(self.directory)
        file = IndexFile(self._fs, self.directory, name, self.shape, header)
        self.names_changed = True
        file.create()
        self.files.append(file)

    # --- dropping ---

    def cut(self, log_end: int, time_at: TimeAt) -> None:
        """Drop the entries of records at or after ``log_end``; ``time_at`` knows the store times of those before."""
        while self.files and self.files[-1].header.end_log_offset >= log_end:
            file = self.files[-1]
            next_entry = file.first_entry_from(log_end)
            if next_entry == 1:
                self._remove(self.files.pop())
            else:
                file.cut(next_entry, time_at)
        self.find_newest_record()

    def forget_failed_writes(self) -> None:
        """Return to the state on disk after a failed write: slots in memory may point to entries that were never written."""
        if self.files:
            self.files[-1].drop_slots()
        self.find_newest_record()

    def expire(self, log_min: int) -> list[str]:
        """Remove the files whose records have all left the log, never the newest; return their paths."""
        removed = []
        while len(self.files) > 1 and self.files[0].header.end_log_offset < log_min:
            file = self.files.pop(0)
            self._remove(file)
            removed.append(file.path)
        return removed

    def _remove(self, file: IndexFile) -> None:
        self.names_changed = True
        file.remove()

    def close(self) -> None:
        """Close the files without writing anything."""
        for file in self.files:
            file.close()
        self.files = []

    # --- content ---

    def state(self, indexed_end: int) -> IndexState:
        """Return the state of an index whose files have the entries of every record before ``indexed_end``."""
        files = tuple(
            FileState(file.name, INDEX_HEADER.pack(*file.header), file.last_entry) for file in self.files if file.header.next_entry > 1
        )
        return IndexState(indexed_end, self.shape.hash_slots, self.shape.entries, files)

    @property
    def newest(self) -> tuple[int, int]:
        """Store time (ms) and log offset of the newest indexed record, zeros when there is none."""
        return (self.files[-1].header.end_ms, self.files[-1].header.end_log_offset) if self.files else (0, 0)

    @property
    def fill(self) -> tuple[int, int]:
        """The entries of all files, and how many these have room for."""
        files = list(self.files)  # the index thread adds files
        return sum(file.header.next_entry - 1 for file in files), len(files) * (self.shape.entries - 1)

    @property
    def full_until_ms(self) -> int:
        """The store time (ms) of the last entry of the newest full file, 0 without one: entries up to then no longer change."""
        return next((file.header.end_ms for file in reversed(self.files) if file.full), 0)
