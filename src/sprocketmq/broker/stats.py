"""Counters of a broker, and rates over the last 10 seconds, minute and ten minutes."""

import time
from collections import deque

from sprocketmq.clock import SYSTEM_CLOCK, Clock

WINDOWS_S = (10, 60, 600)
SAMPLE_INTERVAL_S = 10.0


class Stats:
    """Plain counters the hot paths add to; ``sample`` is called every 10 seconds and feeds the rates."""

    __slots__ = (
        "_clock",
        "_day",
        "_got_samples",
        "_morning",
        "_samples",
        "_yesterday",
        "get_bytes",
        "get_found",
        "get_messages",
        "get_missed",
        "got",
        "max_commit_s",
        "now",
        "put_bytes",
        "put_failed",
        "put_messages",
        "put_requests",
        "started_ms",
    )

    COUNTERS = ("put_messages", "put_bytes", "get_found", "get_missed", "get_messages", "get_bytes")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.now = clock.monotonic
        self.put_messages = self.put_bytes = self.put_requests = self.put_failed = 0
        self.get_found = self.get_missed = self.get_messages = self.get_bytes = 0
        self.got: dict[tuple[str, str], int] = {}
        self._got_samples: deque[tuple[float, dict[tuple[str, str], int]]] = deque(maxlen=int(60 / SAMPLE_INTERVAL_S) + 1)
        self.max_commit_s = 0.0
        self.started_ms = clock.time_ms()
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=int(WINDOWS_S[-1] / SAMPLE_INTERVAL_S) + 1)
        self._day = self._today()
        self._morning = self._yesterday = (0, 0)
        self.sample()

    def _today(self) -> int:
        local = time.localtime(self._clock.time_ms() / 1000)
        return local.tm_year * 1000 + local.tm_yday

    def _now(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self.COUNTERS)

    def sample(self) -> None:
        """Record the current counters."""
        self._samples.append((self._clock.monotonic(), self._now()))
        self._got_samples.append((self._clock.monotonic(), dict(self.got)))
        today = self._today()
        if today != self._day:
            self._day = today
            self._yesterday, self._morning = self._morning, (self.put_messages, self.get_messages)

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
        return float(getattr(self, counter) - values[at]) / elapsed if elapsed > 0 else 0.0

    def note_got(self, topic: str, group: str, count: int) -> None:
        """Count messages of a topic that were sent to a group."""
        key = (topic, group)
        self.got[key] = self.got.get(key, 0) + count

    def got_in_a_minute(self, topic: str, group: str) -> int:
        """Return how many messages of a topic were sent to a group in the last minute, to the precision of the samples."""
        key = (topic, group)
        now = self._clock.monotonic()
        before = 0
        for moment, sampled in self._got_samples:
            if now - moment <= 60:
                before = sampled.get(key, 0)
                break
        return self.got.get(key, 0) - before

    def rates(self, counter: str) -> str:
        """Return the rates over the three windows as tools expect them: numbers, each followed by a blank."""
        return " ".join(f"{self.rate(counter, window):.4f}" for window in WINDOWS_S) + " "

    def table(self) -> dict[str, str]:
        """Return the counters under the names of a broker's runtime information (28)."""
        total = " ".join(f"{self.rate('get_found', w) + self.rate('get_missed', w):.4f}" for w in WINDOWS_S) + " "
        average = self.put_bytes / self.put_messages if self.put_messages else 0.0
        return {
            "bootTimestamp": str(self.started_ms),
            "startAcceptSendRequestTimeStamp": str(self.started_ms),
            "putTps": self.rates("put_messages"),
            "getFoundTps": self.rates("get_found"),
            "getMissTps": self.rates("get_missed"),
            "getTotalTps": total,
            "getTransferredTps": self.rates("get_messages"),
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgPutTotalTodayMorning": str(self._morning[0]),
            "msgPutTotalYesterdayMorning": str(self._yesterday[0]),
            "msgGetTotalTodayNow": str(self.get_messages),
            "msgGetTotalTodayMorning": str(self._morning[1]),
            "msgGetTotalYesterdayMorning": str(self._yesterday[1]),
            "putMessageTimesTotal": str(self.put_messages),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageFailedTimes": str(self.put_failed),
            "putMessageAverageSize": f"{average:.1f}",
            "putMessageEntireTimeMax": str(round(self.max_commit_s * 1000)),
        }
