"""Recalls of timed messages, from our producers to our broker, over sockets."""

import asyncio
import time

import pytest
from test_with_broker import Real

from sprocketmq import sync
from sprocketmq.client import Producer
from sprocketmq.errors import BrokerError, ConfigError, RetriableError, TopicNotFound
from sprocketmq.protocol.message import Message
from sprocketmq.protocol.recall import RecallHandle


@pytest.fixture
async def real(tmp_path):
    running = Real(tmp_path / "store")
    await running.start()
    running.broker.topics.create_internal("orders", 1)
    await running.broker.files.topics.saved()
    yield running
    await running.stop()


@pytest.fixture
async def producer(real):
    async with Producer("pg", namesrv=real.namesrv.address, timeout_s=60) as producer:
        yield producer


def in_an_hour():
    return int(time.time() * 1000) + 3_600_000


async def test_a_message_is_taken_back(real, producer):
    result = await producer.send(Message("orders", b"x", deliver_at_ms=in_an_hour()))
    assert RecallHandle.parse(result.recall_handle).uniq_key == result.msg_id
    assert result.as_dict()["recall_handle"] == result.recall_handle
    assert await producer.recall(result.recall_handle) == result.msg_id
    assert await producer.recall(result.recall_handle) == result.msg_id
    assert real.broker.delays.timers.is_recalled("orders", result.msg_id)


async def test_other_messages_have_no_handle(producer):
    for message in (Message("orders", b"x"), Message("orders", b"x", delay_level=3)):
        result = await producer.send(message)
        assert result.recall_handle == ""
        assert "recall_handle" not in result.as_dict()
    with pytest.raises(ConfigError, match="the recall_handle of a SendResult, not ''"):
        await producer.recall(result.recall_handle)


@pytest.mark.parametrize("handle", [None, 7, "", "rubbish", "A" * 70_000])
async def test_what_is_no_handle_is_refused_without_a_broker(producer, handle):
    with pytest.raises(ConfigError):
        await producer.recall(handle)


async def test_what_the_broker_refuses_is_told(producer):
    late = str(RecallHandle("orders", "broker-a", 1_600_000_000_000, "u"))
    with pytest.raises(BrokerError, match="the message is due already"):
        await producer.recall(late)
    with pytest.raises(TopicNotFound):
        await producer.recall(str(RecallHandle("nosuch", "broker-a", in_an_hour(), "u")))
    with pytest.raises(RetriableError, match="has no master now"):
        await producer.recall(str(RecallHandle("orders", "broker-z", in_an_hour(), "u")))


async def test_blocking_producers_recall(real):
    def work():
        with sync.Producer("pg", namesrv=real.namesrv.address, timeout_s=60) as producer:
            result = producer.send(Message("orders", b"x", deliver_at_ms=in_an_hour()))
            return producer.recall(result.recall_handle) == result.msg_id

    assert await asyncio.to_thread(work)
