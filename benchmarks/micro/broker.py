"""What the broker costs without sockets: microseconds of processor time for one message. ``python -m benchmarks.micro.broker``.

A real broker with a real store gets ready-made frames through a connection whose transport throws the answers away; so frame
decoding, checks, staging, the write to the page cache and the answers are in, system calls of sockets are not.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from benchmarks.micro.sink import Sink
from benchmarks.report import spread, write_result
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.command import Command, encode_command, to_ext
from sprocketmq.protocol.headers import SendMessageV2
from sprocketmq.storage.store import StoreConfig

BODY = bytes(range(256)) * 4
QUEUES = 8
IN_FLIGHT = 64
IN_BATCH = 100
# As many messages of 1 KiB as a batch of AutoBatch has at most while the broker is behind.
IN_GROWN_BATCH = 240
ROUNDS = 5


def single(number: int) -> bytes:
    properties = f"UNIQ_KEY\x017F000001516DE40737036832F5A0{number:04X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    header = SendMessageV2(
        "pg", "bench", number % QUEUES, 1_700_000_000_000, properties=properties, reconsume_times=0, unit_mode=False, batch=False
    )
    return encode_command(Command(310, opaque=number, ext=to_ext(header), body=BODY))


def batch(number: int, topic: str = "bench", *, count: int = IN_BATCH, mixed: bool = False) -> bytes:
    """Return a send of a batch; ``mixed``: bodies of 512 to 1,536 bytes, and keys of several lengths."""
    messages = []
    for n in range(count):
        key = f"KEYS\x01order-{n * 37}\x02" if mixed else ""
        body = (BODY + BODY)[: 512 + (n * 389 + number * 57) % 1025] if mixed else BODY
        messages.append((0, body, f"{key}UNIQ_KEY\x017F000001516DE40737036832F5A0{n:04X}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode()))
    properties = "UNIQ_KEY\x017F000001516DE40737036832F5A0FFFF\x02WAIT\x01true\x02"
    header = SendMessageV2("pg", topic, number % QUEUES, 1_700_000_000_000, properties=properties, batch=True)
    return encode_command(Command(320, opaque=number, ext=to_ext(header), body=encode_batch(messages)))


def pull(number: int, count: int, topic: str = "bench") -> bytes:
    ext = {
        "consumerGroup": "cg",
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(number * count),
        "maxMsgNums": str(count),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    return encode_command(Command(11, opaque=number, ext=ext))


def feeder(conn: ServerConnection, stream: bytes) -> Callable[[], None]:
    """Return a function that gives the connection ``stream`` as a socket would, a buffer at a time."""
    view = memoryview(stream)

    def feed() -> None:
        pos = 0
        while pos < len(view):
            space = conn.get_buffer(0)
            count = min(len(space), len(view) - pos)
            space[:count] = view[pos : pos + count]
            conn.buffer_updated(count)
            pos += count

    return feed


async def measure(directory: Path) -> dict[str, Any]:
    broker = Broker(BrokerConfig(store=StoreConfig(root=directory), port=0, flush_interval_s=3600))
    await broker.start()
    broker.topics.create_internal("bench", QUEUES)
    broker.topics.create_internal("inner", QUEUES, attributes={"queue.type": "BatchCQ"})
    conn = ServerConnection(asyncio.get_running_loop(), broker._server)
    conn.connection_made(cast("asyncio.Transport", Sink(("127.0.0.1", 50_000))))
    work = (
        ("send_64_in_flight", b"".join(map(single, range(IN_FLIGHT))), IN_FLIGHT, 400),
        ("send_batch_of_100", b"".join(map(batch, range(4))), 4 * IN_BATCH, 60),
        ("send_inner_batch_of_100", b"".join(batch(n, "inner") for n in range(4)), 4 * IN_BATCH, 200),
        ("send_batch_of_240", b"".join(batch(n, count=IN_GROWN_BATCH) for n in range(4)), 4 * IN_GROWN_BATCH, 30),
        ("send_mixed_batch_of_240", b"".join(batch(n, count=IN_GROWN_BATCH, mixed=True) for n in range(4)), 4 * IN_GROWN_BATCH, 30),
        ("pull_32", b"".join(pull(n, 32) for n in range(16)), 16 * 32, 100),
        ("pull_4096", b"".join(pull(n, 2048) for n in range(1)), 2048, 100),
        ("pull_inner_4096", b"".join(pull(n, 2000, "inner") for n in range(1)), 2000, 100),
    )
    figures: dict[str, Any] = {}
    for name, stream, messages, repeats in work:
        feed = feeder(conn, stream)
        feed()
        rounds = []
        for _ in range(ROUNDS):
            began = time.process_time()
            for _ in range(repeats):
                feed()
            rounds.append((time.process_time() - began) / (repeats * messages) * 1e6)
            await asyncio.sleep(0)
        figures[name] = {"us_per_message": spread(rounds), "messages_per_s": round(1e6 / min(rounds))}
    conn.connection_lost(None)
    await broker.stop()
    return figures


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="sprocketmq-micro-", ignore_cleanup_errors=True) as directory:
        figures = asyncio.run(measure(Path(directory)))
    for name, one in figures.items():
        print(f"{name:24} {one['us_per_message']['min']:7.2f} us a message   {one['messages_per_s']:10,} messages/s of processor time")
    write_result("micro-broker", {"figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
