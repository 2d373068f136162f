"""Apache's brokers before 5.4, which append the properties of a batch to those of each message that they store by itself, and before 5.0."""

import asyncio
from functools import partial

import pytest
from fake_cluster import FakeBroker, answer, silence

from sprocketmq import Batching, Message, MessageQueue, Producer
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import BrokerError, ConnectFailed, InvalidMessage
from sprocketmq.net import server
from sprocketmq.protocol.bodies import HeartbeatData, TopicConfig
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.command import encode_head
from sprocketmq.protocol.headers import SendMessageV2
from sprocketmq.protocol.properties import decode_properties

V4_9_7, V5_3_3, V5_4_0 = 407, 479, 493
BATCH = [Message("t", b"%d" % n, tag="A", keys=[f"k{n}"]) for n in range(3)]


@pytest.fixture
def version(monkeypatch):
    """Let servers of this process say that they are of a version."""
    return lambda number: monkeypatch.setattr(server, "encode_head", partial(encode_head, version=number))


def described(broker: FakeBroker, **attributes: str) -> None:
    """Answer the next question about the topic."""
    broker.script(Q.GET_TOPIC_CONFIG, answer(R.SUCCESS, body=TopicConfig("t", attributes=attributes).encode()))


def sent(broker: FakeBroker) -> list[dict[str, str]]:
    """Return the properties of the batches that a broker got."""
    return [
        decode_properties(command.header(SendMessageV2).properties.encode())
        for command in broker.seen
        if command.code == Q.SEND_BATCH_MESSAGE
    ]


@pytest.mark.parametrize("batching", [None, Batching(max_delay_ms=1)])
async def test_a_new_broker_is_asked_for_its_version_only(cluster, version, batching):
    version(V5_4_0)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching) as producer:
        for _ in range(2):
            await producer.send_batch(BATCH)
    assert [set(properties) for properties in sent(cluster.broker)] == [{"KEYS", "TAGS", "WAIT", "UNIQ_KEY"}] * 2
    assert cluster.broker.count(Q.GET_TOPIC_CONFIG) == 0


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("number", [V4_9_7, V5_3_3])
async def test_an_older_one_gets_no_properties_for_a_plain_topic(cluster, version, number, wait):
    version(number)
    if number == V5_3_3:
        described(cluster.broker)
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for _ in range(2):
            await producer.send_batch([Message(m.topic, m.body, tag=m.tag, keys=m.keys, wait_store_ok=wait) for m in BATCH])
    assert sent(cluster.broker) == [{"WAIT": str(wait).lower()}] * 2
    assert cluster.broker.count(Q.GET_TOPIC_CONFIG) == 1


async def test_an_older_one_gets_them_for_a_topic_that_keeps_batches_whole(cluster, version):
    version(V5_3_3)
    described(cluster.broker, **{"queue.type": "BatchCQ"})
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send_batch(BATCH)
    (properties,) = sent(cluster.broker)
    assert (properties["KEYS"], properties["TAGS"]) == ("k0 k1 k2", "A")


async def test_messages_sent_at_once_are_in_order_while_the_broker_is_asked(cluster, version):
    version(V5_3_3)
    described(cluster.broker)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=Batching(max_delay_ms=1)) as producer:
        queue = MessageQueue("t", "broker-a", 0)
        for n in range(100):
            producer.submit(Message("t", b"%d" % n, queue=queue))
        await producer.flush()
        last = await producer.send(Message("t", b"last", queue=queue))
    assert last.queue_offset == 100
    assert len(cluster.broker.queues["t", 0]) == 101


@pytest.mark.parametrize("how", ["send", "send_oneway"])
async def test_a_message_that_would_be_delivered_too_early_is_refused(cluster, version, how):
    version(V4_9_7)
    timed = Message("t", b"x", deliver_at_ms=SYSTEM_CLOCK.time_ms() + 60_000)
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        send = getattr(producer, how)
        for _ in range(2):
            with pytest.raises(InvalidMessage, match="deliver_at_ms and would deliver the message at once"):
                await send(timed)
        await send(Message("t", b"late", delay_level=1))
        version(V5_3_3)
        await cluster.broker.stop()
        await cluster.broker.restart()
        await send(timed)
    await cluster.broker.until(lambda: cluster.broker.count(Q.SEND_MESSAGE_V2) == 2)


async def test_what_needs_no_question_does_not_overtake_what_waits_for_one(cluster, version):
    version(V5_3_3)
    described(cluster.broker)
    queue = MessageQueue("t", "broker-a", 0)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=Batching(max_delay_ms=30_000)) as producer:
        await producer.send(Message("t", b"0", queue=queue), timeout_s=60)  # alone: the connection is there, and its version known
        gathered = [producer.submit(Message("t", body, queue=queue)) for body in (b"1", b"2")]
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        last = await producer.send(Message("t", b"3", queue=queue), timeout_s=60)
        await flushing
    assert [(await result).queue_offset for result in gathered] == [1, 2]
    assert last.queue_offset == 3


async def test_what_waited_for_an_answer_leaves_on_a_new_connection_when_that_one_ended(cluster):
    greetings = 0

    def last_words(conn, command) -> bool:
        nonlocal greetings
        if HeartbeatData.decode(command.body).producer_data_set:
            return False
        greetings += 1
        if greetings == 1:
            conn.respond(command, R.SUCCESS)
            conn.close("scripted")
        return greetings == 1

    cluster.broker.script(Q.HEART_BEAT, *[last_words] * 10)
    async with Producer("pg", namesrv=cluster.namesrv.address, retries=0) as producer:
        assert len(await producer.send_batch(BATCH)) == 3
    assert (greetings, len(sent(cluster.broker))) == (2, 1)


async def test_a_broker_that_does_not_say_what_it_is_has_stored_nothing(cluster):
    cluster.broker.script(Q.HEART_BEAT, *[silence] * 100)
    async with Producer("pg", namesrv=cluster.namesrv.address, retries=0) as producer:
        with pytest.raises(ConnectFailed):
            await producer.send_batch(BATCH, timeout_s=1)
    assert sent(cluster.broker) == []


async def test_a_queue_that_is_gone_is_given_up_whatever_the_code_of_the_answer(cluster):
    remark = "request queueId[3] is illegal, TopicConfig [topicName=t, writeQueueNums=1]"
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        cluster.broker.script(Q.SEND_MESSAGE_V2, answer(R.SYSTEM_ERROR, remark=remark))
        await producer.send(Message("t", b"x"))
        cluster.broker.script(Q.SEND_MESSAGE_V2, answer(R.SYSTEM_ERROR, remark=remark))
        with pytest.raises(BrokerError, match="illegal"):
            await producer.send(Message("t", b"x", queue=MessageQueue("t", "broker-a", 3)))
    assert cluster.broker.count(Q.SEND_MESSAGE_V2) == 3
