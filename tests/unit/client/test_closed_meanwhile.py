"""Clients closed at each point where one of their calls waits: the call ends, with its result or an error, and nothing is left."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.stepping import stepped
from waiting_calls import SENDS, names, no_task_left

from sprocketmq import AdminClient, Batching, Message, Producer, PullConsumer, PushConsumer, TransactionProducer
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ClientClosed, ReplyTimeout, SprocketError

Call = Callable[[Any], Awaitable[Any]]


async def closed_at(client: Any, call: Call, number: int) -> bool:
    """Make ``call`` and close ``client`` at its wait ``number``; return False when it ended before, as it did not come to that."""
    closing: list[asyncio.Task[None]] = []

    async def whole() -> Any:
        return await call(client)

    def visit(wait: int, moment: str) -> None:
        if (wait, moment) == (number, "before"):
            closing.append(asyncio.ensure_future(client.close()))

    async def run() -> Any:
        return await stepped(whole(), visit)

    task = asyncio.ensure_future(run())
    await asyncio.wait([task], timeout=60)
    assert task.done(), f"it does not end when its client is closed at wait {number}"
    if not closing:
        with suppress(ReplyTimeout):  # of a request that nobody answers
            task.result()
        return False
    await asyncio.wait(closing, timeout=60)
    assert closing[0].done(), f"the client is not closed when a call of it is at wait {number}"
    closing[0].result()
    error = task.exception()
    assert error is None or isinstance(error, SprocketError), error
    with pytest.raises(ClientClosed):
        await call(client)
    return True


@pytest.fixture
async def mq():
    async with LocalCluster() as running:
        async with AdminClient(namesrv=running.namesrv) as admin:
            await admin.create_topic("orders", queues=2)
        async with Producer("pg", namesrv=running.namesrv) as producer:
            await producer.send_batch([Message("orders", b"%d" % i) for i in range(10)])
        async with no_task_left():
            yield running


async def everywhere(new: Callable[[], Any], call: Call) -> None:
    """Make ``call`` on a new client again and again, each time closed at its next wait."""
    for number in itertools.count(1):
        client = new()
        await client.start()
        try:
            if not await closed_at(client, call, number):
                assert number > 1, "it waits for nothing"
                return
        finally:
            await client.close()


async def submit_and_await(producer: Producer) -> None:
    await producer.submit(Message("orders", b"x"))


async def begin_and_commit(producer: TransactionProducer) -> None:
    transaction = await producer.begin(Message("orders", b"x"))
    await transaction.commit()


CALLS: dict[str, Call] = SENDS | {
    "submit": submit_and_await,
    "request": lambda producer: producer.request(Message("orders", b"?"), timeout_s=0.5),
}


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "AutoBatch"])
@pytest.mark.parametrize("call", CALLS)
async def test_producers(mq, call, batching):
    await everywhere(lambda: Producer("pg", namesrv=mq.namesrv, batching=batching, max_in_flight=8), CALLS[call])


async def test_transactions(mq):
    await everywhere(lambda: TransactionProducer("tg", lambda _: None, namesrv=mq.namesrv), begin_and_commit)


async def pull_held(consumer: PullConsumer) -> None:
    queue = (await consumer.queues("orders"))[0]
    await consumer.pull(queue, await consumer.max_offset(queue), wait_ms=200)


async def poll_as_member(consumer: PullConsumer) -> None:
    await consumer.subscribe("orders")
    for _ in range(10):
        await consumer.poll(1, timeout_s=60)
    await consumer.poll(1, timeout_s=0.1)


async def poll_assigned(consumer: PullConsumer) -> None:
    await consumer.assign(await consumer.queues("orders"))
    await consumer.seek_to_time("orders", 0)
    await consumer.poll(10, timeout_s=60)
    await consumer.commit()


@pytest.mark.parametrize("call", [pull_held, poll_as_member, poll_assigned])
async def test_pull_consumers(mq, call):
    await everywhere(lambda: PullConsumer(next(names), namesrv=mq.namesrv, consume_from="first"), call)


async def take_batches(consumer: PushConsumer) -> None:
    taken = 0
    async for batch in consumer.batches():
        taken += len(batch)
        batch.ack()
        await consumer.commit()
        if taken == 10:
            return
    raise ClientClosed("which ends the batches")


async def test_push_consumers(mq):
    await everywhere(lambda: PushConsumer(next(names), "orders", namesrv=mq.namesrv, consume_from="first"), take_batches)


async def administer(admin: AdminClient) -> None:
    topic = next(names)
    await admin.create_topic(topic)
    await admin.topics()
    await admin.create_group(topic)
    await admin.cluster()
    await admin.queues(topic)
    await admin.brokers()


async def test_admin_clients(mq):
    await everywhere(lambda: AdminClient(namesrv=mq.namesrv), administer)
