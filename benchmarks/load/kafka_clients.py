"""One side of `load.kafka`: runs work with one client and prints its figures; arguments are the side and a JSON command.

Sides: `ours`, `confluent` and `aiokafka`. Each figure has the rate and the CPU time of this process (user and kernel) for a message.
"""

import asyncio
import inspect
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

Command = dict[str, Any]

# Sends between two turns of the loop, as in the OMB harness.
BURST = 64
AWAITED = 256
LINGER_MS = 10
BATCH_BYTES = 32 * 1024
CONSUME_TIMEOUT_S = 60.0
POOL = 1024


def bodies(command: Command) -> list[bytes]:
    """Return the bodies that messages take in turns: all alike, or of mixed sizes."""
    chance = random.Random(18)
    if command["mixed"]:
        return [os.urandom(chance.randint(512, 1536)) for _ in range(POOL)]
    return [b"x" * 1024]


class Window:
    """Counts what is answered in the ``measure_s`` seconds after ``warm_s``, and CPU time in them."""

    def __init__(self, command: Command) -> None:
        self._warm_end = time.perf_counter() + command["warm_s"]
        self._end = self._warm_end + command["measure_s"]
        self._began: tuple[float, float, int] | None = None
        self.answered = 0
        self.failed = 0
        self.first_error: str | None = None

    def note(self, error: object) -> None:
        if error is None:
            self.answered += 1
        else:
            self.failed += 1
            self.first_error = self.first_error or str(error)

    def running(self) -> bool:
        """Return whether to go on; to be called often."""
        now = time.perf_counter()
        if self._began is None and now >= self._warm_end:
            self._began = now, time.process_time(), self.answered
            print("begin", flush=True)
        if now < self._end:
            return True
        assert self._began is not None
        print("end", flush=True)
        then, cpu, before = self._began
        self.figures = figures(self.answered - before, now - then, time.process_time() - cpu) | {
            "errors": self.failed,
            "first_error": self.first_error,
        }
        return False


def figures(messages: int, elapsed_s: float, cpu_s: float) -> dict[str, Any]:
    """Return the figures of a window."""
    return {"messages": messages, "messages_per_s": messages / elapsed_s, "client_us": cpu_s / max(1, messages) * 1e6}


# --- ours ---


def our_batching(command: Command) -> Any:
    from sprocketmq import Batching

    return Batching(command.get("batch_bytes") or None, LINGER_MS)


async def our_submit(command: Command) -> dict[str, Any]:
    """Submit through AutoBatch, at most 10,000 unanswered."""
    from sprocketmq import Message, Producer, SendResult

    topic, pool, window = command["topic"], itertools.cycle(bodies(command)), Window(command)

    def done(_: SendResult | None, error: BaseException | None) -> None:
        if error is None:
            window.answered += 1
        else:
            window.note(error)

    async with Producer("kafka_rival", namesrv=command["address"], batching=our_batching(command)) as producer:
        while window.running():
            room = command["in_flight"] - producer.in_flight
            if room <= 0:
                await producer.room()
                continue
            for _ in range(min(BURST, room)):
                producer.submit(Message(topic, next(pool)), done)
            await asyncio.sleep(0)
        await producer.flush()
    return window.figures


async def our_awaited(command: Command) -> dict[str, Any]:
    """Send from 256 tasks through AutoBatch, each awaiting its message."""
    from sprocketmq import Message, Producer

    topic, pool = command["topic"], itertools.cycle(bodies(command))
    async with Producer("kafka_rival", namesrv=command["address"], batching=our_batching(command)) as producer:
        return await awaited(Window(command), lambda: producer.send(Message(topic, next(pool))))


async def awaited(window: Window, send: Callable[[], Awaitable[object]]) -> dict[str, Any]:
    """Send from 256 tasks, each awaiting its message."""
    going = True

    async def sender() -> None:
        while going:
            try:
                await send()
            except Exception as e:
                window.note(e)
            else:
                window.answered += 1

    tasks = [asyncio.ensure_future(sender()) for _ in range(AWAITED)]
    while window.running():
        await asyncio.sleep(0.005)
    going = False
    await asyncio.gather(*tasks)
    return window.figures


class Drain:
    """Counts a consumer's messages; the rate begins with the first ones."""

    def __init__(self, command: Command) -> None:
        self._count = command["count"]
        self._begun: tuple[float, float] | None = None
        self._uncounted = 0
        self.messages = 0
        self.size = 0

    def took(self, messages: int, size: int) -> bool:
        """Note a batch; return whether there are more to come."""
        if self._begun is None:
            print("begin", flush=True)
            self._begun = time.perf_counter(), time.process_time()
            self._uncounted = messages
        self.messages += messages
        self.size += size
        if self.messages < self._count:
            return True
        print("end", flush=True)
        then, cpu = self._begun
        counted = self.messages - self._uncounted
        self.figures = figures(counted, time.perf_counter() - then, time.process_time() - cpu) | {"errors": 0, "first_error": None}
        return False


async def our_consume(command: Command) -> dict[str, Any]:
    """Consume from the first message with a new push consumer, reading each body."""
    from sprocketmq import PushConsumer

    drain = Drain(command)
    consumer = PushConsumer(
        f"kafka_rival_{time.time_ns()}",
        {command["topic"]: "*"},
        namesrv=command["address"],
        consume_from="first",
        batch_max=1000,
        max_cached=4000,
        max_span=4000,
    )
    async with asyncio.timeout(CONSUME_TIMEOUT_S), consumer:
        async for batch in consumer.batches():
            size = 0
            for message in batch:
                size += len(message.body)
            more = drain.took(len(batch), size)
            batch.ack()
            if not more:
                break
    return drain.figures


async def our_fill(command: Command) -> dict[str, Any]:
    """Create the topic and send ``count`` messages by AutoBatch."""
    from sprocketmq import AdminClient, Batching, Message, Producer

    attributes = {"queue.type": "BatchCQ"} if command["batch_queues"] else {}
    async with AdminClient(namesrv=command["address"]) as admin:
        await admin.create_topic(command["topic"], queues=command["partitions"], attributes=attributes)
    pool = itertools.cycle(bodies(command))
    async with Producer("kafka_rival", namesrv=command["address"], batching=Batching(max_delay_ms=LINGER_MS)) as producer:
        left = command["count"]
        while left:
            burst = min(BURST, left, command["in_flight"] - producer.in_flight)
            if burst <= 0:
                await producer.room()
                continue
            for _ in range(burst):
                producer.submit(Message(command["topic"], next(pool)))
            left -= burst
            await asyncio.sleep(0)
        await producer.flush()
    return {}


# --- confluent-kafka ---


def confluent_settings(command: Command) -> dict[str, Any]:
    """Return a producer's settings: the library's defaults, or batches of a given size that wait for 10 ms."""
    settings: dict[str, Any] = {"bootstrap.servers": command["address"]}
    if batch_bytes := command.get("batch_bytes"):
        settings |= {"linger.ms": LINGER_MS, "batch.size": batch_bytes, "batch.num.messages": 10_000}
    return settings


def confluent_submit(command: Command) -> dict[str, Any]:
    """Produce with a callback for each message, at most 10,000 unanswered."""
    from confluent_kafka import Producer

    topic, pool, window = command["topic"], itertools.cycle(bodies(command)), Window(command)
    producer = Producer(confluent_settings(command))

    def done(error: object, _: object) -> None:
        if error is None:
            window.answered += 1
        else:
            window.note(error)

    in_flight = command["in_flight"]
    while window.running():
        room = in_flight - len(producer)
        if room <= 0:
            producer.poll(0.01)
            continue
        for _ in range(min(BURST, room)):
            producer.produce(topic, next(pool), on_delivery=done)
        producer.poll(0)
    producer.flush()
    return window.figures


def confluent_consume(command: Command) -> dict[str, Any]:
    """Consume from the first message in batches of 1,000, reading each body."""
    from confluent_kafka import Consumer

    drain = Drain(command)
    settings = {"bootstrap.servers": command["address"], "group.id": f"rival-{time.time_ns()}", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([command["topic"]])
    deadline = time.monotonic() + CONSUME_TIMEOUT_S
    while True:
        batch = consumer.consume(1000, 0.1)
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {drain.messages:,} messages came in {CONSUME_TIMEOUT_S:.0f} s")
        if not batch:
            continue
        size = 0
        for message in batch:
            size += len(message.value())
        if not drain.took(len(batch), size):
            break
    consumer.close()
    return drain.figures


def confluent_fill(command: Command) -> dict[str, Any]:
    """Create the topic and produce ``count`` messages in batches of some 32 KiB, as ours has them."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    new = NewTopic(command["topic"], command["partitions"], 1)
    admin = AdminClient({"bootstrap.servers": command["address"]})
    for future in admin.create_topics([new]).values():
        future.result()
    settings = {"bootstrap.servers": command["address"], "linger.ms": LINGER_MS, "batch.size": BATCH_BYTES}
    producer, pool = Producer(settings), itertools.cycle(bodies(command))
    for number in range(command["count"]):
        while len(producer) > command["in_flight"]:
            producer.poll(0.01)
        producer.produce(command["topic"], next(pool))
        if number % BURST == 0:
            producer.poll(0)
    producer.flush()
    return {}


def confluent_drop(command: Command) -> dict[str, Any]:
    """Delete topics with their messages."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": command["address"]})
    for future in admin.delete_topics(command["topics"]).values():
        future.result()
    return {}


# --- aiokafka ---


def aio_producer(command: Command) -> Any:
    from aiokafka import AIOKafkaProducer

    return AIOKafkaProducer(bootstrap_servers=command["address"], linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES)


async def aio_submit(command: Command) -> dict[str, Any]:
    """Send without awaiting the answers, at most 10,000 unanswered."""
    topic, pool, window = command["topic"], itertools.cycle(bodies(command)), Window(command)
    in_flight, sent = command["in_flight"], 0
    room = asyncio.Event()

    def done(future: asyncio.Future[Any]) -> None:
        window.note(future.exception())
        room.set()

    async with aio_producer(command) as producer:
        while window.running():
            if sent - window.answered - window.failed >= in_flight:
                room.clear()
                await room.wait()
                continue
            for _ in range(BURST):
                (await producer.send(topic, next(pool))).add_done_callback(done)
            sent += BURST
            await asyncio.sleep(0)
        await producer.flush()
    return window.figures


async def aio_awaited(command: Command) -> dict[str, Any]:
    """Send from 256 tasks, each awaiting its message."""
    topic, pool = command["topic"], itertools.cycle(bodies(command))
    async with aio_producer(command) as producer:
        return await awaited(Window(command), lambda: producer.send_and_wait(topic, next(pool)))


async def aio_consume(command: Command) -> dict[str, Any]:
    """Consume from the first message by `getmany`, reading each body."""
    from aiokafka import AIOKafkaConsumer

    drain = Drain(command)
    consumer = AIOKafkaConsumer(
        command["topic"], bootstrap_servers=command["address"], group_id=f"rival-{time.time_ns()}", auto_offset_reset="earliest"
    )
    async with asyncio.timeout(CONSUME_TIMEOUT_S), consumer:
        more = True
        while more:
            count = size = 0
            for messages in (await consumer.getmany(timeout_ms=100, max_records=1000)).values():
                for message in messages:
                    size += len(message.value)
                count += len(messages)
            more = not count or drain.took(count, size)
    return drain.figures


WORK: dict[tuple[str, str], Callable[[Command], Any]] = {
    ("ours", "submit"): our_submit,
    ("ours", "awaited"): our_awaited,
    ("ours", "consume"): our_consume,
    ("ours", "fill"): our_fill,
    ("confluent", "submit"): confluent_submit,
    ("confluent", "consume"): confluent_consume,
    ("confluent", "fill"): confluent_fill,
    ("confluent", "drop"): confluent_drop,
    ("aiokafka", "submit"): aio_submit,
    ("aiokafka", "awaited"): aio_awaited,
    ("aiokafka", "consume"): aio_consume,
}


def main(side: str, text: str) -> None:
    """Run one command and print its figures after the lines `begin` and `end`, which say when CPU time counts."""
    command = json.loads(text)
    work = WORK[side, command["op"]]
    found = uvloop.run(work(command)) if inspect.iscoroutinefunction(work) else work(command)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
