"""A slave's report of log that is in no queue yet."""

from types import SimpleNamespace

import pytest
from pairs import caught_up
from tests.scraping import scrape

from sprocketmq.broker import flushing
from sprocketmq.broker.replication.dispatching import Arrivals, Dispatching
from sprocketmq.errors import StoreWriteFailed
from sprocketmq.protocol.bodies import RuntimeInfo
from sprocketmq.storage.replica.replica import Replica
from sprocketmq.testing import eventually


async def reported(ask):
    table = RuntimeInfo.decode((await ask(28)).body).table
    return int(table["dispatchBehindBytes"]), int(table["dispatchBehindMs"])


async def slave_has_all(at_slave):
    """Wait until queues and index have the whole log, and the slave says so."""

    async def nothing_behind():
        return await reported(at_slave) == (0, 0)

    await eventually(nothing_behind)


async def test_what_waits_for_the_key_index_counts_from_its_arrival_at_the_slave(pair, connect, clock, monkeypatch):
    monkeypatch.setattr(flushing, "INDEX_TICK_S", 3600)  # nothing looks at the index
    master, slave = await pair(clock=clock)
    at_master, at_slave = await connect(master), await connect(slave)
    clock.jump_wall(-60.0)
    await at_master.send("orders", b"of a minute ago", properties="KEYS\x01k\x02")
    clock.jump_wall(60.0)
    await eventually(lambda: caught_up(master, slave))
    clock.advance(0.5)
    assert await reported(at_slave) == (slave.store.commitlog_max_offset, 500)


async def test_a_slave_reports_the_log_that_is_in_no_queue_yet(pair, connect, clock, monkeypatch):
    monkeypatch.setattr(flushing.Flusher, "settle", lambda _: None)  # that indexes, too, but not soon
    master, slave = await pair(clock=clock, metrics_exporter="prom", metrics_port=0)
    at_master, at_slave = await connect(master), await connect(slave)
    await at_master.send("orders", b"dispatched")
    await eventually(lambda: caught_up(master, slave))
    await slave_has_all(at_slave)

    def refuse(*_):
        raise StoreWriteFailed("/store", "No space left on device")

    queued = slave.store.commitlog_max_offset
    with monkeypatch.context() as held_back:
        held_back.setattr(Replica, "dispatch", refuse)
        await at_master.send("orders", b"held back")
        await eventually(lambda: slave.store.commitlog_max_offset == master.store.commitlog_max_offset > queued)
        behind = master.store.commitlog_max_offset - queued
        await eventually(lambda: slave.replication.queue_behind_bytes == behind)
        clock.advance(1.5)
        assert await reported(at_slave) == (behind, 1500)
        found = await scrape(slave.metrics.address)
        assert list(found.values("rocketmq_storage_dispatch_behind_bytes", "node_id").values()) == [behind]
    await slave_has_all(at_slave)
    assert slave.store.max_offset("orders", 0) == 2


@pytest.fixture
def replica():
    """A log of records of 100 bytes, of which a step dispatches as many as ``whole`` says."""
    found = SimpleNamespace(end=0, dispatched_end=0, derived_end=0, whole=0)

    def dispatch(_):
        found.dispatched_end = found.derived_end = min(found.end, 100 * found.whole)
        return False

    found.dispatch = dispatch
    return found


async def test_the_oldest_record_that_waits_tells_how_late_queues_are(replica, clock):
    stepped = []
    dispatching = Dispatching(replica, name="slave", dispatched=lambda: None, stepped=lambda: stepped.append(1), clock=clock)

    async def step():
        stepped.clear()
        dispatching.soon()
        await eventually(lambda: stepped)

    for _ in range(3):
        replica.end += 100
        dispatching.soon()
        clock.advance(1.0)
    waited = [dispatching.waiting_ms]
    for replica.whole in (1, 2, 3):
        await step()
        waited.append(dispatching.waiting_ms)
    dispatching.stop()
    assert waited == [3000, 2000, 1000, 0]


async def test_a_log_that_was_cut_has_nothing_that_waits(replica, clock):
    dispatching = Dispatching(replica, name="slave", dispatched=lambda: None, stepped=lambda: None, clock=clock)
    replica.end = 100
    dispatching.soon()
    clock.advance(1.0)
    assert dispatching.waiting_ms == 1000
    replica.end = 0
    assert dispatching.waiting_ms == 0
    dispatching.stop()


def test_what_waits_for_hours_takes_little_memory():
    arrivals = Arrivals()
    for number in range(20_000):
        arrivals.note(0, 100 * (number + 1), number / 2)
    assert arrivals.oldest == 0.0
    assert len(arrivals) < 1000
    arrivals.derived(1_000_000, 2_000_000)
    assert 4900 <= arrivals.oldest <= 5000, "at most a hundredth older than it is"
