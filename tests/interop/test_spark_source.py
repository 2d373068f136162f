"""The Spark source reads from Apache's broker what Apache's client reads: in batch and as a stream, by time, group and tag, batch queues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheBroker, ApacheNamesrv, JavaClient
from tests.interop.compare import COMPRESSED, assert_same_views, in_order, variety
from tests.interop.reading import java_pull_all, until_readable

from sprocketmq import AdminClient, Message, Producer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

# Every column of the format with the field of a message that it shows.
FIELDS = {
    "topic": "topic",
    "brokerName": "broker",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "body": "body",
    "tags": "tag",
    "keys": "keys",
    "properties": "properties",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "bornTimestamp": "born_timestamp_ms",
    "storeTimestamp": "store_timestamp_ms",
    "bornHost": "born_host",
    "storeHost": "store_host",
    "msgId": "msg_id",
    "offsetMsgId": "offset_msg_id",
    "commitLogOffset": "commitlog_offset",
    "storeSize": "store_size",
    "bodyCRC": "body_crc",
    "reconsumeTimes": "reconsume_times",
}


def row_view(row: Any) -> dict[str, Any]:
    """Return a row with all columns under the names the other readers use."""
    view = {field: row[column] for column, field in FIELDS.items()}
    view["body"] = bytes(view["body"])
    view["keys"] = (view["keys"] or "").split()
    view["sys_flag"] &= ~COMPRESSED
    for name in ("born_timestamp_ms", "store_timestamp_ms"):
        view[name] = round(view[name].timestamp() * 1000)
    return view


def reader(source: Any, namesrv: str, topic: str) -> Any:
    """Set up a read of the topic with every column."""
    return source.format("rocketmq").options(nameserver=namesrv, subscribe=topic, columns=",".join(FIELDS))


def views(frame: Any) -> list[dict[str, Any]]:
    """Return all rows of a read as the other readers return messages."""
    return in_order([row_view(row) for row in frame.collect()])


async def fill(java: JavaClient, namesrv: str, cluster: str, topic: str) -> None:
    """Create the topic and send every kind of message singly and in batches, by both clients."""
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=4, cluster=cluster)
    async with Producer("spark_producer", namesrv=namesrv) as producer:
        for described in variety(topic):
            await producer.send(Message(**described))
        for start in range(0, 2000, 100):
            await producer.send_batch([Message(topic, b"%d" % i, tag="bulk") for i in range(start, start + 100)])
    java.send(namesrv, variety(topic))
    java.send_batch(namesrv, variety(topic))


async def test_a_batch_read_equals_what_apaches_client_reads(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any
) -> None:
    topic = "SparkBatch"
    await fill(java, apache_namesrv.address, apache_broker.cluster, topic)
    assert views(reader(spark.read, apache_namesrv.address, topic).load()) == java_pull_all(java, apache_namesrv.address, topic)


async def test_a_stream_goes_on_from_its_checkpoint_without_loss_or_repetition(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any, tmp_path: Path
) -> None:
    topic, namesrv = "SparkStream", apache_namesrv.address
    await fill(java, namesrv, apache_broker.cluster, topic)
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")

    def run() -> None:
        stream = reader(spark.readStream, namesrv, topic).options(startingOffsets="earliest", maxOffsetsPerTrigger="700").load()
        query = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True).start(table)
        assert query.awaitTermination(90)

    run()
    first = spark.read.parquet(table).count()
    assert first == len(java_pull_all(java, namesrv, topic))
    java.send_batch(namesrv, variety(topic))
    run()
    rows = views(spark.read.parquet(table))
    assert len(rows) == first + len(variety(topic))
    assert rows == java_pull_all(java, namesrv, topic)


async def test_a_read_begins_and_ends_at_times(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any
) -> None:
    topic, namesrv = "SparkTimes", apache_namesrv.address
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=2, cluster=apache_broker.cluster)
    for part in range(3):
        java.send(namesrv, [{"topic": topic, "body": b"%d of part %d" % (i, part)} for i in range(20)])
        await asyncio.sleep(0.02)  # parts do not share a millisecond
    stored = java_pull_all(java, namesrv, topic)
    begin, end = (min(one["store_timestamp_ms"] for one in stored if one["body"].endswith(b"part %d" % part)) for part in (1, 2))
    since = reader(spark.read, namesrv, topic).option("startingTimestamp", str(begin))
    assert views(since.load()) == [one for one in stored if one["store_timestamp_ms"] >= begin]
    between = since.option("endingTimestamp", str(end))
    assert views(between.load()) == [one for one in stored if begin <= one["store_timestamp_ms"] < end]


async def test_a_read_begins_where_a_group_of_java_consumers_stopped(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any
) -> None:
    topic, namesrv = "SparkGroup", apache_namesrv.address
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=2, cluster=apache_broker.cluster)
    java.send(namesrv, variety(topic))
    assert len(java.consume(namesrv, "spark_group", topic, len(variety(topic)))) == len(variety(topic))
    rows = reader(spark.read, namesrv, topic).option("startingFromGroup", "spark_group")
    assert views(rows.load()) == []
    results = java.send(namesrv, variety(topic))
    found = views(rows.load())
    assert {view["msg_id"] for view in found} == {result["msg_id"] for result in results}
    assert found == [view for view in java_pull_all(java, namesrv, topic) if view["msg_id"] in {result["msg_id"] for result in results}]


async def test_the_broker_filters_by_tag(java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any) -> None:
    topic, namesrv = "SparkTags", apache_namesrv.address
    await fill(java, namesrv, apache_broker.cluster, topic)
    wanted = [view for view in java_pull_all(java, namesrv, topic) if view["tag"] in ("TagA", "TagB")]
    assert views(reader(spark.read, namesrv, topic).option("filterExpression", "TagA || TagB").load()) == wanted


async def test_batch_queues_are_unwrapped_and_cut_anywhere(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any, tmp_path: Path
) -> None:
    topic, namesrv = "SparkLists", apache_namesrv.address
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=2, cluster=apache_broker.cluster, attributes={"queue.type": "BatchCQ"})
    async with Producer("spark_lists", namesrv=namesrv) as producer:
        for size in (1, 2, 17, 40, 3):
            await producer.send_batch([Message(topic, b"%d of %d" % (i, size), tag="list", keys=[f"k{i}"]) for i in range(size)])
    java.send_batch(namesrv, variety(topic))
    java.send(namesrv, variety(topic))
    await until_readable(namesrv, topic, 63 + 2 * len(variety(topic)))
    stored = java_pull_all(java, namesrv, topic)
    in_five = reader(spark.read, namesrv, topic).option("maxRecordsPerPartition", "17").load()
    assert in_five.rdd.getNumPartitions() >= 5
    assert_same_views(views(in_five), stored)

    table = str(tmp_path / "table")
    stream = reader(spark.readStream, namesrv, topic).options(startingOffsets="earliest", maxOffsetsPerTrigger="13").load()
    query = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert query.start(table).awaitTermination(90)
    assert_same_views(views(spark.read.parquet(table)), stored)
