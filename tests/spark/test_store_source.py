"""The `rocketmq-store` format inside a real Spark: stores of Apache's broker and of ours, one of them in use."""

import json
import os
import shutil

import pytest
from tests.recorded_stores import STORES, unpack

from sprocketmq import Message, sync
from sprocketmq.arrow.schema import DEFAULT_COLUMNS
from sprocketmq.arrow.store.tables import TABLES, store_arrow_schema
from sprocketmq.embedded import LocalCluster
from sprocketmq.spark.errors import explain
from sprocketmq.spark.store.options import parse_store_options, store_spark_schema
from sprocketmq.spark.version_checks import spark_version

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return {name: str(unpack(name, tmp_path_factory.mktemp(name))) for name in ("plain", "batchcq")}


def stores(spark, **options):
    return spark.read.format("rocketmq-store").options(**options)


@pytest.mark.usefixtures("timestamp_type")
def test_the_columns_have_the_types_spark_asks_arrow_for(spark):
    from sprocketmq.spark.source.data_source import as_arrow

    for table in TABLES:
        options = parse_store_options({"path": "/", "table": table, "columns": ",".join(TABLES[table].columns), "onCorrupt": "report"})
        frame = spark.createDataFrame([], store_spark_schema(options))
        assert as_arrow(frame.schema).equals(store_arrow_schema(options))


@pytest.mark.oldest
def test_a_store_of_apaches_broker_is_a_table_in_any_number_of_tasks(spark, recorded):
    listing = json.loads((STORES / "plain.expected.json").read_text())
    bodies = {
        (topic, int(queue_id), message["queueOffset"]): message["bodyLength"]
        for topic, described in listing["topics"].items()
        for queue_id, queue in described["queues"].items()
        for message in queue["messages"]
    }
    for split, tasks in (("64m", 1), ("16k", 9)):
        frame = stores(spark, splitBytes=split, brokerName="broker-fx").load(recorded["plain"])
        assert frame.columns == list(DEFAULT_COLUMNS)
        assert frame.rdd.getNumPartitions() == tasks
        rows = frame.selectExpr("topic", "queueId", "queueOffset", "length(body) AS n", "brokerName").collect()
        assert {(row.topic, row.queueId, row.queueOffset): row.n for row in rows} == bodies
        assert len(rows) == len(bodies)
        assert {row.brokerName for row in rows} == {"broker-fx"}


def test_log_queues_and_index_of_a_store_join(spark, recorded):
    log = stores(spark, columns="commitLogOffset,topic,queueId,queueOffset,storeSize,storeTimestamp,batchBaseOffset").load(
        recorded["batchcq"]
    )
    plain = stores(spark, table="consumequeue").load(recorded["batchcq"])
    packed = stores(spark, table="batchcq").load(recorded["batchcq"])
    index = stores(spark, table="index").load(recorded["batchcq"])
    assert log.join(plain, ["topic", "queueId", "queueOffset", "commitLogOffset"]).where("storeSize = size").count() == plain.count() > 0
    units = packed.selectExpr("topic", "queueId", "commitLogOffset", "batchBaseOffset AS base", "batchNum", "storeTimestamp AS time")
    covered = log.join(units, ["topic", "queueId", "commitLogOffset"]).where(
        "queueOffset >= base AND queueOffset < base + batchNum AND storeTimestamp = time"
    )
    assert covered.count() == packed.agg({"batchNum": "sum"}).collect()[0][0]
    assert index.join(log.select("commitLogOffset").distinct(), "commitLogOffset", "left_anti").count() == 0


def test_several_stores_are_named_by_list_or_pattern_and_told_apart_by_file(spark, recorded):
    frame = stores(spark, columns="file").load([recorded["plain"], recorded["batchcq"]])
    found = {os.path.dirname(os.path.dirname(row.file)) for row in frame.distinct().collect()}
    assert found == set(recorded.values())
    spark.sql(f"CREATE TEMPORARY VIEW units USING `rocketmq-store` OPTIONS (path '{recorded['batchcq']}', table 'batchcq', topic 'Bcq1')")
    assert spark.sql("SELECT sum(batchNum) FROM units").collect()[0][0] == 72
    pattern = os.path.join(os.path.dirname(os.path.dirname(recorded["plain"])), "plain*", "store")
    assert stores(spark).load(pattern).count() == stores(spark).load(recorded["plain"]).count()


@pytest.mark.oldest
def test_a_store_in_use_is_read_beside_its_broker(spark, tmp_path):
    with LocalCluster(store=tmp_path / "mq") as running:
        running.create_topic("orders", queues=4)
        with sync.Producer("tests", namesrv=running.namesrv) as producer:
            sent = [
                r
                for n in range(0, 3000, 100)
                for r in producer.send_batch([Message("orders", b"%d" % i, "t", (f"k{i}",)) for i in range(n, n + 100)])
            ]
            [root] = [str(path.parent) for path in (tmp_path / "mq").rglob("commitlog")]
            frame = stores(spark, topic="orders", columns="queueId,queueOffset,body,msgId", splitBytes="100k", verifyCrc="true").load(root)
            rows = frame.collect()
            producer.send(Message("orders", b"later"))
            planned = 3000 if spark_version() >= (4, 1) else 3001  # Spark 4.0 plans the read anew for each query
            assert frame.count() == planned, "a frame reads what was there when it was planned"
            assert stores(spark, topic="orders").load(root).count() == 3001
    assert sorted((row.queueId, row.queueOffset, row.msgId) for row in rows) == sorted((r.queue_id, r.queue_offset, r.msg_id) for r in sent)
    assert sorted(int(row.body) for row in rows) == list(range(3000))


@pytest.mark.oldest
def test_damage_fails_the_query_or_is_a_row(spark, recorded, tmp_path):
    root = shutil.copytree(recorded["plain"], tmp_path / "store")
    whole = stores(spark).load(str(root)).count()
    path = root / "commitlog" / f"{65536:020}"
    with path.open("r+b") as file:
        file.seek(4)
        file.write(b"\0\0\0\0")
    with pytest.raises(Exception, match="StoreDamaged") as failed:
        stores(spark).load(str(root)).collect()
    assert explain(failed.value).startswith(f"store file {path} is damaged at byte 0: magic 0x00000000 is not a record's")
    assert stores(spark, onCorrupt="skip").load(str(root)).count() == whole - 1
    frame = stores(spark, onCorrupt="report", columns="topic,body").load(str(root))
    [row] = frame.where("corrupt IS NOT NULL").select("topic", "corrupt.file", "corrupt.offset", "corrupt.problem").collect()
    assert (row.topic, row.file, row.offset) == (None, str(path), 0)
    assert "magic" in row.problem
    assert frame.where("corrupt IS NULL").count() == whole - 1


@pytest.mark.oldest
@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({}, None, "option 'path' of the rocketmq-store format: it is required"),
        ({}, "/nowhere/at/all", "/nowhere/at/all does not exist"),
        ({"tabel": "index"}, "/", "option 'tabel' of the rocketmq-store format: there is no such option; did you mean 'table'"),
        ({"table": "consumequeue", "align": "walk"}, "/", "option 'align' of the rocketmq-store format: it is for table commitlog only"),
    ],
)
def test_what_cannot_be_is_refused_when_the_frame_is_made(spark, options, path, words):
    with pytest.raises(Exception, match=words):
        stores(spark, **options).load(*([path] if path else []))


def test_what_is_no_store_is_refused_before_a_task_starts(spark, tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(Exception, match="there is no store in this directory"):
        stores(spark).load(str(tmp_path)).collect()
