import pytest

from sprocketmq.client.send.faults import FaultTable, isolation_s
from sprocketmq.clock import ManualClock


@pytest.mark.parametrize(
    ("latency_ms", "isolation_ms"),
    [
        (0, 0),
        (50, 0),
        (100, 0),
        (549, 0),
        (550, 2000),
        (1799, 2000),
        (1800, 5000),
        (3000, 6000),
        (4999, 6000),
        (5000, 10_000),
        (15_000, 30_000),
        (10**9, 30_000),
    ],
)
def test_a_slow_answer_isolates_by_the_references_table(latency_ms, isolation_ms):
    assert isolation_s(latency_ms / 1000) == isolation_ms / 1000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def table(clock):
    return FaultTable(clock.monotonic)


def test_an_unknown_broker_is_available_and_the_table_is_empty(table):
    assert table.available("a")
    assert not table


def test_fast_answers_leave_no_trace(table):
    table.answered("a", 0.5)
    assert not table


def test_a_slow_broker_is_available_again_when_its_time_is_over(table, clock):
    table.answered("a", 2.0)
    assert (table.available("a"), table.available("b")) == (False, True)
    clock.advance(4.99)
    assert not table.available("a")
    clock.advance(0.01)
    assert table.available("a")
    assert not table  # and takes no more room


def test_a_failed_send_isolates_for_ten_seconds(table, clock):
    table.failed("a")
    clock.advance(9.9)
    assert not table.available("a")
    clock.advance(0.2)
    assert table.available("a")


def test_an_isolation_only_gets_longer(table, clock):
    table.failed("a")
    table.answered("a", 0.6)
    table.answered("a", 0.001)
    clock.advance(9)
    assert not table.available("a")
    table.answered("a", 20.0)
    clock.advance(29)
    assert not table.available("a")


def test_a_jump_of_the_wall_clock_changes_nothing(table, clock):
    table.failed("a")
    clock.jump_wall(3600)
    assert not table.available("a")
