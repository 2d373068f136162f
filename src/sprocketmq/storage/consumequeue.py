"""The ConsumeQueue: per topic and queue one array of 20-byte units, so that a queue offset finds its record in O(1).

::

    0                     8          12                  20
    +---------------------+----------+--------------------+
    | offset of the record| its size | tag code           |    unit of queue offset q: byte 20 q of the queue's stream of files
    | i64                 | i32      | i64                |
    +---------------------+----------+--------------------+

Everything here follows from the commit log. New units gather in memory, where readers see them at once, and go to the file in larger
writes; a killed process loses only what recovery derives again.
"""

from collections.abc import Callable
from struct import Struct

from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.segments import FilePool, segment_entries, segment_name
from sprocketmq.storage.snapshot import QueueState

UNIT = Struct(">qiq")
UNIT_BYTES = UNIT.size
# A unit without a record, as the reference fills the part of a first file that lies before the queue's first offset.
FILLER_SIZE = 0x7FFFFFFF
FILLER = UNIT.pack(0, FILLER_SIZE, 0)

# Units that may wait in memory before the appending thread writes them out: 800, so the write costs each message a few ns.
TAIL_LIMIT_BYTES = 16_000


class ConsumeQueue:
    """One queue. ``min_offset <= committed <= next``: readers see [min_offset, committed), the next message gets ``next``.

    ``tail`` is ``(queue offset of its first unit, units)``: what may not be in the files yet. The owning thread alone changes it;
    replacing the pair in one step lets the flushing thread take a consistent look at any time. ``written`` is how far the files go,
    ``synced`` how far they are known to be on the disk. ``bad`` are queue offsets whose record is known to be damaged.
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
        "written",
    )

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
        self._named = -1  # start of the last file whose name is on the disk
        self.bad: frozenset[int] = frozenset()
        self.state: QueueState | None = None
        self.start_at(0)

    def start_at(self, offset: int, *, min_offset: int | None = None) -> None:
        """Let the queue end at ``offset``, all units before it being in the files; ``min_offset`` defaults to it (an empty queue)."""
        self.next = self.committed = self.written = self.synced = offset
        self.min_offset = offset if min_offset is None else min_offset
        self.tail: tuple[int, bytearray] = (offset, bytearray())

    def begin_at(self, offset: int) -> None:
        """Start an empty queue at ``offset``: its first file holds filler units up to there."""
        self.start_at(offset)
        first = offset - offset % (self._file_bytes // UNIT_BYTES)
        if offset > first:
            self.written = self.synced = first
            self.tail = (first, bytearray(FILLER * (offset - first)))

    # --- the owning thread ---

    def roll_back(self) -> None:
        """Drop the units behind ``committed``."""
        start, tail = self.tail
        del tail[(self.committed - start) * UNIT_BYTES :]
        self.next = self.committed

    def write_out(self) -> None:
        """Write the visible units to the files and keep them out of memory from then on. Raises OSError; nothing is lost then."""
        start, tail = self.tail
        end = self.committed
        begin = max(self.written, start)
        if end > begin:
            self._write(begin, tail[(begin - start) * UNIT_BYTES : (end - start) * UNIT_BYTES], self._pooled)
        self.written = end
        self.tail = (end, tail[(end - start) * UNIT_BYTES :])

    def read_units(self, start: int, stop: int) -> bytes | bytearray:
        """Return the units of queue offsets ``[start, stop)``, which must lie within [min_offset, next]; zeros where a file is missing."""
        tail_start, tail = self.tail
        if start >= tail_start:
            return tail[(start - tail_start) * UNIT_BYTES : (stop - tail_start) * UNIT_BYTES]
        data = self._read(start * UNIT_BYTES, min(stop, tail_start) * UNIT_BYTES)
        if stop > tail_start:
            data += tail[: (stop - tail_start) * UNIT_BYTES]
        return data

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return ``(physical offset, size, tag code)`` of one queue offset."""
        return UNIT.unpack(self.read_units(offset, offset + 1))

    def rewrite(self, offset: int, units: bytes) -> None:
        """Replace units that turned out to be damaged. Raises OSError."""
        tail_start, tail = self.tail
        in_files = max(0, min(len(units) // UNIT_BYTES, tail_start - offset)) * UNIT_BYTES
        if in_files:
            self._write(offset, units[:in_files], self._pooled)
        if in_files < len(units):
            at = (max(offset, tail_start) - tail_start) * UNIT_BYTES
            tail[at : at + len(units) - in_files] = units[in_files:]
        self.synced = min(self.synced, offset)

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

    def _write(self, offset: int, units: bytes | bytearray, open_file: Callable[[str], File]) -> None:
        at = offset * UNIT_BYTES
        done = 0
        while done < len(units):
            file_start = (at + done) - (at + done) % self._file_bytes
            room = file_start + self._file_bytes - (at + done)
            open_file(self._path(file_start)).pwrite(units[done : done + room], at + done - file_start)
            done += room

    def _path(self, file_start: int) -> str:
        return f"{self._directory}/{segment_name(file_start)}"

    def _pooled(self, path: str) -> File:
        try:
            return self._pool.get(path, size=self._file_bytes)
        except FileNotFoundError:
            self._fs.make_dirs(self._directory)
            return self._pool.get(path, size=self._file_bytes)

    # --- recovery ---

    def files(self) -> dict[int, int]:
        """Return ``{start byte: length}`` of the files on disk."""
        return {start: entry.size for start, entry in segment_entries(self._fs.list(self._directory))}

    def skip_to(self, offset: int) -> None:
        """Let ``offset`` be the next one; offsets in between have no record and get filler units."""
        tail = self.tail[1]
        tail += FILLER * (offset - self.next)
        self.next = self.committed = offset

    def go_back(self, offset: int) -> None:
        """Let ``offset`` be the next one again; units from it on are dropped, and all of them when it was 0 or before the first."""
        if offset <= self.min_offset:
            self.begin_at(offset)
            return
        start, tail = self.tail
        if offset >= start:
            del tail[(offset - start) * UNIT_BYTES :]
            self.next = self.committed = offset
            self.written = min(self.written, offset)
            self.synced = min(self.synced, offset)
        else:
            self.start_at(offset, min_offset=self.min_offset)

    def end_of_expired(self, log_min: int) -> int:
        """Return the queue offset behind the last unit on disk when that points before ``log_min``, else 0.

        As the reference does, only the last three files are looked at, each up to its first invalid unit.
        """
        end = last_physical = 0
        for start in sorted(self.files())[-3:]:
            end = start // UNIT_BYTES
            for physical, size, _ in UNIT.iter_unpack(self._read(start, start + self._file_bytes)):
                if physical < 0 or size <= 0:
                    return end if last_physical < log_min else 0
                end += 1
                last_physical = physical
        return end if last_physical < log_min else 0

    def intact(self, last: tuple[int, int]) -> bool:
        """Tell whether the files can hold [min_offset, next) and the last unit is ``last`` (physical offset and size)."""
        if self.next == self.min_offset:
            return True
        files = self.files()
        first = self.min_offset * UNIT_BYTES
        needed = range(first - first % self._file_bytes, self.next * UNIT_BYTES, self._file_bytes)
        return all(files.get(start) == self._file_bytes for start in needed) and self.unit(self.next - 1)[:2] == last

    def cut(self) -> None:
        """Make everything in the files at and behind ``next`` zeros: leftovers must not look like units to any reader. Raises OSError."""
        end = self.next * UNIT_BYTES
        self._pool.forget(self._directory + "/")
        for start, size in self.files().items():
            path = self._path(start)
            if start >= end and start > 0:
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
        return state is None or not self.committed == self.synced == state.next or self.min_offset != state.min_offset

    def sync(self, *, wait: bool = True) -> QueueState:
        """Bring the units visible at the call to the disk and return what is there then. Raises OSError.

        Without ``wait`` they only get as far as the system, and the caller syncs for all queues at once. It writes with descriptors of its own. Should the owning thread write the same units meanwhile, both write the same bytes.
        """
        end = self.committed
        if self.state is not None and not self.dirty:
            return self.state
        start, tail = self.tail
        begin = max(self.written, start)
        # The owner may have moved both on since ``end`` was read: then there is nothing left for us to write.
        units = bytes(tail[(begin - start) * UNIT_BYTES : max(end - start, 0) * UNIT_BYTES])
        end = begin + len(units) // UNIT_BYTES
        first = min(self.synced, end) * UNIT_BYTES
        opened: dict[str, File] = {}

        def open_file(path: str) -> File:
            if path not in opened:
                opened[path] = file = self._fs.open(path, create=True)
                if file.size() < self._file_bytes:
                    file.truncate(self._file_bytes)
            return opened[path]

        last = (0, 0)
        try:
            if end > self.min_offset or first < end * UNIT_BYTES:
                self._fs.make_dirs(self._directory)
            self._write(begin, units, open_file)
            for file_start in range(first - first % self._file_bytes, end * UNIT_BYTES, self._file_bytes):
                if wait:
                    open_file(self._path(file_start)).fdatasync()
            if end > self.min_offset:
                at = (end - 1) * UNIT_BYTES
                file_start = at - at % self._file_bytes
                last = UNIT.unpack(open_file(self._path(file_start)).pread(UNIT_BYTES, at - file_start))[:2]
                if wait and file_start > self._named:
                    self._fs.fsync_dir(self._directory)
                    self._named = file_start
        finally:
            for file in opened.values():
                file.close()
        self.synced = max(self.synced, end)
        self.state = QueueState(self.topic, self.queue_id, min(self.min_offset, end), end, last)
        return self.state
