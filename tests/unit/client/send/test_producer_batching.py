import asyncio
import logging

import pytest
from fake_cluster import answer, hang_up, silence
from tests.inside import bytes_in_flight, run_due

from sprocketmq.client import Producer
from sprocketmq.client.consume.pull import PullConsumer
from sprocketmq.client.send import requests as requests_module
from sprocketmq.client.send.batching import Batching
from sprocketmq.clock import ManualClock
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import (
    BrokerError,
    ClientClosed,
    ConfigError,
    InvalidMessage,
    InvalidName,
    LocalProtocolError,
    MaybeStoredError,
    MessageTooLarge,
    SendQueueFull,
    TopicNotFound,
)
from sprocketmq.net.client import Connection
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.headers import SendMessageV2
from sprocketmq.protocol.message import Message, MessageQueue, SendStatus
from sprocketmq.protocol.properties import decode_properties

QUEUE = MessageQueue("t", "broker-a", 1)
LATE = Batching(max_delay_ms=30_000)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(requests_module, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(requests_module, "BUSY_PAUSE_S", 0.001)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def producer(cluster):
    """A producer whose batches leave when they are full or flushed."""
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=LATE) as p:
        yield p
        await settled(p)


async def settled(producer):
    """Everything sent is answered, and nothing is held."""
    await producer.flush()
    assert (producer.in_flight, bytes_in_flight(producer), producer.batching_stats.held_bytes) == (0, 0, 0)


def requests(server):
    """What was sent: for each request its header, and the bodies in it."""
    found = []
    for command in server.seen:
        if command.code == Q.SEND_BATCH_MESSAGE:
            found.append((command.header(SendMessageV2), [bytes(entry.body) for entry in split_batch(command.body)]))
        elif command.code == Q.SEND_MESSAGE_V2:
            found.append((command.header(SendMessageV2), command.body))
    return found


def bodies(server):
    return [body for _, body in requests(server)]


# --- results ------------------------------------------------------------------------------------------------------------


async def test_messages_share_a_request_and_each_gets_its_own_result(cluster, producer):
    await producer.send_batch([Message("t", b"before", queue=QUEUE)] * 7)
    futures = [producer.submit(Message("t", b"%d" % i, queue=QUEUE)) for i in range(5)]
    await producer.flush()
    results = [future.result() for future in futures]
    assert bodies(cluster.broker)[1:] == [[b"0", b"1", b"2", b"3", b"4"]]
    assert [result.queue_offset for result in results] == [7, 8, 9, 10, 11]
    assert {(r.status, r.topic, r.broker_name, r.queue_id) for r in results} == {(SendStatus.SEND_OK, "t", "broker-a", 1)}
    assert len({result.offset_msg_id for result in results}) == 5
    entries = split_batch(cluster.broker.seen[-1].body)
    assert [decode_properties(entry.properties)["UNIQ_KEY"] for entry in entries] == [result.msg_id for result in results]


async def test_messages_of_an_inner_batch_share_the_broker_id_and_count_their_offsets(cluster, producer):
    def stored_as_one(conn, command):
        conn.respond(command, R.SUCCESS, ext={"msgId": "A" * 32, "batchUniqId": "B" * 32, "queueId": "1", "queueOffset": "100"})
        return True

    cluster.broker.script(Q.SEND_BATCH_MESSAGE, stored_as_one)
    futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
    await producer.flush()
    assert [future.result().queue_offset for future in futures] == [100, 101, 102]
    assert {future.result().offset_msg_id for future in futures} == {"A" * 32}
    assert len({future.result().msg_id for future in futures}) == 3


async def test_many_tasks_that_await_their_sends_share_requests(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, auto_batch=True) as producer:
        results = await asyncio.gather(*(producer.send(Message("t", b"%d" % i)) for i in range(200)))
        assert len({(r.queue_id, r.queue_offset) for r in results}) == 200
        assert producer.batching_stats.messages == 200
        assert producer.batching_stats.batches < 10
        await settled(producer)


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_batch_stored_less_safely_than_asked_gives_each_message_that_status(cluster, producer, code):
    def step(conn, command):
        conn.respond(command, code, ext={"msgId": "M", "queueId": "1", "queueOffset": "5"})
        return True

    cluster.broker.script(Q.SEND_BATCH_MESSAGE, step)
    futures = [producer.submit(Message("t", b"x")) for _ in range(2)]
    await producer.flush()
    assert [(future.result().status, future.result().queue_offset) for future in futures] == [(SendStatus(code), 5), (SendStatus(code), 6)]


async def test_the_body_sent_is_the_one_the_message_had_when_it_was_submitted(cluster, producer):
    message = Message("t", b"first")
    producer.submit(message)
    message.body = b"second"
    producer.submit(message)
    await producer.flush()
    assert bodies(cluster.broker) == [[b"first", b"second"]]


async def test_a_batch_of_one_travels_as_an_ordinary_message(cluster, producer):
    future = producer.submit(Message("t", b"alone", tag="a", keys=["k"], properties={"p": "é"}, flag=9, queue=QUEUE))
    await producer.flush()
    ((header, body),) = requests(cluster.broker)
    assert (header.batch, header.flag, header.queue_id, body) == (False, 9, 1, b"alone")
    expected = {"TAGS": "a", "KEYS": "k", "p": "é", "WAIT": "true", "UNIQ_KEY": future.result().msg_id}
    assert decode_properties(header.properties.encode()) == expected
    assert future.result().queue_offset == 0
    assert producer.batching_stats.histogram == {1: 1}


# --- what a batch says of itself ----------------------------------------------------------------------------------------


async def test_a_batch_carries_its_tag_the_keys_of_all_and_an_id_of_its_own(cluster, producer):
    futures = [
        producer.submit(Message("t", b"1", tag="a", keys=["k1", "k2"], flag=5)),
        producer.submit(Message("t", b"2", tag="a", keys="k3", properties={"region": "eu"})),
        producer.submit(Message("t", b"3", tag="a", keys=["k2"])),
        producer.submit(Message("t", b"4", tag="a")),
    ]
    await producer.flush()
    (command,) = (c for c in cluster.broker.seen if c.code == Q.SEND_BATCH_MESSAGE)
    outer = decode_properties(command.header(SendMessageV2).properties.encode())
    ids = [future.result().msg_id for future in futures]
    assert len(outer["UNIQ_KEY"]) == 32
    assert outer.pop("UNIQ_KEY") not in ids
    assert outer == {"TAGS": "a", "KEYS": "k1 k2 k3", "WAIT": "true"}
    entries = split_batch(command.body)
    assert [entry.flag for entry in entries] == [5, 0, 0, 0]
    shared = {"TAGS": "a", "WAIT": "true"}
    assert [decode_properties(entry.properties) for entry in entries] == [
        {**shared, "KEYS": "k1 k2", "UNIQ_KEY": ids[0]},
        {**shared, "KEYS": "k3", "region": "eu", "UNIQ_KEY": ids[1]},
        {**shared, "KEYS": "k2", "UNIQ_KEY": ids[2]},
        {**shared, "UNIQ_KEY": ids[3]},
    ]


async def test_messages_that_may_not_share_a_batch_do_not(cluster, producer):
    kinds = [
        Message("t", b"plain"),
        Message("t", b"tagged", tag="a"),
        Message("t", b"careless", wait_store_ok=False),
        Message("t", b"queue", queue=QUEUE),
    ]
    for message in kinds * 2:
        producer.submit(message)
    await producer.flush()
    assert bodies(cluster.broker) == [[message.body] * 2 for message in kinds]
    outer = [decode_properties(header.properties.encode()) for header, _ in requests(cluster.broker)]
    assert [(one.get("TAGS"), one["WAIT"]) for one in outer] == [(None, "true"), ("a", "true"), (None, "false"), (None, "true")]
    inner = [
        decode_properties(split_batch(command.body)[1].properties)
        for command in cluster.broker.seen
        if command.code == Q.SEND_BATCH_MESSAGE
    ]
    assert [one["WAIT"] for one in inner] == ["true", "true", "false", "true"]
    assert requests(cluster.broker)[3][0].queue_id == 1


# --- when batches leave -------------------------------------------------------------------------------------------------


async def test_a_batch_leaves_when_its_delay_is_over(cluster, clock):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=Batching(max_delay_ms=10), clock=clock) as producer:
        future = producer.submit(Message("t", b"x"))
        clock.advance(0.009)
        run_due(producer)
        assert producer.batching_stats.batches == 0
        clock.advance(0.002)
        run_due(producer)
        assert producer.batching_stats.batches == 1
        assert (await future).queue_offset == 0
        assert producer.batching_stats.linger_ms_max == pytest.approx(11)
        # The timer goes with what is open: the next batch is due in its own time.
        producer.submit(Message("t", b"y"))
        clock.advance(0.005)
        run_due(producer)
        assert producer.batching_stats.batches == 1
        clock.advance(0.006)
        run_due(producer)
        assert producer.batching_stats.batches == 2
        await settled(producer)


async def test_a_full_batch_leaves_at_once(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=Batching(max_bytes=1000, max_delay_ms=30_000)) as producer:
        futures = [producer.submit(Message("t", bytes([65 + i]) * 400)) for i in range(4)]
        await asyncio.gather(*futures)
        assert [len(body) for body in bodies(cluster.broker)] == [2, 2]
        assert all(len(c.body) <= 1000 for c in cluster.broker.seen if c.code == Q.SEND_BATCH_MESSAGE)


async def test_close_sends_what_is_gathered_then_refuses(cluster):
    producer = Producer("pg", namesrv=cluster.namesrv.address, batching=LATE)
    await producer.start()
    futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
    await producer.close()
    assert [future.result().status for future in futures] == [SendStatus.SEND_OK] * 3
    assert producer.batching_stats.held_bytes == producer.in_flight == 0
    with pytest.raises(ClientClosed):
        producer.submit(Message("t", b"x"))
    with pytest.raises(ClientClosed):
        await producer.send(Message("t", b"x"))


async def test_a_close_that_is_cancelled_still_ends_every_send(cluster):
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, silence)
    producer = Producer("pg", namesrv=cluster.namesrv.address, batching=LATE)
    await producer.start()
    futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
    closing = asyncio.ensure_future(producer.close())
    await cluster.broker.until(lambda: cluster.broker.count(Q.SEND_BATCH_MESSAGE))
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    errors = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(error) for error in errors] == [MaybeStoredError] * 3
    assert producer.batching_stats.held_bytes == producer.in_flight == 0


async def test_closing_one_producer_leaves_the_batches_of_another_alone(cluster, producer):
    future = producer.submit(Message("t", b"mine"))
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=LATE) as other:
        other.submit(Message("t", b"theirs"))
    assert bodies(cluster.broker) == [b"theirs"]
    assert not future.done()


# --- what goes alone ----------------------------------------------------------------------------------------------------


async def test_delayed_messages_and_those_with_a_time_limit_of_their_own_go_alone_in_order(cluster, producer):
    producer.submit(Message("t", b"1"))
    later = producer.submit(Message("t", b"2", delay_level=3))
    timed = producer.submit(Message("t", b"3", deliver_at_ms=1_800_000_000_000))
    limited = producer.submit(Message("t", b"4"), timeout_s=30)
    await asyncio.gather(later, timed, limited, producer.send(Message("t", b"5"), timeout_s=30))
    assert bodies(cluster.broker) == [b"1", b"2", b"3", b"4", b"5"]
    assert producer.batching_stats.direct == 2


async def test_a_message_to_a_retry_topic_goes_alone(cluster, producer):
    cluster.put("%RETRY%cg", queues=1)
    await producer.send(Message("%RETRY%cg", b"x"))
    assert bodies(cluster.broker) == [b"x"]


async def test_a_message_too_large_for_a_batch_goes_alone_behind_what_was_gathered(cluster, producer):
    producer.submit(Message("t", b"small"))
    await producer.submit(Message("t", bytes(40_000)))
    (_, first), (header, second) = requests(cluster.broker)
    assert (first, len(second) < 40_000) == (b"small", True)
    assert header.sys_flag  # compressed, as messages sent by themselves are


async def test_a_message_over_the_limit_is_refused_and_leaves_no_trace(producer):
    with pytest.raises(MessageTooLarge):
        producer.submit(Message("t", bytes(5_000_000)))
    assert producer.in_flight == 0


async def test_messages_beyond_the_total_go_alone(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=Batching(max_delay_ms=30_000, total_max_bytes=250)) as producer:
        futures = [producer.submit(Message("t", b"%d" % i)) for i in range(5)]
        await asyncio.gather(*futures)
        assert bodies(cluster.broker)[0] == [b"0", b"1", b"2"]
        assert bodies(cluster.broker)[1] == b"3"
        await settled(producer)


# --- failures -----------------------------------------------------------------------------------------------------------


async def test_a_refused_batch_fails_each_message_with_an_error_of_its_own(cluster, producer):
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, answer(R.MESSAGE_ILLEGAL, "no batches today"))
    futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
    await producer.flush()
    errors = [future.exception() for future in futures]
    assert {type(error) for error in errors} == {BrokerError}
    assert {(error.code, error.remark, str(error)) for error in errors} == {(R.MESSAGE_ILLEGAL, "no batches today", str(errors[0]))}
    assert len(set(map(id, errors))) == 3


async def test_a_batch_is_tried_again_elsewhere_as_a_whole(two_brokers):
    busy = []

    def the_first_is_busy(conn, command):
        if not busy:
            busy.append(command)
            conn.respond(command, R.SYSTEM_BUSY, remark="busy")
            return True
        return False

    for broker in two_brokers.brokers:
        broker.script(Q.SEND_BATCH_MESSAGE, the_first_is_busy)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, batching=LATE) as producer:
        futures = [producer.submit(Message("t", b"%d" % i)) for i in range(4)]
        await producer.flush()
        sent = [(broker, c) for broker in two_brokers.brokers for c in broker.seen if c.code == Q.SEND_BATCH_MESSAGE]
        assert [broker.count(Q.SEND_BATCH_MESSAGE) for broker in two_brokers.brokers] == [1, 1]
        assert sent[0][1].body == sent[1][1].body
        took = next(broker for broker, command in sent if command is not busy[0])
        assert [(future.result().broker_name, future.result().queue_offset) for future in futures] == [(took.name, i) for i in range(4)]
        await settled(producer)


async def test_when_no_answer_comes_each_message_may_be_stored(cluster):
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, hang_up, hang_up, hang_up)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=LATE) as producer:
        futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
        await producer.flush()
        assert [type(future.exception()) for future in futures] == [MaybeStoredError] * 3
        await settled(producer)


async def test_an_answer_that_does_not_say_where_leaves_each_message_in_doubt(cluster, producer):
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, answer(R.SUCCESS))
    futures = [producer.submit(Message("t", b"x")) for _ in range(2)]
    await producer.flush()
    assert [type(future.exception()) for future in futures] == [MaybeStoredError] * 2


async def test_a_batch_to_a_topic_that_is_nowhere_fails_each_message(producer):
    futures = [producer.submit(Message("nowhere", b"x")) for _ in range(2)]
    await producer.flush()
    assert [type(future.exception()) for future in futures] == [TopicNotFound] * 2


async def test_a_batch_to_a_queue_that_is_gone_fails_each_message(producer):
    futures = [producer.submit(Message("t", b"x", queue=MessageQueue("t", "nobody", 0))) for _ in range(2)]
    await producer.flush()
    assert [type(future.exception()) for future in futures] == [InvalidMessage] * 2
    await producer.send(Message("t", b"x"), timeout_s=30)
    with pytest.raises(InvalidMessage, match="nobody"):  # known at once when the topic is
        producer.submit(Message("t", b"x", queue=MessageQueue("t", "nobody", 0)))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("t", b""), InvalidMessage),
        (Message("a b", b"x"), InvalidName),
        (Message(None, b"x"), InvalidName),
        (Message(["t"], b"x"), InvalidName),
        (Message("t", b"x", tag="a||b"), InvalidName),
        (Message("t", b"x", tag=["a"]), InvalidName),
        (Message("t", b"x", keys=["two words"]), InvalidMessage),
        (Message("t", b"x", properties={"KEYS": "k"}), InvalidMessage),
        (Message("t", b"x", properties={"a": "\x01"}), InvalidMessage),
        (Message("t", b"x", queue=3), InvalidMessage),
        (Message("t", b"x", queue=[3]), InvalidMessage),
        (Message("t", b"x", flag=1 << 40), InvalidMessage),
    ],
)
async def test_a_bad_message_is_refused_at_once_and_harms_no_batch(cluster, producer, message, error):
    good = producer.submit(Message("t", b"good"))
    with pytest.raises(error):
        producer.submit(message)
    with pytest.raises(error):
        await producer.send(message)
    await producer.flush()
    assert good.result().queue_offset == 0
    assert bodies(cluster.broker) == [b"good"]


async def test_requests_that_cannot_be_written_fail_their_messages_and_nothing_stays_held(producer, monkeypatch):
    await producer.send(Message("t", b"x"), timeout_s=30)

    def refuse(self, receiver, code, **options):
        raise LocalProtocolError("too long")

    monkeypatch.setattr(Connection, "request_for", refuse)
    # A thousand batches that fail at once, one after the other.
    futures = [producer.submit(Message("t", b"x", tag=f"{i % 1000}")) for i in range(2000)]
    alone = producer.submit(Message("t", b"x"), timeout_s=30)
    await producer.flush()
    assert {type(future.exception()) for future in (*futures, alone)} == {LocalProtocolError}
    monkeypatch.undo()


# --- who waits ----------------------------------------------------------------------------------------------------------


async def test_a_task_that_stops_waiting_disturbs_nobody(cluster, producer):
    tasks = [asyncio.ensure_future(producer.send(Message("t", b"%d" % i))) for i in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    await producer.flush()
    assert [task.cancelled() for task in tasks] == [False, True, False]
    assert [tasks[i].result().queue_offset for i in (0, 2)] == [0, 2]
    assert bodies(cluster.broker) == [[b"0", b"1", b"2"]]


async def test_callbacks_are_told_the_outcome_of_their_own_message(cluster, producer):
    told = []
    for i in range(2):
        producer.submit(Message("t", b"x"), lambda result, error, i=i: told.append((i, result.queue_offset, error)))
    await producer.flush()
    assert told == [(0, 0, None), (1, 1, None)]
    cluster.broker.script(Q.SEND_MESSAGE_V2, answer(R.MESSAGE_ILLEGAL, "no"))
    producer.submit(Message("t", b"x"), lambda result, error: told.append((result, type(error))))
    await producer.flush()
    await asyncio.sleep(0)  # errors come in the next turn
    assert told[2:] == [(None, BrokerError)]


@pytest.mark.parametrize("error", [ValueError("boom"), asyncio.CancelledError()])
async def test_a_callback_that_raises_is_logged_and_harms_nobody(producer, caplog, error):
    told = []

    def raises(result, _):
        told.append(result)
        raise error

    for _ in range(3):
        assert producer.submit(Message("t", b"x"), raises) is None
    with caplog.at_level(logging.ERROR):
        await producer.flush()
    assert [result.queue_offset for result in told] == [0, 1, 2]
    assert len(told) == len([r for r in caplog.records if "callback" in r.message]) == 3


async def test_a_callback_may_submit_the_next_message(cluster, producer):
    sent = []

    def again(result, error):
        sent.append(result.queue_offset)
        if len(sent) < 4:
            producer.submit(Message("t", b"x", queue=QUEUE), again)

    producer.submit(Message("t", b"x", queue=QUEUE), again)
    while len(sent) < 4:
        await producer.flush()
        await asyncio.sleep(0)
    assert sent == [0, 1, 2, 3]


# --- bounds -------------------------------------------------------------------------------------------------------------


async def test_gathered_messages_count_as_in_flight_and_room_sends_them(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=LATE, max_in_flight=3) as producer:
        futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
        with pytest.raises(SendQueueFull) as full:
            producer.submit(Message("t", b"x"))
        assert full.value.limit == 3
        await producer.room()
        assert all(future.done() for future in futures)
        producer.submit(Message("t", b"x"))


async def test_bytes_in_flight_are_bounded_too(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=LATE, max_in_flight_bytes=1000) as producer:
        producer.submit(Message("t", bytes(600)))
        with pytest.raises(SendQueueFull):
            producer.submit(Message("t", bytes(600)))
        await settled(producer)
        producer.submit(Message("t", bytes(2000)))  # nothing is in flight: a message of any size may go
        await settled(producer)


# --- adaptive mode ------------------------------------------------------------------------------------------------------


async def test_an_adaptive_producer_sends_a_lone_message_at_once(cluster, clock):
    adaptive = Batching(max_delay_ms=30_000, adaptive=True)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=adaptive, clock=clock) as producer:
        for i in range(3):  # the clock stands still: nothing waits for a delay
            assert (await producer.send(Message("t", b"x", queue=QUEUE))).queue_offset == i
        assert producer.batching_stats.histogram == {1: 3}


async def test_an_adaptive_producer_gathers_what_comes_before_the_answer(cluster, clock):
    adaptive = Batching(max_delay_ms=30_000, adaptive=True)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=adaptive, clock=clock) as producer:
        for way in (producer.send, producer.submit):
            await asyncio.gather(*(way(Message("t", b"1")) for _ in range(5)))
        assert bodies(cluster.broker) == [b"1", [b"1"] * 4] * 2
        await settled(producer)


async def test_tasks_that_send_one_message_after_the_other_share_adaptive_batches(cluster, clock):
    adaptive = Batching(max_delay_ms=30_000, adaptive=True)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=adaptive, clock=clock) as producer:

        async def work():
            for _ in range(5):
                await producer.send(Message("t", b"x"))

        await producer.queues("t")
        await asyncio.gather(*(work() for _ in range(8)))
        # The first leaves alone, and its task joins the others when the second batch is answered.
        assert producer.batching_stats.histogram[8] >= 3
        await settled(producer)


@pytest.mark.parametrize(
    "message", [Message("t", b""), Message("a b", b"x"), Message("t", b"x", tag=["a"]), Message("t", b"x", queue=QUEUE, keys=["a b"])]
)
async def test_a_bad_message_leaves_nothing_behind_in_adaptive_mode(cluster, clock, message):
    adaptive = Batching(max_delay_ms=30_000, adaptive=True)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=adaptive, clock=clock) as producer:
        for _ in range(2):
            with pytest.raises(ConfigError):
                producer.submit(message)
            with pytest.raises(ConfigError):
                await producer.send(message)
        await settled(producer)
        assert (await producer.send(Message("t", b"x"))).queue_offset == 0


async def test_an_adaptive_send_whose_task_is_cancelled_holds_nothing(cluster, clock):
    cluster.broker.script(Q.SEND_MESSAGE_V2, silence)
    adaptive = Batching(max_delay_ms=30_000, adaptive=True)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=adaptive, clock=clock) as producer:
        sending = asyncio.ensure_future(producer.send(Message("t", b"x")))
        await cluster.broker.until(lambda: cluster.broker.count(Q.SEND_MESSAGE_V2))
        waiting = producer.submit(Message("t", b"y"))
        sending.cancel()
        assert (await waiting).queue_offset == 0
        await settled(producer)


async def test_an_adaptive_producer_goes_on_after_a_batch_that_failed(cluster, clock):
    adaptive = Batching(max_delay_ms=30_000, adaptive=True)
    cluster.broker.script(Q.SEND_MESSAGE_V2, answer(R.MESSAGE_ILLEGAL, "no"))
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=adaptive, clock=clock) as producer:
        lost = producer.submit(Message("t", b"lost"))
        await asyncio.sleep(0)
        waiting = producer.submit(Message("t", b"waiting"))
        assert isinstance(await asyncio.gather(lost, return_exceptions=True), list)
        assert (await waiting).queue_offset == 0
        assert isinstance(lost.exception(), BrokerError)
        await settled(producer)


# --- options and counters -----------------------------------------------------------------------------------------------


async def test_without_batching_nothing_is_gathered_and_the_counters_stay_zero(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        told = []
        producer.submit(Message("t", b"x"), lambda result, error: told.append(result.queue_offset))
        await producer.flush()
        assert told == [0]
        assert bodies(cluster.broker) == [b"x"]
        stats = producer.batching_stats
        assert (stats.batches, stats.messages, stats.direct, stats.held_bytes, dict(stats.histogram)) == (0, 0, 0, 0, {})


async def test_the_counters_tell_what_was_gathered(cluster, producer):
    for count in (1, 3, 5):
        for _ in range(count):
            producer.submit(Message("t", b"x"))
        assert producer.batching_stats.held_bytes > 0
        await producer.flush()
    stats = producer.batching_stats
    assert (stats.batches, stats.messages, stats.direct, stats.held_bytes) == (3, 9, 0, 0)
    assert stats.histogram == {1: 1, 2: 1, 4: 1}


def test_batching_is_an_object_of_its_own_type():
    with pytest.raises(ConfigError, match="batching"):
        Producer("pg", namesrv="127.0.0.1:9876", batching={"max_bytes": 1000})


# --- against the broker -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attributes", [{}, {"queue.type": "BatchCQ"}], ids=["plain", "BatchCQ"])
async def test_each_result_is_where_a_consumer_finds_the_message(attributes):
    async with LocalCluster() as mq:
        mq.create_topic("t", queues=2, attributes=attributes)
        batching = Batching(max_bytes=2000, max_delay_ms=5)
        async with Producer("pg", namesrv=mq.namesrv, batching=batching) as producer, PullConsumer("cg", namesrv=mq.namesrv) as consumer:
            messages = [Message("t", b"%d" % i, tag="ab"[i % 2], keys=[f"k{i}"]) for i in range(100)]
            results = await asyncio.gather(*map(producer.send, messages))
            assert 4 < producer.batching_stats.batches < 50
            for message, result in zip(messages, results, strict=True):
                queue = MessageQueue("t", result.broker_name, result.queue_id)
                found = (await consumer.pull(queue, result.queue_offset, max_messages=1)).messages[0]
                assert (found.body, found.tag, list(found.keys)) == (message.body, message.tag, message.keys)
                assert (found.msg_id, found.queue_offset) == (result.msg_id, result.queue_offset)
            await settled(producer)
