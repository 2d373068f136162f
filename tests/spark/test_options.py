"""Options are checked before a job starts; each refusal names the option and what it may be."""

import pytest

from sprocketmq.arrow.schema import COLUMNS, DEFAULT_COLUMNS, spark_schema
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.source.offsets import EARLIEST, LATEST, Bound
from sprocketmq.spark.source.options import parse_options

GOOD = {"nameserver": "127.0.0.1:9876", "subscribe": "Orders"}


def batch(**more):
    return parse_options({**GOOD, **more}, streaming=False)


def stream(**more):
    return parse_options({**GOOD, **more}, streaming=True)


def test_defaults_differ_between_batch_and_stream():
    assert (batch().starting, batch().ending) == (Bound("startingOffsets", place=EARLIEST), Bound("endingOffsets", place=LATEST))
    assert stream().starting == Bound("startingOffsets", place=LATEST)
    assert batch().fail_on_data_loss
    assert stream().fail_on_data_loss
    assert batch().columns == DEFAULT_COLUMNS == tuple(COLUMNS)[:12]
    assert (batch().group, batch().filter, batch().prefetch, batch().inner_batch, batch().read_from) == (
        *("sprocketmq-spark", None, 2, "unwrap", "master"),
    )


def test_names_are_taken_in_any_case_and_values_are_read():
    options = parse_options(
        {
            "NAMESERVER": "a:9876; b:9877",
            "Subscribe": " Orders, Returns ,Orders",
            "COLUMNS": "queueoffset,BODY",
            "startingOffsets": '{"Orders": {"broker-a": {"0": 23, "1": -1}}, "Returns": {"b": {"0": -2}}}',
            "maxoffsetspertrigger": "1000",
            "maxBytesPerTrigger": "64m",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "5m",
            "failondataloss": "False",
            "maxpartitions": "3",
            "minPartitions": "2",
            "maxRecordsPerPartition": "50000",
            "batchRows": "10",
            "batchBytes": "1k",
            "pullBatchSize": "32",
            "pullBatchBytes": "256k",
            "pullTimeoutMs": "5",
            "prefetch": "0",
            "innerBatch": "RAW",
            "readFrom": "any",
            "filterExpression": "a || b",
            "group": "g",
            "commitOffsetsToBroker": "true",
            "rocketmq.client.timeoutS": "4.5",
        },
        streaming=True,
    )
    assert (options.nameserver, options.topics, options.pattern, options.assign) == ("a:9876;b:9877", ("Orders", "Returns"), None, ())
    assert options.columns == ("queueOffset", "body")
    assert options.starting.place == {
        MessageQueue("Orders", "broker-a", 0): 23,
        MessageQueue("Orders", "broker-a", 1): LATEST,
        MessageQueue("Returns", "b", 0): EARLIEST,
    }
    assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.min_offsets_per_trigger) == (1000, 64 << 20, 10)
    assert (options.max_trigger_delay_ms, options.fail_on_data_loss) == (300_000, False)
    assert (options.min_partitions, options.max_partitions, options.max_records_per_partition) == (2, 3, 50_000)
    assert (options.batch_rows, options.batch_bytes, options.pull_batch_size, options.pull_batch_bytes) == (10, 1024, 32, 256 << 10)
    assert (options.pull_timeout_ms, options.prefetch, options.inner_batch, options.read_from) == (5, 0, "raw", "any")
    assert (options.filter, options.group, options.commit_offsets) == (("TAG", "a || b"), "g", True)
    assert options.client_options == (("timeout_s", "4.5"),)


def test_the_size_of_a_pull_is_that_of_a_batch_unless_given():
    options = batch(batchRows="77", batchBytes="2m")
    assert (options.pull_batch_size, options.pull_batch_bytes) == (77, 2 << 20)


def test_topics_are_named_matched_or_given_queue_by_queue():
    named = batch(subscribe="Orders, Returns")
    matched = parse_options({"nameserver": "h:1", "subscribePattern": "Or.*"}, streaming=False)
    given = parse_options({"nameserver": "h:1", "assign": '{"Orders": {"b": [3, 1]}, "Returns": {"b": [0]}}'}, streaming=False)
    orders, returns = MessageQueue("Orders", "b", 1), MessageQueue("Returns", "b", 1)
    assert [each.reads(orders) for each in (named, matched, given)] == [True, True, True]
    assert [each.reads(returns) for each in (named, matched, given)] == [True, False, False]
    assert not matched.reads_topic("MyOrders"), "the whole name matches"
    assert given.assign == (orders, MessageQueue("Orders", "b", 3), MessageQueue("Returns", "b", 0))
    assert given.topics == ("Orders", "Returns")
    assert (named.what, matched.what, given.what) == ("Orders, Returns", "topics that match 'Or.*'", "3 assigned queues of Orders, Returns")


def test_a_read_begins_and_ends_at_offsets_times_or_where_a_group_is():
    queue = MessageQueue("Orders", "b", 0)
    assert batch(startingOffsets="LATEST").starting == Bound("startingOffsets", place=LATEST)
    assert batch(startingTimestamp="5").starting == Bound("startingTimestamp", times=5)
    times = '{"Orders": {"b": {"0": 7}}}'
    assert batch(startingOffsetsByTimestamp=times).starting == Bound("startingOffsetsByTimestamp", times={queue: 7})
    assert batch(startingFromGroup="readers").starting == Bound("startingFromGroup", group="readers")
    assert batch(endingTimestamp="9").ending == Bound("endingTimestamp", times=9)
    assert batch(endingOffsetsByTimestamp=times).ending == Bound("endingOffsetsByTimestamp", times={queue: 7})
    assert batch(startingTimestamp="5", startingOffsetsByTimestampStrategy="error").error_without_match
    assert not batch(startingTimestamp="5").error_without_match


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("nameserver", "", "host:port"),
        ("nameserver", "localhost", "'localhost' is not an address"),
        ("nameserver", "a:1;b", "'b' is not an address"),
        ("nameserver", "a:99999", "'a:99999' is not an address"),
        ("subscribe", " , ", "the topic to read"),
        ("subscribe", "bad topic", "only ASCII letters"),
        ("group", "a b", "only ASCII letters"),
        ("columns", "body,nonsense", "no column 'nonsense'; the columns are topic, brokerName"),
        ("columns", "body,Body", "'body' is named twice"),
        ("startingOffsets", "newest", "earliest, latest, or JSON"),
        ("startingOffsets", "[1]", "is not earliest, latest, or JSON"),
        ("startingOffsets", "{", "is not JSON: "),
        ("startingOffsets", "{}", "names no queue"),
        ("startingOffsets", '{"Orders": {}}', "names no queue"),
        ("startingOffsets", '{"Orders": {"b": {}}}', "names no queue"),
        ("startingOffsets", '{"Other": {"b": {"0": 1}}}', "'Other' is not subscribed"),
        ("startingOffsets", '{"Orders": {"b": 1}}', "1 stands where a JSON object should"),
        ("startingOffsets", '{"Orders": {"b": {"x": 1}}}', "'x' is not a queue number"),
        ("startingOffsets", '{"Orders": {"b": {"-1": 1}}}', "'-1' is not a queue number"),
        ("startingOffsets", '{"Orders": {"b": {"0": -3}}}', "-3 is not an offset"),
        ("startingOffsets", '{"Orders": {"b": {"0": true}}}', "true is not an offset"),
        ("startingOffsets", '{"Orders": {"b": {"0": 1.5}}}', "1.5 is not an offset"),
        ("startingOffsets", '{"Orders": {"b": {"0": 9223372036854775808}}}', "is not an offset"),
        ("startingOffsets", '{"Orders": {"b": {"0": 1, "0": 2}}}', "'0' is named twice"),
        ("endingOffsets", "earliest", "cannot end at the earliest"),
        ("endingOffsets", '{"Orders": {"b": {"0": -2}}}', "cannot end at the earliest"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970"),
        ("endingTimestamp", "-1", "milliseconds since 1970"),
        ("startingOffsetsByTimestamp", "5", "is not JSON such as"),
        ("endingOffsetsByTimestamp", '{"Orders": {"b": {"0": -1}}}', "-1 is not a time in milliseconds"),
        ("startingFromGroup", "a b", "only ASCII letters"),
        ("startingFromGroup", " ", "it is required: a consumer group"),
        ("startingOffsetsByTimestampStrategy", "error", "it goes with startingTimestamp or startingOffsetsByTimestamp"),
        ("maxOffsetsPerTrigger", "5", "stream reads"),
        ("maxBytesPerTrigger", "5", "stream reads"),
        ("minOffsetsPerTrigger", "5", "stream reads"),
        ("maxTriggerDelay", "5m", "stream reads"),
        ("commitOffsetsToBroker", "true", "stream reads"),
        ("progressTopic", "reports", "stream reads"),
        ("maxPartitions", "0", "at least 1"),
        ("minPartitions", "-1", "at least 1"),
        ("maxRecordsPerPartition", "0", "at least 1"),
        ("batchRows", "many", "'many' is not a whole number"),
        ("batchBytes", "1", "from 1024 to"),
        ("batchBytes", "4x", "is not a number of bytes"),
        ("pullBatchSize", "0", "from 1 to"),
        ("pullBatchBytes", "-5", "is not a number of bytes"),
        ("pullTimeoutMs", "-1", "is not a time in milliseconds"),
        ("prefetch", "65", "from 0 to 64"),
        ("innerBatch", "cooked", "not one of unwrap, raw"),
        ("readFrom", "replica", "not one of master, slave, any"),
        ("filterType", "TAG", "it goes with filterExpression"),
        ("filterExpression", "||", "it names no tag"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("rocketmq.client.timeoutS", "soon", "is not a number of seconds"),
        ("rocketmq.client.accessKey", "x", "name it with option credentials.file"),
        ("rocketmq.client.useTLS", "x", "give option tls instead"),
        ("rocketmq.client.namespace", "x", "the client cannot do that; what can be passed on is rocketmq.client.timeoutS"),
        ("startingOffset", "latest", "did you mean 'startingOffsets'"),
        ("frobnicate", "1", "no such option. The options are nameserver, subscribe"),
    ],
)
def test_a_bad_option_is_named_with_what_it_may_be(option, value, says):
    with pytest.raises(OptionError, match=r"option '[\w.]+' of the rocketmq format: ") as caught:
        batch(**{option: value})
    assert caught.value.option.lower() == option.lower()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("more", "option", "says"),
    [
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, "startingTimestamp", "cannot be given together with 'startingOffsets'"),
        ({"startingFromGroup": "g", "startingTimestamp": "5"}, "startingFromGroup", "cannot be given together with 'startingTimestamp'"),
        ({"subscribePattern": "O.*"}, "subscribePattern", "cannot be given together with 'subscribe'"),
        ({"assign": '{"Orders": {"b": [0]}}'}, "assign", "cannot be given together with 'subscribe'"),
        ({"endingTimestamp": "5", "endingOffsets": "latest"}, "endingTimestamp", "cannot be given together with 'endingOffsets'"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "endingTimestamp", "5 is before startingTimestamp, 6"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions", "5 is more than maxPartitions, 4"),
        ({"filterType": "SQL92", "filterExpression": " "}, "filterExpression", "it is empty"),
    ],
)
def test_contradictions_name_both_sides(more, option, says):
    with pytest.raises(OptionError) as caught:
        batch(**more)
    assert caught.value.option == option
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("more", "option", "says"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "at least 1"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger", "of at least 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger", "9 is more than maxOffsetsPerTrigger, 8"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay", "it goes with minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "maxTriggerDelay", "'soon' is not a time"),
        ({"commitOffsetsToBroker": "true"}, "commitOffsetsToBroker", "name the consumer group to commit for with option group"),
        ({"progressName": "n"}, "progressName", "it goes with progressTopic"),
        ({"progressTopic": "no topic"}, "progressTopic", "only ASCII letters"),
        ({"progressTopic": "rmq_sys_reports"}, "progressTopic", "a system topic"),
        ({"progressTopic": "Orders"}, "progressTopic", "the query would read its own reports"),
        ({"progressTopic": "r", "progressName": "a\x07"}, "progressName", "printable text"),
        ({"endingOffsets": "latest"}, "endingOffsets", "batch reads (spark.read) only"),
        ({"endingTimestamp": "5"}, "endingTimestamp", "batch reads"),
        ({"endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp", "batch reads"),
    ],
)
def test_a_stream_refuses_what_it_cannot_do(more, option, says):
    with pytest.raises(OptionError) as caught:
        stream(**more)
    assert caught.value.option == option
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "option", "says"),
    [
        ({"subscribePattern": "("}, "subscribePattern", "'(' is not a regular expression"),
        (
            {"subscribePattern": "O.*", "startingOffsets": '{"Returns": {"b": {"0": 1}}}'},
            "startingOffsets",
            "does not match subscribePattern",
        ),
        ({"assign": "Orders"}, "assign", "is not JSON such as"),
        ({"assign": '{"Orders": {"b": 0}}'}, "assign", "0 stands where a list of queues should"),
        ({"assign": '{"Orders": {"b": []}}'}, "assign", "[] stands where a list of queues should"),
        ({"assign": '{"Orders": {"b": ["0"]}}'}, "assign", '"0" is not a queue number'),
        ({"assign": '{"Orders": {"b": [-1]}}'}, "assign", "-1 is not a queue number"),
        ({"assign": '{"Orders": [0]}'}, "assign", "[0] stands where a JSON object should"),
        ({"assign": '{"bad topic": {"b": [0]}}'}, "assign", "only ASCII letters"),
        (
            {"assign": '{"T": {"b": [0]}}', "startingOffsets": '{"T": {"b": {"1": 1}}}'},
            "startingOffsets",
            "queue 1 of topic T on broker b is not in option assign",
        ),
        ({}, "subscribe", "it is required"),
    ],
)
def test_what_is_read_must_be_sayable(options, option, says):
    with pytest.raises(OptionError) as caught:
        parse_options({"nameserver": "h:1", **options}, streaming=False)
    assert caught.value.option == option
    assert says in str(caught.value)


def test_a_missing_nameserver_is_asked_for():
    with pytest.raises(OptionError, match=r"nameserver.*required"):
        parse_options({"subscribe": "T"}, streaming=False)


def test_options_of_either_kind_pass_while_the_kind_is_not_known():
    assert parse_options({**GOOD, "endingOffsets": "latest", "maxOffsetsPerTrigger": "5"}, streaming=None).max_offsets_per_trigger == 5


def test_columns_alone_decide_the_schema():
    assert spark_schema(batch(Columns="queueOffset, properties").columns) == "queueOffset BIGINT, properties MAP<STRING,STRING>"
    assert spark_schema().startswith(
        "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, body BINARY, tags STRING, keys STRING"
    )
