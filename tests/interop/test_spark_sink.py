"""Apache's broker takes what the Spark sink writes, and Apache's Java client reads it as it was meant."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheBroker, ApacheNamesrv, JavaClient
from tests.interop.compare import INNER, assert_as_sent, variety
from tests.interop.reading import java_pull_all, until_readable
from tests.interop.sides import LEVELS_S

from sprocketmq import AdminClient

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SCHEMA = "topic STRING, body BINARY, tags STRING, keys ARRAY<STRING>, properties MAP<STRING,STRING>, flag INT"


async def create(broker: ApacheBroker, namesrv: str, topic: str, *, queues: int = 2, batch_queues: bool = False) -> str:
    """Create a topic at Apache's broker."""
    attributes = {"queue.type": "BatchCQ"} if batch_queues else {}
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=queues, cluster=broker.cluster, attributes=attributes)
    return topic


def frame_of(spark: Any, described: list[dict[str, Any]]) -> Any:
    """Return described messages as a DataFrame."""
    columns = {"topic": "topic", "body": "body", "tags": "tag", "keys": "keys", "properties": "properties", "flag": "flag"}
    rows = [tuple(message.get(field) for field in columns.values()) for message in described]
    return spark.createDataFrame(rows, SCHEMA)


def write(frame: Any, namesrv: str, **options: str) -> None:
    """Write a DataFrame with the sink."""
    frame.coalesce(1).write.format("rocketmq").options(nameserver=namesrv, **options).mode("append").save()


@pytest.mark.parametrize("mode", ["batch", "single"])
async def test_every_part_of_a_message_arrives(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any, mode: str
) -> None:
    namesrv = apache_namesrv.address
    topic = await create(apache_broker, namesrv, f"SparkSink_{mode}")
    sent = variety(topic)
    write(frame_of(spark, sent), namesrv, sendMode=mode)
    await until_readable(namesrv, topic, len(sent))
    found = {view["body"]: view for view in java_pull_all(java, namesrv, topic)}
    assert len(found) == len(sent)
    for described in sent:
        assert_as_sent(found[described["body"]], described)


async def test_a_topic_of_batch_queues_gets_inner_batches(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any
) -> None:
    namesrv = apache_namesrv.address
    topic = await create(apache_broker, namesrv, "SparkSinkLists", batch_queues=True)
    rows = spark.range(500).selectExpr("cast(concat('row ', id) AS binary) AS body", "concat('k', id) AS keys", "'list' AS tags")
    write(rows, namesrv, topic=topic)
    await until_readable(namesrv, topic, 500)
    found = java_pull_all(java, namesrv, topic)
    assert sorted(view["body"] for view in found) == sorted(b"row %d" % i for i in range(500))
    assert {view["sys_flag"] & INNER for view in found} == {INNER}
    assert len({view["commitlog_offset"] for view in found}) < 100, "many rows share a record"


async def test_rows_of_one_sharding_key_keep_their_order_in_one_queue(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any
) -> None:
    namesrv = apache_namesrv.address
    topic = await create(apache_broker, namesrv, "SparkSinkOrdered", queues=4)
    rows = spark.range(400).selectExpr("cast(id AS string) AS body", "concat('order-', id % 10) AS shardingKey")
    write(rows, namesrv, topic=topic, ordered="shardingKey")
    await until_readable(namesrv, topic, 400)
    queues: dict[int, set[int]] = defaultdict(set)
    numbers: dict[int, list[int]] = defaultdict(list)
    for view in java_pull_all(java, namesrv, topic):
        number = int(view["body"])
        queues[number % 10].add(view["queue_id"])
        numbers[number % 10].append(number)
    assert {len(one) for one in queues.values()} == {1}
    assert all(one == sorted(one) and len(one) == 40 for one in numbers.values())


async def test_delayed_rows_come_when_their_level_says(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any
) -> None:
    namesrv = apache_namesrv.address
    topic = await create(apache_broker, namesrv, "SparkSinkDelayed")
    rows = spark.range(10).selectExpr("cast(id AS string) AS body", "1 AS delayTimeLevel")
    write(rows, namesrv, topic=topic)
    await until_readable(namesrv, topic, 10)
    for view in java_pull_all(java, namesrv, topic):
        assert view["store_timestamp_ms"] - view["born_timestamp_ms"] >= LEVELS_S[0] * 1000 - 100


async def test_a_stream_from_topic_to_topic_is_whole_for_a_java_consumer(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any, tmp_path: Path
) -> None:
    namesrv = apache_namesrv.address
    source = await create(apache_broker, namesrv, "SparkSinkFrom")
    target = await create(apache_broker, namesrv, "SparkSinkTo")
    java.send_batch(namesrv, [{"topic": source, "body": b"%d" % i, "tag": "odd" if i % 2 else "even"} for i in range(300)])
    await until_readable(namesrv, source, 300)
    stream = (
        spark.readStream.format("rocketmq")
        .options(nameserver=namesrv, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="70")
        .load()
        .where("tags = 'odd'")
        .select("body", "tags")
    )
    query = (
        stream.writeStream.format("rocketmq")
        .options(nameserver=namesrv, topic=target, dedupId="deterministic", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    received = java.consume(namesrv, "spark_sink_to", target, 150)
    assert sorted(int(message["body"]) for message in received) == list(range(1, 300, 2))
