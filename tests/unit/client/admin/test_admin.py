"""AdminClient looks after consumer groups: what there is, how far each has read, and where it goes on."""

import asyncio

import pytest

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, ConfigError, GroupNotFound, TopicNotFound
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import SYSTEM_GROUPS


@pytest.fixture(scope="module")
def mq():
    with LocalCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
async def admin(mq):
    async with AdminClient(namesrv=mq.namesrv) as client:
        await client.create_topic("orders", queues=2)
        await client.create_topic("bulk", queues=1, broker="broker-a", attributes={"queue.type": "BatchCQ"})
        yield client
        for topic in ("orders", "bulk"):
            await client.delete_topic(topic)
        for group in set(await client.groups()) - set(SYSTEM_GROUPS):
            await client.delete_group(group, dead_letters=True)


@pytest.fixture
async def producer(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv) as client:
        yield client


def queue_of(topic, result):
    return MessageQueue(topic, result.broker_name, result.queue_id)


async def commit(mq, group, queue, offset):
    async with PullConsumer(group, namesrv=mq.namesrv) as consumer:
        await consumer.commit(queue, offset)


# --- which groups there are ---


async def test_groups_are_created_changed_shown_and_deleted(admin):
    await admin.create_group("billing", max_reconsume_times=3, retry_queues=2, orderly=True)
    configs = await admin.group_config("billing")
    expected = SubscriptionGroupConfig("billing", retry_max_times=3, retry_queue_nums=2, consume_message_orderly=True)
    assert configs == {"broker-a": expected, "broker-b": expected}
    await admin.create_group("billing", enabled=False, broker="broker-b")
    configs = await admin.group_config("billing")
    assert [config.consume_enable for config in configs.values()] == [True, False]
    assert (await admin.groups())["billing"] == expected
    await admin.delete_group("billing")
    assert "billing" not in await admin.groups()
    with pytest.raises(GroupNotFound, match="no broker knows the consumer group 'billing'"):
        await admin.group_config("billing")


async def test_looking_for_a_group_does_not_create_it(admin):
    with pytest.raises(GroupNotFound):
        await admin.group_config("nosuch")
    assert "nosuch" not in await admin.groups()


async def test_groups_come_in_pages(admin, monkeypatch):
    for n in range(7):
        await admin.create_group(f"g{n}")
    everything = await admin.groups()
    monkeypatch.setattr("sprocketmq.client.admin.one_broker.GROUPS_PER_PAGE", 4)
    assert await admin.groups() == everything
    assert [name for name in everything if name.startswith("g")] == [f"g{n}" for n in range(7)]


@pytest.mark.parametrize(
    "wrong", [{"max_reconsume_times": -2}, {"retry_queues": 1025}, {"retry_queues": -1}, {"consume_timeout_minutes": 0}]
)
async def test_impossible_groups_are_refused(admin, wrong):
    with pytest.raises(ConfigError, match="must be"):
        await admin.create_group("g", **wrong)


async def test_a_deleted_group_takes_its_retry_topic_and_offsets_along(mq, admin, producer):
    sent = await producer.send(Message("orders", b"x"))
    await admin.create_group("billing")
    for topic in ("%RETRY%billing", "%DLQ%billing"):
        await admin.create_topic(topic, queues=1)
    queue = queue_of("orders", sent)
    await commit(mq, "billing", queue, 1)
    await admin.delete_group("billing")
    assert {"%RETRY%billing", "%DLQ%billing"} & set(await admin.topics()) == {"%DLQ%billing"}
    assert (await admin.committed("billing", "orders"))[queue] is None
    await admin.delete_group("billing", dead_letters=True)
    assert "%DLQ%billing" not in await admin.topics()


# --- how far they have read ---


async def test_progress_counts_messages_on_batch_queues(mq, admin, producer):
    sent = await producer.send_batch([Message("bulk", b"x")] * 10)
    await admin.create_group("billing")
    await commit(mq, "billing", queue_of("bulk", sent[0]), 4)
    progress = await admin.progress("billing", "bulk")
    (queue,) = progress.queues
    assert (queue.queue, queue.committed_offset, queue.end_offset, queue.lag) == (MessageQueue("bulk", "broker-a", 0), 4, 10, 6)
    (message, *_) = await admin.messages_at(sent[0].offset_msg_id)
    assert queue.last_consumed_ms == message.store_timestamp_ms
    assert (progress.group, progress.lag) == ("billing", 6)


async def test_progress_of_a_group_is_that_of_all_topics_it_reads(mq, admin, producer):
    await admin.create_group("billing")
    for topic in ("orders", "bulk"):
        sent = await producer.send_batch([Message(topic, b"x")] * 3)
        await commit(mq, "billing", queue_of(topic, sent[0]), 1)
    progress = await admin.progress("billing")
    assert {queue.queue.topic for queue in progress.queues} == {"orders", "bulk"}
    assert progress.lag == 4
    assert progress.queues == sorted(progress.queues, key=lambda q: q.queue)


async def test_progress_of_members_shows_what_is_in_flight(mq, admin, producer):
    await producer.send_batch([Message("bulk", b"x")] * 10)
    async with PushConsumer("billing", {"bulk": "*"}, namesrv=mq.namesrv, consume_from="first", batch_max=4) as consumer:
        async for batch in consumer.batches():
            assert len(batch) == 4
            progress = await admin.progress("billing", "bulk")
            assert (progress.lag, progress.queues[0].pulled_offset, progress.in_flight) == (10, 10, 10)
            break


async def test_progress_of_nobody_is_empty(admin):
    assert (await admin.progress("nobody")).queues == []
    with pytest.raises(TopicNotFound):
        await admin.progress("nobody", "missing")


# --- where they go on ---


async def test_offsets_are_reset_to_first_last_and_a_time(mq, admin, producer):
    first = await producer.send_batch([Message("bulk", b"a")] * 3)
    (message, *_) = await admin.messages_at(first[0].offset_msg_id)
    second = await producer.send_batch([Message("bulk", b"b")] * 4)
    (later, *_) = await admin.messages_at(second[0].offset_msg_id)
    await admin.create_group("billing")
    queue = queue_of("bulk", first[0])
    assert await admin.reset_offsets("billing", "bulk", "last") == {queue: 7}
    assert (await admin.progress("billing", "bulk")).lag == 0
    assert await admin.reset_offsets("billing", "bulk", "first") == {queue: 0}
    assert await admin.reset_offsets("billing", "bulk", message.store_timestamp_ms / 1000) == {queue: 0}
    after = (later.store_timestamp_ms + 1) / 1000
    assert await admin.reset_offsets("billing", "bulk", after) == {queue: 7}, "not the begin of the last batch"
    assert (await admin.committed("billing", "bulk"))[queue] == 7


async def test_one_queue_is_reset_alone_also_to_an_offset(admin, producer):
    for queue in await admin.queues("orders"):
        await producer.send_batch([Message("orders", b"x", queue=queue)] * 5)
    await admin.create_group("billing")
    queues = await admin.queues("orders")
    assert await admin.reset_offsets("billing", "orders", "last", queue=queues[3]) == {queues[3]: 5}
    await admin.reset_offset("billing", queues[1], 2)
    assert list((await admin.committed("billing", "orders")).values()) == [None, 2, None, 5]
    with pytest.raises(BrokerError, match=r"Target offset 6 not in consume queue range \[0-5\]"):
        await admin.reset_offset("billing", queues[1], 6)


async def test_resets_that_cannot_be_are_refused(admin):
    with pytest.raises(TopicNotFound):
        await admin.reset_offsets("billing", "missing", "first")
    with pytest.raises(BrokerError, match="Group billing does not exist"):
        await admin.reset_offsets("billing", "orders", "first")
    for to in ("middle", -1.0, float("nan"), 1e300):
        with pytest.raises(ConfigError, match="'first', 'last' or a time"):
            await admin.reset_offsets("billing", "orders", to)
    with pytest.raises(ConfigError, match="no queue 9"):
        await admin.reset_offsets("billing", "orders", "first", queue=MessageQueue("orders", "broker-a", 9))
    with pytest.raises(ConfigError, match="0 or more"):
        await admin.reset_offset("billing", MessageQueue("orders", "broker-a", 0), -1)


async def test_running_members_go_where_their_group_is_sent(mq, admin, producer):
    await producer.send_batch([Message("bulk", b"%d" % n) for n in range(6)])
    seen = []
    async with PushConsumer("billing", {"bulk": "*"}, namesrv=mq.namesrv, consume_from="first") as consumer, asyncio.timeout(60):
        async for batch in consumer.batches():
            seen += [int(message.body) for message in batch]
            if len(seen) == 6:
                await admin.reset_offset("billing", batch.queue, 2)
            if len(seen) >= 10:
                break
    assert seen == [*range(6), *range(2, 6)]


@pytest.mark.parametrize("to", [0, 2])
async def test_a_member_that_leaves_after_a_reset_does_not_take_it_back(mq, admin, producer, to):
    sent = await producer.send_batch([Message("bulk", b"%d" % n) for n in range(6)])
    queue = queue_of("bulk", sent[0])
    async with (
        PushConsumer("billing", {"bulk": "*"}, namesrv=mq.namesrv, consume_from="first", batch_max=3) as consumer,
        asyncio.timeout(60),
    ):
        async for batch in consumer.batches():
            if int(batch[-1].body) == 5:
                await admin.reset_offset("billing", queue, to)
                batch.ack()
                break
    assert (await admin.committed("billing", "bulk"))[queue] == to


# --- who is there ---


async def test_members_are_shown_with_what_they_subscribe_to(mq, admin, producer):
    await producer.send(Message("orders", b"x"))
    assert (await admin.consumers("billing")).connection_set == []
    assert (await admin.producers("nobody")).connection_set == []
    async with PushConsumer("billing", {"orders": "a || b"}, namesrv=mq.namesrv):
        online = await admin.consumers("billing")
        (member,) = online.connection_set
        assert (member.language, online.message_model) == ("PYTHON", "CLUSTERING")
        assert sorted(online.subscription_table["orders"].tags_set) == ["a", "b"]
        with pytest.raises(BrokerError, match="not online"):
            await admin.running_info("billing", "somebody else")
