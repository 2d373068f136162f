"""Options are checked before a job starts; each refusal names the option and what it may be."""

import pytest

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.options import EARLIEST, LATEST, parse_columns, parse_options
from sprocketmq.spark.schema import COLUMNS, DEFAULT_COLUMNS, spark_schema

GOOD = {"nameserver": "127.0.0.1:9876", "subscribe": "Orders"}


def test_defaults_differ_between_batch_and_stream():
    batch = parse_options(GOOD, streaming=False)
    stream = parse_options(GOOD, streaming=True)
    assert (batch.starting, batch.ending) == (EARLIEST, LATEST)
    assert stream.starting == LATEST
    assert batch.fail_on_data_loss
    assert stream.fail_on_data_loss
    assert batch.columns == DEFAULT_COLUMNS == tuple(COLUMNS)[:12]


def test_names_are_taken_in_any_case_and_values_are_read():
    options = parse_options(
        {
            "NAMESERVER": "a:9876; b:9877",
            "Subscribe": " Orders, Returns ,Orders",
            "COLUMNS": "queueoffset,BODY",
            "startingOffsets": '{"Orders": {"broker-a": {"0": 23, "1": -1}}, "Returns": {"b": {"0": -2}}}',
            "maxoffsetspertrigger": "1000",
            "failondataloss": "False",
            "maxpartitions": "3",
            "batchRows": "10",
            "batchBytes": "1024",
            "pullTimeoutMs": "5",
            "group": "g",
        },
        streaming=True,
    )
    assert options.topics == ("Orders", "Returns")
    assert options.columns == ("queueOffset", "body")
    assert options.starting == {
        MessageQueue("Orders", "broker-a", 0): 23,
        MessageQueue("Orders", "broker-a", 1): LATEST,
        MessageQueue("Returns", "b", 0): EARLIEST,
    }
    assert (options.max_offsets_per_trigger, options.fail_on_data_loss, options.max_partitions) == (1000, False, 3)
    assert (options.batch_rows, options.batch_bytes, options.pull_timeout_ms, options.group) == (10, 1024, 5, "g")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("nameserver", "", "host:port"),
        ("nameserver", "localhost", "'localhost' is not host:port"),
        ("nameserver", "a:1;b", "'b' is not host:port"),
        ("nameserver", "a:99999", "host:port"),
        ("subscribe", " , ", "the topic to read"),
        ("subscribe", "bad topic", "only ASCII letters"),
        ("group", "a b", "only ASCII letters"),
        ("columns", "body,nonsense", "no column 'nonsense'; the columns are topic, brokerName"),
        ("columns", "body,Body", "'body' is named twice"),
        ("startingOffsets", "newest", "earliest, latest, or JSON"),
        ("startingOffsets", "[1]", "should; the value must be earliest"),
        ("startingOffsets", "{}", "names no queue"),
        ("startingOffsets", '{"Other": {"b": {"0": 1}}}', "'Other' is not subscribed"),
        ("startingOffsets", '{"Orders": {"b": 1}}', "1 stands where a JSON object should"),
        ("startingOffsets", '{"Orders": {"b": {"x": 1}}}', "'x' is not a queue number"),
        ("startingOffsets", '{"Orders": {"b": {"0": -3}}}', "-3 is not an offset"),
        ("startingOffsets", '{"Orders": {"b": {"0": true}}}', "True is not an offset"),
        ("startingOffsets", '{"Orders": {"b": {"0": 1.5}}}', "1.5 is not an offset"),
        ("endingOffsets", "earliest", "cannot end at the earliest"),
        ("endingOffsets", '{"Orders": {"b": {"0": -2}}}', "cannot end at the earliest"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970"),
        ("maxOffsetsPerTrigger", "5", "stream reads"),
        ("maxPartitions", "0", "at least 1"),
        ("batchRows", "many", "'many' is not a whole number"),
        ("batchBytes", "1", "at least 1024"),
        ("pullTimeoutMs", "-1", "at least 1"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("startingOffset", "latest", "did you mean 'startingOffsets'"),
        ("frobnicate", "1", "no such option; The options are nameserver, subscribe"),
    ],
)
def test_a_bad_option_is_named_with_what_it_may_be(option, value, says):
    with pytest.raises(OptionError, match=r"option '\w+' of the rocketmq format: ") as caught:
        parse_options({**GOOD, option: value}, streaming=False)
    assert caught.value.option.lower() == option.lower()
    assert says in str(caught.value)


@pytest.mark.parametrize(("option", "value"), [("maxOffsetsPerTrigger", "0"), ("endingOffsets", "latest")])
def test_a_stream_refuses_what_it_cannot_do(option, value):
    with pytest.raises(OptionError) as caught:
        parse_options({**GOOD, option: value}, streaming=True)
    assert caught.value.option == option


def test_a_time_and_offsets_contradict_each_other():
    with pytest.raises(OptionError, match="leave one out"):
        parse_options({**GOOD, "startingTimestamp": "5", "startingOffsets": "latest"}, streaming=False)
    assert parse_options({**GOOD, "startingTimestamp": "5"}, streaming=False).starting_timestamp_ms == 5


def test_missing_nameserver_and_topic_are_asked_for():
    with pytest.raises(OptionError, match=r"nameserver.*required"):
        parse_options({"subscribe": "T"}, streaming=False)
    with pytest.raises(OptionError, match=r"subscribe.*required"):
        parse_options({"nameserver": "h:1"}, streaming=False)


def test_columns_alone_decide_the_schema():
    assert spark_schema(parse_columns({"Columns": "queueOffset, properties"})) == "queueOffset BIGINT, properties MAP<STRING,STRING>"
    assert spark_schema().startswith(
        "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, body BINARY, tags STRING, keys STRING"
    )
