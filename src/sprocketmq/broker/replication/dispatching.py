"""When a slave derives queues and index: in steps between the reads of its socket."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

# A step takes a few milliseconds. What has piled up makes steps larger, so that they keep pace with reads, which bring up to 4 MiB each.
STEP_BYTES = 1 << 20
# Less than a step waits for more for a moment: for single messages, a step costs as much as receiving and writing them.
GATHER_S = 0.002
MAX_STEP_BYTES = 8 << 20
_PILED_UP_STEPS = 16
RETRY_S = 1.0


class Derivable(Protocol):
    """The log of a replica, as far as dispatching needs it."""

    @property
    def end(self) -> int: ...

    @property
    def dispatched_end(self) -> int: ...

    def dispatch(self, budget_bytes: int) -> bool: ...


class Dispatching:
    """Dispatches what was appended to ``replica``. ``dispatched`` is called when records became visible, ``stepped`` after every step."""

    def __init__(self, replica: Derivable, *, name: str, dispatched: Callable[[], None], stepped: Callable[[], None]) -> None:
        self._replica = replica
        self._name = name
        self._dispatched = dispatched
        self._stepped = stepped
        self._next: asyncio.Handle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._hurries = False
        self._failing = False
        self._stopped = False

    @property
    def backlog(self) -> int:
        """Bytes of log that the next steps dispatch; 0 while they fail, or nothing more is whole: waiting would not help."""
        return 0 if self._failing or self._next is None else self._replica.end - self._replica.dispatched_end

    def soon(self) -> None:
        """Go on in a moment, or with the next turn of the loop when a step's worth waits."""
        if self._stopped:
            return
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
            # The log is complete all the same; a disk without room for a queue file is asked again.
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
            elif replica.dispatched_end < replica.end:  # behind a damaged record the master may never send more
                self._again = asyncio.get_running_loop().call_later(RETRY_S, self._step)
        self._stepped()
