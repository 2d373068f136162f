"""Sends of every kind while brokers are killed, the network is cut, slow or silent, and users' callbacks throw.

Each send ends exactly once; what was acknowledged is in the store at the very queue and offset, with the very id, that its result says;
what failed for sure is not there; what may be stored is there or not; and the producers hold nothing in the end.

``SPROCKETMQ_FAULT_SENDS`` sets how many messages are sent (5,000 by default), ``SPROCKETMQ_FAULT_SEED`` repeats a run as far as a run with
processes can be repeated: the choices, not the moments.
"""

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from tests.inside import bytes_in_flight

from sprocketmq import AdminClient, Batching, Message, Producer, PullConsumer, sync
from sprocketmq.errors import BatchPartlySent, MaybeStoredError, SendQueueFull, SprocketError
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.message import MessageQueue, SendResult, SendStatus
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.testing import eventually
from sprocketmq.testing.proxy import FaultProxy
from sprocketmq.testing.serving import BrokerProcess

SENDS = int(os.environ.get("SPROCKETMQ_FAULT_SENDS", "5000"))
SEED = os.environ.get("SPROCKETMQ_FAULT_SEED") or str(random.randrange(1 << 32))
TOPICS = {"plain": {}, "lists": {"queue.type": "BatchCQ"}}
QUEUES = 2
SETTINGS = {"commitlog_segment_bytes": 64 << 20, "preallocate": False}
TIMEOUT_S = 1.0
# Messages of one round, which has one fault; a short run has 10 of them, a long one 23. Long runs have longer rounds, not only more of them.
ROUND = max(SENDS // 12, 1) if SENDS < 20_000 else max(1000, SENDS // 400)


class Node:
    """A server, and the bad network in front of it."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy

    async def cut(self, lasting_s: float) -> None:
        for _ in range(3):
            self.proxy.cut()
            await asyncio.sleep(lasting_s / 3)

    async def partition(self, lasting_s: float) -> None:
        self.proxy.partition()
        await asyncio.sleep(lasting_s)

    async def partition_and_cut(self, lasting_s: float) -> None:
        self.proxy.partition()
        await asyncio.sleep(lasting_s)
        self.proxy.cut()

    async def slow(self, lasting_s: float) -> None:
        self.proxy.delay_s = lasting_s / 2
        await asyncio.sleep(lasting_s)

    async def too_slow(self, lasting_s: float) -> None:
        """The broker gets every send and stores it; its answers come when nobody waits for them any more."""
        self.proxy.stall(to_server=False)
        await asyncio.sleep(TIMEOUT_S + lasting_s)

    async def refuse(self, lasting_s: float) -> None:
        self.proxy.refuse()
        await asyncio.sleep(lasting_s)

    @property
    def faults(self) -> list["Fault"]:
        return [self.cut, self.partition, self.partition_and_cut, self.slow, self.refuse]


class BrokerNode(Node):
    """A broker in a child process."""

    def __init__(self, broker: BrokerProcess, proxy: FaultProxy) -> None:
        super().__init__(proxy)
        self.broker = broker

    async def kill(self, lasting_s: float) -> None:
        await asyncio.to_thread(self.broker.kill)
        await asyncio.sleep(lasting_s)
        await asyncio.to_thread(self.broker.start)

    async def restart(self, lasting_s: float) -> None:
        await asyncio.to_thread(self.broker.stop)
        await asyncio.to_thread(self.broker.start)

    @property
    def faults(self) -> list["Fault"]:
        return [*super().faults, self.too_slow, self.kill, self.restart]


Fault = Callable[[float], Awaitable[None]]


@dataclass
class Cluster:
    """Two brokers and their nameserver. Clients reach it at ``address``, through bad networks; ``namesrv`` is always there."""

    namesrv: str
    names: Node
    nodes: list[BrokerNode]

    @property
    def address(self) -> str:
        return self.names.proxy.address

    def make_plan(self, rng: random.Random) -> list[tuple[list[Fault], float]]:
        """Every fault once, and of all brokers together for longer than a send may take; in any order. In a long run at every server."""
        faults = [fault for node in (self.names, *self.nodes) for fault in node.faults]
        if SENDS <= 5000:
            rng.shuffle(faults)
            faults = list({fault.__name__: fault for fault in faults}.values())
        plan = [([fault], rng.uniform(0.05, 0.4)) for fault in faults]
        plan += [([node.refuse for node in self.nodes], TIMEOUT_S * 1.2), ([node.cut for node in self.nodes], TIMEOUT_S * 1.2)]
        rng.shuffle(plan)
        return plan

    async def heal(self) -> None:
        for node in (self.names, *self.nodes):
            await node.proxy.heal()


class Books:
    """What became of every message, and what is in the store."""

    def __init__(self) -> None:
        self.numbers = 0
        self.ends: dict[int, int] = {}  # of this round's messages: how often each has ended
        self.stored: dict[int, SendResult] = {}  # acknowledged, and not found yet
        self.found: set[int] = set()
        self.refused: set[int] = set()
        self.unsure: set[int] = set()
        self.outcomes: Counter[str] = Counter()
        self.next: dict[MessageQueue, int] = {}
        self.copies = 0

    def message(self, rng: random.Random, topic: str, **fields: object) -> tuple[int, Message]:
        self.numbers = number = self.numbers + 1
        self.ends[number] = 0
        body = b"%b %d %b" % (SEED.encode(), number, bytes(rng.choice((0, 10, 300, 3000))))
        return number, Message(topic, body, keys=[str(number)] if rng.random() < 0.2 else (), **fields)

    def ended(self, number: int, result: SendResult | None, error: BaseException | None) -> None:
        assert number in self.ends, f"message {number} ended again after its round (seed {SEED})"
        self.ends[number] += 1
        if result is not None:
            assert result.status is SendStatus.SEND_OK
            self.stored[number] = result
            self.outcomes["stored"] += 1
            return
        self.outcomes[type(error).__name__] += 1
        if isinstance(error, MaybeStoredError | asyncio.CancelledError):
            self.unsure.add(number)
        elif isinstance(error, SprocketError):
            self.refused.add(number)
        else:
            raise AssertionError(f"message {number} failed with {error!r} (seed {SEED})")

    def end_round(self) -> None:
        wrong = {number: times for number, times in self.ends.items() if times != 1}
        assert not wrong, f"messages ended not once but so often: {dict(list(wrong.items())[:5])} (seed {SEED})"
        self.ends.clear()

    def check(self, message: ReceivedMessage) -> None:
        seed, number_text, _ = message.body.split(b" ", 2)
        assert seed.decode() == SEED
        number = int(number_text)
        assert number not in self.refused, f"message {number} was refused for sure, and is stored (seed {SEED})"
        result = self.stored.get(number)
        place = (message.topic, message.broker_name, message.queue_id, message.queue_offset)
        if result is not None and place == (result.topic, result.broker_name, result.queue_id, result.queue_offset):
            assert (message.msg_id, message.offset_msg_id) == (result.msg_id, result.offset_msg_id)
            del self.stored[number]
            self.found.add(number)
        else:
            # Stored by a try that was not answered, besides the one that was, or alone.
            self.copies += 1
            assert result is not None or number in self.unsure or number in self.found, f"nobody sent {number} (seed {SEED})"


async def read_to_the_end(books: Books, namesrv: str) -> None:
    """Read on in every queue until all that was acknowledged is found."""
    async with PullConsumer("checker", namesrv=namesrv) as consumer:

        async def all_found() -> bool:
            await read(books, consumer)
            return not books.stored

        missing = f"the messages that are missing, among them {list(books.stored)[:5]} (seed {SEED})"
        await eventually(all_found, timeout_s=60, what=missing)


async def read(books: Books, consumer: PullConsumer) -> None:
    """Read on in every queue, to its end."""
    for topic in TOPICS:
        for queue in await consumer.queues(topic):
            offset, end = books.next.get(queue, 0), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, max_messages=1024, max_bytes=4 << 20)
                offsets = [message.queue_offset for message in result.messages]
                assert offsets == list(range(offset, offset + len(offsets))), f"{queue} has gaps at {offset} (seed {SEED})"
                assert offsets, f"{queue} gives nothing at {offset} of {end} (seed {SEED})"
                for message in result.messages:
                    books.check(message)
                offset = result.next_offset
            books.next[queue] = offset


class Blocking:
    """The blocking producer for those who use it from a loop: what blocks runs in a thread."""

    def __init__(self, producer: sync.Producer) -> None:
        self.producer = producer
        self.inner = producer._client

    def submit(self, message: Message, callback: Callable[..., None]) -> None:
        self.producer.submit(message, callback)

    async def send(self, message: Message) -> SendResult:
        return await asyncio.to_thread(self.producer.send, message)

    async def send_batch(self, messages: list[Message]) -> Sequence[SendResult]:
        return await asyncio.to_thread(self.producer.send_batch, messages)

    async def room(self) -> None:
        await asyncio.to_thread(self.producer.room)

    async def flush(self) -> None:
        await asyncio.to_thread(self.producer.flush)

    async def close(self) -> None:
        await asyncio.to_thread(self.producer.close)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.producer.start)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Senders:
    """All ways to send, at once."""

    def __init__(self, books: Books, producers: list[Producer | Blocking], rng: random.Random) -> None:
        self.books = books
        self.producers = producers
        self.rng = rng
        self.first = asyncio.Event()
        self.thrown = 0
        self.loop = asyncio.get_running_loop()

    async def round(self, amount: int, lasting_s: float) -> None:
        ways = [self.submitted, self.submitted, self.awaited, self.batches]
        share = -(-amount // len(ways) // len(self.producers))
        await asyncio.gather(*(way(producer, share, lasting_s) for way in ways for producer in self.producers))

    async def pace(self, i: int, amount: int, lasting_s: float) -> None:
        """Have a way's sends last about as long as the fault does, in bursts."""
        if i % 8 == 7:
            await asyncio.sleep(lasting_s * 8 / amount)

    def topic(self) -> str:
        return self.rng.choice(list(TOPICS))

    def fields(self) -> dict[str, object]:
        return {"tag": self.rng.choice((None, "a")), "wait_store_ok": self.rng.random() < 0.9}

    def note(self, number: int, result: SendResult | None, error: BaseException | None) -> None:
        self.books.ended(number, result, error)
        self.first.set()

    async def submitted(self, producer: Producer | Blocking, amount: int, lasting_s: float) -> None:
        for i in range(amount):
            number, message = self.books.message(self.rng, self.topic(), **self.fields())
            callback = self.callback(number, threaded=isinstance(producer, Blocking))
            while True:
                try:
                    producer.submit(message, callback)
                    break
                except SendQueueFull:
                    await producer.room()
            await self.pace(i, amount, lasting_s)
        await producer.flush()

    def callback(self, number: int, *, threaded: bool) -> Callable[[SendResult | None, BaseException | None], None]:
        throws = self.rng.random() < 0.2
        self.thrown += throws

        def ended(result: SendResult | None, error: BaseException | None) -> None:
            if threaded:
                self.loop.call_soon_threadsafe(self.note, number, result, error)
            else:
                self.note(number, result, error)
            if throws:
                raise RuntimeError("a callback of the user's")

        return ended

    async def awaited(self, producer: Producer | Blocking, amount: int, lasting_s: float) -> None:
        tasks = []
        for i in range(amount):
            tasks.append(asyncio.ensure_future(self.one(producer)))
            if self.rng.random() < 0.05 and not isinstance(producer, Blocking):
                self.rng.choice(tasks[-12:-7] or tasks).cancel()
            await self.pace(i, amount, lasting_s)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def one(self, producer: Producer | Blocking) -> None:
        number, message = self.books.message(self.rng, self.topic(), **self.fields())
        try:
            result = await producer.send(message)
        except (SprocketError, asyncio.CancelledError) as e:
            self.note(number, None, e)
        else:
            self.note(number, result, None)

    async def batches(self, producer: Producer | Blocking, amount: int, lasting_s: float) -> None:
        tasks = []
        while amount > 0:
            count = self.rng.choice((1, 3, 20))
            tasks.append(asyncio.ensure_future(self.batch(producer, count)))
            await self.pace(7, amount, lasting_s * min(count, amount) / 8)
            amount -= count
        await asyncio.gather(*tasks)

    async def batch(self, producer: Producer | Blocking, count: int) -> None:
        topic, fields = self.topic(), self.fields()
        made = [self.books.message(self.rng, topic, **fields) for _ in range(count)]
        results: Sequence[SendResult] = []
        failure: BaseException | None = None
        try:
            results = await producer.send_batch([message for _, message in made])
        except BatchPartlySent as e:
            results, failure = e.stored, e
        except SprocketError as e:
            failure = e
        for i, (number, _) in enumerate(made):
            self.note(number, results[i] if i < len(results) else None, failure)


@asynccontextmanager
async def running_node(namesrv: str, root: Path, number: int) -> AsyncIterator[BrokerNode]:
    """A broker that can only be reached through a proxy: that is on another address of this machine, on the same port."""
    host = f"127.0.0.{number + 2}"
    with BrokerProcess(root / str(number), namesrv=namesrv, name=f"broker-{number}", advertise=host, **SETTINGS) as broker:
        address = await asyncio.to_thread(broker.start)
        async with FaultProxy(address, host=host, port=broker.port) as proxy:
            yield BrokerNode(broker, proxy)


@asynccontextmanager
async def running_cluster(root: Path) -> AsyncIterator[Cluster]:
    namesrv = NameServer(NameServerConfig(port=0))
    await namesrv.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(namesrv.stop)
        nodes = [await stack.enter_async_context(running_node(namesrv.address, root, i)) for i in range(2)]
        async with AdminClient(namesrv=namesrv.address) as admin:
            for topic, attributes in TOPICS.items():
                await admin.create_topic(topic, queues=QUEUES, attributes=attributes)
        proxy = await stack.enter_async_context(FaultProxy(namesrv.address))
        yield Cluster(namesrv.address, Node(proxy), nodes)


def make_producers(namesrv: str) -> list[Producer | Blocking]:
    gathering = Batching(max_bytes=8192, max_delay_ms=5)
    return [
        Producer("alone", namesrv=namesrv, timeout_s=TIMEOUT_S, latency_fault_tolerance=True),
        Producer("gathering", namesrv=namesrv, timeout_s=TIMEOUT_S, batching=gathering),
        Producer("adaptive", namesrv=namesrv, timeout_s=TIMEOUT_S, batching=Batching(adaptive=True), max_in_flight=500),
        Blocking(sync.Producer("blocking", namesrv=namesrv, timeout_s=TIMEOUT_S, batching=gathering)),
    ]


def assert_idle(producers: list[Producer | Blocking]) -> None:
    for producer in producers:
        blocking = isinstance(producer, Blocking)
        inner = producer.inner if blocking else producer
        held = [inner.in_flight, bytes_in_flight(inner), inner.batching_stats.held_bytes]
        if blocking:
            held += [producer.producer.in_flight, bytes_in_flight(producer.producer)]
        assert not any(held), f"producer {inner.group} still holds {held} (seed {SEED})"


@pytest.mark.timeout(0 if SENDS > 5000 else 600)
async def test_every_send_ends_once_and_as_it_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    print(f"SPROCKETMQ_FAULT_SEED={SEED}")
    caplog.set_level(logging.CRITICAL)  # faults are logged, thousands of them
    rng = random.Random(SEED)
    books = Books()
    async with running_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(producer) for producer in make_producers(cluster.address)]
        senders = Senders(books, producers, rng)
        plan = cluster.make_plan(rng)
        faults: Counter[str] = Counter()
        while plan or books.numbers < SENDS:
            if not plan:
                plan = cluster.make_plan(rng)
            together, lasting_s = plan.pop()
            senders.first.clear()
            sending = asyncio.create_task(senders.round(ROUND, lasting_s))
            await asyncio.wait_for(senders.first.wait(), 60)
            await asyncio.gather(*(fault(lasting_s) for fault in together))
            await cluster.heal()
            await sending
            assert_idle(producers)
            books.end_round()
            faults[together[0].__name__] += 1
            if faults.total() % 10 == 0:
                await read_to_the_end(books, cluster.namesrv)
        await read_to_the_end(books, cluster.namesrv)
        for producer in producers:
            await producer.close()
        assert_idle(producers)
    assert senders.thrown > SENDS // 50
    assert books.outcomes["stored"] > SENDS // 2
    assert books.refused, "no send failed for sure"
    assert books.unsure, "the outcome of no send was unknown"
    print(f"{books.numbers} sends: {dict(books.outcomes)}; {books.copies} copies of what was sent again; faults: {dict(faults)}")


@pytest.mark.parametrize("kind", ["slow", "silent"])
async def test_a_slow_or_silent_broker_is_left_alone_after_its_first_answer_that_is_late(tmp_path: Path, kind: str) -> None:
    async with running_cluster(tmp_path) as cluster:
        node = cluster.nodes[0]
        async with Producer("pg", namesrv=cluster.address, timeout_s=TIMEOUT_S, latency_fault_tolerance=True) as producer:
            for _ in range(2 * QUEUES):  # connect to both
                await producer.send(Message("plain", b"x"))
            if kind == "slow":
                node.proxy.delay_s = 0.3  # there and back more than 0.55 s
            else:
                node.proxy.partition()
            late = Counter()
            for _ in range(40):
                try:
                    late[(await producer.send(Message("plain", b"x"))).broker_name] += 1
                except MaybeStoredError as e:
                    late[e.address] += 1
            await node.proxy.heal()
        assert min(late.values()) < 10  # of 20, were it not left alone
