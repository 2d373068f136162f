"""Consuming by a group while its broker is killed and its network is cut: every message is handled, and what fails ends as a dead letter.

``SPROCKETMQ_FAULT_SEED`` repeats a run as far as a run with processes can be repeated: the choices, not the moments.
"""

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer
from sprocketmq.errors import SprocketError
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.testing import eventually
from sprocketmq.testing.proxy import FaultProxy
from sprocketmq.testing.serving import BrokerProcess

SEED = os.environ.get("SPROCKETMQ_FAULT_SEED") or str(random.randrange(1 << 32))
TOPICS = {"plain": {}, "lists": {"queue.type": "BatchCQ"}}
MESSAGES = 1500
BATCH = 30
RETRIES = 1
HOST = "127.0.0.2"
SETTINGS = {"commitlog_segment_bytes": 64 << 20, "preallocate": False, "message_delay_level": "1s"}


@dataclass
class Cluster:
    """A nameserver, and a broker that can only be reached through a proxy."""

    namesrv: str
    broker: BrokerProcess
    proxy: FaultProxy

    async def cut(self) -> None:
        self.proxy.cut()
        await asyncio.sleep(0.2)

    async def partition(self) -> None:
        self.proxy.partition()
        await asyncio.sleep(0.5)
        self.proxy.cut()
        await self.proxy.heal()

    async def kill(self) -> None:
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)

    async def restart(self) -> None:
        await asyncio.to_thread(self.broker.stop)
        await asyncio.to_thread(self.broker.start)

    @property
    def faults(self) -> list[Callable[[], Awaitable[None]]]:
        return [self.cut, self.partition, self.kill, self.restart]


@asynccontextmanager
async def running_cluster(root: Path) -> AsyncIterator[Cluster]:
    namesrv = NameServer(NameServerConfig(port=0))
    await namesrv.start()
    try:
        with BrokerProcess(root, namesrv=namesrv.address, advertise=HOST, **SETTINGS) as broker:
            address = await asyncio.to_thread(broker.start)
            async with FaultProxy(address, host=HOST, port=broker.port) as proxy:
                async with AdminClient(namesrv=namesrv.address) as admin:
                    for topic, attributes in TOPICS.items():
                        await admin.create_topic(topic, queues=4, attributes=attributes)
                yield Cluster(namesrv.address, broker, proxy)
    finally:
        await namesrv.stop()


async def fill(cluster: Cluster) -> set[bytes]:
    sent: set[bytes] = set()
    async with Producer("pg", namesrv=cluster.namesrv) as producer:
        for topic in TOPICS:
            for start in range(0, MESSAGES, BATCH):
                bodies = [b"%s-%d" % (topic.encode(), i) for i in range(start, start + BATCH)]
                await producer.send_batch([Message(topic, body) for body in bodies])
                sent.update(bodies)
    return sent


async def dead_letters(cluster: Cluster) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with PullConsumer("reader", namesrv=cluster.namesrv) as reader:
        for queue in await reader.queues("%DLQ%cg"):
            offset = 0
            while (result := await reader.pull(queue, offset, max_messages=500)).messages:
                found.update(message.body for message in result.messages)
                offset = result.next_offset
    return found


def is_poison(message: ReceivedMessage) -> bool:
    return int(message.body.rpartition(b"-")[2]) % 10 == 3


# A broker whose registration was lost on the way registers again within 30 s, and clients that missed its route ask within another 30 s.
SETTLED_S = 90


@pytest.mark.timeout(600)
async def test_a_group_handles_everything_whatever_happens_to_its_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    print(f"SPROCKETMQ_FAULT_SEED={SEED}")
    caplog.set_level(logging.CRITICAL)  # faults are logged, thousands of them
    rng = random.Random(SEED)
    handled: Counter[bytes] = Counter()
    failed: Counter[bytes] = Counter()

    async def handler(batch) -> None:
        await asyncio.sleep(rng.uniform(0, 0.1))
        for message in batch:
            if is_poison(message):
                failed[message.body] += 1
                batch.retry(message, delay_level=1)
            else:
                handled[message.body] += 1

    async with running_cluster(tmp_path) as cluster:
        sent = await fill(cluster)
        poison = {body for body in sent if body.endswith(b"3")}
        options = {"consume_from": "first", "batch_max": 50, "max_reconsume_times": RETRIES}
        async with (
            PushConsumer("cg", list(TOPICS), namesrv=cluster.namesrv, **options) as first,
            PushConsumer("cg", list(TOPICS), namesrv=cluster.namesrv, **options) as second,
        ):
            for consumer in (first, second):
                consumer.listen(handler, concurrency=2)
            await eventually(lambda: handled, timeout_s=60)
            faults = cluster.faults
            rng.shuffle(faults)
            for fault in faults:
                await fault()
                await asyncio.sleep(rng.uniform(0.1, 0.3))
            await eventually(lambda: set(handled) == sent - poison, timeout_s=SETTLED_S, what="every message that can be handled")

            async def all_dead() -> bool:
                try:
                    return set(await dead_letters(cluster)) == poison
                except SprocketError:
                    return False

            await eventually(all_dead, timeout_s=SETTLED_S, what="every message that cannot be handled as a dead letter")
        again = handled.total() - len(handled)
        copies = (await dead_letters(cluster)).total() - len(poison)
    assert min(failed.values()) > RETRIES
    print(f"{len(handled)} messages handled, {again} of them again; {len(poison)} dead letters and {copies} copies")
