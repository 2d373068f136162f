"""What a server does to a process that is its own. Programs that embed a server keep their settings."""

import gc
import sys

# How long a thread that computes may keep a server's loop waiting each time (``sys.setswitchinterval``). With Python's 5 ms the p99 of
# sends beside a group that reads from the disk is an eighth longer.
SWITCH_INTERVAL_S = 0.0005


def settle_own_process() -> None:
    """Exempt what is loaded from garbage collection, and let threads take turns often; called once the server is ready.

    A full collection would visit the 40,000 objects of the loaded modules every ten seconds or so under load, and stop the event loop for
    20 to 90 ms each time.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
