"""Queue offsets: their JSON form in Spark's checkpoint, and how the starting and ending offsets of a read are resolved.

Pure functions: access to the brokers is passed in as a ``Cluster``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.option_values import OptionError

OFFSET_VERSION = 1
EARLIEST = -2
LATEST = -1

Offsets = dict[MessageQueue, int]


class WrongCheckpoint(ConfigError):
    """The checkpoint was written by another source, or by a query that read other topics."""


class Cluster(Protocol):
    """The requests to brokers that resolve a bound."""

    def at_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> Offsets:
        """Return for each queue the offset of its first message stored at ``timestamp_ms`` or later, or its end."""

    def group_offsets(self, group: str, queues: Sequence[MessageQueue]) -> Mapping[MessageQueue, int | None]:
        """Return the committed offset of ``group`` in each queue, None or no entry where it never committed."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The beginning or end of a read as stated by ``option``; exactly one of the other fields is set.

    ``place`` is EARLIEST, LATEST, or an offset (or one of the two) for each queue. ``times`` are milliseconds since 1970, for all queues
    or for each. ``group`` is a consumer group whose committed offsets are used.
    """

    option: str
    place: int | Offsets | None = None
    times: int | Offsets | None = None
    group: str | None = None


# --- the checkpoint -------------------------------------------------------------------------------------------------------


def encode_offsets(offsets: Mapping[MessageQueue, int], partitions: int | None = None) -> dict[str, Any]:
    """Return offsets as the JSON object Spark keeps in its checkpoint: ``{"v": 1, "topics": {"T": {"broker-a": {"0": 123}}}}``.

    A number is the next offset to read. Queues are sorted, so equal offsets give equal text. ``partitions`` is the number of partitions of
    the batch that ends here: with it in the checkpoint, a rerun is cut the same way on any machine and with any options.
    """
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    plan = {} if partitions is None else {"partitions": partitions}
    return {"v": OFFSET_VERSION, **plan, "topics": topics}


def decode_offsets(value: Mapping[str, Any]) -> Offsets:
    """Return what ``encode_offsets`` wrote. Raises WrongCheckpoint for anything else, such as the checkpoint of another source."""
    try:
        _require(value["v"] == OFFSET_VERSION)
        return {
            MessageQueue(topic, broker, int(queue_id)): _offset(offset)
            for topic, brokers in value["topics"].items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise WrongCheckpoint(
            f"the checkpoint holds offsets this version of the rocketmq source did not write ({str(value)[:200]}):"
            " use the checkpoint directory the query was started with, or a new one"
        ) from None


def decode_partitions(value: Mapping[str, Any]) -> int | None:
    """Return the number of partitions of the batch that ends at these offsets, None when it is not stored."""
    partitions = value.get("partitions")
    return partitions if isinstance(partitions, int) and partitions > 0 else None


def _offset(value: Any) -> int:
    _require(type(value) is int and value >= 0)
    return int(value)


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError


# --- bounds ---------------------------------------------------------------------------------------------------------------


def settle(
    bound: Bound,
    cluster: Cluster,
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    *,
    error_without_match: bool = False,
) -> Offsets:
    """Return the offset at which a read begins or ends in each queue of ``latest``.

    Offsets and times given queue by queue must name every queue and no other. A time after the last message of a queue means the queue's
    end, or is an error with ``error_without_match``. A queue in which a group never committed begins at its earliest offset; a group
    without any committed offset is an error. Raises OptionError. Does not check that the broker has a message at the offset.
    """
    if bound.times is not None:
        return _at_times(bound, bound.times, cluster, latest, error_without_match)
    if bound.group is not None:
        return _at_group(bound, bound.group, cluster, earliest)
    place = bound.place
    if isinstance(place, dict):
        _check_all_named(bound.option, place, latest, "give every queue an offset, -2 (earliest) or -1 (latest)")
        words = {EARLIEST: earliest, LATEST: latest}
        return {queue: words[offset][queue] if (offset := place[queue]) in words else offset for queue in latest}
    return dict(earliest if place == EARLIEST else latest)


def _at_times(
    bound: Bound, times: int | Offsets, cluster: Cluster, latest: Mapping[MessageQueue, int], error_without_match: bool
) -> Offsets:
    if isinstance(times, int):
        times = dict.fromkeys(latest, times)
    else:
        _check_all_named(bound.option, times, latest, "give every queue a time")
    offsets: Offsets = {}
    for time_ms in sorted(set(times.values())):
        offsets |= cluster.at_time([queue for queue in sorted(latest) if times[queue] == time_ms], time_ms)
    if error_without_match:
        for queue in sorted(offsets):
            if offsets[queue] >= latest[queue]:
                raise OptionError(
                    bound.option,
                    f"{name_queue(queue)} has no message stored at {times[queue]} or later; give an earlier time, or set"
                    " startingOffsetsByTimestampStrategy to latest to begin at its end",
                )
    return offsets


def _at_group(bound: Bound, group: str, cluster: Cluster, earliest: Mapping[MessageQueue, int]) -> Offsets:
    queues = sorted(earliest)
    committed = cluster.group_offsets(group, queues)
    found = {queue: offset for queue in queues if (offset := committed.get(queue)) is not None}
    if queues and not found:
        topics = ", ".join(sorted({queue.topic for queue in queues}))
        raise OptionError(bound.option, f"group {group!r} has committed no offset in any queue of {topics}; is that its name?")
    return {queue: found.get(queue, earliest[queue]) for queue in queues}


def _check_all_named(option: str, named: Iterable[MessageQueue], there: Iterable[MessageQueue], else_do: str) -> None:
    named, there = set(named), set(there)
    for queue in sorted(named - there):
        raise OptionError(option, f"there is no {name_queue(queue)}; there are {name_some([name_queue(each) for each in sorted(there)])}")
    for queue in sorted(there - named):
        raise OptionError(option, f"{name_queue(queue)} is missing; {else_do}")


def name_queue(queue: MessageQueue) -> str:
    """Return the description of a queue for messages."""
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"


def name_some(names: Sequence[str]) -> str:
    """Return names joined by commas: the first eight, and how many more there are."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more or "none"


# --- the checkpoint and the topics of a query -----------------------------------------------------------------------------


def check_same_topics(kept: Iterable[MessageQueue], unwanted: Iterable[MessageQueue], wanted: str, *, strict: bool) -> list[MessageQueue]:
    """Return the queues of a checkpoint (``kept``) that its query no longer reads (``unwanted``).

    ``wanted`` describes what the query reads now. Raises WrongCheckpoint when no queue is left, or with ``strict`` for any such queue.
    """
    kept = sorted(kept)
    left = sorted(unwanted)
    if left and (strict or len(left) == len(kept)):
        had = ", ".join(sorted({queue.topic for queue in kept}))
        hint = "" if len(left) == len(kept) else " (failOnDataLoss=false goes on without what is not read any more)"
        raise WrongCheckpoint(
            f"the checkpoint belongs to a query of other topics: it has offsets of {had}, and this query reads {wanted}, without"
            f" {name_queue(left[0])}. Read what was read before, or give the query a checkpoint directory of its own{hint}"
        )
    return left
