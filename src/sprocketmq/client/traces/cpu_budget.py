"""A share of the event loop's time."""

import time
from collections.abc import Callable

# What may be spent at once after a quiet time: about 10,000 records.
MAX_CREDIT_S = 0.02


class CpuBudget:
    """Allows work that takes ``share`` of the time, 1 for no limit. ``now`` returns seconds."""

    __slots__ = ("_at", "_credit_s", "_now", "_share")

    def __init__(self, share: float, now: Callable[[], float] = time.perf_counter) -> None:
        self._share = share
        self._now = now
        self._at = now()
        self._credit_s = MAX_CREDIT_S

    def begin(self) -> bool:
        """Return whether work may begin; then ``end`` must follow."""
        if self._share >= 1:
            return True
        now = self._now()
        self._credit_s = min(MAX_CREDIT_S, self._credit_s + (now - self._at) * self._share)
        self._at = now
        return self._credit_s > 0

    def over(self) -> bool:
        """Return whether the work that has begun should end now."""
        return self._share < 1 and self._now() - self._at > self._credit_s

    def end(self) -> None:
        """Subtract the time since ``begin``."""
        if self._share < 1:
            now = self._now()
            self._credit_s -= now - self._at
            self._at = now
