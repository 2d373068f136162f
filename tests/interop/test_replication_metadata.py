"""Slaves of the other kind: what Apache's slave copies from our master, and ours from Apache's, besides the log."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop import apache
from tests.interop.ours import UNHURRIED
from tests.interop.replicating import saved

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.broker.replication.follower import FollowerState
from sprocketmq.broker.replication.roles import Role
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.net.client import ConnectionPool
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

SEGMENT_BYTES = int(apache.SMALL_STORE["mappedFileSizeCommitLog"])
CLUSTER = "ApacheCluster"
GROUP = "replicated_group"
# Apache's slave copies for the first time a minute after its start.
FIRST_COPY_S = 120.0


@pytest.fixture
async def namesrv() -> AsyncIterator[NameServer]:
    """Our nameserver, in this process."""
    server = NameServer(NameServerConfig(port=0))
    await server.start()
    yield server
    await server.stop()


def our_broker(root: Path, namesrv: NameServer, name: str, **settings: Any) -> Broker:
    """Return a broker of ours that is not started; delays and small files as Apache's have here."""
    store = StoreConfig(root, commitlog_segment_bytes=SEGMENT_BYTES, preallocate=False)
    return Broker(BrokerConfig(store=store, cluster_name=CLUSTER, broker_name=name, namesrv=(namesrv.address,), **(UNHURRIED | settings)))


async def fill(namesrv: str, topic: str) -> None:
    """Send plain and delayed messages, make a group, and commit an offset of it."""
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=2, cluster=CLUSTER)
        await admin.create_group(GROUP, cluster=CLUSTER)
    async with Producer("replication_producer", namesrv=namesrv) as producer:
        for i in range(50):
            await producer.send(Message(topic, b"%d" % i))
        await producer.send(Message(topic, b"later", delay_level=1))


async def commit(address: str, topic: str, offset: int) -> None:
    pool = ConnectionPool(expected="broker")
    try:
        conn = await pool.get(address)
        ext = {"consumerGroup": GROUP, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
        assert (await conn.request(15, ext=ext)).code == 0
    finally:
        await pool.close()


def log_of(store: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))[:end]


async def test_apaches_slave_copies_log_and_tables_from_our_master(home: Path, namesrv: NameServer) -> None:
    """Its log tells of no error."""
    root = home / "master-of-apaches"
    port = apache.broker_port()
    master = our_broker(root / "ours", namesrv, "mixed-a", port=port, ha_port=0, fast_port_enable=True)
    await master.start()
    slave = None
    try:
        settings = apache.SMALL_STORE | {"brokerRole": "SLAVE", "brokerId": "1"}
        slave = await asyncio.to_thread(
            apache.ApacheBroker, root / "apaches", namesrv.address, name="mixed-a", cluster=CLUSTER, settings=settings
        )
        await eventually(lambda: master.replication.slaves, what="a connection of Apache's slave", timeout_s=60)
        await fill(namesrv.address, "FromOurs")
        await commit(master.address, "FromOurs", 7)
        await eventually(lambda: master.delays.delivered == 1, what="the delayed message", timeout_s=30)
        master.delays.progress.finish()
        end = master.store.commitlog_max_offset
        await eventually(lambda: master.replication.slaves[0].acked == end, what="all of the log at Apache's slave", timeout_s=30)
        assert log_of(slave.store, end) == log_of(root / "ours", end)

        def copied() -> bool:
            assert slave is not None
            offsets = saved(slave.store, "consumerOffset").get("offsetTable", {}).get(f"FromOurs@{GROUP}", {})
            delays = saved(slave.store, "delayOffset").get("offsetTable", {})
            return {str(k): v for k, v in offsets.items()} == {"0": 7} and {str(k): v for k, v in delays.items()} == {"1": 1}

        await eventually(copied, what="the offsets at Apache's slave", timeout_s=FIRST_COPY_S)
        assert "FromOurs" in saved(slave.store, "topics")["topicConfigTable"]
        groups = "subscriptionGroup"
        await eventually(
            lambda: GROUP in saved(slave.store, groups).get("subscriptionGroupTable", {}), what="the group at Apache's slave", timeout_s=60
        )
        await asyncio.sleep(4)  # for a round of the timer's checkpoint
        lines = (root / "apaches" / "logs" / "rocketmqlogs" / "broker.log").read_text().splitlines()
        assert [line for line in lines if " ERROR " in line] == []
        copied_tables = {match[1] for line in lines if (match := re.search(r"Update slave (.+) from master", line))}
        assert copied_tables == {
            "topic config",
            "consumer offset",
            "delay offset",
            "Subscription Group",
            "Message Request Mode",
        }
    finally:
        if slave is not None:
            slave.kill()
        await master.stop()


async def test_our_slave_copies_log_and_tables_from_apaches_master(home: Path, namesrv: NameServer) -> None:
    root = home / "slave-of-apaches"
    master = await asyncio.to_thread(apache.ApacheBroker, root / "apaches", namesrv.address, name="mixed-b", cluster=CLUSTER)
    slave = our_broker(root / "ours", namesrv, "mixed-b", port=0, role=Role.SLAVE, broker_id=1)
    try:
        await fill(namesrv.address, "FromApaches")
        await commit(master.address, "FromApaches", 7)
        await slave.start()
        follower = slave.replication.follower
        assert follower is not None
        await eventually(lambda: follower.state is FollowerState.FOLLOWING, what="our slave follows", timeout_s=30)
        await eventually(
            lambda: slave.store.max_offset("FromApaches", 0) + slave.store.max_offset("FromApaches", 1) == 51,
            what="all messages at our slave",
            timeout_s=30,
        )
        await eventually(lambda: slave.offsets.get(GROUP, "FromApaches", 0) == 7, what="the group's offset at our slave", timeout_s=30)
        await eventually(lambda: not follower.behind_bytes, what="the end of the log", timeout_s=30)
        end = slave.store.commitlog_max_offset
        assert log_of(root / "ours", end) == log_of(master.store, end)
        assert GROUP in slave.groups
        assert slave.topics.get("FromApaches").read_queues == 2  # type: ignore[union-attr]
        await eventually(
            lambda: slave.delays.progress.snapshot().get("offsetTable", {}).get(1) == 1,
            what="the progress of delayed messages",
            timeout_s=40,
        )
        conn_pool = ConnectionPool(expected="broker")
        status = json.loads((await (await conn_pool.get(master.address)).request(907)).body)
        await conn_pool.close()
        assert [one["slaveAckOffset"] for one in status["haConnectionInfo"]] == [end]
    finally:
        await slave.stop()
        master.kill()
