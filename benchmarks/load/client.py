"""Put load on a broker with our client: one JSON command a line on standard input, one JSON answer a line on standard output.

Arguments: the address of the nameserver, and with TLS the file of the authority to trust. The counterpart of tests/interop/java/Load.java,
with the same arguments and answers.
"""

import asyncio
import contextlib
import itertools
import json
import os
import struct
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from benchmarks.load.cpu_client import Load
from sprocketmq import AdminClient, Batching, Message, Producer, PushConsumer, SendResult, TlsConfig, TraceConfig
from sprocketmq.omb.pacing import Alarm

Call = Callable[[], Awaitable[int]]
Command = dict[str, Any]

# Of so many submitted messages the latency of one is measured.
SAMPLE_EVERY = 64
# Such bursts in one turn of the loop.
BURSTS = 4
# When a message was due, in front of the body of those whose delivery is timed; and how long after the last send they may come.
DUE = struct.Struct(">d")
DELIVERY_PATIENCE_S = 10.0

# No other client of the same broker has these.
_groups = (f"{os.getpid()}_{number}" for number in itertools.count(1))


class Window:
    """The time in which things count, and what failed at any time. Latencies are seconds."""

    def __init__(self, command: Command) -> None:
        self.begin = time.perf_counter() + command["warm_s"]
        self.end = self.begin + command["measure_s"]
        self.measure_s = command["measure_s"]
        self.messages = 0
        self.latencies = array("d")
        self.errors = 0
        self.first_error: str | None = None

    def failed(self, error: BaseException) -> None:
        self.errors += 1
        self.first_error = self.first_error or f"{type(error).__name__}: {error}"

    def measured(self, began: tuple[float, int] | None, ended: tuple[float, int]) -> None:
        """Count what was answered between two looks at the clock and the number of answers, taken as the window began and ended."""
        if began is not None:
            self.measure_s = ended[0] - began[0]
            self.messages = ended[1] - began[1]

    def describe(self) -> dict[str, Any]:
        ordered = sorted(self.latencies)
        return {
            "messages": self.messages,
            "elapsed_s": self.measure_s,
            "calls": len(ordered),
            "p50_ms": quantile(ordered, 0.50) * 1000,
            "p99_ms": quantile(ordered, 0.99) * 1000,
            "p999_ms": quantile(ordered, 0.999) * 1000,
            "errors": self.errors,
            "first_error": self.first_error,
        }


def quantile(ordered: list[float], q: float) -> float:
    """Return the q-quantile of ordered values; 0 when there are none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


async def closed_loop(command: Command, call: Call) -> dict[str, Any]:
    """Repeat ``call`` from ``senders`` coroutines; count what completed in the ``measure_s`` seconds after ``warm_s`` of the same."""
    clock = time.perf_counter
    window = Window(command)
    begin, end = window.begin, window.end

    async def sender() -> None:
        before = clock()
        while before < end:
            try:
                count = await call()
            except Exception as e:
                window.failed(e)
                before = clock()
                continue
            after = clock()
            if begin <= after < end:
                window.messages += count
                window.latencies.append(after - before)
            before = after

    await asyncio.gather(*(sender() for _ in range(command["senders"])))
    return window.describe()


def messages(command: Command) -> Callable[[], Message]:
    """Return what makes the next message: bodies of one length, or with ``mixed`` of 512 to 1,536 bytes with a tag and a key."""
    topic = command["topic"]
    if not command.get("mixed"):
        body = b"x" * command["body_bytes"]
        return lambda: Message(topic, body)
    load, numbers = Load(topic, mixed=True), itertools.count()
    return lambda: load.message(next(numbers))


async def submit(command: Command, producer: Producer) -> dict[str, Any]:
    """Submit with a callback, at most ``in_flight`` messages unanswered."""
    clock = time.perf_counter
    window = Window(command)
    begin, end = window.begin, window.end
    topic, body, in_flight = command["topic"], b"x" * command["body_bytes"], command["in_flight"]
    messages = 0
    began: tuple[float, int] | None = None

    def answered(_: SendResult | None, error: BaseException | None) -> None:
        nonlocal messages
        if error is None:
            messages += 1
        else:
            window.failed(error)

    def sampled(before: float) -> Callable[[SendResult | None, BaseException | None], None]:
        def done(result: SendResult | None, error: BaseException | None) -> None:
            answered(result, error)
            if error is None and begin <= (now := clock()) < end:
                window.latencies.append(now - before)

        return done

    while (now := clock()) < end:
        if began is None and now >= begin:
            began = now, messages
        room = in_flight - producer.in_flight
        if room <= 0:
            await producer.room()
            continue
        for _ in range(min(BURSTS, -(-room // SAMPLE_EVERY))):
            producer.submit(Message(topic, body), sampled(clock()))
            for _ in range(min(SAMPLE_EVERY, in_flight - producer.in_flight) - 1):
                producer.submit(Message(topic, body), answered)
        await asyncio.sleep(0)
    window.measured(began, (now, messages))
    await producer.flush()
    return window.describe()


async def open_loop(command: Command, producer: Producer) -> dict[str, Any]:
    """Send at a fixed rate: message i is due at i / rate whatever became of those before, and its latency counts from then on.

    A send that has to wait for a slow one counts as slow as well (no coordinated omission); so does one that this loop begins late.
    """
    clock = time.perf_counter
    message, interval_s = messages(command), 1 / command["rate"]
    window = Window(command)
    started = clock()

    def answer_of(due: float) -> Callable[[SendResult | None, BaseException | None], None]:
        def done(_: SendResult | None, error: BaseException | None) -> None:
            if error is not None:
                window.failed(error)
            if due >= window.begin:
                window.messages += 1
                window.latencies.append(clock() - due)

        return done

    number = 0
    while (due := started + number * interval_s) < window.end:
        while due <= clock():
            producer.submit(message(), answer_of(due))
            number += 1
            due = started + number * interval_s
        await asyncio.sleep(max(0.0, min(due, window.end) - clock()))
    await producer.flush()
    return window.describe()


class Delivery:
    """A push consumer that stays from round to round; it takes the time that passed since a message was due."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._window: Window | None = None

    async def run(self) -> None:
        clock = time.perf_counter
        async for batch in self._consumer.batches():
            window, now = self._window, clock()
            for message in batch:
                (due,) = DUE.unpack_from(message.body)
                if window is not None and window.begin <= due < window.end:
                    window.messages += 1
                    window.latencies.append(now - due)

    async def measure(self, command: Command, producer: Producer) -> dict[str, Any]:
        """Send at a fixed rate and return the times from when a message was due until the consumer got it.

        What has not come 10 s after the last send counts as failed.
        """
        clock = time.perf_counter
        message, interval_s = messages(command), 1 / command["rate"]
        self._window = window = Window(command)
        alarm = Alarm()  # event loops wait whole milliseconds, one of which is the time between two messages
        started = clock()
        sent = number = 0

        def answered(_: SendResult | None, error: BaseException | None) -> None:
            if error is not None:
                window.failed(error)

        while (due := started + number * interval_s) < window.end:
            while due <= clock():
                one = message()
                one.body = DUE.pack(due) + one.body[DUE.size :]
                producer.submit(one, answered)
                sent += window.begin <= due < window.end
                number += 1
                due = started + number * interval_s
            await alarm.until(int(min(due, window.end) * 1e9))
        alarm.close()
        await producer.flush()
        patience = clock() + DELIVERY_PATIENCE_S
        while window.messages < sent - window.errors and clock() < patience:
            await asyncio.sleep(0.005)
        if window.messages < sent - window.errors:
            window.failed(TimeoutError(f"{window.messages} of {sent} messages were received"))
        return window.describe()


async def lone(command: Command, plain: Producer, adaptive: Producer) -> dict[str, Any]:
    """Send a message every ``spacing_s`` seconds, in turns without batching and with the adaptive mode; latencies in milliseconds."""
    topic, body = command["topic"], b"x" * command["body_bytes"]
    taken: dict[str, list[float]] = {"plain": [], "adaptive": []}
    for number in range(2 * command["count"]):
        name, producer = ("plain", plain) if number % 2 == 0 else ("adaptive", adaptive)
        await asyncio.sleep(command["spacing_s"])
        before = time.perf_counter()
        await producer.send(Message(topic, body))
        taken[name].append((time.perf_counter() - before) * 1000)
    return {name: sorted(values) for name, values in taken.items()}


async def consume(command: Command, tls: TlsConfig | None) -> dict[str, Any]:
    """Consume ``count`` messages from the first offset with a new push consumer, reading each body; counts from the first message on."""
    clock = time.perf_counter
    count, messages, size = command["count"], 0, 0
    started = clock()
    first = last = 0.0
    consumer = PushConsumer(
        f"load_consumer_{next(_groups)}",
        {command["topic"]: "*"},
        namesrv=command["namesrv"],
        tls=tls,
        consume_from="first",
        batch_max=command["batch_max"],
        max_cached=command["max_cached"],
        max_span=command["max_cached"],
    )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(command["timeout_s"]), consumer:
            async for batch in consumer.batches():
                first = first or clock()
                for message in batch:
                    size += len(message.body)
                messages += len(batch)
                if messages >= count:
                    last = clock()
                    batch.ack()
                    break
    return {
        "messages": messages,
        "bytes": size,
        "elapsed_s": last - first,
        "first_message_s": first - started,
        "errors": int(messages < count),
        "first_error": f"only {messages} messages came" if messages < count else None,
    }


async def fill(command: Command, producer: Producer) -> None:
    """Send ``count`` messages in explicit batches of ``batch``, four at a time."""
    topic, body, size = command["topic"], b"x" * command["body_bytes"], command["batch"]
    left = iter(range(0, command["count"], size))

    async def sender() -> None:
        for start in left:
            await producer.send_batch([Message(topic, body) for _ in range(min(size, command["count"] - start))])

    await asyncio.gather(*(sender() for _ in range(4)))


class Client:
    """Our clients against one cluster, made when they are first needed."""

    def __init__(self, namesrv: str, tls: TlsConfig | None, stack: contextlib.AsyncExitStack) -> None:
        self._namesrv = namesrv
        self._tls = tls
        self._stack = stack
        self._producers: dict[tuple[str, int, float], Producer] = {}
        self._deliveries: dict[str, Delivery] = {}

    async def producer(self, batching: str = "", in_flight: int = 10_000, traced: float = 0.0) -> Producer:
        """Return the producer without batching, with it (``"auto"``) or with its adaptive mode (``"adaptive"``).

        ``traced`` is the share of its messages that have traces.
        """
        producer = self._producers.get((batching, in_flight, traced))
        if producer is None:
            how = Batching(adaptive=batching == "adaptive") if batching else None
            trace = TraceConfig(sample=traced) if traced else False
            producer = Producer("load_producer", namesrv=self._namesrv, tls=self._tls, batching=how, max_in_flight=in_flight, trace=trace)
            self._producers[batching, in_flight, traced] = await self._stack.enter_async_context(producer)
        return producer

    async def delivery(self, topic: str) -> Delivery:
        """Return the consumer of ``topic`` whose deliveries are timed, running."""
        delivery = self._deliveries.get(topic)
        if delivery is None:
            consumer = PushConsumer(f"load_delivery_{next(_groups)}", {topic: "*"}, namesrv=self._namesrv, tls=self._tls)
            self._deliveries[topic] = delivery = Delivery(await self._stack.enter_async_context(consumer))
            running = asyncio.create_task(delivery.run())
            self._stack.callback(running.cancel)
        return delivery

    async def run(self, command: Command) -> Any:
        """Carry out one command."""
        topic = command["topic"]
        batching = "adaptive" if command.get("adaptive") else "auto" if command.get("auto_batch") else ""
        match command["op"]:
            case "create_topic":
                async with AdminClient(namesrv=self._namesrv, tls=self._tls) as admin:
                    await admin.create_topic(topic, queues=command["queues"], attributes=command["attributes"])
                return None
            case "load_single":
                message = messages(command)
                producer = await self.producer(batching)

                async def single() -> int:
                    await producer.send(message())
                    return 1

                return await closed_loop(command, single)
            case "load_batch":
                body = b"x" * command["body_bytes"]
                size = command["batch"]
                producer = await self.producer()

                async def batch() -> int:
                    await producer.send_batch([Message(topic, body) for _ in range(size)])
                    return int(size)

                return await closed_loop(command, batch)
            case "load_submit":
                return await submit(command, await self.producer(batching, command["in_flight"], command.get("traced", 0.0)))
            case "load_open":
                return await open_loop(command, await self.producer())
            case "load_delivery":
                return await (await self.delivery(topic)).measure(command, await self.producer())
            case "load_lone":
                return await lone(command, await self.producer(), await self.producer("adaptive"))
            case "load_consume":
                return await consume(command, self._tls)
            case "fill":
                return await fill(command, await self.producer())
            case other:
                raise ValueError(f"no such op: {other}")


async def main(namesrv: str, ca_file: str | None = None) -> None:
    """Serve commands until standard input ends."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        client = Client(namesrv, TlsConfig(ca_file=ca_file) if ca_file is not None else None, stack)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            answer: dict[str, Any] = {"id": command["id"]}
            try:
                answer["value"] = await client.run(command)
            except Exception as e:
                answer["error"] = f"{type(e).__name__}: {e}"
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
