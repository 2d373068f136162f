"""One-way sends: no answer, no promise, and bounded."""

import asyncio

import pytest
from tests.ports import address_of, hold

from sprocketmq import Message, MessageQueue, Producer, sync
from sprocketmq.client.send import outbox as outbox_module
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ClientClosed, ConfigError, InvalidMessage, InvalidName, NameserverUnavailable, NotAMessage, SendQueueFull
from sprocketmq.net.client import Connection
from sprocketmq.protocol.codes import FLAG_ONEWAY, RequestCode
from sprocketmq.protocol.hashing import hashed_queue
from sprocketmq.testing import wait_until


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as running:
        yield running


def stored(mq, topic):
    with sync.PullConsumer("cg", namesrv=mq.namesrv) as consumer:
        found = []
        for queue in consumer.queues(topic):
            found += consumer.pull(queue, 0, max_messages=1000).messages
        return found


async def test_what_was_sent_before_the_close_is_stored(mq):
    mq.create_topic("samples", queues=2)
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        for number in range(200):
            await producer.send_oneway(Message("samples", b"%d" % number, "t", ["k"], {"p": "v"}, flag=7))
        stats = producer.stats()
    assert (stats.oneway, stats.messages, stats.in_flight) == (200, 0, 0)
    await asyncio.to_thread(wait_until, lambda: len(stored(mq, "samples")) == 200)
    message = stored(mq, "samples")[0]
    assert (message.tag, message.keys, message.properties["p"], message.flag) == ("t", ["k"], "v", 7)


def test_blocking_code_has_it_too_and_keys_and_queues_choose(mq):
    mq.create_topic("chosen", queues=4)
    with sync.Producer("pg", namesrv=mq.namesrv, auto_batch=True) as producer:
        producer.send_oneway(Message("chosen", b"by key", ordering_key="a"))
        producer.send_oneway(Message("chosen", b"by queue", queue=MessageQueue("chosen", "broker-a", 3)))
        producer.flush()
    wait_until(lambda: len(stored(mq, "chosen")) == 2)
    assert {bytes(message.body): message.queue_id for message in stored(mq, "chosen")} == {b"by key": hashed_queue("a", 4), b"by queue": 3}


async def test_the_request_is_a_send_with_the_one_way_flag(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send_oneway(Message("t", b"x"))
        await producer.send(Message("t", b"y"))
    sent = [command for server in cluster.brokers for command in server.seen if command.code == RequestCode.SEND_MESSAGE_V2]
    assert sorted((bytes(command.body), bool(command.flag & FLAG_ONEWAY)) for command in sent) == [(b"x", True), (b"y", False)]


async def test_a_broker_that_reads_nothing_holds_up_the_sender_and_then_fails_it(mq, monkeypatch):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        await producer.send(Message("t", b"x"))
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "write_backlog", property(lambda _: outbox_module.ONEWAY_BACKLOG_BYTES + 1))
            with pytest.raises(SendQueueFull):
                await producer.send_oneway(Message("t", b"x"), timeout_s=0.05)
        await producer.send_oneway(Message("t", b"x"))
        assert producer.stats().oneway == 1


async def test_what_cannot_be_sent_is_refused_as_by_send(mq):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        for message, error in (
            (Message("t", b""), InvalidMessage),
            (Message("no topic", b"x"), InvalidName),
            ("text", NotAMessage),
            (Message("t", b"x", queue=MessageQueue("other", "broker-a", 0)), InvalidMessage),
        ):
            with pytest.raises(error):
                await producer.send_oneway(message)
        with pytest.raises(ConfigError):
            await producer.send_oneway(Message("t", b"x"), timeout_s=-1)
    with pytest.raises(ClientClosed):
        await producer.send_oneway(Message("t", b"x"))


async def test_without_a_nameserver_there_is_an_error():
    with hold() as held:
        producer = Producer("pg", namesrv=address_of(held))
        with pytest.raises(NameserverUnavailable):
            await producer.start()
        await producer.close()
