"""What the producer costs without sockets: microseconds of processor time for one message. ``python -m benchmarks.micro.client``.

A real producer sends through real connections whose transport throws the requests away; ready-made answers come back in the next turn
of the loop. So messages, checks, batching, encoding, frame headers, answers and results are in; system calls of sockets are not. What is
``signed`` has credentials: one signature for each request, over its fields and its body. ``sha1`` is the hash of the bodies alone.
"""

import asyncio
import gc
import hashlib
import sys
import time
from collections.abc import Awaitable, Callable
from typing import cast

import uvloop

from benchmarks.micro.sink import Sink
from benchmarks.report import spread, write_result
from sprocketmq import Batching, Credentials, Message, Producer, sync
from sprocketmq.client.loop_bound import OPEN
from sprocketmq.client.routes import read_route
from sprocketmq.errors import SendQueueFull
from sprocketmq.net.client import Connection
from sprocketmq.net.link import Buffers
from sprocketmq.net.login import Login
from sprocketmq.net.memory import keep_freed_memory
from sprocketmq.protocol.bodies import BrokerData, QueueData, TopicRoute
from sprocketmq.protocol.codes import FLAG_RESPONSE
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.protocol.frame import ReceiveBuffer
from sprocketmq.sync.faces import shared_thread

BODY = bytes(range(256)) * 4
MESSAGES = 60_000
ROUNDS = 5
TASKS = 256
ADDRESS = "127.0.0.1:10911"
CREDENTIALS = Credentials("alice", "a secret of thirty-two characters")
# What a batch of AutoBatch holds at most.
BATCH_BYTES = 32 << 10


class _Answering(Connection):
    """A connection that answers each request in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, login: Login | None) -> None:
        super().__init__(loop, ADDRESS, ReceiveBuffer(), expected="broker", login=login)
        self.connection_made(cast("asyncio.Transport", Sink(("127.0.0.1", 10_911))))
        self._asked: list[int] = []
        ext = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "123456"}
        head, _, tail = encode_command(Command(0, flag=FLAG_RESPONSE, opaque=1_000_000_000, ext=ext)).partition(b"1000000000")
        self._head, self._tail = head, tail
        self._opaque = 1_000_000_000  # ten digits, as in the template

    def write(self, head: bytes, body: Buffers = b"") -> None:
        super().write(head, body)
        if not self._asked:
            self._loop.call_soon(self._answer)
        self._asked.append(self._opaque)

    def _answer(self) -> None:
        asked, self._asked = self._asked, []
        stream = memoryview(b"".join([b"%b%d%b" % (self._head, opaque, self._tail) for opaque in asked]))
        while stream:
            space = self.get_buffer(0)
            count = min(len(space), len(stream))
            space[:count] = stream[:count]
            self.buffer_updated(count)
            stream = stream[count:]


async def connect(producer: Producer) -> None:
    """Open a producer without nameserver or broker."""
    loop = asyncio.get_running_loop()
    keep_freed_memory()
    producer._prepare("127.0.0.1")
    data = TopicRoute(broker_datas=[BrokerData("cluster", "broker-a", {0: ADDRESS})], queue_datas=[QueueData("broker-a", 8, 8, 6, 0)])
    producer._publishers.add(read_route("t", data))
    producer._instance.brokers._connections[ADDRESS] = _Answering(loop, producer._instance.brokers.login)
    producer._instance.state = OPEN


async def submit(producer: Producer) -> None:
    for _ in range(MESSAGES):
        try:
            producer.submit(Message("t", BODY))
        except SendQueueFull:
            await producer.room()
    await producer.flush()


async def submit_with_callbacks(producer: Producer) -> None:
    def done(result: object, error: object) -> None:
        pass

    for _ in range(MESSAGES):
        try:
            producer.submit(Message("t", BODY), done)
        except SendQueueFull:
            await producer.room()
    await producer.flush()


async def submit_tags_and_keys(producer: Producer) -> None:
    for i in range(MESSAGES):
        try:
            producer.submit(Message("t", BODY, tag="ab"[i & 1], keys=[f"order-{i}"], properties={"region": "eu"}))
        except SendQueueFull:
            await producer.room()
    await producer.flush()


async def submit_to_queues(producer: Producer) -> None:
    def done(result: object, error: object) -> None:
        pass

    queues = await producer.queues("t")
    keys = [f"flight-{i}" for i in range(1000)]
    for i in range(MESSAGES):
        try:
            producer.submit(Message("t", BODY, tag="ab"[i & 1], keys=(keys[i % 1000],), queue=queues[i & 7]), done)
        except SendQueueFull:
            await producer.room()
    await producer.flush()


async def send(producer: Producer) -> None:
    async def one() -> None:
        for _ in range(MESSAGES // TASKS):
            await producer.send(Message("t", BODY))

    await asyncio.gather(*(one() for _ in range(TASKS)))


async def send_batch(producer: Producer) -> None:
    for _ in range(MESSAGES // 100):
        await producer.send_batch([Message("t", BODY) for _ in range(100)])


WORK: tuple[tuple[str, Callable[[Producer], Awaitable[None]], bool, bool], ...] = (
    ("submit_auto_batch", submit, True, False),
    ("submit_auto_batch_signed", submit, True, True),
    ("submit_auto_batch_callbacks", submit_with_callbacks, True, False),
    ("submit_auto_batch_callbacks_signed", submit_with_callbacks, True, True),
    ("submit_auto_batch_tags_keys", submit_tags_and_keys, True, False),
    ("submit_auto_batch_tags_keys_signed", submit_tags_and_keys, True, True),
    ("submit_auto_batch_keys_queues", submit_to_queues, True, False),
    ("send_auto_batch_256_tasks", send, True, False),
    ("send_auto_batch_256_tasks_signed", send, True, True),
    ("submit_single", submit, False, False),
    ("submit_single_signed", submit, False, True),
    ("send_single_256_tasks", send, False, False),
    ("send_batch_of_100", send_batch, False, False),
)


def measure_sha1() -> list[float]:
    """Return the microseconds that SHA-1 takes for the bodies of a batch, a message: no signature can cost less."""
    body = BODY * (BATCH_BYTES // len(BODY))
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(MESSAGES * len(BODY) // len(body)):
            hashlib.sha1(body, usedforsecurity=False)
        rounds.append((time.process_time() - began) / MESSAGES * 1e6)
    return rounds


async def measure(work: Callable[[Producer], Awaitable[None]], batching: Batching | None, credentials: Credentials | None) -> list[float]:
    """Return microseconds of processor time a message, for each round."""
    producer = Producer("pg", namesrv=ADDRESS, batching=batching, credentials=credentials, tls=False)
    await connect(producer)
    await work(producer)
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        await work(producer)
        rounds.append((time.process_time() - began) / MESSAGES * 1e6)
    producer._instance.producer_groups.clear()  # there is nobody to unregister from
    await producer.close()
    return rounds


def measure_sync() -> list[float]:
    """Return the same for the blocking face, whose caller and loop are two threads of this process."""
    producer = sync.Producer("pg", namesrv=ADDRESS, batching=Batching())
    thread = shared_thread.acquire()
    producer._thread = thread
    thread.run(lambda: connect(producer._client))
    rounds = []
    for _ in range(ROUNDS + 1):
        gc.collect()
        began = time.process_time()
        for _ in range(MESSAGES):
            try:
                producer.submit(Message("t", BODY))
            except SendQueueFull:
                producer.room()
        producer.flush()
        rounds.append((time.process_time() - began) / MESSAGES * 1e6)
    producer._client._instance.producer_groups.clear()
    producer.close()
    return rounds[1:]


def main() -> int:
    figures = {
        name: uvloop.run(measure(work, Batching() if batching else None, CREDENTIALS if signed else None))
        for name, work, batching, signed in WORK
    }
    figures["sha1"] = measure_sha1()
    figures["sync_submit_auto_batch"] = measure_sync()
    for name, rounds in figures.items():
        print(f"{name:34} {min(rounds):7.2f} us a message   {1e6 / min(rounds):10,.0f} messages/s of processor time")
    write_result("micro-client", {"figures": {name: {"us_per_message": spread(rounds)} for name, rounds in figures.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
