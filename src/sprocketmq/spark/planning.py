"""Which queue ranges a query reads, and which task reads which: pure functions of offsets, so a rerun plans the same.

Nothing here looks at the network, the clock or the live route. A micro-batch that Spark runs again after a failure must be cut into
the same partitions as before, from nothing but its start and end offsets.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue

OFFSET_VERSION = 1
# A task costs about 40 ms of a core, the time in which one reads some 10,000 rows: fewer rows than this are not worth a task more.
MIN_PARTITION_ROWS = 8192

Offsets = dict[MessageQueue, int]


class QueueRange(NamedTuple):
    """The messages of one queue with start <= queue offset < end."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Return offsets as the JSON object Spark keeps in its checkpoint: ``{"v": 1, "topics": {"T": {"broker-a": {"0": 123}}}}``.

    A number is the next offset to read. Queues are in order, so equal offsets give equal text.
    """
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return {"v": OFFSET_VERSION, "topics": topics}


def decode_offsets(value: Mapping[str, Any]) -> Offsets:
    """Return what ``encode_offsets`` wrote. Raises ConfigError for anything else, such as the checkpoint of another source."""
    if value.get("v") != OFFSET_VERSION or not isinstance(value.get("topics"), Mapping):
        raise ConfigError(
            f"the checkpoint holds offsets this version of the rocketmq source did not write ({str(value)[:200]}):"
            " use the checkpoint directory the query was started with, or a new one"
        )
    return {
        MessageQueue(topic, broker, int(queue_id)): offset
        for topic, brokers in value["topics"].items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the non-empty ranges from ``start`` to ``end``, in queue order.

    A queue without a start is new in ``end`` and begins there: it is read from the next batch on. An end below the start (a topic
    made anew) has nothing to read.
    """
    return [QueueRange(queue, start[queue], stop) for queue, stop in sorted(end.items()) if queue in start and start[queue] < stop]


def admit(start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], max_rows: int | None) -> Offsets:
    """Return how far the next batch goes: to ``latest``, or ``max_rows`` rows in all when more are waiting.

    The rows are shared out in proportion to what waits in each queue, rounded down; what rounding leaves goes one by one to the queues
    in order, so ``max_rows`` rows are taken exactly and no queue starves. A queue that is new in ``latest`` stays at its place.
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


def plan_partitions(ranges: Sequence[QueueRange], max_partitions: int) -> list[list[QueueRange]]:
    """Pack ranges into at most ``max_partitions`` lists of about equal size; fewer when there are few rows.

    The ranges are laid end to end in queue order and the line is cut into equal pieces. A cut that falls near the border of a range
    moves there, so small ranges stay whole and only big ones are split; each range is in order within its partition.
    """
    line = [r for r in sorted(ranges) if len(r) > 0]
    total = sum(map(len, line))
    pieces = min(max_partitions, -(-total // MIN_PARTITION_ROWS))
    if pieces <= 1:
        return [line] if line else []
    near = max(total // pieces // 8, MIN_PARTITION_ROWS // 8)
    borders = [0]
    for r in line:
        borders.append(borders[-1] + len(r))
    cuts = []
    for i in range(1, pieces):
        cut = total * i // pieces
        border = min(borders, key=lambda b: abs(b - cut))
        cuts.append(border if abs(border - cut) <= near else cut)
    planned: list[list[QueueRange]] = []
    edges = sorted({0, *cuts, total})
    for low, high in pairwise(edges):
        part = []
        for r, at in zip(line, borders, strict=False):
            start, end = max(low, at), min(high, at + len(r))
            if start < end:
                part.append(QueueRange(r.queue, r.start + start - at, r.start + end - at))
        planned.append(part)
    return planned
