import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.client.consume.rebalance import STRATEGIES, average, circle, consistent_hash, plan_assignment, read_strategy
from sprocketmq.errors import ConfigError, RebalanceFailed
from sprocketmq.protocol.message import MessageQueue

# What the three strategy classes of Apache's Java client 5.5.0 gave: [strategy, number of queues, {member: queue numbers}].
RECORDED = json.loads((Path(__file__).parents[3] / "fixtures" / "rebalance.json").read_text())


def queues(amount: int, broker: str = "a", topic: str = "t") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, i) for i in range(amount)]


def reference_average(total: int, members: int, i: int) -> tuple[int, int]:
    """The rule as client-behaviour 9.2 words it: (start, size)."""
    mod = total % members
    size = 1 if total <= members else total // members + (mod > 0 and i < mod)
    start = i * size if i < mod else i * size + mod
    return start, max(0, min(size, total - start))


# --- the three ways by name ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "amount", "expected"), RECORDED, ids=lambda value: str(value) if not isinstance(value, dict) else "")
def test_every_member_gets_what_the_java_client_gives_it(name, amount, expected):
    everything = [MessageQueue("orders", "broker-b" if i % 3 == 0 else "broker-a", i) for i in range(amount)]
    for me, numbers in expected.items():
        # The reference gives the queues in the order of the list, and so do we; neither list need come sorted.
        plan = plan_assignment(reversed(everything), list(reversed(expected)), me, STRATEGIES[name])
        assert [queue.queue_id for queue in plan] == numbers


def test_eight_queues_over_three_members_are_runs_of_three_three_two():
    plan = [plan_assignment(queues(8), ["c", "a", "b"], me) for me in "abc"]
    assert [[q.queue_id for q in part] for part in plan] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_by_circle_queues_are_dealt_out_in_turn():
    plan = [plan_assignment(queues(8), ["c", "a", "b"], me, circle) for me in "abc"]
    assert [[q.queue_id for q in part] for part in plan] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_members_beyond_the_number_of_queues_get_nothing():
    assert plan_assignment(queues(2), ["a", "b", "c"], "c") == []
    assert plan_assignment(queues(2), ["a", "b", "c"], "c", circle) == []


def test_a_member_that_is_not_listed_gets_nothing():
    for share in STRATEGIES.values():
        assert plan_assignment(queues(4), ["a", "b"], "me", share) == []
        assert plan_assignment(queues(4), [], "me", share) == []


def test_queues_of_several_brokers_are_ordered_by_broker_then_number():
    mixed = [*queues(2, "b"), *queues(2, "a")]
    assert plan_assignment(mixed, ["x", "y"], "x") == queues(2, "a")


def test_a_member_that_is_listed_twice_counts_once():
    assert plan_assignment(queues(4), ["a", "a", "b"], "b") == queues(4)[2:]


def test_names_are_sorted_by_utf_16_units_as_java_does():
    # U+1F600 is written with surrogates (D83D ...), which sort before U+FF5E; code points would sort the other way.
    assert plan_assignment(queues(2), ["\uff5e", "\U0001f600"], "\U0001f600") == queues(1)


@given(st.integers(0, 40), st.integers(1, 12))
def test_the_average_plans_of_all_members_match_the_rule(total: int, amount: int):
    members = [f"m{i:02}" for i in range(amount)]
    plans = [plan_assignment(queues(total), members, me) for me in members]
    assert [q for plan in plans for q in plan] == queues(total)
    for i, plan in enumerate(plans):
        start, size = reference_average(total, amount, i)
        assert plan == queues(total)[start : start + size]
    assert all(len(a) >= len(b) for a, b in pairwise(plans))


@given(st.sampled_from([average, circle, consistent_hash]), st.integers(0, 40), st.integers(1, 12))
def test_the_plans_of_all_members_cover_every_queue_once(share, total: int, amount: int):
    members = [f"m{i:02}" for i in range(amount)]
    plans = [plan_assignment(queues(total), members, me, share) for me in members]
    assert sorted(q for plan in plans for q in plan) == queues(total)


@given(st.integers(1, 60), st.integers(2, 10), st.integers(0, 9))
def test_with_consistent_hashing_only_the_queues_of_who_leaves_move(total: int, amount: int, leaver: int):
    members = [f"m{i:02}" for i in range(amount)]
    gone = members[leaver % amount]
    for me in members:
        if me != gone:
            before = plan_assignment(queues(total), members, me, consistent_hash)
            after = plan_assignment(queues(total), [m for m in members if m != gone], me, consistent_hash)
            assert set(before) <= set(after)


# --- by configuration ---------------------------------------------------------------------------------------------------


def test_by_configuration_a_member_gets_the_named_queues_that_exist():
    share = read_strategy({"t": [*queues(2), MessageQueue("t", "gone", 0)]}, ["t"])
    assert plan_assignment(queues(4), ["a", "me"], "me", share) == queues(2)


def test_by_configuration_topics_that_were_not_subscribed_are_shared_evenly():
    share = read_strategy({"t": []}, ["t"])
    assert plan_assignment(queues(4), ["a", "me"], "me", share) == []
    assert plan_assignment(queues(2, topic="%RETRY%g"), ["a", "me"], "me", share) == queues(2, topic="%RETRY%g")[1:]
    assert plan_assignment([], ["a", "me"], "me", share) == []


def test_a_configuration_that_leaves_out_a_subscribed_topic_is_refused():
    with pytest.raises(ConfigError, match="no entry for the subscribed topic other"):
        read_strategy({"t": queues(2)}, ["t", "other"])


@pytest.mark.parametrize("wrong", ["q", 3, MessageQueue("other", "a", 0)])
def test_a_configuration_with_what_is_no_queue_of_the_topic_is_refused(wrong):
    with pytest.raises(ConfigError, match="not a queue of that topic"):
        read_strategy({"t": [wrong]}, ["t"])


@pytest.mark.parametrize("wrong", ["averge", "", 7, None, ["t"]])
def test_what_is_no_way_to_share_is_refused_with_the_names_that_are(wrong):
    with pytest.raises(ConfigError, match="average, circle, consistent-hash"):
        read_strategy(wrong, ["t"])


# --- a function of the user's own ---------------------------------------------------------------------------------------


def test_a_function_gets_both_lists_sorted_and_its_own_name():
    asked = []

    def last_one(all_queues, members, me):
        asked.append((all_queues, members, me))
        return all_queues[-1:]

    share = read_strategy(last_one, ["t"])
    assert plan_assignment(reversed(queues(3)), ["z", "me"], "me", share) == queues(3)[-1:]
    assert asked == [(queues(3), ["me", "z"], "me")]


def test_what_a_function_gives_is_sorted_and_has_nothing_twice():
    assert plan_assignment(queues(3), ["me"], "me", lambda q, members, me: [q[2], q[0], q[0]]) == [queues(3)[0], queues(3)[2]]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda q, members, me: 1 / 0, "raised ZeroDivisionError"),
        (lambda q, members, me: None, "raised TypeError"),
        (lambda q, members, me: [MessageQueue("t", "elsewhere", 1)], "elsewhere"),
        (lambda q, members, me: ["t"], "'t', which is not among"),
        (lambda q, members, me: [[]], "raised TypeError"),
    ],
)
def test_a_function_that_fails_or_gives_rubbish_is_named_in_a_typed_error(wrong, reason):
    with pytest.raises(RebalanceFailed, match=reason):
        plan_assignment(queues(3), ["me"], "me", wrong)
