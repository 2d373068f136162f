"""The stream of log bytes: Apache's slave of our master, our slave of Apache's master; both logs equal byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.ours import UNHURRIED

from sprocketmq import Message, Producer
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.replication.follower import Follower, FollowerState, Master
from sprocketmq.broker.replication.master import ReplicationMaster
from sprocketmq.broker.replication.master_log import ask_master
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEGMENT_BYTES = 1 << 20
SETTINGS = apache.SMALL_STORE | {"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
CAUGHT_UP_S = 120.0  # Apache's slave asks a nameserver for its master every 30 s


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
async def our_master(store: Path, namesrv: str) -> AsyncIterator[tuple[Broker, ReplicationMaster]]:
    settings = StoreConfig(root=store, commitlog_segment_bytes=SEGMENT_BYTES, preallocate=False)
    names = {"broker_name": "broker-r", "cluster_name": "ReplicaCluster"}
    broker = Broker(BrokerConfig(store=settings, port=0, ha_port=0, namesrv=(namesrv,), **names, **UNHURRIED))
    await broker.start()
    assert broker.replication.master is not None
    try:
        yield broker, broker.replication.master
    finally:
        await broker.stop()


async def apache_slave(home: Path, namesrv: str) -> apache.ApacheBroker:
    settings = SETTINGS | {"brokerRole": "SLAVE", "brokerId": "1"}
    names = {"name": "broker-r", "cluster": "ReplicaCluster"}
    return await asyncio.to_thread(apache.ApacheBroker, home, namesrv, settings=settings, **names)


async def caught_up(master: ReplicationMaster, broker: Broker) -> int:
    """Wait until one slave has acknowledged the whole log, and return its end."""
    await eventually(lambda: master.slaves and master.replicated(1) >= broker.store.commitlog_max_offset, timeout_s=CAUGHT_UP_S)
    return broker.store.commitlog_max_offset


async def test_apaches_slave_follows_our_master_through_restarts_of_both(
    home: Path, own_namesrv: apache.ApacheNamesrv, request: pytest.FixtureRequest
) -> None:
    namesrv, ours, theirs = own_namesrv.address, home / "our-master", home / "apache-slave"
    async with our_master(ours, namesrv) as (broker, master):
        slave = await apache_slave(theirs, namesrv)
        request.addfinalizer(slave.kill)
        await eventually(lambda: master.slaves, timeout_s=CAUGHT_UP_S)  # a later one would get the last file only
        await send(namesrv, "Replicated", 2500)
        end = await caught_up(master, broker)
        assert end > 2 * SEGMENT_BYTES
        assert log_bytes(slave.store, 0, end) == log_bytes(ours, 0, end)
        await asyncio.to_thread(slave.stop)
        await send(namesrv, "Replicated", 1500)
        slave = await apache_slave(theirs, namesrv)
        request.addfinalizer(slave.kill)
        await send(namesrv, "Replicated", 200)
        end = await caught_up(master, broker)
        assert log_bytes(slave.store, 0, end) == log_bytes(ours, 0, end)
    async with our_master(ours, namesrv) as (broker, master):
        await send(namesrv, "Replicated", 1500)
        end = await caught_up(master, broker)
        assert log_bytes(slave.store, 0, end) == log_bytes(ours, 0, end)
        state = master.slaves[0]
        assert (state.behind_bytes, state.in_sync, state.acked) == (0, True, end)
    await asyncio.to_thread(slave.stop)


@contextlib.asynccontextmanager
async def our_slave(store: Path, master: apache.ApacheBroker) -> AsyncIterator[tuple[MessageStore, Follower]]:
    opened = MessageStore(StoreConfig(root=store, commitlog_segment_bytes=SEGMENT_BYTES, preallocate=False))
    opened.open()

    async def find() -> Master:
        return Master(f"127.0.0.1:{master.port + 1}", master.address)

    follower = Follower(opened, opened.follow(), find=find, ask=partial(ask_master, Outgoing(None, None)))
    follower.start()
    try:
        yield opened, follower
    finally:
        await follower.stop()
        opened.close()


async def copied(store: MessageStore, follower: Follower, java: apache.JavaClient, master: apache.ApacheBroker) -> int:
    """Wait until our slave has the whole log of Apache's master, and return its end."""
    ends: list[str] = []
    while not ends:  # the tool prints an error while a broker that was started again is not ready
        printed = await asyncio.to_thread(java.mqadmin, "brokerStatus", "-b", master.address)
        ends = [line.split(":")[1] for line in printed.splitlines() if line.startswith("commitLogMaxOffset")]
    end = int(ends[0])
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
