"""One line of the log for each thing that operators ask about: who did what, when."""

import pytest

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.events import quoted
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.net.address import parse_address
from sprocketmq.net.peerlog import INTERVAL_S
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.testing import eventually


@pytest.fixture
async def mq(said, start_broker, namesrv):
    return await start_broker(namesrv=(namesrv.address,))


@pytest.fixture
async def admin(mq, namesrv):
    async with AdminClient(namesrv=namesrv.address) as client:
        yield client


async def test_what_administrators_do_has_one_line_each(admin, said):
    await admin.create_topic("t", queues=2)
    await admin.create_topic("t", queues=2)
    await admin.create_topic("t", queues=3)
    await admin.create_group("cg")
    await admin.reset_offsets("cg", "t", "first")
    await admin.delete_group("cg")
    await admin.delete_topic("t")
    created, changed, deleted = said("topic_created", "topic_changed", "topic_deleted")[:3]
    assert created.startswith("topic_created topic=t queues=2 perm=6 peer=127.0.0.1:")
    assert changed.startswith("topic_changed topic=t queues=3 perm=6 peer=127.0.0.1:")
    assert deleted.startswith("topic_deleted topic=t peer=127.0.0.1:")
    assert said("group_created")[0].startswith("group_created group=cg peer=127.0.0.1:")
    assert said("group_deleted")[0].startswith("group_deleted group=cg offsets=true peer=127.0.0.1:")
    resets = said("offsets_reset")
    assert resets
    assert all(line.startswith("offsets_reset group=cg topic=t offsets=") and " peer=127.0.0.1:" in line for line in resets)


async def test_topics_and_groups_that_clients_create_are_few_lines(mq, namesrv, said):
    async with Producer("pg", namesrv=namesrv.address) as producer:
        await producer.send(Message("by-a-send", b"x"))
    assert said("topic_created") == ["topic_created topic=by-a-send queues=4 perm=6"]
    for number in range(1_000):
        mq.groups.find(f"group{number}")
    assert len(said("group_created")) == 10


async def test_registrations_are_logged_at_both_ends(mq, namesrv, said):
    (line,) = said("broker_registered")
    assert line == f"broker_registered broker={mq.config.broker_name} broker_id=0 address={mq.address} cluster=DefaultCluster"
    assert said("registered") == [f"registered broker={mq.config.broker_name} nameserver={namesrv.address} again=false"]
    await mq.stop()
    assert said("broker_unregistered")[0].startswith(f"broker_unregistered broker={mq.config.broker_name} address={mq.address} peer=")


async def test_a_nameserver_that_is_gone_is_logged_once(mq, namesrv, said):
    await namesrv.stop()
    await eventually(lambda: said("registration_lost"))
    (line,) = said("registration_lost")
    assert line.startswith(f"registration_lost broker={mq.config.broker_name} nameserver={namesrv.address} reason=")


async def test_a_nameserver_that_comes_back_is_logged_as_known_before(mq, namesrv, said):
    await namesrv.stop()
    await eventually(lambda: said("registration_lost"))
    host, port = parse_address(namesrv.address)
    back = NameServer(NameServerConfig(host=host, port=port))
    await back.start()
    try:
        await eventually(lambda: len(said("registered")) == 2)
    finally:
        await back.stop()
    assert said("registered")[1] == f"registered broker={mq.config.broker_name} nameserver={namesrv.address} again=true"


async def test_what_administrators_change_in_groups_has_one_line_each(admin, mq, connect, said):
    ask = await connect(mq)
    await admin.create_topic("t", queues=1)
    for retries in (16, 16, 3):
        assert (await ask(200, {}, b'{"groupName":"cg","retryMaxTimes":%d}' % retries)).code == 0
    await admin.create_group("other")
    assert len(said("group_changed")) == 1
    assert said("group_changed")[0].startswith("group_changed group=cg peer=127.0.0.1:")
    forbid = {"topic": "t", "group": "cg"}
    assert (await ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**forbid, "readable": "false"})).code == 0
    assert (await ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid)).code == 0  # a question
    (line,) = said("group_permission_changed")
    assert line.startswith("group_permission_changed group=cg topic=t readable=false peer=127.0.0.1:")
    await ask.send("t")
    mq.offsets.commit("cg", "t", 0, 1)
    assert (await ask(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "cg", "destGroup": "other", "topic": "t"})).code == 0
    (line,) = said("offsets_cloned")
    assert line.startswith("offsets_cloned group=other source=cg topic=t peer=127.0.0.1:")


async def test_members_that_join_and_leave_have_their_group_rebalance(ask, connect, broker, clock, said):
    await ask.heartbeat(consumers=["cg"])
    await ask.heartbeat(consumers=["cg"])
    clock.advance(INTERVAL_S)
    other = await connect(broker)
    await other.heartbeat(consumers=["cg"], client_id="other")
    clock.advance(INTERVAL_S)
    await other.close()
    await eventually(lambda: len(said("group_rebalanced")) == 3)
    assert said("group_rebalanced") == [f"group_rebalanced group=cg members={members}" for members in (1, 2, 1)]


async def test_settings_that_are_changed_say_what_they_were(ask, said):
    assert (await ask(25, {}, b"autoCreateTopicEnable=false\n")).code == 0
    assert (await ask(25, {}, b"autoCreateTopicEnable=false\n")).code == 0
    (line,) = said("setting_changed")
    assert line.startswith("setting_changed setting=autoCreateTopicEnable was=true now=false peer=127.0.0.1:")


async def test_a_store_says_how_it_was_left(start_broker, connect, said):
    broker = await start_broker()
    assert said("store_opened")[0].startswith(f'store_opened path={quoted(broker.config.store.root)} after="nothing: it is new" took_ms=')
    await (await connect(broker)).send("orders")
    await broker.abort()
    broker = await start_broker(like=broker)
    await broker.stop()
    await start_broker(like=broker)
    crashed, clean = said("store_opened")[1:]
    assert ' after="a crash" ' in crashed
    assert " records=1 " in crashed
    assert ' after="a clean stop" ' in clean


async def test_a_half_message_that_cannot_be_read_is_named(ask, broker, clock, said):
    answer = await ask.send("orders", b"the body", properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02", f="4")
    log_offset = int(answer.ext["msgId"][16:], 16)
    record = bytes(broker.store.record_at(log_offset))
    (segment,) = (broker.config.store.root / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(log_offset + record.index(b"the body"))
        file.write(b"another!")
    clock.advance(60)
    broker.checks.fire()
    (line,) = said("half_message_damaged")
    assert line.startswith(f"half_message_damaged offset=0 log_offset={log_offset} reason=")
    assert not len(broker.transactions.open_halves)


async def test_an_outcome_that_is_refused_is_logged_as_nobody_waits_for_it(ask, said):
    fields = {"producerGroup": "pg", "topic": "orders", "tranStateTableOffset": "7", "commitLogOffset": "0", "commitOrRollback": "8"}
    for _ in range(3):
        assert (await ask(RequestCode.END_TRANSACTION, {**fields, "msgId": "U1", "transactionId": "U1"})).code != 0
    (line,) = said("transaction_end_refused")
    assert line.startswith("transaction_end_refused group=pg peer=127.0.0.1:")
