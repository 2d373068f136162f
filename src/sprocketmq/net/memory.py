"""Memory of a process: of frames, which are allocated and freed by the megabyte, and of what it has loaded."""

import gc
from functools import cache

# glibc raises its dynamic M_MMAP_THRESHOLD to the largest mmapped block that was freed, 32 MiB at most, and keeps twice as much free
# memory. Below that threshold every batch would fault in fresh pages, a fifth of its cost.
_THRESHOLD_BYTES = 31 << 20


@cache
def keep_freed_memory() -> None:
    """Raise glibc's dynamic M_MMAP_THRESHOLD to 32 MiB, once in a process. It has no effect with other allocators."""
    bytes(_THRESHOLD_BYTES)


def freeze_what_is_loaded() -> None:
    """Exempt all objects of this process from garbage collection (``gc.freeze``); called once a server of its own process is ready.

    A full collection would visit the 40,000 objects of the loaded modules every ten seconds or so under load, and stop the event loop for
    20 to 90 ms each time. Programs that embed a server keep their own collection as it is.
    """
    gc.collect()
    gc.freeze()
