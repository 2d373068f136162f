"""A task reads each message of its ranges exactly once, whatever the broker hands out at a time, and never skips in silence."""

import gc
import logging
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from sprocketmq.client.consume.pull_requests import PullResult, PullStatus
from sprocketmq.errors import ConnectionLost, InvalidName, RemoteProtocolError, RetriableError, TopicNotFound
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.spark.source import read_ahead
from sprocketmq.spark.source.access import TopicGone
from sprocketmq.spark.source.planning import QueueRange
from sprocketmq.spark.source.read_ahead import AT_ONCE
from sprocketmq.spark.source.reading import DataLoss, RangeReader
from sprocketmq.testing import wait_until

HOST = pack_host("127.0.0.1", 1)
Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def record(offset, body, properties=b"", **fields):
    return encode_record(
        topic=b"T",
        body=body,
        properties=properties,
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
    """Queues of units: a unit is (first offset, number of messages, record, tag). Hands out at most ``most`` units at a time.

    ``answers`` are given first, one to each pull: results, or errors. What ``replica`` has is what it answers in the master's place.
    """

    def __init__(self, most=1000):
        self.most = most
        self.units = {}
        self.pulls = []
        self.answers = []
        self.minimum = {}
        self.replica = None

    def plain(self, queue, first, end, tag=""):
        properties = b"TAGS\x01%b\x02" % tag.encode() if tag else b""
        self.units.setdefault(queue, []).extend((i, 1, record(i, b"%d" % i, properties), tag) for i in range(first, end))

    def inner(self, queue, first, count, tag=""):
        properties = b"TAGS\x01%b\x02INNER_NUM\x01%d\x02" % (tag.encode(), count)
        body = encode_batch([(0, b"%d" % (first + i), b"TAGS\x01%b\x02" % tag.encode()) for i in range(count)])
        self.units.setdefault(queue, []).append((first, count, record(first, body, properties, sys_flag=192), tag))

    def pull(self, queue, offset, max_messages, max_bytes, hold_ms, *, filter=None, read_from="master"):  # noqa: A002
        if read_from != "master" and self.replica is not None:
            future = self.replica.pull(queue, offset, max_messages, max_bytes, hold_ms, filter=filter)
            future.result().from_master = False
            return future
        self.pulls.append((queue.queue_id, offset, max_messages, hold_ms))
        future = Future()
        answer = self.answers.pop(0) if self.answers else self.answer(queue, offset, max_messages, filter)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def answer(self, queue, offset, max_messages, filter=None):  # noqa: A002
        units = self.units.get(queue, [])
        low = self.minimum.get(queue, units[0][0] if units else 0)
        high = units[-1][0] + units[-1][1] if units else 0
        status, next_offset, picked, rows = PullStatus.NO_NEW_MESSAGE, offset, [], 0
        if offset < low or offset > high:
            status, next_offset = PullStatus.OFFSET_MOVED, low if offset < low else high
        for first, count, data, tag in [u for u in units if u[0] + u[1] > offset >= low][: self.most]:
            if rows >= max_messages:
                break
            next_offset = first + count
            # As brokers do, by something that says more than the tag alone.
            if filter is None or any(word.strip()[:1] == tag[:1] for word in filter[1].split("||")):
                picked.append(data)
                rows += count
        if picked or next_offset > offset >= low:
            status = PullStatus.FOUND if picked else PullStatus.NO_MATCH
        return PullResult(queue, offset, status, next_offset, low, high, b"".join(picked), 0)


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
    batches = reader(broker, batch_rows=10, prefetch=1).read([QueueRange(Q0, 0, 20), QueueRange(Q1, 0, 5)])
    next(batches)
    assert [p[:2] for p in broker.pulls] == [(0, 0), (0, 10)]
    next(batches)
    assert [p[:2] for p in broker.pulls] == [(0, 0), (0, 10), (1, 0)]
    batches.close()


def test_without_prefetch_a_pull_waits_until_its_messages_are_wanted(broker):
    broker.plain(Q0, 0, 30)
    batches = reader(broker, batch_rows=10, prefetch=0).read([QueueRange(Q0, 0, 30)])
    next(batches)
    assert [p[1] for p in broker.pulls] == [0]
    next(batches)
    assert [p[1] for p in broker.pulls] == [0, 10]
    batches.close()


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_pulls_run_ahead_as_far_as_their_bytes_allow(broker, prefetch):
    broker.plain(Q0, 0, 100)
    size = len(broker.units[Q0][50][2])
    # A pull of ten messages takes all the room that one pull may ask for.
    batches = reader(broker, batch_rows=10, prefetch=prefetch, pull_bytes=10 * size).read([QueueRange(Q0, 0, 100)])
    assert next(batches).num_rows == 10
    assert len(broker.pulls) == 1 + prefetch
    batches.close()


class Body(bytearray):
    """Bytes that can be watched."""


def test_a_pulled_buffer_is_dropped_before_the_next_batch(broker):
    broker.plain(Q0, 0, 30)
    watched = []

    def pull(*asked, **how):
        answer = broker.pull(*asked, **how).result()
        body = Body(answer.body)
        watched.append(weakref.ref(body))
        future = Future()
        future.set_result(replace(answer, body=body))
        return future

    batches = RangeReader(pull, ("body",), batch_rows=10, prefetch=0).read([QueueRange(Q0, 0, 30)])
    alive = []
    for _ in batches:
        gc.collect()
        alive.append(sum(ref() is not None for ref in watched))
    assert max(alive) <= 1
    assert len(watched) == 3


@pytest.mark.parametrize("most", [3, 1000])
def test_what_was_pulled_is_freed_without_a_garbage_collection(broker, most):
    broker.most = most
    broker.plain(Q0, 0, 2000)
    watched = []

    def finish(future, answer):
        body = Body(answer.body)
        watched.append(weakref.ref(body))
        future.set_result(replace(answer, body=body))

    gc.disable()
    try:
        with ThreadPoolExecutor(1) as client:

            def pull(*asked, **how):
                future = Future()
                client.submit(finish, future, broker.pull(*asked, **how).result())
                return future

            size = len(record(0, b"1000"))
            batches = RangeReader(pull, ("body",), batch_rows=10, pull_messages=10, pull_bytes=10 * size).read([QueueRange(Q0, 0, 2000)])
            alive = [sum(ref() is not None for ref in watched) for _ in batches]
    finally:
        gc.enable()
    assert len(watched) >= 200
    assert max(alive) <= 2 * AT_ONCE


def test_no_more_is_asked_for_than_the_range_has(broker):
    broker.plain(Q0, 0, 100)
    read(broker, (Q0, 0, 7))
    assert broker.pulls == [(0, 0, 7, 0)]


def test_nothing_to_read_asks_nothing(broker):
    assert read(broker) == []
    assert broker.pulls == []


def test_a_broker_that_comes_back_in_time_is_asked_again(broker):
    broker.plain(Q0, 0, 10)
    broker.answers = [ConnectionLost("h:1")] * 3
    assert read(broker, (Q0, 0, 10)) == same(0, 10)


def test_a_broker_that_stays_away_fails_the_task_with_its_error(broker):
    broker.answers = [ConnectionLost("h:1")] * 1000
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
    with pytest.raises(
        RemoteProtocolError, match=r"messages 0 to 7 of queue 0 of topic T on broker broker-a cannot .*message 3 came after message 4"
    ):
        read(broker, (Q0, 0, 8))


def test_a_reader_that_is_dropped_asks_for_nothing_more(broker):
    broker.plain(Q0, 0, 100)
    answers = [broker.pull(Q0, 0, 10, 1, 0), Future()]
    waiting = answers[1]
    batches = RangeReader(lambda *_, **__: answers.pop(0), ("body",), batch_rows=10).read([QueueRange(Q0, 0, 100)])
    next(batches)
    batches.close()
    waiting.set_result(broker.answer(Q0, 10, 10))
    assert answers == []


def test_answers_may_come_in_another_thread_at_any_time(broker):
    broker.most = 3
    broker.plain(Q0, 0, 500)
    broker.plain(Q1, 0, 500)
    asked = []
    more = threading.Semaphore(0)

    def pull(*arguments, **how):
        future = Future()
        asked.append((future, arguments, how))
        more.release()
        return future

    def answer():
        while True:
            more.acquire()
            future, arguments, how = asked.pop(0)
            if future is None:
                return
            future.set_result(broker.pull(*arguments, **how).result())

    answering = threading.Thread(target=answer)
    answering.start()
    batches = RangeReader(pull, ("queueOffset",), batch_rows=10).read([QueueRange(Q0, 0, 500), QueueRange(Q1, 100, 400)])
    got = [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]
    asked.append((None, (), {}))
    more.release()
    answering.join()
    assert got == [*range(500), *range(100, 400)]


# --- several pulls at once ---


class Slow:
    """Answers pulls of ``broker`` when it is told to, in any order."""

    def __init__(self, broker):
        self.broker = broker
        self.open = []

    def pull(self, *asked, **how):
        future = Future()
        self.open.append((asked[1], future, asked, how))
        return future

    def answer(self, *offsets):
        for offset in offsets:
            found = next(entry for entry in self.open if entry[0] == offset)
            self.open.remove(found)
            found[1].set_result(self.broker.pull(*found[2], **found[3]).result())

    @property
    def asked(self):
        return [entry[0] for entry in self.open]


def begin(slow, *ranges, **settings):
    """Read in a thread and return the future of the offsets that were read."""
    batches = RangeReader(slow.pull, ("queueOffset",), **settings).read([QueueRange(*r) for r in ranges])
    return ThreadPoolExecutor(1).submit(lambda: [offset for batch in batches for offset in batch["queueOffset"].to_pylist()])


def test_a_broker_that_gives_little_is_asked_several_times_at_once(broker):
    broker.most = 10
    broker.plain(Q0, 0, 50)
    broker.plain(Q1, 0, 100)
    slow = Slow(broker)
    result = begin(slow, (Q0, 5, 50), (Q1, 0, 15))
    wait_until(lambda: slow.asked == [5])
    slow.answer(5)
    assert slow.asked == [15, 25, 35, 45, 0, 10], "to the end of what is to be read, one range after the other"
    slow.answer(35, 10, 15, 0, 45, 25)
    assert result.result() == [*range(5, 50), *range(15)]


def test_no_more_pulls_go_at_once_than_there_is_room_for(broker):
    broker.most = 10
    broker.plain(Q0, 0, 1000)
    size = 10 * len(broker.units[Q0][500][2])
    most = []
    reading = RangeReader(broker.pull, ("body",), batch_rows=10, pull_messages=1000, pull_bytes=2 * size, prefetch=2)
    for batch in reading.read([QueueRange(Q0, 0, 1000)]):
        most.append(len(broker.pulls))
        assert batch.num_rows == 10
    assert most == [min(i + 4, 100) for i in range(100)], "three answers wait while Spark has one"


def test_pulls_that_began_at_the_wrong_place_are_asked_again(broker):
    broker.most = 1
    for first, count in ((0, 4), (4, 4), (8, 3), (11, 4), (15, 4)):
        broker.inner(Q0, first, count)
    slow = Slow(broker)
    result = begin(slow, (Q0, 0, 19))
    wait_until(lambda: slow.asked == [0])
    slow.answer(0)
    assert slow.asked == [4, 8, 12, 16]
    slow.answer(4, 8)
    assert slow.asked == [12, 16, 11], "the batch from 8 on was shorter than those before"
    slow.answer(11, 12)
    slow.answer(15, 16)
    assert result.result() == [*range(19)]


def test_brokers_whose_answers_differ_are_soon_asked_one_pull_at_a_time(broker):
    broker.most = 1
    first = 0
    for i in range(300):
        count = 2 + i * 7 % 5
        broker.inner(Q0, first, count)
        first += count
    assert read(broker, (Q0, 0, first)) == same(0, first)
    assert len(broker.pulls) < 330


class Relaxing(FakeBroker):
    """Hands out two messages at a time, and 50 from offset 30 on."""

    def answer(self, queue, offset, *asked):
        self.most = 2 if offset < 30 else 50
        return super().answer(queue, offset, *asked)


def test_a_broker_that_returns_more_by_now_is_soon_asked_for_more(monkeypatch):
    monkeypatch.setattr(read_ahead, "RELEARN_AFTER", 20)
    broker = Relaxing()
    broker.plain(Q0, 0, 1000)
    assert read(broker, (Q0, 0, 1000)) == same(0, 1000)
    assert len(broker.pulls) < 60


def test_pulls_under_way_are_answered_before_one_asks_for_more(monkeypatch):
    monkeypatch.setattr(read_ahead, "RELEARN_AFTER", 3)
    broker = Relaxing()
    broker.plain(Q0, 0, 200)
    slow = Slow(broker)
    result = begin(slow, (Q0, 0, 200))
    wait_until(lambda: slow.asked == [0])
    slow.answer(0)
    assert slow.asked == [*range(2, 2 + 2 * AT_ONCE, 2)]
    slow.answer(4, 2, 6)
    assert slow.asked == [*range(8, 8 + 2 * (AT_ONCE - 1), 2)], "two more before the third hit"
    slow.answer(*slow.asked)
    assert slow.asked == [38]
    slow.answer(38)
    while not result.done():
        slow.answer(*slow.asked)
    assert result.result() == [*range(200)]
    assert len(broker.pulls) < 30


# --- filters ---


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_filter_leaves_out_what_it_does_not_let_through_and_goes_on(broker, most):
    broker.most = most
    for first in range(0, 100, 10):
        broker.plain(Q0, first, first + 9, tag="Other")
        broker.plain(Q0, first + 9, first + 10, tag="Apple")
    assert read(broker, (Q0, 5, 95), filter=("TAG", "Apple || Nut")) == [(i, i) for i in range(9, 95, 10)]


def test_a_tag_that_only_looks_alike_to_the_broker_is_left_out(broker):
    broker.plain(Q0, 0, 1, tag="Apple")
    broker.plain(Q0, 1, 2, tag="Avocado")
    broker.inner(Q0, 2, 3, tag="Apple")
    broker.inner(Q0, 5, 3, tag="Avocado")
    assert [offset for offset, _ in read(broker, (Q0, 0, 8), filter=("TAG", "Apple"))] == [0, 2, 3, 4]


def test_a_range_without_any_match_ends_and_the_next_begins(broker):
    broker.most = 5
    broker.plain(Q0, 0, 50, tag="Other")
    broker.plain(Q1, 0, 3, tag="Apple")
    assert read(broker, (Q0, 0, 50), (Q1, 0, 3), filter=("TAG", "Apple")) == same(0, 3)
    assert len(broker.pulls) == 11


def test_a_filter_hides_no_loss(broker):
    broker.plain(Q0, 40, 60, tag="Apple")
    with pytest.raises(DataLoss, match="messages 10 to 39"):
        read(broker, (Q0, 10, 60), filter=("TAG", "Apple"))


def test_the_filter_for_everything_is_none(broker):
    broker.plain(Q0, 0, 5)
    broker.plain(Q0, 6, 10)
    with pytest.raises(DataLoss, match="messages 5 to 5"):
        read(broker, (Q0, 0, 10), filter=("TAG", "*"))


def test_a_condition_is_the_brokers_alone_to_apply(broker):
    broker.plain(Q0, 0, 5, tag="price")
    broker.plain(Q0, 5, 10, tag="weight")
    assert read(broker, (Q0, 0, 10), filter=("SQL92", "price > 3")) == same(0, 5)


def test_what_is_no_filter_is_refused_before_anything_is_read(broker):
    with pytest.raises(InvalidName, match="names no tag"):
        reader(broker, filter=("TAG", " || "))


# --- inner batches as they are ---


@pytest.mark.parametrize("most", [1, 1000])
@pytest.mark.parametrize("cuts", [[0, 12], [0, 4, 12], [0, 3, 8, 9, 12], list(range(13))])
def test_a_raw_inner_batch_is_one_row_of_the_range_with_its_first_offset(broker, most, cuts):
    broker.most = most
    broker.inner(Q0, 0, 3)
    broker.inner(Q0, 3, 5)
    broker.plain(Q0, 8, 9)
    broker.inner(Q0, 9, 3)
    columns = ("queueOffset", "batchBaseOffset", "batchNum", "storeSize")
    rows = []
    for start, end in pairwise(cuts):
        for batch in RangeReader(broker.pull, columns, inner_batch="raw").read([QueueRange(Q0, start, end)]):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    assert [row[:3] for row in rows] == [(0, 0, 3), (3, 3, 5), (8, None, None), (9, 9, 3)]
    assert all(row[3] for row in rows)


def test_a_hole_between_raw_inner_batches_is_data_loss(broker):
    broker.inner(Q0, 0, 3)
    broker.inner(Q0, 5, 3)
    with pytest.raises(DataLoss, match=r"messages 3 to 4 .*left them out"):
        read(broker, (Q0, 0, 8), inner_batch="raw")


def test_a_batch_that_makes_no_sense_is_named_and_can_be_read_raw(broker):
    broker.plain(Q0, 0, 1)
    broker.units[Q0].append((1, 1, record(1, b"no batch at all", sys_flag=192), ""))
    with pytest.raises(RemoteProtocolError, match=r"messages 0 to 1 of queue 0 of topic T on broker broker-a cannot .*innerBatch=raw"):
        read(broker, (Q0, 0, 2))
    batches = RangeReader(broker.pull, ("body",), inner_batch="raw").read([QueueRange(Q0, 0, 2)])
    assert [body for batch in batches for body in batch["body"].to_pylist()] == [b"0", b"no batch at all"]


# --- who answers ---


def test_what_a_replica_does_not_have_yet_comes_from_the_master(broker):
    broker.plain(Q0, 0, 30)
    broker.replica = FakeBroker()
    broker.replica.plain(Q0, 0, 20)
    assert read(broker, (Q0, 0, 30), read_from="slave", batch_rows=10) == same(0, 30)
    assert [p[1] for p in broker.pulls] == [20]


def test_a_replica_alone_never_says_that_messages_are_lost(broker):
    alone = PullResult(Q0, 20, PullStatus.OFFSET_MOVED, 10, 0, 10, b"", 0, from_master=False)
    broker.answers = [alone] * 1000
    with pytest.raises(RetriableError, match=r"the master of broker broker-a is away, and its replica has no message 5"):
        read(broker, (Q0, 5, 20), fail_on_data_loss=False, timeout_ms=1000)


def test_a_group_that_is_reset_by_hand_loses_nothing(broker):
    broker.plain(Q0, 0, 20)
    broker.answers = [PullResult(Q0, 5, PullStatus.OFFSET_MOVED, 15, 0, 20, b"", 0)]
    assert read(broker, (Q0, 5, 20)) == same(5, 20)


def test_a_broker_that_hands_nothing_out_is_an_error_that_may_pass(broker):
    broker.answers = [PullResult(Q0, 0, PullStatus.NO_MATCH, 0, 0, 20, b"", 0)] * 1000
    with pytest.raises(RetriableError, match="hands out no message 0 of queue 0 of topic T"):
        read(broker, (Q0, 0, 20), timeout_ms=1000)


def test_a_deleted_topic_is_data_loss_at_once(broker):
    broker.plain(Q0, 0, 20)
    broker.answers = [broker.answer(Q0, 0, 10), TopicGone("T")]
    with pytest.raises(DataLoss, match=r"messages 10 to 19 .*its topic was deleted"):
        read(broker, (Q0, 0, 20), batch_rows=10)
    assert len(broker.pulls) == 2


def test_going_on_without_a_deleted_topic_reads_the_others(broker):
    broker.plain(Q1, 0, 5)
    broker.answers = [TopicGone("T")]
    assert read(broker, (Q0, 0, 20), (Q1, 0, 5), fail_on_data_loss=False) == same(0, 5)


def test_a_topic_without_a_route_may_be_there_again_soon(broker):
    broker.plain(Q0, 0, 20)
    broker.answers = [TopicNotFound("T", "h:1")] * 3
    assert read(broker, (Q0, 0, 20)) == same(0, 20)
