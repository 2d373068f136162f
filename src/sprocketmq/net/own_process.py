"""What a server does to a process that is its own. Programs that embed a server keep their settings."""

import gc
import sys
import time
from collections.abc import Callable

# How long a thread that computes may keep a server's loop waiting each time (``sys.setswitchinterval``). With Python's 5 ms the p99 of
# sends beside a group that reads from the disk is an eighth longer.
SWITCH_INTERVAL_S = 0.0005

# How long garbage that refers to itself may stay in memory when it became garbage after it had survived a full collection.
THAW_S = 600.0


class Survivors:
    """Exempts what has survived a full garbage collection from the following ones, for ``THAW_S`` at a time; a callback for ``gc``.

    A full collection stops the event loop, and one of a broker with 10,000 clients would last 50 ms. Most of what it visits lives as long
    as its connection and is freed by its reference count.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._thaw_at = now() + THAW_S

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "stop":
            gc.freeze()
        elif self._now() >= self._thaw_at:
            self._thaw_at = self._now() + THAW_S
            gc.unfreeze()


def settle_own_process() -> None:
    """Exempt what is loaded from garbage collection, later what has survived one, and let threads take turns often.

    Called once the server is ready. A full collection would visit the 40,000 objects of the loaded modules every ten seconds or so under
    load, and stop the event loop for 20 to 90 ms each time.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(Survivors())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
