"""The stream of log bytes: our slave of Apache's master, both logs equal byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.interop import apache

from sprocketmq import Message, Producer
from sprocketmq.broker.replication.follower import Follower, FollowerState, Master
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEGMENT_BYTES = 1 << 20
SETTINGS = apache.SMALL_STORE | {"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
CAUGHT_UP_S = 60.0


def log_bytes(store: Path, begin: int, end: int) -> bytes:
    """Return the bytes [begin, end) of the commit log in a store's directory."""
    found = []
    for start in range(begin - begin % SEGMENT_BYTES, end, SEGMENT_BYTES):
        data = (store / "commitlog" / f"{start:020d}").read_bytes()
        found.append(data[max(0, begin - start) : end - start])
    return b"".join(found)


async def send(namesrv: str, topic: str, count: int) -> None:
    """Send messages of about a kilobyte, some in batches, through several files of the log."""
    async with Producer("replicated", namesrv=namesrv) as producer:
        for number in range(count // 20):
            bodies = [b"%04d-%02d " % (number, n) * 100 for n in range(20)]
            await producer.send_batch([Message(topic, body, keys=[f"k{number}"]) for body in bodies[:10]])
            await asyncio.gather(*(producer.send(Message(topic, body, tag="t")) for body in bodies[10:]))


@contextlib.asynccontextmanager
async def our_slave(store: Path, master: apache.ApacheBroker) -> AsyncIterator[tuple[MessageStore, Follower]]:
    opened = MessageStore(StoreConfig(root=store, commitlog_segment_bytes=SEGMENT_BYTES, preallocate=False))
    opened.open()

    async def find() -> Master:
        return Master(f"127.0.0.1:{master.port + 1}", master.address)

    follower = Follower(opened, opened.follow(), find=find)
    follower.start()
    try:
        yield opened, follower
    finally:
        await follower.stop()
        opened.close()


async def copied(store: MessageStore, follower: Follower, java: apache.JavaClient, master: apache.ApacheBroker) -> int:
    """Wait until our slave has the whole log of Apache's master, and return its end."""
    printed = await asyncio.to_thread(java.mqadmin, "brokerStatus", "-b", master.address)
    end = int(next(line.split(":")[1] for line in printed.splitlines() if line.startswith("commitLogMaxOffset")))
    await eventually(lambda: store.commitlog_max_offset >= end, timeout_s=CAUGHT_UP_S)
    assert store.commitlog_max_offset == end
    assert follower.state is FollowerState.FOLLOWING
    return end


async def test_our_slave_copies_the_whole_log_of_apaches_master_and_follows_through_restarts_of_both(
    home: Path, own_namesrv: apache.ApacheNamesrv, java: apache.JavaClient, request: pytest.FixtureRequest
) -> None:
    namesrv, ours, theirs = own_namesrv.address, home / "our-slave", home / "apache-master"
    names = {"name": "broker-m", "cluster": "ReplicaCluster", "port": apache.broker_port()}
    master = await asyncio.to_thread(apache.ApacheBroker, theirs, namesrv, settings=SETTINGS, **names)
    request.addfinalizer(master.kill)
    await send(namesrv, "Followed", 2500)
    async with our_slave(ours, master) as (store, follower):
        end = await copied(store, follower, java, master)
        assert end > 2 * SEGMENT_BYTES
        assert log_bytes(ours, 0, end) == log_bytes(master.store, 0, end)
        await send(namesrv, "Followed", 500)
        await copied(store, follower, java, master)
    await send(namesrv, "Followed", 500)
    async with our_slave(ours, master) as (store, follower):
        await copied(store, follower, java, master)
        await asyncio.to_thread(master.stop)
        await eventually(lambda: follower.state is FollowerState.CONNECTING)
        master = await asyncio.to_thread(apache.ApacheBroker, theirs, namesrv, settings=SETTINGS, **names)
        request.addfinalizer(master.kill)
        await send(namesrv, "Followed", 500)
        end = await copied(store, follower, java, master)
        assert log_bytes(ours, 0, end) == log_bytes(master.store, 0, end)
        await eventually(lambda: follower.behind_bytes == 0)
