"""Stores of a SYNC_MASTER and its slave that somebody repaired by hand: derived files rebuilt, files of the log or its epochs removed."""

import pytest
from pairs import caught_up, follows

from sprocketmq.broker.replication.roles import Role
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import StoreDamaged
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.storage.bulk.rebuild import rebuild
from sprocketmq.testing import eventually

SEGMENT_BYTES = 16 << 10
COUNT = 60


def segments(root):
    return sorted((root / "commitlog").iterdir())


def nothing(root):
    """The derived files alone are made anew."""


def remove_epochs(root):
    (root / "epochFileCheckpoint").unlink()


def remove_last_file(root):
    segments(root)[-1].unlink()


def remove_first_file(root):
    segments(root)[0].unlink()


def remove_log(root):
    for path in segments(root):
        path.unlink()


@pytest.fixture
async def start(start_broker, namesrv, connect):
    """Start master and slave with small files and ``COUNT`` messages, and stop both."""

    async def start():
        settings = {"namesrv": (namesrv.address,), "clock": SYSTEM_CLOCK, "store": {"commitlog_segment_bytes": SEGMENT_BYTES}}
        master = await start_broker("master", role=Role.SYNC_MASTER, ha_port=0, **settings)
        master.topics.create_internal("orders", 1)
        slave = await start_broker("slave", role=Role.SLAVE, broker_id=1, **settings)
        await eventually(lambda: follows(slave))
        at_master = await connect(master)
        for n in range(COUNT):
            assert (await at_master.send("orders", b"%03d" % n + bytes(1000))).code == ResponseCode.SUCCESS
        await eventually(lambda: caught_up(master, slave))
        await slave.stop()
        await master.stop()
        return master, slave

    return start


async def expect_agreement(master, slave, connect):
    """Sends are acknowledged, and both have the same log."""
    await eventually(lambda: follows(slave))
    at_master = await connect(master)
    assert (await at_master.send("orders", b"after")).code == ResponseCode.SUCCESS
    await eventually(lambda: caught_up(master, slave))
    begin = max(broker.store.commitlog_min_offset for broker in (master, slave))
    logs = []
    for broker in (master, slave):
        found, at = [], begin
        while data := broker.store.raw(at, SEGMENT_BYTES):
            found.append(bytes(data))
            at += len(data)
        logs.append(b"".join(found))
    assert logs[0] == logs[1]
    assert slave.store.epochs.entries[-1] == master.store.epochs.entries[-1]


@pytest.mark.parametrize("damage", [nothing, remove_epochs, remove_last_file, remove_first_file])
async def test_a_slave_whose_store_was_rebuilt_follows_again(start, start_broker, connect, damage):
    master, slave = await start()
    root = slave.config.store.root
    damage(root)
    rebuild(root)
    master = await start_broker(like=master)
    slave = await start_broker(like=slave)
    await expect_agreement(master, slave, connect)
    assert len(await (await connect(slave)).bodies("orders", COUNT - 5, count=100)) == 6


@pytest.mark.parametrize("damage", [nothing, remove_epochs, remove_first_file])
async def test_a_master_whose_store_was_rebuilt_is_followed_again(start, start_broker, connect, damage):
    master, slave = await start()
    root = master.config.store.root
    damage(root)
    rebuild(root)
    master = await start_broker(like=master)
    slave = await start_broker(like=slave)
    await expect_agreement(master, slave, connect)
    assert len(await (await connect(slave)).bodies("orders", COUNT - 5, count=100)) == 6


async def test_a_slave_without_a_log_copies_all_of_it(start, start_broker, connect):
    master, slave = await start()
    root = slave.config.store.root
    remove_log(root)
    with pytest.raises(StoreDamaged, match="there is no commit log"):
        rebuild(root)
    master = await start_broker(like=master)
    for witness in ("checkpoint", "dispatched"):
        with pytest.raises(StoreDamaged, match=f"or remove {witness} to begin with an empty log"):
            await start_broker(like=slave)
        (root / witness).unlink()
    slave = await start_broker(like=slave)
    await expect_agreement(master, slave, connect)
    assert len(await (await connect(slave)).bodies("orders", 0, count=100)) == COUNT + 1


async def test_a_master_that_has_lost_the_end_of_its_log_gives_its_slave_another_one(start, start_broker, connect):
    """The slave has epochs, and its master began one at its new end: what the master lost is cut off at the slave, and named."""
    master, slave = await start()
    root = master.config.store.root
    remove_last_file(root)
    rebuild(root)
    (root / "abort").touch()  # the mark of a store that was not closed
    master = await start_broker(like=master)
    slave = await start_broker(like=slave)
    await expect_agreement(master, slave, connect)


async def test_a_promoted_master_without_its_epochs_is_not_followed_until_it_is_given_one(start, start_broker, connect):
    master, slave = await start()
    master = await start_broker(like=master)
    slave = await start_broker(like=slave)
    await eventually(lambda: follows(slave))
    at_master = await connect(master)
    assert (await at_master(1008, {"masterAddress": master.address, "masterEpoch": "1000"})).code == 0
    await eventually(lambda: follows(slave) and slave.store.epochs.last.number == 1000)
    await slave.stop()
    await master.stop()
    remove_epochs(master.config.store.root)
    master = await start_broker(like=master)
    slave = await start_broker(like=slave)
    await eventually(lambda: slave.replication.follower.reason)
    assert "epoch" in slave.replication.follower.reason
    at_master = await connect(master)
    assert (await at_master.send("orders", b"alone")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert (await at_master(1008, {"masterAddress": master.address, "masterEpoch": "2000"})).code == 0
    await expect_agreement(master, slave, connect)
