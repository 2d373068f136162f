"""Offsets by store time: the boundaries, equal times, times outside the queue."""

from typing import Any

import pytest

from sprocketmq.storage.store import MessageStore


@pytest.fixture
def store(bench: Any) -> MessageStore:
    """Three messages at 1000, two at 2000, one at 4000 (ms after the start), the others in between in another queue."""
    for at, count in ((1000, 3), (2000, 2), (4000, 1)):
        bench.clock.advance((bench_start(bench) + at - bench.clock.time_ms()) / 1000)
        for i in range(count):
            bench.send(b"%d" % i)
            bench.send(b"noise", queue=1)
    return bench.store


def bench_start(bench: Any) -> int:
    return 1_700_000_000_000


@pytest.mark.parametrize(
    ("at", "lower", "upper"),
    [(0, 0, 0), (999, 0, 0), (1000, 0, 2), (1001, 3, 2), (2000, 3, 4), (3000, 5, 4), (4000, 5, 5), (4001, 6, 5), (1 << 60, 6, 5)],
)
def test_lower_is_the_first_at_or_after_and_upper_the_last_at_or_before(store: MessageStore, at: int, lower: int, upper: int) -> None:
    when = 1_700_000_000_000 + at
    assert store.offset_by_time("orders", 0, when) == lower
    assert store.offset_by_time("orders", 0, when, upper=True) == upper


def test_empty_and_unknown_queues_give_their_start(store: MessageStore) -> None:
    assert store.offset_by_time("orders", 7, 5) == 0
    assert store.offset_by_time("nobody", 0, 5, upper=True) == 0
    assert store.earliest_store_time("nobody", 0) == -1


def test_store_times_are_told_per_message(store: MessageStore) -> None:
    assert store.earliest_store_time("orders", 0) == 1_700_000_001_000
    assert store.store_time("orders", 0, 5) == 1_700_000_004_000
    assert store.store_time("orders", 0, 6) == -1
    assert store.store_time("orders", 0, -1) == -1
