"""Retries to the end against our own broker, on both kinds of topics: every failing message, and no other, comes again."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.inside import process_queues
from tests.waiting import stays

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.server import Broker
from sprocketmq.client import AdminClient, Producer, PullConsumer, PushConsumer
from sprocketmq.client.consume import group_member
from sprocketmq.clock import ManualClock
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.message import Message
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import eventually

RETRIES = 2
LEVEL_S = 10


class Delayed:
    """A broker whose clock the test moves."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.namesrv = NameServer(NameServerConfig(port=0))
        self._store = StoreConfig(
            root=root, commitlog_segment_bytes=1 << 24, preallocate=False, message_delay_level=" ".join([f"{LEVEL_S}s"] * 18)
        )
        self.broker: Broker

    async def start(self) -> None:
        await self.namesrv.start()
        self.broker = Broker(BrokerConfig(store=self._store, port=0, namesrv=(self.namesrv.address,)), clock=self.clock)
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.namesrv.stop()

    def pass_time(self) -> None:
        self.clock.advance(1)
        self.broker.delays.fire()


@pytest.fixture
async def delayed(tmp_path, monkeypatch):
    monkeypatch.setattr(group_member, "REBALANCE_RETRY_S", 0.01)
    running = Delayed(tmp_path / "store")
    await running.start()
    yield running
    await running.stop()


async def create(delayed: Delayed, topic: str, kind: str) -> None:
    async with AdminClient(namesrv=delayed.namesrv.address) as admin:
        await admin.create_topic(topic, queues=2, attributes={"queue.type": kind})


async def drain(delayed: Delayed, topic: str) -> list:
    async with PullConsumer("reader", namesrv=delayed.namesrv.address) as reader:
        found = []
        for queue in await reader.queues(topic):
            offset = 0
            while (result := await reader.pull(queue, offset, max_messages=1000)).messages:
                found += result.messages
                offset = result.next_offset
        return found


@pytest.mark.parametrize("kind", ["SimpleCQ", "BatchCQ"])
async def test_each_failing_message_comes_again_up_to_the_limit_then_is_a_dead_letter_once_and_its_siblings_never(delayed, kind):
    await create(delayed, "t", kind)
    bodies = [b"%04d" % i for i in range(2000)]
    poison = {body for body in bodies if int(body) % 2}
    async with Producer("pg", namesrv=delayed.namesrv.address) as producer:
        for start in range(0, len(bodies), 40):
            await producer.send_batch([Message("t", body, keys=[body.decode()]) for body in bodies[start : start + 40]])
    times: Counter[bytes] = Counter()
    ids: dict[bytes, set[str]] = {}
    wrong: list[tuple[bytes, int, str]] = []

    def handler(batch):
        for message in batch:
            if message.reconsume_times != times[message.body] or message.topic != "t":
                wrong.append((message.body, message.reconsume_times, message.topic))
            times[message.body] += 1
            ids.setdefault(message.body, set()).add(message.msg_id)
            if message.body in poison:
                batch.retry(message, delay_level=1)

    options = {"consume_from": "first", "max_reconsume_times": RETRIES, "batch_max": 100}
    async with PushConsumer("cg", "t", namesrv=delayed.namesrv.address, **options) as consumer:
        consumer.listen(handler)
        async with asyncio.timeout(60):
            while sum(times.values()) < len(bodies) + RETRIES * len(poison):
                delayed.pass_time()
                await asyncio.sleep(0.01)
            await eventually(lambda: not any(pq.held_messages for pq in process_queues(consumer).values()))
        for _ in range(3 * LEVEL_S):
            delayed.pass_time()
        await stays(lambda: wrong == [])
    assert wrong == []
    assert {body: count for body, count in times.items() if count != 1} == dict.fromkeys(poison, 1 + RETRIES)
    assert all(len(found) == 1 for found in ids.values())
    dead = await drain(delayed, "%DLQ%cg")
    assert Counter(message.body for message in dead) == Counter(poison)
    assert all(message.properties["RETRY_TOPIC"] == "t" and message.msg_id in ids[message.body] for message in dead)


@pytest.mark.parametrize("kind", ["SimpleCQ", "BatchCQ"])
async def test_level_minus_1_makes_a_dead_letter_at_once(delayed, kind):
    await create(delayed, "t", kind)
    async with Producer("pg", namesrv=delayed.namesrv.address) as producer:
        await producer.send_batch([Message("t", b"good"), Message("t", b"bad"), Message("t", b"better")])
    async with PushConsumer("cg", "t", namesrv=delayed.namesrv.address, consume_from="first") as consumer:
        async for batch in consumer.batches():
            batch.retry(batch[1], delay_level=-1)
            batch.ack()
            break
    assert [message.body for message in await drain(delayed, "%DLQ%cg")] == [b"bad"]


async def test_an_orderly_message_that_failed_too_often_is_a_dead_letter_and_its_queue_goes_on(delayed):
    await create(delayed, "t", "SimpleCQ")
    async with Producer("pg", namesrv=delayed.namesrv.address) as producer:
        queue = (await producer.queues("t"))[0]
        for i in range(4):
            await producer.send(Message("t", b"%d" % i, queue=queue))
    seen: list[bytes] = []

    def handler(batch):
        seen.append(batch[0].body)
        if batch[0].body == b"1":
            raise ValueError("poison")

    options = {"consume_from": "first", "orderly": True, "batch_max": 1, "max_reconsume_times": 2, "suspend_s": 0.01}
    async with PushConsumer("cg", "t", namesrv=delayed.namesrv.address, **options) as consumer:
        consumer.listen(handler)
        await eventually(lambda: len(seen) >= 6)
    assert seen == [b"0", b"1", b"1", b"1", b"2", b"3"]
    assert [message.body for message in await drain(delayed, "%DLQ%cg")] == [b"1"]
