"""Connections of a guarded server before their first admitted request: how many there are, for how long, and what memory they take."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Newcomer(Protocol):
    """A connection without a login."""

    @property
    def retained_bytes(self) -> int:
        """What it holds in memory between two reads."""
        ...

    def abort(self, reason: str) -> None:
        """Close at once."""
        ...


N = TypeVar("N", bound=Newcomer)


@dataclass(frozen=True)
class NewcomerLimits:
    """``connections`` that have no admitted request yet, ``seconds`` until each has one, and ``retained_bytes`` of all of them together."""

    connections: int = 1_000
    seconds: float = 10.0
    retained_bytes: int = 64 << 20


class Newcomers(Generic[N]):
    """The newcomers of one server. ``closed`` is called with a connection that broke a limit and the reason, before it is aborted.

    The oldest of too many is closed: silent strangers keep no client out, as a client logs in at once.
    """

    def __init__(self, limits: NewcomerLimits, closed: Callable[[N, str], None]) -> None:
        self._limits = limits
        self._closed = closed
        # By arrival, which is also the order of deadlines: when it arrived, and its bytes in ``retained_bytes``.
        self._arrived: dict[N, float] = {}
        self._retained: dict[N, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.retained_bytes = 0

    def __len__(self) -> int:
        return len(self._arrived)

    def add(self, link: N) -> None:
        """Record a new connection."""
        loop = asyncio.get_running_loop()
        if len(self._arrived) >= self._limits.connections:
            self._close(next(iter(self._arrived)), f"{self._limits.connections} newer connections have not logged in either, the limit")
        self._arrived[link] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._limits.seconds, self._expire, loop)

    def received(self, link: N) -> bool:
        """Count what ``link`` retains after a read; return False when it was closed because all newcomers together retain too much."""
        retained = link.retained_bytes
        before = self._retained.get(link, 0)
        if retained == before:
            return True
        self.retained_bytes += retained - before
        self._retained[link] = retained
        if retained > before and self.retained_bytes > self._limits.retained_bytes:
            self._close(link, f"connections without a login would take more than {self._limits.retained_bytes} bytes, the limit")
            return False
        return True

    def discard(self, link: N) -> None:
        """Forget a connection that was admitted or has ended."""
        if self._arrived.pop(link, None) is None:
            return
        self.retained_bytes -= self._retained.pop(link, 0)
        if not self._arrived and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self, link: N, reason: str) -> None:
        self.discard(link)
        self._closed(link, reason)
        link.abort(reason)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        seconds = self._limits.seconds
        now = loop.time()
        for link, arrived in list(self._arrived.items()):
            if arrived + seconds > now:
                self._timer = loop.call_at(arrived + seconds, self._expire, loop)
                return
            self._close(link, f"no login within {seconds:g} s")
