"""The sink's options and columns: what is refused before a job starts, and in which words."""

import pickle
import re
from pathlib import Path

import pytest

from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.security import SECURITY_NAMES
from sprocketmq.spark.sink.options import COLUMNS, IGNORED_COLUMNS, NAMES, ColumnError, check_columns, parse_sink_options

BODY = {"body": 0}


def parse(columns=BODY, **options):
    return parse_sink_options({"nameserver": "h:9876", "topic": "T", **options}, columns)


def test_defaults_send_batches_at_least_once():
    options = parse()
    assert (options.nameserver, options.topic, options.group) == ("h:9876", "T", "sprocketmq-spark-sink")
    assert (options.send_mode, options.on_too_large, options.deterministic, options.ordered) == ("batch", "fail", False, False)
    assert options.batch_bytes <= options.max_message_bytes == 4 << 20
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_is_taken_in_any_case():
    options = parse(
        {"body": 0, "shardingKey": 1},
        SENDMODE="AUTO",
        batchbytes="64k",
        batchMessages="100",
        producerGroup="pg",
        ordered="shardingkey",
        waitStoreOk="false",
        retries="1",
        sendTimeoutMs="3s",
        maxInFlight="4",
        maxMessageBytes="1m",
        dedupId="Deterministic",
        onTooLarge="dead-letter",
        deadLetterPath="/letters",
        **{"rocketmq.client.latencyFaultTolerance": "true"},
    )
    assert (options.send_mode, options.batch_bytes, options.batch_messages, options.group) == ("auto", 65536, 100, "pg")
    assert (options.ordered, options.wait_store_ok, options.retries, options.timeout_ms) == (True, False, 1, 3000)
    assert (options.max_in_flight, options.max_message_bytes, options.deterministic) == (4, 1 << 20, True)
    assert (options.on_too_large, options.dead_letter_path) == ("dead-letter", "/letters")
    assert options.client_options == (("latency_fault_tolerance", True),)


def test_the_guide_lists_every_option_and_column():
    text = (Path(__file__).parents[3] / "docs/guide/spark-sink.md").read_text(encoding="utf-8")
    [columns, options] = [part for part in text.split("\n## ") if part.startswith(("Columns", "Options"))]

    def listed(part):
        return {name for line in part.splitlines() if line.startswith("| `") for name in re.findall("`([^`]+)`", line.split("|")[1])}

    assert listed(columns) == set(COLUMNS)
    described = {name for name in listed(options) if not name.startswith("rocketmq.client.")}
    assert described == {name for name in NAMES if not name.endswith(".") and name not in SECURITY_NAMES}
    assert "(spark-security.md)" in options


def test_what_spark_hands_over_itself_is_no_option_of_ours():
    parse(checkpointLocation="/c", queryName="q", asyncProgressTrackingEnabled="true", asyncProgressTrackingCheckpointIntervalMs="1000")


def test_a_small_limit_lowers_the_default_batch():
    assert parse(maxMessageBytes="8k").batch_bytes == 8192


@pytest.mark.parametrize(
    ("given", "option", "words"),
    [
        ({"topics": "T"}, "topics", "did you mean 'topic'"),
        ({"nameserver": ""}, "nameserver", "required"),
        ({"nameserver": "h"}, "nameserver", "h"),
        ({"topic": "a b"}, "topic", "only ASCII letters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "topic", "system topic"),
        ({"sendMode": "fast"}, "sendMode", "batch, auto, single"),
        ({"sendMode": "single", "batchBytes": "1m"}, "batchBytes", "sendMode=single"),
        ({"sendMode": "single", "batchMessages": "10"}, "batchMessages", "sendMode=single"),
        ({"batchBytes": "5m"}, "batchBytes", "maxMessageBytes"),
        ({"batchMessages": "40000"}, "batchMessages", "32767"),
        ({"ordered": "true"}, "ordered", "none, shardingKey"),
        ({"ordered": "shardingKey"}, "ordered", "needs a column 'shardingKey'"),
        ({"dedupId": "yes"}, "dedupId", "none, deterministic"),
        ({"onTooLarge": "drop"}, "onTooLarge", "fail, split, dead-letter"),
        ({"onTooLarge": "dead-letter"}, "deadLetterPath", "required with onTooLarge=dead-letter"),
        ({"deadLetterPath": "/x"}, "deadLetterPath", "set onTooLarge to dead-letter"),
        ({"producerGroup": "DEFAULT_PRODUCER"}, "producerGroup", "a name of their own"),
        ({"retries": "-1"}, "retries", "from 0"),
        ({"maxInFlight": "0"}, "maxInFlight", "from 1"),
        ({"waitStoreOk": "maybe"}, "waitStoreOk", "neither true nor false"),
        ({"rocketmq.client.namespace": "x"}, "rocketmq.client.namespace", "the client cannot do that"),
        ({"rocketmq.client.latencyFaultTolerance": "x"}, "rocketmq.client.latency_fault_tolerance", "neither true nor false"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given, option, words):
    with pytest.raises(OptionError, match=words) as refused:
        parse(**given)
    assert refused.value.option == option


def test_a_topic_must_come_from_somewhere():
    with pytest.raises(OptionError, match="unless the rows have a column 'topic'"):
        parse_sink_options({"nameserver": "h:1"}, BODY)
    assert parse_sink_options({"nameserver": "h:1"}, {"body": 0, "topic": 1}).topic is None


def test_a_dedup_key_that_nothing_uses_is_a_contradiction():
    with pytest.raises(OptionError, match="set dedupId to deterministic"):
        parse({"body": 0, "dedupKey": 1})


def test_ids_by_micro_batch_need_micro_batches_that_stay_the_same():
    both = {"dedupId": "deterministic", "asyncProgressTrackingEnabled": "true"}
    with pytest.raises(OptionError, match="may hold other rows under its old number"):
        parse(**both)
    assert parse({"body": 0, "dedupKey": 1}, **both).deterministic
    assert parse(**{**both, "asyncProgressTrackingEnabled": "false"}).deterministic


def test_relative_dead_letter_paths_are_the_drivers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse(onTooLarge="dead-letter", deadLetterPath="letters").dead_letter_path == f"{tmp_path}/letters"
    assert parse(onTooLarge="dead-letter", deadLetterPath="s3://b/x").dead_letter_path == "s3://b/x"


def test_the_columns_of_a_read_can_be_written_as_they_are():
    schema = [("topic", "string"), ("brokerName", "string"), ("queueId", "int"), ("queueOffset", "bigint"), ("body", "binary")]
    schema += [("tags", "string"), ("keys", "string"), ("properties", "map<string,string>"), ("flag", "int"), ("sysFlag", "int")]
    schema += [("bornTimestamp", "timestamp"), ("storeTimestamp", "timestamp")]
    assert check_columns(schema) == {
        "topic": 0,
        "brokerName": 1,
        "queueId": 2,
        "body": 4,
        "tags": 5,
        "keys": 6,
        "properties": 7,
        "flag": 8,
        "bornTimestamp": 10,
    }
    assert not IGNORED_COLUMNS & COLUMNS.keys()


def test_columns_are_taken_in_any_case_and_with_the_types_that_fit():
    assert check_columns([("BODY", "string"), ("Keys", "array<string>"), ("TAGS", "varchar(10)"), ("queueid", "bigint")]) == {
        "body": 0,
        "keys": 1,
        "tags": 2,
        "queueId": 3,
    }
    assert check_columns([("body", "string collate UTF8_LCASE"), ("tags", "void")]) == {"body": 0}, "a null column is none"


@pytest.mark.parametrize(
    ("schema", "column", "words"),
    [
        ([("value", "binary")], "value", "no such part"),
        ([], "body", "it is missing"),
        ([("tags", "string")], "body", "to_json"),
        ([("body", "int")], "body", r"its type is int, it must be binary or string.*CAST\(body AS BINARY\)"),
        ([("body", "void")], "body", "its type is void"),
        ([("body", "struct<a:int>")], "body", "struct<a:int>"),
        ([("body", "binary"), ("tag", "string")], "tag", "did you mean 'tags'"),
        ([("body", "binary"), ("Body", "binary")], "Body", "twice"),
        ([("body", "binary"), ("keys", "array<int>")], "keys", "array<string>"),
        ([("body", "binary"), ("properties", "map<string,int>")], "properties", "map<string,string>"),
        ([("body", "binary"), ("queueId", "string")], "queueId", "must be tinyint or"),
        ([("body", "binary"), ("deliverTimestamp", "string")], "deliverTimestamp", "timestamp"),
    ],
)
def test_a_schema_the_sink_cannot_take_is_refused_by_column(schema, column, words):
    with pytest.raises(ColumnError, match=words) as refused:
        check_columns(schema)
    assert refused.value.column == column
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
