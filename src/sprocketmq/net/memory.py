"""Memory of frames, which is allocated and freed by the megabyte."""

# glibc raises its dynamic M_MMAP_THRESHOLD to the largest mmapped block that was freed, 32 MiB at most, and keeps twice as much free
# memory. Below that threshold every batch would fault in fresh pages, a fifth of its cost.
_THRESHOLD_BYTES = 31 << 20


def keep_freed_memory() -> None:
    """Raise glibc's dynamic M_MMAP_THRESHOLD to 32 MiB. Takes some microseconds, and has no effect with other allocators."""
    bytes(_THRESHOLD_BYTES)
