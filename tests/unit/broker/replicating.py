"""Two stores, one that leads and one that follows, and what tests of the stream between them need."""

import asyncio

from sprocketmq.broker.replication.follower import Follower, Master
from sprocketmq.broker.replication.master import ReplicationMaster
from sprocketmq.broker.replication.stream import MasterLog
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.testing import eventually

HOST = pack_host("127.0.0.1", 40000)
SEGMENT_BYTES = 64 << 10


def opened(root, *, segment_bytes=SEGMENT_BYTES, **settings):
    """Return an open store with small files."""
    store = MessageStore(StoreConfig(root=root, commitlog_segment_bytes=segment_bytes, preallocate=False, **settings))
    store.open()
    return store


def put(store, *bodies, topic="orders", queue=0):
    """Store messages, each with a key, and commit them."""
    for body in bodies:
        properties = encode_properties({"KEYS": body[:8].decode("latin-1"), "UNIQ_KEY": body[:8].hex()})
        store.stage_message(topic, queue, body, properties, tags_code=0, born_timestamp_ms=1, born_host=HOST)
    store.commit()


def fill(store, count, size=1000, *, start=0):
    """Store ``count`` messages of ``size`` bytes, ten a commit."""
    for first in range(start, start + count, 10):
        put(store, *((b"%08d" % n) * (size // 8) for n in range(first, min(first + 10, start + count))), queue=first % 4)


def log_bytes(store):
    """Return the whole log."""
    found, log_offset = [], store.commitlog_min_offset
    while data := store.raw(log_offset, SEGMENT_BYTES):
        found.append(bytes(data))
        log_offset += len(data)
    return b"".join(found)


def facts(store, *, epochs=True):
    """Return what a master answers about its log."""
    segments = store.segments()
    end = store.commitlog_max_offset
    return MasterLog(
        store.commitlog_min_offset, end, (store.epochs.entries or None) if epochs else None, segments[0][1] if segments else None
    )


class Pair:
    """A master's store and a slave's under ``root``; either side is stopped and started as a test needs it."""

    def __init__(self, root, *, master=None, epochs=True, **settings):
        self.root = root
        self.epochs = epochs
        self.store = opened(root / "master")
        self.copy = opened(root / "slave")
        if epochs:
            self.store.epochs.begin(1, 0)
        self.master_settings = {"heartbeat_s": 0.2, **(master or {})}
        self.settings = {"heartbeat_s": 0.2, **settings}
        self.master = self.follower = None
        self.port = 0
        self.appended = self.acked = self.lookups = 0

    async def lead(self):
        self.master = ReplicationMaster(self.store, acked=self._acked, **self.master_settings)
        self.port = await self.master.start("127.0.0.1", self.port)

    async def follow(self):
        settings = {"find": self.find, "ask": self.ask, **self.settings}
        self.follower = Follower(self.copy, self.copy.follow(), appended=self._appended, **settings)
        self.follower.start()

    async def start(self):
        await self.lead()
        await self.follow()

    def _acked(self):
        self.acked += 1

    def _appended(self):
        self.appended += 1

    async def find(self):
        self.lookups += 1
        return Master(f"127.0.0.1:{self.port}", "the master")

    async def ask(self, address):
        return facts(self.store, epochs=self.epochs)

    async def tries(self, count):
        """Wait until the slave has looked for its master ``count`` more times."""
        wanted = self.lookups + count
        await eventually(lambda: self.lookups >= wanted)

    def wrote(self):
        self.master.wrote()

    async def equal(self):
        """Wait until the slave has the whole log, and the master knows; and until its queues have it."""
        self.wrote()
        end = self.store.commitlog_max_offset
        await eventually(lambda: self.master.replicated(1) >= end)
        await eventually(lambda: self.copy.follow().dispatched_end == self.copy.commitlog_max_offset == end)
        assert log_bytes(self.copy) == log_bytes(self.store)

    async def state(self, state):
        await eventually(lambda: self.follower.state is state)

    async def stop_master(self):
        await self.master.stop()
        self.store.close()
        await asyncio.sleep(0)

    async def stop(self):
        if self.follower is not None:
            await self.follower.stop()
        if self.master is not None:
            await self.master.stop()
        self.copy.close()
        self.store.close()
