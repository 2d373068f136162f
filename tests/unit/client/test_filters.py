"""Conditions on properties, from our consumers to our broker, over sockets."""

import asyncio

import pytest
from test_with_broker import Real

from sprocketmq import Sql, sync
from sprocketmq.client import Producer, PullConsumer, PushConsumer
from sprocketmq.client.consume.pull_requests import PullStatus
from sprocketmq.errors import BrokerError, ConfigError
from sprocketmq.protocol.message import Message, MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
async def real(tmp_path):
    running = Real(tmp_path / "store")
    await running.start()
    running.broker.topics.create_internal("orders", 1)
    await running.broker.files.topics.saved()
    async with Producer("pg", namesrv=running.namesrv.address, timeout_s=60) as producer:
        for price in range(10):
            await producer.send(Message("orders", b"%d" % price, tag="t", properties={"price": str(price)}))
    yield running
    await running.stop()


async def test_a_member_of_a_group_gets_what_meets_its_condition(real):
    found = set()
    async with PushConsumer("cg", {"orders": Sql("price > 6")}, namesrv=real.namesrv.address, consume_from="first") as consumer:
        async for batch in consumer.batches():
            found |= {message.body for message in batch}
            batch.ack()
            if len(found) == 3:
                break
    assert found == {b"7", b"8", b"9"}


async def test_a_condition_that_does_not_parse_is_told_at_the_start(real):
    consumer = PushConsumer("cg", {"orders": Sql("price >")}, namesrv=real.namesrv.address)
    with pytest.raises(BrokerError, match="at character 8"):
        await consumer.start()
    await consumer.close()
    assert real.broker.clients.consumers == {}


async def test_single_pulls_and_polls_take_conditions(real):
    async with PullConsumer("cg", namesrv=real.namesrv.address) as consumer:
        result = await consumer.pull(QUEUE, 0, expression=Sql("price BETWEEN 2 AND 3"))
        assert [message.body for message in result.messages] == [b"2", b"3"]
        assert (await consumer.pull(QUEUE, 0, expression=Sql("price > 99"))).status is PullStatus.NO_MATCH
        await consumer.check_expression(QUEUE, Sql("price > 99"))
        with pytest.raises(BrokerError, match="at character 8"):
            await consumer.pull(QUEUE, 0, expression=Sql("price >"))


async def test_an_empty_condition_is_refused(real):
    with pytest.raises(ConfigError, match="must not be empty"):
        PushConsumer("cg", {"orders": Sql(" ")}, namesrv=real.namesrv.address)


def test_a_condition_shows_what_it_is():
    assert repr(Sql("a > 3")) == "Sql('a > 3')"
    assert str(Sql("a > 3")) == "a > 3"


async def test_blocking_consumers_take_conditions(real):

    def read():
        with sync.PullConsumer("cg", namesrv=real.namesrv.address) as consumer:
            return [message.body for message in consumer.pull(QUEUE, 0, expression=Sql("price < 2")).messages]

    assert await asyncio.to_thread(read) == [b"0", b"1"]


@pytest.mark.parametrize("expression", [None, 5, b"price > 6"])
def test_a_condition_is_a_string(expression):
    with pytest.raises(ConfigError, match=r'is a string such as "price > 100", not '):
        Sql(expression)
