"""Options of the `rocketmq-store` format: what they mean, and what is refused before any file is opened."""

import os
from pathlib import Path

import pytest

from sprocketmq.arrow.schema import COLUMNS, DEFAULT_COLUMNS
from sprocketmq.arrow.store.tables import TABLES, store_arrow_schema
from sprocketmq.errors import ConfigError
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.store.data_source import RocketMQStoreDataSource
from sprocketmq.spark.store.options import NAMES, parse_store_options, store_spark_schema


def parse(**options):
    return parse_store_options({"path": "/srv/mq", **options})


def test_a_path_alone_reads_the_commit_log_with_the_columns_of_the_source():
    options = parse()
    assert (options.paths, options.table, options.columns) == (("/srv/mq",), "commitlog", DEFAULT_COLUMNS)
    assert (options.split_bytes, options.align, options.on_corrupt) == (128 << 20, "index", "fail")
    assert not options.verify_crc
    assert options.inner_batch == "unwrap"
    assert options.broker_name is None
    assert set(COLUMNS) < set(TABLES["commitlog"].columns)


def test_names_and_words_are_taken_in_any_case():
    options = parse(TABLE="BatchCQ", oncorrupt="Report", SplitBytes="1m")
    assert (options.table, options.on_corrupt, options.split_bytes) == ("batchcq", "report", 1 << 20)


def test_several_paths_come_as_spark_hands_them_over():
    assert parse_store_options({"paths": '["/a", "/b/*"]'}).paths == ("/a", "/b/*")
    assert parse_store_options({"path": "file:///a%20b"}).paths == ("/a b",)
    assert parse_store_options({"path": "~/mq"}).paths == (os.path.expanduser("~/mq"),)
    assert parse_store_options({"path": "mq"}).paths == (os.path.abspath("mq"),)


def test_a_report_brings_its_column_wherever_it_is_asked_for():
    assert parse(onCorrupt="report").columns == (*DEFAULT_COLUMNS, "corrupt")
    assert parse(onCorrupt="report", columns="corrupt,topic").columns == ("corrupt", "topic")
    text = store_spark_schema(parse(onCorrupt="report", columns="queueId"))
    assert text == "queueId INT, corrupt STRUCT<file: STRING, offset: BIGINT, length: BIGINT, problem: STRING>"


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("consumequeue", "topic queueId queueOffset commitLogOffset size tagsCode"),
        ("batchcq", "topic queueId queueOffset commitLogOffset size tagsCode batchBaseOffset batchNum storeTimestamp"),
        ("index", "keyHash commitLogOffset timeDiff storeTimestamp slot file"),
    ],
)
def test_every_table_has_its_columns(table, columns):
    options = parse(table=table)
    assert list(options.columns) == columns.split()
    assert store_arrow_schema(options).names == columns.split()
    assert parse(table=table, columns="FILE").columns == ("file",)


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        ({"path": " "}, "path", "required"),
        ({"paths": "[]", "path": None}, "paths", "array of paths"),
        ({"paths": '["/a", 1]', "path": None}, "paths", "array of paths"),
        ({"paths": '["/a"]'}, "paths", "together with 'path'"),
        ({"path": "hdfs://host/mq"}, "path", "local or mounted"),
        ({"tabel": "index"}, "tabel", "'table'"),
        ({"table": "queues"}, "table", "commitlog, consumequeue, batchcq, index"),
        ({"columns": "topic,boddy"}, "columns", "no column 'boddy'"),
        ({"columns": "corrupt"}, "columns", "no column 'corrupt'"),
        ({"table": "index", "columns": "topic"}, "columns", "no column 'topic'"),
        ({"table": "index", "topic": "orders"}, "topic", "no topics"),
        ({"topic": " , "}, "topic", "required"),
        ({"table": "consumequeue", "verifyCrc": "true"}, "verifyCrc", "commitlog only"),
        ({"table": "index", "fromPhysicalOffset": "0"}, "fromPhysicalOffset", "commitlog only"),
        ({"fromPhysicalOffset": "-1"}, "fromPhysicalOffset", "at least 0"),
        ({"fromPhysicalOffset": "9", "toPhysicalOffset": "8"}, "toPhysicalOffset", "before fromPhysicalOffset 9"),
        ({"splitBytes": "100"}, "splitBytes", "at least 1024"),
        ({"splitBytes": "many"}, "splitBytes", "a number of bytes"),
        ({"align": "guess"}, "align", "index, walk, resync"),
        ({"onCorrupt": "ignore"}, "onCorrupt", "fail, skip, report"),
        ({"innerBatch": "yes"}, "innerBatch", "unwrap, raw"),
        ({"verifyCrc": "maybe"}, "verifyCrc", "neither true nor false"),
        ({"batchRows": "0"}, "batchRows", "at least 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, option, words):
    given = {name: value for name, value in {"path": "/srv/mq", **options}.items() if value is not None}
    with pytest.raises(OptionError) as refused:
        parse_store_options(given)
    assert refused.value.option == option
    assert words in str(refused.value)
    assert "rocketmq-store" in str(refused.value)


def test_the_guide_names_every_option_table_and_column():
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "spark-stores.md").read_text()
    for name in (*NAMES, *TABLES):
        assert f"`{name}`" in guide, name
    for table in ("consumequeue", "batchcq", "index"):
        for column in TABLES[table].columns:
            assert f"`{column}`" in guide, column


def test_a_store_is_no_stream_and_not_written_to():
    source = RocketMQStoreDataSource({"path": "/srv/mq"})
    with pytest.raises(ConfigError, match=r"has no streams: read a store with spark\.read"):
        source.streamReader(None)
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(ConfigError, match="only reads: write to a broker's topics with format rocketmq"):
            writer(None, False)
