"""A nameserver and a broker in a process of their own that tells its processor time, and what clients beside it send."""

import asyncio
import contextlib
import gc
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.load.rounds import BODY_BYTES, QUEUES
from benchmarks.load.stores import give_back
from sprocketmq import AdminClient, Message, Producer
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.server import Broker
from sprocketmq.errors import SendQueueFull
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.storage.config import StoreConfig


class ChildServers(NamedTuple):
    """The servers of one store, as their parent process sees them."""

    namesrv: str
    root: Path
    pipe: Pipe

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the servers have used."""
        self.pipe.send("time")
        seconds: float = self.pipe.recv()
        return seconds

    def rest(self, *, drop_page_cache: bool) -> None:
        """Collect garbage, and have the system forget the log's page cache, before a figure."""
        gc.collect()
        if drop_page_cache:
            give_back((self.root / "commitlog").iterdir())


@contextlib.contextmanager
def child_servers(root: Path, topic: str, **settings: Any) -> Iterator[ChildServers]:
    """Run the servers with a topic of that name; ``settings`` are the broker's."""
    pipe, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(root, theirs, settings))
    process.start()
    try:
        namesrv = pipe.recv()
        uvloop.run(_make_topic(namesrv, topic))
        yield ChildServers(namesrv, root, pipe)
        pipe.send(None)
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()


def _serve(root: Path, pipe: Pipe, settings: dict[str, Any]) -> None:
    uvloop.run(_run_servers(root, pipe, settings))


async def _run_servers(root: Path, pipe: Pipe, settings: dict[str, Any]) -> None:
    namesrv = NameServer(NameServerConfig(port=0))
    await namesrv.start()
    broker = Broker(BrokerConfig(store=StoreConfig(root=root), port=0, namesrv=(namesrv.address,), **settings))
    await broker.start()
    pipe.send(namesrv.address)
    while True:
        await asyncio.to_thread(pipe.poll, None)
        if pipe.recv() is None:
            break
        pipe.send(time.process_time())
    await broker.stop()
    await namesrv.stop()


async def _make_topic(namesrv: str, topic: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUES)


async def send_all(producer: Producer, topic: str, count: int) -> None:
    """Submit ``count`` messages and wait for their answers; raises the first error."""
    body = bytes(range(256)) * (BODY_BYTES // 256)

    def done(result: object, error: BaseException | None) -> None:
        if error is not None:
            raise error

    for _ in range(count):
        try:
            producer.submit(Message(topic, body), done)
        except SendQueueFull:
            await producer.room()
            producer.submit(Message(topic, body), done)
    await producer.flush()
