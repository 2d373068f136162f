"""The `rocketmq` format inside a real Spark, against a real broker: every message once, exactly where the offsets say."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from tests.spark.available import run_available
from tests.waiting import next_millisecond

from sprocketmq import Message, MessageQueue, sync
from sprocketmq.arrow.schema import COLUMNS, DEFAULT_COLUMNS, arrow_schema, spark_schema
from sprocketmq.embedded import LocalCluster
from sprocketmq.spark.source.data_source import as_arrow
from sprocketmq.spark.source.offsets import decode_offsets
from sprocketmq.spark.version_checks import spark_version
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_numbers = count()


@pytest.fixture
def topic(cluster):
    name = f"Topic{next(_numbers)}"
    cluster.create_topic(name, queues=4)
    return name


@pytest.fixture
def producer(cluster):
    with sync.Producer("tests", namesrv=cluster.namesrv) as producer:
        yield producer


def send(producer, topic, numbers, **fields):
    """Send one message for each number, spread over the queues; return {(queue id, queue offset): number}."""
    places = {}
    queues = producer.queues(topic)
    numbers = list(numbers)
    for i, queue in enumerate(queues):
        part = numbers[i :: len(queues)]
        if part:
            messages = [Message(topic, b"%d" % n, f"tag{n % 3}", (f"key{n}",), {"number": str(n)}, queue=queue, **fields) for n in part]
            for number, result in zip(part, producer.send_batch(messages), strict=True):
                places[result.queue_id, result.queue_offset] = number
    return places


def options(reader, cluster, topic, **more):
    return reader.format("rocketmq").options(**{"nameserver": cluster.namesrv, "subscribe": topic, **more})


def places(frame):
    """Return the sorted (queue id, queue offset, number) of every row: a repeated row shows."""
    return sorted((row.queueId, row.queueOffset, int(row.body)) for row in frame.select("queueId", "queueOffset", "body").collect())


def as_rows(sent):
    return sorted((queue, offset, number) for (queue, offset), number in sent.items())


@pytest.mark.usefixtures("timestamp_type")
def test_the_columns_have_the_types_spark_asks_arrow_for(spark):

    for columns in (DEFAULT_COLUMNS, tuple(COLUMNS)):
        frame = spark.createDataFrame([], spark_schema(columns))
        assert as_arrow(frame.schema).equals(arrow_schema(columns))


def test_tasks_read_the_queues_of_all_brokers(spark):
    with LocalCluster(brokers=3) as several, sync.Producer("tests", namesrv=several.namesrv) as producer:
        several.create_topic("Spread", queues=2)
        queues = producer.queues("Spread")
        sent = [(queue.broker_name, queue.queue_id, producer.send(Message("Spread", b"x", queue=queue)).queue_offset) for queue in queues]
        frame = options(spark.read, several, "Spread").load()
        rows = frame.select("brokerName", "queueId", "queueOffset").collect()
    assert sorted(map(tuple, rows)) == sorted(sent)
    assert {name for name, _, _ in sent} == {"broker-a", "broker-b", "broker-c"}


@pytest.mark.oldest
def test_a_batch_read_returns_every_message_with_its_fields(spark, cluster, topic, producer):
    sent = send(producer, topic, range(1000))
    packed = producer.send(Message(topic, b"z" * 10_000, "packed"))
    frame = options(spark.read, cluster, topic).load()
    assert frame.columns == list(DEFAULT_COLUMNS)
    plain = frame.where("tags != 'packed'")
    assert places(plain) == as_rows(sent)
    [row] = plain.where("keys = 'key17'").collect()
    assert (row.topic, row.brokerName, row.tags, bytes(row.body)) == (topic, "broker-a", "tag2", b"17")
    assert row.properties["number"] == "17"
    assert abs(row.storeTimestamp.timestamp() - time.time()) < 600
    [row] = frame.where("tags = 'packed'").collect()
    assert bytes(row.body) == b"z" * 10_000, "a compressed body arrives inflated"
    assert row.queueOffset == packed.queue_offset


def test_columns_can_be_chosen_and_ids_match_the_producers(spark, cluster, topic, producer):
    result = producer.send(Message(topic, b"x"))
    frame = options(spark.read, cluster, topic, columns="msgId, offsetmsgid ,batchNum").load()
    assert frame.columns == ["msgId", "offsetMsgId", "batchNum"]
    assert [tuple(row) for row in frame.collect()] == [(result.msg_id, result.offset_msg_id, None)]


def test_an_empty_topic_is_an_empty_frame(spark, cluster, topic):
    frame = options(spark.read, cluster, topic).load()
    assert frame.count() == 0
    assert frame.collect() == []


@pytest.mark.oldest
def test_a_range_of_offsets_is_read_exactly_in_any_number_of_tasks(spark, cluster, topic, producer):
    sent = send(producer, topic, range(30_000))
    start = {queue: 100 * queue for queue in range(4)}
    end = {0: 7000, 1: 5000, 2: 200, 3: -1}
    bounds = {
        name: json.dumps({topic: {"broker-a": {str(q): offset for q, offset in offsets.items()}}})
        for name, offsets in (("startingOffsets", start), ("endingOffsets", end))
    }
    wanted = as_rows({(q, o): n for (q, o), n in sent.items() if start[q] <= o and (end[q] < 0 or o < end[q])})
    for tasks in ("1", "3"):
        frame = options(spark.read, cluster, topic, **bounds, maxPartitions=tasks, batchRows="700").load()
        assert frame.rdd.getNumPartitions() == int(tasks)
        assert places(frame) == wanted


def test_reading_can_start_at_a_time(spark, cluster, topic, producer):
    send(producer, topic, range(8))
    since = next_millisecond()
    late = send(producer, topic, range(8, 20))
    assert places(options(spark.read, cluster, topic, startingTimestamp=str(since)).load()) == as_rows(late)
    assert options(spark.read, cluster, topic, startingTimestamp=str(since + 3_600_000)).load().count() == 0


def test_several_topics_are_read_together(spark, cluster, topic, producer):
    cluster.create_topic(topic + "b", queues=2)
    send(producer, topic, range(5))
    send(producer, topic + "b", range(7))
    frame = options(spark.read, cluster, f"{topic},{topic}b").load()
    assert sorted((row.topic, row["count"]) for row in frame.groupBy("topic").count().collect()) == [(topic, 5), (topic + "b", 7)]


@pytest.mark.usefixtures("timestamp_type")
def test_times_have_a_zone_whatever_sql_s_timestamps_have(spark, cluster, topic, producer, stream):
    send(producer, topic, range(10))
    stream.columns += ["storeTimestamp", "bornTimestamp"]
    stream.run()
    for frame in (options(spark.read, cluster, topic).load(), spark.read.parquet(stream.table)):
        assert {"storeTimestamp": "timestamp", "bornTimestamp": "timestamp"}.items() <= dict(frame.dtypes).items()
        for row in frame.collect():
            assert abs(row.storeTimestamp.timestamp() - time.time()) < 600


def test_sql_can_read_a_topic(spark, cluster, topic, producer):
    send(producer, topic, range(12))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages USING rocketmq OPTIONS (nameserver '{cluster.namesrv}', subscribe '{topic}')")
    assert spark.sql("SELECT tags, count(*) FROM messages GROUP BY tags ORDER BY tags").collect() == [("tag0", 4), ("tag1", 4), ("tag2", 4)]


def test_the_brokers_leave_out_what_a_filter_does_not_want(spark, cluster, topic, producer):
    sent = send(producer, topic, range(90))
    wanted = [row for row in as_rows(sent) if row[2] % 3 != 1]
    assert places(options(spark.read, cluster, topic, filterExpression="tag0 || tag2").load()) == wanted
    batches = topic + "Batches"
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        admin.create_topic(batches, queues=1, attributes={"queue.type": "BatchCQ"})
    for tag in range(3):
        send(producer, batches, range(tag, 90, 3))
    frame = options(spark.read, cluster, batches, filterExpression="tag0 || tag2").load()
    assert sorted(number for _, _, number in places(frame)) == [n for n in range(90) if n % 3 != 1]
    assert options(spark.read, cluster, topic, filterExpression="nothing").load().collect() == []


@pytest.mark.oldest
def test_every_query_of_a_frame_reads_the_same_messages(spark, cluster, topic, producer):
    send(producer, topic, range(40))
    frame = options(spark.read, cluster, topic).load()
    assert frame.where("queueId = 1 AND queueOffset >= 3").count() == 7
    send(producer, topic, range(40, 80))
    now = 14 if spark_version() >= (4, 1) else 24  # Spark 4.0 plans the read anew for each query
    assert frame.where("queueId = 2").union(frame.where("queueId = 9 OR queueOffset = 3")).count() == now
    assert options(spark.read, cluster, topic).load().count() == 80


def test_a_batch_read_goes_on_where_a_consumer_group_is(spark, cluster, topic, producer):
    sent = send(producer, topic, range(40))
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        admin.create_group(f"{topic}-readers")
        admin.commit(f"{topic}-readers", MessageQueue(topic, "broker-a", 2), 7)
    frame = options(spark.read, cluster, topic, startingFromGroup=f"{topic}-readers").load()
    assert places(frame) == [row for row in as_rows(sent) if row[0] != 2 or row[1] >= 7]


def test_messages_that_meet_a_condition_on_their_properties_are_read(spark, cluster, topic, producer):
    sent = send(producer, topic, range(40))
    frame = options(spark.read, cluster, topic, filterExpression="number BETWEEN 10 AND 19", filterType="SQL92").load()
    assert places(frame) == [row for row in as_rows(sent) if 10 <= row[2] <= 19]


def test_assigned_queues_and_topics_of_a_pattern_are_read(spark, cluster, topic, producer):
    sent = send(producer, topic, range(40))
    reader = spark.read.format("rocketmq").option("nameserver", cluster.namesrv)
    assigned = reader.option("assign", json.dumps({topic: {"broker-a": [3, 1]}})).load()
    assert places(assigned) == [row for row in as_rows(sent) if row[0] in (1, 3)]
    matched = spark.read.format("rocketmq").options(nameserver=cluster.namesrv, subscribePattern=f"{topic}|Nothing.*").load()
    assert places(matched) == as_rows(sent)


def test_a_misspelt_option_is_refused_by_load(spark, cluster, topic):
    with pytest.raises(Exception, match=r"option 'startingoffset' .* did you mean 'startingOffsets'"):
        options(spark.readStream, cluster, topic, startingoffset="latest").load()


@pytest.mark.oldest
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"startingOffsets": '{"TOPIC": {"broker-a": {"0": 0}}}'}, "queue 1 of topic TOPIC on broker broker-a is missing"),
        ({"endingOffsets": '{"TOPIC": {"broker-a": {"0": 99, "1": -1, "2": -1, "3": -1}}}'}, "ends at 0, offset 99 is past it"),
        ({"subscribe": "NoSuchTopic"}, "topic 'NoSuchTopic' has no route"),
        ({"nameserver": "127.0.0.1:1"}, "no nameserver answered (tried 127.0.0.1:1)"),
        ({"startingFromGroup": "nobody"}, "group 'nobody' has committed no offset in any queue of TOPIC"),
        ({"filterExpression": "a >", "filterType": "SQL92"}, "broker broker-a does not take the SQL92 expression 'a >'"),
    ],
)
def test_what_is_wrong_is_said_before_a_job_starts(spark, cluster, topic, more, says):
    from pyspark.errors import AnalysisException

    more = {name: value.replace("TOPIC", topic) for name, value in more.items()}
    with pytest.raises(AnalysisException) as caught:
        options(spark.read, cluster, topic).options(**more).load().count()
    assert says.replace("TOPIC", topic) in str(caught.value)


# --- streams ------------------------------------------------------------------------------------------------------------


class Stream:
    """A query from a topic into Parquet, with one checkpoint."""

    def __init__(self, spark, cluster, topic, directory, **more):
        self.spark = spark
        self.cluster = cluster
        self.topic = topic
        self.table = str(directory / "table")
        self.checkpoint = str(directory / "checkpoint")
        self.more = {"startingOffsets": "earliest", "maxPartitions": "2", **more}
        self.columns = ["queueId", "queueOffset", "body"]

    def start(self, **trigger):
        frame = options(self.spark.readStream, self.cluster, self.topic, **self.more).load().select(self.columns)
        writer = frame.writeStream.format("parquet").option("path", self.table).option("checkpointLocation", self.checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self):
        """Read what is there and end; return the number of rows of each batch."""
        return [progress["numInputRows"] for progress in run_available(lambda: self.start(availableNow=True))]

    def rows(self):
        return places(self.spark.read.parquet(self.table))


@pytest.fixture
def stream(spark, cluster, topic, tmp_path):
    return Stream(spark, cluster, topic, tmp_path)


@pytest.mark.oldest
def test_what_is_there_is_read_in_limited_batches_and_a_restart_goes_on_after_it(stream, producer):
    sent = send(producer, stream.topic, range(1000))
    stream.more["maxOffsetsPerTrigger"] = "400"
    assert stream.run() == [400, 400, 200]
    assert stream.rows() == as_rows(sent)
    assert stream.run() == []
    sent |= send(producer, stream.topic, range(1000, 1300))
    assert stream.run() == [300]
    assert stream.rows() == as_rows(sent)


def test_queries_stopped_at_any_moment_lose_and_repeat_nothing(stream, producer):
    """Producers run while the query is stopped again and again, mostly in the middle of a batch."""
    stream.more["maxOffsetsPerTrigger"] = "900"
    sent = {}

    def produce():
        for first in range(0, 10_000, 250):
            sent.update(send(producer, stream.topic, range(first, first + 250)))

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce)
        for pause_s in (0.3, 0.05, 0.6):
            query = stream.start()
            wait_until(lambda q=query: q.recentProgress or not q.isActive)
            query.awaitTermination(pause_s)
            query.stop()
            assert query.exception() is None
        producing.result()
    stream.run()
    assert stream.rows() == as_rows(sent)


@pytest.mark.oldest
def test_a_query_that_starts_at_the_end_reads_only_what_comes(stream, producer):
    send(producer, stream.topic, range(50))
    del stream.more["startingOffsets"]
    query = stream.start()
    try:
        query.processAllAvailable()
        sent = send(producer, stream.topic, range(50, 80))
        query.processAllAvailable()
        assert stream.rows() == as_rows(sent)
        latest = query.lastProgress["sources"][0]["latestOffset"]
        assert '"v":1' in str(latest).replace(" ", "").replace("'", '"')
    finally:
        query.stop()


@pytest.mark.oldest
def test_queues_that_appear_join_a_query_without_loss(stream, producer, cluster):
    sent = send(producer, stream.topic, range(100))
    stream.run()
    cluster.create_topic(stream.topic, queues=6)
    with sync.Producer("grown", namesrv=cluster.namesrv) as grown:
        assert len(grown.queues(stream.topic)) == 6
        sent |= send(grown, stream.topic, range(100, 160))
    stream.run()
    assert stream.rows() == as_rows(sent)
    assert {queue for queue, _, _ in stream.rows()} == set(range(6))


def test_a_topic_made_anew_is_data_loss_unless_that_is_accepted(stream, producer, cluster):
    send(producer, stream.topic, range(100))
    stream.run()
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        admin.delete_topic(stream.topic)
    cluster.create_topic(stream.topic, queues=4)
    with sync.Producer("anew", namesrv=cluster.namesrv) as anew:
        send(anew, stream.topic, range(4))
        with pytest.raises(Exception, match="the queue now ends at 1, before what was read already"):
            stream.run()
        stream.more["failOnDataLoss"] = "false"
        stream.run()
        send(anew, stream.topic, range(4, 12))
        assert stream.run() == [8]


def test_a_broker_that_restarts_under_a_query_is_read_on(spark, tmp_path):
    from sprocketmq.embedded import LocalCluster

    with LocalCluster(tmp_path / "store") as mq:
        mq.create_topic("Restart", queues=4)
        stream = Stream(spark, mq, "Restart", tmp_path)
        with sync.Producer("before", namesrv=mq.namesrv) as producer:
            sent = send(producer, "Restart", range(200))
        query = stream.start()
        try:
            query.processAllAvailable()
            mq.stop_broker()
            mq.start_broker()
            with sync.Producer("after", namesrv=mq.namesrv) as producer:
                sent |= send(producer, "Restart", range(200, 400))
            query.processAllAvailable()
        finally:
            query.stop()
        assert stream.rows() == as_rows(sent)


def test_the_offsets_of_what_was_read_are_committed_for_a_group(stream, producer, cluster):
    send(producer, stream.topic, range(30))
    stream.more |= {"group": f"{stream.topic}-spark", "commitOffsetsToBroker": "true", "maxBytesPerTrigger": "3k"}
    assert len(stream.run()) > 1, "the limit of bytes makes several batches of them"
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        committed = admin.committed(f"{stream.topic}-spark", stream.topic)
    newest = max((Path(stream.checkpoint) / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert committed == decode_offsets(json.loads(newest.read_text().splitlines()[-1]))
    assert sum(committed.values()) == 30


@pytest.mark.oldest
def test_the_checkpoint_of_another_topic_is_refused_by_name(stream, producer, cluster):
    send(producer, stream.topic, range(10))
    stream.run()
    first, stream.topic = stream.topic, stream.topic + "Other"
    cluster.create_topic(stream.topic, queues=4)
    with pytest.raises(
        Exception, match=f"the checkpoint belongs to a query of other topics: it has offsets of {first}, and this query reads"
    ):
        stream.run()


def test_a_topic_deleted_under_a_query_is_named(stream, producer, cluster):
    send(producer, stream.topic, range(10))
    stream.more["pullTimeoutMs"] = "2s"
    query = stream.start()
    try:
        query.processAllAvailable()
        with sync.AdminClient(namesrv=cluster.namesrv) as admin:
            admin.delete_topic(stream.topic)
        # The broker empties a topic before the nameserver forgets it.
        with pytest.raises(Exception, match=f"topic '{stream.topic}' (has no route|.* now ends at 0, before what was read)"):
            query.awaitTermination(60)
    finally:
        query.stop()


def test_a_stream_reads_on_from_the_slave_when_its_master_is_killed(spark, tmp_path):
    with LocalCluster(replicas=1, role="SYNC_MASTER") as mq, sync.Producer("tests", namesrv=mq.namesrv) as producer:
        with sync.AdminClient(namesrv=mq.namesrv) as admin:
            wait_until(lambda: any(state.in_sync for state in admin.brokers()), timeout_s=60)
        mq.create_topic("Replicated", queues=4)
        sent = send(producer, "Replicated", range(1000))
        stream = Stream(spark, mq, "Replicated", tmp_path, maxOffsetsPerTrigger="100")
        query = stream.start()
        try:
            wait_until(lambda: query.recentProgress or not query.isActive, timeout_s=60)
            mq.kill_broker("broker-a")
            assert len(stream.rows()) < len(sent)
            query.processAllAvailable()
        finally:
            query.stop()
        assert stream.rows() == as_rows(sent)


def test_topics_of_a_pattern_join_a_running_query(spark, cluster, topic, producer, tmp_path):
    frame = spark.readStream.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribePattern=f"{topic}-[0-9]", startingOffsets="earliest"
    )
    query = (
        frame.load()
        .selectExpr("topic", "cast(body AS string) AS text")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        for number in (1, 2):
            cluster.create_topic(f"{topic}-{number}", queues=2)
            send(producer, f"{topic}-{number}", range(5))
        wait_until(lambda: query.lastProgress and f"{topic}-2" in str(query.lastProgress["sources"][0]["endOffset"]))
        query.processAllAvailable()
    finally:
        query.stop()
    assert spark.read.parquet(str(tmp_path / "table")).groupBy("topic").count().orderBy("topic").collect() == [
        (f"{topic}-1", 5),
        (f"{topic}-2", 5),
    ]


def test_a_nameserver_that_moved_is_found_at_its_new_address(spark, tmp_path):
    from sprocketmq.embedded import LocalCluster

    with LocalCluster(tmp_path / "store") as mq:
        mq.create_topic("Moves", queues=4)
        stream = Stream(spark, mq, "Moves", tmp_path)
        with sync.Producer("before", namesrv=mq.namesrv) as producer:
            sent = send(producer, "Moves", range(100))
            stream.more["nameserver"] = f"127.0.0.1:1;{mq.namesrv}"
            stream.run()
            sent |= send(producer, "Moves", range(100, 200))
        stream.more["nameserver"] = mq.namesrv
        stream.run()
        assert stream.rows() == as_rows(sent)
