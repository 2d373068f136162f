"""Apache's admin tool works against our nameserver and broker, and prints what is true."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import JavaClient
from tests.interop.ours import OurProcess
from tests.interop.reading import pull_all
from tests.interop.sides import until

from sprocketmq import AdminClient, Message, Producer, PushConsumer
from sprocketmq.protocol.message import MessageQueue

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def rows(printed: str) -> list[list[str]]:
    """Return the words of each line that is no heading."""
    return [line.split() for line in printed.splitlines() if line.strip() and not line.startswith("#")]


async def broker_names(cluster: OurProcess) -> tuple[str, str]:
    """Return the names of our cluster and of its only broker."""
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        (found,) = (await admin.cluster()).cluster_addr_table.items()
    name, (broker,) = found
    return name, broker


async def test_cluster_list_shows_our_broker(java: JavaClient, our_cluster: OurProcess) -> None:
    cluster, broker = await broker_names(our_cluster)
    (row,) = rows(java.mqadmin("clusterList", "-n", our_cluster.namesrv))
    assert row[:4] == [cluster, broker, "0", our_cluster.broker]
    assert row[-1] == "true", "the broker is active"


async def test_update_topic_creates_and_changes_and_delete_topic_removes(java: JavaClient, our_cluster: OurProcess) -> None:
    cluster, broker = await broker_names(our_cluster)
    namesrv = our_cluster.namesrv
    printed = java.mqadmin("updateTopic", "-n", namesrv, "-c", cluster, "-t", "AdminMade", "-r", "3", "-w", "3")
    assert f"create topic to {our_cluster.broker} success" in printed
    async with AdminClient(namesrv=namesrv) as admin:
        assert [queue.queue_id for queue in await admin.queues("AdminMade")] == [0, 1, 2]
        assert "success" in java.mqadmin("updateTopic", "-n", namesrv, "-b", our_cluster.broker, "-t", "AdminMade", "-r", "5", "-w", "5")
        assert (await admin.topic_config("AdminMade"))[broker].write_queue_nums == 5
        assert "AdminMade" in java.mqadmin("topicList", "-n", namesrv).split()
        assert "success" in java.mqadmin("deleteTopic", "-n", namesrv, "-c", cluster, "-t", "AdminMade")
        assert "AdminMade" not in await admin.topics()
    assert "AdminMade" not in java.mqadmin("topicList", "-n", namesrv).split()


async def test_cleaning_commands_are_answered(java: JavaClient, our_cluster: OurProcess) -> None:
    cluster, _ = await broker_names(our_cluster)
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        where = ("-n", our_cluster.namesrv, "-c", cluster)
        assert "success" in java.mqadmin(command, *where), command


async def test_update_topic_carries_attributes(java: JavaClient, our_cluster: OurProcess) -> None:
    cluster, broker = await broker_names(our_cluster)
    made = java.mqadmin("updateTopic", "-n", our_cluster.namesrv, "-c", cluster, "-t", "Attributed", "-a", "+message.type=FIFO")
    assert "success" in made
    async with AdminClient(namesrv=our_cluster.namesrv) as admin:
        assert (await admin.topic_config("Attributed"))[broker].attributes == {"message.type": "FIFO"}
    refused = java.mqadmin("updateTopic", "-n", our_cluster.namesrv, "-c", cluster, "-t", "Attributed2", "-a", "+no.such=thing")
    assert "unsupported key: no.such" in refused


async def test_topic_route_shows_addresses_and_queues(java: JavaClient, our_cluster: OurProcess) -> None:
    _, broker = await broker_names(our_cluster)
    async with AdminClient(namesrv=our_cluster.namesrv) as admin:
        await admin.create_topic("Routed", queues=6)
    printed = java.mqadmin("topicRoute", "-n", our_cluster.namesrv, "-t", "Routed")
    assert f'0:"{our_cluster.broker}"' in printed
    assert f'"brokerName":"{broker}"' in printed
    assert re.search(r'"perm":6,\s+"readQueueNums":6,\s+"topicSysFlag":0,\s+"writeQueueNums":6', printed)
    assert "No topic route info" in java.mqadmin("topicRoute", "-n", our_cluster.namesrv, "-t", "NotThere")


async def test_topic_status_shows_offsets(java: JavaClient, our_cluster: OurProcess) -> None:
    _, broker = await broker_names(our_cluster)
    async with AdminClient(namesrv=our_cluster.namesrv) as admin, Producer("admin_producer", namesrv=our_cluster.namesrv) as producer:
        await admin.create_topic("Counted", queues=3)
        for queue_id, count in ((0, 4), (2, 7)):
            queue = MessageQueue("Counted", broker, queue_id)
            await producer.send_batch([Message("Counted", b"x", queue=queue) for _ in range(count)])
    printed = rows(java.mqadmin("topicStatus", "-n", our_cluster.namesrv, "-t", "Counted"))
    assert [row[:4] for row in printed if row[0] == broker] == [[broker, "0", "0", "4"], [broker, "1", "0", "0"], [broker, "2", "0", "7"]]


async def test_broker_status_prints_the_runtime_table(java: JavaClient, our_cluster: OurProcess) -> None:
    printed = java.mqadmin("brokerStatus", "-n", our_cluster.namesrv, "-b", our_cluster.broker)
    table = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in printed.splitlines())}
    assert table["brokerActive"] == "true"
    assert int(table["commitLogMaxOffset"]) >= 0
    assert "msgPutTotalTodayNow" in table


def test_consumer_progress_shows_the_lag(java: JavaClient, our_cluster: OurProcess) -> None:
    namesrv = our_cluster.namesrv
    results = java.send(namesrv, [{"topic": "Lagging", "body": b"%d" % i} for i in range(8)])
    assert len(java.consume(namesrv, "lagging_group", "Lagging", 8)) == 8
    java.send(namesrv, [{"topic": "Lagging", "body": b"more"}] * 4)
    printed = java.mqadmin("consumerProgress", "-n", namesrv, "-g", "lagging_group")
    lines = [row for row in rows(printed) if row[0] == "Lagging"]
    assert sum(int(row[3]) for row in lines) == len(results) + 4, printed
    assert sum(int(row[4]) for row in lines) == len(results), printed


async def test_messages_are_found_by_key_by_unique_key_and_by_offset_id(java: JavaClient, our_cluster: OurProcess) -> None:
    namesrv = our_cluster.namesrv
    async with AdminClient(namesrv=namesrv) as admin, Producer("admin_producer", namesrv=namesrv) as producer:
        await admin.create_topic("Queried", queues=2)
        sent = [await producer.send(Message("Queried", b"%d" % i, tag="TagA", keys=[f"key-{i}", "all"])) for i in range(5)]
        sent += await producer.send_batch([Message("Queried", b"%d" % i, keys=[f"key-{i}", "all"]) for i in range(5, 10)])
    for number, result in enumerate(sent):
        printed = java.mqadmin("queryMsgByKey", "-n", namesrv, "-t", "Queried", "-k", f"key-{number}")
        assert [row[:3] for row in rows(printed)] == [[result.msg_id, str(result.queue_id), str(result.queue_offset)]], printed
    every = rows(java.mqadmin("queryMsgByKey", "-n", namesrv, "-t", "Queried", "-k", "all"))
    assert {row[0] for row in every} == {result.msg_id for result in sent}
    assert "no message" in java.mqadmin("queryMsgByKey", "-n", namesrv, "-t", "Queried", "-k", "key-10")
    # These two commands write the body to a file of a fixed name under the system's temporary directory.
    for command, msg_id in (("queryMsgByUniqueKey", sent[3].msg_id), ("queryMsgById", sent[3].offset_msg_id)):
        printed = java.mqadmin(command, "-n", namesrv, "-t", "Queried", "-i", msg_id)
        assert re.search(r"Keys: +\[key-3 all\]", printed), printed
        assert re.search(rf"Queue Offset: +{sent[3].queue_offset}\n", printed), printed
        body = re.search(r"Message Body Path: +(\S+)", printed)
        assert body is not None, printed
        assert Path(body[1]).read_bytes() == b"3"
        Path(body[1]).unlink()


def test_stats_settings_and_cleaning_are_there_for_operators(java: JavaClient, our_cluster: OurProcess) -> None:
    namesrv, broker = our_cluster.namesrv, our_cluster.broker
    java.send(namesrv, [{"topic": "Watched", "body": b"%d" % i} for i in range(8)])
    assert len(java.consume(namesrv, "watching_group", "Watched", 8)) == 8
    java.send(namesrv, [{"topic": "Watched", "body": b"more"}] * 3)
    (row,) = [row for row in rows(java.mqadmin("statsAll", "-n", namesrv)) if row[0] == "Watched"]
    assert row[1:3] == ["watching_group", "3"], "the group's lag"
    settings = dict(
        line.split("=", 1) for line in java.mqadmin("getBrokerConfig", "-n", namesrv, "-b", broker).splitlines() if " = " in line
    )
    stripped = {name.strip(): value.strip() for name, value in settings.items()}
    assert (stripped["flushDiskType"], stripped["mappedFileSizeCommitLog"]) == ("ASYNC_FLUSH", str(1 << 30))
    assert "success" in java.mqadmin("deleteExpiredCommitLog", "-n", namesrv, "-b", broker)
    assert len(java.consume(namesrv, "watching_group", "Watched", 3)) == 3, "nothing in use was deleted"


async def test_groups_are_created_changed_and_deleted(java: JavaClient, our_cluster: OurProcess) -> None:
    namesrv, cluster = our_cluster.namesrv, (await broker_names(our_cluster))[0]
    made = java.mqadmin("updateSubGroup", "-n", namesrv, "-c", cluster, "-g", "admin_group", "-r", "5", "-q", "3")
    assert f"create subscription group to {our_cluster.broker} success" in made
    async with AdminClient(namesrv=namesrv) as admin:
        (config,) = (await admin.group_config("admin_group")).values()
        assert (config.retry_max_times, config.retry_queue_nums, config.consume_enable) == (5, 3, True)
        java.mqadmin("updateSubGroup", "-n", namesrv, "-b", our_cluster.broker, "-g", "admin_group", "-s", "false")
        (config,) = (await admin.group_config("admin_group")).values()
        assert not config.consume_enable
        assert "success" in java.mqadmin("deleteSubGroup", "-n", namesrv, "-b", our_cluster.broker, "-g", "admin_group")
        assert "admin_group" not in await admin.groups()


async def test_connections_and_status_show_members_of_both_makes(java: JavaClient, our_cluster: OurProcess) -> None:
    namesrv, topic, group = our_cluster.namesrv, "Connected", "connected_group"
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=2)
    async with (
        Producer("connected_producer", namesrv=namesrv) as producer,
        PushConsumer(group, {topic: "TagA"}, namesrv=namesrv, consume_from="first") as consumer,
    ):
        consumer.listen(lambda batch: None)
        await producer.send(Message(topic, b"x", tag="TagA"))
        with java.push_consumer(namesrv, group, topic, "TagA") as theirs:
            await asyncio.to_thread(java.send, namesrv, [{"topic": topic, "body": b"x", "tag": "TagA"}])
            connected = await asyncio.to_thread(java.mqadmin, "consumerConnection", "-n", namesrv, "-g", group)
            members = {row[0]: row[2] for row in rows(connected) if "@" in row[0]}
            assert members[theirs.client_id] == "JAVA"
            assert sorted(members.values()) == ["JAVA", "PYTHON"], connected
            assert re.search(rf"^{topic} +TagA", connected, re.MULTILINE), connected
            assert "ConsumeType: CONSUME_PASSIVELY" in connected
            assert "MessageModel: CLUSTERING" in connected
            status = await asyncio.to_thread(java.mqadmin, "consumerStatus", "-n", namesrv, "-g", group)
            assert {row[1] for row in rows(status) if "@" in "".join(row[1:2])} == set(members), status
            assert "Same subscription in the same group of consumer" in status
            assert "Rebalance OK" in status
        for name, language in (("connected_producer", "PYTHON"), ("interop_java_producer", "JAVA")):
            shown = await asyncio.to_thread(java.mqadmin, "producerConnection", "-n", namesrv, "-g", name, "-t", topic)
            assert language in shown, shown


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_offsets_are_reset_by_time_for_members_of_both_makes_and_for_nobody(
    java: JavaClient, our_cluster: OurProcess, batch_queues: bool
) -> None:
    namesrv, topic, group = our_cluster.namesrv, f"Reset_{batch_queues}", f"reset_{batch_queues}"
    async with AdminClient(namesrv=namesrv) as admin:
        attributes = {"queue.type": "BatchCQ"} if batch_queues else {}
        await admin.create_topic(topic, queues=2, attributes=attributes)
    for word in ("old", "new"):
        await asyncio.to_thread(java.send_batch, namesrv, [{"topic": topic, "body": f"{word} {i}".encode()} for i in range(10)])
        await asyncio.sleep(0.01)  # the two batches have times of their own
    new_ms = min(view["store_timestamp_ms"] for view in await pull_all(namesrv, topic) if view["body"].startswith(b"new"))

    def reset(when: int | str) -> str:
        printed = java.mqadmin("resetOffsetByTime", "-n", namesrv, "-g", group, "-t", topic, "-s", str(when))
        assert [row[1] for row in sorted(rows(printed)[1:])] == ["0", "1"], printed
        return printed

    with java.push_consumer(namesrv, group, topic) as consumer:
        assert len(await asyncio.to_thread(consumer.take, 20)) == 20
        await asyncio.to_thread(reset, new_ms)
        again = await asyncio.to_thread(consumer.take, 10)
        assert {message["body"][:3] for message in again} == {b"new"}
    assert not consumer.rest
    await asyncio.to_thread(reset, 0)
    received: list[bytes] = []
    async with PushConsumer(group, topic, namesrv=namesrv) as member:
        member.listen(lambda batch: received.extend(message.body for message in batch))
        await until("all messages again", lambda: len(received) == 20)
        await asyncio.to_thread(reset, new_ms)
        await until("the new messages again", lambda: len(received) == 30)
        assert {body[:3] for body in received[20:]} == {b"new"}


async def test_progress_counts_messages_of_batch_queues(java: JavaClient, our_cluster: OurProcess) -> None:
    namesrv, topic = our_cluster.namesrv, "BatchProgress"
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=1, attributes={"queue.type": "BatchCQ"})
    java.send_batch(namesrv, [{"topic": topic, "body": b"x"}] * 25)
    assert len(java.consume(namesrv, "batch_progress", topic, 25)) == 25
    java.send_batch(namesrv, [{"topic": topic, "body": b"x"}] * 7)
    (row,) = [row for row in rows(java.mqadmin("consumerProgress", "-n", namesrv, "-g", "batch_progress")) if row[0] == topic]
    assert row[2:6] == ["0", "32", "25", "7"]
    everyone = rows(java.mqadmin("consumerProgress", "-n", namesrv))
    assert [row[-1] for row in everyone if row[0] == "batch_progress"] == ["7"]
    (status,) = [row for row in rows(java.mqadmin("topicStatus", "-n", namesrv, "-t", topic)) if row[1] == "0"]
    assert status[2:4] == ["0", "32"]


async def test_units_of_a_queue_and_the_progress_of_all_groups_are_shown(java: JavaClient, our_cluster: OurProcess) -> None:
    namesrv, topic, group = our_cluster.namesrv, "BatchUnits", "batch_units"
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=1, attributes={"queue.type": "BatchCQ"})
        java.send_batch(namesrv, [{"topic": topic, "body": b"x"}] * 5)
        java.send_batch(namesrv, [{"topic": topic, "body": b"x"}] * 3)
        (queue,) = await admin.queues(topic)
        await admin.create_group(group)
        await admin.reset_offset(group, queue, 6)
        shown = java.mqadmin("queryCq", "-n", namesrv, "-b", our_cluster.broker, "-t", topic, "-q", "0", "-i", "4", "-c", "10", "-g", group)
        assert "max: 8, min: 0" in shown
        assert f"{group}@{topic} is not online!" in shown
        places = re.findall(r"physicOffset=(\d+)", shown)
        assert places == [str(message.commitlog_offset) for offset in (4, 5) if (message := await admin.message_at(queue, offset))]
        stats = java.mqadmin("brokerConsumeStats", "-n", namesrv, "-b", our_cluster.broker)
        assert [row[3:7] for row in rows(stats) if row[:2] == [topic, group]] == [["0", "8", "6", "2"]]


async def test_messages_inside_batches_are_found_by_key_by_unique_key_and_by_offset(
    java: JavaClient, java_binary: JavaClient, our_cluster: OurProcess
) -> None:
    namesrv, topic = our_cluster.namesrv, "BatchQueried"
    async with AdminClient(namesrv=namesrv) as admin, Producer("admin_producer", namesrv=namesrv, auto_batch=True) as producer:
        await admin.create_topic(topic, queues=1, attributes={"queue.type": "BatchCQ"})
        java.send_batch(namesrv, [{"topic": topic, "body": b"%d" % i, "keys": [f"key-{i}"], "tag": "TagA"} for i in range(10)])
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % i, tag="TagA", keys=[f"key-{i}"])) for i in range(10, 20)))
    views = await pull_all(namesrv, topic)
    assert len({view["commitlog_offset"] for view in views}) < 4, "they are in batches"
    for view in (views[0], views[9], views[13], views[19]):
        key = view["keys"][0]
        found = rows(java.mqadmin("queryMsgByKey", "-n", namesrv, "-t", topic, "-k", key))
        assert [row[:3] for row in found] == [[view["msg_id"], "0", str(view["queue_offset"])]]
        _, broker = await broker_names(our_cluster)
        where = ("-b", broker, "-i", "0", "-o", str(view["queue_offset"]))
        shown = java.mqadmin("queryMsgByOffset", "-n", namesrv, "-t", topic, *where)
        assert_shown(shown, view)
    # In one process this command remembers its first nameserver, so each client has one question.
    assert_shown(java_binary.mqadmin("queryMsgByUniqueKey", "-n", namesrv, "-t", topic, "-i", views[13]["msg_id"]), views[13])


def assert_shown(printed: str, view: dict[str, Any]) -> None:
    """Assert that the tool shows a message, and wrote its body to the file that it names."""
    assert re.search(rf"Keys: +\[{view['keys'][0]}\]", printed), printed
    assert re.search(rf"Queue Offset: +{view['queue_offset']}\n", printed), printed
    body = re.search(r"Message Body Path: +(\S+)", printed)
    assert body is not None, printed
    assert Path(body[1]).read_bytes() == view["body"]
    Path(body[1]).unlink()
