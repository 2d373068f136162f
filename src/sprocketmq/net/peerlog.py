"""Rate-limited events about peers: anybody who can connect can cause them."""

import logging
from collections import Counter
from collections.abc import Callable

from sprocketmq.events import event

INTERVAL_S = 10.0
MAX_LINES = 10
MAX_KEYS = 1_000


class PeerLog:
    """Events about peers: in ``INTERVAL_S`` seconds at most one of a name and key, usually the peer's host, and ``MAX_LINES`` altogether.

    The next event or ``sweep`` after that time logs in one line for each event how many were left out. Memory is bounded: keys beyond
    ``MAX_KEYS`` are counted together.
    """

    def __init__(self, log: logging.Logger, time: Callable[[], float], *, level: int = logging.WARNING) -> None:
        self._log = log
        self._time = time
        self._level = level
        self._ends = 0.0
        self._lines = 0
        # By event: lines left out by key, 0 for a key whose only event was logged; "" stands for all keys beyond the limit.
        self._left_out: dict[str, Counter[str]] = {}
        self._keys = 0

    def event(self, key: str, name: str, /, *, trace: bool = False, **fields: object) -> None:
        """Log one event about ``key``, or count it; ``trace`` adds the traceback of the exception being handled."""
        if self._time() >= self._ends:
            self.sweep()
            self._ends = self._time() + INTERVAL_S
        left_out = self._left_out.setdefault(name, Counter())
        known = key in left_out
        if not known and self._lines < MAX_LINES:
            self._lines += 1
            self._keys += 1
            left_out[key] = 0
            event(self._log, self._level, name, exc_info=trace, **fields)
        elif known or self._keys < MAX_KEYS:
            self._keys += not known
            left_out[key] += 1
        else:
            left_out[""] += 1

    def sweep(self) -> None:
        """Log how many events were left out, once their interval is over."""
        if self._time() < self._ends:
            return
        for name, left_out in self._left_out.items():
            if total := left_out.total():
                key, most = left_out.most_common(1)[0]
                event(
                    self._log,
                    self._level,
                    "events_left_out",
                    of=name,
                    count=total,
                    interval_s=INTERVAL_S,
                    most_about=key or None,
                    most=most if key else None,
                )
        self._left_out.clear()
        self._lines = self._keys = 0
