"""Memory at hand for as long as a benchmark writes.

A machine that has run for long has no free memory: what a broker writes goes to pages that the system used before. The host of a virtual
machine takes free memory back within seconds, and a KiB of page cache costs up to 2 us more where it has to be provided again. A benchmark
of a few seconds would measure that, on the side that had the bad luck.
"""

import contextlib
import mmap
import threading
import time
from collections.abc import Iterator

import psutil

PIECE_BYTES = 32 << 20
# More than a load writes to a log in a second, by its operation; those at a given rate, and readers, need none.
LOG_BYTES_PER_S = {"load_submit": 1 << 30, "load_batch": 1 << 30, "load_single": 1 << 28}


@contextlib.contextmanager
def provided_memory(op: str, seconds: float, *, logs: int = 1) -> Iterator[None]:
    """Touch what a load of ``seconds`` seconds may write to ``logs`` logs before the block, and free it evenly during those seconds.

    That is at most half of the memory available. Freed all at once, most would be the host's again before it is used.
    """
    count = int(LOG_BYTES_PER_S.get(op, 0) * seconds * logs)
    number = min(count, psutil.virtual_memory().available // 2) // PIECE_BYTES
    pieces = [touched(PIECE_BYTES) for _ in range(number)]
    ended = threading.Event()

    def free() -> None:
        began = time.monotonic()
        while pieces:
            if ended.wait(max(0.0, began + (number - len(pieces)) / number * seconds - time.monotonic())):
                break
            pieces.pop().close()

    freeing = threading.Thread(target=free)
    freeing.start()
    try:
        yield
    finally:
        ended.set()
        freeing.join()
        for piece in pieces:
            piece.close()


def touched(count: int) -> mmap.mmap:
    """Return ``count`` bytes of memory that the host has provided, in huge pages where the system has them."""
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for begin in range(0, count, mmap.PAGESIZE):
        memory[begin] = 1
    return memory
