"""What administrators and tools ask a broker."""

import json
import re

import pytest
from asking import Asking, exchange

from sprocketmq.broker import groups
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.bodies import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeStats,
    GroupList,
    GroupSubscription,
    ResetOffsets,
    RuntimeInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicStats,
)
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.config import ConfigFile
from sprocketmq.testing import eventually


async def test_topics_are_listed_whole_or_in_pages(ask, broker):
    answer = await ask(21)
    table = TopicConfigTable.decode(answer.body)
    assert answer.ext == {"totalTopicNum": str(len(broker.topics))}
    assert table.topic_config_table["orders"] == TopicConfig("orders", 4, 4)
    assert table.data_version == broker.topics.data_version
    names = []
    for start in range(0, len(broker.topics), 5):
        page = await ask(21, {"topicSeq": str(start), "maxTopicNum": "5", "dataVersion": ""})
        names += TopicConfigTable.decode(page.body).topic_config_table
    assert names == list(table.topic_config_table)
    assert TopicConfigTable.decode((await ask(21, {"topicSeq": "-3", "maxTopicNum": "2"})).body).topic_config_table


async def test_one_topic_is_looked_up(ask):
    assert TopicConfig.decode((await ask(351, {"topic": "orders"})).body) == TopicConfig("orders", 4, 4)
    answer = await ask(351, {"topic": "nosuch"})
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: nosuch")


async def test_topic_statistics(ask, clock):
    clock.advance(5)
    await ask.send("orders", queue=1)
    stats = TopicStats.decode((await ask(202, {"topic": "orders"})).body).offset_table
    assert len(stats) == 4
    filled = stats[MessageQueue("orders", "broker-a", 1)]
    assert (filled.min_offset, filled.max_offset, filled.last_update_timestamp) == (0, 1, clock.time_ms())
    assert stats[MessageQueue("orders", "broker-a", 0)].last_update_timestamp == 0
    answer = await ask(202, {"topic": "nosuch"})
    assert (answer.code, answer.remark) == (17, "topic[nosuch] not exist")


async def test_a_deleted_topic_takes_queues_and_offsets_along_and_can_come_back(ask, broker):
    broker.groups.find("cg")
    await ask.send("orders")
    await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "1"})
    assert (await ask(215, {"topic": "orders"})).code == 0
    assert "orders" not in broker.topics
    assert broker.offsets.get("cg", "orders", 0) is None
    assert (await ask.pull("orders", 0)).code == 17
    assert (await ask(215, {"topic": "orders"})).code == 0
    assert (await ask.send("orders", b"again")).ext["queueOffset"] == "0"
    assert await ask.bodies("orders") == [b"again"]


@pytest.mark.parametrize(("name", "code"), [("TBW102", 29), ("broker-a", 29), (" ", 1)])
async def test_topics_that_may_not_be_deleted(ask, name, code):
    assert (await ask(215, {"topic": name})).code == code


async def test_sends_before_a_deletion_in_the_same_readiness_are_acknowledged(ask, broker):
    frames = encode_command(Command(310, opaque=1, ext=ask.send_ext("orders"), body=b"x"))
    frames += encode_command(Command(215, opaque=2, ext={"topic": "orders"}))
    frames += encode_command(Command(310, opaque=3, ext=ask.send_ext("orders", c="nosuch"), body=b"x"))
    answers = {a.opaque: a.code for a in await exchange(broker.address, frames, answers=3)}
    assert answers == {1: 0, 2: 0, 3: 17}


async def test_system_topics(ask):
    names = TopicList.decode((await ask(305)).body).topic_list
    assert {"TBW102", "DefaultCluster", "broker-a", "SCHEDULE_TOPIC_XXXX"} <= set(names)


# --- groups -------------------------------------------------------------------------------------------------------------


async def test_groups_are_put_looked_up_listed_and_deleted(ask, broker, tmp_path):
    group = SubscriptionGroupConfig("billing", retry_max_times=3)
    assert (await ask(200, {}, group.encode())).code == 0
    assert SubscriptionGroupConfig.decode((await ask(352, {"group": "billing"})).body) == group
    answer = await ask(201)
    table = SubscriptionGroupTable.decode(answer.body)
    assert answer.ext == {"totalGroupNum": "9"}
    assert table.subscription_group_table["billing"] == group
    page = SubscriptionGroupTable.decode((await ask(201, {"groupSeq": "7", "maxGroupNum": "5"})).body)
    assert len(page.subscription_group_table) == 2
    await broker.files.groups.saved()
    assert '"retryMaxTimes":3' in (tmp_path / "store/config/subscriptionGroup.json").read_text()
    assert (await ask(207, {"groupName": "billing", "cleanOffset": "true"})).code == 0
    assert "billing" not in broker.groups


async def forbid(ask, topic="orders", group="cg", **fields):
    answer = await ask(353, {"group": group, "topic": topic, **fields})
    assert answer.code == 0
    return json.loads(answer.body)


async def test_a_group_can_be_kept_from_reading_a_topic(ask, broker, tmp_path):
    assert await forbid(ask) == {"group": "cg", "topic": "orders", "readable": True}
    assert (await forbid(ask, readable="false"))["readable"] is False
    assert (await forbid(ask, "other", readable="false"))["readable"] is False
    assert (await forbid(ask))["readable"] is False
    assert SubscriptionGroupTable.decode((await ask(201)).body).forbidden_table == {"cg": {"orders": 4, "other": 4}}
    await broker.files.groups.saved()
    saved = ConfigFile(tmp_path / "store/config/subscriptionGroup.json").load()
    assert saved["forbiddenTable"] == {"cg": {"orders": 4, "other": 4}}
    assert (await forbid(ask, readable="true"))["readable"] is True
    assert (await forbid(ask, "other"))["readable"] is False, "the prohibition of another topic stays"
    assert (await ask(207, {"groupName": "cg"})).code == 0
    assert broker.groups.table().forbidden_table == {}


async def test_pulls_of_a_forbidden_topic_are_refused_and_those_that_bring_their_subscription_are_not(ask, broker):
    await ask.heartbeat(consumers=["cg"])
    await ask.send("orders", b"x")
    await forbid(ask, readable="false")
    answer = await ask.pull("orders", 0, sysFlag="0")
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "5"})
    assert answer.remark == "the consumer group[cg] is forbidden for topic[orders]"
    assert await ask.bodies("orders") == [b"x"]
    await forbid(ask, readable="true")
    assert await ask.bodies("orders", sysFlag="0") == [b"x"]


async def test_waiting_pulls_are_refused_when_their_topic_is_forbidden(ask, broker):
    await ask.heartbeat(consumers=["cg", "others"])
    waiting = ask.pull("orders", 0, wait_ms=30_000, sysFlag="2")
    brings_its_own = ask.pull("orders", 0, wait_ms=30_000)
    another_group = ask.pull("orders", 0, wait_ms=30_000, sysFlag="2", group="others")
    await eventually(lambda: broker.pulls.held_count == 3)
    await forbid(ask, readable="false")
    answer = await waiting
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "5"})
    assert broker.pulls.held_count == 2
    await ask.send("orders", b"x")
    assert [(await pull).code for pull in (brings_its_own, another_group)] == [0, 0]


async def test_what_is_forbidden_outlives_a_restart_and_other_bits_are_kept(start_broker, connect, tmp_path):
    path = tmp_path / "store/config/subscriptionGroup.json"
    ConfigFile(path).save({"subscriptionGroupTable": {}, "forbiddenTable": {"cg": {"orders": 6, "strange": -1}}, "dataVersion": {}})
    broker = await start_broker()
    assert not broker.groups.may_read("cg", "orders")
    assert broker.groups.may_read("cg", "strange"), "numbers below 0 forbid nothing, as in Apache's broker"
    broker.groups.forbid_reading("cg", "orders", forbidden=False)
    assert broker.groups.table().forbidden_table["cg"]["orders"] == 2


async def test_the_number_of_forbidden_topics_is_bounded(ask, monkeypatch):
    monkeypatch.setattr(groups, "MAX_FORBIDDEN", 1)
    await forbid(ask, readable="false")
    await forbid(ask, readable="false")
    answer = await ask(353, {"group": "cg", "topic": "more", "readable": "false"})
    assert (answer.code, answer.remark) == (1, "1 pairs of group and topic are forbidden on this broker, its limit")


async def test_looking_for_a_group_creates_it_where_that_is_allowed(ask, broker, start_broker, connect):
    assert (await ask(352, {"group": "fresh"})).code == 0
    assert "fresh" in broker.groups
    strict = await connect(await start_broker("strict", auto_create_group=False))
    assert (await strict(352, {"group": "fresh"})).code == 26


@pytest.mark.parametrize(
    "body", [b"", b"[]", SubscriptionGroupConfig("bad group").encode(), SubscriptionGroupConfig("g", retry_queue_nums=-1).encode()]
)
async def test_bad_groups_are_refused(ask, body):
    answer = await ask(200, {}, body)
    assert answer.code in (1, 29)
    assert answer.remark


async def test_how_far_a_group_has_read(ask, broker, clock):
    broker.groups.find("cg")
    stored = []
    for _ in range(3):
        clock.advance(1)
        stored.append(clock.time_ms())
        await ask.send("orders")
    await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "2"})
    await ask.pull("orders", 3)
    stats = ConsumeStats.decode((await ask(208, {"consumerGroup": "cg", "topic": "orders"})).body).offset_table
    first = stats[MessageQueue("orders", "broker-a", 0)]
    assert (first.broker_offset, first.consumer_offset, first.pull_offset, first.last_timestamp) == (3, 2, 3, stored[1])
    everything = ConsumeStats.decode((await ask(208, {"consumerGroup": "cg"})).body).offset_table
    assert set(everything) == set(stats)
    assert ConsumeStats.decode((await ask(208, {"consumerGroup": "nosuch"})).body).offset_table == {}


async def test_who_reads_what(ask):
    await ask.heartbeat(consumers=["online"])
    await ask(15, {"consumerGroup": "online", "topic": "orders", "queueId": "0", "commitOffset": "0"})
    assert GroupList.decode((await ask(300, {"topic": "orders"})).body).group_list == ["online"]
    topics = TopicList.decode((await ask(343, {"group": "online"})).body)
    assert topics.topic_list == ["orders"]
    assert topics.broker_addr == ask.broker.address


async def test_how_far_every_group_has_read(ask, broker):
    await ask(200, {}, SubscriptionGroupConfig("ordered", consume_message_orderly=True).encode())
    broker.groups.find("cg")
    for _ in range(3):
        await ask.send("orders")
    for group, offset in (("cg", 2), ("ordered", 1)):
        await ask(15, {"consumerGroup": group, "topic": "orders", "queueId": "0", "commitOffset": str(offset)})
    await ask.pull("orders", 3)
    body = BrokerConsumeStats.decode((await ask(317, {"isOrder": "false"})).body)
    tables = {name: tables for entry in body.consume_stats_list for name, tables in entry.items()}
    assert set(tables) == {*broker.groups.table().subscription_group_table}
    (stats,) = tables["cg"]
    assert stats.offset_table[MessageQueue("orders", "broker-a", 0)].consumer_offset == 2
    assert tables["ordered"] == []
    assert (body.broker_addr, body.total_diff, body.total_inflight_diff) == (broker.address, 1, 1)
    body = BrokerConsumeStats.decode((await ask(317, {"isOrder": "true"})).body)
    assert (body.total_diff, [name for entry in body.consume_stats_list for name, tables in entry.items() if tables]) == (2, ["ordered"])


async def test_counters_of_topics_and_groups(ask, broker, clock):
    async def counter(name, key):
        answer = await ask(315, {"statsName": name, "statsKey": key})
        assert answer.code == 0
        stats = BrokerStats.decode(answer.body)
        return stats.stats_minute.sum, stats.stats_hour.sum, stats.stats_day.sum

    for _ in range(6):
        await ask.send("orders")
    clock.advance(30)
    broker.windows.sample()
    await ask.send("orders")
    await ask.pull("orders", 0)
    assert await counter("TOPIC_PUT_NUMS", "orders") == (7, 7, 7)
    assert await counter("GROUP_GET_NUMS", "orders@cg") == (7, 7, 7)
    clock.advance(40)
    assert await counter("TOPIC_PUT_NUMS", "orders") == (1, 7, 7)
    assert TopicStats.decode((await ask(202, {"topic": "orders"})).body).topic_put_tps == pytest.approx(1 / 40)
    for _ in range(3):
        clock.advance(30)
        broker.windows.sample()
    assert await counter("GROUP_GET_NUMS", "orders@cg") == (0, 7, 7)
    assert await counter("TOPIC_PUT_NUMS", "orders") == (0, 7, 7)
    for name, key in (
        ("nosuch", "orders"),
        ("TOPIC_PUT_NUMS", "nosuch"),
        ("GROUP_GET_NUMS", "orders"),
        ("GROUP_GET_NUMS", "orders@nosuch"),
        ("SNDBCK_PUT_NUMS", "orders@cg"),
        ("BROKER_PUT_NUMS", "nosuch"),
        ("BROKER_ACK_NUMS", "DefaultCluster"),
        ("CHANNEL_ACTIVITY", "IDLE"),
    ):
        answer = await ask(315, {"statsName": name, "statsKey": key})
        assert (answer.code, answer.remark) == (1, f"The stats <{name}> <{key}> not exist")


async def test_what_an_online_group_wants_of_a_topic(ask):
    await ask.heartbeat(consumers=["cg"], expression="a || b")
    body = GroupSubscription.decode((await ask(345, {"group": "cg", "topic": "orders"})).body)
    assert (body.group, body.topic, sorted(body.subscription_data.tags_set)) == ("cg", "orders", ["a", "b"])
    assert GroupSubscription.decode((await ask(345, {"group": "nosuch", "topic": "orders"})).body).subscription_data is None


# --- where groups go on -------------------------------------------------------------------------------------------------


def reset_ext(group="cg", topic="orders", *, timestamp=0, **more):
    return {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true", **more}


async def reset(ask, **how):
    answer = await ask(222, reset_ext(**how))
    assert answer.code == 0
    return {queue.queue_id: offset for queue, offset in ResetOffsets.decode(answer.body).offset_table.items()}


async def test_offsets_are_reset_to_a_time_the_end_or_an_offset(ask, broker, clock):
    broker.groups.find("cg")
    times = []
    for _ in range(3):
        clock.advance(1)
        times.append(clock.time_ms())
        await ask.send("orders", queue=1)
    assert await reset(ask, timestamp=times[1]) == {0: 0, 1: 1, 2: 0, 3: 0}
    assert await reset(ask, timestamp=times[2] + 1) == {0: 0, 1: 3, 2: 0, 3: 0}
    assert await reset(ask, timestamp=-1) == {0: 0, 1: 3, 2: 0, 3: 0}
    assert await reset(ask, timestamp=0) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert await reset(ask, queueId="1", offset="2") == {1: 2}
    assert await reset(ask, queueId="1", offset="-1", timestamp=-1) == {1: 3}
    assert broker.offsets.get("cg", "orders", 1) == 3


async def test_times_behind_the_last_batch_are_the_end_of_a_batch_queue(ask, broker, clock):
    broker.groups.find("cg")
    create = {"topic": "bulk", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    create |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+queue.type=BatchCQ"}
    await ask(17, create)
    await ask.send_batch("bulk", [b"a", b"b"], properties="UNIQ_KEY\x01B\x02")
    stored = clock.time_ms()
    assert await reset(ask, topic="bulk", timestamp=stored) == {0: 0}
    assert await reset(ask, topic="bulk", timestamp=stored + 1) == {0: 2}
    for number in range(2):
        await ask.send_batch("bulk", [b"c"], properties=f"UNIQ_KEY\x01C{number}\x02")
    assert await reset(ask, topic="bulk", timestamp=stored) == {0: 0}, "not the last one of that time"
    clock.advance(1)
    for number in range(3):
        await ask.send_batch("bulk", [b"d"] * 5, properties=f"UNIQ_KEY\x01D{number}\x02")
    assert await reset(ask, topic="bulk", timestamp=stored + 1) == {0: 4}
    assert await reset(ask, topic="bulk", timestamp=stored + 1000) == {0: 4}
    assert await reset(ask, topic="bulk", timestamp=stored + 1001) == {0: 19}


@pytest.mark.parametrize(
    ("wrong", "code", "remark"),
    [
        ({"topic": "nosuch"}, 17, "Topic nosuch does not exist"),
        ({"group": "nosuch"}, 26, "Group nosuch does not exist"),
        ({"queueId": "4", "offset": "0"}, 29, "queueId[4] is illegal, topic:[orders] topicConfig.readQueueNums:[4]"),
        ({"queueId": "0", "offset": "1"}, 1, "Target offset 1 not in consume queue range [0-0]"),
    ],
)
async def test_resets_that_cannot_be_are_refused(ask, broker, wrong, code, remark):
    broker.groups.find("cg")
    answer = await ask(222, reset_ext(**wrong))
    assert (answer.code, answer.remark) == (code, remark)


async def test_a_member_is_told_of_a_reset_at_its_next_pull_and_its_commits_before_do_not_count(ask, broker):
    await ask.heartbeat(consumers=["cg"])
    for _ in range(5):
        await ask.send("orders")
    await reset(ask, queueId="0", offset="1")
    late = await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "4"})
    assert (late.code, late.remark) == (0, "Offset has been previously reset")
    answer = await ask.pull("orders", 4, sysFlag="5", commitOffset="4")
    assert (answer.code, answer.remark) == (21, "OFFSET_RESET")
    assert [answer.ext[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")] == ["1", "0", "5"]
    late = await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "5"})
    assert (late.code, late.remark) == (0, "Offset has been previously reset"), "it may not have read the answer yet"
    assert broker.offsets.get("cg", "orders", 0) == 1
    assert (await ask.pull("orders", 1)).code == 0
    await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "2"})
    assert broker.offsets.get("cg", "orders", 0) == 2


async def test_a_member_that_is_there_already_reads_on(ask):
    await ask.heartbeat(consumers=["cg"])
    for _ in range(5):
        await ask.send("orders")
    await reset(ask, queueId="0", offset="1")
    assert (await ask.pull("orders", 1)).code == 0
    assert (await ask.pull("orders", 4)).code == 0


async def test_a_member_is_told_of_a_reset_once(ask, broker):
    await ask.heartbeat(consumers=["cg"])
    for _ in range(5):
        await ask.send("orders")
    await reset(ask, queueId="0", offset="1")
    assert (await ask.pull("orders", 3)).code == 21
    assert (await ask.pull("orders", 3)).code == 0
    await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "4"})
    assert broker.offsets.get("cg", "orders", 0) == 4


async def test_committing_where_one_was_sent_shows_that_one_knows(ask, broker):
    await ask.heartbeat(consumers=["cg"])
    for _ in range(5):
        await ask.send("orders")
    await reset(ask, queueId="0", offset="1")
    for offset in (1, 3):
        answer = await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": str(offset)})
        assert (answer.code, answer.remark) == (0, None)
    assert broker.offsets.get("cg", "orders", 0) == 3


async def test_without_members_commits_of_administrators_count_after_a_reset(ask, broker):
    broker.groups.find("cg")
    await ask.send("orders")
    await reset(ask, timestamp=-1)
    answer = await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "0"})
    assert (answer.code, answer.remark) == (0, None)
    assert broker.offsets.get("cg", "orders", 0) == 0
    assert (await ask.pull("orders", 1)).remark == "OFFSET_OVERFLOW_ONE"


async def test_a_waiting_member_is_told_of_a_reset_at_once(ask, broker, connect):
    broker.groups.find("other")
    for _ in range(3):
        await ask.send("orders")
    member, stranger = await connect(broker), await connect(broker)
    waiting = member.request(11, member.pull_ext("orders", 3, wait_ms=20_000))
    elsewhere = stranger.request(11, stranger.pull_ext("orders", 3, group="other", wait_ms=20_000))
    await member(351, {"topic": "orders"})
    await stranger(351, {"topic": "orders"})
    await reset(ask, queueId="0", offset="3")
    await member(351, {"topic": "orders"})
    assert not waiting.done(), "it is where it should be"
    await reset(ask, queueId="0", offset="1")
    answer = await waiting
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "1")
    assert not elsewhere.done()
    assert (await member.pull("orders", 1)).code == 0
    await ask.send("orders")
    assert (await elsewhere).code == 0


async def test_a_deleted_group_takes_its_resets_along(ask, broker):
    broker.groups.find("cg")
    await ask.send("orders")
    await reset(ask, timestamp=-1)
    await ask(207, {"groupName": "cg", "cleanOffset": "true"})
    assert broker.offsets.resets == {}


async def test_offsets_are_given_to_another_group(ask, broker):
    broker.groups.find("cg")
    broker.topics.create_internal("others", 1)
    for topic, offset in (("orders", 2), ("others", 3)):
        await ask(15, {"consumerGroup": "cg", "topic": topic, "queueId": "0", "commitOffset": str(offset)})
    assert (await ask(314, {"srcGroup": "cg", "destGroup": "one", "topic": "orders", "offline": "true"})).code == 0
    assert (await ask(314, {"srcGroup": "cg", "destGroup": "all", "topic": "", "offline": "true"})).code == 0
    assert [broker.offsets.get(group, topic, 0) for group in ("one", "all") for topic in ("orders", "others")] == [2, None, 2, 3]


# --- what members tell of themselves ------------------------------------------------------------------------------------


@pytest.fixture
async def member(broker):
    """A member of group ``cg`` that answers what the broker asks with what ``answers`` has for the code."""
    asked = []
    answers = {}

    def on_request(conn, command):
        asked.append((command.code, dict(command.ext), bytes(command.body)))
        if command.code in answers:
            code, remark, body = answers[command.code]
            response = Command(code, opaque=command.opaque, flag=1, remark=remark, body=body)
            conn.write(encode_command(response))

    client = Asking(broker)
    client.pool = ConnectionPool(expected="broker", on_request=on_request)
    await client.open()
    await client.heartbeat("c1", consumers=["cg"])
    asked.clear()
    client.asked, client.answers = asked, answers
    yield client
    await client.close()


async def test_members_tell_where_they_are(ask, member):
    table = {MessageQueue("orders", "broker-a", 0): 7}
    member.answers[221] = (0, None, ConsumerStatus(table).encode())
    for client in ("", "c1"):
        answer = await ask(223, {"topic": "orders", "group": "cg", "clientAddr": client})
        assert ConsumerStatus.decode(answer.body).consumer_table == {"c1": table}
    assert member.asked == [(221, {"topic": "orders", "group": "cg"}, b"")] * 2
    answer = await ask(223, {"topic": "orders", "group": "cg", "clientAddr": "c2"})
    assert ConsumerStatus.decode(answer.body).consumer_table == {}
    answer = await ask(223, {"topic": "orders", "group": "nosuch"})
    assert (answer.code, answer.remark) == (206, "the consumer group[nosuch] not online")


@pytest.mark.parametrize("bad", [(1, "no", b""), (0, None, b"junk"), (0, None, b"")])
async def test_members_that_answer_with_nothing_of_use_are_left_out(ask, member, bad):
    member.answers[221] = bad
    answer = await ask(223, {"topic": "orders", "group": "cg"})
    assert (answer.code, ConsumerStatus.decode(answer.body).consumer_table) == (0, {})


async def test_a_member_is_asked_what_it_is_doing(ask, member):
    info = ConsumerRunningInfo({"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}).encode()
    member.answers[307] = (0, None, info)
    question = {"consumerGroup": "cg", "clientId": "c1", "jstackEnable": "false"}
    answer = await ask(307, question)
    assert (answer.code, answer.body) == (0, info)
    assert member.asked == [(307, question, b"")]
    member.answers[307] = (1, "The Consumer Group <cg> not exist in this consumer", b"")
    answer = await ask(307, question)
    assert (answer.code, answer.remark) == (1, "The Consumer Group <cg> not exist in this consumer")
    answer = await ask(307, question | {"clientId": "c2"})
    assert (answer.code, answer.remark) == (1, "The Consumer <cg> <c2> not online")


async def test_a_member_consumes_one_message_now(ask, member):
    sent = await ask.send("orders", b"this one")
    member.answers[309] = (0, None, ConsumeDirectlyResult().encode())
    answer = await ask(309, {"consumerGroup": "cg", "clientId": "c1", "msgId": sent.ext["msgId"], "topic": "orders"})
    assert ConsumeDirectlyResult.decode(answer.body).consume_result == "CR_SUCCESS"
    ((code, ext, body),) = member.asked
    assert (code, ext["clientId"], [bytes(m.body) for m in decode_records(body)]) == (309, "c1", [b"this one"])
    answer = await ask(309, {"consumerGroup": "cg", "clientId": "c1", "msgId": sent.ext["msgId"][:-1] + "1"})
    assert (answer.code, answer.remark) == (1, "can not find message by the offset, 1")


async def test_a_member_that_does_not_answer_or_goes_away_is_told_of(ask, member, monkeypatch):
    monkeypatch.setattr("sprocketmq.broker.members.MEMBER_TIMEOUT_S", 0.01)
    question = {"consumerGroup": "cg", "clientId": "c1"}
    answer = await ask(307, question)
    assert (answer.code, "does not answer: no answer from" in answer.remark) == (1, True)
    assert (await ask(223, {"topic": "orders", "group": "cg"})).code == 0
    monkeypatch.setattr("sprocketmq.broker.members.MEMBER_TIMEOUT_S", 5)
    waiting = ask.request(307, question)
    await eventually(lambda: len(member.asked) == 3)
    await member.close()
    answer = await waiting
    assert (answer.code, "does not answer: connection to" in answer.remark) == (1, True)


# --- messages and the broker --------------------------------------------------------------------------------------------


async def test_one_message_is_looked_up_by_its_place(ask):
    await ask.send("orders", b"first")
    second = await ask.send("orders", b"second")
    physical = int(second.ext["msgId"][-16:], 16)
    answer = await ask(33, {"offset": str(physical)})
    (message,) = decode_records(answer.body)
    assert (bytes(message.body), message.offset_msg_id) == (b"second", second.ext["msgId"])


@pytest.mark.parametrize("offset", [-1, 1, 10**6, 2**63 - 1])
async def test_a_place_without_a_message(ask, offset):
    await ask.send("orders")
    answer = await ask(33, {"offset": str(offset)})
    assert (answer.code, answer.remark, answer.ext) == (1, f"can not find message by the offset, {offset}", {})


# What `mqadmin clusterList` and `brokerStatus` read, and how they parse it.
SPACED = ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")
NUMBERS = (
    *("msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning", "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
    *("msgGetTotalYesterdayMorning", "earliestMessageTimeStamp", "commitLogDiskRatio", "pageCacheLockTimeMills", "bootTimestamp"),
    *("sendThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize", "pullThreadPoolQueueHeadWaitTimeMills"),
    *("timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps", "commitLogMaxOffset"),
)


async def test_runtime_information_has_what_tools_parse(ask, broker, clock):
    for _ in range(20):
        await ask.send("orders", bytes(100))
    await ask.bodies("orders")
    clock.advance(10)
    broker.stats.sample()
    table = RuntimeInfo.decode((await ask(28)).body).table
    assert table["brokerVersionDesc"] == "V5_5_0"
    assert table["brokerActive"] == "true"
    for name in SPACED:
        assert [float(word) for word in table[name].split(" ") if word], name
        assert table[name].endswith(" ")
    assert table["putTps"].split(" ")[0] == "2.0000"
    for name in NUMBERS:
        float(table[name])
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("20", "20")
    assert re.fullmatch(r"\[ 0 days, 0 hours, 0 minutes, 10 seconds \]", table["runtime"])
    assert int(table["commitLogMaxOffset"]) == broker.store.commitlog_max_offset


async def test_an_empty_broker_has_runtime_information_too(ask):
    table = RuntimeInfo.decode((await ask(28)).body).table
    assert table["earliestMessageTimeStamp"] == "-1"
    assert [table[name] for name in ("connections", "brokenConnections", "refusedConnections", "failedRequests")] == ["1", "0", "0", "0"]


async def test_the_configuration_is_lines_of_text(ask, broker):
    answer = await ask(26)
    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert lines["brokerName"] == "broker-a"
    assert lines["listenPort"] == broker.address.rpartition(":")[2]
    assert '"counter"' in answer.ext["version"]


async def test_a_store_whose_path_is_no_text_is_shown_with_escapes(start_broker, connect, tmp_path):
    """The system takes any bytes as a name, and Python keeps those that it cannot decode as surrogates."""
    ask = await connect(await start_broker("st\udcffre"))
    shown = f"{tmp_path}/st\\udcffre"
    assert f"commitLogDiskRatio_{shown}/commitlog" in RuntimeInfo.decode((await ask(28)).body).table
    assert f"\nstorePathRootDir={shown}\n" in (await ask(26)).body.decode()


async def test_the_number_of_groups_is_bounded(ask, broker, monkeypatch):
    from sprocketmq.broker import groups

    monkeypatch.setattr(groups, "MAX_GROUPS", 9)
    assert (await ask(352, {"group": "first"})).code == 0
    answer = await ask(352, {"group": "second"})
    assert (answer.code, answer.remark) == (1, "this broker has 9 subscription groups, its limit")
    assert (await ask.pull("orders", 0, group="second")).code == 1
    assert (await ask(200, {}, SubscriptionGroupConfig("first", retry_max_times=1).encode())).code == 0
    assert (await ask(207, {"groupName": "nosuch"})).code == 0


async def test_progress_of_an_online_group_covers_what_it_subscribes_to(ask):
    await ask.heartbeat(consumers=["cg"])
    stats = ConsumeStats.decode((await ask(208, {"consumerGroup": "cg"})).body).offset_table
    assert {queue.topic for queue in stats} == {"orders"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("+lite.bind.topic", "the attribute lite.bind.topic cannot be set: this broker has no lite topics"),
        ("+nosuch", "unsupported key: nosuch"),
    ],
)
async def test_attributes_of_groups_are_refused_by_name(ask, broker, name, says):
    answer = await ask(200, {}, SubscriptionGroupConfig("billing", attributes={name: "1"}).encode())
    assert (answer.code, answer.remark) == (1, says)
    assert "billing" not in broker.groups


async def test_the_priority_factor_of_a_group(ask, broker):
    async def put(**attributes):
        answer = await ask(200, {}, SubscriptionGroupConfig("billing", attributes=attributes).encode())
        return answer.code, answer.remark or ""

    assert await put(**{"-priority.factor": ""}) == (1, "only add attribute is supported while creating topic. key: priority.factor")
    assert await put(**{"+priority.factor": "101"}) == (1, "value is not in range(0, 100)")
    assert "billing" not in broker.groups
    assert await put(**{"+priority.factor": "30"}) == (0, "")
    assert broker.groups.get("billing").attributes == {"priority.factor": "30"}
    assert await put() == (0, "")  # what is not named stays, as in the reference
    assert broker.groups.get("billing").attributes == {"priority.factor": "30"}
    assert (await put(**{"priority.factor": "40"}))[0] == 1
    assert await put(**{"-priority.factor": ""}) == (0, "")
    assert broker.groups.get("billing").attributes == {}


async def test_a_group_of_apaches_store_keeps_its_attributes(ask, broker):
    tree = broker.groups.snapshot()
    has = {"lite.bind.topic": "parent", "priority.factor": "50"}
    tree["subscriptionGroupTable"]["moved"] = {"groupName": "moved", "attributes": has}
    broker.groups.load(tree)
    changed = SubscriptionGroupConfig("moved", retry_max_times=3, attributes=has)
    assert (await ask(200, {}, changed.encode())).code == 0
    assert broker.groups.get("moved") == changed


async def test_lite_topics_are_refused_and_not_taken_for_their_parent(ask):
    await ask.send("orders")
    for answer in (
        await ask.pull("orders", 0, liteTopic="a"),
        await ask(29, {"topic": "orders", "queueId": "0", "timestamp": "0", "liteTopic": "a"}),
    ):
        assert (answer.code, answer.remark) == (29, "this broker has no lite topics: leave out liteTopic")
