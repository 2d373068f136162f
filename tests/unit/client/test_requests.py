"""Requests and replies of our client through our broker, over sockets."""

import asyncio
import contextlib

import pytest
from test_with_broker import Real

from sprocketmq import sync
from sprocketmq.client import Producer, PullConsumer, PushConsumer
from sprocketmq.client.consume.pull_requests import PullStatus
from sprocketmq.client.send.request_reply import with_properties
from sprocketmq.client.send.waiting_requests import read_reply
from sprocketmq.errors import (
    ClientClosed,
    ConfigError,
    InvalidMessage,
    MaybeStoredError,
    NotAMessage,
    NotARequest,
    RemoteProtocolError,
    ReplyTimeout,
    RequesterGone,
    RetriableError,
    SendQueueFull,
    TopicNotFound,
)
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.protocol.headers import PushReply
from sprocketmq.protocol.message import Message
from sprocketmq.testing import eventually


@pytest.fixture
async def real(tmp_path):
    running = Real(tmp_path / "store")
    await running.start()
    running.broker.topics.create_internal("questions", 4)
    await running.broker.files.topics.saved()
    yield running
    await running.stop()


@pytest.fixture
async def producer(real):
    async with Producer("requester", namesrv=real.namesrv.address, timeout_s=60) as p:
        yield p


@pytest.fixture
async def replier(real):
    async with Producer("replier", namesrv=real.namesrv.address, timeout_s=60) as p:
        yield p


@contextlib.asynccontextmanager
async def answering(real, answer, *topics):
    """Have a consumer call ``answer(message)`` for each request."""

    async def handle(batch):
        for message in batch:
            await answer(message)

    async with PushConsumer("answers", topics or ("questions",), namesrv=real.namesrv.address, consume_from="first") as consumer:
        consumer.listen(handle)
        yield consumer


async def the_request(real, topic="questions"):
    """Return the one message of a topic, as a consumer gets it."""
    async with PullConsumer("looks", namesrv=real.namesrv.address) as consumer:

        async def find():
            for queue in await consumer.queues(topic):
                result = await consumer.pull(queue, 0)
                if result.status is PullStatus.FOUND:
                    return result.messages[0]
            return None

        return await eventually(find)


async def without_reply(producer):
    """Request until one request is stored in its time, and return the error of that one."""

    async def ask():
        try:
            await producer.request(Message("questions", b"?"), timeout_s=0.5)
        except ReplyTimeout as e:
            return e
        except (RetriableError, MaybeStoredError):  # the machine is busy
            return None

    return await eventually(ask)


async def test_a_handler_replies_to_requests(real, producer, replier):
    async def answer(message):
        await replier.reply(message, message.body.upper(), tag="t", keys=["k"], properties={"colour": "red"})

    async with answering(real, answer):
        replies = await asyncio.gather(*[producer.request(Message("questions", b"question %d" % n)) for n in range(20)])
    assert [reply.body for reply in replies] == [b"QUESTION %d" % n for n in range(20)]
    reply = replies[0]
    assert (reply.topic, reply.tag, reply.keys, reply.properties["colour"]) == ("DefaultCluster_REPLY_TOPIC", "t", ["k"], "red")
    assert reply.properties["MSG_TYPE"] == "reply"
    assert reply.properties["ARRIVE_TIME"]
    assert reply.store_host == real.broker.address
    assert real.broker.counters.replies["delivered"] == 20
    assert producer.in_flight == 0


async def test_a_topic_that_the_request_creates(real, producer, replier):
    async with answering(real, lambda message: replier.reply(message, b"yes"), "new"):
        assert (await producer.request(Message("new", b"there?"))).body == b"yes"


async def test_requests_with_an_ordering_key_go_to_its_queue(real, producer, replier):
    expected = (await producer.send(Message("questions", b"no request", ordering_key="order-1"))).queue_id

    async def answer(message):
        if message.body == b"?":
            await replier.reply(message, b"%d" % message.queue_id)

    async with answering(real, answer):
        replies = [await producer.request(Message("questions", b"?", ordering_key="order-1")) for _ in range(4)]
    assert [int(reply.body) for reply in replies] == [expected] * 4


async def test_bodies_are_compressed_both_ways(real, producer, replier):
    long = b"long " * 10_000
    async with answering(real, lambda message: replier.reply(message, message.body)):
        assert (await producer.request(Message("questions", long))).body == long


async def test_a_request_without_a_reply_ends_in_time_and_a_late_reply_is_refused(real, producer, replier, caplog):
    caplog.set_level("INFO")
    error = await without_reply(producer)
    assert str(error).startswith(f"no reply within 0.5 s to request {error.msg_id} to 'questions', which is stored")
    assert (error.topic, error.timeout_s) == ("questions", 0.5)
    request = await the_request(real)
    with pytest.raises(RequesterGone, match="push reply message to"):
        await replier.reply(request, b"late")
    assert "1 replies were refused since the last such line" in caplog.text
    assert real.broker.counters.replies["not_taken"] == 1


async def test_a_requester_that_left_gets_no_reply(real, replier):
    async with Producer("leaves", namesrv=real.namesrv.address) as leaver:
        asking = asyncio.ensure_future(leaver.request(Message("questions", b"?"), timeout_s=60))
        request = await the_request(real)
    with pytest.raises(ClientClosed):
        await asking
    with pytest.raises(RequesterGone, match=r"channel of <[^ ]*> not found") as caught:
        await replier.reply(request, b"for nobody")
    assert caught.value.client_id == request.properties["REPLY_TO_CLIENT"]


async def test_only_requests_are_replied_to(real, producer, replier):
    await producer.send(Message("questions", b"no question"))
    message = await the_request(real)
    with pytest.raises(NotARequest, match="lacks REPLY_TO_CLIENT, CORRELATION_ID") as caught:
        await replier.reply(message, b"answer")
    assert caught.value.missing == ("REPLY_TO_CLIENT", "CORRELATION_ID")
    for no_request in (Message("questions", b"?"), None):
        with pytest.raises(ConfigError, match="as a consumer got it"):
            await replier.reply(no_request, b"answer")


async def test_a_requester_is_known_again_after_the_broker_was_restarted(real, producer, replier):
    async def answer(message):
        await replier.reply(message, message.body)

    async with answering(real, answer):
        assert (await producer.request(Message("questions", b"before"))).body == b"before"
        await real.restart_broker()
        await eventually(lambda: real.broker.registered)

        async def again():
            with contextlib.suppress(ReplyTimeout):
                return (await producer.request(Message("questions", b"after"), timeout_s=5)).body == b"after"

        await eventually(again)


async def test_requests_that_wait_are_bounded_and_cancelled_ones_forgotten(real):
    async with Producer("bounded", namesrv=real.namesrv.address, max_in_flight=1) as producer:
        first = asyncio.ensure_future(producer.request(Message("questions", b"?"), timeout_s=60))
        await the_request(real)
        with pytest.raises(SendQueueFull, match="1 requests in flight"):
            await producer.request(Message("questions", b"?"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await without_reply(producer)


async def test_wrong_requests_are_refused_before_anything_is_sent(producer):
    with pytest.raises(NotAMessage):
        await producer.request("questions")
    with pytest.raises(InvalidMessage):
        await producer.request(Message("questions", b""))
    with pytest.raises(ConfigError):
        await producer.request(Message("questions", b"?"), timeout_s=0)
    with pytest.raises(InvalidMessage):
        await producer.request(Message("questions", b"?", properties={"CORRELATION_ID": "mine"}))


async def test_a_request_to_an_unknown_topic_fails_as_a_send_does(tmp_path):
    strict = Real(tmp_path / "store", auto_create_topic=False)
    await strict.start()
    try:
        async with Producer("requester", namesrv=strict.namesrv.address) as producer:
            with pytest.raises(TopicNotFound):
                await producer.request(Message("nowhere", b"?"))
    finally:
        await strict.stop()


async def test_blocking_code_requests_and_replies(real, replier):
    def ask():
        with sync.Producer("blocking", namesrv=real.namesrv.address, timeout_s=60) as producer:
            return producer.request(Message("questions", b"?")).body

    def answer():
        with (
            sync.Producer("blocking_replier", namesrv=real.namesrv.address, timeout_s=60) as producer,
            sync.PushConsumer("blocking_answers", "questions", namesrv=real.namesrv.address, consume_from="first") as consumer,
        ):
            for batch in consumer.batches():
                for message in batch:
                    producer.reply(message, b"!")
                batch.ack()
                return

    reply, _ = await asyncio.gather(asyncio.to_thread(ask), asyncio.to_thread(answer))
    assert reply == b"!"


def test_a_compressed_reply_and_hosts_that_cannot_be_read():
    zlib = CompressionType.ZLIB
    flags = compression_flag(zlib) | 0xC | 0x40 | 0x80  # nothing but compression counts
    header = PushReply("T", sys_flag=flags, properties="CORRELATION_ID\x01c\x02", born_host="/192.0.2.1:80", store_host="nowhere")
    message = read_reply(header, compress(b"body" * 100, zlib), 17)
    assert message.body == b"body" * 100
    assert (message.born_host, message.store_host, message.properties["ARRIVE_TIME"]) == ("192.0.2.1:80", "0.0.0.0:0", "17")
    for topic in ("", "t" * 300):
        with pytest.raises(RemoteProtocolError):
            read_reply(PushReply(topic), b"body", 17)


def test_properties_are_added_to_those_that_are_encoded():
    assert with_properties(b'"a\\u0001b\\u0002"', {"c": "d"}) == b'"a\\u0001b\\u0002c\\u0001d\\u0002"'
