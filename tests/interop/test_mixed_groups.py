"""One consumer group with a Java and a Python member: they share the queues, hand over on leave and honour each other's offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.interop.apache import JavaClient, JavaPushConsumer
from tests.interop.sides import Side, until

from sprocketmq import Message, Producer, PullConsumer, PushConsumer
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.protocol.message import MessageQueue

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES = 4

Shares = set[tuple[str, int]]


class PythonMember:
    """A running push consumer of ours and what it received."""

    def __init__(self, consumer: PushConsumer) -> None:
        self.consumer = consumer
        self.bodies: list[bytes] = []
        self.queues_seen: set[int] = set()

    def take(self, batch: ReceivedBatch) -> None:
        self.bodies += [message.body for message in batch]
        self.queues_seen.add(batch.queue.queue_id)

    def queues(self, topic: str) -> Shares:
        return {(queue.broker_name, queue.queue_id) for queue in self.consumer.assignment if queue.topic == topic}


@asynccontextmanager
async def python_member(side: Side, group: str, topic: str) -> AsyncIterator[PythonMember]:
    async with PushConsumer(group, {topic: "*"}, namesrv=side.namesrv, consume_from="first") as consumer:
        member = PythonMember(consumer)
        consumer.listen(member.take)
        yield member


async def send_to_every_queue(side: Side, topic: str, word: str, *, in_batches: bool) -> list[bytes]:
    """Send ten messages to each queue and return their bodies."""
    bodies = []
    async with Producer("mixed_producer", namesrv=side.namesrv) as producer:
        for queue_id in range(QUEUES):
            queue = MessageQueue(topic, side.broker, queue_id)
            messages = [Message(topic, f"{word} {queue_id} {number}".encode(), queue=queue) for number in range(10)]
            bodies += [message.body for message in messages]
            if in_batches:
                await producer.send_batch(messages)
            else:
                for message in messages:
                    await producer.send(message)
    return bodies


def everything(side: Side) -> Shares:
    return {(side.broker, queue_id) for queue_id in range(QUEUES)}


async def until_shared(side: Side, topic: str, python: PythonMember, java: JavaPushConsumer) -> None:
    """Wait until every queue has exactly one of the two as its owner, and both have some."""

    def shared() -> bool:
        mine, theirs = python.queues(topic), java.queues(topic)
        return bool(mine and theirs) and not mine & theirs and mine | theirs == everything(side)

    await until("sharing the queues", shared)


async def assert_all_committed(side: Side, group: str, topic: str, total: Iterable[bytes]) -> None:
    """Assert that the group's offsets stand at the end of every queue."""
    async with PullConsumer(group, namesrv=side.namesrv) as reader:
        queues = await reader.queues(topic)
        ends = [await reader.max_offset(queue) for queue in queues]
        assert sum(ends) == len(list(total))
        assert [await reader.committed(queue) for queue in queues] == ends


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_a_java_and_a_python_member_share_a_topic_and_hand_over(java: JavaClient, side: Side, batch_queues: bool) -> None:
    group = f"mixed_{batch_queues}"
    topic = await side.create_topic(f"MixedGroup_{batch_queues}", queues=QUEUES, batch_queues=batch_queues)

    async def send(word: str) -> list[bytes]:
        return await send_to_every_queue(side, topic, word, in_batches=batch_queues)

    async with python_member(side, group, topic) as python:
        with java.push_consumer(side.namesrv, group, topic) as first:
            await until_shared(side, topic, python, first)
            owned = python.queues(topic), first.queues(topic)
            sent = await send("shared")
            received = await asyncio.to_thread(first.take, 20)
            await until("its half coming to the Python member", lambda: len(python.bodies) >= 20)
            assert Counter(python.bodies + [message["body"] for message in received]) == Counter(sent), "each once, at one of the two"
            assert {(side.broker, message["queue_id"]) for message in received} == owned[1]
            assert {(side.broker, queue_id) for queue_id in python.queues_seen} == owned[0]
            python.bodies.clear()

        await until("taking over from the Java member", lambda: python.queues(topic) == everything(side))
        more = await send("python alone")
        await until("everything coming to the Python member", lambda: len(python.bodies) >= len(more))
        assert Counter(python.bodies) == Counter(more), "and nothing that the Java member had consumed"
        sent += more

        with java.push_consumer(side.namesrv, group, topic) as second:
            await until_shared(side, topic, python, second)
            await python.consumer.close()
            await until("taking over from the Python member", lambda: second.queues(topic) == everything(side))
            more = await send("java alone")
            received = await asyncio.to_thread(second.take, len(more))
        assert Counter(message["body"] for message in received + second.rest) == Counter(more), (
            "and nothing that the Python member had consumed"
        )
        sent += more
    await assert_all_committed(side, group, topic, sent)


def all_handled(python: PythonMember, java: JavaPushConsumer, theirs: set[bytes], sent: list[bytes]) -> bool:
    """Add what the Java member received meanwhile to `theirs`; return whether the two have everything."""
    theirs.update(message["body"] for message in java.take(1 << 20, 0))
    return theirs.union(python.bodies) == set(sent)


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_messages_on_the_way_are_all_handled_while_members_come_and_go(java: JavaClient, side: Side, batch_queues: bool) -> None:
    group = f"moving_{batch_queues}"
    topic = await side.create_topic(f"MovingGroup_{batch_queues}", queues=QUEUES, batch_queues=batch_queues)
    sent: list[bytes] = []
    stop = asyncio.Event()

    async def keep_sending() -> None:
        while not stop.is_set():
            sent.extend(await send_to_every_queue(side, topic, f"round {len(sent)}", in_batches=batch_queues))
            await asyncio.sleep(0.02)

    async with python_member(side, group, topic) as python:
        sending = asyncio.create_task(keep_sending())
        theirs: set[bytes] = set()
        for _ in range(2):
            with java.push_consumer(side.namesrv, group, topic, pause_ms=1) as member:
                await until_shared(side, topic, python, member)
                theirs.update(message["body"] for message in await asyncio.to_thread(member.take, 100))
                # What it is given from here on it may consume without this test hearing of it, so the sends pause.
                stop.set()
                await sending
                await until("handling all", partial(all_handled, python, member, theirs, sent))
                stop.clear()
                sending = asyncio.create_task(keep_sending())
            await until("taking over from the Java member", lambda: python.queues(topic) == everything(side))
        stop.set()
        await sending
        await until("handling all", lambda: set(python.bodies) | theirs == set(sent))
    await assert_all_committed(side, group, topic, sent)
