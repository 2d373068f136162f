"""Rate-limited warnings about peers: anybody who can connect can cause them."""

import logging
from collections import Counter
from collections.abc import Callable

INTERVAL_S = 10.0
MAX_LINES = 10
MAX_KEYS = 1_000


class PeerLog:
    """Warnings about peers: in ``INTERVAL_S`` seconds at most one for each key, usually the peer's host, and ``MAX_LINES`` altogether.

    The next warning or ``sweep`` after that time logs in one line how many were left out. Memory is bounded: keys beyond ``MAX_KEYS``
    are counted together.
    """

    def __init__(self, log: logging.Logger, time: Callable[[], float]) -> None:
        self._log = log
        self._time = time
        self._ends = 0.0
        self._lines = 0
        # Lines left out by key, 0 for a key whose only warning was logged; "" stands for all keys beyond the limit.
        self._left_out: Counter[str] = Counter()

    def warning(self, key: str, message: str, *args: object, trace: bool = False) -> None:
        """Log one warning about ``key``, or count it; ``trace`` adds the traceback of the exception being handled."""
        if self._time() >= self._ends:
            self.sweep()
            self._ends = self._time() + INTERVAL_S
        known = key in self._left_out
        if not known and self._lines < MAX_LINES:
            self._lines += 1
            self._left_out[key] = 0
            self._log.warning(message, *args, exc_info=trace)
        else:
            self._left_out[key if known or len(self._left_out) < MAX_KEYS else ""] += 1

    def sweep(self) -> None:
        """Log how many warnings were left out, once their interval is over."""
        if self._time() < self._ends:
            return
        if total := self._left_out.total():
            key, most = self._left_out.most_common(1)[0]
            named = f", {most:,} of them about {key}" if key else ""
            self._log.warning("%s more warnings like these in %g s were left out%s", f"{total:,}", INTERVAL_S, named)
        self._left_out.clear()
        self._lines = 0
