"""One broker per store directory: the file ``lock`` and an exclusive lock on its first byte, as the reference takes it."""

import threading

from sprocketmq.errors import StoreLocked
from sprocketmq.storage.fs import File, FileSystem

_CONTENT = b"lock"

# POSIX record locks belong to a process: they exclude other processes, but not a second store in this process.
_held: set[tuple[int, int]] = set()
_held_guard = threading.RLock()  # re-entrant: a simulated file system may open another store inside a call


class DirectoryLock:
    """The lock of one store directory, from construction until ``release``.

    Raises StoreLocked when another process, or another store of this process, holds it; OSError when the file cannot be made.
    """

    __slots__ = ("_file", "_identity")

    def __init__(self, fs: FileSystem, root: str) -> None:
        path = f"{root}/lock"
        with _held_guard:
            # Closing any descriptor of the file drops the process's lock on it, so look before opening.
            if fs.exists(path) and fs.identity(path) in _held:
                raise StoreLocked(root, _pid_of(fs, root))
            file = fs.open(path, create=True)
            try:
                taken = file.lock()
                if taken and file.size() == 0:
                    file.pwrite(_CONTENT, 0)
                self._identity = fs.identity(path)
            except OSError:
                file.close()
                raise
            if not taken:
                file.close()
                raise StoreLocked(root, _pid_of(fs, root))
            self._file: File | None = file
            _held.add(self._identity)

    def release(self) -> None:
        """Unlock the directory. May be called twice. The file stays, as two processes could lock a deleted one."""
        with _held_guard:
            if self._file is not None:
                self._file.close()
                self._file = None
                _held.discard(self._identity)


def _pid_of(fs: FileSystem, root: str) -> int | None:
    """Return the process id in the abort marker, the owner of the store, if it is known."""
    try:
        text = fs.read(f"{root}/abort").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) < 20 else None
