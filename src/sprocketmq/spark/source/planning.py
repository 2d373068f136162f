"""Plan which queue ranges a query reads and which task reads them: pure functions of offsets, so a rerun plans the same.

Nothing here uses the network, the clock or the live route. A micro-batch that Spark runs again after a failure must be cut into the same
partitions as before, from its start and end offsets alone.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.source.offsets import Offsets

# A task costs about 40 ms of a core, in which one reads some 10,000 rows: fewer rows than this do not justify another task.
MIN_PARTITION_ROWS = 8192
# The same in bytes, for large messages.
MIN_PARTITION_BYTES = 8 << 20
# Assumed while no message of the topic is known.
GUESSED_MESSAGE_BYTES = 1024


class QueueRange(NamedTuple):
    """The messages of one queue with start <= queue offset < end."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the non-empty ranges from ``start`` to ``end``, in queue order.

    A queue without a start is new and begins at ``end``: it is read from the next batch on. An end below the start (a topic that was
    created anew) gives no range.
    """
    return [QueueRange(queue, start[queue], stop) for queue, stop in sorted(end.items()) if queue in start and start[queue] < stop]


def admit(start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], max_rows: int | None) -> Offsets:
    """Return the end of the next batch: ``latest``, or ``max_rows`` rows in all when more are waiting.

    The rows are divided in proportion to what waits in each queue, rounded down. The remainder goes to the queues in order, one row each,
    so exactly ``max_rows`` rows are taken and no queue starves. A queue that is new in ``latest`` does not move.
    """
    end = dict(latest)
    waiting = {queue: max(0, stop - start.get(queue, stop)) for queue, stop in sorted(latest.items())}
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return end
    left = max_rows
    for queue, rows in waiting.items():
        if queue in start:
            share = rows * max_rows // total
            end[queue] = start[queue] + share
            left -= share
    for queue, rows in waiting.items():
        if not left:
            break
        if queue in start and end[queue] - start[queue] < rows:
            end[queue] += 1
            left -= 1
    return end


def admit_bytes(
    start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], max_bytes: int, mean: Callable[[MessageQueue], float]
) -> Offsets:
    """Return the end of the next batch when it may take about ``max_bytes``; ``mean`` is the message size of a queue.

    All queues advance by the same share of what waits in them, and by at least one message.
    """
    end = dict(latest)
    waiting = {queue: rows for queue, stop in latest.items() if queue in start and (rows := stop - start[queue]) > 0}
    total = sum(rows * mean(queue) for queue, rows in waiting.items())
    if total > max_bytes:
        for queue, rows in waiting.items():
            end[queue] = start[queue] + max(1, int(rows * (max_bytes / total)))
    return end


class MeanSizes:
    """The mean message size of each queue from samples, weighted towards later ones."""

    def __init__(self) -> None:
        self._seen: dict[MessageQueue, tuple[float, float]] = {}

    def note(self, queue: MessageQueue, size: int, rows: int) -> None:
        """Add a sample of ``rows`` messages with ``size`` bytes in all. A sample without rows is ignored."""
        if rows > 0:
            old_size, old_rows = self._seen.get(queue, (0.0, 0.0))
            self._seen[queue] = (old_size / 2 + size, old_rows / 2 + rows)

    def of(self, queue: MessageQueue) -> float:
        """Return the mean message size of ``queue``: its own, else that of all queues, else a guess."""
        if queue in self._seen:
            size, rows = self._seen[queue]
            return size / rows
        if not self._seen:
            return GUESSED_MESSAGE_BYTES
        return sum(size for size, _ in self._seen.values()) / sum(rows for _, rows in self._seen.values())


def count_partitions(rows: int, most: int, *, least: int = 1, max_rows: int | None = None, row_bytes: float = GUESSED_MESSAGE_BYTES) -> int:
    """Return the number of partitions for ``rows`` rows of about ``row_bytes`` each.

    At most ``most``, fewer for few rows; at least ``least``, and enough for ``cut_ranges`` to put at most ``max_rows`` rows into each.
    Never more than there are rows.
    """
    worth = max(1, min(MIN_PARTITION_ROWS, int(MIN_PARTITION_BYTES / row_bytes)))
    wanted = max(min(most, -(-rows // worth)), least)
    if max_rows is not None and rows > max_rows:
        # Cuts may move by an eighth on either side.
        wanted = max(wanted, -(-rows * 5 // (max_rows * 4)))
    return min(wanted, rows)


def cut_ranges(ranges: Sequence[QueueRange], pieces: int) -> list[list[QueueRange]]:
    """Divide ranges into ``pieces`` lists of about equal size (up to a quarter above the mean), or fewer when some would be empty.

    The ranges are laid end to end in queue order and cut into equal pieces. A cut near the border of a range moves there, so small ranges
    stay whole and only big ones are split. Ranges are in order within each piece.
    """
    line = [r for r in sorted(ranges) if len(r) > 0]
    total = sum(map(len, line))
    if pieces <= 1:
        return [line] if line else []
    near = total // pieces // 8
    borders = [0]
    for r in line:
        borders.append(borders[-1] + len(r))
    cuts = []
    for i in range(1, pieces):
        cut = total * i // pieces
        at = bisect_left(borders, cut)
        border = min(borders[max(at - 1, 0) : at + 1], key=lambda b: abs(b - cut))
        cuts.append(border if abs(border - cut) <= near else cut)
    planned: list[list[QueueRange]] = []
    first = 0
    for low, high in pairwise(sorted({0, *cuts, total})):
        part = []
        while borders[first + 1] <= low:
            first += 1
        for i in range(first, len(line)):
            if borders[i] >= high:
                break
            r, at = line[i], borders[i]
            part.append(QueueRange(r.queue, r.start + max(low - at, 0), r.start + min(high - at, len(r))))
        planned.append(part)
    return planned
