"""A broker of ours with SYNC_FLUSH: Apache's Java client is told what SYNC_FLUSH means, and nothing it was told is lost."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.interop.apache import JavaClient
from tests.interop.compare import variety
from tests.interop.ours import OurProcess
from tests.interop.reading import java_pull_all

from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.storage.fs import RealFile, RealFileSystem
from sprocketmq.storage.store import StoreConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


class SlowFile(RealFile):
    """A file on a disk that takes its time."""

    def fdatasync(self) -> None:
        time.sleep(1.0)
        super().fdatasync()


class SlowDisk(RealFileSystem):
    """The machine's files; the commit log is slow to reach the disk."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        if "/commitlog/" not in path:
            return super().open(path, create=create, read_only=read_only)  # type: ignore[return-value]
        return SlowFile(path, os.open(path, os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0), 0o644))


def serve(directory: Path) -> OurProcess:
    """Run nameserver and broker with SYNC_FLUSH."""
    where = ("--namesrv-port", "0", "--port", "0", "--store", str(directory / "store"))
    return OurProcess(directory, "serve", *where, "--set", "flush_disk_type=SYNC_FLUSH")


def test_sends_are_ok_and_survive_the_brokers_sudden_end(java: JavaClient, home: Path) -> None:
    topic = "SyncFlushed"
    with serve(home / "sync") as cluster:
        sent = [result["msg_id"] for result in java.send(cluster.namesrv, variety(topic))]
        batch = java.send_batch(cluster.namesrv, variety(topic))
        unwaited = java.send(cluster.namesrv, [{**described, "wait_store_ok": False} for described in variety(topic)])
        assert batch["status"] == "SEND_OK"
        assert {result["status"] for result in unwaited} == {"SEND_OK"}
        sent += [*batch["msg_id"].split(","), *(result["msg_id"] for result in unwaited)]
        assert len(java.consume(cluster.namesrv, "sync_group", topic, len(sent))) == len(sent)
        before = java_pull_all(java, cluster.namesrv, topic)
        cluster.kill()
    assert sorted(view["msg_id"] for view in before) == sorted(sent)
    with serve(home / "sync") as again:
        assert java_pull_all(java, again.namesrv, topic) == before


async def test_a_disk_that_takes_too_long_is_told_and_waiting_can_be_declined(java: JavaClient, home: Path) -> None:
    nameserver = NameServer(NameServerConfig("127.0.0.1", 0))
    await nameserver.start()
    store = StoreConfig(home / "slow" / "store", flush_disk_type="SYNC_FLUSH")
    config = BrokerConfig(store=store, broker_name="slow", port=0, namesrv=(nameserver.address,), sync_flush_timeout_s=0.3)
    broker = Broker(config, fs=SlowDisk())
    await broker.start()
    try:
        plain = {"topic": "SlowlyFlushed", "body": b"x"}
        (waited,) = await asyncio.to_thread(java.send, nameserver.address, [plain])
        assert waited["status"] == "FLUSH_DISK_TIMEOUT"
        (declined,) = await asyncio.to_thread(java.send, nameserver.address, [{**plain, "wait_store_ok": False}])
        assert declined["status"] == "SEND_OK"
        batch = await asyncio.to_thread(java.send_batch, nameserver.address, [plain, plain])
        assert batch["status"] == "FLUSH_DISK_TIMEOUT"
        # They are stored all the same, and seen as soon as the disk has them.
        received = await asyncio.to_thread(java.consume, nameserver.address, "slow_group", "SlowlyFlushed", 4)
        assert {message["msg_id"] for message in received} == {waited["msg_id"], declined["msg_id"], *batch["msg_id"].split(",")}
    finally:
        await broker.stop()
        await nameserver.stop()
