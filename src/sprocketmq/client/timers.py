"""All timers of one client: a heap of due times behind a single timer of the event loop."""

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import count

from sprocketmq.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)


class Timer:
    """An action to run later, unless cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Timers:
    """Runs actions when they are due on ``clock``.

    Tests pass a clock that they advance and then call ``run_due``, without waiting for real time. An action that raises is logged and does
    not affect others.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_due = 0.0
        self._closed = False
        self._sleepers: set[asyncio.Future[None]] = set()

    def call_later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Call ``action`` in ``delay_s`` seconds; after ``close`` it is never called."""
        timer = Timer(action)
        if not self._closed:
            due = self._clock.monotonic() + delay_s
            heapq.heappush(self._heap, (due, next(self._order), timer))
            self._arm()
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Wait ``delay_s`` seconds, or until ``close``."""
        if self._closed:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, lambda: None if done.done() else done.set_result(None))
        self._sleepers.add(done)
        try:
            await done
        finally:
            self._sleepers.discard(done)
            timer.cancel()

    def run_due(self) -> int:
        """Run all due actions and return how many there were."""
        now = self._clock.monotonic()
        ran = 0
        heap = self._heap
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            action, timer.action = timer.action, None
            if action is None:
                continue
            ran += 1
            try:
                action()
            except Exception:
                log.exception("a timed action failed")
        self._arm()
        return ran

    def close(self) -> None:
        """Drop every action; sleeping tasks continue at once."""
        self._closed = True
        self._heap.clear()
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
        if not heap:
            if self._handle is not None:
                self._handle.cancel()
                self._handle = None
            return
        due = heap[0][0]
        if self._handle is not None:
            if self._handle_due <= due:
                return
            self._handle.cancel()
        self._handle_due = due
        self._handle = asyncio.get_running_loop().call_later(max(0.0, due - self._clock.monotonic()), self._fire)

    def _fire(self) -> None:
        self._handle = None
        self.run_due()
