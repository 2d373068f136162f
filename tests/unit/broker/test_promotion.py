"""Who is master: promotion by request, fencing of the former master, and what outlives restarts."""

import asyncio

import pytest
from pairs import caught_up, follows
from tests.waiting import stays

from sprocketmq.broker import replicating
from sprocketmq.broker.registration import TIMEOUT_S
from sprocketmq.broker.replication.master import SlaveLink
from sprocketmq.broker.replication.roles import Role, promotion_epoch
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import BrokerNameTaken
from sprocketmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfigTable
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.headers import RegisterBroker
from sprocketmq.testing import eventually


def promote(ask, broker, epoch=1000):
    return ask(1008, {"masterAddress": broker.address, "masterEpoch": str(epoch)})


async def test_a_promoted_slave_is_master_and_the_former_master_follows_it(pair, connect, namesrv, said):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_master.send("orders", b"before")
    await eventually(lambda: caught_up(master, slave))
    answer = await at_slave(1008, {"masterAddress": slave.address, "masterEpoch": "1000"})
    assert (answer.code, answer.remark) == (0, None)
    assert (slave.role.role, slave.role.broker_id) == (Role.ASYNC_MASTER, 0)
    assert namesrv.routes.broker("broker-a").broker_addrs[0] == slave.address
    assert (await at_slave.send("orders", b"after")).code == 0
    await eventually(lambda: master.role.is_slave and follows(master) and caught_up(slave, master))
    assert (await at_master.send("orders", b"refused")).code == 14
    assert namesrv.routes.broker("broker-a").broker_addrs == {0: slave.address, 1: master.address}
    assert await at_master.bodies("orders") == [b"before", b"after"]
    began_master, began_slave = said("role_begun")
    assert began_master.startswith('role_begun server="broker broker-a" role=ASYNC_MASTER broker_id=0 epoch=1 log_end=0 ha=')
    assert began_slave.startswith('role_begun server="broker broker-a" role=SLAVE broker_id=1 epoch=0 log_end=0')
    promoted, fenced = said("promoted"), said("fenced")
    assert (len(promoted), len(fenced)) == (1, 1)
    assert promoted[0].startswith('promoted server="broker broker-a" role=ASYNC_MASTER epoch=1000 log_end=')
    assert fenced[0].endswith(f" master={slave.address}")
    first, *_, last = said("slave_joined")
    assert first.startswith('slave_joined server="broker broker-a" peer=127.0.0.1:')
    assert last.startswith('slave_joined server="broker broker-a" peer=127.0.0.1:')
    assert said("slave_left")[0].startswith('slave_left server="broker broker-a" peer=127.0.0.1:')


async def test_a_promotion_outlives_restarts_and_the_former_master_joins_as_slave(pair, connect, start_broker, said):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_master.send("orders", b"before")
    await eventually(lambda: caught_up(master, slave))
    await master.abort()
    assert (await promote(at_slave, slave)).code == 0
    await at_slave.send("orders", b"after")
    await slave.stop()
    promoted = await start_broker("slave", like=slave)
    assert (promoted.role.role, promoted.role.broker_id, promoted.store.epochs.last.number) == (Role.ASYNC_MASTER, 0, 1000)
    former = await start_broker("master", like=master)
    assert (former.role.role, former.role.broker_id) == (Role.SLAVE, 1)
    (line,) = said("role_changed")
    assert line == 'role_changed server="broker broker-a" role=SLAVE broker_id=1 reason="another broker is master with a higher epoch"'
    await eventually(lambda: follows(former) and caught_up(promoted, former))
    await former.stop()
    again = await start_broker("master", like=former)
    assert again.role.is_slave
    await eventually(lambda: follows(again))


async def test_what_only_the_former_master_has_is_cut_off(pair, connect, start_broker):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_master.send("orders", b"on both")
    await eventually(lambda: caught_up(master, slave))
    await slave.replication.follower.stop()
    await at_master.send("orders", b"only here")
    assert (await promote(at_slave, slave)).code == 0
    await at_slave.send("orders", b"the new master's")
    await eventually(lambda: master.role.is_slave and follows(master) and caught_up(slave, master))
    assert await at_master.bodies("orders") == [b"on both", b"the new master's"]
    views = [broker.store.raw(0, 1 << 20) for broker in (master, slave)]
    assert bytes(views[0]) == bytes(views[1])


async def test_a_send_that_waits_for_slaves_when_its_master_is_fenced_is_not_acknowledged(pair, connect, monkeypatch):
    master, slave = await pair(role=Role.SYNC_MASTER, slave_timeout_s=30.0)
    at_master, at_slave = await connect(master), await connect(slave)
    assert (await at_master.send("orders", b"on both")).code == 0
    await slave.replication.follower.stop()
    await eventually(lambda: not master.replication.slaves)
    assert (await at_master.send("orders", b"too few slaves")).code == 11
    monkeypatch.setattr(master.replication.master, "in_sync", lambda count: True)
    waiting = asyncio.ensure_future(at_master.send("orders", b"waits"))
    await eventually(lambda: master.acks.waiting == 1)
    assert (await promote(at_slave, slave)).code == 0
    assert (await waiting).code == 14
    await eventually(lambda: follows(master) and caught_up(slave, master))
    assert await at_slave.bodies("orders") == [b"on both"]


async def test_a_slave_that_lacks_what_another_has_is_not_promoted(pair, connect, start_broker, namesrv):
    master, slave = await pair()
    longer = await start_broker("longer", namesrv=(namesrv.address,), clock=SYSTEM_CLOCK, role=Role.SLAVE, broker_id=2, ha_port=0)
    await eventually(lambda: follows(longer))
    at_master, at_slave, at_longer = await connect(master), await connect(slave), await connect(longer)
    await at_master.send("orders", b"on all")
    await eventually(lambda: caught_up(master, slave) and caught_up(master, longer))
    await slave.replication.follower.stop()
    await at_master.send("orders", b"on two")
    await eventually(lambda: caught_up(master, longer))
    refused = await promote(at_slave, slave, 1000)
    assert refused.code == 1
    assert f"the slave at {longer.address} has more of the log" in refused.remark
    assert (await promote(at_longer, longer, 2000)).code == 0
    await eventually(lambda: master.role.is_slave and follows(master) and caught_up(longer, master))
    assert await at_master.bodies("orders") == [b"on all", b"on two"]
    assert namesrv.routes.broker("broker-a").broker_addrs[0] == longer.address


async def test_a_slave_that_does_not_know_the_newest_epoch_is_not_promoted(pair, connect, start_broker, namesrv):
    master, slave = await pair()
    newer = await start_broker("newer", namesrv=(namesrv.address,), clock=SYSTEM_CLOCK, role=Role.SLAVE, broker_id=2, ha_port=0)
    await eventually(lambda: follows(newer))
    await (await connect(master)).send("orders", b"on all")
    await eventually(lambda: caught_up(master, slave) and caught_up(master, newer))
    await slave.replication.follower.stop()
    await master.abort()
    master = await start_broker("master", like=master)  # begins epoch 2
    await (await connect(master)).send("orders", b"on two")
    await eventually(lambda: follows(newer) and caught_up(master, newer))
    refused = await promote(await connect(slave), slave, 1000)
    assert refused.code == 1
    assert f"the slave at {newer.address} follows epoch 2, {slave.address} knows epoch 1 only: promote that one" in refused.remark
    assert (await promote(await connect(newer), newer, 2000)).code == 0
    assert await (await connect(newer)).bodies("orders") == [b"on all", b"on two"]


async def test_a_slave_that_has_copied_nothing_is_not_promoted(pair, connect):
    master, slave = await pair()
    await slave.replication.follower.stop()
    at_slave = await connect(slave)
    await (await connect(master)).send("orders", b"on the master")
    end = master.store.commitlog_max_offset
    refused = await promote(at_slave, slave)
    assert f"has copied nothing yet, and the master at {master.address} has a log of {end} bytes: promote that one" in refused.remark
    assert (await promote(await connect(master), master, 2000)).code == 0
    await master.abort()
    assert "does not tell where its log ends: promote that one or another slave" in (await promote(at_slave, slave, 3000)).remark


async def test_a_fenced_master_leaves_the_ids_of_other_slaves_alone(pair, connect, start_broker, namesrv, said):
    master, slave = await pair()
    other = await start_broker("other", namesrv=(namesrv.address,), clock=SYSTEM_CLOCK, role=Role.SLAVE, broker_id=2)
    await eventually(lambda: follows(other))
    at_master = await connect(master)
    # Its successor is not registered as master for some time, and the fenced master speaks to its nameserver meanwhile.
    assert (await at_master(1008, {"masterAddress": other.address, "masterEpoch": "1000"})).code == 0
    await master.registrar.register()
    assert namesrv.routes.broker("broker-a").broker_addrs == {0: master.address, 1: slave.address, 2: other.address}
    assert (await promote(await connect(other), other, 2000)).code == 0
    await eventually(lambda: follows(master) and follows(slave))
    await eventually(lambda: namesrv.routes.broker("broker-a").broker_addrs == {0: other.address, 1: slave.address, 2: master.address})
    assert not said("broker_name_taken")


async def test_nobody_is_promoted_while_no_nameserver_tells_which_slaves_there_are(pair, connect, namesrv):
    master, slave = await pair(role=Role.SYNC_MASTER)
    at_master, at_slave = await connect(master), await connect(slave)
    await eventually(lambda: caught_up(master, slave))
    await namesrv.stop()
    answer = await promote(at_slave, slave)
    assert (answer.code, slave.role.role) == (1, Role.SLAVE)
    assert "which slaves broker broker-a has is not known: no nameserver answered" in answer.remark
    assert (await at_master.send("orders", b"acknowledged")).code == 0


async def test_a_former_master_whose_id_went_to_another_slave_starts_with_a_free_one(pair, connect, start_broker, namesrv):
    master, slave = await pair()
    at_slave = await connect(slave)
    await eventually(lambda: caught_up(master, slave))
    assert (await promote(at_slave, slave)).code == 0
    await eventually(lambda: master.role.is_slave and follows(master))
    assert master.role.broker_id == 1
    await master.stop()
    other = await start_broker("other", namesrv=(namesrv.address,), clock=SYSTEM_CLOCK, role=Role.SLAVE, broker_id=1)
    await eventually(lambda: follows(other))
    former = await start_broker("master", like=master)
    assert (former.role.role, former.role.broker_id) == (Role.SLAVE, 2)
    await eventually(lambda: follows(former))


async def test_a_promotion_beside_a_living_sync_master_loses_nothing_acknowledged(pair, connect):
    master, slave = await pair(role=Role.SYNC_MASTER)
    at_master, at_slave = await connect(master), await connect(slave)
    acknowledged = []

    async def send():
        for i in range(100_000):
            body = b"%d" % i
            answer = await at_master.send("orders", body)
            if answer.code == 0:
                acknowledged.append(body)
            elif answer.code == 14:
                return

    sending = asyncio.ensure_future(send())
    await eventually(lambda: len(acknowledged) > 50)
    assert (await promote(at_slave, slave)).code == 0
    await sending
    await eventually(lambda: follows(master) and caught_up(slave, master))
    stored = []
    while found := await at_slave.bodies("orders", len(stored), count=1000):
        stored += found
    assert set(acknowledged) <= set(stored)


async def test_an_epoch_that_is_not_higher_changes_nothing(pair, connect, said):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    refused = await promote(at_slave, slave, 1)
    assert (refused.code, refused.remark) == (1, "epoch 1 is not higher than 1, which broker broker-a knows: ask for a higher one")
    (line,) = said("promotion_refused")
    assert line.startswith(f"promotion_refused broker=broker-a master={slave.address} epoch=1 peer=127.0.0.1:")
    assert line.endswith(f' reason="{refused.remark}"')
    refused = await promote(at_master, slave, 1)
    assert refused.code == 1
    assert (await promote(at_master, master, 1)).code == 0  # a repeated request
    assert not master.role.is_slave
    assert slave.role.is_slave


async def test_a_master_without_slaves_does_not_change_its_role_for_strangers(broker, ask):
    refused = await ask(1008, {"masterAddress": "10.0.0.1:1", "masterEpoch": "9"})
    assert (refused.code, refused.remark) == (1, "broker broker-a does not replicate: give it ha_port, or the role SLAVE")
    assert not broker.role.is_slave


async def test_a_running_master_can_begin_a_higher_epoch(pair, connect, said):
    master, slave = await pair()
    at_master = await connect(master)
    await at_master.send("orders", b"before")
    assert (await promote(at_master, master, 2000)).code == 0
    assert said("epoch_begun") == [f'epoch_begun server="broker broker-a" epoch=2000 log_end={master.store.commitlog_max_offset}']
    await at_master.send("orders", b"after")
    await eventually(lambda: follows(slave) and caught_up(master, slave) and slave.store.epochs.last.number == 2000)


async def test_a_slave_that_is_told_of_a_new_master_leaves_the_old_one_and_tells_it(pair, connect):
    master, slave = await pair()
    at_slave = await connect(slave)
    assert (await at_slave(1008, {"masterAddress": "127.0.0.1:1", "masterEpoch": "1000"})).code == 0
    # The nameserver still names the old one: the slave does not follow it, and it is fenced.
    await eventually(lambda: master.role.is_slave)
    assert master.role.epoch == 1000


async def test_a_promoted_slave_waits_for_slaves_as_its_master_did(pair, connect, start_broker):
    master, slave = await pair(role=Role.SYNC_MASTER, in_sync_replicas=3)
    assert slave.config.in_sync_replicas is None
    await (await connect(master)).send("orders", b"before")
    await eventually(lambda: caught_up(master, slave))
    await master.abort()
    await slave.stop()  # remembers the mode when no master is there to tell it
    slave = await start_broker("slave", like=slave)
    at_slave = await connect(slave)
    assert (await promote(at_slave, slave)).code == 0
    assert (slave.role.role, slave.acks.replicas) == (Role.SYNC_MASTER, 2)
    assert (await at_slave.send("orders", b"alone")).code == 11
    await slave.stop()
    again = await start_broker("slave", like=slave)
    assert (again.role.role, again.role.broker_id, again.acks.replicas) == (Role.SYNC_MASTER, 0, 2)


async def test_a_living_async_master_sends_the_rest_before_it_is_replaced(pair, connect, monkeypatch):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    send, links = SlaveLink.send, list(master.replication.master.links)
    monkeypatch.setattr(SlaveLink, "send", lambda link: None)
    assert (await at_master.send("orders", b"acknowledged, and not sent yet")).code == 0
    promoting = asyncio.ensure_future(promote(at_slave, slave))
    await eventually(lambda: master.role.is_slave)
    await stays(lambda: not promoting.done())
    send(links[0])
    assert (await promoting).code == 0
    assert await at_slave.bodies("orders") == [b"acknowledged, and not sent yet"]


async def test_a_former_master_that_does_not_answer_is_told_of_in_the_log(pair, connect, monkeypatch, caplog):
    master, slave = await pair()
    at_slave = await connect(slave)
    monkeypatch.setattr(replicating, "FREEZE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(master.replication.promotion, "change", lambda *_: asyncio.Event().wait())
    assert (await promote(at_slave, slave)).code == 0
    assert f"cannot be told of epoch 1000 yet: no answer from {master.address} to request 1008 within 200 ms" in caplog.text


async def test_a_group_that_has_read_what_only_the_former_master_had_goes_back(pair, connect):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_master.send("orders", b"on both")
    await at_master.pull("orders", 0)
    commit = {"consumerGroup": "cg", "topic": "orders", "queueId": "0"}
    assert (await at_master(15, {**commit, "commitOffset": "1"})).code == 0
    await eventually(lambda: caught_up(master, slave) and slave.offsets.get("cg", "orders", 0) == 1)
    await slave.replication.follower.stop()
    await at_master.send("orders", b"only here")
    assert (await promote(at_slave, slave)).code == 0
    assert await at_slave.send("orders", b"another one")
    assert (await at_slave(15, {**commit, "commitOffset": "2"})).remark == "Offset has been previously reset"
    assert slave.offsets.get("cg", "orders", 0) == 1
    told = await at_slave.pull("orders", 2)
    assert (told.code, told.ext["nextBeginOffset"]) == (21, "1")
    assert await at_slave.bodies("orders", 1) == [b"another one"]
    assert (await at_slave(15, {**commit, "commitOffset": "2"})).code == 0
    assert (await at_slave.pull("orders", 2)).code == 19


async def test_a_second_store_of_the_same_name_and_epoch_does_not_start(pair, start_broker, namesrv):
    await pair()
    with pytest.raises(BrokerNameTaken):
        await start_broker("stranger", namesrv=(namesrv.address,), ha_port=0)


async def test_slaves_of_one_id_do_not_take_it_from_each_other(pair, start_broker, namesrv):
    await pair()
    with pytest.raises(BrokerNameTaken, match=r"has slave 1 of broker broker-a at .* choose another id \(--broker-id\)"):
        await start_broker("another", namesrv=(namesrv.address,), role=Role.SLAVE, broker_id=1)


async def test_an_unclean_stop_begins_an_epoch_and_a_clean_one_does_not(start_broker, connect):
    broker = await start_broker("store", ha_port=0)
    await broker.stop()
    broker = await start_broker("store", like=broker)
    assert [epoch.number for epoch in broker.store.epochs.entries] == [1]
    broker.topics.create_internal("orders", 1)
    assert (await (await connect(broker)).send("orders")).code == 0
    await broker.abort()
    broker = await start_broker("store", like=broker)
    assert [epoch.number for epoch in broker.store.epochs.entries] == [1, 2]


@pytest.mark.parametrize(("last", "next_epoch"), [(0, 1000), (1, 1000), (999, 1000), (1000, 2000), (1005, 2000)])
def test_promotions_leave_room_for_epochs_of_restarts(last, next_epoch):
    assert promotion_epoch(last) == next_epoch


async def test_delayed_and_timed_messages_are_delivered_once_by_the_promoted_slave(pair, connect):
    master, slave = await pair(store={"message_delay_level": "1s 3s"})
    at_master, at_slave = await connect(master), await connect(slave)
    due_ms = slave.clock.time_ms() + 3000
    await at_master.send("orders", b"level 1", properties="DELAY\x011\x02")
    await at_master.send("orders", b"level 2", properties="DELAY\x012\x02")
    await at_master.send("orders", b"timed soon", properties="TIMER_DELAY_MS\x01500\x02")
    await at_master.send("orders", b"timed late", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")
    await eventually(lambda: master.delays.delivered == 2)
    await eventually(lambda: caught_up(master, slave))
    assert slave.delays.delivered == 0
    await master.abort()
    assert (await promote(at_slave, slave)).code == 0

    async def bodies():
        return sorted(await at_slave.bodies("orders"))

    expected = [b"level 1", b"level 2", b"timed late", b"timed soon"]
    await eventually(lambda: slave.delays.delivered == 2)
    assert await bodies() == expected


async def test_a_master_that_is_fenced_while_it_registers_does_not_take_the_routes_back(pair, connect, namesrv, monkeypatch):
    master, slave = await pair()
    at_slave = await connect(slave)
    at_nameserver, go_on = asyncio.Event(), asyncio.Event()
    get = master.registrar.pool.get

    async def get_late(address, *, timeout_s):
        if timeout_s == TIMEOUT_S and not at_nameserver.is_set():  # looked for other masters already, registers now
            at_nameserver.set()
            await go_on.wait()
        return await get(address, timeout_s=timeout_s)

    monkeypatch.setattr(master.registrar.pool, "get", get_late)
    registering = asyncio.ensure_future(master.registrar.register())
    await at_nameserver.wait()
    assert (await promote(at_slave, slave)).code == 0
    await eventually(lambda: namesrv.routes.broker("broker-a").broker_addrs == {0: slave.address, 1: master.address})
    go_on.set()
    await registering
    assert namesrv.routes.broker("broker-a").broker_addrs == {0: slave.address, 1: master.address}


async def test_a_former_master_that_registers_before_it_is_fenced_does_not_leave_the_name_without_a_master(
    pair, connect, start_broker, namesrv
):
    master, slave = await pair()
    at_slave = await connect(slave)
    await (await connect(master)).send("orders", b"before")
    await eventually(lambda: caught_up(master, slave))
    await master.abort()
    assert (await promote(at_slave, slave)).code == 0

    conn = await slave.registrar.pool.get(namesrv.address, timeout_s=TIMEOUT_S)
    body = RegisterBrokerBody(TopicConfigTable({}, DataVersion(0, 1, 1))).encode()
    late = RegisterBroker("broker-a", master.address, "DefaultCluster", "", 0, body_crc32=crc32(body))
    assert (await conn.request(103, ext=to_ext(late), body=body, timeout_s=TIMEOUT_S)).code == 0
    assert namesrv.routes.broker("broker-a").broker_addrs[0] == master.address
    await start_broker("master", like=master)
    await eventually(lambda: namesrv.routes.broker("broker-a").broker_addrs == {0: slave.address, 1: master.address})
