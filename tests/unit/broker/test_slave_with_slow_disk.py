"""A slave whose disk is slow: its master says so to senders, holds nothing for it, and is followed again by itself."""

import asyncio

import pytest
from pairs import caught_up, follows
from tests.waiting import stays

from sprocketmq.broker.replication.roles import Role
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.testing import eventually

SLAVE_TIMEOUT_S = 2.5


@pytest.fixture
async def start(start_broker, namesrv, disk, clock, connect):
    """Start a SYNC_MASTER whose clock stands still, and a slave with SYNC_FLUSH on the slow disk."""

    async def start():
        settings = {"namesrv": (namesrv.address,)}
        master = await start_broker("master", clock=clock, role=Role.SYNC_MASTER, ha_port=0, slave_timeout_s=SLAVE_TIMEOUT_S, **settings)
        master.topics.create_internal("orders", 4)
        store = {"flush_disk_type": "SYNC_FLUSH"}
        slave = await start_broker("slave", clock=SYSTEM_CLOCK, role=Role.SLAVE, broker_id=1, disk=disk, store=store, **settings)
        await eventually(lambda: follows(slave))
        return master, slave, await connect(master), await connect(slave)

    yield start
    disk.let_go()


async def test_sends_are_not_acknowledged_while_writes_to_the_log_are_slow_and_are_again_when_they_are_quick(start, disk, clock):
    master, slave, at_master, at_slave = await start()

    def take_long():
        clock.advance(SLAVE_TIMEOUT_S)
        master.flusher.expire()

    disk.before_write = take_long
    answers = [await at_master.send("orders", b"%d" % n) for n in range(3)]
    assert [answer.code for answer in answers] == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
    together = await asyncio.gather(*(at_master.send("orders", bytes(1000)) for _ in range(100)))
    assert {answer.code for answer in together} == {ResponseCode.FLUSH_SLAVE_TIMEOUT}
    assert master.acks.waiting == 0
    await eventually(lambda: caught_up(master, slave))
    disk.before_write = lambda: None
    assert (await at_master.send("orders", b"acknowledged")).code == ResponseCode.SUCCESS
    await eventually(lambda: caught_up(master, slave))
    assert await at_slave.bodies("orders", 103) == [b"acknowledged"]


async def test_a_slave_has_what_it_has_written_and_readers_see_it_when_it_is_flushed(start, disk):
    master, slave, at_master, at_slave = await start()
    disk.hold()
    assert (await at_master.send("orders", b"first")).code == ResponseCode.SUCCESS
    assert (await at_master.send("orders", b"second")).code == ResponseCode.SUCCESS
    assert slave.store.commitlog_max_offset == master.store.commitlog_max_offset
    await stays(lambda: slave.store.max_offset("orders", 0) == 0)
    disk.let_go()
    await eventually(lambda: slave.store.max_offset("orders", 0) == 2)
    assert await at_slave.bodies("orders") == [b"first", b"second"]
