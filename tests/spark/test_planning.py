"""Limits and partitions are pure functions: the same question has the same answer, and no message is lost or read twice."""

from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.source.planning import (
    GUESSED_MESSAGE_BYTES,
    MeanSizes,
    QueueRange,
    admit,
    admit_bytes,
    count_partitions,
    cut_ranges,
    ranges_between,
)


def plan_partitions(ranges, most, *, least=1, max_rows=None):
    """Return what each task reads."""
    return cut_ranges(ranges, count_partitions(sum(map(len, ranges)), most, least=least, max_rows=max_rows))


def queue(number, broker="broker-a", topic="T"):
    return MessageQueue(topic, broker, number)


queues = st.builds(MessageQueue, st.sampled_from(["A", "v", "topics"]), st.sampled_from(["broker-a", "b"]), st.integers(0, 9))
ranges = st.dictionaries(queues, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=20).map(
    lambda found: [QueueRange(q, start, start + rows) for q, (start, rows) in found.items()]
)


def test_ranges_leave_out_what_is_empty_new_or_gone_backwards():
    start = {queue(0): 5, queue(1): 7, queue(2): 9}
    end = {queue(0): 8, queue(1): 7, queue(2): 3, queue(3): 50}
    assert ranges_between(start, end) == [QueueRange(queue(0), 5, 8)]


def test_a_limit_is_shared_in_proportion_to_what_waits():
    start = {queue(0): 0, queue(1): 100, queue(2): 0}
    latest = {queue(0): 900, queue(1): 200, queue(2): 0}
    assert admit(start, latest, 100) == {queue(0): 90, queue(1): 110, queue(2): 0}


def test_a_limit_smaller_than_the_number_of_queues_still_moves():
    start = {queue(i): 0 for i in range(8)}
    latest = {queue(i): 10 for i in range(8)}
    end = admit(start, latest, 3)
    assert sum(end.values()) == 3


@given(ranges, st.one_of(st.none(), st.integers(1, 10**6)))
def test_a_batch_takes_as_much_as_it_may_and_no_queue_goes_past_its_end(found, limit):
    start = {r.queue: r.start for r in found}
    latest = {r.queue: r.end for r in found}
    end = admit(start, latest, limit)
    assert end.keys() == latest.keys()
    assert all(start[q] <= end[q] <= latest[q] for q in end)
    waiting = sum(map(len, found))
    assert sum(end[q] - start[q] for q in end) == (waiting if limit is None else min(waiting, limit))


@given(st.dictionaries(queues, st.integers(1, 1000), min_size=1), st.integers(1, 50))
def test_batch_after_batch_reads_everything_once(sizes, limit):
    at = dict.fromkeys(sizes, 0)
    read = 0
    while at != sizes:
        end = admit(at, sizes, limit)
        read += sum(map(len, ranges_between(at, end)))
        assert end != at
        at = end
        limit *= 2
    assert read == sum(sizes.values())


def test_a_new_queue_does_not_take_part_in_the_limit():
    assert admit({queue(0): 0}, {queue(0): 50, queue(1): 30}, 10) == {queue(0): 10, queue(1): 30}


def test_few_rows_make_one_partition():
    found = [QueueRange(queue(i), 0, 100) for i in range(64)]
    assert plan_partitions(found, 16) == [found]
    assert plan_partitions([], 16) == []
    assert plan_partitions([QueueRange(queue(0), 5, 5)], 16) == []


def test_small_queues_are_packed_whole():
    found = [QueueRange(queue(i), 10, 10_010) for i in range(8)]
    assert plan_partitions(found, 2) == [found[:4], found[4:]]


def test_one_big_queue_is_split_evenly():
    assert plan_partitions([QueueRange(queue(0), 1000, 101_000)], 4) == [
        [QueueRange(queue(0), 1000 + 25_000 * i, 1000 + 25_000 * (i + 1))] for i in range(4)
    ]


def test_three_queues_on_two_tasks_are_balanced():
    sizes = [sum(map(len, part)) for part in plan_partitions([QueueRange(queue(i), 0, 100_000) for i in range(3)], 2)]
    assert sizes == [150_000, 150_000]


def test_a_cut_close_to_a_border_moves_there():
    found = [QueueRange(queue(0), 0, 99_000), QueueRange(queue(1), 0, 101_000)]
    assert plan_partitions(found, 2) == [found[:1], found[1:]]


def test_at_least_as_many_partitions_as_asked_for_and_never_more_than_rows():
    assert count_partitions(100, 16) == 1
    assert count_partitions(100, 16, least=4) == 4
    assert count_partitions(3, 16, least=4) == 3
    assert count_partitions(0, 16, least=4) == 0
    assert count_partitions(1_000_000, 16) == 16
    assert count_partitions(1_000_000, 2, max_rows=100_000) == 13
    assert count_partitions(100_000, 2, max_rows=100_000) == 2


def test_of_large_messages_fewer_are_worth_a_partition():
    assert count_partitions(4000, 16, row_bytes=1 << 20) == 16
    assert count_partitions(16, 16, row_bytes=1 << 20) == 2
    assert count_partitions(3, 16, row_bytes=64 << 20) == 3
    assert count_partitions(8192, 16, row_bytes=10) == 1, "small ones make no larger partitions"


def test_the_number_of_partitions_alone_says_how_ranges_are_cut():
    found = [QueueRange(queue(0), 0, 10), QueueRange(queue(1), 0, 10)]
    assert cut_ranges(found, 2) == [[found[0]], [found[1]]]
    assert cut_ranges(found, 1) == [found]
    assert cut_ranges(found, 50) == [[QueueRange(queue(q), i, i + 1)] for q in range(2) for i in range(10)]
    assert cut_ranges([], 0) == []


@given(ranges, st.integers(1, 20), st.integers(1, 5), st.one_of(st.none(), st.integers(1000, 10**6)))
def test_partitions_hold_every_row_once_in_order_and_are_balanced(found, most, least, max_rows):
    total = sum(map(len, found))
    planned = plan_partitions(found, most, least=least, max_rows=max_rows)
    assert planned == plan_partitions(list(reversed(found)), most, least=least, max_rows=max_rows), (
        "the order of the question must not matter"
    )
    pieces = count_partitions(total, most, least=least, max_rows=max_rows)
    assert len(planned) <= pieces
    assert max_rows is not None or pieces <= max(most, least)
    flat = [piece for part in planned for piece in part]
    assert all(len(piece) > 0 for piece in flat)
    joined = {}
    for piece in flat:
        start, end = joined.get(piece.queue, (piece.start, piece.start))
        assert end == piece.start, "pieces of a queue follow each other"
        joined[piece.queue] = (start, piece.end)
    assert joined == {r.queue: (r.start, r.end) for r in found if len(r)}
    for part in planned:
        rows = sum(map(len, part))
        assert rows <= total / pieces * 1.25 + 1
        assert max_rows is None or rows <= max_rows


@given(st.integers(1, 5000), st.integers(1, 1000), st.integers(1, 8))
def test_no_partition_has_more_rows_than_it_may(rows, max_rows, queue_count):
    found = [QueueRange(queue(i), 5, 5 + len(range(i, rows, queue_count))) for i in range(queue_count)]
    planned = plan_partitions(found, 1, max_rows=max_rows)
    assert max(sum(map(len, part)) for part in planned) <= max_rows
    assert sum(len(piece) for part in planned for piece in part) == rows


def test_a_limit_of_bytes_goes_by_the_mean_size_of_each_queue():
    start = {queue(0): 0, queue(1): 0, queue(2): 7}
    latest = {queue(0): 1000, queue(1): 100, queue(2): 7, queue(3): 9}
    sizes = {queue(0): 100, queue(1): 1000}
    assert admit_bytes(start, latest, 20_000, lambda q: sizes[q]) == {queue(0): 100, queue(1): 10, queue(2): 7, queue(3): 9}
    assert admit_bytes(start, latest, 200_000, lambda q: sizes[q]) == latest


def test_a_limit_of_bytes_lets_every_queue_move():
    start, latest = {queue(i): 0 for i in range(3)}, {queue(i): 10 for i in range(3)}
    assert admit_bytes(start, latest, 1, lambda _: 1_000_000) == {queue(i): 1 for i in range(3)}


def test_sizes_are_guessed_then_known_then_kept_up_to_date():
    sizes = MeanSizes()
    assert sizes.of(queue(0)) == GUESSED_MESSAGE_BYTES
    sizes.note(queue(0), 1000, 10)
    assert (sizes.of(queue(0)), sizes.of(queue(1))) == (100, 100)
    sizes.note(queue(0), 4000, 10)
    assert sizes.of(queue(0)) == 300
    sizes.note(queue(1), 0, 0)
    assert sizes.of(queue(1)) == 300
