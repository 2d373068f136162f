"""The lag of a broker's event loop: how long a request waits for its turn."""

import asyncio
from collections import deque
from collections.abc import Callable

PROBE_S = 0.25
# The longest delay of this time is shown, so that a scrape every 15 seconds misses none.
WINDOW_S = 15.0


class LoopLag:
    """Probes the running loop, and keeps the delays of the last ``WINDOW_S`` seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._delays: deque[float] = deque(maxlen=int(WINDOW_S / PROBE_S))

    async def probe(self) -> None:
        """Measure one delay."""
        due = self._now() + PROBE_S
        await asyncio.sleep(PROBE_S)
        self._delays.append(max(0.0, self._now() - due))

    async def run(self) -> None:
        """Go on measuring."""
        while True:
            await self.probe()

    @property
    def longest_s(self) -> float:
        """The longest delay of the last ``WINDOW_S`` seconds."""
        return max(self._delays, default=0.0)
