"""The time by which delayed messages come due."""

from sprocketmq.clock import Clock


class ForwardClock:
    """Wall-clock milliseconds that never decrease: when the clock is set back, time continues at the pace of the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ms = clock.time_ms()
        self._since = clock.monotonic()

    def now_ms(self) -> int:
        now, wall_ms = self._clock.monotonic(), self._clock.time_ms()
        passed_ms = int((now - self._since) * 1000)
        if wall_ms > self._ms + passed_ms:
            self._ms, self._since = wall_ms, now
        else:  # keep fractions of a millisecond: otherwise calls less than a millisecond apart would stop the clock
            self._ms, self._since = self._ms + passed_ms, self._since + passed_ms / 1000
        return self._ms

    def not_before(self, ms: int) -> None:
        """Continue from ``ms`` if it is later."""
        self._ms = max(self._ms, ms)
