"""Java's push consumers whose queues the broker divides, and which pop when an administrator says so: the same at both brokers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.interop.apache import JavaClient, JavaPushConsumer
from tests.interop.sides import APACHES_IN_LONG, Side, until

from sprocketmq import AdminClient, Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

MESSAGES = 60


async def send(side: Side, topic: str, numbers: range) -> list[bytes]:
    bodies = [b"%d" % number for number in numbers]
    async with Producer("assigning", namesrv=side.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))
    return bodies


async def take(consumer: JavaPushConsumer, count: int, timeout_s: float = 60.0) -> list[bytes]:
    return [message["body"] for message in await asyncio.to_thread(consumer.take, count, timeout_s)]


async def prepare(side: Side, topic: str, group: str) -> None:
    await side.create_topic(topic)
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(group)


@pytest.mark.parametrize("side", APACHES_IN_LONG, indirect=True)
async def test_the_broker_divides_the_queues_of_members_that_pull(java: JavaClient, side: Side) -> None:
    topic, group = "AssignedPull", "assigned_pull"
    await prepare(side, topic, group)
    with java.push_consumer(side.namesrv, group, topic, broker_rebalance=True) as one:
        await until("the first member's queues", lambda: len(one.queues(topic)) == 4)
        with java.push_consumer(side.namesrv, group, topic, broker_rebalance=True) as two:
            await until("two queues each", lambda: (len(one.queues(topic)), len(two.queues(topic))) == (2, 2), 120)
            assert not one.queues(topic) & two.queues(topic)
            bodies = await send(side, topic, range(MESSAGES))
            found = await take(one, MESSAGES // 2) + await take(two, MESSAGES // 2)
    assert Counter(found) == Counter(bodies)


@pytest.mark.parametrize("side", APACHES_IN_LONG, indirect=True)
async def test_members_pop_once_the_mode_is_set_and_refused_messages_come_again(java: JavaClient, side: Side) -> None:
    topic, group = "AssignedPop", "assigned_pop"
    await prepare(side, topic, group)
    assert "success" in java.mqadmin("setConsumeMode", "-b", side.address, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
    options = {"broker_rebalance": True, "refuse": "7|13", "refuse_times": 1}
    with java.push_consumer(side.namesrv, group, topic, **options) as one, java.push_consumer(side.namesrv, group, topic, **options) as two:
        await until("popping", lambda: one.queues(topic) == two.queues(topic) == {(side.broker, -1)}, 120)
        bodies = await send(side, topic, range(MESSAGES))
        found: list[bytes] = []
        while len(found) < MESSAGES + 2 and (more := await take(one, 5, 3.0) + await take(two, 5, 3.0) or await take(one, 1, 40.0)):
            found += more
        found += await take(one, 1, 2.0) + await take(two, 1, 2.0)
    assert Counter(found) == Counter([*bodies, b"7", b"13"])
    assert "success" in java.mqadmin("setConsumeMode", "-b", side.address, "-t", topic, "-g", group, "-m", "PULL")
    with java.push_consumer(side.namesrv, group, topic, broker_rebalance=True) as one:
        await until("pulling", lambda: one.queues(topic) == {(side.broker, n) for n in range(4)}, 120)
        more = await send(side, topic, range(MESSAGES, MESSAGES + 8))
        found = await take(one, 8)
    assert set(more) <= set(found)
