"""Keep the garbage collector of a Spark Python worker from scanning loaded modules after every task."""

import gc

# The first task loads common modules; reading loads more, which the second task freezes.
_SETTLING_TASKS = 2

_tasks = 0


def settle_worker() -> None:
    """Freeze the objects this process has loaded (``gc.freeze``); called at the beginning of every task.

    A Spark worker collects garbage after every task. With pandas and pyarrow loaded each collection takes 45 ms of a core, as much as a
    small task, and finds nothing. For Spark tasks only: other programs must not have their garbage frozen.
    """
    global _tasks  # noqa: PLW0603 - one count per worker process
    if _tasks < _SETTLING_TASKS:
        _tasks += 1
        gc.collect()
        gc.freeze()
