from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.client.rebalance import plan_assignment
from sprocketmq.protocol.message import MessageQueue


def queues(amount: int, broker: str = "a") -> list[MessageQueue]:
    return [MessageQueue("t", broker, i) for i in range(amount)]


def reference_average(total: int, members: int, i: int) -> tuple[int, int]:
    """The rule as client-behaviour 9.2 words it: (start, size)."""
    mod = total % members
    size = 1 if total <= members else total // members + (mod > 0 and i < mod)
    start = i * size if i < mod else i * size + mod
    return start, max(0, min(size, total - start))


def test_eight_queues_over_three_members_are_runs_of_three_three_two():
    plan = [plan_assignment(queues(8), ["c", "a", "b"], me) for me in "abc"]
    assert [[q.queue_id for q in part] for part in plan] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_members_beyond_the_number_of_queues_get_nothing():
    assert plan_assignment(queues(2), ["a", "b", "c"], "c") == []


def test_a_member_that_is_not_listed_gets_nothing():
    assert plan_assignment(queues(4), ["a", "b"], "me") == []
    assert plan_assignment(queues(4), [], "me") == []


def test_queues_of_several_brokers_are_ordered_by_broker_then_number():
    mixed = [*queues(2, "b"), *queues(2, "a")]
    assert plan_assignment(mixed, ["x", "y"], "x") == queues(2, "a")


def test_a_member_that_is_listed_twice_counts_once():
    assert plan_assignment(queues(4), ["a", "a", "b"], "b") == queues(4)[2:]


@given(st.integers(0, 40), st.integers(1, 12))
def test_the_plans_of_all_members_cover_every_queue_once_and_match_the_reference(total: int, amount: int):
    members = [f"m{i:02}" for i in range(amount)]
    plans = [plan_assignment(queues(total), members, me) for me in members]
    assert [q for plan in plans for q in plan] == queues(total)
    for i, plan in enumerate(plans):
        start, size = reference_average(total, amount, i)
        assert plan == queues(total)[start : start + size]
    assert all(len(a) >= len(b) for a, b in pairwise(plans))
