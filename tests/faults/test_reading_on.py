"""Consumers of a SYNC_MASTER that is killed for ever read on from its slave, in processes of their own: nothing acknowledged is lost, order is kept.

Each prints for how long nothing came after the kill.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from sprocketmq import AdminClient, ClientHooks, Message, MessageQueue, Producer, PullConsumer, PullEvent, PushConsumer, ReceivedMessage
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.message import SendStatus
from sprocketmq.testing import eventually

TOPICS = {"orders": {}, "clicks": {"queue.type": "BatchCQ"}}
QUEUES = [MessageQueue(topic, "broker-a", queue_id) for topic in TOPICS for queue_id in range(4)]
# So many are read before the kill.
READ = 400


class FromSlave(ClientHooks):
    """Counts the messages that came from an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages = 0

    def pulled(self, event: PullEvent) -> None:
        if event.address == self.address:
            self.messages += len(event.messages)


class Backlog:
    """What was acknowledged to each queue's only sender, which waits for each answer, and what a consumer got of it."""

    def __init__(self) -> None:
        self.acknowledged: dict[MessageQueue, list[bytes]] = {queue: [] for queue in QUEUES}
        self.got: dict[MessageQueue, list[ReceivedMessage]] = {queue: [] for queue in QUEUES}
        self.enough = asyncio.Event()
        self.killed = asyncio.Event()
        self.killed_at = self.last_at = self.longest_s = 0.0

    async def send(self, producer: Producer, queue: MessageQueue, stopped: asyncio.Event) -> None:
        number = 0
        while not stopped.is_set():
            messages = [Message(queue.topic, b"%d" % (number + n), queue=queue) for n in range(20)]
            number += 20
            try:
                results = await producer.send_batch(messages)
            except SprocketError:
                await asyncio.sleep(0)
                continue
            sent = zip(messages, results, strict=True)
            self.acknowledged[queue] += [bytes(message.body) for message, result in sent if result.status is SendStatus.SEND_OK]

    @property
    def sent(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def take(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take what a consumer got; when it has some, hold it until the master is dead, so that the slave has the rest."""
        now = time.monotonic()
        if self.killed_at:
            self.longest_s = max(self.longest_s, now - max(self.last_at, self.killed_at))
        self.last_at = now
        for message in messages:
            self.got[MessageQueue(message.topic, "broker-a", message.queue_id)].append(message)
        if sum(map(len, self.got.values())) >= READ:
            self.enough.set()
            await self.killed.wait()

    def missing(self) -> dict[MessageQueue, set[bytes]]:
        found = {queue: set(bodies) - {message.body for message in self.got[queue]} for queue, bodies in self.acknowledged.items()}
        return {queue: bodies for queue, bodies in found.items() if bodies}

    def check_order(self) -> None:
        """Every queue's messages came in the order they were sent in; a message may come again when its progress was not committed."""
        for queue, messages in self.got.items():
            first = list(dict.fromkeys((message.queue_offset, int(message.body)) for message in messages))
            assert first == sorted(first), queue
            numbers = [number for _, number in first]
            assert numbers == sorted(numbers), queue


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(replicas=1, role="SYNC_MASTER", in_process=False) as mq:
        async with AdminClient(namesrv=mq.namesrv) as admin:

            async def in_sync() -> bool:
                return any(state.in_sync for state in await admin.brokers())

            await eventually(in_sync, timeout_s=60)
            for topic, attributes in TOPICS.items():
                await admin.create_topic(topic, queues=4, attributes=attributes)
        yield mq


async def read_through_a_kill(
    cluster: LocalCluster, consume: Callable[[Backlog, FromSlave], Awaitable[None]], *, unread: int = 2000
) -> None:
    """Kill the master for ever while it takes messages and a consumer reads, and wait until the consumer has all of them.

    ``unread`` messages at least are not handed out before the kill; what the consumer reads ahead is less.
    """
    backlog, slave = Backlog(), FromSlave(cluster.address("broker-a-1"))
    async with Producer("senders", namesrv=cluster.namesrv, retries=0, timeout_s=2.0) as producer:
        stopped = asyncio.Event()
        sending = asyncio.gather(*(backlog.send(producer, queue, stopped) for queue in QUEUES))
        consuming = asyncio.ensure_future(consume(backlog, slave))
        try:
            await asyncio.wait_for(backlog.enough.wait(), 60)
            await eventually(lambda: backlog.sent >= READ + unread, timeout_s=60)
            await asyncio.to_thread(cluster.kill_broker, "broker-a")
            backlog.killed_at = time.monotonic()
            backlog.killed.set()
            stopped.set()
            await sending
            await eventually(lambda: consuming.done() or not backlog.missing(), timeout_s=60)
        finally:
            stopped.set()
            consuming.cancel()
            await asyncio.gather(consuming, sending, return_exceptions=True)
    assert backlog.missing() == {}
    backlog.check_order()
    assert slave.messages
    waited = f"nothing came for {backlog.longest_s:.2f} s at most, all of it was there after {backlog.last_at - backlog.killed_at:.2f} s"
    print(f"{backlog.sent} messages acknowledged, {slave.messages} read from the slave: {waited}")


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_push_consumer_reads_on_from_the_slave(cluster: LocalCluster, orderly: bool) -> None:
    async def consume(backlog: Backlog, slave: FromSlave) -> None:
        options: dict[str, Any] = {"consume_from": "first", "batch_max": 10, "max_cached": 20, "orderly": orderly, "hooks": [slave]}
        async with PushConsumer("billing", list(TOPICS), namesrv=cluster.namesrv, **options) as consumer:
            async for batch in consumer.batches():
                await backlog.take(batch)

    await read_through_a_kill(cluster, consume)


async def test_a_pull_consumer_that_polls_reads_on_from_the_slave(cluster: LocalCluster) -> None:
    async def consume(backlog: Backlog, slave: FromSlave) -> None:
        async with PullConsumer("billing", namesrv=cluster.namesrv, hooks=[slave]) as consumer:
            await consumer.assign(QUEUES)
            for queue in QUEUES:
                consumer.seek(queue, 0)
            while True:
                await backlog.take(await consumer.poll(10))

    await read_through_a_kill(cluster, consume, unread=len(QUEUES) * 1500)  # it reads a thousand of each queue ahead


async def test_pulls_go_on_at_the_slave(cluster: LocalCluster) -> None:
    async def consume(backlog: Backlog, slave: FromSlave) -> None:
        positions = dict.fromkeys(QUEUES, 0)
        async with PullConsumer("billing", namesrv=cluster.namesrv, hooks=[slave]) as consumer:
            while True:
                for queue in QUEUES:
                    try:
                        result = await consumer.pull(queue, positions[queue], max_messages=10)
                    except SprocketError:  # the pull that was under way
                        await asyncio.sleep(0)
                        continue
                    positions[queue] = result.next_offset
                    await backlog.take(result.messages)

    await read_through_a_kill(cluster, consume)
