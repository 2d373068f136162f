"""Memory of frames, which are allocated and freed by the megabyte."""

from functools import cache

# glibc raises its dynamic M_MMAP_THRESHOLD to the largest mmapped block that was freed, 32 MiB at most, and keeps twice as much free
# memory. Below that threshold every batch would fault in fresh pages, a fifth of its cost.
_THRESHOLD_BYTES = 31 << 20


@cache
def keep_freed_memory() -> None:
    """Raise glibc's dynamic M_MMAP_THRESHOLD to 32 MiB, once in a process. It has no effect with other allocators."""
    bytes(_THRESHOLD_BYTES)
