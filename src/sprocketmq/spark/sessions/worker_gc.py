"""What a Python worker of Spark does in its first tasks, beside them."""

import gc

# The first task loads what all need; reading loads more, which the second one finds.
_SETTLING_TASKS = 2

_tasks = 0


def settle_worker() -> None:
    """Take what this process has loaded out of the garbage collector's sight; every task calls it as it begins.

    Spark has a worker collect garbage after every task. With pandas and pyarrow loaded that takes 45 ms of a core each time, as much as a
    small task itself, and finds nothing. For tasks only: what is garbage in another program is not ours to keep.
    """
    global _tasks
    if _tasks < _SETTLING_TASKS:
        _tasks += 1
        gc.collect()
        gc.freeze()
