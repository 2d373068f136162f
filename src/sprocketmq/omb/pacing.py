"""When messages are due, and waiting until then more exactly than the milliseconds of event loops."""

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
import time

_ITIMERSPEC = struct.Struct("@qqqq")  # interval and value, each seconds and nanoseconds
_CLOCK_MONOTONIC = 1
_NS = 1_000_000_000


class Limiter:
    """Messages at a uniform rate: the n-th is due ``n / rate`` seconds after the start, however late those before it were sent."""

    def __init__(self, rate: float, start_ns: int) -> None:
        self.rate = rate
        self._start_ns = start_ns
        self._step_ns = _NS / rate
        self._taken = 0

    def due(self, now_ns: int) -> int:
        """Return how many messages are due and not taken."""
        return max(0, int((now_ns - self._start_ns) / self._step_ns) + 1 - self._taken)

    @property
    def next_ns(self) -> int:
        """The time at which the next message is due."""
        return self._start_ns + int(self._taken * self._step_ns)

    def take(self, count: int) -> int:
        """Take ``count`` messages; return when the first of them was due."""
        intended = self.next_ns
        self._taken += count
        return intended


class Alarm:
    """Waits for a moment: by a timerfd on Linux (late by some 50 us), elsewhere by the event loop (by up to 1 ms)."""

    def __init__(self) -> None:
        self._fd = _timerfd()
        self._rang = asyncio.Event()
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._ring)

    def _ring(self) -> None:
        assert self._fd is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._rang.set()

    async def until(self, moment_ns: int) -> None:
        """Return once ``time.perf_counter_ns()`` is at ``moment_ns``; at once when it is over."""
        left = moment_ns - time.perf_counter_ns()
        if left <= 0:
            await asyncio.sleep(0)
        elif self._fd is None:
            await asyncio.sleep(left / _NS)
        else:
            self._rang.clear()
            assert _libc is not None
            _libc.timerfd_settime(self._fd, 0, _ITIMERSPEC.pack(0, 0, left // _NS, left % _NS), None)
            await self._rang.wait()

    def close(self) -> None:
        """Give back the timer."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _timerfd() -> int | None:
    if _libc is None:
        return None
    fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return fd if fd >= 0 else None
