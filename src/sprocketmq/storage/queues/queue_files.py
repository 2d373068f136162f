"""The common base of plain and batch queues: a growing sequence of units in files of equal length, with the newest units in memory.

Units are numbered; unit k is at byte ``k * unit_bytes`` of the queue's stream of files. Everything here is derived from the commit log.
New units collect in memory, where readers see them at once, and are written to the file in larger writes; a killed process loses only
units that recovery derives again.
"""

import contextlib
from collections.abc import Callable

from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.log.segments import FilePool, segment_entries, segment_name
from sprocketmq.storage.snapshot import QueueState

# Bytes of units that may wait in memory before the appending thread writes them out: 800 plain units, so the write costs each message a
# few ns.
TAIL_LIMIT_BYTES = 16_000


class UnitQueue:
    """One queue. ``min_offset <= visible <= committed <= next``, all queue offsets.

    Readers see [min_offset, visible), the log has everything before ``committed``, the next message gets ``next``. ``tail`` is ``(number of
    its first unit, units)``: the units that may not be in the files yet. Only the owning thread changes it, and it replaces the pair in one
    step, so the flushing thread always reads a consistent pair. ``written`` is the unit number the files reach, ``synced`` the one known to
    be on the disk. A queue with a long topic name or with batch units is ``unusual``: the fast path of appending does not handle it.
    """

    __slots__ = (
        "_directory",
        "_file_bytes",
        "_fs",
        "_named",
        "_pool",
        "bad",
        "committed",
        "min_offset",
        "next",
        "overhead",
        "queue_id",
        "state",
        "synced",
        "tail",
        "topic",
        "topic_field",
        "unusual",
        "visible",
        "written",
    )

    unit_bytes: int

    def __init__(self, fs: FileSystem, pool: FilePool, directory: str, topic: str, queue_id: int, file_bytes: int) -> None:
        self._fs = fs
        self._pool = pool
        self._directory = directory
        self._file_bytes = file_bytes
        self.topic = topic
        self.queue_id = queue_id
        name = topic.encode()
        # A topic over 127 bytes needs the second record version, whose length field is two bytes.
        self.topic_field = (bytes((len(name),)) if len(name) <= 127 else len(name).to_bytes(2, "big")) + name
        self.overhead = 90 + len(self.topic_field)
        self.unusual = len(name) > 127
        self._named = -1  # start of the last file whose directory entry is on the disk
        self.bad: frozenset[int] = frozenset()
        self.state: QueueState | None = None
        self.min_offset = self.next = self.committed = self.visible = 0
        self.written = self.synced = 0
        self.tail: tuple[int, bytearray] = (0, bytearray())

    @property
    def end_unit(self) -> int:
        """The number of the first unit that is not committed."""
        raise NotImplementedError("each kind of queue maps its offsets to units")

    # --- the owning thread ---

    def commit(self) -> None:
        """Commit the staged units, and write them out when TAIL_LIMIT_BYTES have collected in memory."""
        self.committed = self.next
        if len(self.tail[1]) >= TAIL_LIMIT_BYTES:
            with contextlib.suppress(OSError):  # the log has the messages; the units wait in memory for a retry
                self.write_out()

    def write_out(self) -> None:
        """Write the committed units to the files and drop them from memory. Raises OSError; the units then stay in memory."""
        start, tail = self.tail
        end = self.end_unit
        begin = max(self.written, start)
        if end > begin:
            self._write(begin, self._slice(tail, begin - start, end - start), self._pooled)
        self.written = end
        self.tail = (end, tail[(end - start) * self.unit_bytes :])

    def read_units(self, start: int, stop: int) -> bytes | bytearray:
        """Return the units ``[start, stop)``, which must be there; zeros where a file is missing."""
        tail_start, tail = self.tail
        if start >= tail_start:
            return self._slice(tail, start - tail_start, stop - tail_start)
        data = self._read(start * self.unit_bytes, min(stop, tail_start) * self.unit_bytes)
        if stop > tail_start:
            data += tail[: (stop - tail_start) * self.unit_bytes]
        return data

    def file_part(self, start: int, stop: int) -> tuple[File, int, int] | None:
        """Return the file that holds unit ``start``, and the part of it with units up to ``stop``; None when they are in memory or gone."""
        stop = min(stop, self.tail[0])
        if start >= stop:
            return None
        begin = start * self.unit_bytes
        file_start = begin - begin % self._file_bytes
        try:
            file = self._pool.get(self._path(file_start))
        except OSError:
            return None
        return file, begin - file_start, min(stop * self.unit_bytes - file_start, self._file_bytes)

    def rewrite(self, number: int, units: bytes) -> None:
        """Replace damaged units. Raises OSError."""
        tail_start, tail = self.tail
        in_files = max(0, min(len(units) // self.unit_bytes, tail_start - number)) * self.unit_bytes
        if in_files:
            self._write(number, units[:in_files], self._pooled)
        if in_files < len(units):
            tail_pos = (max(number, tail_start) - tail_start) * self.unit_bytes
            tail[tail_pos : tail_pos + len(units) - in_files] = units[in_files:]
        self.synced = min(self.synced, number)

    def _slice(self, units: bytearray, start: int, stop: int) -> bytearray:
        return units[start * self.unit_bytes : stop * self.unit_bytes]

    def _read(self, begin: int, end: int) -> bytes:
        parts = []
        while begin < end:
            file_start = begin - begin % self._file_bytes
            stop = min(end, file_start + self._file_bytes)
            try:
                data = self._pool.get(self._path(file_start)).pread(stop - begin, begin - file_start)
            except OSError:
                data = b""
            parts.append(data if len(data) == stop - begin else data.ljust(stop - begin, b"\0"))
            begin = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _write(self, number: int, units: bytes | bytearray, open_file: Callable[[str], File]) -> None:
        stream_pos = number * self.unit_bytes
        done = 0
        while done < len(units):
            file_start = (stream_pos + done) - (stream_pos + done) % self._file_bytes
            room = file_start + self._file_bytes - (stream_pos + done)
            open_file(self._path(file_start)).pwrite(units[done : done + room], stream_pos + done - file_start)
            done += room

    def _path(self, file_start: int) -> str:
        return f"{self._directory}/{segment_name(file_start)}"

    def _pooled(self, path: str) -> File:
        try:
            return self._pool.get(path, size=self._file_bytes)
        except FileNotFoundError:
            self._fs.make_dirs(self._directory)
            return self._pool.get(path, size=self._file_bytes)

    def files_before(self, number: int) -> list[str]:
        """Return the paths of the files that hold only units before ``number``, oldest first and never the one written to."""
        end = min(number, self.end_unit - 1) * self.unit_bytes
        if end < self._file_bytes:
            return []  # avoids listing the directories of thousands of short queues
        return [self._path(start) for start in sorted(self.files()) if start + self._file_bytes <= end]

    def drop_files(self, number: int) -> list[str]:
        """Remove the files that hold only units before ``number``, never the one written to, and return their paths. Raises OSError."""
        dropped = self.files_before(number)
        for path in dropped:
            self._pool.drop(path)
            self._fs.unlink(path)
        return dropped

    # --- recovery ---

    def files(self) -> dict[int, int]:
        """Return ``{start byte: length}`` of the files on disk."""
        return {start: entry.size for start, entry in segment_entries(self._fs.list(self._directory))}

    def has_files(self, first: int, end: int) -> bool:
        """Return whether all files of units ``[first, end)`` exist with their full length."""
        stream_pos = first * self.unit_bytes
        needed = range(stream_pos - stream_pos % self._file_bytes, end * self.unit_bytes, self._file_bytes)
        if len(needed) == 1:  # the common case; listing the directory would take longer
            try:
                return self._pool.get(self._path(needed[0])).size() == self._file_bytes
            except OSError:
                return False
        files = self.files()
        return all(files.get(start) == self._file_bytes for start in needed)

    def cut(self) -> None:
        """Zero everything in the files after the last committed unit, so that no reader takes stale data for units.

        All units must have been written out, except those a full disk did not take. Raises OSError.
        """
        end = self.end_unit * self.unit_bytes
        for start, size in self.files().items():
            path = self._path(start)
            if start >= end and start > 0:
                self._pool.drop(path)
                self._fs.unlink(path)
            elif start + self._file_bytes > end or size != self._file_bytes:
                file = self._fs.open(path)
                try:
                    if size > self._file_bytes or size > end - start:
                        file.truncate(min(max(end - start, 0), self._file_bytes))
                    file.truncate(self._file_bytes)
                finally:
                    file.close()

    # --- the flushing thread ---

    @property
    def dirty(self) -> bool:
        """Whether there is anything the disk does not have yet."""
        state = self.state
        return state is None or self.committed != state.next or self.end_unit != self.synced or self.min_offset != state.min_offset

    def sync(self, *, wait: bool = True) -> QueueState:
        """Bring the units committed at the call to the disk and return what is there then. Raises OSError.

        Without ``wait`` the units only reach the page cache, and the caller syncs all queues at once. Opens its own descriptors.
        If the owning thread writes the same units meanwhile, both write the same bytes.
        """
        if self.state is not None and not self.dirty:
            return self.state
        end = self.end_unit
        start, tail = self.tail
        begin = max(self.written, start)
        # The owning thread may have advanced both since ``end`` was read: then nothing is left to write here.
        units = bytes(tail[(begin - start) * self.unit_bytes : max(end - start, 0) * self.unit_bytes])
        end = begin + len(units) // self.unit_bytes
        first = min(self.synced, end) * self.unit_bytes
        opened: dict[str, File] = {}

        def open_file(path: str) -> File:
            if path not in opened:
                try:
                    file = self._fs.open(path, create=True)
                except FileNotFoundError:
                    self._fs.make_dirs(self._directory)
                    file = self._fs.open(path, create=True)
                opened[path] = file
                if file.size() < self._file_bytes:
                    file.truncate(self._file_bytes)
            return opened[path]

        last = b""
        try:
            self._write(begin, units, open_file)
            for file_start in range(first - first % self._file_bytes, end * self.unit_bytes, self._file_bytes):
                if wait:
                    open_file(self._path(file_start)).fdatasync()
            if self._has_units(end):
                stream_pos = (end - 1) * self.unit_bytes
                file_start = stream_pos - stream_pos % self._file_bytes
                last = units[-self.unit_bytes :] or open_file(self._path(file_start)).pread(self.unit_bytes, stream_pos - file_start)
                if wait and file_start > self._named:
                    self._fs.fsync_dir(self._directory)
                    self._named = file_start
        finally:
            for file in opened.values():
                file.close()
        self.synced = max(self.synced, end)
        self.state = self._state_at(end, last)
        return self.state

    def _has_units(self, end: int) -> bool:
        raise NotImplementedError("each kind of queue knows where its units begin")

    def _state_at(self, end: int, last: bytes) -> QueueState:
        raise NotImplementedError("each kind of queue describes its last unit")
