"""Where the units of a queue begin whose records are still in the log, also when some units are damaged."""

from bisect import bisect_left
from collections.abc import Callable

from sprocketmq.protocol.layout import FILLER_SIZE


def first_kept(low: int, high: int, place: Callable[[int], tuple[int, int]], log_min: int, log_end: int) -> int:
    """Return the number of the first unit of ``[low, high)`` whose record may be in the log ``[log_min, log_end)``, ``high`` without one.

    ``place`` returns log offset and size of a unit. Units lead to records in the log's order. A damaged one, such as zeros, leads anywhere:
    it counts as one of a record in the log, so that reading it repairs it, unless a sound unit after it leads to one that has left.
    """

    def left(number: int) -> bool:
        at, size = place(number)
        return 0 <= at < log_min and 0 < size < FILLER_SIZE

    def stays(number: int) -> bool:
        at, size = place(number)
        return log_min <= at < log_end and 0 < size < FILLER_SIZE

    if low < high and stays(low):  # of most queues no record has left
        return low
    first = low
    while True:
        first += bisect_left(range(first, high), True, key=lambda number: not left(number))
        sound = first
        while sound < high and not left(sound) and not stays(sound):
            sound += 1
        if sound == high or stays(sound):
            break
        first = sound + 1
    # A unit that seems to lead before the log, after one that leads into it, is damaged.
    while first - 2 >= low and stays(first - 2):
        first = low + bisect_left(range(low, first - 2), True, key=lambda number: not left(number))
    return first
