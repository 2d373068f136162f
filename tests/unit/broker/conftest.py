import asyncio
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for asking, as test modules are imported by path

from asking import Asking

from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.clock import ManualClock
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.storage import fs
from sprocketmq.storage.store import StoreConfig


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """These tests are about processes that die, not machines: syncing proves nothing here and takes long on a busy disk."""
    monkeypatch.setattr(fs, "_fdatasync", lambda fd: None)
    monkeypatch.setattr(fs.RealFileSystem, "fsync_dir", lambda self, path: None)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def start_broker(tmp_path, clock):
    """Start brokers on free ports; ``folder`` names the store under the test's own directory, ``store`` has settings of the store."""
    started = []

    async def start(folder="store", *, namesrv=(), disk=None, store=None, clock=clock, **settings):
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
