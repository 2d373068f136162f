"""Let clients meet what Windows lacks and does otherwise, on Linux (``make test-windows``).

Python imports this at its start, as the directory is on ``PYTHONPATH``. Only clients are supported there: modules of SprocketMQ that serve,
or that only Linux and macOS need, still see Linux, and so do other packages.
"""

import asyncio
import builtins
import errno
import fcntl
import inspect
import io
import os
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from proactor import Policy

_SERVING = (
    "broker cli.bench cli.dashboard cli.omb cli.serving cli.proxy cli.logs demo embedded namesrv omb processes proxy spark storage "
    "testing web net.listening net.newcomers net.own_process net.server net.tls_listener security.user_file"
)
# A test of what servers say on Windows sets the variable.
_SERVING_MODULES = () if "SPROCKETMQ_TEST_ALL_ON_WINDOWS" in os.environ else tuple(f"sprocketmq.{name}" for name in _SERVING.split())
_NO_MODULES = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "uvloop", "readline", "curses"}
_NAMES = {
    "os": (
        "O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC O_TMPFILE WNOHANG chown "
        "chroot ctermid eventfd fchmod fchown fdatasync fork forkpty fpathconf fwalk get_blocking getegid geteuid getgid getgroups "
        "getloadavg getpgid getpgrp getpriority getrandom getresuid getuid initgroups killpg lchown lockf major mkfifo mknod nice "
        "openpty pathconf pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn pread preadv pwrite pwritev readv "
        "register_at_fork sched_getaffinity sched_setaffinity sched_yield sendfile set_blocking setegid seteuid setgid setpgid "
        "setpriority setsid setuid statvfs sync sysconf tcgetpgrp ttyname uname wait wait3 wait4 writev"
    ),
    "signal": (
        "SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 "
        "SIGWINCH alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait "
        "sigwaitinfo"
    ),
    "socket": "AF_UNIX MSG_DONTWAIT MSG_NOSIGNAL SO_REUSEPORT recv_fds send_fds",
    "select": "epoll kqueue poll",
    "time": "clock_gettime clock_settime pthread_getcpuclockid tzset",
}
_MISSING = {module: frozenset(names.split()) for module, names in _NAMES.items()}
_CHANGED = (os, select, signal, socket, sys, time)
_VALUES = {"os": {"name": "nt"}, "sys": {"platform": "win32"}}
_TICK_NS = 15_625_000


def _on_windows(name: object) -> bool:
    name = str(name)
    return name.startswith("sprocketmq") and not name.startswith(_SERVING_MODULES)


def _is_client(frame: types.FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") == "pathlib":
        frame = frame.f_back
    return frame is not None and _on_windows(frame.f_globals.get("__name__"))


class _Module(types.ModuleType):
    """A module of the standard library without the names that Windows lacks; everything else is the real one's."""

    def __getattribute__(self, name: str) -> object:
        real = _REAL[id(self)]
        if name in _MISSING.get(real.__name__, ()):
            raise AttributeError(f"module {real.__name__!r} has no attribute {name!r} on Windows")
        values = _VALUES.get(real.__name__, {})
        return values[name] if name in values else getattr(real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_REAL[id(self)], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_REAL[id(self)], name)


_REAL: dict[int, types.ModuleType] = {}


def _is_open(path: Any) -> bool:
    wanted = os.path.realpath(path)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") == wanted:
                return True
        except OSError:
            continue
    return False


def _lock(descriptor: int, _mode: int, _length: int) -> None:
    """Lock a file as ``msvcrt.locking`` does without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def _install_imports() -> None:
    msvcrt = types.ModuleType("msvcrt")
    vars(msvcrt).update(LK_NBLCK=2, locking=_lock)
    modules = {real.__name__: _Module(real.__name__) for real in _CHANGED}
    _REAL.update((id(modules[real.__name__]), real) for real in _CHANGED)
    import_ = builtins.__import__

    def import_as_on_windows(name: str, importer: Any = None, *args: Any, **options: Any) -> Any:
        importer = options.get("globals", importer)
        if importer is not None and _on_windows(importer.get("__name__", "")):
            if name in _NO_MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in modules:
                return modules[name]
            if name == "msvcrt":
                return msvcrt
        return import_(name, *([] if "globals" in options else [importer]), *args, **options)

    builtins.__import__ = import_as_on_windows


def _install_files() -> None:
    open_, replace, rename, unlink, os_open, chmod = builtins.open, os.replace, os.rename, os.unlink, os.open, os.chmod

    def refuse_open_files(call: Callable[..., Any], *checked: int) -> Callable[..., Any]:
        """Return ``call`` that refuses the arguments at the positions ``checked`` that are open files."""

        def checking(*args: Any, **options: Any) -> Any:
            if _is_client(inspect.currentframe().f_back):  # type: ignore[union-attr]
                for path in (args[i] for i in checked):
                    if _is_open(path):
                        raise PermissionError(errno.EACCES, "The process cannot access the file because it is being used", path)
            return call(*args, **options)

        return checking

    def open_without_directories(path: Any, *args: Any, **options: Any) -> int:
        if _is_client(inspect.currentframe().f_back) and os.path.isdir(path):  # type: ignore[union-attr]
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return os_open(path, *args, **options)

    def open_without_proc(file: Any, *args: Any, **options: Any) -> Any:
        if isinstance(file, str | os.PathLike) and os.fspath(file).startswith("/proc/") and _is_client(inspect.currentframe().f_back):  # type: ignore[union-attr]
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return open_(file, *args, **options)

    def change_mode(path: Any, mode: int, **options: Any) -> None:
        """Windows knows only whether a file may be written."""
        if not _is_client(inspect.currentframe().f_back):  # type: ignore[union-attr]
            chmod(path, mode, **options)

    os.replace, os.rename = refuse_open_files(replace, 0, 1), refuse_open_files(rename, 0, 1)
    os.unlink = os.remove = refuse_open_files(unlink, 0)
    os.open, os.chmod = open_without_directories, change_mode
    builtins.open = io.open = open_without_proc


def _serves() -> bool:
    """Whether the command of this process serves."""
    return len(sys.argv) > 1 and sys.argv[1] in {"serve", "broker", "namesrv", "proxy", "dashboard"}


def _install_loop() -> None:
    """Give clients the proactor loop, and all loops its coarse clock."""
    if not _serves():
        asyncio.set_event_loop_policy(Policy())
    monotonic_ns, get_clock_info = time.monotonic_ns, time.get_clock_info

    def coarse_ns() -> int:
        return monotonic_ns() // _TICK_NS * _TICK_NS

    def clock_info(name: str) -> Any:
        found = get_clock_info(name)
        if name == "monotonic":
            found.resolution = _TICK_NS / 1e9
        return found

    time.monotonic_ns, time.monotonic, time.get_clock_info = coarse_ns, lambda: coarse_ns() / 1e9, clock_info


_install_imports()
_install_files()
_install_loop()
