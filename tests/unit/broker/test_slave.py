"""A slave beside its master: it follows log and metadata, refuses what would change them, and serves reads."""

import pytest

from sprocketmq.broker.replication.follower import FollowerState
from sprocketmq.broker.replication.roles import Role
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.testing import eventually


@pytest.fixture
def pair(start_broker, namesrv):
    """Start master and slave, and return them when the slave follows."""

    async def start(**settings):
        found = {"namesrv": (namesrv.address,), "clock": SYSTEM_CLOCK}
        master = await start_broker("master", ha_port=0, **found, **settings)
        master.topics.create_internal("orders", 4)
        slave = await start_broker("slave", role=Role.SLAVE, broker_id=1, ha_port=0, **found)
        await eventually(lambda: follows(slave), timeout_s=20)
        return master, slave

    return start


def follows(slave):
    follower = slave.replication.follower
    return follower is not None and follower.state is FollowerState.FOLLOWING and slave.replication.metadata.synced > 0


def caught_up(master, slave):
    return slave.store.commitlog_max_offset == master.store.commitlog_max_offset


async def test_a_slave_has_the_masters_messages_and_tables(pair, connect):
    master, slave = await pair()
    at_master = await connect(master)
    for i in range(20):
        assert (await at_master.send("orders", b"%d" % i, queue=i % 4)).code == 0
    master.groups.put(SubscriptionGroupConfig("billing"))
    master.offsets.commit("billing", "orders", 2, 3)
    await eventually(lambda: caught_up(master, slave) and slave.offsets.get("billing", "orders", 2) == 3, timeout_s=10)
    assert "billing" in slave.groups
    assert slave.topics.get("orders").config == master.topics.get("orders").config
    at_slave = await connect(slave)
    assert await at_slave.bodies("orders", queue=1, group="billing") == [b"1", b"5", b"9", b"13", b"17"]


async def test_a_slave_refuses_changes_and_names_its_master(pair, connect):
    master, slave = await pair()
    at_slave = await connect(slave)
    answers = {
        14: await at_slave.send("orders"),
        11: await at_slave(37),
        16: await at_slave(215, {"topic": "orders"}),
        1: await at_slave(36, {"offset": "0", "group": "billing", "delayLevel": "0"}),
    }
    for code, answer in answers.items():
        assert answer.code == code
        assert answer.remark.endswith(f"this broker is a slave, send this request to the master at {master.address}")


async def test_pulls_held_at_a_slave_wake_when_its_master_gets_a_message(pair, connect):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_slave.heartbeat(consumers=["cg"])
    held = at_slave.pull("orders", 0, wait_ms=20_000)
    await eventually(lambda: slave.pulls.held_count == 1, timeout_s=5)
    await at_master.send("orders", b"news")
    assert (await held).code == 0


async def test_a_promoted_slave_is_master_and_the_former_master_follows_it(pair, connect, namesrv):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_master.send("orders", b"before")
    await eventually(lambda: caught_up(master, slave), timeout_s=10)
    answer = await at_slave(1008, {"masterAddress": slave.address, "masterEpoch": "1000"})
    assert (answer.code, answer.remark) == (0, None)
    assert (slave.role.role, slave.role.broker_id) == (Role.ASYNC_MASTER, 0)
    assert namesrv.routes.broker("broker-a").broker_addrs[0] == slave.address
    assert (await at_slave.send("orders", b"after")).code == 0
    await eventually(lambda: master.role.is_slave and follows(master) and caught_up(slave, master), timeout_s=20)
    assert (await at_master.send("orders", b"refused")).code == 14
    assert namesrv.routes.broker("broker-a").broker_addrs == {0: slave.address, 1: master.address}
    assert await at_master.bodies("orders") == [b"before", b"after"]
