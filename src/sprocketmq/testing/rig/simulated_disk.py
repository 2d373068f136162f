"""A file system in memory that loses what was not synced, for tests of storage code that simulate a crash.

::

    fs = SimFileSystem()
    store = MessageStore(StoreConfig(Path("/store")), fs=fs)
    ...
    after = fs.crash(random.Random(7), "torn")     # what the disk holds after a power loss now; `fs` itself continues
    MessageStore(StoreConfig(Path("/store")), fs=after).open()

The simulated disk is as unreliable as the system's rules allow:

* Written bytes are on the disk once ``fdatasync`` of that file has returned. Before, any subset of their 512-byte sectors may be there.
  The same holds for a file's length.
* A name that was created, renamed or removed is on the disk once ``fsync_dir`` of its directory has returned; syncing the file is not
  enough. Before, any subset of the changes may be there, a later one without an earlier one too. A rename is one change.
* After a failed ``fdatasync`` the pages count as clean, as on Linux: they read back as written, the next sync succeeds, and they never
  reach the disk.

Everything is deterministic: the same calls and the same ``random.Random`` give the same bytes.
"""

import contextlib
import errno
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sprocketmq.clock import ManualClock
from sprocketmq.storage.fs import Buffer, Entry, File
from sprocketmq.testing.rig.disk_faults import Fault
from sprocketmq.testing.rig.disk_nodes import KILL_MODES, MODES, POWER_LOSS_MODES, CrashMode, Directory, Node
from sprocketmq.testing.rig.disk_tree import DiskTree, disk_error, path_parts
from sprocketmq.testing.rig.file_content import PAGE_BYTES, SECTOR_BYTES, Change

__all__ = ["KILL_MODES", "MODES", "POWER_LOSS_MODES", "SECTOR_BYTES", "CrashMode", "SimFile", "SimFileSystem", "SimulatedCrash"]

_devices = itertools.count(1)


# No Exception: the machine is gone, and nothing may catch that by accident.
class SimulatedCrash(BaseException):
    """The machine has crashed: raised by the call chosen with ``crash_at`` and by every later one."""


class SimFile:
    """An open file of a SimFileSystem."""

    __slots__ = ("_fs", "_node", "_open", "_read_only", "path")

    def __init__(self, fs: "SimFileSystem", path: str, node: Node, *, read_only: bool) -> None:
        self.path = path
        self._fs = fs
        self._node = node
        self._read_only = read_only
        self._open = True

    def _file(self) -> Node:
        if not self._open:
            raise disk_error(errno.EBADF, self.path)
        return self._node

    def _writable(self, refusal: int = errno.EBADF) -> Node:
        if self._read_only:
            raise disk_error(refusal, self.path)
        return self._file()

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._fs.write_file("pwrite", self.path, self._writable(), bytes(data), offset)

    def pwritev(self, pieces: Sequence[Buffer], offset: int) -> None:
        self._fs.write_file("pwritev", self.path, self._writable(), b"".join(pieces), offset)

    def pread(self, length: int, offset: int) -> bytes:
        with self._fs.reading("pread", self.path):
            return self._file().live.read(length, offset)

    def map(self, length: int) -> memoryview:
        with self._fs.reading("map", self.path):
            node = self._file()
            if not 0 < length <= node.live.size:
                raise ValueError(f"cannot map {length} bytes of {self.path}, which has {node.live.size}")
            return node.view(length)

    def data_after(self, offset: int) -> int | None:
        with self._fs.reading("data_after", self.path):
            content = self._file().live
            number = offset // PAGE_BYTES
            if offset >= content.size:
                return None
            if number in content.pages:
                return offset
            later = min((page for page in content.pages if page > number), default=None)
            return None if later is None or later * PAGE_BYTES >= content.size else later * PAGE_BYTES

    def fdatasync(self) -> None:
        self._fs.sync_file(self.path, self._file())

    def fallocate(self, offset: int, length: int) -> None:
        self._fs.reserve(self.path, self._writable(), offset, length)

    def truncate(self, size: int) -> None:
        self._fs.truncate_file(self.path, self._writable(errno.EINVAL), size)

    def size(self) -> int:
        with self._fs.reading("size", self.path):
            return self._file().live.size

    def lock(self) -> bool:
        """Take the lock; a simulated file system belongs to one process, so nobody else ever has it."""
        with self._fs.reading("lock", self.path):
            self._file()
            return True

    def close(self) -> None:
        self._open = False


class SimFileSystem:
    """A file system whose every byte is in memory; it stands in for the real one wherever ``fs=`` is taken.

    ``capacity`` is the size of the disk in bytes (None: no limit): beyond it writes fail with ENOSPC, having written what fits.
    ``clock`` gives files their times and is advanced by ``slow``. ``calls`` counts the calls that change or sync something on the disk;
    reads make no difference to a crash and are not counted. ``on_call(name, path)`` is called before each counted call. Calls from
    several threads take turns.
    """

    def __init__(self, *, capacity: int | None = None, clock: ManualClock | None = None) -> None:
        self.capacity = capacity
        self.clock = clock or ManualClock()
        self.calls = 0
        self.on_call: Callable[[str, str], None] | None = None
        self._device = next(_devices)
        self._tree = DiskTree()
        self._faults: list[Fault] = []
        self._crash_at: int | None = None
        self._crashed = False
        self._begun: tuple[Node, Change] | None = None
        self._lock = threading.RLock()

    # --- faults ---

    def fail(
        self, call: str, error: int = errno.EIO, *, path: str = "", skip: int = 0, times: int | None = None, torn: int | None = None
    ) -> None:
        """Make calls of this name fail with ``error`` (an errno) on files whose path contains ``path``, after ``skip`` successful ones.

        ``times`` limits how many fail (None: all). A failing write first writes ``torn`` bytes (None: nothing).
        """
        self._faults.append(Fault(call, path, skip, times, error=error, torn=torn))

    def slow(self, call: str, seconds: float, *, path: str = "", skip: int = 0, times: int | None = None) -> None:
        """Make calls of this name take ``seconds`` on the clock."""
        self._faults.append(Fault(call, path, skip, times, seconds=seconds))

    def heal(self) -> None:
        """Remove every ``fail`` and ``slow``."""
        self._faults.clear()

    def crash_at(self, call: int) -> None:
        """Raise SimulatedCrash instead of making the call with this number (``calls`` counts from 0), and from every one after it."""
        self._crash_at = call

    def crash(self, rng: random.Random, mode: CrashMode = "torn") -> "SimFileSystem":
        """Return a file system with what the disk holds after a crash now; this one stays as it is.

        drop: nothing that was not synced. keep: everything, as when only the process dies. cut: everything, and a prefix of the write
        that is being made (in ``on_call``), as when the process dies inside the call. reorder: a random subset of the unsynced changes.
        torn: a random subset of their sectors.
        """
        with self._lock:
            after = SimFileSystem(capacity=self.capacity, clock=ManualClock(self.clock.time_ms()))
            after._tree = self._tree.crashed(rng, mode, self._begun)
            return after

    # --- inspecting and changing files from a test ---

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        with self._lock:
            return list(self._tree.files())

    def put(self, path: str, data: bytes) -> None:
        """Make or replace a file; it is on the disk at once, and no call is counted."""
        with self._lock:
            self._tree.put(path, data, self.clock.time_ms())

    def flip(self, path: str, bit: int) -> None:
        """Flip one bit of a file, on the disk and in memory; bit 0 is the lowest of the first byte. The file must not be mapped."""
        with self._lock:
            node = self._tree.file(path)
            for content in (node.live, node.durable):
                byte = content.read(1, bit // 8)
                if byte:
                    content.write(bytes((byte[0] ^ 1 << bit % 8,)), bit // 8)

    def cut(self, path: str, size: int) -> None:
        """Set the length of a file, on the disk and in memory. The file must not be mapped."""
        with self._lock:
            node = self._tree.file(path)
            node.live.truncate(size)
            node.durable.truncate(size)

    def save(self, directory: Path) -> None:
        """Write all files to a real directory, for inspection with other tools; holes stay holes."""
        with self._lock:
            for path, node in self._tree.files().items():
                content = node.live
                target = directory / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    out.truncate(content.size)
                    for number, page in content.pages.items():
                        out.seek(number * PAGE_BYTES)
                        out.write(page[: content.size - number * PAGE_BYTES])

    # --- counted calls ---

    def _begin(self, call: str, path: str) -> Fault | None:
        """Count a call, crash if this is the chosen one, wait if it is slow; return the fault that makes it fail."""
        self._check_power()
        if self.on_call is not None:
            self.on_call(call, path)
        if self.calls == self._crash_at:
            self._crashed = True
            self._check_power()
        self.calls += 1
        return self._fault(call, path)

    def _check_power(self) -> None:
        if self._crashed:
            raise SimulatedCrash("the simulated machine has crashed")

    def _fault(self, call: str, path: str) -> Fault | None:
        failing = None
        for fault in self._faults:
            if fault.hits(call, path):
                if fault.seconds:
                    self.clock.advance(fault.seconds)
                failing = failing or (fault if fault.error else None)
        return failing

    @contextlib.contextmanager
    def reading(self, call: str, path: str) -> Iterator[None]:
        with self._lock:
            self._check_power()
            fault = self._fault(call, path) if self._faults else None
            if fault is not None:
                raise disk_error(fault.error, path)
            yield

    def write_file(self, call: str, path: str, node: Node, data: bytes, offset: int) -> None:
        with self._lock:
            outer, self._begun = self._begun, (node, ("write", offset, data))
            try:
                fault = self._begin(call, path)
            finally:
                self._begun = outer
            error = 0
            if fault is not None:
                data, error = data[: fault.torn or 0], fault.error
            if self.capacity is not None:
                fits = self._that_fits(node, offset, len(data))
                if fits < len(data):
                    data, error = data[:fits], error or errno.ENOSPC
            if data:
                node.change(("write", offset, data), self.clock.time_ms())
            if error:
                raise disk_error(error, path)

    def _that_fits(self, node: Node, offset: int, length: int) -> int:
        """Return how many bytes can be written before the disk is full."""
        assert self.capacity is not None
        room = (self.capacity - self._used()) // PAGE_BYTES
        for number in range(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)):
            if number not in node.live.pages and number not in node.reserved:
                room -= 1
                if room < 0:
                    return max(0, number * PAGE_BYTES - offset)
        return length

    def _used(self) -> int:
        total = 0
        for directory in self._tree.directories():
            for target in directory.live.values():
                if isinstance(target, Node):
                    total += len(target.live.pages.keys() | target.reserved)
        return total * PAGE_BYTES

    def reserve(self, path: str, node: Node, offset: int, length: int) -> None:
        with self._lock:
            fault = self._begin("fallocate", path)
            if fault is not None:
                raise disk_error(fault.error, path)
            if self.capacity is not None:
                if self._that_fits(node, offset, length) < length:
                    raise disk_error(errno.ENOSPC, path)
                node.reserved.update(range(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)))

    def truncate_file(self, path: str, node: Node, size: int) -> None:
        with self._lock:
            fault = self._begin("truncate", path)
            if fault is not None:
                raise disk_error(fault.error, path)
            if size != node.live.size:
                node.change(("length", size, b""), self.clock.time_ms())
                node.reserved = {page for page in node.reserved if page * PAGE_BYTES < size}

    def sync_file(self, path: str, node: Node) -> None:
        with self._lock:
            fault = self._begin("fdatasync", path)
            if fault is not None:
                node.pending.clear()
                node.lost = True
                raise disk_error(fault.error, path)
            node.sync()

    def fsync_dir(self, path: str) -> None:
        """Sync the names in one directory."""
        with self._lock:
            fault = self._begin("fsync_dir", path)
            directory = self._tree.directory(path)
            if fault is not None:
                raise disk_error(fault.error, path)
            self._tree.sync_names(directory)

    def sync_all(self) -> None:
        """Sync everything; errors are not reported."""
        with self._lock:
            fault = self._begin("sync_all", "/")
            for directory in list(self._tree.directories()):
                self._tree.sync_names(directory)
                for target in directory.live.values():
                    if isinstance(target, Node):
                        if fault is not None:
                            target.pending.clear()
                            target.lost = True
                        target.sync()

    # --- names ---

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file; creating one is a counted call. Raises OSError as ``os.open`` does."""
        create = create and not read_only
        with self._lock:
            self._check_power()
            directory, name = self._tree.place(path)
            node = directory.live.get(name)
            if isinstance(node, Directory):
                raise disk_error(errno.EISDIR, path)
            if node is None and not create:
                self._raise_fault("open", path)
                raise disk_error(errno.ENOENT, path)
            if node is None:
                fault = self._begin("open", path)
                if fault is not None:
                    raise disk_error(fault.error, path)
                node = self._tree.new_file(self.clock.time_ms())
                self._tree.change_names((directory, name, node))
            else:
                self._raise_fault("open", path)
            return SimFile(self, path, node, read_only=read_only)

    def _raise_fault(self, call: str, path: str) -> None:
        fault = self._fault(call, path) if self._faults else None
        if fault is not None:
            raise disk_error(fault.error, path)

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        with self.reading("read", path):
            content = self._tree.file(path).live
            return content.read(content.size, 0)

    def list(self, path: str) -> list[Entry]:
        """Return the entries of a directory; a missing one is empty."""
        with self.reading("list", path):
            try:
                directory = self._tree.directory(path)
            except FileNotFoundError:
                return []
            return sorted(
                Entry(name, True, 0) if isinstance(target, Directory) else Entry(name, False, target.live.size)
                for name, target in directory.live.items()
            )

    def exists(self, path: str) -> bool:
        with self.reading("exists", path):
            try:
                self._tree.find(path)
            except OSError:
                return False
            return True

    def identity(self, path: str) -> tuple[int, int]:
        """Return numbers that are unique among all files of all SimFileSystems; device numbers are negative, unlike real ones."""
        with self.reading("identity", path):
            return -self._device, self._tree.find(path).number

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents; each one created is a counted call."""
        with self._lock:
            self._check_power()
            directory = self._tree.root
            done = ""
            for part in path_parts(path):
                done += "/" + part
                found = directory.live.get(part)
                if isinstance(found, Node):
                    raise disk_error(errno.EEXIST if done == "/" + "/".join(path_parts(path)) else errno.ENOTDIR, done)
                if found is None:
                    fault = self._begin("make_dirs", done)
                    if fault is not None:
                        raise disk_error(fault.error, done)
                    found = self._tree.new_directory()
                    self._tree.change_names((directory, part, found))
                directory = found

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing an existing one. Raises EISDIR when either is a directory."""
        with self._lock:
            fault = self._begin("rename", new)
            if fault is not None:
                raise disk_error(fault.error, new)
            (source, old_name), (target, new_name) = self._tree.place(old), self._tree.place(new)
            node = source.live.get(old_name)
            if node is None:
                raise disk_error(errno.ENOENT, old)
            if isinstance(node, Directory):
                raise disk_error(errno.EISDIR, old)
            if isinstance(target.live.get(new_name), Directory):
                raise disk_error(errno.EISDIR, new)
            if old != new:
                self._tree.change_names((source, old_name, None), (target, new_name, node))

    def unlink(self, path: str) -> None:
        with self._lock:
            fault = self._begin("unlink", path)
            if fault is not None:
                raise disk_error(fault.error, path)
            directory, name = self._tree.place(path)
            node = directory.live.get(name)
            if node is None:
                raise disk_error(errno.ENOENT, path)
            if isinstance(node, Directory):
                raise disk_error(errno.EISDIR, path)
            self._tree.change_names((directory, name, None))

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents name by name; each is a counted call."""
        with self._lock:
            self._check_power()
            try:
                parent, name = self._tree.place(path)
            except FileNotFoundError:
                return
            directory = parent.live.get(name)
            if directory is None:
                return
            if isinstance(directory, Node):
                raise disk_error(errno.ENOTDIR, path)
            for child, target in list(directory.live.items()):
                if isinstance(target, Directory):
                    self.remove_tree(f"{path}/{child}")
                else:
                    self.unlink(f"{path}/{child}")
            fault = self._begin("remove_tree", path)
            if fault is not None:
                raise disk_error(fault.error, path)
            self._tree.change_names((parent, name, None))

    def usage(self, path: str) -> tuple[int, int]:
        """Return the size of the disk and its free space; a terabyte without a capacity."""
        with self.reading("usage", path):
            total = 1 << 40 if self.capacity is None else self.capacity
            return total, max(0, total - self._used())

    def modified_ms(self, path: str) -> int:
        with self.reading("modified_ms", path):
            target = self._tree.find(path)
            return target.modified_ms if isinstance(target, Node) else self.clock.time_ms()
