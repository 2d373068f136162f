"""Apache's admin tool works against our nameserver and broker, and prints what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.interop.apache import JavaClient
from tests.interop.ours import OurProcess

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.protocol.message import MessageQueue

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]


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
