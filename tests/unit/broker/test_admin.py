"""What administrators and tools ask a broker."""

import re

import pytest

from sprocketmq.protocol.bodies import (
    ConsumeStats,
    GroupList,
    RuntimeInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicStats,
)
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import decode_records


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
    from asking import exchange

    from sprocketmq.protocol.command import Command, encode_command

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
    await broker._groups_file.saved()
    assert '"retryMaxTimes":3' in (tmp_path / "store/config/subscriptionGroup.json").read_text()
    assert (await ask(207, {"groupName": "billing", "cleanOffset": "true"})).code == 0
    assert "billing" not in broker.groups


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


async def test_the_configuration_is_lines_of_text(ask, broker):
    answer = await ask(26)
    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert lines["brokerName"] == "broker-a"
    assert lines["listenPort"] == broker.address.rpartition(":")[2]
    assert '"counter"' in answer.ext["version"]


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
