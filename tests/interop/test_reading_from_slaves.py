"""Reading goes on from a slave of Apache's when its master is killed, and back at the master when it returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop import apache
from tests.interop.reading import pull_all

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

NAME = "broker-r"
CLUSTER = "SlavesCluster"
TOPICS = ("ReadOnPush", "ReadOnOrderly", "ReadOnPull", "ReadOnSpark")
QUEUES = 4
# A slave asks for its master's topics 10 s after its start.
SYNCED_S = 90.0


class Pair:
    """A master and its slave, both Apache's."""

    def __init__(self, home: Path, namesrv: str) -> None:
        self.namesrv = namesrv
        self._home = home
        self._port = apache.broker_port()
        self.master = self.start_master()
        self.slave: apache.ApacheBroker | None = None

    def start_master(self) -> apache.ApacheBroker:
        self.master = apache.ApacheBroker(self._home / "read-master", self.namesrv, name=NAME, cluster=CLUSTER, port=self._port)
        return self.master

    def start_slave(self) -> None:
        settings = apache.SMALL_STORE | {"brokerId": "1", "brokerRole": "SLAVE", "slaveReadEnable": "true"}
        self.slave = apache.ApacheBroker(self._home / "read-slave", self.namesrv, name=NAME, cluster=CLUSTER, settings=settings)

    def kill(self) -> None:
        self.master.kill()
        if self.slave is not None:
            self.slave.kill()


@pytest.fixture(scope="module")
def pair(session_home: Path, own_namesrv: apache.ApacheNamesrv) -> Iterator[Pair]:
    running = Pair(session_home, own_namesrv.address)
    try:
        asyncio.run(create_topics(running))
        running.start_slave()
        yield running
    finally:
        running.kill()


@pytest.fixture
async def master_here(pair: Pair) -> AsyncIterator[Pair]:
    """The pair with its master running, also for the tests after this one."""
    yield pair
    if pair.master.process.poll() is not None:
        await asyncio.to_thread(pair.start_master)


async def create_topics(pair: Pair) -> None:
    async with AdminClient(namesrv=pair.namesrv) as admin:
        for topic in TOPICS:
            await admin.create_topic(topic, queues=QUEUES, cluster=CLUSTER)


async def send(pair: Pair, topic: str, start: int, stop: int) -> None:
    async with Producer("read_on_producer", namesrv=pair.namesrv) as producer:
        for i in range(start, stop):
            await producer.send(Message(topic, b"%d" % i, queue=MessageQueue(topic, NAME, i % QUEUES)))


async def replicated(pair: Pair, topic: str, count: int) -> None:
    """Wait until the slave answers pulls of a topic with ``count`` messages."""

    async def on_slave() -> int:
        async with PullConsumer("read_on_probe", namesrv=pair.namesrv) as consumer:
            found = 0
            for queue in await consumer.queues(topic):
                result = await consumer.pull(queue, 0, read_from="slave")
                found += 0 if result.from_master else result.max_offset
            return found

    deadline = time.monotonic() + SYNCED_S
    while True:
        try:
            if await on_slave() >= count:
                return
        except Exception:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, "the slave does not catch up"
        await asyncio.sleep(0.5)


async def committed_at_master(admin: AdminClient, group: str, topic: str) -> bool:
    """Return whether the master has the offsets behind the last of 510 messages of each queue."""
    return set((await admin.committed(group, topic)).values()) == {510}


def bodies(start: int, stop: int, queue_id: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, stop) if i % QUEUES == queue_id]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_push_consumer_reads_on_from_the_slave_and_goes_back(master_here: Pair, orderly: bool) -> None:
    pair, topic, group = master_here, "ReadOnOrderly" if orderly else "ReadOnPush", f"read_on_push_{orderly}"
    await send(pair, topic, 0, 2000)
    await replicated(pair, topic, 2000)
    got: dict[int, list[bytes]] = {i: [] for i in range(QUEUES)}
    reached = asyncio.Event()
    killed = asyncio.Event()

    def count() -> int:
        return sum(map(len, got.values()))

    async def consume(consumer: PushConsumer) -> None:
        async for batch in consumer.batches():
            got[batch.queue.queue_id] += [message.body for message in batch]
            if count() >= 200:
                reached.set()
                await killed.wait()

    # Few messages are cached, so that the slave has most of what is left.
    options: dict[str, Any] = {"consume_from": "first", "batch_max": 10, "max_cached": 20, "orderly": orderly}
    async with PushConsumer(group, topic, namesrv=pair.namesrv, **options) as consumer:
        consuming = asyncio.create_task(consume(consumer))
        await asyncio.wait_for(reached.wait(), 60)
        await asyncio.to_thread(pair.master.kill)
        killed.set()
        await eventually(lambda: count() >= 2000, timeout_s=60)
        await asyncio.to_thread(pair.start_master)
        await send(pair, topic, 2000, 2040)
        await eventually(lambda: count() >= 2040, timeout_s=60)
        async with AdminClient(namesrv=pair.namesrv) as admin:
            # The last of them may still have come from the slave: the commits go back to the master when the consumer does.
            await eventually(lambda: committed_at_master(admin, group, topic), timeout_s=60)
        consuming.cancel()
    assert got == {i: bodies(0, 2040, i) for i in range(QUEUES)}


async def test_a_pull_consumer_and_an_admin_client_read_from_the_slave(master_here: Pair) -> None:
    pair, topic = master_here, "ReadOnPull"
    await send(pair, topic, 0, 100)
    await replicated(pair, topic, 100)
    stored = await pull_all(pair.namesrv, topic)
    queue = MessageQueue(topic, NAME, 1)
    async with PullConsumer("read_on_pull", namesrv=pair.namesrv) as consumer, AdminClient(namesrv=pair.namesrv) as admin:
        assert (await consumer.pull(queue, 0)).from_master
        await asyncio.to_thread(pair.master.kill)
        result = await consumer.pull(queue, 5)
        assert [message.queue_offset for message in result.messages] == list(range(5, 25))
        assert not result.from_master
        beyond = await consumer.pull(queue, 1000)
        assert (beyond.messages, beyond.next_offset) == ([], 1000)
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 25)
        await consumer.commit(queue, 7)
        assert await consumer.committed(queue) == 7
        assert (await admin.topic_stats(topic)).offset_table[queue].max_offset == 25
        assert (await admin.message_at(queue, 3)) is not None
        assert await pull_all(pair.namesrv, topic) == stored


@pytest.mark.spark
@pytest.mark.long
async def test_a_spark_stream_reads_on_from_the_slave(master_here: Pair, spark: Any, tmp_path: Path) -> None:
    pair, topic = master_here, "ReadOnSpark"
    await send(pair, topic, 0, 400)
    await replicated(pair, topic, 400)
    table = str(tmp_path / "table")
    stream = spark.readStream.format("rocketmq").options(
        nameserver=pair.namesrv, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20", columns="queueId,queueOffset,body"
    )
    query = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint")).start(table)
    try:
        await eventually(lambda: not query.isActive or (query.lastProgress or {"batchId": 0})["batchId"] >= 2, timeout_s=90)
        assert query.exception() is None
        await asyncio.to_thread(pair.master.kill)
        await eventually(lambda: _read(query) or not query.isActive, timeout_s=90)
        assert query.exception() is None
    finally:
        query.stop()
    rows = sorted((row.queueId, row.queueOffset, bytes(row.body)) for row in spark.read.parquet(table).collect())
    assert rows == sorted((i % QUEUES, i // QUEUES, b"%d" % i) for i in range(400))


def _read(query: Any) -> bool:
    """Whether a query has read all 400 messages."""
    progress = query.lastProgress
    if progress is None:
        return False
    ends = progress["sources"][0]["endOffset"]
    return str(ends).count("100") >= QUEUES
