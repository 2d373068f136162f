"""A file system in memory that forgets what was not synced: what storage code stands on when a test pulls the plug.

::

    fs = SimFileSystem()
    store = MessageStore(StoreConfig(Path("/store")), fs=fs)
    ...
    after = fs.crash(random.Random(7), "torn")     # what the disk holds when the power goes now; `fs` itself goes on
    MessageStore(StoreConfig(Path("/store")), fs=after).open()

The disk it plays is as bad as the rules of the system allow:

* Written bytes are on the disk once ``fdatasync`` of that file has returned. Before, any part of them may be there: each 512-byte
  sector on its own. A file's length is written bytes too.
* A name that was made, changed or removed is so on the disk once ``fsync_dir`` of its directory has returned; syncing the file is not
  enough. Before, any part of the changes may be there, also a later one without an earlier one. One rename is one change.
* After a failed ``fdatasync`` the system calls the pages clean, as Linux does: they read back as written, the next sync succeeds,
  and they never reach the disk.

Everything is deterministic: the same calls and the same ``random.Random`` give the same bytes.
"""

import contextlib
import errno
import itertools
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sprocketmq.clock import ManualClock
from sprocketmq.storage.fs import Buffer, Entry, File

CrashMode = Literal["drop", "keep", "cut", "reorder", "torn"]

MODES: Final[tuple[CrashMode, ...]] = ("drop", "keep", "cut", "reorder", "torn")
POWER_LOSS_MODES: Final[tuple[CrashMode, ...]] = ("drop", "reorder", "torn")
KILL_MODES: Final[tuple[CrashMode, ...]] = ("keep", "cut")

SECTOR_BYTES = 512
PAGE_BYTES = 4096
# Larger views are anonymous mappings, which cost memory only where something was written.
_SMALL_VIEW_BYTES = 1 << 20
_ZEROS = bytes(PAGE_BYTES)
_devices = itertools.count(1)


# No Exception: the machine is gone, and nothing may catch that by accident.
class SimulatedCrash(BaseException):
    """The plug was pulled: raised by the call that ``crash_at`` named and by every later one until ``crash`` gives the disk."""


class _Content:
    """Sparse bytes: whole pages by number; what is missing is zeros."""

    __slots__ = ("pages", "size")

    def __init__(self, pages: dict[int, bytes] | None = None, size: int = 0) -> None:
        self.pages = {} if pages is None else pages
        self.size = size

    def copy(self) -> "_Content":
        return _Content(self.pages.copy(), self.size)

    def write(self, data: bytes, offset: int) -> None:
        pages = self.pages
        at = 0
        while at < len(data):
            number, inside = divmod(offset + at, PAGE_BYTES)
            step = min(PAGE_BYTES - inside, len(data) - at)
            if step == PAGE_BYTES:
                pages[number] = data[at : at + step]
            else:
                old = pages.get(number, _ZEROS)
                pages[number] = b"".join((old[:inside], data[at : at + step], old[inside + step :]))
            at += step
        self.size = max(self.size, offset + len(data))

    def read(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        parts = []
        while offset < end:
            number, inside = divmod(offset, PAGE_BYTES)
            step = min(PAGE_BYTES - inside, end - offset)
            page = self.pages.get(number, _ZEROS)
            parts.append(page if step == PAGE_BYTES else page[inside : inside + step])
            offset += step
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        if size < self.size:
            number, inside = divmod(size, PAGE_BYTES)
            for page in [page for page in self.pages if page > number or (page == number and not inside)]:
                del self.pages[page]
            if inside and number in self.pages:
                self.pages[number] = self.pages[number][:inside] + bytes(PAGE_BYTES - inside)
        self.size = size


# What happened to a file since its last sync: ("write", offset, bytes) or ("length", new length, b"").
_Change = tuple[str, int, bytes]


def _apply(content: _Content, change: _Change) -> None:
    kind, at, data = change
    if kind == "write":
        content.write(data, at)
    else:
        content.truncate(at)


class _Node:
    """One file, whatever its names are: what programs see, what the disk has, and the changes in between."""

    __slots__ = ("durable", "live", "locked", "lost", "modified_ms", "number", "pending", "reserved", "views")

    def __init__(self, number: int, modified_ms: int) -> None:
        self.number = number
        self.live = _Content()
        self.durable = _Content()
        self.pending: list[_Change] = []
        self.lost = False  # a failed sync left pages in memory that will never be written
        self.locked = False
        self.reserved: set[int] = set()
        self.views: dict[int, memoryview] = {}
        self.modified_ms = modified_ms

    def change(self, change: _Change, now_ms: int) -> None:
        kind, at, data = change
        before = self.live.size
        _apply(self.live, change)
        self.pending.append(change)
        self.modified_ms = now_ms
        for length, view in self.views.items():
            if kind == "write":
                end = min(at + len(data), length)
                if at < end:
                    view[at:end] = data[: end - at]
            elif at < min(before, length):
                end = min(before, length)
                view[at:end] = bytes(end - at)

    def sync(self) -> None:
        if self.pending:
            if self.lost:
                for change in self.pending:
                    _apply(self.durable, change)
            else:
                self.durable = self.live.copy()
            self.pending.clear()

    def view(self, length: int) -> memoryview:
        view = self.views.get(length)
        if view is None:
            if length <= _SMALL_VIEW_BYTES:
                view = memoryview(bytearray(length))
            else:
                view = memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            for number, page in self.live.pages.items():
                at = number * PAGE_BYTES
                if at < length:
                    view[at : at + PAGE_BYTES] = page[: length - at]
            self.views[length] = view
        return view.toreadonly()

    def crashed(self, rng: random.Random, mode: CrashMode, begun: _Change | None) -> _Content:
        """Return what is left of the file; ``begun`` is a write that is being made."""
        if mode == "drop":
            return self.durable.copy()
        if mode in {"keep", "cut"}:
            content = self.live.copy()
            if mode == "cut" and begun is not None:
                _apply_prefix(content, begun, rng)
            return content
        content = self.durable.copy()
        pending = self.pending if begun is None else [*self.pending, begun]
        if not pending:
            return content
        if mode == "reorder":
            chance = rng.choice((0.2, 0.5, 0.8))
            for change in pending:
                if rng.random() < chance:
                    _apply(content, change)
            return content
        if rng.random() < 0.5:  # as a log often ends: all up to one write, and of that one some sectors
            whole = rng.randrange(len(pending))
            for change in pending[:whole]:
                _apply(content, change)
            if rng.random() < 0.5:
                _apply_prefix(content, pending[whole], rng)
            else:
                _apply_sectors(content, pending[whole], rng, 0.5)
            return content
        chance = rng.choice((0.1, 0.5, 0.9))
        for change in pending:
            _apply_sectors(content, change, rng, chance)
        return content


def _sectors(change: _Change) -> list[_Change]:
    """Return a write as one change for each 512-byte sector of the file it touches."""
    kind, at, data = change
    if kind != "write" or not data:
        return [change]
    cuts = [0, *range(SECTOR_BYTES - at % SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    return [("write", at + a, data[a:b]) for a, b in itertools.pairwise(cuts)]


def _apply_prefix(content: _Content, change: _Change, rng: random.Random) -> None:
    sectors = _sectors(change)
    for sector in sectors[: rng.randrange(len(sectors) + 1)]:
        _apply(content, sector)


def _apply_sectors(content: _Content, change: _Change, rng: random.Random, chance: float) -> None:
    for sector in _sectors(change):
        if rng.random() < chance:
            _apply(content, sector)


class _Directory:
    """A directory: names as programs see them and as the disk has them, and the changes in between."""

    __slots__ = ("durable", "live", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        self.live: dict[str, _Node | _Directory] = {}
        self.durable: dict[str, _Node | _Directory] = {}
        self.pending: list[_NameChange] = []


class _NameChange:
    """One change of names that happens as a whole: (directory, name, what the name stands for from now on or None)."""

    __slots__ = ("number", "steps")

    def __init__(self, number: int, *steps: "tuple[_Directory, str, _Node | _Directory | None]") -> None:
        self.number = number
        self.steps = steps

    def apply(self, names: "Callable[[_Directory], dict[str, _Node | _Directory]]") -> None:
        for directory, name, target in self.steps:
            if target is None:
                names(directory).pop(name, None)
            else:
                names(directory)[name] = target


@dataclass
class _Fault:
    """An error or a delay for some calls."""

    call: str
    path: str
    skip: int
    times: int | None
    error: int = 0
    torn: int | None = None
    seconds: float = 0.0

    def hits(self, call: str, path: str) -> bool:
        if self.call != call or self.path not in path or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class SimFile:
    """An open file of a SimFileSystem."""

    __slots__ = ("_fs", "_node", "_open", "_read_only", "path")

    def __init__(self, fs: "SimFileSystem", path: str, node: _Node, *, read_only: bool) -> None:
        self.path = path
        self._fs = fs
        self._node = node
        self._read_only = read_only
        self._open = True

    def _file(self) -> _Node:
        if not self._open:
            raise _error(errno.EBADF, self.path)
        return self._node

    def _writable(self, refusal: int = errno.EBADF) -> _Node:
        if self._read_only:
            raise _error(refusal, self.path)
        return self._file()

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._fs._write("pwrite", self.path, self._writable(), bytes(data), offset)

    def pwritev(self, pieces: Sequence[Buffer], offset: int) -> None:
        self._fs._write("pwritev", self.path, self._writable(), b"".join(pieces), offset)

    def pread(self, length: int, offset: int) -> bytes:
        with self._fs._reading("pread", self.path):
            return self._file().live.read(length, offset)

    def map(self, length: int) -> memoryview:
        with self._fs._reading("map", self.path):
            node = self._file()
            if not 0 < length <= node.live.size:
                raise ValueError(f"cannot map {length} bytes of {self.path}, which has {node.live.size}")
            return node.view(length)

    def data_after(self, offset: int) -> int | None:
        with self._fs._reading("data_after", self.path):
            content = self._file().live
            number = offset // PAGE_BYTES
            if offset >= content.size:
                return None
            if number in content.pages:
                return offset
            later = min((page for page in content.pages if page > number), default=None)
            return None if later is None or later * PAGE_BYTES >= content.size else later * PAGE_BYTES

    def fdatasync(self) -> None:
        self._fs._sync(self.path, self._file())

    def fallocate(self, offset: int, length: int) -> None:
        self._fs._reserve(self.path, self._writable(), offset, length)

    def truncate(self, size: int) -> None:
        self._fs._truncate(self.path, self._writable(errno.EINVAL), size)

    def size(self) -> int:
        with self._fs._reading("size", self.path):
            return self._file().live.size

    def lock(self) -> bool:
        """Take the lock; a simulated file system belongs to one process, so nobody else ever has it."""
        with self._fs._reading("lock", self.path):
            self._file()
            return True

    def close(self) -> None:
        self._open = False


class SimFileSystem:
    """A file system whose every byte is in memory; it stands in for the real one wherever ``fs=`` is taken.

    ``capacity`` is the size of the disk in bytes (None: no limit): beyond it writes fail with ENOSPC, having written what fits.
    ``clock`` gives files their times and is moved forward by ``slow``. ``calls`` counts the calls that change something on the disk or
    sync it; the reading ones cannot matter for a crash and are not counted. ``on_call(name, path)`` is called before each of
    those that count. Calls from several threads take turns.
    """

    def __init__(self, *, capacity: int | None = None, clock: ManualClock | None = None) -> None:
        self.capacity = capacity
        self.clock = clock or ManualClock()
        self.calls = 0
        self.on_call: Callable[[str, str], None] | None = None
        self._device = next(_devices)
        self._numbers = itertools.count(1)
        self._root = _Directory(next(self._numbers))
        self._faults: list[_Fault] = []
        self._crash_at: int | None = None
        self._crashed = False
        self._begun: tuple[_Node, _Change] | None = None
        self._lock = threading.RLock()

    # --- faults ---

    def fail(
        self, call: str, error: int = errno.EIO, *, path: str = "", skip: int = 0, times: int | None = None, torn: int | None = None
    ) -> None:
        """Let calls of this name fail with ``error`` (an errno) on files whose path contains ``path``, after ``skip`` that go well.

        ``times`` bounds how many fail (None: all). A failing write first writes ``torn`` bytes (None: nothing).
        """
        self._faults.append(_Fault(call, path, skip, times, error=error, torn=torn))

    def slow(self, call: str, seconds: float, *, path: str = "", skip: int = 0, times: int | None = None) -> None:
        """Let calls of this name take ``seconds`` on the clock."""
        self._faults.append(_Fault(call, path, skip, times, seconds=seconds))

    def heal(self) -> None:
        """Take back every ``fail`` and ``slow``."""
        self._faults.clear()

    def crash_at(self, call: int) -> None:
        """Raise SimulatedCrash instead of making the call with this number (``calls`` counts from 0), and from every one after it."""
        self._crash_at = call

    def crash(self, rng: random.Random, mode: CrashMode = "torn") -> "SimFileSystem":
        """Return a file system with what the disk holds when everything stops now; this one stays as it is.

        drop: nothing that was not synced. keep: everything, as after the death of a process alone. cut: everything, and a beginning of
        the write that is just being made (in ``on_call``), as when a process dies inside the call. reorder: each change that was not
        synced, or not. torn: each sector of it, or not.
        """
        with self._lock:
            after = SimFileSystem(capacity=self.capacity, clock=ManualClock(self.clock.time_ms()))
            changes = sorted({c.number: c for d in self._directories() for c in d.pending}.values(), key=lambda c: c.number)
            tables: dict[int, dict[str, _Node | _Directory]] = {}

            def names(directory: _Directory) -> dict[str, _Node | _Directory]:
                return tables.setdefault(directory.number, dict(directory.durable))

            chance = {"drop": 0.0, "keep": 1.0, "cut": 1.0}.get(mode)
            if chance is None:
                chance = rng.choice((0.3, 0.7, 1.0))
            for change in changes:
                if rng.random() < chance:
                    change.apply(names)
            files: dict[int, _Node] = {}

            def rebuilt(directory: _Directory) -> _Directory:
                copy = _Directory(next(after._numbers))
                for name, target in names(directory).items():
                    if isinstance(target, _Directory):
                        copy.live[name] = rebuilt(target)
                    else:
                        if target.number not in files:
                            files[target.number] = node = _Node(next(after._numbers), target.modified_ms)
                            node.live = target.crashed(rng, mode, self._begun[1] if self._begun and self._begun[0] is target else None)
                            node.durable = node.live.copy()
                        copy.live[name] = files[target.number]
                copy.durable = dict(copy.live)
                return copy

            after._root = rebuilt(self._root)
            return after

    def _directories(self) -> Iterable[_Directory]:
        """Yield the directories that exist, or whose removal the disk may have missed."""
        seen = set()
        left = [self._root]
        while left:
            directory = left.pop()
            if directory.number not in seen:
                seen.add(directory.number)
                yield directory
                targets = [*directory.live.values(), *directory.durable.values()]
                targets += [t for c in directory.pending for _, _, t in c.steps if t is not None]
                left += [t for t in targets if isinstance(t, _Directory)]

    # --- looking and meddling, for tests ---

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        found: list[str] = []

        def walk(directory: _Directory, prefix: str) -> None:
            for name, target in directory.live.items():
                if isinstance(target, _Directory):
                    walk(target, f"{prefix}/{name}")
                else:
                    found.append(f"{prefix}/{name}")

        with self._lock:
            walk(self._root, "")
        return sorted(found)

    def put(self, path: str, data: bytes) -> None:
        """Make or replace a file; it is on the disk at once, and no call is counted."""
        with self._lock:
            directory = self._root
            *parents, name = _parts(path)
            for part in parents:
                found = directory.live.get(part)
                if not isinstance(found, _Directory):
                    found = directory.live[part] = directory.durable[part] = _Directory(next(self._numbers))
                directory = found
            node = _Node(next(self._numbers), self.clock.time_ms())
            node.live.write(data, 0)
            node.durable = node.live.copy()
            directory.live[name] = directory.durable[name] = node

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit of a file over, on the disk and in memory; bit 0 is the lowest of the first byte. The file may not be mapped."""
        with self._lock:
            node = self._node(path)
            for content in (node.live, node.durable):
                byte = content.read(1, bit // 8)
                if byte:
                    content.write(bytes((byte[0] ^ 1 << bit % 8,)), bit // 8)

    def cut(self, path: str, size: int) -> None:
        """Shorten or lengthen a file, on the disk and in memory. The file may not be mapped."""
        with self._lock:
            node = self._node(path)
            node.live.truncate(size)
            node.durable.truncate(size)

    def save(self, directory: Path) -> None:
        """Write all files to a real directory, to look at them with the usual tools; holes stay holes."""
        with self._lock:
            for path in self.paths():
                content = self._node(path).live
                target = directory / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    out.truncate(content.size)
                    for number, page in content.pages.items():
                        out.seek(number * PAGE_BYTES)
                        out.write(page[: content.size - number * PAGE_BYTES])

    # --- the calls that count ---

    def _begin(self, call: str, path: str) -> _Fault | None:
        """Count a call, pull the plug if it is time, wait if it is slow; return the fault that makes it fail."""
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

    def _fault(self, call: str, path: str) -> _Fault | None:
        failing = None
        for fault in self._faults:
            if fault.hits(call, path):
                if fault.seconds:
                    self.clock.advance(fault.seconds)
                failing = failing or (fault if fault.error else None)
        return failing

    @contextlib.contextmanager
    def _reading(self, call: str, path: str) -> Iterator[None]:
        with self._lock:
            self._check_power()
            fault = self._fault(call, path) if self._faults else None
            if fault is not None:
                raise _error(fault.error, path)
            yield

    def _write(self, call: str, path: str, node: _Node, data: bytes, offset: int) -> None:
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
                raise _error(error, path)

    def _that_fits(self, node: _Node, offset: int, length: int) -> int:
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
        for directory in self._directories():
            for target in directory.live.values():
                if isinstance(target, _Node):
                    total += len(target.live.pages.keys() | target.reserved)
        return total * PAGE_BYTES

    def _reserve(self, path: str, node: _Node, offset: int, length: int) -> None:
        with self._lock:
            fault = self._begin("fallocate", path)
            if fault is not None:
                raise _error(fault.error, path)
            if self.capacity is not None:
                if self._that_fits(node, offset, length) < length:
                    raise _error(errno.ENOSPC, path)
                node.reserved.update(range(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)))

    def _truncate(self, path: str, node: _Node, size: int) -> None:
        with self._lock:
            fault = self._begin("truncate", path)
            if fault is not None:
                raise _error(fault.error, path)
            if size != node.live.size:
                node.change(("length", size, b""), self.clock.time_ms())
                node.reserved = {page for page in node.reserved if page * PAGE_BYTES < size}

    def _sync(self, path: str, node: _Node) -> None:
        with self._lock:
            fault = self._begin("fdatasync", path)
            if fault is not None:
                node.pending.clear()
                node.lost = True
                raise _error(fault.error, path)
            node.sync()

    def fsync_dir(self, path: str) -> None:
        """Bring the changes of names in one directory to the disk."""
        with self._lock:
            fault = self._begin("fsync_dir", path)
            directory = self._directory(path)
            if fault is not None:
                raise _error(fault.error, path)
            self._sync_names(directory)

    @staticmethod
    def _sync_names(directory: _Directory) -> None:
        for change in directory.pending[:]:
            change.apply(lambda d: d.durable)
            for other, _, _ in change.steps:
                if change in other.pending:
                    other.pending.remove(change)

    def sync_all(self) -> None:
        """Bring everything to the disk, without a word about errors."""
        with self._lock:
            fault = self._begin("sync_all", "/")
            for directory in list(self._directories()):
                self._sync_names(directory)
                for target in directory.live.values():
                    if isinstance(target, _Node):
                        if fault is not None:
                            target.pending.clear()
                            target.lost = True
                        target.sync()

    # --- names ---

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file; making one is a call that counts. Raises OSError as ``os.open`` does."""
        create = create and not read_only
        with self._lock:
            self._check_power()
            directory = self._directory(path.rpartition("/")[0])
            name = path.rpartition("/")[2]
            node = directory.live.get(name)
            if isinstance(node, _Directory):
                raise _error(errno.EISDIR, path)
            if node is None and not create:
                self._raise_fault("open", path)
                raise _error(errno.ENOENT, path)
            if node is None:
                fault = self._begin("open", path)
                if fault is not None:
                    raise _error(fault.error, path)
                node = _Node(next(self._numbers), self.clock.time_ms())
                self._rename_names((directory, name, node))
            else:
                self._raise_fault("open", path)
            return SimFile(self, path, node, read_only=read_only)

    def _raise_fault(self, call: str, path: str) -> None:
        fault = self._fault(call, path) if self._faults else None
        if fault is not None:
            raise _error(fault.error, path)

    def _rename_names(self, *steps: tuple[_Directory, str, _Node | _Directory | None]) -> None:
        change = _NameChange(next(self._numbers), *steps)
        change.apply(lambda d: d.live)
        for directory in {id(step[0]): step[0] for step in steps}.values():
            directory.pending.append(change)

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        with self._reading("read", path):
            content = self._node(path).live
            return content.read(content.size, 0)

    def list(self, path: str) -> list[Entry]:
        """Return the entries of a directory; a missing one is empty."""
        with self._reading("list", path):
            try:
                directory = self._directory(path)
            except FileNotFoundError:
                return []
            return sorted(
                Entry(name, True, 0) if isinstance(target, _Directory) else Entry(name, False, target.live.size)
                for name, target in directory.live.items()
            )

    def exists(self, path: str) -> bool:
        with self._reading("exists", path):
            try:
                self._find(path)
            except OSError:
                return False
            return True

    def identity(self, path: str) -> tuple[int, int]:
        """Return numbers that no other file has, also none of another SimFileSystem; device numbers are negative, real ones are not."""
        with self._reading("identity", path):
            return -self._device, self._find(path).number

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents; each one made is a call that counts."""
        with self._lock:
            self._check_power()
            directory = self._root
            done = ""
            for part in _parts(path):
                done += "/" + part
                found = directory.live.get(part)
                if isinstance(found, _Node):
                    raise _error(errno.EEXIST if done == "/" + "/".join(_parts(path)) else errno.ENOTDIR, done)
                if found is None:
                    fault = self._begin("make_dirs", done)
                    if fault is not None:
                        raise _error(fault.error, done)
                    found = _Directory(next(self._numbers))
                    self._rename_names((directory, part, found))
                directory = found

    def rename(self, old: str, new: str) -> None:
        """Move a file over another one's name or a new one. Directories stay where they are: EISDIR."""
        with self._lock:
            fault = self._begin("rename", new)
            if fault is not None:
                raise _error(fault.error, new)
            source, target = self._directory(old.rpartition("/")[0]), self._directory(new.rpartition("/")[0])
            node = source.live.get(old.rpartition("/")[2])
            if node is None:
                raise _error(errno.ENOENT, old)
            if isinstance(node, _Directory):
                raise _error(errno.EISDIR, old)
            if old != new:
                self._rename_names((source, old.rpartition("/")[2], None), (target, new.rpartition("/")[2], node))

    def unlink(self, path: str) -> None:
        with self._lock:
            fault = self._begin("unlink", path)
            if fault is not None:
                raise _error(fault.error, path)
            directory, name = self._directory(path.rpartition("/")[0]), path.rpartition("/")[2]
            node = directory.live.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
            if isinstance(node, _Directory):
                raise _error(errno.EISDIR, path)
            self._rename_names((directory, name, None))

    def remove_tree(self, path: str) -> None:
        """Remove a directory and what is in it, name by name; each is a call that counts."""
        with self._lock:
            self._check_power()
            try:
                parent = self._directory(path.rpartition("/")[0])
            except FileNotFoundError:
                return
            directory = parent.live.get(path.rpartition("/")[2])
            if directory is None:
                return
            if isinstance(directory, _Node):
                raise _error(errno.ENOTDIR, path)
            for name, target in list(directory.live.items()):
                if isinstance(target, _Directory):
                    self.remove_tree(f"{path}/{name}")
                else:
                    self.unlink(f"{path}/{name}")
            fault = self._begin("remove_tree", path)
            if fault is not None:
                raise _error(fault.error, path)
            self._rename_names((parent, path.rpartition("/")[2], None))

    def usage(self, path: str) -> tuple[int, int]:
        """Return the size of the disk and what is free of it; without a capacity a terabyte."""
        with self._reading("usage", path):
            total = 1 << 40 if self.capacity is None else self.capacity
            return total, max(0, total - self._used())

    def modified_ms(self, path: str) -> int:
        with self._reading("modified_ms", path):
            target = self._find(path)
            return target.modified_ms if isinstance(target, _Node) else self.clock.time_ms()

    def _find(self, path: str) -> _Node | _Directory:
        target: _Node | _Directory = self._root
        for part in _parts(path):
            if isinstance(target, _Node):
                raise _error(errno.ENOTDIR, path)
            found = target.live.get(part)
            if found is None:
                raise _error(errno.ENOENT, path)
            target = found
        return target

    def _directory(self, path: str) -> _Directory:
        target = self._find(path)
        if isinstance(target, _Node):
            raise _error(errno.ENOTDIR, path)
        return target

    def _node(self, path: str) -> _Node:
        target = self._find(path)
        if isinstance(target, _Directory):
            raise _error(errno.EISDIR, path)
        return target


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
