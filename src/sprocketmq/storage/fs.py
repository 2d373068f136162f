"""The only module of storage that calls the operating system; a simulated file system can replace it.

Every call raises OSError as the system does. Nothing here depends on a file format. Paths are plain strings: ``os`` turns ``Path`` into
them anyway, and a queue's file is opened often.
"""

import contextlib
import errno
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, Protocol

from sprocketmq.errors import NotOnWindows

# Files are read and written at offsets here, and renamed and deleted while they are open.
if sys.platform == "win32":
    raise NotOnWindows

Buffer = bytes | bytearray | memoryview

# The errors of a full disk: no blocks left, the user's quota used up, or the file longer than files may be.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

# The kernel takes at most this many pieces in one gathering write (IOV_MAX of Linux and macOS).
MAX_PIECES = 1024
# Files that are read whole are small; the queue snapshot of a hundred thousand queues has some megabytes.
MAX_READ_BYTES = 256 << 20


class Entry(NamedTuple):
    """One name in a directory; ``size`` is 0 for a directory."""

    name: str
    is_dir: bool
    size: int


class File(Protocol):
    """An open file, read and written at explicit offsets."""

    path: str

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data`` at ``offset``; after an OSError it is unknown how much was written."""
        ...

    def pwritev(self, pieces: Sequence[Buffer], offset: int) -> None:
        """Write ``pieces`` one after the other from ``offset`` on, all of them, in as few system calls as the kernel allows."""
        ...

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def map(self, length: int) -> memoryview:
        """Return a read-only view of the first ``length`` bytes that shows later writes too; it stays readable after ``close``."""
        ...

    def data_after(self, offset: int) -> int | None:
        """Return the position of the first possibly non-zero byte at or after ``offset``, or None when only holes follow."""
        ...

    def fdatasync(self) -> None:
        """Return once everything written is on the disk."""
        ...

    def fallocate(self, offset: int, length: int) -> None:
        """Reserve disk blocks for a range inside the file without changing its content or length."""
        ...

    def truncate(self, size: int) -> None:
        """Set the file's length; a longer file gains a hole of zeros."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def lock(self) -> bool:
        """Take the exclusive lock on the first byte for this process; False when another process has it."""
        ...

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        ...


class FileSystem(Protocol):
    """The operations that storage needs of a file system."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file to read and write; with ``create`` make it (empty) when it is missing, with ``read_only`` never change it."""
        ...

    def read(self, path: str) -> bytes:
        """Return a whole (small) file; OSError (EFBIG) for one of more than ``MAX_READ_BYTES``."""
        ...

    def list(self, path: str) -> list[Entry]:
        """Return the entries of a directory sorted by name; a missing directory is empty."""
        ...

    def exists(self, path: str) -> bool: ...

    def identity(self, path: str) -> tuple[int, int]:
        """Return device and inode, which are equal for two paths of the same file."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents; an existing one is fine."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file its new name in one step, over an existing one."""
        ...

    def unlink(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything in it; a missing one is fine."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Return once names made, changed and removed in the directory are on the disk."""
        ...

    def sync_all(self) -> None:
        """Return once everything written anywhere is on the disk, without reporting errors."""
        ...

    def usage(self, path: str) -> tuple[int, int]:
        """Return the total and the free bytes of the disk that holds ``path``."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when the file was last written, in wall-clock milliseconds."""
        ...


class RealFile:
    """A descriptor of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pwrite(self, data: Buffer, offset: int) -> None:
        written = _pwrite(self._fd, data, offset)
        if written != len(data):
            view = memoryview(data)
            while written < len(view):  # interrupted by a signal or a full disk; the next call shows which
                written += _progress(os.pwrite(self._fd, view[written:], offset + written))

    def pwritev(self, pieces: Sequence[Buffer], offset: int) -> None:
        for first in range(0, len(pieces), MAX_PIECES):
            group = pieces[first : first + MAX_PIECES]
            total = sum(map(len, group))
            written = os.pwritev(self._fd, group, offset)
            if written != total:
                self.pwrite(memoryview(b"".join(group))[written:], offset + written)
            offset += total

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def is_cached(self, begin: int, end: int) -> bool:
        """Return whether bytes ``[begin, end)`` are in the page cache, without waiting for the disk; true where that cannot be told."""
        if _NO_WAIT == 0:
            return True
        try:
            return os.preadv(self._fd, [bytearray(end - begin)], begin, _NO_WAIT) == end - begin
        except BlockingIOError:
            return False
        except OSError:
            return True  # not every file system supports this

    def map(self, length: int) -> memoryview:
        if self._fd < 0:  # mmap would return an anonymous mapping
            raise OSError(errno.EBADF, "the file is closed", self.path)
        # The view keeps the mapping alive, so it need not be closed while a socket still sends buffers of it.
        return memoryview(mmap.mmap(self._fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))

    def data_after(self, offset: int) -> int | None:
        try:
            if _FINDS_DATA:
                return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return None
            if e.errno != errno.EINVAL:  # a file system without holes
                raise
        return offset if offset < self.size() else None  # everything may be data

    def fdatasync(self) -> None:
        _fdatasync(self._fd)

    def fallocate(self, offset: int, length: int) -> None:
        if _fallocate is not None:
            try:
                _fallocate(self._fd, offset, length)
            except OSError as e:
                if e.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:  # not every file system can
                    raise

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def lock(self) -> bool:
        import fcntl

        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as e:
            if e.errno in {errno.EACCES, errno.EAGAIN}:
                return False
            raise
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFileSystem:
    """The machine's own files."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        if read_only:
            # Without O_NONBLOCK, opening a named pipe in place of the file would wait for a writer.
            return RealFile(path, os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        return RealFile(path, os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644))

    def read(self, path: str) -> bytes:
        file = RealFile(path, os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        try:
            size = file.size()
            if size > MAX_READ_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            return file.pread(size, 0)
        finally:
            file.close()

    def list(self, path: str) -> list[Entry]:
        return sorted(self._entries(path))

    @staticmethod
    def _entries(path: str) -> Iterator[Entry]:
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):
                    is_dir = entry.is_dir()
                    yield Entry(entry.name, is_dir, 0 if is_dir else entry.stat().st_size)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    def identity(self, path: str) -> tuple[int, int]:
        found = os.stat(path)  # noqa: PTH116
        return found.st_dev, found.st_ino

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)  # noqa: PTH105

    def exchange(self, one: str, other: str) -> bool:
        """Exchange the names of two files or directories atomically; return whether this system can. Raises OSError otherwise."""
        try:
            import ctypes
        except ImportError:  # Python was built without libffi
            return False
        renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if renameat2 is None:
            return False
        if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
            return True
        error = ctypes.get_errno()
        if error in {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}:  # not every kernel and file system can
            return False
        raise OSError(error, os.strerror(error), one)

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def remove_tree(self, path: str) -> None:
        import shutil

        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        os.sync()

    def usage(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        # Blocks only the superuser may have count as neither, as in what df shows.
        return (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116


def data_places(file: File, start: int, end: int, step: int) -> list[int]:
    """Return where the pieces of ``step`` bytes begin that may hold data in ``[start, end)`` of a file, whose holes are left out.

    All of them are found before the caller reads one: the system reads ahead, and what it has read of a hole counts as data from then on.
    """
    places = []
    found = file.data_after(start)
    while found is not None and found < end:
        places.append(found)
        found = file.data_after(found + step)
    return places


def will_need(view: memoryview, begin: int, end: int) -> None:
    """Tell the system that bytes ``[begin, end)`` of a mapping are about to be read, so that it reads ahead. Ignores other views."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        first = begin - begin % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, first, min(end, len(view)) - first)


def unmap_pages(view: memoryview, begin: int, end: int) -> None:
    """Remove the pages of ``[begin, end)`` of a mapping from this process; they stay in the page cache. Ignores other views."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        first = begin - begin % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, min(end, len(view)) - first)


def mapped_file_bytes() -> int:
    """Return the resident bytes of mapped files of this process; 0 where the system does not report them."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - several times a second
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


def resident(view: memoryview, begin: int, end: int) -> bool:
    """Return whether bytes ``[begin, end)`` of a mapping are in the page cache; true where the system cannot tell, and for other views."""
    _, pages = _pages_in_core(view, begin, end)
    return not pages.count(0)


def missing_parts(view: memoryview, begin: int, end: int, most: int) -> list[tuple[int, int]] | None:
    """Return the parts of bytes ``[begin, end)`` of a mapping that are not in the page cache: whole pages, but for the last one's end.

    None when they are more than ``most`` bytes; no parts where the system cannot tell, and for other views.
    """
    first, pages = _pages_in_core(view, begin, end)
    if pages.count(0) * mmap.PAGESIZE > most:
        return None
    runs = [run.span() for run in re.finditer(rb"\0+", pages)]
    return [(first + start * mmap.PAGESIZE, min(first + stop * mmap.PAGESIZE, end)) for start, stop in runs]


def _pages_in_core(view: memoryview, begin: int, end: int) -> tuple[int, bytearray]:
    """Return where the first page of bytes ``[begin, end)`` begins, and 1 for each page that is in the page cache, 0 for others.

    No pages where the system cannot tell.
    """
    mapped = view.obj
    mincore = _mincore()
    first = begin - begin % mmap.PAGESIZE
    if mincore is None or not isinstance(mapped, mmap.mmap) or begin >= end:
        return first, bytearray()
    pages = bytearray(-(-(end - first) // mmap.PAGESIZE))
    if mincore(view, first, end - first, pages) != 0:
        return first, bytearray()
    return first, pages.translate(_IN_CORE)


def cached_part(file: File, begin: int, end: int) -> bool:
    """Return whether bytes ``[begin, end)`` of a file are in the page cache; true where the system cannot tell."""
    return not isinstance(file, RealFile) or file.is_cached(begin, end)


def read_through(path: str, parts: Iterable[tuple[int, int]]) -> None:
    """Read parts of a file, each from its begin to its end, into the page cache and drop them. A file that cannot be read is left alone."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        for begin, end in parts:
            piece = memoryview(bytearray(min(end - begin, _READ_THROUGH_BYTES)))
            while begin < end and (count := os.preadv(fd, [piece[: end - begin]], begin)) > 0:
                begin += count  # noqa: PLW2901
    except OSError:
        return
    finally:
        os.close(fd)


def read_around_cache(path: str, begin: int, end: int, into: memoryview) -> bool:
    """Read bytes ``[begin, end)`` of a file to the start of ``into`` without the page cache; return whether the system can.

    Both positions and the address of ``into`` have to be multiples of the page size. Raises OSError when the file cannot be read.
    """
    if _DIRECT == 0:
        return False
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | _DIRECT)
        done = 0
        while begin + done < end:
            done += _progress(os.preadv(fd, [into[done : end - begin]], begin + done))
    except OSError as e:
        if e.errno in {errno.EINVAL, errno.EOPNOTSUPP}:  # not every file system can, nor can one for every position
            return False
        raise
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def reusable_memory(length: int) -> memoryview:
    """Return memory that is read into again and again, at an address that is a multiple of the page size; in huge pages where it can be."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return memoryview(mmap.mmap(-1, length))
    mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped)


@cache
def _mincore() -> Callable[[memoryview, int, int, bytearray], int] | None:
    """Return the C library's ``mincore`` for a part of a mapping, its begin and its length; None where there is none."""
    try:
        import ctypes
    except ImportError:  # Python was built without libffi
        return None
    function = getattr(ctypes.PyDLL(None), "mincore", None)
    if function is None:
        return None
    # Py_buffer begins with the address; only the interpreter needs the rest.
    description = (ctypes.c_void_p * 16)()
    get_buffer, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release

    def mincore(view: memoryview, begin: int, length: int, pages: bytearray) -> int:
        get_buffer(ctypes.py_object(view), description, 0)
        address = description[0] or 0
        release(description)
        vector = (ctypes.c_ubyte * len(pages)).from_buffer(pages)
        result: int = function(ctypes.c_void_p(address + begin), ctypes.c_size_t(length), vector)
        return result

    return mincore


# The errors of a write that has failed. A second call need not report it again: the system may have dropped what it could not write.
_LOST = NO_ROOM | {errno.EIO, errno.ENXIO}


def _full_sync() -> Callable[[int], None] | None:
    """Return the call that brings a file to the disk on macOS, whose ``fsync`` leaves it in the drive's cache; None elsewhere."""
    import fcntl

    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is None:
        return None

    def full_sync(fd: int) -> None:
        try:
            fcntl.fcntl(fd, command)
        except OSError as e:
            if e.errno in _LOST:
                raise
            os.fsync(fd)  # a file system without it, and each says so with another error

    return full_sync


def _progress(written: int) -> int:
    if written <= 0:
        raise OSError(errno.EIO, "the system moved no bytes and gave no reason")
    return written


_pwrite = os.pwrite
_fsync: Callable[[int], None] = _full_sync() or os.fsync
_fdatasync: Callable[[int], None] = _full_sync() or (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)
# macOS says that a hole is where data lies that has not been written back, and has no preallocation by this name.
_FINDS_DATA = hasattr(os, "SEEK_DATA") and sys.platform != "darwin"
_fallocate = getattr(os, "posix_fallocate", None)
# Linux only.
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_DIRECT: int = getattr(os, "O_DIRECT", 0)
# mincore's answer for a page: its lowest bit says whether it is there, the others are undefined.
_IN_CORE = bytes(value & 1 for value in range(256))
_READ_THROUGH_BYTES = 1 << 20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

REAL_FS: FileSystem = RealFileSystem()
