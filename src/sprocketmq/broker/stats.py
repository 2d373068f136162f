"""Rates of a broker's counters over the last 10 seconds, minute and ten minutes."""

import time
from collections import deque

from sprocketmq.broker.metrics.counters import BrokerCounters
from sprocketmq.broker.metrics.windows import SAMPLE_INTERVAL_S
from sprocketmq.clock import SYSTEM_CLOCK, Clock

WINDOWS_S = (10, 60, 600)


class Stats:
    """Samples of ``counters``; ``sample`` is called every 10 seconds and feeds the rates."""

    __slots__ = (
        "_clock",
        "_day",
        "_morning",
        "_samples",
        "_yesterday",
        "counters",
    )

    COUNTERS = ("put_messages", "put_bytes", "get_found", "get_missed", "get_messages", "get_bytes")

    def __init__(self, counters: BrokerCounters, clock: Clock = SYSTEM_CLOCK) -> None:
        self.counters = counters
        self._clock = clock
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=int(WINDOWS_S[-1] / SAMPLE_INTERVAL_S) + 1)
        self._day = self._today()
        self._morning = self._yesterday = (0, 0)
        self.sample()

    def _today(self) -> int:
        local = time.localtime(self._clock.time_ms() / 1000)
        return local.tm_year * 1000 + local.tm_yday

    def _now(self) -> tuple[int, ...]:
        return tuple(getattr(self.counters, name) for name in self.COUNTERS)

    def sample(self) -> None:
        """Record the current counters."""
        self._samples.append((self._clock.monotonic(), self._now()))
        today = self._today()
        if today != self._day:
            self._day = today
            self._yesterday, self._morning = self._morning, (self.counters.put_messages, self.counters.get_messages)

    def rate(self, counter: str, window_s: float) -> float:
        """Return how much ``counter`` grew per second over the last ``window_s`` seconds, or since the start when that is shorter."""
        at = self.COUNTERS.index(counter)
        now = self._clock.monotonic()
        then, values = self._samples[0]
        for moment, sampled in reversed(self._samples):
            then, values = moment, sampled
            if now - moment >= window_s:
                break
        elapsed = now - then
        return float(getattr(self.counters, counter) - values[at]) / elapsed if elapsed > 0 else 0.0

    def rates(self, counter: str) -> str:
        """Return the rates over the three windows as tools expect them: numbers, each followed by a blank."""
        return " ".join(f"{self.rate(counter, window):.4f}" for window in WINDOWS_S) + " "

    def table(self) -> dict[str, str]:
        """Return the counters under the names of a broker's runtime information (28)."""
        counters = self.counters
        total = " ".join(f"{self.rate('get_found', w) + self.rate('get_missed', w):.4f}" for w in WINDOWS_S) + " "
        average = counters.put_bytes / counters.put_messages if counters.put_messages else 0.0
        return {
            "bootTimestamp": str(counters.started_ms),
            "startAcceptSendRequestTimeStamp": str(counters.started_ms),
            "putTps": self.rates("put_messages"),
            "getFoundTps": self.rates("get_found"),
            "getMissTps": self.rates("get_missed"),
            "getTotalTps": total,
            "getTransferredTps": self.rates("get_messages"),
            "getTransferedTps": self.rates("get_messages"),  # rocketmq-exporter spells it like this, and drops all of 28 without it
            "msgPutTotalTodayNow": str(counters.put_messages),
            "msgPutTotalTodayMorning": str(self._morning[0]),
            "msgPutTotalYesterdayMorning": str(self._yesterday[0]),
            "msgGetTotalTodayNow": str(counters.get_messages),
            "msgGetTotalTodayMorning": str(self._morning[1]),
            "msgGetTotalYesterdayMorning": str(self._yesterday[1]),
            "putMessageTimesTotal": str(counters.put_messages),
            "putMessageSizeTotal": str(counters.put_bytes),
            "putMessageFailedTimes": str(counters.put_failed),
            "putMessageAverageSize": f"{average:.1f}",
            "putMessageEntireTimeMax": str(round(counters.max_commit_s * 1000)),
        }
