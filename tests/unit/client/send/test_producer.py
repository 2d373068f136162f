import asyncio

import pytest
from fake_cluster import answer, half_frame, hang_up, silence
from tests.inside import bytes_in_flight, instance_of
from tests.waiting import stays

from sprocketmq import Batching
from sprocketmq.client import Producer, PullConsumer
from sprocketmq.client.send import requests
from sprocketmq.errors import (
    BatchError,
    BatchPartlySent,
    BrokerBusy,
    BrokerError,
    ConfigError,
    ConnectFailed,
    InvalidMessage,
    InvalidName,
    MaybeStoredError,
    MessageTooLarge,
    RequestTimeout,
    RetriableError,
    SendQueueFull,
    TopicNotFound,
)
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.headers import SendMessageV2
from sprocketmq.protocol.message import Message, MessageQueue, SendStatus
from sprocketmq.protocol.properties import decode_properties
from sprocketmq.testing import eventually


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(requests, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(requests, "BUSY_PAUSE_S", 0.001)


@pytest.fixture
async def producer(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=30) as p:
        yield p


def sends(server) -> list[SendMessageV2]:
    return [c.header(SendMessageV2) for c in server.seen if c.code in (Q.SEND_MESSAGE_V2, Q.SEND_BATCH_MESSAGE)]


# --- single sends -------------------------------------------------------------------------------------------------------


async def test_a_send_says_where_the_message_was_stored(cluster, producer):
    result = await producer.send(Message("t", b"hello", tag="a", keys=["k"], properties={"p": "q"}, flag=7))
    assert result.status is SendStatus.SEND_OK
    assert (result.topic, result.broker_name, result.queue_offset) == ("t", "broker-a", 0)
    assert len(result.msg_id) == len(result.offset_msg_id) == 32
    (header,) = sends(cluster.broker)
    assert (header.producer_group, header.queue_id, header.flag, header.batch) == ("pg", result.queue_id, 7, False)
    expected = {"TAGS": "a", "KEYS": "k", "p": "q", "WAIT": "true", "UNIQ_KEY": result.msg_id}
    assert decode_properties(header.properties.encode()) == expected


async def test_messages_go_to_the_queues_in_turn(producer):
    used = [(await producer.send(Message("t", b"x"))).queue_id for _ in range(8)]
    assert sorted(used[:4]) == [0, 1, 2, 3]
    assert used[4:] == used[:4]


async def test_a_message_with_a_queue_goes_there(producer):
    for _ in range(3):
        assert (await producer.send(Message("t", b"x", queue=MessageQueue("t", "broker-a", 2)))).queue_id == 2


@pytest.mark.parametrize(
    ("queue", "word"),
    [
        (MessageQueue("other", "broker-a", 0), "other"),
        (MessageQueue("t", "nobody", 0), "nobody"),
        (MessageQueue("t", "broker-a", -1), "-1"),
    ],
)
async def test_a_queue_that_cannot_be_is_refused(producer, queue, word):
    with pytest.raises(InvalidMessage, match=word):
        await producer.send(Message("t", b"x", queue=queue))
    with pytest.raises(InvalidMessage, match=word):
        await producer.submit(Message("t", b"x", queue=queue))


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_message_stored_less_safely_than_asked_is_a_result_with_that_status(cluster, producer, code):
    def step(conn, command):
        conn.respond(command, code, ext={"msgId": "M", "queueId": "1", "queueOffset": "5"})
        return True

    for send in (producer.send, producer.submit):
        cluster.broker.script(Q.SEND_MESSAGE_V2, step)
        result = await send(Message("t", b"x"))
        assert result.status is SendStatus(code)
        assert result.queue_offset == 5
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, step)
    assert (await producer.send_batch([Message("t", b"x")])).status is SendStatus(code)


async def test_a_large_body_travels_compressed_and_arrives_whole(cluster, producer):
    await producer.send(Message("t", b"large " * 2000, queue=MessageQueue("t", "broker-a", 0)))
    assert sends(cluster.broker)[0].sys_flag == 769
    async with PullConsumer("g", namesrv=cluster.namesrv.address) as consumer:
        result = await consumer.pull(MessageQueue("t", "broker-a", 0), 0)
    assert [m.body for m in result.messages] == [b"large " * 2000]


# --- what never leaves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["", "  ", "a b", "é", "x" * 128, "SCHEDULE_TOPIC_XXXX", None, 5])
async def test_a_bad_topic_is_refused_before_anything_is_sent(cluster, producer, topic):
    before = len(cluster.namesrv.seen)
    with pytest.raises(InvalidName, match="topic"):
        await producer.send(Message(topic, b"x"))
    with pytest.raises(InvalidName, match="topic"):
        producer.submit(Message(topic, b"x"))
    with pytest.raises(InvalidName, match="topic"):
        await producer.send_batch([Message(topic, b"x")])
    assert len(cluster.namesrv.seen) == before


@pytest.mark.parametrize("group", ["", "a b", "x" * 121, "DEFAULT_PRODUCER", None])
def test_a_bad_group_is_refused(group):
    with pytest.raises(ConfigError, match="group"):
        Producer(group, namesrv="127.0.0.1:9876")


@pytest.mark.parametrize(
    "option",
    [
        {"timeout_s": 0},
        {"retries": -1},
        {"max_message_bytes": 0},
        {"max_message_bytes": 1 << 30},
        {"compression": "gzip"},
        {"max_in_flight": 0},
    ],
)
def test_a_bad_option_is_refused_and_named(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        Producer("g", namesrv="127.0.0.1:9876", **option)


async def test_a_body_over_the_limit_is_refused_with_both_sizes(producer):
    for send in (producer.send, producer.submit):
        with pytest.raises(MessageTooLarge) as e:
            await send(Message("t", bytes(4_194_305)))
        assert (e.value.size, e.value.limit) == (4_194_305, 4_194_304)
    assert producer.in_flight == 0


async def test_an_unknown_topic_without_a_template_is_not_found(producer):
    for send in (producer.send, producer.submit):
        with pytest.raises(TopicNotFound) as e:
            await send(Message("nope", b"x"))
        assert e.value.topic == "nope"
        assert "create it first" in str(e.value)


async def test_an_unknown_topic_is_sent_by_the_templates_route_and_then_by_its_own(cluster, producer):
    cluster.put("TBW102", queues=8)
    result = await producer.send(Message("new", b"x"))
    assert result.queue_id < 4
    header = sends(cluster.broker)[0]
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    cluster.put("new", queues=6)
    instance_of(producer)._refreshed_at.clear()
    await producer.send(Message("new", b"x"))

    async def sees_six() -> bool:
        return len(await producer.queues("new")) == 6

    await eventually(sees_six)


async def test_a_topic_the_broker_no_longer_has_is_looked_up_anew_at_the_next_send(cluster, producer):
    await producer.send(Message("t", b"x"))
    cluster.broker.script(Q.SEND_MESSAGE_V2, *[answer(R.TOPIC_NOT_EXIST, "topic[t] not exist")] * 3)
    with pytest.raises(TopicNotFound):
        await producer.send(Message("t", b"x"))
    before = cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC)
    await producer.send(Message("t", b"x"))
    assert cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC) > before


# --- retries ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205, 1500])
@pytest.mark.parametrize("method", ["send", "submit", "send_batch"])
async def test_a_refusal_that_may_pass_is_tried_on_another_broker(two_brokers, code, method):
    a, b = two_brokers.brokers
    for broker in (a, b):
        broker.script(Q.SEND_MESSAGE_V2, answer(code))
        broker.script(Q.SEND_BATCH_MESSAGE, answer(code))
    async with Producer("pg", namesrv=two_brokers.namesrv.address) as producer:
        send = getattr(producer, method)
        await send([Message("t", b"x")] if method == "send_batch" else Message("t", b"x"))
    assert (len(sends(a)), len(sends(b))) in ((2, 1), (1, 2))
    ids = {decode_properties(h.properties.encode())["UNIQ_KEY"] for h in sends(a) + sends(b)}
    assert len(ids) == 1


async def test_a_refusal_that_does_not_pass_is_raised_after_two_retries(cluster, producer):
    cluster.broker.script(Q.SEND_MESSAGE_V2, *[answer(R.SYSTEM_BUSY, "[REJECTREQUEST]system busy")] * 3)
    with pytest.raises(BrokerBusy, match="REJECTREQUEST") as e:
        await producer.send(Message("t", b"x"))
    assert (e.value.code, e.value.address) == (2, cluster.broker.address)
    assert len(sends(cluster.broker)) == 3


@pytest.mark.parametrize("code", [13, 29, 26])
async def test_a_final_refusal_is_raised_at_once(cluster, producer, code):
    for send in (producer.send, producer.submit):
        cluster.broker.script(Q.SEND_MESSAGE_V2, answer(code, "never"))
        before = len(sends(cluster.broker))
        with pytest.raises(BrokerError, match="never") as e:
            await send(Message("t", b"x"))
        assert e.value.code == code
        assert not isinstance(e.value, RetriableError)
        assert len(sends(cluster.broker)) == before + 1


@pytest.mark.parametrize("fault", [hang_up, half_frame])
@pytest.mark.parametrize("method", ["send", "submit", "send_batch"])
async def test_a_connection_lost_before_the_answer_is_tried_again(cluster, producer, fault, method):
    await producer.send(Message("t", b"x"))
    send = getattr(producer, method)
    cluster.broker.script(Q.SEND_MESSAGE_V2, fault)
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, fault)
    await send([Message("t", b"x")] if method == "send_batch" else Message("t", b"x"))
    assert len(sends(cluster.broker)) == 3


async def test_connections_lost_at_every_try_leave_the_outcome_unknown(cluster, producer):
    cluster.broker.script(Q.SEND_MESSAGE_V2, hang_up, hang_up, hang_up)
    with pytest.raises(MaybeStoredError, match="may be stored or not") as e:
        await producer.send(Message("t", b"x"))
    assert e.value.address == cluster.broker.address


async def test_a_refusal_after_a_lost_connection_still_leaves_the_outcome_unknown(cluster, producer):
    cluster.broker.script(Q.SEND_MESSAGE_V2, hang_up, answer(13))
    with pytest.raises(MaybeStoredError):
        await producer.send(Message("t", b"x"))


@pytest.mark.parametrize("method", ["send", "submit", "send_batch"])
async def test_no_answer_in_time_leaves_the_outcome_unknown(cluster, producer, method):
    cluster.broker.script(Q.SEND_MESSAGE_V2, silence)
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, silence)
    send = getattr(producer, method)
    with pytest.raises(MaybeStoredError) as e:
        await send([Message("t", b"x")] if method == "send_batch" else Message("t", b"x"), timeout_s=0.1)
    assert isinstance(e.value.cause, RequestTimeout)
    assert producer.in_flight == 0


async def test_a_broker_that_cannot_be_reached_fails_the_send_within_its_time(cluster, producer):
    await producer.send(Message("t", b"x"))
    await cluster.broker.stop()
    await asyncio.sleep(0)
    with pytest.raises((ConnectFailed, MaybeStoredError)):
        await producer.send(Message("t", b"x"), timeout_s=0.2)
    with pytest.raises(ConnectFailed) as e:
        await producer.send(Message("t", b"x"), timeout_s=0.2)
    assert cluster.broker.address in str(e.value)
    assert "RocketMQ broker" in str(e.value)


@pytest.mark.parametrize("method", ["send", "submit", "send_batch"])
async def test_sends_wait_through_a_broker_restart(cluster, producer, method):
    await producer.send(Message("t", b"x"))
    await cluster.broker.stop()
    send = getattr(producer, method)
    waiting = asyncio.ensure_future(send([Message("t", b"x")] if method == "send_batch" else Message("t", b"x")))
    await stays(lambda: not waiting.done())
    await cluster.broker.restart()
    await waiting


async def test_the_other_broker_takes_over_while_one_is_gone(two_brokers):
    async with Producer("pg", namesrv=two_brokers.namesrv.address) as producer:
        await two_brokers.broker.stop()
        results = await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(16)))
    assert {r.broker_name for r in results} == {"broker-b"}


async def test_a_message_with_a_queue_never_goes_elsewhere(two_brokers):
    a, b = two_brokers.brokers
    a.script(Q.SEND_MESSAGE_V2, answer(2))
    async with Producer("pg", namesrv=two_brokers.namesrv.address) as producer:
        result = await producer.send(Message("t", b"x", queue=MessageQueue("t", "broker-a", 3)))
    assert (result.broker_name, result.queue_id) == ("broker-a", 3)
    assert sends(b) == []


# --- submit -------------------------------------------------------------------------------------------------------------


async def test_submit_returns_before_anything_is_known_and_keeps_the_order(cluster, producer):
    futures = [producer.submit(Message("t", b"%d" % i, queue=MessageQueue("t", "broker-a", 0))) for i in range(500)]
    assert not any(f.done() for f in futures)
    results = await asyncio.gather(*futures)
    assert [r.queue_offset for r in results] == list(range(500))
    assert producer.in_flight == 0


async def test_submit_is_bounded_by_count_and_by_bytes(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, max_in_flight=3, max_in_flight_bytes=1000) as producer:
        futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
        with pytest.raises(SendQueueFull) as e:
            producer.submit(Message("t", b"x"))
        assert (e.value.what, e.value.limit) == ("messages", 3)
        await producer.room()
        futures.append(producer.submit(Message("t", b"y" * 2000)) if not producer.in_flight else producer.submit(Message("t", b"y" * 900)))
        with pytest.raises(SendQueueFull, match="bytes"):
            producer.submit(Message("t", b"y" * 900))
        await asyncio.gather(*futures)
        large = producer.submit(Message("t", b"z" * 5000))  # alone, any size goes
        await large
        assert (producer.in_flight, bytes_in_flight(producer)) == (0, 0)


@pytest.mark.parametrize("batching", [None, Batching(max_delay_ms=30_000)], ids=["single", "batching"])
async def test_room_waits_until_a_body_fits_that_was_too_large(cluster, batching):
    held = []

    def hold(conn, command):
        held.append((conn, command))
        return True

    cluster.broker.script(Q.SEND_MESSAGE_V2, hold, hold)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching, max_in_flight_bytes=1000, timeout_s=60) as producer:
        first, second = (producer.submit(Message("t", b"x" * size, tag=f"{size}")) for size in (600, 300))
        with pytest.raises(SendQueueFull, match="bytes"):
            producer.submit(Message("t", b"x" * 500))
        room = asyncio.ensure_future(producer.room())
        await eventually(lambda: len(held) == 2)
        cluster.broker.on_SEND_MESSAGE_V2(*held[1])
        await second
        assert not room.done()  # 400 bytes are left
        await producer.room()  # only for whom no body was refused
        cluster.broker.on_SEND_MESSAGE_V2(*held[0])
        await asyncio.gather(first, room)
        last = producer.submit(Message("t", b"x" * 500))
        await producer.flush()
        assert last.done()


async def test_awaited_sends_wait_for_room(cluster):
    seen = []
    async with Producer("pg", namesrv=cluster.namesrv.address, max_in_flight=3) as producer:
        await producer.send(Message("t", b"x"))

        async def send():
            result = await producer.send(Message("t", b"x"))
            seen.append(producer.in_flight)
            return result

        results = await asyncio.gather(*(send() for _ in range(20)), producer.send_batch([Message("t", b"y")]))
    assert len(results) == 21
    assert max(seen) < 3


async def test_a_send_that_finds_no_room_in_its_time_says_so(cluster):
    cluster.broker.script(Q.SEND_MESSAGE_V2, silence)
    async with Producer("pg", namesrv=cluster.namesrv.address, max_in_flight=1, timeout_s=0.2) as producer:
        lost = producer.submit(Message("t", b"x"), timeout_s=1)
        refused = await asyncio.gather(producer.send(Message("t", b"y")), producer.send_batch([Message("t", b"y")]), return_exceptions=True)
        assert [type(e) for e in refused] == [SendQueueFull, SendQueueFull]
        with pytest.raises(MaybeStoredError):
            await lost
        assert (producer.in_flight, bytes_in_flight(producer)) == (0, 0)


async def test_flush_waits_for_everything_in_flight_also_for_what_fails(cluster, producer):
    cluster.broker.script(Q.SEND_MESSAGE_V2, answer(13))
    futures = [producer.submit(Message("t", b"x")) for _ in range(20)]
    await producer.flush()
    assert all(f.done() for f in futures)
    assert sum(f.exception() is not None for f in futures) == 1


async def test_close_waits_for_what_was_submitted_and_refuses_the_rest(cluster):
    producer = Producer("pg", namesrv=cluster.namesrv.address)
    await producer.start()
    futures = [producer.submit(Message("t", b"x")) for _ in range(50)]
    await producer.close()
    assert all(f.done() and not f.exception() for f in futures)


async def test_a_future_that_was_cancelled_frees_its_place(cluster, producer):
    await producer.send(Message("t", b"x"))
    future = producer.submit(Message("t", b"x"))
    future.cancel()
    await producer.flush()
    assert producer.in_flight == 0


async def test_a_cancelled_send_frees_its_place(cluster, producer):
    await producer.send(Message("t", b"x"))
    cluster.broker.script(Q.SEND_MESSAGE_V2, silence)
    task = asyncio.ensure_future(producer.send(Message("t", b"x")))
    await cluster.broker.until(lambda: len(sends(cluster.broker)) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (producer.in_flight, bytes_in_flight(producer)) == (0, 0)


# --- batches ------------------------------------------------------------------------------------------------------------


async def test_a_batch_has_one_result_for_each_message(cluster, producer):
    results = await producer.send_batch([Message("t", b"%d" % i, tag="x", keys=[f"k{i % 2}"]) for i in range(5)])
    assert [r.queue_offset for r in results] == [0, 1, 2, 3, 4]
    assert len({r.msg_id for r in results}) == len({r.offset_msg_id for r in results}) == 5
    (header,) = sends(cluster.broker)
    assert header.batch
    outer = decode_properties(header.properties.encode())
    assert outer.pop("UNIQ_KEY") not in {r.msg_id for r in results}
    assert outer == {"WAIT": "true", "TAGS": "x", "KEYS": "k0 k1"}


async def test_a_batch_over_the_limit_leaves_in_several_requests_to_one_queue_in_order(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, max_message_bytes=1000) as producer:
        results = await producer.send_batch(Message("t", b"x" * 100) for _ in range(20))
    assert len(sends(cluster.broker)) > 1
    assert len({r.queue_id for r in results}) == 1
    assert [r.queue_offset for r in results] == list(range(20))


async def test_a_batch_that_fails_half_way_says_what_is_stored(cluster):
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, lambda conn, command: None, answer(13, "no"))
    async with Producer("pg", namesrv=cluster.namesrv.address, max_message_bytes=1000) as producer:
        with pytest.raises(BatchPartlySent) as e:
            await producer.send_batch([Message("t", b"x" * 100)] * 20)
        assert [r.queue_offset for r in e.value.stored] == list(range(len(e.value.stored)))
        assert 0 < len(e.value.stored) < e.value.total == 20
        assert isinstance(e.value.cause, BrokerError)


async def test_bad_batches_send_nothing(cluster, producer):
    with pytest.raises(BatchError, match="empty"):
        await producer.send_batch([])
    with pytest.raises(BatchError) as mixed:
        await producer.send_batch([Message("t", b"x"), Message("other", b"x")])
    assert mixed.value.index == 1
    with pytest.raises(MessageTooLarge) as large:
        await producer.send_batch([Message("t", b"x"), Message("t", bytes(4_194_304))])
    assert large.value.index == 1
    assert sends(cluster.broker) == []
