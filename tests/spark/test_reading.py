"""A task reads each message of its ranges exactly once, whatever the broker hands out at a time, and never skips in silence."""

import logging
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from sprocketmq.errors import ConnectionLost, RemoteProtocolError
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.spark.planning import QueueRange
from sprocketmq.spark.reading import DataLoss, RangeReader

HOST = pack_host("127.0.0.1", 1)
Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def record(offset, body, **fields):
    return encode_record(
        topic=b"T",
        body=body,
        properties=b"",
        queue_id=0,
        queue_offset=offset,
        physical_offset=0,
        born_timestamp_ms=0,
        born_host=HOST,
        store_timestamp_ms=0,
        store_host=HOST,
        **fields,
    )


class FakeBroker:
    """Queues of units: a unit is (first offset, number of messages, record). Hands out at most ``most`` units at a time."""

    def __init__(self, most=1000):
        self.most = most
        self.units = {}
        self.pulls = []
        self.failures = []
        self.minimum = {}

    def plain(self, queue, first, end):
        self.units.setdefault(queue, []).extend((i, 1, record(i, b"%d" % i)) for i in range(first, end))

    def inner(self, queue, first, count):
        body = encode_batch([(0, b"%d" % (first + i), b"") for i in range(count)])
        self.units.setdefault(queue, []).append((first, count, record(first, body, sys_flag=192)))

    def pull(self, queue, offset, max_messages, max_bytes, hold_ms):
        self.pulls.append((queue.queue_id, offset, max_messages, hold_ms))
        future = Future()
        if self.failures:
            future.set_exception(self.failures.pop(0))
            return future
        units = self.units.get(queue, [])
        found = [u for u in units if u[0] + u[1] > offset][: self.most]
        low = self.minimum.get(queue, units[0][0] if units else 0)
        high = units[-1][0] + units[-1][1] if units else 0
        answer = SimpleNamespace(body=b"", next_offset=offset, min_offset=low, max_offset=high)
        if offset < low:
            answer.next_offset = low
        elif found:
            picked, rows = [], 0
            for first, count, data in found:
                if rows >= max_messages:
                    break
                picked.append(data)
                rows += count
                answer.next_offset = first + count
            answer.body = b"".join(picked)
        future.set_result(answer)
        return future


class Time:
    def __init__(self):
        self.now = 0.0

    def pause(self, seconds):
        self.now += seconds


@pytest.fixture
def broker():
    return FakeBroker()


def reader(broker, **settings):
    time = Time()
    return RangeReader(broker.pull, ("queueOffset", "body"), pause=time.pause, monotonic=lambda: time.now, **settings)


def read(broker, *ranges, **settings):
    return [
        (row["queueOffset"], int(row["body"]))
        for batch in reader(broker, **settings).read([QueueRange(*r) for r in ranges])
        for row in batch.to_pylist()
    ]


def same(first, end):
    return [(i, i) for i in range(first, end)]


@pytest.mark.parametrize("most", [1, 3, 32, 1000])
@pytest.mark.parametrize("batch_rows", [1, 10, 4000])
def test_each_message_comes_once_however_few_a_broker_hands_out(broker, most, batch_rows):
    broker.most = most
    broker.plain(Q0, 0, 100)
    broker.plain(Q1, 40, 60)
    assert read(broker, (Q0, 5, 95), (Q1, 40, 60), batch_rows=batch_rows) == same(5, 95) + same(40, 60)


@pytest.mark.parametrize("bounds", [[(0, 12)], [(0, 1), (1, 12)], [(0, 5), (5, 6), (6, 12)], [(3, 11)], [(4, 5)]])
@pytest.mark.parametrize("most", [1, 1000])
def test_inner_batches_are_trimmed_to_the_exact_range(broker, bounds, most):
    broker.most = most
    broker.inner(Q0, 0, 3)
    broker.inner(Q0, 3, 5)
    broker.plain(Q0, 8, 9)
    broker.inner(Q0, 9, 3)
    got = [row for start, end in bounds for row in read(broker, (Q0, start, end))]
    assert got == same(bounds[0][0], bounds[-1][1])


def test_small_pulls_are_decoded_together(broker):
    broker.most = 10
    broker.plain(Q0, 0, 100)
    batches = list(reader(broker, batch_rows=50).read([QueueRange(Q0, 0, 100)]))
    assert [b.num_rows for b in batches] == [50, 50]
    assert len(broker.pulls) == 10


def test_the_next_pull_is_under_way_before_a_batch_is_handed_over(broker):
    broker.plain(Q0, 0, 20)
    broker.plain(Q1, 0, 5)
    batches = reader(broker, batch_rows=10).read([QueueRange(Q0, 0, 20), QueueRange(Q1, 0, 5)])
    next(batches)
    assert [p[:2] for p in broker.pulls] == [(0, 0), (0, 10)]
    next(batches)
    assert [p[:2] for p in broker.pulls] == [(0, 0), (0, 10), (1, 0)]
    batches.close()


def test_no_more_is_asked_for_than_the_range_has(broker):
    broker.plain(Q0, 0, 100)
    read(broker, (Q0, 0, 7))
    assert broker.pulls == [(0, 0, 7, 0)]


def test_nothing_to_read_asks_nothing(broker):
    assert read(broker) == []
    assert broker.pulls == []


def test_a_broker_that_comes_back_in_time_is_asked_again(broker):
    broker.plain(Q0, 0, 10)
    broker.failures = [ConnectionLost("h:1")] * 3
    assert read(broker, (Q0, 0, 10)) == same(0, 10)


def test_a_broker_that_stays_away_fails_the_task_with_its_error(broker):
    broker.failures = [ConnectionLost("h:1")] * 1000
    with pytest.raises(ConnectionLost):
        read(broker, (Q0, 0, 10), timeout_ms=3000)
    assert len(broker.pulls) < 30


def test_expired_messages_are_data_loss(broker):
    broker.plain(Q0, 40, 60)
    with pytest.raises(DataLoss, match=r"messages 10 to 39 of queue 0 of topic 'T' on broker 'broker-a'.*now begins at 40.*failOnDataLoss"):
        read(broker, (Q0, 10, 50))


def test_messages_that_expire_on_the_way_are_data_loss(broker):
    broker.plain(Q0, 0, 20)
    pulling = reader(broker, batch_rows=10).read([QueueRange(Q0, 0, 40)])
    broker.plain(Q0, 35, 40)
    assert next(pulling).num_rows == 10
    with pytest.raises(DataLoss, match="messages 20 to 34"):
        list(pulling)


def test_a_queue_that_ends_early_is_waited_for_and_then_data_loss(broker):
    broker.plain(Q0, 0, 30)
    with pytest.raises(DataLoss, match=r"messages 30 to 49 .*the queue ends at 30"):
        read(broker, (Q0, 0, 50), timeout_ms=2000)
    assert broker.pulls[-1] == (0, 30, 20, 1000), "the broker is asked to hold the request for the messages to come"


def test_a_hole_the_broker_leaves_is_data_loss(broker):
    broker.plain(Q0, 0, 10)
    broker.plain(Q0, 12, 20)
    with pytest.raises(DataLoss, match=r"messages 10 to 11 .*left them out"):
        read(broker, (Q0, 0, 20))


def test_data_loss_can_be_accepted_and_is_logged(broker, caplog):
    broker.plain(Q0, 10, 20)
    broker.plain(Q0, 22, 30)
    broker.plain(Q1, 0, 5)
    with caplog.at_level(logging.WARNING):
        got = read(broker, (Q0, 0, 40), (Q1, 0, 5), fail_on_data_loss=False, timeout_ms=1000)
    assert got == same(10, 20) + same(22, 30) + same(0, 5)
    assert sorted(r.args[:2] for r in caplog.records) == [(0, 9), (20, 21), (30, 39)]


def test_a_broker_that_repeats_itself_is_not_believed(broker):
    broker.plain(Q0, 0, 5)
    broker.plain(Q0, 3, 8)
    with pytest.raises(RemoteProtocolError, match=r"message 3 .* after message 4"):
        read(broker, (Q0, 0, 8))


def test_a_reader_that_is_dropped_cancels_the_pull_under_way(broker):
    broker.plain(Q0, 0, 100)
    answer, waiting = broker.pull(Q0, 0, 10, 1, 0), Future()
    answers = iter([answer, waiting])
    batches = RangeReader(lambda *_: next(answers), ("body",), batch_rows=10).read([QueueRange(Q0, 0, 100)])
    next(batches)
    batches.close()
    assert waiting.cancelled()
