"""Heartbeats, groups that are online, and who is told when they change."""

import asyncio
from collections import Counter

from sprocketmq.broker import clients
from sprocketmq.broker.clients import LARGE_GROUP
from sprocketmq.clock import ManualClock
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import (
    CheckClientConfig,
    ConsumerConnection,
    ConsumerIdList,
    HeartbeatData,
    ProducerConnection,
    ProducerTable,
    SubscriptionData,
)
from sprocketmq.testing import eventually


async def ids(ask, group="cg"):
    answer = await ask(38, {"consumerGroup": group})
    return sorted(ConsumerIdList.decode(answer.body).consumer_id_list) if answer.code == 0 else answer.remark


async def test_a_heartbeat_puts_a_client_into_its_groups(ask, broker):
    answer = await ask.heartbeat("c1", consumers=["cg"], producers=["pg"])
    assert (answer.code, answer.ext) == (0, {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"})
    assert await ids(ask) == ["c1"]
    assert await ids(ask, "nosuch") == "no consumer for this group, nosuch"
    assert "cg" in broker.groups
    retry = broker.topics.get("%RETRY%cg").config
    assert (retry.read_queue_nums, retry.perm) == (1, 6)
    again = await ask.heartbeat("c1", consumers=["cg"], producers=["pg"])
    assert again.ext["IS_SUB_CHANGE"] == "false"


async def test_members_are_told_when_one_comes_and_when_one_goes(ask, broker, connect):
    await ask.heartbeat("c1", consumers=["cg"])
    assert (await ask.next_push()).ext == {"consumerGroup": "cg"}
    other = await connect(broker)
    await other.heartbeat("c2", consumers=["cg"])
    for member in (ask, other):
        push = await member.next_push()
        assert (push.code, push.is_oneway, push.ext) == (40, True, {"consumerGroup": "cg"})
    assert await ids(ask) == ["c1", "c2"]
    assert (await other(35, {"clientID": "c2", "consumerGroup": "cg"})).code == 0
    assert (await ask.next_push()).code == 40
    assert await ids(ask) == ["c1"]
    await other.heartbeat("c2", consumers=["cg"])
    assert (await ask.next_push()).code == 40
    await other.close()
    assert (await ask.next_push()).code == 40
    assert await ids(ask) == ["c1"]


async def test_the_list_of_members_is_encoded_once_for_all_who_ask(ask, broker, connect, monkeypatch):
    encoded = []

    def counted(names):
        encoded.append(names)
        return ConsumerIdList(names)

    monkeypatch.setattr(clients, "ConsumerIdList", counted)
    await ask.heartbeat("c1", consumers=["cg"])
    assert [await ids(ask) for _ in range(3)] == [["c1"]] * 3
    other = await connect(broker)
    await other.heartbeat("c2", consumers=["cg"])
    assert [await ids(ask) for _ in range(3)] == [["c1", "c2"]] * 3
    await other.heartbeat("c3", consumers=["cg"])
    assert [await ids(ask) for _ in range(3)] == [["c1", "c3"]] * 3
    await other.close()
    await eventually(lambda: len(broker.clients.consumers["cg"].members) == 1)
    assert [await ids(ask) for _ in range(3)] == [["c1"]] * 3
    assert len(encoded) == 4


async def test_a_changed_subscription_is_told_and_an_old_one_ignored(ask, broker):
    await ask.heartbeat(consumers=["cg"], expression="a", version=5)
    await ask.next_push()
    changed = await ask.heartbeat(consumers=["cg"], expression="b", version=6)
    assert changed.ext["IS_SUB_CHANGE"] == "true"
    await ask.next_push()
    old = await ask.heartbeat(consumers=["cg"], expression="c", version=4)
    assert old.ext["IS_SUB_CHANGE"] == "false"
    assert broker.clients.consumers["cg"].subscriptions["orders"].data.sub_string == "b"
    await ask.heartbeat(consumers=["cg"], topics=["other"], version=7)
    assert set(broker.clients.consumers["cg"].subscriptions) == {"other"}


async def test_members_that_subscribe_to_different_things_are_logged_once(ask, broker, connect, caplog):
    other = await connect(broker)
    with caplog.at_level("WARNING", "sprocketmq.broker.clients"):
        await ask.heartbeat("c1", consumers=["cg"], expression="a")
        await other.heartbeat("c2", consumers=["cg"], expression="a")
        assert not caplog.records
        await other.heartbeat("c2", consumers=["cg"], expression="b", version=6)
        await other.heartbeat("c2", consumers=["cg"], expression="b", version=6)
        await ask.heartbeat("c1", consumers=["cg"], expression="a")
    (record,) = caplog.records
    assert record.getMessage() == "subscriptions_differ group=cg topic=orders client=c2 wants=b other=c1 other_wants=a"
    with caplog.at_level("WARNING", "sprocketmq.broker.clients"):
        await other.heartbeat("c2", consumers=["cg"], topics=["more"], expression="a", version=7)
    assert "topic=more client=c2 wants=a other=c1 other_wants=nothing" in caplog.text


async def test_a_group_may_not_want_to_be_told(ask, broker):
    broker.groups.find("cg").notify_consumer_ids_changed_enable = False
    await ask.heartbeat("c1", consumers=["cg"])
    await ask.heartbeat("c1", consumers=["loud"])
    assert (await ask.next_push()).ext == {"consumerGroup": "loud"}


async def test_broadcasting_members_are_not_told(ask):
    await ask.heartbeat("c1", consumers=["cg"], message_model="BROADCASTING")
    await ask.heartbeat("c1", consumers=["loud"])
    assert (await ask.next_push()).ext == {"consumerGroup": "loud"}


async def test_groups_that_may_not_create_themselves_are_left_out(start_broker, connect):
    ask = await connect(await start_broker(auto_create_group=False))
    assert (await ask.heartbeat("c1", consumers=["cg"], producers=["pg"])).code == 0
    assert await ids(ask) == "no consumer for this group, cg"
    assert (await ask(204, {"producerGroup": "pg"})).code == 0


async def test_bad_heartbeats_are_refused_with_words(ask):
    for body in (b"", b"[]", b'{"clientID":7}', b"{}"):
        answer = await ask(34, {}, body)
        assert answer.code == 1
        assert answer.remark
    assert (await ask(34, {}, HeartbeatData("").encode())).remark == "a heartbeat names its client"
    assert (await ask.heartbeat("c1", consumers=["bad group"])).code == 29
    assert (await ask.heartbeat("c1", consumers=[f"g{number}" for number in range(1001)])).code == 1
    assert (await ask.heartbeat("c1", consumers=["cg"])).code == 0


async def test_a_client_has_at_most_a_thousand_groups_in_all(ask):
    groups = [f"g{number}" for number in range(999)]
    assert (await ask.heartbeat("c1", producers=groups)).code == 0
    assert (await ask.heartbeat("c1", producers=groups, consumers=["cg"])).code == 0
    for more in ({"producers": ["another"]}, {"consumers": ["another"]}):
        answer = await ask.heartbeat("c1", **more)
        assert (answer.code, answer.remark) == (1, "a client has at most 1000 groups")
    assert (await ask(35, {"clientID": "c1", "producerGroup": "g7"})).code == 0
    assert (await ask.heartbeat("c1", producers=["another"])).code == 0


async def test_silent_clients_are_closed_after_two_minutes(ask, broker, connect, clock):
    other = await connect(broker)
    await ask.heartbeat("c1", consumers=["cg"])
    await other.heartbeat("c2", consumers=["cg"])
    clock.advance(100)
    await ask.heartbeat("c1", consumers=["cg"])
    clock.advance(21)
    broker.expire_clients()
    await eventually(lambda: broker.connection_count == 1)
    assert await ids(ask) == ["c1"]


async def test_administrators_see_who_is_connected(ask):
    await ask.heartbeat("c1", consumers=["cg"], producers=["pg"], consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    answer = await ask(203, {"consumerGroup": "cg"})
    seen = ConsumerConnection.decode(answer.body)
    assert [(c.client_id, c.language, c.version) for c in seen.connection_set] == [("c1", "PYTHON", 513)]
    assert seen.connection_set[0].client_addr.startswith("127.0.0.1:")
    assert (seen.consume_from_where, seen.message_model, set(seen.subscription_table)) == (
        "CONSUME_FROM_FIRST_OFFSET",
        "CLUSTERING",
        {"orders"},
    )
    assert (await ask(203, {"consumerGroup": "nosuch"})).remark == "the consumer group[nosuch] not online"
    producers = ProducerConnection.decode((await ask(204, {"producerGroup": "pg"})).body)
    assert [c.client_id for c in producers.connection_set] == ["c1"]
    assert (await ask(204, {"producerGroup": "nosuch"})).remark == "the producer group[nosuch] not exist"
    table = ProducerTable.decode((await ask(328)).body).data
    assert table["pg"][0].remote_ip.startswith("/127.0.0.1:")


async def test_producers_leave(ask, broker):
    await ask.heartbeat("c1", producers=["pg"])
    await ask(35, {"clientID": "c1", "producerGroup": "pg"})
    assert broker.clients.producers == {}
    assert (await ask(35, {"clientID": "c1", "producerGroup": "pg", "consumerGroup": "cg"})).code == 0


async def test_subscriptions_can_be_checked(ask):
    def check(kind):
        return ask(46, {}, CheckClientConfig("c1", "cg", SubscriptionData("orders", "a", expression_type=kind)).encode())

    assert (await check("TAG")).code == 0
    assert (await check("SQL92")).code == 0
    answer = await check("XPATH")
    assert (answer.code, "types TAG and SQL92" in answer.remark.replace("type ", "types ")) == (23, True)


async def test_nothing_is_left_of_clients_that_went(ask, broker, connect):
    for n in range(5):
        other = await connect(broker)
        await other.heartbeat(f"c{n}", consumers=["cg", "cg2"], producers=["pg"])
        await other.close()
    await eventually(lambda: broker.connection_count == 1)
    assert (broker.clients.producers, broker.clients.consumers, broker.clients._of) == ({}, {}, {})
    assert isinstance(broker.clock, ManualClock)


async def test_members_are_notified_a_few_in_each_turn_of_the_loop(broker, connect, monkeypatch):
    monkeypatch.setattr(clients, "NOTICES_PER_TURN", 2)
    notices: Counter[int] = Counter()
    turn = 0
    notify = ServerConnection.oneway

    def count(conn, code, **more):
        notices[turn] += 1
        notify(conn, code, **more)

    def tick():
        nonlocal turn, ticking
        turn += 1
        ticking = loop.call_soon(tick)

    monkeypatch.setattr(ServerConnection, "oneway", count)
    loop = asyncio.get_running_loop()
    ticking = loop.call_soon(tick)
    members = [await connect(broker) for _ in range(LARGE_GROUP - 1)]
    for number, member in enumerate(members):
        notices.clear()
        await member.heartbeat(f"c{number}", consumers=["cg", "more"])
        # Each member is told of the change in both groups.
        await eventually(lambda: notices.total() == 2 * (number + 1))  # noqa: B023 - called in this round
        assert max(notices.values()) <= 2
    ticking.cancel()
    await eventually(lambda: [len(member.pushed) for member in members] == [2 * (len(members) - n) for n in range(len(members))])


async def test_the_members_of_a_large_group_are_not_told_of_each_that_joins(broker, connect, monkeypatch):
    monkeypatch.setattr(clients, "NOTICE_INTERVAL_PER_MEMBER_S", 3600)
    monkeypatch.setattr(clients, "MAX_NOTICE_INTERVAL_S", 3600)
    members = [await connect(broker) for _ in range(40)]
    for number, member in enumerate(members):
        await member.heartbeat(f"c{number}", consumers=["cg"])
    assert len(await ids(members[0])) == 40
    assert [len(member.pushed) for member in members] == [*range(LARGE_GROUP, 0, -1), *[0] * (40 - LARGE_GROUP)]


async def test_what_changed_after_a_notice_is_told_a_little_later(broker, connect, monkeypatch):
    monkeypatch.setattr(clients, "NOTICE_INTERVAL_PER_MEMBER_S", 0.001)
    members = [await connect(broker) for _ in range(40)]
    for number, member in enumerate(members):
        await member.heartbeat(f"c{number}", consumers=["cg"])
    assert (await members[-1].next_push()).code == 40
    for member in members:
        member.pushed.clear()
    await members.pop().close()
    for member in members:
        assert (await member.next_push()).code == 40
