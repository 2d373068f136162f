"""Members of a group that join, leave, pause, seek and close themselves at random moments: every message is handled, and no lock stays behind.

``SPROCKETMQ_FAULT_SEEDS`` sets how many walks there are (5 by default), ``SPROCKETMQ_FAULT_SEED`` the first of their seeds. A seed repeats the
choices of a walk, not its moments.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from sprocketmq import AdminClient, Message, Producer, PushConsumer
from sprocketmq.client.consume.orderly import MemberLocks
from sprocketmq.client.instance import Instance
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

SEEDS = int(os.environ.get("SPROCKETMQ_FAULT_SEEDS", "5"))
FIRST_SEED = int(os.environ.get("SPROCKETMQ_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
TOPICS = {"plain": {}, "lists": {"queue.type": "BatchCQ"}}
STEPS = 30
MEMBERS = 3


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(auto_create_topic=False) as mq, AdminClient(namesrv=mq.namesrv) as admin:
        for topic, attributes in TOPICS.items():
            await admin.create_topic(topic, queues=3, attributes=attributes)
        yield mq


class Walk:
    """One group, and what happens to it. Messages carry the seed as their tag: a walk sees no others."""

    def __init__(self, seed: int, namesrv: str, producer: Producer) -> None:
        self.choose = random.Random(seed)
        self.namesrv = namesrv
        self.group = f"walk-{seed}"
        self.tag = f"tag-{seed}"
        self.topic = self.choose.choice(list(TOPICS))
        self.orderly = self.choose.random() < 0.5
        self.producer = producer
        self.members: list[PushConsumer] = []
        self.loops: list[asyncio.Task[None]] = []
        self.sent: set[bytes] = set()
        self.handled: set[bytes] = set()

    async def send(self) -> None:
        bodies = [b"%d" % (len(self.sent) + i) for i in range(self.choose.randint(1, 10))]
        await self.producer.send_batch([Message(self.topic, body, tag=self.tag) for body in bodies])
        self.sent.update(bodies)

    async def join(self) -> None:
        batch_max = self.choose.choice([1, 4, 32])
        member = PushConsumer(
            self.group, {self.topic: self.tag}, namesrv=self.namesrv, consume_from="first", orderly=self.orderly, batch_max=batch_max
        )
        await member.start()
        self.members.append(member)
        if self.choose.random() < 0.6:

            async def handle(batch) -> None:
                if self.choose.random() < 0.3:
                    await asyncio.sleep(self.choose.random() * 0.01)
                self.handled.update(bytes(message.body) for message in batch)
                if self.choose.random() < 0.02:
                    await member.close()

            member.listen(handle, concurrency=self.choose.choice([1, 4]))
        else:
            batches = member.batches()

            async def iterate() -> None:
                async for batch in batches:
                    self.handled.update(bytes(message.body) for message in batch)

            self.loops.append(asyncio.create_task(iterate()))

    async def leave(self) -> None:
        await self.members.pop(self.choose.randrange(len(self.members))).close()

    async def step(self) -> None:
        what = self.choose.choice(["join", "leave", "pause", "resume", "seek", "send", "commit", "wait", "wait"])
        if what == "join":
            if len(self.members) < MEMBERS:
                await self.join()
        elif what == "leave":
            if len(self.members) > 1:
                await self.leave()
        elif what == "send":
            await self.send()
        elif what == "wait":
            await asyncio.sleep(self.choose.random() * 0.03)
        else:
            member = self.choose.choice(self.members)
            if member.assignment:
                queue = self.choose.choice(member.assignment)
                try:
                    if what == "pause":
                        member.pause(queue)
                    elif what == "resume":
                        self.resume()
                    elif what == "seek":
                        member.seek(queue, 0)
                    else:
                        await member.commit()
                except SprocketError:  # it has closed itself, or the queue has gone to another member
                    pass

    def resume(self) -> None:
        for member in self.members:
            if member.paused:
                try:
                    member.resume(*member.paused)
                except SprocketError:
                    continue

    def all_handled(self) -> bool:
        self.resume()
        return self.handled >= self.sent

    async def run(self) -> None:
        await self.send()
        await self.join()
        for _ in range(STEPS):
            await self.step()
        await self.join()  # one at least has not closed itself
        await eventually(self.all_handled)
        while self.members:
            await self.leave()
        await asyncio.gather(*self.loops)
        if self.orderly:
            assert await self.locked_by_nobody()

    async def locked_by_nobody(self) -> bool:
        """Lock every queue as another member."""
        instance = Instance(self.namesrv, kind="PushConsumer")
        await instance.start()
        try:
            route = await instance.fetch_route(self.topic)
            assert route is not None
            queues: list[MessageQueue] = list(route.subscribe_queues)
            return (await MemberLocks(instance, self.group).lock(queues)).taken == set(queues)
        finally:
            await instance.close()


@pytest.mark.timeout(0 if SEEDS > 20 else 600)
async def test_a_group_whose_members_come_and_go_handles_everything_and_leaves_no_lock(cluster: LocalCluster) -> None:
    async with Producer("pg", namesrv=cluster.namesrv) as producer:
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
            print(f"SPROCKETMQ_FAULT_SEED={seed} SPROCKETMQ_FAULT_SEEDS=1", flush=True)
            await Walk(seed, cluster.namesrv, producer).run()
