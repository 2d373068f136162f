"""What one task of the sink does, with a broker and without Spark around it."""

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from sprocketmq import sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import TopicNotFound
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.sink.data_sink import BatchSink, SinkError
from sprocketmq.spark.sink.options import ColumnError
from sprocketmq.spark.sink.row_fields import RowRefused
from sprocketmq.spark.sink.sending import close_producers

SCHEMA = StructType([StructField("body", BinaryType()), StructField("keys", StringType())])


def task(cluster, topic, bodies, **options):
    """Write rows as one task does and return what it tells the driver."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array(bodies, pa.binary()), pa.array([f"k{i}" for i in range(len(bodies))])], names=["body", "keys"]
    )
    return BatchSink(SCHEMA, {"nameserver": cluster.namesrv, "topic": topic, **options}).write(iter([batch]))


def bodies_in(cluster, topic):
    found = []
    with sync.PullConsumer("reader", namesrv=cluster.namesrv) as consumer:
        for queue in consumer.queues(topic):
            offset = 0
            while (result := consumer.pull(queue, offset)).messages:
                found += [message.body for message in result.messages]
                offset = result.next_offset
    return found


@pytest.fixture(scope="module")
def strict():
    """A broker that takes less than clients think."""
    with LocalCluster(max_message_bytes=16 << 10, auto_create_topic=False) as running:
        yield running
        close_producers()


def test_a_topic_that_cannot_be_is_refused_when_the_sink_is_made(strict):
    with pytest.raises(TopicNotFound, match="Nowhere"):
        task(strict, "Nowhere", [b"x"])


def test_a_batch_the_broker_does_not_take_fails_or_is_split(strict):
    strict.create_topic("Large", queues=1)
    bodies = [b"%d" % i * 1000 for i in range(40)]
    with pytest.raises(SinkError, match=r"rows from row 0 of partition 0 .* a batch of 40 rows.*onTooLarge=split"):
        task(strict, "Large", bodies)
    written = task(strict, "Large", bodies, onTooLarge="split")
    assert (written.rows, written.dead_letters) == (40, 0)
    assert written.requests > 2
    with pytest.raises(SinkError, match=r"row 1 .*onTooLarge=dead-letter"):
        task(strict, "Large", [b"x", b"y" * 20_000], onTooLarge="split")


def test_rows_too_large_are_kept_whole_with_their_reason(strict, tmp_path):
    strict.create_topic("Aside", queues=1)
    letters = str(tmp_path / "letters")
    bodies = [b"0", b"1" * 20_000, b"2", b"3" * 40_000, b"4"]
    options = {"onTooLarge": "dead-letter", "deadLetterPath": letters, "maxMessageBytes": "32k"}
    written = task(strict, "Aside", bodies, **options)
    assert (written.rows, written.dead_letters) == (3, 2)
    assert sorted(bodies_in(strict, "Aside")) == [b"0", b"2", b"4"]
    found = {row["keys"]: (row["body"], row["deadLetterReason"]) for row in pq.read_table(letters).to_pylist()}
    assert {key: body for key, (body, _) in found.items()} == {"k1": bodies[1], "k3": bodies[3]}
    assert "msg body length limit 16384B" in found["k1"][1], "the broker knows its limit best"
    assert "its body has 40000 bytes, the limit is 32768" in found["k3"][1]
    assert sorted(path.suffix for path in Path(letters).iterdir()) == [".parquet"]


def test_a_delay_the_broker_does_not_take_fails_the_write_and_is_not_called_too_large(strict, tmp_path):
    strict.create_topic("Far", queues=1)
    schema = StructType([StructField("body", BinaryType()), StructField("deliverTimestamp", LongType())])
    options = {"nameserver": strict.namesrv, "topic": "Far", "onTooLarge": "dead-letter", "deadLetterPath": str(tmp_path / "letters")}
    batch = pa.RecordBatch.from_arrays([pa.array([b"1"]), pa.array([2**62])], names=["body", "deliverTimestamp"])
    with pytest.raises(SinkError, match="the delay time should not be bigger than the max delay") as refused:
        BatchSink(schema, options).write(iter([batch]))
    assert "Send less" not in str(refused.value)


def test_a_task_that_fails_leaves_no_dead_letters_behind(strict, tmp_path):
    strict.create_topic("Failing", queues=1)
    with pytest.raises(RowRefused, match="its body is empty"):
        task(
            strict,
            "Failing",
            [b"1" * 40_000, b""],
            onTooLarge="dead-letter",
            deadLetterPath=str(tmp_path / "letters"),
            maxMessageBytes="32k",
        )
    assert not list(tmp_path.glob("letters/*"))


def test_options_that_cannot_be_are_refused_without_spark():
    with pytest.raises(OptionError, match="required"):
        BatchSink(SCHEMA, {})
    with pytest.raises(ColumnError):
        BatchSink(StructType([StructField("value", BinaryType())]), {"nameserver": "h:1", "topic": "T"})


def test_a_sink_crosses_to_workers_with_its_job(strict):
    strict.create_topic("Crossing", queues=1)
    sink = BatchSink(SCHEMA, {"nameserver": strict.namesrv, "topic": "Crossing"})
    twin = pickle.loads(pickle.dumps(sink))
    assert twin._job == sink._job
    assert len(pickle.dumps(sink)) < 4000


def test_a_retried_task_sends_the_same_ids(strict):
    strict.create_topic("Retried", queues=1)
    batch = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), pa.array(["a", "b"])], names=["body", "keys"])
    sink = BatchSink(SCHEMA, {"nameserver": strict.namesrv, "topic": "Retried", "dedupId": "deterministic"})
    for _ in range(2):
        assert sink.write(iter([batch])).rows == 2
    with sync.PullConsumer("reader", namesrv=strict.namesrv) as consumer:
        [queue] = consumer.queues("Retried")
        ids = [message.msg_id for message in consumer.pull(queue, 0).messages]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


def test_what_a_task_was_given_fails_and_nothing_of_it_goes_on(strict):
    strict.create_topic("Cut", queues=1)
    batch = pa.RecordBatch.from_arrays([pa.array([b"1"]), pa.array(["a"])], names=["body", "keys"])

    def batches():
        yield batch
        raise OSError("Spark is gone")

    with pytest.raises(OSError, match="Spark is gone"):
        BatchSink(SCHEMA, {"nameserver": strict.namesrv, "topic": "Cut"}).write(batches())
    assert bodies_in(strict, "Cut") in ([], [b"1"])
