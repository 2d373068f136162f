"""A share of the event loop's time."""

import time
from collections.abc import Callable

# What may be spent at once after a quiet time: about 3,000 records.
MAX_CREDIT_S = 0.005


class CpuBudget:
    """Allows work that takes ``share`` of the time, 1 for no limit.

    ``now`` returns seconds of the clock, ``cpu_now`` those of processor time of the calling thread, which others do not use up.
    """

    __slots__ = ("_at", "_began", "_cpu_now", "_credit_s", "_now", "_share")

    def __init__(self, share: float, now: Callable[[], float] = time.perf_counter, cpu_now: Callable[[], float] = time.thread_time) -> None:
        self._share = share
        self._now = now
        self._cpu_now = cpu_now
        self._at = now()
        self._began = 0.0
        self._credit_s = MAX_CREDIT_S

    def begin(self) -> bool:
        """Return whether work may begin; then ``end`` must follow."""
        if self._share >= 1:
            return True
        now = self._now()
        self._credit_s = min(MAX_CREDIT_S, self._credit_s + (now - self._at) * self._share)
        self._at = now
        if self._credit_s <= 0:
            return False
        self._began = self._cpu_now()
        return True

    def over(self) -> bool:
        """Return whether the work that has begun should end now."""
        return self._share < 1 and self._cpu_now() - self._began > self._credit_s

    def end(self) -> None:
        """Subtract the time since ``begin``."""
        if self._share < 1:
            self._credit_s -= self._cpu_now() - self._began
