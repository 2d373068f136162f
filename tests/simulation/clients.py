"""The users of a simulated run: one producer that sends in several ways, and one consumer; both write into ledgers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.simulation.machines import SimBroker

from sprocketmq import AdminClient, Batching, Message, Producer, PushConsumer
from sprocketmq.cli.failover import plan_failover, reason_against
from sprocketmq.errors import ClientClosed, MaybeStoredError, RetriableError, SprocketError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue, SendStatus
from sprocketmq.testing.ledger import Ledger
from sprocketmq.testing.rig.network import Machine, Network
from sprocketmq.testing.rig.virtual_loop import LoopClock

BROKER = "broker-a"
PLAIN, LISTS = "plain", "lists"
TOPICS: dict[str, dict[str, str]] = {PLAIN: {}, LISTS: {"queue.type": "BatchCQ"}}
QUEUES = 2
GROUP = "billing"
PROMOTION_ATTEMPTS = 200
PROMOTION_TIMEOUT_S = 10.0


def identity_of(body: bytes) -> str:
    return body.partition(b" ")[0].decode()


async def create_topics(nameserver: str, clock: LoopClock) -> None:
    async with AdminClient(namesrv=nameserver, clock=clock) as admin:
        for topic, attributes in TOPICS.items():
            await admin.create_topic(topic, queues=QUEUES, attributes=attributes)


async def until_started(*clients: Any) -> None:
    """Start clients; while no nameserver answers, again."""
    for client in clients:
        while True:
            try:
                await client.start()
            except ClientClosed:
                raise
            except SprocketError:
                await asyncio.sleep(0.1)
            else:
                break


class Sender:
    """Sends until it is told to stop. ``ledger`` knows every message, and which of them are acknowledged and where."""

    def __init__(self, network: Network, ip: str, *, seed: str, nameserver: str, ledger: Ledger) -> None:
        self.machine: Machine = network.machine("producer", ip)
        self.process = self.machine.start("producer")
        self.clock = LoopClock(network.loop)
        self.ledger = ledger
        self.stopped = False
        self.acknowledged: list[str] = []
        self.disordered: list[str] = []
        # Errors that say that trying again does not help, although all that is wrong is passing. That a topic is missing may be said of
        # one that was never found: a nameserver that has just started knows none.
        self.final: list[str] = []
        self._last: dict[tuple[str, str], int] = {}
        self._network = network
        self._seed = seed
        self._nameserver = nameserver

    async def run(self, ways: tuple[str, ...]) -> None:
        """Send in these ways, side by side, until ``stopped`` is set."""
        by_way: dict[str, Callable[..., Awaitable[None]]] = {
            "single": self._single,
            "submitted": self._submitted,
            "batch": self._batch,
            "lists": self._lists,
            "auto": self._auto,
            "delayed": self._delayed,
        }
        plain = Producer("sim", namesrv=self._nameserver, retries=0, timeout_s=1.0, clock=self.clock)
        auto = Producer("sim", namesrv=self._nameserver, retries=0, timeout_s=1.0, batching=Batching(max_bytes=2000), clock=self.clock)
        await until_started(plain, auto)
        async with plain, auto:
            await asyncio.gather(*(self._repeat(way, by_way[way], auto if way == "auto" else plain) for way in ways))

    async def _repeat(self, way: str, send: Callable[..., Awaitable[None]], producer: Producer) -> None:
        rng = random.Random(f"{self._seed} {way}")
        number = 0
        while not self.stopped:
            try:
                await send(producer, rng, way, number)
            except SprocketError as e:
                self._failed(e, f"{way} {number}")
            number += 20
            await asyncio.sleep(rng.choice((0.0, 0.02, 0.1)))

    def _failed(self, error: BaseException, which: str) -> None:
        self._network.trace.note(f"{which} failed: {type(error).__name__}")
        gathers = which.startswith("auto")  # with a producer of its own
        found = any(identity.startswith("auto") == gathers for identity in self.acknowledged)
        passing = isinstance(error, RetriableError | MaybeStoredError) or (isinstance(error, TopicNotFound) and not found)
        if not passing and not self.stopped:
            self.final.append(f"{which}: {type(error).__name__}: {error}")

    def _new(self, rng: random.Random, way: str, number: int) -> Message:
        identity = f"{way}-{number}"
        body = f"{identity} ".encode() + rng.randbytes(rng.choice((0, 10, 200, 1500)))
        self.ledger.sent(identity, body)
        topic = LISTS if way == "lists" else PLAIN
        return Message(topic, body, keys=[identity], queue=MessageQueue(topic, BROKER, number // 2000 % QUEUES))

    def _answered(self, message: Message, result: Any, *, placed: bool = True) -> None:
        identity = identity_of(message.body)
        self._network.trace.note(f"{identity} {result.status.name} {result.queue_id}/{result.queue_offset}")
        if result.status is SendStatus.SEND_OK:
            self.acknowledged.append(identity)
            if not placed:
                self.ledger.acknowledged(identity)
                return
            queue = f"{result.topic}/{result.queue_id}"
            self.ledger.acknowledged(identity, queue=queue, offset=result.queue_offset)
            # Sends that wait for the answer before the next one keep their order. Others may overtake each other while the broker is out of
            # reach, as each tries again by itself.
            lane = (identity.partition("-")[0], queue)
            if lane[0] in {"single", "batch", "lists"} and result.queue_offset <= self._last.get(lane, -1):
                self.disordered.append(identity)
            self._last[lane] = result.queue_offset

    async def _single(self, producer: Producer, rng: random.Random, way: str, number: int) -> None:
        message = self._new(rng, way, number)
        self._answered(message, await producer.send(message))

    async def _submitted(self, producer: Producer, rng: random.Random, way: str, number: int) -> None:
        messages = [self._new(rng, way, number + i) for i in range(8)]
        results = await asyncio.gather(*map(producer.submit, messages), return_exceptions=True)
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, BaseException):
                self._failed(result, identity_of(message.body))
            else:
                self._answered(message, result)

    async def _batch(self, producer: Producer, rng: random.Random, way: str, number: int) -> None:
        messages = [self._new(rng, way, number + i) for i in range(rng.choice((1, 2, 10)))]
        for message, result in zip(messages, await producer.send_batch(messages), strict=True):
            self._answered(message, result)

    _lists = _batch

    async def _auto(self, producer: Producer, rng: random.Random, way: str, number: int) -> None:
        """Gathered in batches of the producer's making; each message has a result of its own."""
        messages = [self._new(rng, way, number + i) for i in range(10)]
        results = await asyncio.gather(*map(producer.send, messages), return_exceptions=True)
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, BaseException):
                self._failed(result, identity_of(message.body))
            else:
                self._answered(message, result)

    async def _delayed(self, producer: Producer, rng: random.Random, way: str, number: int) -> None:
        """Delivered by the broker after a second, at an offset that the answer cannot know."""
        message = self._new(rng, way, number)
        message = Message(message.topic, message.body, keys=message.keys, delay_level=1)
        self._answered(message, await producer.send(message), placed=False)


class Operator:
    """Promotes slaves by hand, as ``sprocketmq failover`` does, when all slaves answer: then nothing acknowledged can be lost."""

    def __init__(self, network: Network, ip: str, *, nameserver: str) -> None:
        self.process = network.machine("operator", ip).start("operator")
        self.clock = LoopClock(network.loop)
        self._network = network
        self._nameserver = nameserver

    async def promote(self, brokers: Mapping[str, SimBroker], chosen: Callable[[SimBroker], None] | None) -> None:
        """Promote the slave that has most, again until it is the master; ``chosen`` is told of the first one that is asked."""
        by_address = {broker.address: broker for broker in brokers.values()}
        epoch = 0
        admin = AdminClient(namesrv=self._nameserver, timeout_s=1.0, clock=self.clock)
        await until_started(admin)
        async with admin:
            for _ in range(PROMOTION_ATTEMPTS):
                await asyncio.sleep(0.25)
                try:
                    states = await admin.brokers(BROKER)
                    if any(epoch and state.role == "SYNC_MASTER" and state.epoch == epoch for state in states):
                        return
                    plan = plan_failover(BROKER, states)
                    slaves = [state for state in states if state.address != (plan.former.address if plan.former else "")]
                    if len(slaves) < len(brokers) - 1 or any(map(reason_against, slaves)):
                        reasons = [f"{state.address}: {reason_against(state) or 'follows'}" for state in slaves]
                        self._network.trace.note(f"no promotion yet: {'; '.join(reasons)}")
                        continue
                    if chosen is not None:
                        chosen(by_address[plan.slave.address])
                        chosen = None
                    epoch = plan.epoch
                    self._network.trace.note(f"promoting {by_address[plan.slave.address].name} with epoch {epoch}")
                    await admin.change_master(plan.slave.address, plan.slave.address, epoch, timeout_s=PROMOTION_TIMEOUT_S)
                except SprocketError as e:
                    self._network.trace.note(f"no promotion yet: {e}")
                else:
                    return
        raise AssertionError("no slave could be promoted")


class Receiver:
    """Consumes both topics; ``got`` is what it received (id, body, queue, offset), ``seen`` the ids."""

    def __init__(self, network: Network, ip: str, *, nameserver: str) -> None:
        self.machine: Machine = network.machine("consumer", ip)
        self.process = self.machine.start("consumer")
        self.clock = LoopClock(network.loop)
        self.got: list[tuple[str, bytes, str, int]] = []
        self.seen: set[str] = set()
        self._network = network
        self._nameserver = nameserver
        self._consumer: PushConsumer
        self._closing = False

    async def run(self) -> None:
        """Receive until it is closed, which may come while the consumer still starts."""
        try:
            await self._receive()
        except ClientClosed:
            if not self._closing:
                raise

    async def _receive(self) -> None:
        self._consumer = PushConsumer(GROUP, list(TOPICS), namesrv=self._nameserver, consume_from="first", batch_max=8, clock=self.clock)
        await until_started(self._consumer)
        async with self._consumer as consumer:
            async for batch in consumer.batches():
                for message in batch:
                    identity = identity_of(message.body)
                    self.seen.add(identity)
                    queue = f"{message.topic}/{message.queue_id}"
                    self._network.trace.note(f"got {identity} {queue}/{message.queue_offset}")
                    self.got.append((identity, message.body, queue, message.queue_offset))

    async def close(self) -> None:
        self._closing = True
        await self._consumer.close()
