"""What the readers plan and refuse, with a cluster made of two dictionaries: no JVM, no broker."""

import json
import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sprocketmq.errors import ConnectFailed, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark import source
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.options import parse_options
from sprocketmq.spark.planning import encode_offsets
from sprocketmq.spark.reading import DataLoss

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", i) for i in range(3))


class FakeCluster:
    def __init__(self, **_):
        self.low = {Q0: 0, Q1: 5}
        self.high = {Q0: 100, Q1: 25}

    def queues(self, topics):
        if not self.high:
            raise TopicNotFound("T", "127.0.0.1:1")
        return sorted(self.high)

    def earliest(self, queues):
        return {queue: self.low[queue] for queue in queues}

    def latest(self, queues):
        return {queue: self.high[queue] for queue in queues}

    def at_time(self, queues, timestamp_ms):
        return {queue: min(self.high[queue], timestamp_ms) for queue in queues}


@pytest.fixture
def cluster(monkeypatch):
    fake = FakeCluster()
    monkeypatch.setattr(source, "cluster_access", lambda nameserver, group: fake)
    return fake


def stream(**more):
    options = {"nameserver": "127.0.0.1:1", "subscribe": "T", "pullTimeoutMs": "1", **more}
    return source.StreamReader(parse_options(options, streaming=True))


def through_json(value):
    """Offsets come back from Spark as the JSON it kept."""
    return json.loads(json.dumps(value))


def latest(reader, start, limit=None):
    return reader.latestOffset(through_json(start), limit or ReadAllAvailable())


def test_a_query_starts_where_its_options_say(cluster):
    assert stream().initialOffset() == encode_offsets({Q0: 100, Q1: 25})
    assert stream(startingOffsets="earliest").initialOffset() == encode_offsets({Q0: 0, Q1: 5})
    chosen = '{"T": {"broker-a": {"0": 7, "1": -2}}}'
    assert stream(startingOffsets=chosen).initialOffset() == encode_offsets({Q0: 7, Q1: 5})
    assert stream(startingTimestamp="20").initialOffset() == encode_offsets({Q0: 20, Q1: 20})


def test_a_start_below_what_is_kept_is_data_loss_or_moves_up(cluster, caplog):
    chosen = '{"T": {"broker-a": {"0": 7, "1": 2}}}'
    with pytest.raises(DataLoss, match="messages 2 to 4 of queue 1"):
        stream(startingOffsets=chosen).initialOffset()
    with caplog.at_level(logging.WARNING):
        assert stream(startingOffsets=chosen, failOnDataLoss="false").initialOffset() == encode_offsets({Q0: 7, Q1: 5})
    assert "starting at its beginning" in caplog.text


def test_the_trigger_limit_is_spark_s_to_hand_back(cluster):
    assert stream().getDefaultReadLimit() == ReadAllAvailable()
    assert stream(maxOffsetsPerTrigger="30").getDefaultReadLimit() == ReadMaxRows(30)
    start = encode_offsets({Q0: 0, Q1: 5})
    assert latest(stream(), start, ReadMaxRows(60)) == encode_offsets({Q0: 50, Q1: 15})
    assert latest(stream(maxOffsetsPerTrigger="30"), start) == encode_offsets({Q0: 100, Q1: 25})


def test_nothing_new_is_the_same_offset(cluster):
    start = encode_offsets({Q0: 100, Q1: 25})
    assert latest(stream(), start) == start
    assert stream().partitions(through_json(start), through_json(start)) == []


def test_a_new_queue_is_noted_first_and_read_from_its_beginning_next(cluster):
    reader = stream()
    start = encode_offsets({Q0: 100, Q1: 25})
    cluster.low[Q2], cluster.high[Q2] = 3, 10
    noted = latest(reader, start)
    assert noted == encode_offsets({Q0: 100, Q1: 25, Q2: 3})
    assert reader.partitions(start, noted) == []
    end = latest(reader, noted)
    assert end == encode_offsets({Q0: 100, Q1: 25, Q2: 10})
    [partition] = reader.partitions(through_json(noted), through_json(end))
    assert [tuple(part) for part in partition.value] == [(Q2, 3, 10)]


def test_what_arrives_after_a_bounded_query_began_is_not_its_business(cluster):
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    start = encode_offsets({Q0: 90, Q1: 20})
    cluster.high = {Q0: 500, Q1: 500, Q2: 9}
    end = latest(reader, start, ReadMaxRows(12))
    assert end == encode_offsets({Q0: 98, Q1: 24})
    assert latest(reader, end) == encode_offsets({Q0: 100, Q1: 25})
    assert latest(reader, encode_offsets({Q0: 100, Q1: 25})) == encode_offsets({Q0: 100, Q1: 25})


def test_a_bounded_query_takes_a_queue_that_was_new_when_it_began(cluster):
    cluster.low[Q2], cluster.high[Q2] = 0, 9
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    noted = latest(reader, encode_offsets({Q0: 100, Q1: 25}))
    assert noted == encode_offsets({Q0: 100, Q1: 25, Q2: 0})
    assert latest(reader, noted) == encode_offsets({Q0: 100, Q1: 25, Q2: 9})


def test_a_queue_that_left_the_route_is_data_loss_or_waited_for(cluster, caplog):
    start = encode_offsets({Q0: 90, Q1: 20})
    del cluster.high[Q1]
    with pytest.raises(DataLoss, match=r"gone from the route.*restart the query"):
        latest(stream(), start)
    assert latest(stream(failOnDataLoss="false"), start) == encode_offsets({Q0: 100, Q1: 20})


def test_a_broker_that_is_away_for_a_moment_does_not_end_the_query(cluster, monkeypatch):
    start = encode_offsets({Q0: 90, Q1: 20})
    routes = [ConnectFailed("127.0.0.1:1", "broker", "refused"), TopicNotFound("T"), [Q0], [Q0, Q1]]

    def queues(topics):
        route = routes.pop(0)
        if isinstance(route, Exception):
            raise route
        return route

    monkeypatch.setattr(cluster, "queues", queues)
    monkeypatch.setattr(source.time, "sleep", lambda seconds: None)
    assert latest(stream(pullTimeoutMs="60000"), start) == encode_offsets({Q0: 100, Q1: 25})
    assert routes == []


def test_a_topic_without_a_route_is_an_error_or_waited_for(cluster, caplog):
    start = encode_offsets({Q0: 90, Q1: 20})
    cluster.high.clear()
    with pytest.raises(TopicNotFound):
        latest(stream(), start)
    with caplog.at_level(logging.WARNING):
        assert latest(stream(failOnDataLoss="false"), start) == start
    assert "waiting for it" in caplog.text


def test_a_queue_that_went_backwards_is_data_loss_or_read_on_from_its_end(cluster, caplog):
    start = encode_offsets({Q0: 90, Q1: 20})
    cluster.high[Q0] = 40
    with pytest.raises(DataLoss, match=r"messages 40 to 89 .*now ends at 40"):
        latest(stream(), start)
    with caplog.at_level(logging.WARNING):
        end = latest(stream(failOnDataLoss="false"), start)
    assert end == encode_offsets({Q0: 40, Q1: 25})
    [partition] = stream().partitions(start, end)
    assert [tuple(part) for part in partition.value] == [(Q1, 20, 25)]


def test_the_lag_is_reported(cluster):
    assert stream().reportLatestOffset() == encode_offsets({Q0: 100, Q1: 25})


def test_partitions_follow_from_the_offsets_alone(cluster):
    start, end = encode_offsets({Q0: 0, Q1: 0}), encode_offsets({Q0: 90_000, Q1: 90_000})
    reader = stream(maxPartitions="4")
    first = [partition.value for partition in reader.partitions(start, end)]
    cluster.high.clear()
    assert [partition.value for partition in stream(maxPartitions="4").partitions(start, end)] == first
    assert len(first) == 4


# --- batch --------------------------------------------------------------------------------------------------------------


def batch(**more):
    return source.BatchReader(parse_options({"nameserver": "127.0.0.1:1", "subscribe": "T", **more}, streaming=False))


def test_a_batch_read_plans_what_there_is(cluster):
    [partition] = batch().partitions()
    assert [tuple(part) for part in partition.value] == [(Q0, 0, 100), (Q1, 5, 25)]
    bounds = {"startingOffsets": '{"T": {"broker-a": {"0": 7, "1": -1}}}', "endingOffsets": '{"T": {"broker-a": {"0": 9, "1": -1}}}'}
    [partition] = batch(**bounds).partitions()
    assert [tuple(part) for part in partition.value] == [(Q0, 7, 9)]
    assert batch(startingOffsets="latest").partitions() == []


@pytest.mark.parametrize(
    ("option", "queues", "says"),
    [
        ("startingOffsets", '{"0": 1}', "queue 1 of topic T on broker broker-a is missing"),
        ("startingOffsets", '{"0": 1, "1": 5, "2": 0}', "there is no queue 2 of topic T on broker broker-a; there are queue 0"),
        ("startingOffsets", '{"0": 101, "1": 5}', "queue 0 of topic T on broker broker-a ends at 100, offset 101 is past it"),
        ("endingOffsets", '{"0": 101, "1": -1}', "ends at 100, offset 101 is past it"),
        ("endingOffsets", '{"0": -1, "1": 4}', "would end at 4, before its start at 5"),
    ],
)
def test_offsets_that_cannot_be_are_refused(cluster, option, queues, says):
    with pytest.raises(OptionError) as caught:
        batch(**{option: json.dumps({"T": {"broker-a": json.loads(queues)}})}).partitions()
    assert caught.value.option == option
    assert says in str(caught.value)


def test_the_empty_partition_spark_makes_up_reads_nothing(cluster):
    from pyspark.sql.datasource import InputPartition

    assert list(batch().read(InputPartition(None))) == []
