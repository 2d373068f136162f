"""Who consumes what: the average strategy, as a pure function (client-behaviour, section 9.2)."""

from collections.abc import Iterable, Sequence

from sprocketmq.protocol.message import MessageQueue


def plan_assignment(queues: Iterable[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Return the queues of one topic that member ``me`` consumes.

    Queues and members are sorted, then every member takes one run of neighbouring queues; the first members take one more when
    they do not divide evenly. All members compute the same plan from the same lists, so no queue has two owners. A member that is
    not listed (its heartbeat has not arrived) gets nothing, and so do members beyond the number of queues.
    """
    everyone = sorted(set(members))
    if me not in everyone:
        return []
    every_queue = sorted(set(queues))
    index, amount = everyone.index(me), len(everyone)
    share, more = divmod(len(every_queue), amount)
    start = index * share + min(index, more)
    return every_queue[start : start + share + (index < more)]
