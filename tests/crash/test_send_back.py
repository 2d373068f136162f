"""kill -9 of the real broker while consumers give messages back and delayed ones come due: each failing message is retried as often as
its group allows and is one dead letter then, alone when it came in a batch, and each delayed message comes once.

The consumer here is as clients are: what was not answered it gives back again. ``SPROCKETMQ_CRASH_KILLS`` sets how often the broker dies
(2 by default), ``SPROCKETMQ_CRASH_SEED`` repeats the choices of a run, not its moments.
"""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from sprocketmq.errors import SprocketError
from sprocketmq.net.client import Connection, ConnectionPool
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import CreateTopic, SendBack, SendMessageV2
from sprocketmq.protocol.records import ReceivedMessage, decode_records
from sprocketmq.testing.serving import BrokerProcess

KILLS = int(os.environ.get("SPROCKETMQ_CRASH_KILLS", "2"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED") or str(random.randrange(1 << 32))
GROUP = "failing"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
LIMIT = 2
SINGLES, BATCHES, IN_BATCH = 120, 15, 8
ENOUGH_S = 200.0


class Life:
    """What clients know, while brokers come and go: what was sent, how far each queue was worked through, what was answered."""

    def __init__(self, server: BrokerProcess, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        self.answers_kept = 0.5
        self.done = {"singles": 0, "lists": 0, RETRY: 0}
        self.delayed: dict[str, bool] = {}
        self.conn: Connection | None = None
        self.prepared = False

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        assert self.conn is not None
        return await self.conn.request(code, ext=ext, body=body, timeout_s=60)

    async def send(self, topic: str, identity: str, body: bytes = b"", *, properties: str = "", batch: bool = False) -> None:
        properties = f"UNIQ_KEY\x01{identity}\x02WAIT\x01true\x02{properties}"
        header = SendMessageV2("pg", topic, 0, 1, properties=properties, batch=batch)
        answer = await self.ask(320 if batch else 310, to_ext(header), body or identity.encode())
        assert answer.code == 0, answer.remark

    async def prepare(self) -> None:
        for topic, attributes in (("singles", ""), ("lists", "+queue.type=BatchCQ"), ("delayed", "")):
            header = CreateTopic(topic, 1, 1, 6, attributes=attributes)
            assert (await self.ask(17, to_ext(header))).code == 0
        for number in range(SINGLES):
            await self.send("singles", f"single{number}")
        for number in range(BATCHES):
            members = [f"batch{number}x{i}" for i in range(IN_BATCH)]
            body = encode_batch([(0, name.encode(), f"UNIQ_KEY\x01{name}\x02".encode()) for name in members])
            await self.send("lists", f"batch{number}", body, batch=True)

    async def pull(self, topic: str, offset: int) -> list[ReceivedMessage]:
        ext = {"consumerGroup": GROUP, "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4"}
        ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        answer = await self.ask(11, ext)
        return [m for m in decode_records(answer.body) if m.queue_offset >= offset] if answer.code == 0 else []

    async def all(self, topic: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while more := await self.pull(topic, len(found)):
            found += more
        return found

    async def fail_everything(self) -> None:
        """Work through the queues as a consumer whose handler always fails; they are done once all answers are there, unless they get lost."""
        behind = False
        for topic in self.done:
            if topic == RETRY and behind:
                continue  # a group that has read a retry may give the original back anew
            messages = await self.pull(topic, self.done[topic])
            headers = [SendBack(m.commitlog_offset, GROUP, 1, m.msg_id, topic, max_reconsume_times=LIMIT) for m in messages]
            for answer in await asyncio.gather(*(self.ask(36, to_ext(header)) for header in headers)):
                assert answer.code == 0, answer.remark
            if messages and self.rng.random() < self.answers_kept:
                self.done[topic] = messages[-1].queue_offset + 1
            elif messages:
                behind = True
            offset = {"consumerGroup": GROUP, "topic": topic, "queueId": "0", "commitOffset": str(self.done[topic])}
            await self.ask(15, offset)

    async def delay_one(self) -> None:
        identity = f"delayed{len(self.delayed)}"
        self.delayed[identity] = False
        await self.send("delayed", identity, properties="DELAY\x011\x02")
        self.delayed[identity] = True

    async def run(self, kill_after_s: float | None) -> None:
        """Work until the broker dies, or all is done."""
        pool = ConnectionPool(expected="broker")
        loop = asyncio.get_running_loop()
        try:
            self.conn = await pool.get(f"127.0.0.1:{self.server.port}")
            if not self.prepared:
                await self.prepare()
                self.prepared = True
            if kill_after_s is not None:
                loop.call_later(kill_after_s, self.server.kill)
            deadline = time.monotonic() + ENOUGH_S
            while kill_after_s is not None or not await self.finished():
                await self.fail_everything()
                if kill_after_s is not None:
                    await self.delay_one()
                assert time.monotonic() < deadline, f"not done: {self.done} (seed {SEED})"
        except SprocketError:
            assert kill_after_s is not None, f"the broker failed: {self.server.said()} (seed {SEED})"
        finally:
            await pool.close()

    async def finished(self) -> bool:
        await asyncio.sleep(0.2)
        came = {m.msg_id for m in await self.all("delayed")}
        answered = {identity for identity, known in self.delayed.items() if known}
        return len(await self.all(DEAD)) >= SINGLES + BATCHES * IN_BATCH and came >= answered


@pytest.mark.timeout(0 if KILLS > 10 else 600)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_failing_messages_end_as_one_dead_letter_each_and_delayed_ones_come_once(tmp_path: Path, flush: str) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    rng = random.Random(f"{SEED} {flush}")
    settings = {"flush_disk_type": flush, "save_offsets_interval_s": 0.3, "flush_interval_s": 0.05, "commitlog_segment_bytes": 1 << 20}
    # Nobody listens at that nameserver: the broker serves who knows it.
    with BrokerProcess(tmp_path / "store", namesrv="127.0.0.1:1", **settings) as server:
        life = Life(server, rng)
        for _ in range(KILLS):
            server.start()
            asyncio.run(life.run(rng.uniform(0.2, 1.6)))
            server.kill()
        server.start()
        life.answers_kept = 1.0
        asyncio.run(life.run(None))
        asyncio.run(check(life))
        server.stop()


async def check(life: Life) -> None:
    pool = ConnectionPool(expected="broker")
    life.conn = await pool.get(f"127.0.0.1:{life.server.port}")
    names = {f"single{n}" for n in range(SINGLES)} | {f"batch{n}x{i}" for n in range(BATCHES) for i in range(IN_BATCH)}
    once = dict.fromkeys(names, 1)
    retried = await life.all(RETRY)
    for times in range(1, LIMIT + 1):
        assert Counter(m.body.decode() for m in retried if m.reconsume_times == times) == once, f"retry {times} (seed {SEED})"
    dead = await life.all(DEAD)
    assert Counter(m.body.decode() for m in dead) == once, f"dead letters (seed {SEED})"
    assert {m.msg_id for m in dead} == names
    came = Counter(m.body.decode() for m in await life.all("delayed"))
    assert set(came.values()) <= {1}, f"{[name for name, count in came.items() if count > 1]} came twice (seed {SEED})"
    assert {name for name, answered in life.delayed.items() if answered} <= came.keys() <= life.delayed.keys()
    await pool.close()
