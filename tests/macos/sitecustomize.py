"""Let the tests and the processes they start meet what macOS lacks and does otherwise, on Linux (``make test-macos``).

Python imports this at its start, as the directory is on ``PYTHONPATH``. What belongs to Linux is gone from the modules of the standard
library, and SprocketMQ is told that the system is macOS. Other packages still see Linux, as they would import what is not here.
"""

import builtins
import errno
import fcntl
import inspect
import io
import mmap
import os
import signal
import socket
import sys
import types

_ONLY_LINUX = {
    os: (
        *(
            "copy_file_range",
            "eventfd",
            "fdatasync",
            "getrandom",
            "memfd_create",
            "pidfd_open",
            "pipe2",
            "posix_fadvise",
            "posix_fallocate",
        ),
        *("sched_getaffinity", "sched_setaffinity", "setns", "splice", "unshare", "waitid"),
        *("O_DIRECT", "O_NOATIME", "O_PATH", "O_TMPFILE", "RWF_APPEND", "RWF_DSYNC", "RWF_HIPRI", "RWF_NOWAIT", "RWF_SYNC"),
    ),
    mmap: ("MADV_COLLAPSE", "MADV_DONTDUMP", "MADV_DONTFORK", "MADV_HUGEPAGE", "MADV_REMOVE", "MAP_POPULATE", "MAP_STACK"),
    signal: ("SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT", "pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    socket: (
        *("MSG_ERRQUEUE", "MSG_NOSIGNAL", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_BINDTODEVICE", "SO_DOMAIN", "SO_PEERCRED", "SO_PROTOCOL"),
        *("TCP_CORK", "TCP_DEFER_ACCEPT", "TCP_INFO", "TCP_KEEPIDLE", "TCP_QUICKACK", "TCP_USER_TIMEOUT"),
    ),
}
_F_FULLFSYNC = 51


def _is_ours(frame: types.FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") == "pathlib":
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("sprocketmq")


class _Sys(types.ModuleType):
    platform = "darwin"

    def __getattr__(self, name: str) -> object:
        return getattr(sys, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(sys, name, value)


def _install() -> None:
    for module, names in _ONLY_LINUX.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
        if hasattr(module, "__all__"):
            module.__all__ = [name for name in module.__all__ if name not in names]
    if hasattr(os, "process_cpu_count"):  # since Python 3.13
        os.process_cpu_count = os.cpu_count
    system = _Sys("sys")
    import_, open_, control, fsync, lseek = builtins.__import__, builtins.open, fcntl.fcntl, os.fsync, os.lseek

    def import_as_on_macos(name, importer=None, *args, **options):
        importer = options.get("globals", importer)
        if name == "sys" and importer is not None and str(importer.get("__name__", "")).startswith("sprocketmq"):
            return system
        return import_(name, *([] if "globals" in options else [importer]), *args, **options)

    def open_without_proc(file, *args, **options):
        if isinstance(file, str | os.PathLike) and os.fspath(file).startswith("/proc/") and _is_ours(inspect.currentframe().f_back):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return open_(file, *args, **options)

    def control_with_full_sync(fd, command, *args):
        if command == _F_FULLFSYNC:
            fsync(fd)
            return 0
        return control(fd, command, *args)

    def seek_without_dirty_data(fd, position, how):
        """Find no data in a file that was written to lately, as APFS may."""
        if how == os.SEEK_DATA:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return lseek(fd, position, how)

    builtins.__import__ = import_as_on_macos
    builtins.open = io.open = open_without_proc
    fcntl.F_FULLFSYNC, fcntl.fcntl = _F_FULLFSYNC, control_with_full_sync
    os.lseek = seek_without_dirty_data


_install()
