"""How often an address may fail to log in."""

from sprocketmq.security.login_limits import ANSWERED, MAX_ADDRESSES, PROMPT, WINDOW_S, LoginLimits, Penalty


class Time:
    now = 1000.0

    def __call__(self):
        return self.now


def test_answers_come_at_once_then_later_then_not_at_all():
    limits = LoginLimits(Time())
    penalties = [limits.failed("10.0.0.1") for _ in range(ANSWERED + 3)]
    assert penalties == [Penalty.NONE] * PROMPT + [Penalty.DELAY] * (ANSWERED - PROMPT) + [Penalty.CLOSE] * 3


def test_addresses_are_counted_by_themselves_and_begin_anew_after_a_window():
    time = Time()
    limits = LoginLimits(time)
    for _ in range(ANSWERED + 1):
        limits.failed("10.0.0.1")
    assert limits.failed("10.0.0.2") is Penalty.NONE
    time.now += WINDOW_S - 1
    assert limits.failed("10.0.0.1") is Penalty.CLOSE
    time.now += 1
    assert limits.failed("10.0.0.1") is Penalty.NONE


def test_a_network_of_ipv6_counts_as_one_address():
    limits = LoginLimits(Time())
    penalties = [limits.failed(f"2001:db8:0:1::{number:x}") for number in range(PROMPT + 1)]
    assert penalties[-1] is Penalty.DELAY
    assert limits.failed("2001:db8:0:2::1") is Penalty.NONE


def test_the_table_is_bounded_and_forgets_who_failed_first():
    limits = LoginLimits(Time())
    for _ in range(ANSWERED + 1):
        limits.failed("first")
    for number in range(MAX_ADDRESSES + 100):
        limits.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(limits) == MAX_ADDRESSES
    assert limits.failed("first") is Penalty.NONE
