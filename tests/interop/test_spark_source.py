"""The Spark source reads from Apache's broker what Apache's client reads, in batch and as a stream."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheBroker, ApacheNamesrv, JavaClient
from tests.interop.compare import COMPRESSED, in_order, variety
from tests.interop.reading import java_pull_all

from sprocketmq import AdminClient, Message, Producer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(180),
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


@pytest.fixture(scope="module")
def spark(home: Path) -> Iterator[Any]:
    """A local Spark session with the format registered."""
    from sprocketmq.spark import local_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = local_session(
            "interop", cores=2, memory="512m", quick_start=True, log_file=home / "spark.log", conf={"spark.sql.session.timeZone": "UTC"}
        )
    yield session
    session.stop()


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
    """Set up a read of the whole topic with every column."""
    options = {"nameserver": namesrv, "subscribe": topic, "startingOffsets": "earliest", "columns": ",".join(FIELDS)}
    return source.format("rocketmq").options(**options)


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
    rows = reader(spark.read, apache_namesrv.address, topic).load().collect()
    assert in_order([row_view(row) for row in rows]) == java_pull_all(java, apache_namesrv.address, topic)


async def test_a_stream_goes_on_from_its_checkpoint_without_loss_or_repetition(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, spark: Any, tmp_path: Path
) -> None:
    topic, namesrv = "SparkStream", apache_namesrv.address
    await fill(java, namesrv, apache_broker.cluster, topic)
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")

    def run() -> None:
        stream = reader(spark.readStream, namesrv, topic).option("maxOffsetsPerTrigger", "700").load()
        query = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True).start(table)
        assert query.awaitTermination(90)

    run()
    first = spark.read.parquet(table).count()
    assert first == len(java_pull_all(java, namesrv, topic))
    java.send_batch(namesrv, variety(topic))
    run()
    rows = spark.read.parquet(table).collect()
    assert len(rows) == first + len(variety(topic))
    assert in_order([row_view(row) for row in rows]) == java_pull_all(java, namesrv, topic)
