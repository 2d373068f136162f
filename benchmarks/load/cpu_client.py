"""Send or consume a number of messages and tell the processor time that took: the client process of ``benchmarks.load.cpu``.

One JSON command a line on standard input, one JSON answer a line on standard output; the argument is the address of the nameserver. Uses
only what clients of older trees have too, so that both trees of a comparison run the same load.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import resource
import sys
from typing import Any

import uvloop

from sprocketmq import AdminClient, Batching, Message, Producer, PushConsumer, SendResult

Command = dict[str, Any]

# One of so many ready bodies is sent after the other, so that no message repeats the one before.
BODIES = 1021
BODY_BYTES = 1024
MIXED_BYTES = (512, 1536)
TAGS = ("created", "paid", "shipped", "cancelled")
# Submitted messages between two turns of the event loop.
BURST = 256
# Submitted messages that are not answered yet.
IN_FLIGHT = 4096
TIMEOUT_S = 120.0

_groups = itertools.count(1)


class Load:
    """The messages of one topic: bodies of 1 KiB, or with ``mixed`` of 512 to 1,536 bytes with a tag and a key."""

    def __init__(self, topic: str, *, mixed: bool) -> None:
        self._topic = topic
        self._mixed = mixed
        lengths = random.Random(7)
        self._bodies = [os.urandom(lengths.randint(*MIXED_BYTES) if mixed else BODY_BYTES) for _ in range(BODIES)]

    def message(self, number: int) -> Message:
        body = self._bodies[number % BODIES]
        return Message(self._topic, body, TAGS[number % 4], f"order-{number}") if self._mixed else Message(self._topic, body)


async def submit(producer: Producer, load: Load, count: int) -> None:
    """Submit ``count`` messages with a callback, at most IN_FLIGHT unanswered. Raises the first error."""
    failed: list[BaseException] = []

    def answered(_: SendResult | None, error: BaseException | None) -> None:
        if error is not None:
            failed.append(error)

    number = 0
    message = load.message
    while number < count:
        room = min(IN_FLIGHT - producer.in_flight, BURST, count - number)
        if room <= 0:
            await producer.room()
            continue
        for _ in range(room):
            producer.submit(message(number), answered)
            number += 1
        await asyncio.sleep(0)
    await producer.flush()
    if failed:
        raise failed[0]


async def send(producer: Producer, load: Load, count: int, size: int, senders: int) -> None:
    """Send ``count`` messages from ``senders`` coroutines, each awaiting one message (``size`` 1) or batch after the other."""
    left = iter(range(0, count, size))

    async def sender() -> None:
        for start in left:
            if size == 1:
                await producer.send(load.message(start))
            else:
                await producer.send_batch([load.message(n) for n in range(start, min(start + size, count))])

    await asyncio.gather(*(sender() for _ in range(senders)))


async def consume(namesrv: str, topic: str, count: int) -> None:
    """Consume ``count`` messages from the first offset with a new push consumer, reading each body. Raises TimeoutError."""
    consumer = PushConsumer(
        f"cpu_consumer_{next(_groups)}",
        {topic: "*"},
        namesrv=namesrv,
        consume_from="first",
        batch_max=256,
        max_cached=2048,
        max_span=2048,
    )
    messages = size = 0
    async with asyncio.timeout(TIMEOUT_S), consumer:
        async for batch in consumer.batches():
            for message in batch:
                size += len(message.body)
            messages += len(batch)
            if messages >= count:
                batch.ack()
                break


class Client:
    """Carries out commands, with a producer of each kind made when it is first needed."""

    def __init__(self, namesrv: str, stack: contextlib.AsyncExitStack) -> None:
        self._namesrv = namesrv
        self._stack = stack
        self._producers: dict[bool, Producer] = {}
        self._loads: dict[tuple[str, bool], Load] = {}

    async def _producer(self, *, batching: bool) -> Producer:
        producer = self._producers.get(batching)
        if producer is None:
            how = Batching() if batching else None
            producer = Producer("cpu_producer", namesrv=self._namesrv, batching=how, max_in_flight=IN_FLIGHT)
            self._producers[batching] = await self._stack.enter_async_context(producer)
        return producer

    async def run(self, command: Command) -> Any:
        """Carry out one command and return the processor seconds that it took, user and kernel."""
        topic, op = command["topic"], command["op"]
        if op == "create":
            async with AdminClient(namesrv=self._namesrv) as admin:
                await admin.create_topic(topic, queues=command["queues"], attributes=command["attributes"])
            return None
        producer = await self._producer(batching=op == "submit")
        load = self._loads.setdefault((topic, command["mixed"]), Load(topic, mixed=command["mixed"]))
        before = resource.getrusage(resource.RUSAGE_SELF)
        if op == "submit":
            await submit(producer, load, command["count"])
        elif op == "send":
            await send(producer, load, command["count"], command["size"], command["senders"])
        else:
            await consume(self._namesrv, topic, command["count"])
        after = resource.getrusage(resource.RUSAGE_SELF)
        return [after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime]


async def main(namesrv: str) -> None:
    """Serve commands until standard input ends."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        client = Client(namesrv, stack)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            answer: dict[str, Any] = {}
            try:
                answer["value"] = await client.run(json.loads(line))
            except Exception as e:
                answer["error"] = f"{type(e).__name__}: {e}"
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
