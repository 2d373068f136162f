"""Rebalancing strategies: how the queues of a topic are shared among members, as pure functions.

See docs/internals/consumers.md#sharing-queues.

Every member computes its own share from the same two lists, so all members of a group must use the same strategy. The results equal those
of the Java client, so members in Java and in Python can share one group.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import md5

from sprocketmq.errors import ConfigError, RebalanceFailed
from sprocketmq.net.loops import ends_program
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.sharing import average, circle

Share = Callable[[list[MessageQueue], list[str], str], Iterable[MessageQueue]]
Rebalance = str | Mapping[str, Iterable[MessageQueue]] | Share

# Points of each member on the ring of consistent hashing.
VIRTUAL_NODES = 10


def consistent_hash(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> Sequence[MessageQueue]:
    """Give each queue to the member that follows it on a ring of hashes: a member that joins or leaves moves few queues."""
    points, owners = _ring(tuple(members))
    # After the last point comes the first again.
    return [queue for queue in queues if owners[bisect_left(points, _hash(_java_text(queue))) % len(points)] == me]


STRATEGIES: Mapping[str, Share] = {"average": average, "circle": circle, "consistent-hash": consistent_hash}


def read_strategy(rebalance: Rebalance, topics: Collection[str]) -> Share:
    """Return the strategy that the ``rebalance`` argument of a consumer selects.

    The argument is a name of STRATEGIES; this member's queues by topic, for each of ``topics`` (the group's retry topic is not listed and
    shared evenly); or a function of all queues of one topic, all members (both sorted) and this member. Raises ConfigError.
    """
    if isinstance(rebalance, str):
        strategy = STRATEGIES.get(rebalance)
        if strategy is None:
            raise ConfigError(f"rebalance must be one of {', '.join(STRATEGIES)}, a mapping or a function, not {rebalance!r}")
        return strategy
    if isinstance(rebalance, Mapping):
        return _configured(rebalance, topics)
    if callable(rebalance):
        return rebalance
    raise ConfigError(f"rebalance must be one of {', '.join(STRATEGIES)}, a mapping or a function, not {rebalance!r}")


def _configured(table: Mapping[str, Iterable[MessageQueue]], topics: Collection[str]) -> Share:
    mine = {topic: frozenset(queues) for topic, queues in table.items()}
    for topic in topics:
        if topic not in mine:
            raise ConfigError(f"rebalance has no entry for the subscribed topic {topic}: add one, with an empty list for no queues")
    for topic, queues in mine.items():
        for queue in queues:
            if getattr(queue, "topic", None) != topic:
                raise ConfigError(f"rebalance lists {queue!r} under {topic}, but it is not a queue of that topic")

    def share(queues: list[MessageQueue], members: list[str], me: str) -> Iterable[MessageQueue]:
        chosen = mine.get(queues[0].topic) if queues else None
        return average(queues, members, me) if chosen is None else [queue for queue in queues if queue in chosen]

    return share


def plan_assignment(queues: Iterable[MessageQueue], members: Iterable[str], me: str, share: Share = average) -> list[MessageQueue]:
    """Return the queues of one topic that member ``me`` consumes, sorted.

    All members compute the same plan from the same lists, so no queue has two owners. A member that is not listed (its heartbeat has
    not arrived) gets no queues, nor do surplus members of an even share. Raises RebalanceFailed when ``share`` raises, or returns a queue
    that is not among ``queues``.
    """
    everyone = _sorted(set(members))
    if me not in everyone:
        return []
    every_queue = _sorted_queues(tuple(queues))
    known = set(every_queue)
    try:
        mine = set(share(list(every_queue), everyone, me))
    except BaseException as e:
        if ends_program(e):
            raise
        raise RebalanceFailed(f"it raised {type(e).__name__}: {e}") from e
    if not mine <= known:
        raise RebalanceFailed(f"it returned {next(iter(mine - known))!r}, which is not among the queues it was given")
    return [queue for queue in every_queue if queue in mine]


def _java_order(text: str) -> bytes:
    """Return a sort key that orders text as Java does, by UTF-16 units. ASCII text needs none."""
    return text.encode("utf-16-be", "surrogatepass")


def _sorted(texts: Collection[str]) -> list[str]:
    return sorted(texts) if all(map(str.isascii, texts)) else sorted(texts, key=_java_order)


@lru_cache(maxsize=64)  # members change more often than queues
def _sorted_queues(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    each = set(queues)
    if all(map(str.isascii, {queue.topic for queue in each} | {queue.broker_name for queue in each})):
        return tuple(sorted(each))
    return tuple(sorted(each, key=lambda queue: (_java_order(queue.topic), _java_order(queue.broker_name), queue.queue_id)))


def _java_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    return int.from_bytes(md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()[:4], "big")


@lru_cache(maxsize=8)  # one for all topics of a round
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    # Of two nodes with the same hash the later one stays.
    nodes = {_hash(f"{member}-{i}"): member for member in members for i in range(VIRTUAL_NODES)}
    points = sorted(nodes)
    return points, [nodes[point] for point in points]
