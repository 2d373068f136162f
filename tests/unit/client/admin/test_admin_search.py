"""AdminClient reads stretches of a topic, within limits."""

import asyncio
import os
import time

import pytest

from sprocketmq import AdminClient, Message, MessageQueue, Producer
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, TopicNotFound
from sprocketmq.protocol.bodies import TopicStats
from sprocketmq.protocol.codes import RequestCode, ResponseCode


@pytest.fixture
async def mq():
    async with LocalCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
async def admin(mq):
    async with AdminClient(namesrv=mq.namesrv) as client:
        await client.create_topic("orders", queues=2)
        await client.create_topic("bulk", queues=1, broker="broker-a", attributes={"queue.type": "BatchCQ"})
        yield client


@pytest.fixture
async def producer(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv) as client:
        yield client


def bodies(messages):
    return [bytes(message.body) for message in messages]


async def send(producer, topic, queue, *contents):
    return [await producer.send(Message(topic, content, queue=queue)) for content in contents]


async def test_the_newest_messages_of_all_queues_are_returned_first(admin, producer):
    for n in range(30):
        await producer.send(Message("orders", b"%d" % n))
    found = await admin.search("orders", max_count=10)
    times = [message.store_timestamp_ms for message in found.messages]
    assert (len(times), found.cut, found.in_range, found.unreachable) == (10, "messages", 30, ())
    assert times == sorted(times, reverse=True)
    everything = await admin.search("orders")
    assert sorted(bodies(everything.messages)) == sorted(b"%d" % n for n in range(30))
    assert (everything.cut, everything.scanned) == (None, 30)


async def test_exactly_as_many_as_there_are_is_not_cut(admin, producer):
    queue = (await admin.queues("orders"))[0]
    await send(producer, "orders", queue, b"a", b"b")
    found = await admin.search("orders", max_count=2, max_scanned=2)
    assert (bodies(found.messages), found.cut) == ([b"b", b"a"], None)


async def test_only_the_time_range_is_read(admin, producer):
    queue = (await admin.queues("orders"))[0]
    stored = []
    for n in range(4):
        await send(producer, "orders", queue, b"%d" % n)
        stored.append((await admin.message_at(queue, n)).store_timestamp_ms)
        await asyncio.to_thread(next_millisecond, stored[-1])
    found = await admin.search("orders", begin_ms=stored[1], end_ms=stored[2])
    assert (bodies(found.messages), found.in_range, found.scanned) == ([b"2", b"1"], 2, 2)
    assert bodies((await admin.search("orders", begin_ms=stored[3])).messages) == [b"3"]
    assert bodies((await admin.search("orders", end_ms=stored[0])).messages) == [b"0"]
    assert (await admin.search("orders", begin_ms=stored[3] + 1)).in_range == 0
    assert (await admin.search("orders", end_ms=stored[0] - 1)).messages == []


def next_millisecond(now_ms):
    while time.time() * 1000 < now_ms + 2:
        pass


async def test_a_condition_chooses_and_what_is_scanned_is_limited(admin, producer):
    queue = (await admin.queues("orders"))[0]
    await send(producer, "orders", queue, *(b"%d" % n for n in range(100)))
    found = await admin.search("orders", match=lambda message: message.body.endswith(b"5"), max_count=3)
    assert (bodies(found.messages), found.cut) == ([b"95", b"85", b"75"], "messages")
    found = await admin.search("orders", match=lambda message: message.body == b"3", max_scanned=50)
    assert (found.messages, found.cut, found.in_range) == ([], "scanned", 100)
    assert found.scanned == 50
    found = await admin.search("orders", match=lambda message: message.body == b"3")
    assert (bodies(found.messages), found.cut, found.scanned) == ([b"3"], None, 100)


async def test_large_messages_are_read_from_the_end_back_within_the_limit_of_bytes(admin, producer):
    queue = (await admin.queues("orders"))[0]
    await send(producer, "orders", queue, *(b"%d" % n + os.urandom(900_000) for n in range(8)))
    found = await admin.search("orders", max_bytes=4 << 20)
    assert [message.body[:1] for message in found.messages][:2] == [b"7", b"6"]
    assert (found.cut, found.in_range) == ("bytes", 8)
    assert len((await admin.search("orders")).messages) == 8


async def test_messages_inside_batches_are_found_one_by_one(admin, producer):
    first = await producer.send_batch([Message("bulk", b"%d" % n) for n in range(5)])
    second = await producer.send_batch([Message("bulk", b"%d" % n) for n in range(5, 8)])
    found = await admin.search("bulk", max_count=4)
    assert (bodies(found.messages), found.in_range) == ([b"7", b"6", b"5", b"4"], 8)
    assert len((await admin.search("bulk")).messages) == 8
    (queue,) = await admin.queues("bulk")
    for sent, content in ((first, [b"0", b"1", b"2", b"3", b"4"]), (second, [b"5", b"6", b"7"])):
        for result in sent:
            assert bodies(await admin.batch_at(queue, result.queue_offset)) == content
    assert await admin.batch_at(queue, 8) == []
    assert bodies(await admin.messages_from(queue, 3, max_count=3)) == [b"3", b"4", b"5"]


async def test_one_queue_is_searched_alone_and_read_from_an_offset_on(admin, producer):
    one, other = (await admin.queues("orders"))[:2]
    await send(producer, "orders", one, b"a", b"b", b"c")
    await send(producer, "orders", other, b"d")
    assert bodies((await admin.search("orders", queue=one)).messages) == [b"c", b"b", b"a"]
    assert bodies(await admin.messages_from(one, 1)) == [b"b", b"c"]
    assert await admin.messages_from(one, 3) == []
    assert bodies(await admin.batch_at(one, 1)) == [b"b"]
    assert (await admin.search("orders", queue=MessageQueue("orders", "broker-z", 0))).messages == []


async def test_a_broker_that_is_away_is_named(two_brokers):
    def no_messages(conn, command):
        conn.respond(command, ResponseCode.SUCCESS, body=TopicStats().encode())
        return True

    there, away = two_brokers.brokers
    there.script(RequestCode.GET_TOPIC_STATS_INFO, no_messages)
    await away.stop()
    async with AdminClient(namesrv=two_brokers.namesrv.address) as admin:
        found = await admin.search("t")
    assert (found.messages, found.unreachable) == ([], ("broker-b",))


async def test_a_broker_that_does_not_answer_ends_the_search_in_time(cluster):
    cluster.brokers[0].script(RequestCode.GET_TOPIC_STATS_INFO, lambda *_: True)
    async with AdminClient(namesrv=cluster.namesrv.address) as admin:
        found = await admin.search("t", timeout_s=0.2)
    assert (found.messages, found.cut) == ([], "time")


async def test_what_cannot_be_is_refused(admin):
    with pytest.raises(TopicNotFound):
        await admin.search("unknown")
    with pytest.raises(ConfigError):
        await admin.search("orders", max_count=0)
    with pytest.raises(ConfigError):
        await admin.messages_from(MessageQueue("orders", "broker-a", 0), -1)
