"""AdminClient asks single brokers, by address, and moves groups to offsets that were shown before."""

import pytest
from tests.ports import address_of, hold

from sprocketmq import AdminClient, Message, Producer, PullConsumer, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, ConfigError, ConnectFailed, TopicNotFound
from sprocketmq.protocol.message import MessageQueue


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
async def admin(mq):
    async with AdminClient(namesrv=mq.namesrv) as client:
        await client.create_topic("orders", queues=1)
        yield client
        await client.delete_topic("orders")


@pytest.fixture
async def address(admin):
    return (await admin.brokers())[0].address


async def send(mq, count):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        for n in range(count):
            await producer.send(Message("orders", b"%d" % n))


async def test_a_broker_tells_its_topics_groups_and_offsets(mq, admin, address):
    await admin.create_group("billing")
    await send(mq, 5)
    queue = MessageQueue("orders", "broker-a", 0)
    async with PullConsumer("billing", namesrv=mq.namesrv) as consumer:
        await consumer.commit(queue, 2)
    assert (await admin.topic_configs_on(address))["orders"].read_queue_nums == 1
    assert (await admin.topic_stats_on(address, "orders")).offset_table[queue].max_offset == 5
    assert "billing" in await admin.groups_on(address)
    assert (await admin.consume_stats_on(address, "billing")).offset_table[queue].consumer_offset == 2
    assert (await admin.consume_stats_on(address, "billing", "orders")).offset_table[queue].broker_offset == 5
    assert await admin.groups_of_topic_on(address, "orders") == ["billing"]
    assert await admin.members_on(address, "billing") is None
    await admin.delete_group("billing")


async def test_a_counter_that_a_broker_does_not_have_is_none(mq, admin, address):
    await send(mq, 3)
    counter = await admin.counter_on(address, "TOPIC_PUT_NUMS", "orders")
    assert counter is not None
    assert await admin.counter_on(address, "TOPIC_PUT_NUMS", "nosuch") is None


async def test_an_unknown_topic_and_a_broker_that_is_away_are_errors(admin, address):
    with pytest.raises(
        TopicNotFound, match=f"^topic 'nosuch' does not exist at broker {address}: create it first .* a slave copies new topics"
    ):
        await admin.topic_stats_on(address, "nosuch")
    with hold() as held, pytest.raises(ConnectFailed):
        await admin.topic_configs_on(address_of(held))


async def test_what_a_reset_would_do_is_shown_without_doing_it(mq, admin):
    await admin.create_group("billing")
    await send(mq, 4)
    queue = MessageQueue("orders", "broker-a", 0)
    end = await admin.max_offset(queue)
    assert await admin.reset_targets("orders", "last") == {queue: end}
    assert await admin.reset_targets("orders", "first", queue=queue) == {queue: 0}
    assert await admin.committed("billing", "orders") == {queue: None}
    await admin.reset_to("billing", {queue: 3})
    assert await admin.committed("billing", "orders") == {queue: 3}
    with pytest.raises(BrokerError):
        await admin.reset_to("billing", {queue: end + 1})
    with pytest.raises(ConfigError, match="no queue 7"):
        await admin.reset_to("billing", {MessageQueue("orders", "broker-a", 7): 0})
    await admin.delete_group("billing")


def test_blocking_code_asks_single_brokers_too(mq):
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        address = admin.brokers()[0].address
        assert "TBW102" in admin.topic_configs_on(address)
        assert admin.counter_on(address, "TOPIC_PUT_NUMS", "nosuch") is None
