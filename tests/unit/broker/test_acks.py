"""The acknowledge rule by itself: positions and times in, answers out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.broker.acks import Acks, wants_wait


def acks(*, timeout_s=5.0, max_sends=100, max_bytes=1000):
    return Acks(sync=True, timeout_s=timeout_s, max_sends=max_sends, max_bytes=max_bytes)


def put(rule, end, *sends, now=0.0):
    for _ in sends:
        rule.hold()
    rule.wait(end, now, list(sends))


def test_a_send_is_answered_when_the_disk_has_the_log_up_to_its_end():
    rule = acks()
    put(rule, 100, "a", "b")
    put(rule, 200, "c")
    assert rule.covered(99) == []
    assert rule.covered(100) == ["a", "b"]
    assert rule.covered(5000) == ["c"]
    assert rule.waiting == 0


def test_each_send_is_answered_once():
    rule = acks()
    put(rule, 100, "a")
    assert rule.covered(100) == ["a"]
    assert rule.covered(100) == rule.overdue(1e9) == rule.fail() == []


def test_a_send_that_waits_too_long_is_late_and_not_answered_again():
    rule = acks(timeout_s=5.0)
    put(rule, 100, "a", now=1.0)
    put(rule, 200, "b", now=3.0)
    assert rule.deadline == 6.0
    assert rule.overdue(5.9) == []
    assert rule.overdue(6.0) == ["a"]
    assert (rule.oldest, rule.deadline) == (3.0, 8.0)
    assert rule.covered(200) == ["b"]
    assert (rule.oldest, rule.deadline) == (None, None)


def test_after_a_failed_flush_nothing_is_confirmed():
    rule = acks()
    put(rule, 100, "a")
    put(rule, 200, "b")
    assert rule.fail() == ["a", "b"]
    assert rule.failed
    assert rule.covered(10_000) == []


@pytest.mark.parametrize(
    ("waiting", "unflushed", "waits", "admitted"),
    [
        (99, 0, True, True),
        (100, 0, True, False),
        (100, 0, False, True),
        (0, 999, True, True),
        (0, 1000, True, False),
        (0, 1000, False, False),
    ],
)
def test_what_waits_and_what_is_not_on_the_disk_is_bounded(waiting, unflushed, waits, admitted):
    rule = acks(max_sends=100, max_bytes=1000)
    put(rule, 1, *range(waiting))
    assert rule.admits(unflushed, waits=waits) is admitted


def test_sends_that_could_not_be_committed_count_no_more():
    rule = acks(max_sends=2)
    rule.hold()
    rule.hold()
    assert not rule.admits(0, waits=True)
    rule.release(2)
    assert rule.admits(0, waits=True)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("commit"), st.integers(1, 5)),
            st.tuples(st.just("flush"), st.integers(0, 3)),
            st.tuples(st.just("pass"), st.integers(0, 4)),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_whatever_happens_each_send_is_answered_once_and_only_what_is_on_the_disk_is_confirmed(steps, fails):
    rule = acks(timeout_s=5.0)
    now, end, number = 0.0, 0, 0
    ends = {}
    answered = []
    for step, count in steps:
        if step == "commit":
            end += 10
            sends = list(range(number, number + count))
            number += count
            ends |= dict.fromkeys(sends, end)
            put(rule, end, *sends, now=now)
        elif step == "flush":
            flushed = max(0, end - 10 * count)
            confirmed = rule.covered(flushed)
            assert all(ends[one] <= flushed for one in confirmed)
            answered += confirmed
        else:
            now += count
            answered += rule.overdue(now)
        assert rule.waiting == number - len(answered)
    answered += rule.fail() if fails else rule.covered(end)
    assert answered == list(range(number))


@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        ("", True),
        ("KEYS\x01k\x02", True),
        ("WAIT\x01true\x02", True),
        ("WAIT\x01TRUE\x02", True),
        ("WAIT\x01false\x02", False),
        ("KEYS\x01k\x02WAIT\x01false", False),
        ("WAIT\x01no\x02TAGS\x01t\x02", False),
        ("WAIT\x01\x02", True),
        ("NO_WAIT\x01false\x02", True),
        ("NO_WAIT\x01true\x02WAIT\x01false\x02", False),
    ],
)
def test_a_message_says_whether_it_waits(properties, waits):
    assert wants_wait(properties) is waits
