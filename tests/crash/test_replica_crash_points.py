"""A crash at every file-system call of a replica's life, in every way a disk can forget: what is left is a beginning of its master's log, as
long as promised, and fetching the rest makes the replica equal to its master.

``SPROCKETMQ_CRASH_POINTS`` sets how many crashes (1,200 by default), ``SPROCKETMQ_CRASH_SEED`` which.
"""

import os
import random

import pytest

from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.storage.replica.epochs import Epoch
from sprocketmq.storage.replica.replica import Replica
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing.rig.simulated_disk import KILL_MODES, MODES, SimFileSystem
from sprocketmq.testing.rig.small_store import BATCH_TOPIC, HOST, QUEUES, TOPICS, open_store, read_queue

POINTS = int(os.environ.get("SPROCKETMQ_CRASH_POINTS", "1200"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED", "1")
TRACE_POINTS = 200
SHARDS = 6
EPOCHS = (Epoch(1, 0), Epoch(2, 3000), Epoch(4, 50_000))


class Master:
    """A store whose log a replica follows: 80 KiB in five segments, and what its queues have."""

    def __init__(self, rng: random.Random) -> None:
        self.store = store = open_store(SimFileSystem(), "ASYNC_FLUSH")
        number = 0
        while store.commitlog_max_offset < 80 << 10:
            topic, queue = rng.choice(TOPICS), rng.randrange(QUEUES)
            items = [(0, rng.randbytes(rng.choice((0, 30, 900))), encode_properties({"KEYS": f"{number + i}"})) for i in range(4)]
            common = {"born_timestamp_ms": 1, "born_host": HOST}
            number += len(items)
            if topic == BATCH_TOPIC and rng.random() < 0.7:
                store.stage_inner_batch(topic, queue, encode_batch(items), items[0][2], count=len(items), tags_code=0, **common)
            else:
                store.stage_batch(topic, queue, split_batch(encode_batch(items)), sys_flag=0, **common)
            store.commit()
        self.end = store.commitlog_max_offset
        self.queues = {(topic, queue): read_queue(store, (topic, queue)) for topic in TOPICS for queue in range(QUEUES)}
        self.borders = [0]
        while self.borders[-1] < self.end:
            self.borders.append(self.borders[-1] + int.from_bytes(store.raw(self.borders[-1], 4)))
        self.keys = [(topic, str(rng.randrange(number))) for topic in TOPICS for _ in range(2)]
        self.answers = [list(map(bytes, store.query(*key))) for key in self.keys]

    def border(self, log_offset: int) -> int:
        return max(b for b in self.borders if b <= log_offset)


def feed(master: Master, replica: Replica, rng: random.Random, stop: int) -> None:
    while replica.end < stop:
        data = master.store.raw(replica.end, min(rng.choice((50, 1500, 9000)), stop - replica.end))
        replica.append(replica.end, data)
        while rng.random() < 0.8 and replica.dispatch(5000):
            pass


def check(disk: SimFileSystem, master: Master, promised: int, flush: str, rng: random.Random) -> None:
    """Open what a crash left, compare it with the master, fetch the rest and compare again."""
    store = open_store(disk, flush)
    try:
        assert [epoch for epoch in store.epochs.entries if epoch.start > store.commitlog_max_offset] == []
        assert store.epochs.entries in [EPOCHS[:n] for n in range(len(EPOCHS) + 1)]
        replica = store.follow()
        assert replica.end >= promised, f"the log ends at {replica.end}, {promised} was promised"
        assert replica.end in master.borders
        assert same(master, replica, store)
        if rng.random() < 0.1:
            store.close()
            store = open_store(disk, flush)
            replica = store.follow()
            assert replica.end >= promised
            assert replica.end in master.borders
            assert same(master, replica, store)
        feed(master, replica, rng, master.end)
        while replica.dispatch(1 << 20):
            pass
        store.publish(store.flush())
        assert_like(master, store)
        store.lead()
        offset, _ = store.stage_message(TOPICS[0], 0, b"on", b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
        assert offset == master.queues[TOPICS[0], 0][1]
        store.commit()
    finally:
        store.abandon()


def same(master: Master, replica: Replica, store: MessageStore) -> bool:
    log_offset = 0
    while log_offset < replica.end:
        data = store.raw(log_offset, replica.end - log_offset)
        if bytes(data) != bytes(master.store.raw(log_offset, len(data))):
            return False
        log_offset += len(data)
    return True


def assert_like(master: Master, store: MessageStore) -> None:
    for key, expected in master.queues.items():
        assert read_queue(store, key) == expected, key
    for key, records in zip(master.keys, master.answers, strict=True):
        assert list(map(bytes, store.query(*key))) == records, key


class _Enough(Exception):
    pass


@pytest.mark.timeout(0 if POINTS > 1200 else 600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_crash_leaves_a_beginning_of_the_masters_log(shard: int) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    for trace in range(shard, -(-POINTS // TRACE_POINTS), SHARDS):
        explore(f"{SEED}.{trace}", "SYNC_FLUSH" if trace % 2 else "ASYNC_FLUSH", min(TRACE_POINTS, POINTS - trace * TRACE_POINTS))


def explore(seed: str, flush: str, points: int, only: tuple[int, str] | None = None) -> None:
    rng = random.Random(f"replica {seed}")
    master = Master(rng)
    disk = SimFileSystem()
    tried = written = flushed = 0

    def before(call: str, path: str) -> None:
        nonlocal tried
        number = disk.calls
        for mode in MODES:
            if only in (None, (number, mode)):
                crash_rng = random.Random(f"{seed} {number} {mode}")
                try:
                    check(disk.crash(crash_rng, mode), master, written if mode in KILL_MODES else flushed, flush, crash_rng)
                except Exception as e:
                    raise AssertionError(
                        f"{e!r} after a crash at call {number} ({call} {path}) in mode {mode}; repeat it with "
                        f"explore({seed!r}, {flush!r}, {points}, only=({number}, {mode!r}))"
                    ) from e
            tried += 1
        if tried >= points:
            raise _Enough

    store = open_store(disk, flush)
    store.epochs.adopt(EPOCHS)
    replica = store.follow()
    feed(master, replica, rng, rng.randrange(60 << 10))  # the calls of an empty store's first seconds are those of any store
    disk.on_call = before
    try:
        while True:
            kind = rng.random()
            if kind < 0.6:
                stop = min(replica.end + rng.choice((100, 2000, 20_000)), master.end)
                while replica.end < stop:
                    replica.append(replica.end, master.store.raw(replica.end, min(3000, stop - replica.end)))
                    written = max(written, master.border(replica.end))
                    replica.dispatch(5000)
            elif kind < 0.8:
                store.publish(store.flush(thorough=rng.random() < 0.5))
                flushed = master.border(min(replica.end, store.commitlog_flushed_offset))
            elif kind < 0.9 or replica.end == master.end:
                cut = rng.randrange(replica.end + 1)
                before_cut = written, flushed, store.commitlog_max_offset
                written = flushed = min(written, flushed, master.border(cut))
                replica.truncate(cut)
                written, flushed = before_cut[:2] if replica.end == before_cut[2] else (replica.end, replica.end)
                store.epochs.adopt(EPOCHS)
            else:
                written = min(written, master.border(replica.end))
                if rng.random() < 0.5:
                    store.close()
                    flushed = written
                else:
                    store.abandon()
                store = open_store(disk, flush)
                store.epochs.adopt(EPOCHS)
                replica = store.follow()
    except _Enough:
        pass
    finally:
        disk.on_call = None
        store.abandon()
        master.store.abandon()
