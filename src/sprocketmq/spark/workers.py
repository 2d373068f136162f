"""What a Python worker of Spark does once, beside its tasks."""

import gc

_settled = False


def settle_worker() -> None:
    """Take what this process has loaded out of the garbage collector's sight, once.

    Spark has a worker collect garbage after every task. With pandas and pyarrow loaded that takes 45 ms of a core each time, as much as a
    small task itself, and finds nothing. For tasks only: what is garbage in another program is not ours to keep.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
