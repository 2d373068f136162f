"""The acknowledge rule by itself: log offsets and times in, answers out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.broker.acks import DISK_LATE, REPLICAS_LATE, REPLICAS_MISSING, STORED, Acks, wants_wait

DISK_S = 5.0
REPLICAS_S = 3.0
COVERED = 10_000


def acks(*, sync=True, replicas=0, timeout_s=DISK_S, max_sends=100, max_bytes=1000):
    limits = {"max_sends": max_sends, "max_bytes": max_bytes}
    return Acks(sync=sync, replicas=replicas, timeout_s=timeout_s, replica_timeout_s=REPLICAS_S, **limits)


def put(rule, end, *sends, now=0.0, in_sync=True):
    for _ in sends:
        rule.hold()
    return rule.wait(end, now, list(sends), in_sync=in_sync)


# --- the disk alone -----------------------------------------------------------------------------------------------------


def test_a_send_is_answered_when_the_disk_has_the_log_up_to_its_end():
    rule = acks()
    put(rule, 100, "a", "b")
    put(rule, 200, "c")
    assert rule.covered(99) == []
    assert rule.covered(100) == [(STORED, ["a", "b"])]
    assert rule.covered(5000) == [(STORED, ["c"])]
    assert rule.waiting == 0


def test_each_send_is_answered_once():
    rule = acks()
    put(rule, 100, "a")
    assert rule.covered(100) == [(STORED, ["a"])]
    assert rule.covered(100) == rule.overdue(1e9) == rule.fail() == []


def test_a_send_that_waits_too_long_is_late_and_not_answered_again():
    rule = acks(timeout_s=5.0)
    put(rule, 100, "a", now=1.0)
    put(rule, 200, "b", now=3.0)
    assert rule.deadline == 6.0
    assert rule.overdue(5.9) == []
    assert rule.overdue(6.0) == [(DISK_LATE, ["a"])]
    assert (rule.oldest, rule.deadline) == (3.0, 8.0)
    assert rule.covered(200) == [(STORED, ["b"])]
    assert (rule.oldest, rule.deadline) == (None, None)


def test_after_a_failed_flush_nothing_is_confirmed():
    rule = acks(replicas=1)
    put(rule, 100, "a")
    put(rule, 200, "b")
    put(rule, 300, "c", in_sync=False)
    rule.covered(0, 100)
    assert rule.fail() == ["a", "b", "c"]
    assert rule.failed
    assert rule.covered(COVERED, COVERED) == []
    assert rule.waiting == 0


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


def test_what_waits_for_replicas_is_bounded_from_the_first_waiting_send_on():
    rule = acks(sync=False, replicas=1, max_bytes=1000)
    assert rule.admits(0, 1_000_000, waits=True)  # nothing waits: how far replicas are behind does not matter
    put(rule, 5000, "a")
    assert rule.admits(0, 5999, waits=True)
    assert not rule.admits(0, 6000, waits=True)
    rule.covered(0, 5000)
    assert rule.admits(0, 6000, waits=True)


def test_sends_that_could_not_be_committed_count_no_more():
    rule = acks(max_sends=2)
    rule.hold()
    rule.hold()
    assert not rule.admits(0, waits=True)
    rule.release(2)
    assert rule.admits(0, waits=True)


# --- disk and replicas --------------------------------------------------------------------------------------------------

NEVER = 1e9


@pytest.mark.parametrize(("mode", "waits"), [((False, 0), False), ((True, 0), True), ((False, 1), True), ((True, 2), True)])
def test_the_mode_says_whether_sends_wait(mode, waits):
    assert acks(sync=mode[0], replicas=mode[1]).waits is waits


@pytest.mark.parametrize(
    ("sync", "replicas", "in_sync", "disk_at", "replicas_at", "code", "answered_at"),
    [
        # ASYNC_FLUSH, SYNC_MASTER
        (False, 1, True, NEVER, 1.0, STORED, 1.0),
        (False, 1, True, NEVER, NEVER, REPLICAS_LATE, 3.0),
        (False, 1, False, NEVER, NEVER, REPLICAS_MISSING, 0.0),
        (False, 1, False, NEVER, 0.5, REPLICAS_MISSING, 0.0),
        # SYNC_FLUSH, ASYNC_MASTER
        (True, 0, True, 1.0, NEVER, STORED, 1.0),
        (True, 0, True, NEVER, NEVER, DISK_LATE, 5.0),
        (True, 0, False, 1.0, NEVER, STORED, 1.0),
        # both: disk first, replicas first, one of them late, both late
        (True, 1, True, 1.0, 2.0, STORED, 2.0),
        (True, 1, True, 2.0, 1.0, STORED, 2.0),
        (True, 1, True, 1.0, NEVER, REPLICAS_LATE, 3.0),
        (True, 1, True, 4.0, NEVER, REPLICAS_LATE, 4.0),
        (True, 1, True, NEVER, 1.0, DISK_LATE, 5.0),
        (True, 1, True, NEVER, NEVER, REPLICAS_LATE, 5.0),
        (True, 1, False, 1.0, NEVER, REPLICAS_MISSING, 1.0),
        (True, 1, False, NEVER, NEVER, REPLICAS_MISSING, 5.0),
    ],
)
def test_the_outcomes_on_disk_and_replicas_make_the_answer(sync, replicas, in_sync, disk_at, replicas_at, code, answered_at):
    rule = acks(sync=sync, replicas=replicas)
    answers = [(0.0, answer) for answer in put(rule, 100, "a", in_sync=in_sync)]
    for tick in range(1, 13):
        now = tick / 2
        covered = rule.covered(100 if disk_at <= now else 99, 100 if replicas_at <= now else 99)
        answers += [(now, answer) for answer in covered + rule.overdue(now)]
    assert answers == [(answered_at, (code, ["a"]))]
    assert (rule.waiting, rule.oldest, rule.deadline) == (0, None, None)


def test_a_send_without_replicas_is_not_kept_waiting_by_an_earlier_one_that_hopes_for_them():
    rule = acks(replicas=1)
    put(rule, 100, "hopes")
    put(rule, 200, "alone", in_sync=False)
    assert rule.covered(200, 0) == [(REPLICAS_MISSING, ["alone"])]
    assert rule.covered(200, 100) == [(STORED, ["hopes"])]


# --- what readers see ---------------------------------------------------------------------------------------------------


def test_readers_see_what_enough_replicas_have():
    rule = acks(sync=False, replicas=1)
    assert rule.visible(0, 0) == 0
    put(rule, 100, "a")
    put(rule, 200)  # nobody waits for it; it is not seen earlier for that
    assert rule.visible(200, 0) == 0
    assert rule.visible(200, 0, 60) == 60
    rule.covered(0, 100)
    assert rule.visible(200, 0, 100) == 100
    rule.covered(0, 200)
    assert rule.visible(200, 0, 200) == 200


def test_readers_see_what_disk_and_replicas_have():
    rule = acks(replicas=1)
    put(rule, 100, "a")
    assert rule.visible(100, 100, 40) == 40
    assert rule.visible(100, 40, 100) == 40
    rule.covered(0, 100)
    assert rule.visible(100, 40, 100) == 40
    assert acks().visible(100, 40) == 40
    assert acks(sync=False).visible(100, 40) == 100


def test_what_replicas_did_not_get_in_time_is_seen_all_the_same():
    rule = acks(sync=False, replicas=1)
    put(rule, 100, "a", now=1.0)
    put(rule, 200, now=2.0)
    assert rule.overdue(4.0) == [(REPLICAS_LATE, ["a"])]
    assert rule.visible(200, 0) == 100
    assert rule.deadline == 5.0
    assert rule.overdue(5.0) == []
    assert rule.visible(200, 0) == 200


def test_what_too_few_replicas_could_get_is_seen_at_once_but_not_before_what_stands_ahead_of_it():
    rule = acks(sync=False, replicas=1)
    put(rule, 100, "alone", in_sync=False)
    assert rule.visible(100, 0) == 100
    put(rule, 200, "hopes", now=1.0)
    put(rule, 300, "alone", now=2.0, in_sync=False)
    assert rule.visible(300, 0) == 100
    rule.overdue(4.0)
    assert rule.visible(300, 0) == 300


def test_of_a_master_that_was_replaced_no_more_is_seen_until_its_log_is_the_new_masters():
    rule = acks(sync=False, replicas=1)
    put(rule, 100, "a")
    put(rule, 200, "b")
    rule.covered(0, 100)
    rule.drop()
    assert rule.visible(200, 0) == 100
    rule.drop()
    assert rule.visible(200, 0, 200) == 100
    rule.agreed(150)
    assert rule.visible(150, 0) == 150
    put(rule, 160, "c")
    assert rule.visible(160, 0) == 150


def test_a_broker_that_is_no_master_any_more_gives_all_back():
    rule = acks(replicas=1)
    put(rule, 100, "a")
    put(rule, 200, "b")
    rule.covered(100)
    assert rule.drop() == ["a", "b"]
    assert not rule.failed
    assert rule.covered(COVERED, COVERED) == []


@given(
    st.booleans(),
    st.integers(0, 2),
    st.lists(
        st.one_of(
            st.tuples(st.just("commit"), st.integers(1, 5)),
            st.tuples(st.just("commit without replicas"), st.integers(1, 5)),
            st.tuples(st.just("flush"), st.integers(0, 3)),
            st.tuples(st.just("replicate"), st.integers(0, 3)),
            st.tuples(st.just("pass"), st.integers(0, 4)),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_whatever_happens_each_send_is_answered_once_and_only_what_is_covered_is_confirmed(sync, replicas, steps, fails):
    rule = acks(sync=sync, replicas=replicas)
    now, end, number, flushed, replicated = 0.0, 0, 0, 0, 0
    ends, since, alone = {}, {}, set()
    answered = []

    def check(answers):
        for code, sends in answers:
            answered.extend(sends)
            for one in sends:
                if code == STORED:
                    assert not sync or ends[one] <= flushed
                    assert not replicas or ends[one] <= replicated
                    assert not replicas or one not in alone
                elif code == DISK_LATE:
                    assert sync
                    assert now >= since[one] + DISK_S
                elif code == REPLICAS_LATE:
                    assert replicas
                    assert now >= since[one] + REPLICAS_S
                    assert one not in alone
                else:
                    assert code == REPLICAS_MISSING
                    assert one in alone
                    assert replicas

    def check_readers():
        seen = rule.visible(end, flushed, replicated)
        for one in ends:
            if replicas and ends[one] <= seen:
                assert ends[one] <= replicated or one in alone or now >= since[one] + REPLICAS_S
        if sync:
            assert seen <= flushed
        return seen

    for step, count in steps:
        check_readers()
        if step.startswith("commit"):
            end += 10
            sends = list(range(number, number + count))
            number += count
            ends |= dict.fromkeys(sends, end)
            since |= dict.fromkeys(sends, now)
            if step != "commit":
                alone.update(sends)
            check(put(rule, end, *sends, now=now, in_sync=step == "commit"))
        elif step == "flush":
            flushed = max(flushed, end - 10 * count)
            check(rule.covered(flushed, replicated))
        elif step == "replicate":
            replicated = max(replicated, end - 10 * count)
            check(rule.covered(flushed, replicated))
        else:
            now += count
            check(rule.overdue(now))
        assert rule.waiting == number - len(answered)
    if fails:
        answered += rule.fail()
    else:
        flushed = replicated = end
        check(rule.covered(end, end))
        assert check_readers() == end
    assert sorted(answered) == list(range(number))
    assert (rule.waiting, rule.deadline) == (0, None)


# --- what a message asks for --------------------------------------------------------------------------------------------


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
