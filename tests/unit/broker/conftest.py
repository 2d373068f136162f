import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for asking, as test modules are imported by path

from asking import Asking
from pairs import follows
from slowdisk import ColdDisk, SlowDisk

from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.broker.replication.roles import Role
from sprocketmq.clock import SYSTEM_CLOCK, ManualClock
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.storage import fs
from sprocketmq.storage.queues import cold_reads
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import eventually


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """These tests are about processes that die, not machines: syncing proves nothing here and takes long on a busy disk."""
    monkeypatch.setattr(fs, "_fdatasync", lambda fd: None)
    monkeypatch.setattr(fs.RealFileSystem, "fsync_dir", lambda self, path: None)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def disk():
    disk = SlowDisk()
    yield disk
    disk.let_go()


@pytest.fixture
def cold_disk(monkeypatch):
    """Nothing that a broker reads is in the page cache."""
    disk = ColdDisk()
    monkeypatch.setattr(cold_reads, "TAIL_BYTES", 0)
    monkeypatch.setattr(cold_reads, "resident", disk.resident)
    monkeypatch.setattr(cold_reads, "read_through", disk.read)
    yield disk
    disk.go.set()


@pytest.fixture
async def start_broker(tmp_path, clock):
    """Start brokers on free ports; ``folder`` names the store under the test's own directory, ``store`` has settings of the store.

    ``like`` is a broker that has ended, and is started again on its port.
    """
    started = []

    async def start(folder="store", *, namesrv=(), disk=None, store=None, clock=clock, like=None, **settings):
        if like is not None:
            broker = Broker(replace(like.config, port=like.port), clock=like.clock)
            started.append(broker)
            await broker.start()
            return broker
        store = StoreConfig(
            root=tmp_path / folder,
            **{"commitlog_segment_bytes": 16 << 20, "preallocate": False, "disk_warning_ratio": 1.0, **(store or {})},
        )
        config = BrokerConfig(store=store, port=0, namesrv=namesrv, **settings)
        broker = Broker(config, clock=clock, fs=disk or fs.REAL_FS)
        started.append(broker)
        await broker.start()
        return broker

    yield start
    for broker in started:
        await broker.stop()


@pytest.fixture
async def namesrv():
    server = NameServer(NameServerConfig(port=0))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def pair(start_broker, namesrv):
    """Start a master with topic ``orders`` and a slave, and return them when the slave follows."""

    async def start(**settings):
        found = {"namesrv": (namesrv.address,), "clock": SYSTEM_CLOCK, **settings}
        slaves = {name: found[name] for name in found if name not in ("role", "in_sync_replicas")}
        master = await start_broker("master", ha_port=0, **found)
        master.topics.create_internal("orders", 4)
        slave = await start_broker("slave", **{**slaves, "role": Role.SLAVE, "broker_id": 1})
        await eventually(lambda: follows(slave))
        return master, slave

    return start


@pytest.fixture
async def connect():
    """Open client connections that end with the test."""
    opened = []

    async def connect(broker):
        client = Asking(broker)
        await client.open()
        opened.append(client)
        return client

    yield connect
    for client in opened:
        await client.close()
    await asyncio.sleep(0)


@pytest.fixture
async def broker(start_broker):
    """One broker with topic ``orders`` of four queues."""
    broker = await start_broker()
    broker.topics.create_internal("orders", 4)
    return broker


@pytest.fixture
async def ask(broker, connect):
    """One connection to ``broker``."""
    return await connect(broker)
