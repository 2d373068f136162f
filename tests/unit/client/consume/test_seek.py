"""Starting, pausing and moving in queues, against our own broker."""

import asyncio
import itertools

import pytest

from sprocketmq import sync
from sprocketmq.client import AdminClient, Producer, PushConsumer
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.testing import eventually

names = (f"t{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as running:
        yield running


@pytest.fixture(params=["plain", "BatchCQ"])
async def topic(mq, request):
    """A topic of two queues with ten messages in each, sent as two batches of five, all with the tag ``a`` or ``b`` of their batch."""
    name = next(names)
    async with AdminClient(namesrv=mq.namesrv) as admin:
        attributes = {"queue.type": "BatchCQ"} if request.param == "BatchCQ" else None
        await admin.create_topic(name, queues=2, attributes=attributes)
    await fill(mq, name)
    return name


async def fill(mq, topic: str) -> None:
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        for queue in await producer.queues(topic):
            for tag in "ab":
                await producer.send_batch([Message(topic, b"%d" % i, tag=tag, queue=queue) for i in range(5)])


def push(mq, topic: str, subscription: str = "*", **options) -> PushConsumer:
    return PushConsumer("g" + topic, {topic: subscription}, namesrv=mq.namesrv, **({"consume_from": "first"} | options))


async def take(consumer: PushConsumer, amount: int) -> list[tuple[int, int]]:
    """Consume ``amount`` messages, and return their queues and offsets, sorted."""
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(60):
        async for batch in consumer.batches():
            found += [(m.queue_id, m.queue_offset) for m in batch]
            if len(found) >= amount:
                batch.ack()
                break
    return sorted(found)


def both(*offsets: int) -> list[tuple[int, int]]:
    return [(queue, offset) for queue in range(2) for offset in offsets]


async def test_seek_goes_to_any_message_also_inside_a_batch(mq, topic):
    async with push(mq, topic) as consumer:
        assert await take(consumer, 20) == both(*range(10))
        first, second = consumer.assignment
        consumer.seek(first, 3)
        consumer.seek(second, 8)
        assert await take(consumer, 9) == [(0, offset) for offset in range(3, 10)] + [(1, 8), (1, 9)]
    async with push(mq, topic) as again:  # what was sought counts as committed
        await fill(mq, topic)
        assert await take(again, 20) == both(*range(10, 20))


async def test_seek_back_is_committed_before_anything_is_consumed_again(mq, topic):
    async with push(mq, topic) as consumer:
        await take(consumer, 20)
        await consumer.commit()
        consumer.pause()
        for queue in consumer.assignment:
            consumer.seek(queue, 5)
    async with push(mq, topic) as again:
        assert await take(again, 10) == both(*range(5, 10))


async def test_seek_to_a_time_finds_the_first_message_of_then_or_the_end(mq, topic):
    async with push(mq, topic) as consumer:
        await take(consumer, 20)
        await consumer.seek_to_time(topic, 0)
        assert await take(consumer, 20) == both(*range(10))
        await consumer.seek_to_time(MessageQueue(topic, "broker-a", 1), 2**42)
        await fill(mq, topic)
        assert await take(consumer, 20) == both(*range(10, 20))


async def test_paused_queues_wait_and_go_on_where_they_were(mq, topic):
    async with push(mq, topic) as consumer:
        await eventually(lambda: len(consumer.assignment) >= 2)
        first, second = consumer.assignment
        consumer.pause(first)
        assert consumer.paused == [first]
        assert await take(consumer, 10) == [(1, offset) for offset in range(10)]
        consumer.resume()
        consumer.resume(second)
        assert consumer.paused == []
        assert await take(consumer, 10) == [(0, offset) for offset in range(10)]


async def test_a_tag_expression_lets_only_its_tags_through_and_offsets_pass_the_others(mq, topic):
    async with push(mq, topic, "b || c") as consumer:
        assert await take(consumer, 10) == both(*range(5, 10))
        await consumer.commit()
    async with push(mq, topic, "b || c") as again:
        await fill(mq, topic)
        assert await take(again, 10) == both(*range(15, 20))


async def test_queues_that_are_not_assigned_and_offsets_below_nought_are_refused(mq, topic):
    async with push(mq, topic) as consumer:
        await take(consumer, 20)
        other = MessageQueue(topic, "broker-a", 7)
        for call in (lambda: consumer.seek(other, 0), lambda: consumer.pause(other), lambda: consumer.resume(other)):
            with pytest.raises(ConfigError, match="not assigned"):
                call()
        with pytest.raises(ConfigError, match="not assigned"):
            await consumer.seek_to_time(other, 0)
        with pytest.raises(ConfigError, match="0 or more"):
            consumer.seek(consumer.assignment[0], -1)


def test_the_blocking_face_steers_broadcasts_and_keeps_order_as_well(mq, tmp_path):
    topic = next(names)
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    with sync.Producer("pg", namesrv=mq.namesrv) as producer:
        producer.send_batch([Message(topic, b"%d" % i) for i in range(6)])
    options = {"namesrv": mq.namesrv, "consume_from": "first", "batch_max": 2}
    for extra in ({"orderly": True}, {"mode": "broadcasting", "offsets_dir": tmp_path}):
        with sync.PushConsumer("g" + topic + extra.get("mode", ""), topic, **options, **extra) as consumer:
            offsets: list[int] = []
            for batch in consumer.batches():
                offsets += [m.queue_offset for m in batch]
                if len(offsets) == 6:
                    consumer.seek(consumer.assignment[0], 4)
                if len(offsets) == 8:
                    batch.ack()
                    break
            assert offsets == [0, 1, 2, 3, 4, 5, 4, 5]
            consumer.pause()
            assert consumer.paused == consumer.assignment
            consumer.resume()
            consumer.seek_to_time(topic, 0)
            assert [m.queue_offset for m in next(iter(consumer.batches()))] == [0, 1]
