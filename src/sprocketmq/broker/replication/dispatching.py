"""Scheduling of a slave's derivation of queues and index: in steps between the reads of its socket."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sprocketmq.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

# A step takes a few milliseconds. A backlog makes steps larger, so that they keep pace with reads, which bring up to 4 MiB each.
STEP_BYTES = 1 << 20
# Less than a full step waits briefly for more: for single messages, a step costs as much as receiving and writing them.
GATHER_S = 0.002
MAX_STEP_BYTES = 8 << 20
_PILED_UP_STEPS = 16
RETRY_S = 1.0
# Arrivals that follow each other sooner than this count as one, and so do those within a hundredth of the age of the oldest.
_ARRIVAL_S = 0.01
_ARRIVAL_OF_AGE = 0.01


class Derivable(Protocol):
    """The log of a replica, as far as dispatching needs it."""

    @property
    def end(self) -> int: ...

    @property
    def dispatched_end(self) -> int: ...

    @property
    def derived_end(self) -> int: ...

    def dispatch(self, budget_bytes: int) -> bool: ...


class Arrivals:
    """The arrival times of bytes that queues or key index lack, as a small number of marks however long the bytes wait."""

    def __init__(self) -> None:
        # Oldest first: the log offset up to which bytes arrived, and the arrival time of the first of them.
        self._marks: deque[tuple[int, float]] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def oldest(self) -> float | None:
        """The arrival time of the oldest byte; None when nothing waits."""
        return self._marks[0][1] if self._marks else None

    def note(self, derived_end: int, end: int, now: float) -> None:
        """Record that the log ends at ``end`` now, and that queues and index have it up to ``derived_end``."""
        marks = self._marks
        if end <= (marks[-1][0] if marks else derived_end):
            return
        if marks and now - marks[-1][1] < max(_ARRIVAL_S, (now - marks[0][1]) * _ARRIVAL_OF_AGE):
            marks[-1] = end, marks[-1][1]
        else:
            marks.append((end, now))

    def derived(self, derived_end: int, end: int) -> None:
        """Drop the marks of bytes that queues and index have now."""
        marks = self._marks
        if derived_end >= end:  # the log may have been cut
            marks.clear()
        while marks and marks[0][0] <= derived_end:
            marks.popleft()


class Dispatching:
    """Dispatches what was appended to ``replica``. ``dispatched`` is called when records became visible, ``stepped`` after every step."""

    def __init__(
        self,
        replica: Derivable,
        *,
        name: str,
        dispatched: Callable[[], None],
        stepped: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._replica = replica
        self._name = name
        self._dispatched = dispatched
        self._stepped = stepped
        self._clock = clock
        self._arrivals = Arrivals()
        self._next: asyncio.Handle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._hurries = False
        self._failing = False
        self._stopped = False

    @property
    def backlog(self) -> int:
        """Bytes of log that the next steps dispatch; 0 while they fail, or nothing more is whole: waiting would not help."""
        return 0 if self._failing or self._next is None else self._replica.end - self._replica.dispatched_end

    @property
    def waiting_ms(self) -> int:
        """For how many milliseconds the oldest byte that queues or index lack has been in the log, or since the broker began to follow."""
        self._arrivals.derived(self._replica.derived_end, self._replica.end)
        oldest = self._arrivals.oldest
        return 0 if oldest is None else round((self._clock.monotonic() - oldest) * 1000)

    def soon(self) -> None:
        """Continue after a short delay, or in the next turn of the loop when a full step waits."""
        if self._stopped:
            return
        self._arrivals.note(self._replica.derived_end, self._replica.end, self._clock.monotonic())
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(GATHER_S, self._step)
        if not self._hurries and self._replica.end - self._replica.dispatched_end >= STEP_BYTES:
            self._hurries = True
            self._next.cancel()
            self._next = asyncio.get_running_loop().call_soon(self._step)

    def stop(self) -> None:
        """Dispatch nothing more."""
        self._stopped = True
        for handle in (self._next, self._again):
            if handle is not None:
                handle.cancel()
        self._next = self._again = None

    def _step(self) -> None:
        self._next = None
        self._hurries = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        replica = self._replica
        begin = replica.dispatched_end
        budget = min(max(STEP_BYTES, (replica.end - begin) // _PILED_UP_STEPS), MAX_STEP_BYTES)
        try:
            more = replica.dispatch(budget)
        except Exception:
            # The log is complete nevertheless; a disk without room for a queue file is tried again.
            if not self._failing:
                log.exception("%s: queues and index stay behind the log at %d, again every %g s", self._name, begin, RETRY_S)
            self._failing = True
            self._next = asyncio.get_running_loop().call_later(RETRY_S, self._step)
        else:
            self._failing = False
            if replica.dispatched_end != begin:
                self._dispatched()
            if more:
                self.soon()
            elif replica.dispatched_end < replica.end:  # after a damaged record the master may never send more
                self._again = asyncio.get_running_loop().call_later(RETRY_S, self._step)
        self._arrivals.derived(replica.derived_end, replica.end)
        self._stepped()
