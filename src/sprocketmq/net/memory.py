"""Memory for frames, which come and go by the megabyte."""

# The C library of Linux takes the largest block that was ever freed as its measure: it keeps twice as much free memory instead of giving
# it back to the system. 32 MiB is the most it takes for a measure; below that, every batch would pay for fresh pages again, a fifth of
# all it costs.
_MEASURE_BYTES = 31 << 20


def keep_freed_memory() -> None:
    """Have this process keep up to 32 MiB of freed memory for use again; costs some microseconds, and nothing where it has no effect."""
    bytes(_MEASURE_BYTES)
