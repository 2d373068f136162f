"""Loading numpy for the index, which takes 0.1 s: never in a process whose index has little to do, in a thread in a busy one.

The modules ``index_arrays`` and ``key_hashing`` need numpy; every other module of the index imports them inside functions for this reason.
"""

import sys
import threading


def arrays_loaded() -> bool:
    """Return whether the modules that need numpy are loaded."""
    return "sprocketmq.storage.index.index_arrays" in sys.modules


def load_arrays() -> None:
    """Load the modules that need numpy."""
    from sprocketmq.storage.index import index_arrays, key_hashing  # noqa: F401


class ArraysLoader:
    """Loads the modules in a thread, once."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def loaded(self, wait_s: float) -> bool:
        """Start loading unless that has been done; return whether it has finished within ``wait_s``."""
        if self.thread is None:
            if arrays_loaded():
                return True
            self.thread = threading.Thread(target=load_arrays, name="sprocketmq-numpy", daemon=True)
            self.thread.start()
        self.thread.join(wait_s)
        if self.thread.is_alive():
            return False
        self.thread = None
        return True

    def join(self) -> None:
        """Wait until a running load has finished."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
