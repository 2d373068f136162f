"""The clock interface: monotonic for durations, wall clock only for stored times."""

import time
from typing import Protocol


class Clock(Protocol):
    """The time, for every layer."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences are meaningful."""
        ...

    def time_ms(self) -> int:
        """Return wall-clock milliseconds since the epoch; may jump either way."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that only moves by ``advance`` and ``jump_wall``, for tests."""

    __slots__ = ("_monotonic", "_wall_ms")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic = 1_000.0
        self._wall_ms = wall_ms

    def monotonic(self) -> float:
        return self._monotonic

    def time_ms(self) -> int:
        return self._wall_ms

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._monotonic += seconds
        self._wall_ms += round(seconds * 1000)

    def jump_wall(self, seconds: float) -> None:
        """Move only the wall clock, forward or back, as a clock correction does."""
        self._wall_ms += round(seconds * 1000)


SYSTEM_CLOCK: Clock = SystemClock()
