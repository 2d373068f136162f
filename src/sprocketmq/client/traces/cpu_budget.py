"""A share of the event loop's time."""

import time
from collections.abc import Callable

# What may be spent at once after a quiet time: about 3,000 records.
MAX_CREDIT_S = 0.005
# When it is used up, work pauses until this much is available again: records in a row cost less than single ones.
RESUME_S = 0.0002
# A record takes 1 to 10 us; longer durations include interruptions by other threads or processes, which must not count.
MOST_S = 20e-6


class CpuBudget:
    """Allows work that takes ``share`` of the time, 1 for no limit. ``now`` returns seconds.

    It looks at the clock, as asking for processor time is a system call, which may take 20 us.
    """

    __slots__ = ("_began", "_credit_s", "_seen", "_share", "now", "rests_until")

    def __init__(self, share: float, now: Callable[[], float] = time.perf_counter) -> None:
        self._share = share
        self.now: Callable[[], float] = now
        self._began = self._seen = now()
        self._credit_s = MAX_CREDIT_S
        # Until then ``begin`` returns False.
        self.rests_until: float = self._began

    def begin(self) -> bool:
        """Return whether work may begin; then ``end`` must follow."""
        if self._share >= 1:
            return True
        now = self.now()
        if now < self.rests_until:
            return False
        self._credit_s = min(MAX_CREDIT_S, self._credit_s + (now - self._seen) * self._share)
        self._began = self._seen = now
        if self._credit_s > 0:
            return True
        self.rests_until = now + (RESUME_S - self._credit_s) / self._share
        return False

    def begin_anyway(self) -> None:
        """Begin work that has to be done however little time there is; then ``end`` must follow."""
        if self._share < 1:
            self._began = self.now()

    def over(self) -> bool:
        """Return whether the work that has begun should end now."""
        return self._share < 1 and self.now() - self._began > self._credit_s

    def end(self, records: int) -> None:
        """Subtract the time since ``begin``, in which so many records were made or looked at."""
        if self._share < 1:
            self._credit_s -= min(self.now() - self._began, (records + 1) * MOST_S)
