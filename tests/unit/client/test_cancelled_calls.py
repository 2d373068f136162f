"""Every call cancelled at each point where it waits: nothing stays in flight, no task is left, and the client goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.stepping import stepped
from waiting_calls import SENDS, names, no_task_left

from sprocketmq import AdminClient, Batching, Message, Producer, PullConsumer, PushConsumer, TransactionProducer
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import RequesterGone
from sprocketmq.testing import eventually

# "before": while the call waits. "after": when what it waits for is there, and the call has not run on yet.
MOMENTS = ("before", "after")


async def cancelled(call: Callable[[], Awaitable[Any]], number: int, moment: str) -> bool:
    """Make ``call``, cancelled at its wait ``number``; return False when it ended before, as it did not come to that."""
    done: list[int] = []

    async def whole() -> Any:
        return await call()

    def visit(wait: int, then: str) -> BaseException | None:
        if then == "before":
            done.append(wait)
        if (wait, then) != (number, moment):
            return None
        if then == "after":
            return asyncio.CancelledError()
        asyncio.current_task().cancel()
        return None

    async def run() -> Any:
        return await stepped(whole(), visit)

    task = asyncio.ensure_future(run())
    await asyncio.wait([task], timeout=60)
    assert task.done(), f"it does not end when cancelled {moment} wait {number}"
    if number not in done:
        task.result()
        return False
    assert task.cancelled(), f"it goes on when cancelled {moment} wait {number}"
    return True


async def everywhere(call: Callable[[], Awaitable[Any]]) -> AsyncIterator[str]:
    """Make ``call`` again and again, each time cancelled at its next wait, and at last not at all; yields after each."""
    for moment in MOMENTS:
        number = 1
        while await cancelled(call, number, moment):
            yield f"{moment} wait {number}"
            number += 1
        assert number > 1, "it waits for nothing"
        yield "not cancelled"


@pytest.fixture
async def mq():
    async with LocalCluster() as running:
        async with AdminClient(namesrv=running.namesrv) as admin:
            await admin.create_topic("orders", queues=2)
        async with no_task_left():
            yield running


@pytest.mark.parametrize("kind", ["Producer", "PullConsumer", "PushConsumer", "AdminClient"])
async def test_starts_and_closes(mq, kind):
    made = {
        "Producer": lambda: Producer("pg", namesrv=mq.namesrv),
        "PullConsumer": lambda: PullConsumer("cg", namesrv=mq.namesrv),
        "PushConsumer": lambda: PushConsumer("cg", "orders", namesrv=mq.namesrv),
        "AdminClient": lambda: AdminClient(namesrv=mq.namesrv),
    }
    client = None

    async def start():
        nonlocal client
        client = made[kind]()
        await client.start()

    async def start_and_close():
        await start()
        await client.close()

    for call in (start, start_and_close):
        async for _ in everywhere(call):
            await client.close()


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "AutoBatch"])
@pytest.mark.parametrize("call", SENDS)
async def test_sends(mq, call, batching):
    async with Producer("pg", namesrv=mq.namesrv, batching=batching, max_in_flight=32) as producer:
        async for where in everywhere(lambda: SENDS[call](producer)):
            await eventually(lambda: (producer.in_flight, producer.stats().in_flight_bytes) == (0, 0), what=where)
            assert (await producer.send(Message("orders", b"after"))).queue_offset >= 0


async def test_requests(mq):
    async with (
        Producer("pg", namesrv=mq.namesrv, max_in_flight=2) as producer,
        PushConsumer("answers", "orders", namesrv=mq.namesrv, consume_from="first") as consumer,
    ):

        async def answer(batch):
            for message in batch:
                with suppress(RequesterGone):
                    await producer.reply(message, b"yes")

        consumer.listen(answer)
        async for _ in everywhere(lambda: producer.request(Message("orders", b"?"), timeout_s=60)):
            assert (await producer.request(Message("orders", b"?"), timeout_s=60)).body == b"yes"
        await eventually(lambda: producer.in_flight == 0)


async def test_transactions(mq):
    def check(_):
        return None

    async with TransactionProducer("tg", check, namesrv=mq.namesrv) as producer:

        async def begin_and_commit():
            transaction = await producer.begin(Message("orders", b"x"))
            await transaction.commit()

        async def in_a_block():
            async with producer.transaction(Message("orders", b"x")):
                await asyncio.sleep(0)

        for call in (begin_and_commit, in_a_block):
            async for _ in everywhere(call):
                await begin_and_commit()


async def filled(mq, topic: str) -> list[Any]:
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_topic(topic, queues=2)
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        queues = await producer.queues(topic)
        for queue in queues:
            await producer.send_batch([Message(topic, b"%d" % i, queue=queue) for i in range(10)])
    return queues


@pytest.mark.parametrize("call", ["pull", "held pull", "offset_at", "committed", "commit", "assign", "seek_to_time"])
async def test_pulls(mq, call):
    queues = await filled(mq, "pulled")
    async with PullConsumer("cg", namesrv=mq.namesrv) as consumer:
        queue = queues[0]
        await consumer.assign([queue])
        calls = {
            "pull": lambda: consumer.pull(queue, 0),
            "held pull": lambda: consumer.pull(queue, 10, wait_ms=100),
            "offset_at": lambda: consumer.offset_at(queue, 0),
            "committed": lambda: consumer.committed(queue),
            "commit": lambda: consumer.commit(queue, 1),
            "assign": lambda: consumer.assign(queues),
            "seek_to_time": lambda: consumer.seek_to_time("pulled", 0),
        }
        async for _ in everywhere(calls[call]):
            assert len((await consumer.pull(queue, 0)).messages) == 10
            await consumer.assign([queue])
            consumer.seek(queue, 0)
            assert await consumer.poll(1, timeout_s=60)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_poll_that_is_cancelled_loses_nothing(mq, number, moment):
    await filled(mq, "polled")
    got = []
    async with PullConsumer("cg", namesrv=mq.namesrv, consume_from="first") as consumer:

        async def poll() -> None:
            got.extend(await consumer.poll(7, timeout_s=60))

        await consumer.subscribe("polled")
        await cancelled(poll, number, moment)
        while len(got) < 20:
            await poll()
    assert sorted((message.queue_id, message.queue_offset) for message in got) == [(q, i) for q in (0, 1) for i in range(10)]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_subscription_that_is_cancelled_leaves_the_queues_to_others(mq, moment):
    queue, _ = await filled(mq, "shared")
    numbers = iter(range(1, 100))
    async with PullConsumer("cg", namesrv=mq.namesrv, consume_from="first") as other, AdminClient(namesrv=mq.namesrv) as admin:
        await other.subscribe("shared")

        async def is_alone() -> bool:
            return len((await admin.consumers("cg")).connection_set) == 1 and len(other.assignment) == 2

        async def subscribe_cancelled() -> bool:
            async with PullConsumer("cg", namesrv=mq.namesrv, consume_from="first") as consumer:
                if not await cancelled(lambda: consumer.subscribe("shared"), next(numbers), moment):
                    return False
                await consumer.max_offset(queue)  # the broker has got the heartbeat that was under way
                await eventually(is_alone)
                await consumer.subscribe("shared")
                await eventually(lambda: len(consumer.assignment) == len(other.assignment) == 1)
            await eventually(is_alone)
            return True

        while await subscribe_cancelled():
            pass
        assert next(numbers) > 2


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_batches_that_are_cancelled_come_again(mq, number, moment):
    await filled(mq, "pushed")
    got = set()
    async with PushConsumer("cg", "pushed", namesrv=mq.namesrv, consume_from="first") as consumer:

        async def take() -> None:
            async for batch in consumer.batches():
                got.update((message.queue_id, message.queue_offset) for message in batch)
                batch.ack()
                if len(got) == 20:
                    return

        await cancelled(take, number, moment)
        if len(got) < 20:
            await take()


@pytest.mark.parametrize("call", ["create_topic", "topics", "create_group", "cluster", "queues"])
async def test_administration(mq, call):
    async with AdminClient(namesrv=mq.namesrv) as admin:
        calls = {
            "create_topic": lambda: admin.create_topic(next(names)),
            "topics": admin.topics,
            "create_group": lambda: admin.create_group(next(names)),
            "cluster": admin.cluster,
            "queues": lambda: admin.queues("orders"),
        }
        async for _ in everywhere(calls[call]):
            assert "orders" in await admin.topics()
