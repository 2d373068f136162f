"""Consuming by a group while its broker is killed and its network is cut: every message is handled, and what fails ends as a dead letter.

Each seed has a cluster of its own, and several run at a time. ``SPROCKETMQ_FAULT_SEEDS`` sets how many (20 by default),
``SPROCKETMQ_FAULT_SEED`` the first of them, which are counted up from there; with ``SPROCKETMQ_FAULT_SEEDS=1`` one run is repeated as far as a
run with processes can be: the choices, not the moments.
"""

import asyncio
import logging
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer
from sprocketmq.errors import SprocketError
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually
from sprocketmq.testing.proxy import FaultProxy
from sprocketmq.testing.serving import BrokerProcess

SEEDS = int(os.environ.get("SPROCKETMQ_FAULT_SEEDS", "20"))
FIRST_SEED = int(os.environ.get("SPROCKETMQ_FAULT_SEED") or random.randrange(1 << 32))
AT_ONCE = 4
TOPICS = {"plain": {}, "lists": {"queue.type": "BatchCQ"}}
MESSAGES = 600
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


class DeadLetters:
    """The dead-letter topic of the group, read on from time to time."""

    def __init__(self, reader: PullConsumer) -> None:
        self.found: Counter[bytes] = Counter()
        self._reader = reader
        self._next: dict[MessageQueue, int] = {}

    async def read(self) -> set[bytes]:
        try:
            for queue in await self._reader.queues("%DLQ%cg"):
                while True:
                    result = await self._reader.pull(queue, self._next.get(queue, 0), max_messages=500)
                    self.found.update(message.body for message in result.messages)
                    self._next[queue] = result.next_offset
                    if not result.messages:
                        break
        except SprocketError:
            await asyncio.sleep(0.5)
        return set(self.found)


def is_poison(body: bytes) -> bool:
    return int(body.rpartition(b"-")[2]) % 10 == 3


# Far beyond what any run has needed, as a machine may be slow: a group recovers within seconds, or never does.
SETTLED_S = 120


async def consume(seed: int, root: Path) -> str:
    """Run one seed and return what became of its messages. Raises AssertionError, which tells how the consumers are doing."""
    rng = random.Random(seed)
    handled: Counter[bytes] = Counter()
    failed: Counter[bytes] = Counter()

    async def handler(batch) -> None:
        await asyncio.sleep(rng.uniform(0, 0.1))
        for message in batch:
            if is_poison(message.body):
                failed[message.body] += 1
                batch.retry(message, delay_level=1)
            else:
                handled[message.body] += 1

    async with running_cluster(root) as cluster, PullConsumer("reader", namesrv=cluster.namesrv) as reader:
        sent = await fill(cluster)
        poison = {body for body in sent if is_poison(body)}
        dead = DeadLetters(reader)
        options = {"consume_from": "first", "batch_max": 10, "max_reconsume_times": RETRIES}
        async with (
            PushConsumer("cg", list(TOPICS), namesrv=cluster.namesrv, **options) as first,
            PushConsumer("cg", list(TOPICS), namesrv=cluster.namesrv, **options) as second,
        ):
            for consumer in (first, second):
                consumer.listen(handler, concurrency=2)

            async def settled() -> bool:
                if set(handled) == sent - poison and await dead.read() == poison:
                    return True
                await asyncio.sleep(0.1)
                return False

            try:
                await eventually(lambda: handled, timeout_s=SETTLED_S, what="the first message")
                faults = cluster.faults
                rng.shuffle(faults)
                for fault in faults:
                    await fault()
                    await asyncio.sleep(rng.uniform(0.1, 0.3))
                await eventually(settled, timeout_s=SETTLED_S, what="every message handled, or a dead letter")
            except TimeoutError as e:
                left = f"{len(sent - poison - set(handled))} not handled, {len(poison - set(dead.found))} not among the dead letters"
                raise AssertionError(f"{e}: {left}; {first.stats()}, {second.stats()}") from e
        again = handled.total() - len(handled)
        await dead.read()
        copies = dead.found.total() - len(poison)
    assert set(handled) == sent - poison
    assert min(failed.values()) > RETRIES
    return f"{len(handled)} messages handled, {again} of them again; {len(poison)} dead letters and {copies} copies"


@pytest.mark.timeout(0 if SEEDS > 20 else 600)
async def test_a_group_handles_everything_whatever_happens_to_its_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    print(f"SPROCKETMQ_FAULT_SEED={FIRST_SEED} SPROCKETMQ_FAULT_SEEDS={SEEDS}", flush=True)
    caplog.set_level(logging.ERROR)  # faults are logged, thousands of them, but none is an error of the client
    room = asyncio.Semaphore(AT_ONCE)
    failures: dict[int, BaseException] = {}

    async def one(seed: int) -> None:
        async with room:
            began = time.monotonic()
            try:
                result = await consume(seed, tmp_path / str(seed))
            except Exception as e:
                failures[seed] = e
                result = f"FAILED: {type(e).__name__}: {e}"
            shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
            print(f"seed {seed}, {time.monotonic() - began:.1f} s: {result}", flush=True)

    await asyncio.gather(*(one(FIRST_SEED + i) for i in range(SEEDS)))
    assert not failures
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("sprocketmq")]
