"""kill -9 of the real broker in the middle of every kind of send, again and again: nothing acknowledged is lost, nothing is invented,
no body changes and every queue keeps its order.

``SPROCKETMQ_CRASH_CYCLES`` sets how often (16 by default), ``SPROCKETMQ_CRASH_SEED`` repeats a run as far as a run with processes can be
repeated: the choices, not the moments.
"""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sprocketmq import AdminClient, Message, Producer, PullConsumer
from sprocketmq.client.send.send_header import HEADER, header_prefix
from sprocketmq.errors import ConnectionLost, SprocketError
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.message import MessageQueue, SendStatus
from sprocketmq.testing.ledger import Ledger
from sprocketmq.testing.serving import ServeProcess

CYCLES = int(os.environ.get("SPROCKETMQ_CRASH_CYCLES", "16"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED") or str(random.randrange(1 << 32))
# The store is read from its beginning this often, and at the end.
READ_EVERY = 100
BROKER = "broker-a"
TOPICS = {"singles": {}, "plain": {}, "lists": {"queue.type": "BatchCQ"}}
QUEUES = 2
SETTINGS = {"commitlog_segment_bytes": 1 << 20, "consumequeue_segment_bytes": 20 * 1000, "flush_interval_s": 0.02}


def body_of(identity: str, rng: random.Random) -> bytes:
    return identity.encode() + b" " + rng.randbytes(rng.choice((0, 10, 300, 1024, 5000)))


class Senders:
    """All ways to send, at once, into one broker that dies meanwhile."""

    def __init__(self, ledger: Ledger, seed: str, namesrv: str) -> None:
        self.ledger = ledger
        self.seed = seed
        self.namesrv = namesrv
        self.acknowledged = asyncio.Event()

    def note(self, lane: str, number: int, rng: random.Random) -> tuple[str, bytes]:
        identity = f"{self.seed}/{lane}/{number}"
        body = body_of(identity, rng)
        self.ledger.sent(identity, body, lane=(self.seed, lane))
        return identity, body

    def answered(self, identity: str, result: object) -> None:
        if result.status is SendStatus.SEND_OK:
            self.ledger.acknowledged(identity, queue=f"{result.topic}/{result.queue_id}", offset=result.queue_offset)
            self.acknowledged.set()

    async def run(self, kill: Callable[[], None], after_s: float) -> None:
        async with Producer("crash", namesrv=self.namesrv, retries=0, timeout_s=5) as producer:
            tasks = [asyncio.create_task(self.until_dead(way, producer, topic)) for topic in TOPICS for way in self.ways(topic)]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.acknowledged.wait(), 60)
            await asyncio.sleep(after_s)
            kill()
            # What has not failed by now looks for the broker until its time is over.
            _, left = await asyncio.wait(tasks, timeout=0.2)
            for task in left:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
        assert self.acknowledged.is_set(), f"nothing was acknowledged within 60 s (seed {SEED})"

    def ways(self, topic: str) -> list[Callable[[Producer, str, int, random.Random], Awaitable[None]]]:
        return [self.single, self.submitted, self.one_way] if topic == "singles" else [self.batch, self.single]

    async def until_dead(self, way: Callable[[Producer, str, int, random.Random], Awaitable[None]], producer: Producer, topic: str) -> None:
        rng = random.Random(f"{self.seed} {way.__name__} {topic}")
        with contextlib.suppress(SprocketError):
            for number in range(1_000_000):
                await way(producer, topic, number, rng)

    async def single(self, producer: Producer, topic: str, number: int, rng: random.Random) -> None:
        identity, body = self.note(f"single {topic}", number, rng)
        self.answered(identity, await producer.send(Message(topic, body, tag="t", keys=[identity], queue=MessageQueue(topic, BROKER, 0))))

    async def submitted(self, producer: Producer, topic: str, number: int, rng: random.Random) -> None:
        """Many on their way at once; on one connection to one queue they keep their order."""
        lane = [self.note("submitted", number * 16 + i, rng) for i in range(16)]
        futures = [producer.submit(Message(topic, body, queue=MessageQueue(topic, BROKER, 1))) for _, body in lane]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for (identity, _), result in zip(lane, results, strict=True):
            if not isinstance(result, BaseException):
                self.answered(identity, result)
        if failures := [result for result in results if isinstance(result, BaseException)]:
            raise failures[0]

    async def batch(self, producer: Producer, topic: str, number: int, rng: random.Random) -> None:
        lane = [self.note(f"batch {topic}", number * 50 + i, rng) for i in range(rng.choice((1, 2, 10, 50)))]
        queue = MessageQueue(topic, BROKER, 1)
        results = await producer.send_batch([Message(topic, body, keys=[identity], queue=queue) for identity, body in lane])
        for (identity, _), result in zip(lane, results, strict=True):
            self.answered(identity, result)

    async def one_way(self, producer: Producer, topic: str, number: int, rng: random.Random) -> None:
        """Nobody answers these, so nothing is promised; what comes back of them must still be right."""
        queue = MessageQueue(topic, BROKER, 0)
        async with AdminClient(namesrv=self.namesrv) as admin:
            (broker,) = (await admin.route(topic)).broker_datas
        address = broker.broker_addrs[0]
        pool = ConnectionPool(expected="broker")
        prefix = header_prefix("crash", queue, batch=False)
        try:
            connection = await pool.get(address)
            while pool.peek(address) is connection:
                _, body = self.note("one-way", number, rng)
                ext = HEADER % (prefix, 0, 1, 0, b"UNIQ_KEY\x01%d\x02" % number)
                connection.oneway(RequestCode.SEND_MESSAGE_V2, ext=ext, body=body)
                number += 1
                await asyncio.sleep(0.001)
        finally:
            await pool.close()
        raise ConnectionLost(address, "the broker died")


async def create_topics(namesrv: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        for topic, attributes in TOPICS.items():
            await admin.create_topic(topic, queues=QUEUES, attributes=attributes)


async def read_all(namesrv: str, ledger: Ledger) -> int:
    """Read every queue from its beginning into the ledger; offsets must be dense."""
    ledger.read_again()
    count = 0
    async with PullConsumer("checker", namesrv=namesrv) as consumer:
        for queue in [MessageQueue(topic, BROKER, i) for topic in TOPICS for i in range(QUEUES)]:
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, max_messages=1024, max_bytes=4 << 20)
                offsets = [message.queue_offset for message in result.messages]
                assert offsets == list(range(offset, offset + len(offsets))), f"{queue} has gaps at {offset} (seed {SEED})"
                assert offsets, f"{queue} gives nothing at {offset} of {end}: {result.status} (seed {SEED})"
                for message in result.messages:
                    body = message.body
                    identity = body.partition(b" ")[0].decode()
                    ledger.received(identity, body, queue=f"{queue.topic}/{queue.queue_id}", offset=message.queue_offset)
                offset = result.next_offset
                count += len(offsets)
    return count


@pytest.mark.timeout(0 if CYCLES > 30 else 600)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path, flush: str) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    rng = random.Random(f"{SEED} {flush}")
    ledger = Ledger(seed=SEED)
    with ServeProcess(tmp_path / "store", flush_disk_type=flush, **SETTINGS) as server:
        asyncio.run(create_topics(server.start()))
        cycles = CYCLES // 2
        for cycle in range(cycles):
            if rng.random() < 0.2:  # die at some moment of the start, recovery among it
                server.launch()
                time.sleep(rng.uniform(0, 0.3))
                server.kill()
            namesrv = server.start()
            if cycle % READ_EVERY == READ_EVERY - 1:
                asyncio.run(read_all(namesrv, ledger))
                ledger.check().raise_if_bad()
            asyncio.run(Senders(ledger, f"{SEED}.{cycle}", namesrv).run(server.kill, rng.uniform(0, 0.2)))
        asyncio.run(read_all(server.start(), ledger))
        report = ledger.check()
        report.raise_if_bad()
        assert report.acknowledged >= cycles
        server.stop()
        print(f"{cycles} kills with {flush}: {report}")
