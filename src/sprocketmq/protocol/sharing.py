"""Strategies for dividing the queues of a topic among the members of a consumer group, as Apache's clients and brokers do."""

from collections.abc import Sequence
from typing import TypeVar

_Queue = TypeVar("_Queue")


def average(queues: Sequence[_Queue], members: Sequence[str], me: str) -> Sequence[_Queue]:
    """Give every member a run of consecutive queues; the first members get one more when they do not divide evenly."""
    index = members.index(me)
    share, more = divmod(len(queues), len(members))
    start = index * share + min(index, more)
    return queues[start : start + share + (index < more)]


def circle(queues: Sequence[_Queue], members: Sequence[str], me: str) -> Sequence[_Queue]:
    """Deal the queues out in turn, so that the queues of one broker are spread over all members."""
    return queues[members.index(me) :: len(members)]
