"""Landing on a real Spark, from a real broker; what needs neither is in tests/unit/spark/test_land.py."""

import contextlib
import json
import threading
from itertools import count

import pyarrow.parquet as pq
import pytest

from sprocketmq import Message, sync
from sprocketmq.cli.app import main
from sprocketmq.spark import DataLoss
from sprocketmq.spark.errors import explain
from sprocketmq.spark.jobs.lag import lag
from sprocketmq.spark.jobs.land import FormatMissing, compact, land, landed, landed_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_numbers = count()


@pytest.fixture
def topic(cluster):
    name = f"Land{next(_numbers)}"
    cluster.create_topic(name, queues=2)
    return name


@pytest.fixture
def send(cluster, topic):
    """Return ``send(count)``: send so many messages, return all bodies sent so far, sorted."""
    bodies = []
    with sync.Producer("landing", namesrv=cluster.namesrv) as producer:

        def send(number):
            new = [b"%06d" % n for n in range(len(bodies), len(bodies) + number)]
            producer.send_batch([Message(topic, body, "tag") for body in new])
            bodies.extend(new)
            return sorted(bodies)

        yield send


def bodies(frame):
    return sorted(bytes(row.body) for row in frame.select("body").collect())


@pytest.mark.oldest
def test_a_topic_lands_once_and_any_reader_of_parquet_sees_it(spark, cluster, topic, send, tmp_path):
    sent = send(3000)
    seen = []
    done = land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv, batch_messages=2000, progress=seen.append)
    assert (done.messages, done.batches, done.writer, done.messages_in_table) == (3000, 2, "direct", 3000)
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (3000, 3000, "messages")
    assert bodies(spark.read.parquet(str(tmp_path / "t"))) == sent
    assert bodies(landed(spark, tmp_path / "t")) == sent
    assert sorted(pq.read_table(tmp_path / "t")["body"].to_pylist()) == sent
    sent = send(100)
    assert lag(cluster.namesrv, table=tmp_path / "t").lag == 100
    assert land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv).messages == 100
    assert land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv).messages == 0
    frame = spark.read.parquet(str(tmp_path / "t"))
    assert bodies(frame) == sent
    assert frame.columns[-1] == "batch"
    assert frame.where("batch = 3").count() == 100
    done = compact(spark, tmp_path / "t")
    assert (done.batches_before, done.batches, done.messages, done.files) == (3, 1, 3100, 1)
    assert bodies(spark.read.parquet(str(tmp_path / "t"))) == bodies(landed(spark, tmp_path / "t")) == sent
    assert len(landed_files(tmp_path / "t")) == 1


@pytest.mark.usefixtures("timestamp_type")
def test_rows_are_those_of_the_source(spark, cluster, topic, send, tmp_path):
    send(50)
    land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv)
    source = spark.read.format("rocketmq").options(nameserver=cluster.namesrv, subscribe=topic).load()
    table = spark.read.parquet(str(tmp_path / "t")).drop("batch")
    assert table.schema == source.schema
    order = ("queueId", "queueOffset")
    assert table.orderBy(*order).collect() == source.orderBy(*order).collect()


def test_partitions_come_back_as_columns(spark, cluster, topic, send, tmp_path):
    sent = send(20)
    land(spark, [topic], tmp_path / "t", nameserver=cluster.namesrv, columns=["body", "topic"], partition_by=["topic", "date"])
    frame = landed(spark, tmp_path / "t")
    assert frame.columns == ["body", "batch", "topic", "date"]
    assert dict(frame.dtypes)["date"] == "date"
    assert bodies(frame.where(f"topic = '{topic}' and date >= '2024-01-01'")) == sent
    assert bodies(spark.read.parquet(str(tmp_path / "t")).where(f"topic = '{topic}'")) == sent


def test_landing_goes_on_while_producers_run(spark, cluster, topic, send, tmp_path):
    send(500)
    stop = threading.Event()
    sent = []

    def report(progress):
        if not sent:
            sent.extend(send(300))
        elif progress.done == progress.total == 300:
            stop.set()

    done = land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv, every_s=0.05, stop=stop, progress=report)
    assert done.messages == 800
    assert bodies(spark.read.parquet(str(tmp_path / "t"))) == sent


def test_queues_that_appear_land_from_their_beginning(spark, cluster, topic, send, tmp_path):
    send(40)
    land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv)
    cluster.create_topic(topic, queues=5)
    with sync.Producer("grown", namesrv=cluster.namesrv) as grown:
        for queue in grown.queues(topic):
            grown.send(Message(topic, b"new", queue=queue))
    assert land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv).messages == 5
    rows = spark.read.parquet(str(tmp_path / "t")).where("body = cast('new' as binary)")
    assert sorted(row.queueId for row in rows.collect()) == [0, 1, 2, 3, 4]


def test_messages_that_are_gone_fail_it_by_name_or_are_passed_over(spark, cluster, topic, send, tmp_path):
    send(40)
    land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv)
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        admin.delete_topic(topic)
    cluster.create_topic(topic, queues=2)
    with pytest.raises(DataLoss, match=rf"topic '{topic}' .* the queue now ends at 0, before what was read already"):
        land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv)
    with sync.Producer("anew", namesrv=cluster.namesrv) as anew:
        read = {row.queueId for row in spark.read.parquet(str(tmp_path / "t")).collect()}
        queue = next(queue for queue in anew.queues(topic) if queue.queue_id in read)
        anew.send(Message(topic, b"passed over", queue=queue))
        land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv, options={"failOnDataLoss": "false"})
        anew.send(Message(topic, b"landed", queue=queue))
    assert land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv).messages == 1
    assert spark.read.parquet(str(tmp_path / "t")).count() == 41


def test_an_empty_table_reads_as_no_rows(spark, cluster, topic, tmp_path):
    land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv, options={"startingOffsets": "latest"})
    frame = landed(spark, tmp_path / "t")
    assert frame.count() == 0
    assert frame.columns[:2] == ["topic", "brokerName"]


@pytest.mark.oldest
def test_spark_s_writer_lands_once_too(spark, cluster, topic, send, tmp_path):
    sent = send(300)
    arguments = {"nameserver": cluster.namesrv, "writer": "spark", "partition_by": ["date"], "batch_messages": 200}
    done = land(spark, topic, tmp_path / "t", **arguments)
    assert (done.messages, done.batches, done.files) == (300, 2, None)
    assert land(spark, topic, tmp_path / "t", **arguments).messages == 0
    frame = spark.read.parquet(str(tmp_path / "t"))
    assert bodies(frame) == sent
    assert "date" in frame.columns
    assert lag(cluster.namesrv, checkpoint=tmp_path / "t/_checkpoint").lag == 0


def test_a_format_the_session_lacks_is_refused_before_anything_is_read(spark, topic, tmp_path):
    for name, package in (("delta", "io.delta:delta-spark"), ("iceberg", "org.apache.iceberg:iceberg-spark-runtime")):
        with pytest.raises(FormatMissing, match=f"no format '{name}'.*{package}"):
            land(spark, topic, tmp_path / "t", nameserver="127.0.0.1:1", format=name)
    assert not (tmp_path / "t").exists()


@pytest.mark.oldest
def test_what_goes_wrong_in_a_task_arrives_as_a_sentence(spark, cluster, topic, send, tmp_path, monkeypatch):
    from sprocketmq.spark.jobs.land.table_writer import TableWriter

    send(10)
    monkeypatch.setattr(TableWriter, "staging", lambda self: tmp_path / "not shared")
    with pytest.raises(Exception, match="does not see") as caught:
        land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv)
    assert explain(caught.value).startswith("the worker on ")
    monkeypatch.undo()
    assert land(spark, topic, tmp_path / "t", nameserver=cluster.namesrv).messages == 10


def test_the_commands_print_what_they_did(spark, cluster, topic, send, tmp_path, monkeypatch, capfd):
    send(30)
    monkeypatch.setattr("sprocketmq.cli.pipeline._session", lambda title, options: contextlib.nullcontext(spark))
    common = ("--to", str(tmp_path / "t"), "--namesrv", cluster.namesrv)
    assert main(["pipeline", "land", topic, *common, "--columns", "body", "--from", "first", "--json"]) == 0
    assert json.loads(capfd.readouterr()[0])["messages"] == 30
    send(5)
    assert main(["pipeline", "land", topic, *common]) == 0
    assert "messages landed\t5" in capfd.readouterr()[0]
    assert main(["pipeline", "compact", str(tmp_path / "t")]) == 0
    assert "batches\t2 -> 1" in capfd.readouterr()[0]
    assert main(["pipeline", "land", "Other", *common]) == 2
    assert f"was made with the topics {topic}, not Other" in capfd.readouterr()[1]
    assert main(["pipeline", "land", topic, *common, "--option", "x"]) == 2
    assert "--option takes NAME=VALUE, not 'x'" in capfd.readouterr()[1]
    assert main(["pipeline", "land", topic, *common, "--from", "last", "--option", "startingOffsets=latest"]) == 2
    assert "say the same thing" in capfd.readouterr()[1]
