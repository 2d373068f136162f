"""The sink: DataFrames into topics and back, what is refused, and what a retried micro-batch looks like downstream."""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import functions as f
from tests.spark.available import run_available

from sprocketmq import sync
from sprocketmq.spark.errors import explain

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_numbers = count()


def new_topic(cluster, queues=4, **attributes):
    name = f"Sink{next(_numbers)}"
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        admin.create_topic(name, queues=queues, attributes=attributes)
    return name


@pytest.fixture
def topic(cluster):
    return new_topic(cluster)


def write(frame, cluster, topic=None, **options):
    writer = frame.write.format("rocketmq").mode("append").option("nameserver", cluster.namesrv).options(**options)
    (writer if topic is None else writer.option("topic", topic)).save()


def read(spark, cluster, topic, **options):
    return spark.read.format("rocketmq").options(nameserver=cluster.namesrv, subscribe=topic, **options).load()


def rows_of(frame, *columns):
    return sorted(tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.select(*columns).collect())


def orders(spark, rows, width=0):
    return spark.range(rows, numPartitions=2).selectExpr(
        f"CAST(concat('order ', id, repeat('x', {width})) AS binary) AS body",
        "concat('tag', id % 3) AS tags",
        "concat('key', id) AS keys",
        "map('n', CAST(id AS string)) AS properties",
        "CAST(id AS int) AS flag",
    )


# --- batch ---


@pytest.mark.oldest
@pytest.mark.parametrize("attributes", [{}, {"queue.type": "BatchCQ"}], ids=["plain", "batch queues"])
def test_what_is_written_is_read_back(spark, cluster, attributes):
    topic = new_topic(cluster, **attributes)
    written = orders(spark, 1000)
    write(written, cluster, topic)
    found = read(spark, cluster, topic)
    names = ("body", "tags", "keys", "flag", "n")
    as_sent, as_read = (frame.withColumn("n", f.col("properties")["n"]) for frame in (written, found))
    assert rows_of(as_read, *names) == rows_of(as_sent, *names)
    assert found.select(f.col("properties")["UNIQ_KEY"]).distinct().count() == 1000


def test_rows_of_a_topic_go_into_another_as_they_are(spark, cluster, topic):
    write(orders(spark, 300), cluster, topic)
    copy = new_topic(cluster)
    write(read(spark, cluster, topic).drop("topic"), cluster, copy)
    columns = ("queueId", "body", "tags", "keys", "flag", "bornTimestamp")
    assert rows_of(read(spark, cluster, copy), *columns) == rows_of(read(spark, cluster, topic), *columns)
    names = {name for row in read(spark, cluster, copy).collect() for name in row.properties}
    assert names == {"n", "KEYS", "TAGS", "WAIT", "UNIQ_KEY"}, "what brokers and clients add is added anew"


def test_rows_go_to_the_topics_they_name(spark, cluster):
    names = [new_topic(cluster), new_topic(cluster)]
    frame = spark.createDataFrame([(names[i % 2], f"{i}") for i in range(10)], "topic string, body string")
    write(frame, cluster)
    for i, name in enumerate(names):
        assert rows_of(read(spark, cluster, name), "body") == [(b"%d" % n,) for n in range(i, 10, 2)]


@pytest.mark.parametrize("mode", ["auto", "single"])
def test_every_way_of_sending_sends_every_row(spark, cluster, topic, mode):
    write(orders(spark, 200), cluster, topic, sendMode=mode)
    assert rows_of(read(spark, cluster, topic), "keys") == sorted((f"key{i}",) for i in range(200))


def test_tags_of_an_auto_batch_can_be_subscribed_to_on_batch_queues(spark, cluster):
    topic = new_topic(cluster, **{"queue.type": "BatchCQ"})
    write(orders(spark, 90), cluster, topic, sendMode="auto")
    assert read(spark, cluster, topic, filterExpression="tag1").count() == 30


def test_sharding_keys_keep_their_rows_together_and_in_order(spark, cluster, topic):
    frame = spark.range(400, numPartitions=1).selectExpr("CAST(id AS string) AS body", "concat('user', id % 10) AS shardingKey")
    write(frame, cluster, topic, ordered="shardingKey", batchMessages="7")
    queues = {}
    for row in read(spark, cluster, topic).orderBy("queueId", "queueOffset").collect():
        queues.setdefault(row.properties["__SHARDINGKEY"], []).append((row.queueId, int(row.body)))
    assert len(queues) == 10
    for numbers in queues.values():
        assert len({queue for queue, _ in numbers}) == 1
        assert [number for _, number in numbers] == sorted(number for _, number in numbers)


def test_delayed_rows_come_later(spark, cluster, topic):
    frame = spark.createDataFrame([("now", None), ("later", 1)], "body string, delayTimeLevel int")
    write(frame, cluster, topic)
    with sync.PullConsumer("later", namesrv=cluster.namesrv, consume_from="first") as consumer:
        consumer.assign(consumer.queues(topic))
        found = {}
        while len(found) < 2:
            found |= {message.body: message for message in consumer.poll(timeout_s=10)}
    # Tasks of their own send the two rows, at any time.
    assert found[b"later"].store_timestamp_ms - found[b"later"].born_timestamp_ms >= 1000
    assert "DELAY" in found[b"later"].properties
    assert "DELAY" not in found[b"now"].properties


# --- refusals ---


def refusal(work):
    with pytest.raises(Exception) as raised:
        work()
    return explain(raised.value)


@pytest.mark.oldest
def test_what_the_sink_cannot_take_is_said_before_a_job_starts(spark, cluster, topic):
    frame = spark.range(1)
    status = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("refused", "writes that are refused")
    try:
        body = frame.selectExpr("'x' AS body")
        assert "column 'id' of the rocketmq sink: a message has no such part" in refusal(lambda: write(frame, cluster, topic))
        assert "did you mean 'topic'" in refusal(lambda: write(body, cluster, topics="x"))
        assert "cannot be overwritten" in refusal(
            lambda: body.write.format("rocketmq").mode("overwrite").options(nameserver=cluster.namesrv, topic=topic).save()
        )
        assert "127.0.0.1:1" in refusal(lambda: write(body, type("Gone", (), {"namesrv": "127.0.0.1:1"}), topic))
        assert list(status.getJobIdsForGroup("refused")) == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.oldest
def test_a_row_that_is_no_message_is_named_in_the_driver(spark, cluster, topic):
    frame = spark.createDataFrame([(b"x",), (None,)], "body binary").coalesce(1)
    assert "row 1 of partition 0 cannot be written to RocketMQ: its body is null" in refusal(lambda: write(frame, cluster, topic))
    large = spark.createDataFrame([(b"x" * 5000,)], "body binary").coalesce(1)
    said = refusal(lambda: write(large, cluster, topic, maxMessageBytes="4k"))
    assert "its body has 5000 bytes, the limit is 4096" in said
    assert "onTooLarge=dead-letter" in said


# --- streams: from topic to topic, and effectively once ---


def pipeline(spark, cluster, source, target, checkpoint, work=None, *, keyed=True):
    """Start the recipe of the guide: rows have an id made of the place they come from, or without a key of what they are."""
    frame = spark.readStream.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="200"
    )
    frame = frame.load().withColumn("dedupKey", f.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset"))
    frame = frame.select("body", "tags", "keys", *(["dedupKey"] if keyed else []))
    if work is not None:
        frame = frame.mapInArrow(work, frame.schema)
    return (
        frame.writeStream.format("rocketmq")
        .options(nameserver=cluster.namesrv, topic=target, dedupId="deterministic", batchMessages="10")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def once(spark, cluster, topic):
    """Return the keys of a topic's rows as a reader that goes by ids has them, and how many rows there are all in all."""
    found = read(spark, cluster, topic, columns="keys,msgId")
    return [key for (key,) in rows_of(found.dropDuplicates(["msgId"]), "keys")], found.count()


def downstream(spark, cluster, topic, directory):
    """Return the keys that a stream which does what the guide tells readers to do has in its table."""
    found = spark.readStream.format("rocketmq").options(nameserver=cluster.namesrv, subscribe=topic, startingOffsets="earliest")
    found = found.option("columns", "keys,msgId,storeTimestamp").load()
    found = found.withWatermark("storeTimestamp", "1 hour").dropDuplicatesWithinWatermark(["msgId"])
    stream = found.writeStream.format("parquet").option("path", str(directory / "table"))
    assert stream.option("checkpointLocation", str(directory / "d")).trigger(availableNow=True).start().awaitTermination(120)
    return [key for (key,) in rows_of(spark.read.parquet(str(directory / "table")), "keys")]


def keys_of(rows):
    return sorted(f"key{i}" for i in range(rows))


@pytest.mark.oldest
@pytest.mark.parametrize("keyed", [True, False], ids=["ids of keys", "ids of rows"])
def test_a_stream_into_a_topic(spark, cluster, topic, tmp_path, keyed):
    write(orders(spark, 500), cluster, topic)
    target = new_topic(cluster)
    for _ in range(2):
        run_available(lambda: pipeline(spark, cluster, topic, target, str(tmp_path / "checkpoint"), keyed=keyed))
    assert once(spark, cluster, target) == (keys_of(500), 500), "nothing is sent again"


# Ten rows of this are more than what Spark's pipes hold back.
WIDE = 8000


def stopped_on_the_way(namesrv, target, stop):
    """Return a function for mapInArrow that calls ``stop`` in the middle of a task, when rows of that task are in ``target``."""

    def work(batches):
        for number, batch in enumerate(batches):
            if number == 15:
                with sync.PullConsumer("waits", namesrv=namesrv) as consumer:
                    [queue] = consumer.queues(target)
                    # A worker of Spark may take long to start on a busy machine.
                    assert any(consumer.pull(queue, 0, wait_ms=20_000).messages for _ in range(8))
                stop()
            yield batch

    return work


@pytest.fixture
def small_batches(spark):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_query_that_failed_on_its_way_sends_its_rows_again_with_the_same_ids(spark, cluster, topic, tmp_path, small_batches):
    write(orders(spark, 400, WIDE), cluster, topic)
    target = new_topic(cluster, queues=1)

    def fail():
        raise RuntimeError("a task that was to fail")

    query = pipeline(spark, cluster, topic, target, str(tmp_path / "c"), stopped_on_the_way(cluster.namesrv, target, fail))
    assert "a task that was to fail" in refusal(lambda: query.awaitTermination(120))
    run_available(lambda: pipeline(spark, cluster, topic, target, str(tmp_path / "c")))
    rows, stored = once(spark, cluster, target)
    assert rows == keys_of(400)
    assert stored > 400, "the topic itself has rows from before the failure twice"
    assert downstream(spark, cluster, target, tmp_path) == keys_of(400)


KILLED = """
import os, signal, sys
from sprocketmq.spark import session
from tests.spark.test_sink import pipeline, stopped_on_the_way

class Cluster:
    namesrv = sys.argv[1]

source, target, checkpoint, marker = sys.argv[2:]
driver = os.getpid()
conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
spark = session("killed", master="local[2,4]", quick_start=True, memory="512m", conf=conf)

def fail_once_then_kill():
    if os.path.exists(marker):
        os.killpg(driver, signal.SIGKILL)
    open(marker, "w").close()
    raise RuntimeError("the task fails, and Spark tries it again")

work = stopped_on_the_way(Cluster.namesrv, target, fail_once_then_kill)
pipeline(spark, Cluster, source, target, checkpoint, work).awaitTermination()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_task_tried_again_and_then_a_killed_driver_send_their_rows_with_the_same_ids(spark, cluster, topic, tmp_path, small_batches):
    write(orders(spark, 400, WIDE), cluster, topic)
    target = new_topic(cluster, queues=1)
    marker = tmp_path / "failed"
    command = [sys.executable, "-c", KILLED, cluster.namesrv, topic, target, str(tmp_path / "c"), str(marker)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    # A session of its own, so that the kill takes the JVM along and nothing else.
    with open(tmp_path / "stderr", "wb") as errors:
        killed = subprocess.run(command, env=environment, stderr=errors, timeout=300, start_new_session=True, check=False)
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "stderr").read_text()[-3000:]
    assert marker.exists(), "the kill came when the task was tried again"
    query = pipeline(spark, cluster, topic, target, str(tmp_path / "c"))
    assert query.awaitTermination(120)
    rows, stored = once(spark, cluster, target)
    assert rows == keys_of(400)
    assert stored > 400, "the topic itself has rows from before the kill twice"
    assert downstream(spark, cluster, target, tmp_path) == keys_of(400)


def test_a_stream_that_replaces_its_rows_is_refused(spark, cluster, topic, tmp_path):
    counts = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("CAST(value AS string) AS body")
    stream = counts.writeStream.format("rocketmq").outputMode("complete").options(nameserver=cluster.namesrv, topic=topic)
    query = stream.option("checkpointLocation", str(tmp_path / "c")).start()
    assert "a topic cannot be replaced by each micro-batch" in refusal(lambda: query.awaitTermination(60))
