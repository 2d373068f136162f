"""Orderly consumption: every queue in order and by one member at a time, whoever the members are; a message that fails holds its queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.interop.apache import JavaClient
from tests.interop.reading import dead_letters
from tests.interop.sides import Side, until

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.protocol.message import MessageQueue

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES = 4


async def send_in_order(side: Side, topic: str, numbers: range, *, in_batches: bool = False) -> None:
    """Send a message for each number to every queue, in that order."""
    async with Producer("orderly_producer", namesrv=side.namesrv) as producer:
        for queue_id in range(QUEUES):
            queue = MessageQueue(topic, side.broker, queue_id)
            messages = [Message(topic, b"%d" % number, queue=queue) for number in numbers]
            if in_batches:
                for start in range(0, len(messages), 7):
                    await producer.send_batch(messages[start : start + 7])
            else:
                for message in messages:
                    await producer.send(message)


def by_queue(received: Iterable[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the numbers that came from each queue, in the order they came."""
    found: dict[int, list[int]] = {}
    for message in received:
        found.setdefault(message["queue_id"], []).append(int(message["body"]))
    return found


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_a_java_consumer_gets_every_queue_in_order(java: JavaClient, side: Side, batch_queues: bool) -> None:
    topic = await side.create_topic(f"Orderly_{batch_queues}", queues=QUEUES, batch_queues=batch_queues)
    await send_in_order(side, topic, range(50), in_batches=batch_queues)
    with java.push_consumer(side.namesrv, f"orderly_{batch_queues}", topic, orderly=True) as consumer:
        received = await asyncio.to_thread(consumer.take, QUEUES * 50)
        await send_in_order(side, topic, range(50, 60), in_batches=batch_queues)
        received += await asyncio.to_thread(consumer.take, QUEUES * 10)
        # A member that stands still for longer than its lock lasts gets again what it has not committed, never out of order.
        while len({(message["queue_id"], message["body"]) for message in received}) < QUEUES * 60:
            received += await asyncio.to_thread(consumer.take, 1)
    assert {queue_id: list(dict.fromkeys(numbers)) for queue_id, numbers in by_queue(received).items()} == {
        queue_id: list(range(60)) for queue_id in range(QUEUES)
    }


async def test_a_message_that_fails_comes_again_before_the_next_of_its_queue(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("OrderlySuspends", queues=QUEUES)
    await send_in_order(side, topic, range(10))
    options = {"refuse": "3|7", "refuse_times": 2}
    with java.push_consumer(side.namesrv, "orderly_suspends", topic, orderly=True, **options) as consumer:  # type: ignore[misc]
        received = await asyncio.to_thread(consumer.take, QUEUES * 14)
    expected = [0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 7, 7, 8, 9]
    assert by_queue(received) == dict.fromkeys(range(QUEUES), expected)
    assert [message["reconsume_times"] for message in received if message["body"] == b"7" and message["queue_id"] == 1] == [0, 1, 2]


async def test_order_is_kept_while_a_second_java_member_joins_and_leaves(java: JavaClient, java_binary: JavaClient, side: Side) -> None:
    topic, group = await side.create_topic("OrderlyMoves", queues=QUEUES), "orderly_moves"
    await send_in_order(side, topic, range(50))
    every = {(side.broker, queue_id) for queue_id in range(QUEUES)}
    with java.push_consumer(side.namesrv, group, topic, orderly=True, pause_ms=10) as first:
        with java_binary.push_consumer(side.namesrv, group, topic, orderly=True, pause_ms=10) as second:
            await until("sharing the queues", lambda: len(first.queues(topic)) == len(second.queues(topic)) == QUEUES // 2)
            # Its share, however much the first member has consumed of what was there.
            await send_in_order(side, topic, range(50, 100))
            theirs = await asyncio.to_thread(second.take, 50)
        theirs += second.rest
        await until("taking over from the second member", lambda: first.queues(topic) == every)
        received = await asyncio.to_thread(first.take, QUEUES * 100 - len(theirs))
    assert len(theirs) >= 50
    received = sorted(received + first.rest + theirs, key=lambda message: message["received_ms"])
    # A queue that changes hands may bring what was not committed yet a second time, never out of order.
    assert {queue_id: list(dict.fromkeys(numbers)) for queue_id, numbers in by_queue(received).items()} == {
        queue_id: list(range(100)) for queue_id in range(QUEUES)
    }


async def test_a_java_and_a_python_member_keep_the_order_together(java: JavaClient, side: Side) -> None:
    topic, group = await side.create_topic("OrderlyMixed", queues=QUEUES), "orderly_mixed"
    await send_in_order(side, topic, range(50))
    every = {(side.broker, queue_id) for queue_id in range(QUEUES)}
    mine: list[dict[str, Any]] = []

    async def handle(batch: ReceivedBatch) -> None:
        for message in batch:
            await asyncio.sleep(0.005)
            mine.append({"queue_id": message.queue_id, "body": message.body, "received_ms": SYSTEM_CLOCK.time_ms()})

    consumer = PushConsumer(group, topic, namesrv=side.namesrv, consume_from="first", orderly=True, batch_max=1)
    with java.push_consumer(side.namesrv, group, topic, orderly=True, pause_ms=10) as theirs:
        async with consumer:
            consumer.listen(handle)
            await until("sharing the queues", lambda: len(theirs.queues(topic)) == len(consumer.assignment) == QUEUES // 2)
            await send_in_order(side, topic, range(50, 100))
            await until("the Python member consuming", lambda: len(mine) >= 50)
        await until("taking over from the Python member", lambda: theirs.queues(topic) == every)
        received = await asyncio.to_thread(theirs.take, QUEUES * 100 - len(mine))
    received = sorted(received + theirs.rest + mine, key=lambda message: message["received_ms"])
    assert {queue_id: list(dict.fromkeys(numbers)) for queue_id, numbers in by_queue(received).items()} == {
        queue_id: list(range(100)) for queue_id in range(QUEUES)
    }


async def test_an_orderly_python_handler_holds_its_queue_and_gives_up_after_its_tries(side: Side) -> None:
    topic, group = await side.create_topic("OrderlyPython", queues=QUEUES), "orderly_python"
    await send_in_order(side, topic, range(10))
    received: list[dict[str, Any]] = []

    def handle(batch: ReceivedBatch) -> None:
        received.extend({"queue_id": message.queue_id, "body": message.body} for message in batch)
        if any(message.body == b"3" for message in batch):
            raise RuntimeError("refused by the test")

    async with PushConsumer(
        group, topic, namesrv=side.namesrv, consume_from="first", orderly=True, batch_max=1, max_reconsume_times=2, suspend_s=0.1
    ) as consumer:
        consumer.listen(handle)
        await until("the end of every queue", lambda: len(received) == QUEUES * 12)
        dead = await dead_letters(side.namesrv, group, QUEUES)
    expected = [0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9]
    assert by_queue(received) == dict.fromkeys(range(QUEUES), expected)
    assert [(view["body"], view["reconsume_times"]) for view in dead] == [(b"3", 3)] * QUEUES
