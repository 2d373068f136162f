"""Which segments may go and when messages are refused, as pure decisions."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import ConfigError
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.log.retention import MAX_SEGMENTS_PER_ROUND, Cause, Limits, SegmentAge, plan_deletion, used_part

HOUR_MS = 3_600_000
SIZE = 1000
NOW_MS = 1_700_000_000_000
HERE_AND_NOW = f"{time.localtime(NOW_MS / 1000).tm_hour:02d}"
ANOTHER_HOUR = f"{(time.localtime(NOW_MS / 1000).tm_hour + 12) % 24:02d}"


def limits(**settings):
    return Limits.of(StoreConfig(Path("store"), **{"delete_when": ANOTHER_HOUR, **settings}))


def segments(*ages_h, start=0):
    """Segments in log order, given how many hours ago each was last written."""
    return [SegmentAge(start + i * SIZE, SIZE, NOW_MS - round(age * HOUR_MS)) for i, age in enumerate(ages_h)]


def plan(found, used=0.1, *, log_end=None, manual=False, **settings):
    end = found[-1].start + SIZE // 2 if log_end is None and found else log_end or 0
    return plan_deletion(found, end, used, limits(**settings), NOW_MS, manual=manual)


def log_begin_after(decided):
    """The log offset at which the log begins once the plan is carried out; 0 when no segment goes."""
    return decided.segments[-1].start + decided.segments[-1].size if decided.segments else 0


def test_expired_segments_go_in_the_hour_to_delete_in():
    decided = plan(segments(100, 80, 71, 0), delete_when=f"{ANOTHER_HOUR};{HERE_AND_NOW}")
    assert [s.start for s in decided.segments] == [0, 1000]
    assert (log_begin_after(decided), decided.cause, decided.writable) == (2000, Cause.HOUR, True)


def test_nothing_goes_at_another_hour_while_there_is_room():
    decided = plan(segments(100, 80, 0))
    assert (decided.segments, log_begin_after(decided), decided.cause, decided.writable) == ((), 0, Cause.NONE, True)


def test_an_administrator_may_ask_at_any_hour():
    decided = plan(segments(100, 80, 0), manual=True)
    assert (log_begin_after(decided), decided.cause) == (2000, Cause.MANUAL)


def test_expired_segments_go_at_any_hour_when_the_disk_fills_up():
    decided = plan(segments(100, 1, 0), 0.76)
    assert (log_begin_after(decided), decided.cause, decided.writable) == (1000, Cause.SPACE, True)


def test_old_segments_go_unexpired_when_the_disk_is_nearly_full():
    decided = plan(segments(3, 2, 1), 0.86)
    assert (log_begin_after(decided), decided.cause, decided.writable) == (2000, Cause.FORCED, True)


def test_messages_are_refused_when_the_disk_is_full_until_it_is_not():
    found = segments(3, 2, 1)
    assert [plan(found, used).writable for used in (0.90, 0.91, 1.0, 0.90)] == [True, False, False, True]


def test_without_forced_cleaning_only_expired_segments_go_and_messages_are_refused_all_the_same():
    decided = plan(segments(100, 2, 1), 0.95, clean_file_forcibly=False)
    assert (log_begin_after(decided), decided.cause, decided.writable) == (1000, Cause.SPACE, False)


def test_the_first_segment_that_stays_keeps_those_behind_it():
    assert log_begin_after(plan(segments(100, 1, 100, 0), manual=True)) == 1000


def test_a_segment_written_in_the_future_stays():
    assert plan(segments(-5, 100, 0), manual=True).segments == ()


def test_the_segment_that_ends_the_log_stays_when_the_next_one_is_made_already():
    found = segments(100, 100, 0)
    assert log_begin_after(plan(found, 0.99, log_end=1500)) == 1000
    assert log_begin_after(plan(found, 0.99, log_end=2000)) == 1000
    assert log_begin_after(plan(found, 0.99, log_end=2001)) == 2000


def test_an_empty_store_gives_nothing_up():
    assert plan([], 0.99, log_end=0).segments == ()


@pytest.mark.parametrize(
    ("settings", "full_at", "forced_at", "expiring_at"),
    [
        ({"disk_warning_ratio": 0.95}, 0.90, 0.85, 0.75),
        ({"disk_warning_ratio": 0.1}, 0.35, 0.35, 0.35),
        ({"disk_clean_forcibly_ratio": 0.99}, 0.90, 0.85, 0.75),
        ({"disk_clean_forcibly_ratio": 0.1}, 0.90, 0.30, 0.30),
        ({"disk_max_used_ratio": 0.01}, 0.90, 0.85, 0.10),
        ({"disk_max_used_ratio": 0.99}, 0.90, 0.85, 0.85),
    ],
)
def test_ratios_stay_within_the_borders_of_apaches_broker(settings, full_at, forced_at, expiring_at):
    kept = limits(**settings)
    above = 0.0001
    assert (kept.full(full_at), kept.full(full_at + above)) == (False, True)
    assert kept.cause(forced_at + above, NOW_MS) is Cause.FORCED
    assert kept.cause(forced_at, NOW_MS) is not Cause.FORCED
    assert kept.cause(expiring_at, NOW_MS) is Cause.NONE
    assert kept.cause(expiring_at + above, NOW_MS) in {Cause.SPACE, Cause.FORCED}


def test_a_ratio_of_one_switches_a_rule_off():
    kept = limits(disk_warning_ratio=1, disk_clean_forcibly_ratio=1, disk_max_used_ratio=1)
    assert (kept.full(1.0), kept.cause(1.0, NOW_MS)) == (False, Cause.NONE)


@pytest.mark.parametrize("hours", ["", "24", "4,5", "04;", "x"])
def test_hours_that_are_none_are_refused(hours):
    with pytest.raises(ConfigError, match="delete_when"):
        StoreConfig(Path("store"), delete_when=hours)


@pytest.mark.parametrize(("total", "free", "used"), [(100, 25, 0.75), (100, 0, 1.0), (0, 0, 0.0), (100, 200, 0.0)])
def test_the_used_part_of_a_disk(total, free, used):
    assert used_part(total, free) == used


ages = st.lists(st.floats(-10, 1000), max_size=40)


@given(
    ages=ages,
    first=st.integers(0, 5),
    used=st.floats(0, 1),
    manual=st.booleans(),
    hour=st.sampled_from([HERE_AND_NOW, ANOTHER_HOUR]),
    forcibly=st.booleans(),
    reserved_h=st.floats(0.1, 500),
    end=st.floats(0, 1),
)
def test_what_always_holds(ages, first, used, manual, hour, forcibly, reserved_h, end):
    found = segments(*ages, start=first * SIZE)
    low, high = first * SIZE, first * SIZE + len(found) * SIZE
    log_end = round(low + end * (high - low))
    kept = limits(delete_when=hour, clean_file_forcibly=forcibly, file_reserved_hours=reserved_h)
    decided = plan_deletion(found, log_end, used, kept, NOW_MS, manual=manual)
    going = list(decided.segments)
    assert going == found[: len(going)]  # the oldest, in order, without a gap
    assert len(going) <= MAX_SEGMENTS_PER_ROUND
    assert len(going) < len(found) or not found  # one always stays
    assert log_begin_after(decided) < log_end or not going  # and with it the end of the log
    assert decided.writable == (used <= 0.9)
    if decided.cause is not Cause.FORCED:
        assert all(s.modified_ms <= NOW_MS - kept.reserved_ms for s in going)
    if decided.cause is Cause.FORCED:
        assert forcibly
        assert used > 0.85
    # With room again and at another hour everything stays, and messages are taken.
    calm = plan_deletion(found, log_end, 0.5, limits(), NOW_MS)
    assert (calm.segments, calm.writable) == ((), True)


@given(ages=ages, used=st.floats(0, 1), reserved_h=st.floats(0.1, 500))
def test_rounds_come_to_an_end_and_leave_nothing_expired_but_the_last(ages, used, reserved_h):
    found = segments(*ages)
    kept = limits(file_reserved_hours=reserved_h)
    log_end = len(found) * SIZE
    for _ in range(len(found) + 1):
        decided = plan_deletion(found, log_end, used, kept, NOW_MS, manual=True)
        if not decided.segments:
            break
        found = found[len(decided.segments) :]
    assert not decided.segments
    if len(found) > 1:
        assert not kept.expired(found[0].modified_ms, NOW_MS)
