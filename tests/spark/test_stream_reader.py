"""What the readers plan and refuse, with a cluster made of two dictionaries: no JVM, no broker."""

import json
import logging
from concurrent.futures import Future

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType

from sprocketmq.client.consume.pull_requests import PullResult, PullStatus
from sprocketmq.errors import BrokerBusy, ConfigError, ConnectFailed, NameserverUnavailable, NoBroker, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.source import partitions, topic_stream
from sprocketmq.spark.source.access import FilterRefused
from sprocketmq.spark.source.batch_reader import BatchReader
from sprocketmq.spark.source.data_source import RocketMQDataSource
from sprocketmq.spark.source.offsets import WrongCheckpoint, encode_offsets
from sprocketmq.spark.source.options import parse_options
from sprocketmq.spark.source.reading import DataLoss
from sprocketmq.spark.source.stream_reader_before_42 import StreamReaderBefore42
from sprocketmq.spark.source.topic_stream import TopicStream

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", i) for i in range(3))
U0 = MessageQueue("U", "broker-b", 0)


class FakeCluster:
    """Queues with a beginning and an end; message n was stored at time n."""

    def __init__(self):
        self.low = {Q0: 0, Q1: 5}
        self.high = {Q0: 100, Q1: 25}
        self.from_slaves = set()
        self.committed = {}
        self.groups = {}
        self.refused = None
        self.pulled = []
        self.questions = 0

    def topics(self):
        return sorted({queue.topic for queue in self.high})

    def queues(self, topics):
        self.questions += 1
        for topic in topics:
            if not any(queue.topic == topic for queue in self.high):
                raise TopicNotFound(topic, "127.0.0.1:1")
        return sorted(queue for queue in self.high if queue.topic in topics)

    def earliest(self, queues):
        return {queue: self.low.get(queue, 0) for queue in queues}

    def latest(self, queues):
        return {queue: self.high.get(queue, 0) for queue in queues}

    def offsets_from_slave(self, queue):
        return queue in self.from_slaves

    def at_time(self, queues, timestamp_ms):
        return {queue: min(self.high[queue], max(self.low[queue], timestamp_ms)) for queue in queues}

    def group_offsets(self, group, queues):
        return self.groups.get(group, {})

    def commit_offsets(self, group, offsets):
        if self.refused is not None:
            raise self.refused
        self.committed |= {(group, queue): offset for queue, offset in offsets.items()}

    def check_filter(self, queues, filter):  # noqa: A002 - the reader's word
        if filter is not None and filter[0] == "SQL92":
            raise FilterRefused("broker broker-a does not take it")

    def pull(self, queue, offset, max_messages, max_bytes, hold_ms):
        self.pulled.append((queue, offset))
        answer = Future()
        answer.set_result(PullResult(queue, offset, PullStatus.NO_NEW_MESSAGE, offset, 0, offset, b"", 0))
        return answer


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


@pytest.fixture
def cluster(monkeypatch):
    fake = FakeCluster()
    monkeypatch.setattr(partitions, "cluster_access", lambda nameserver, group, client_options, security, patience_s: fake)
    return fake


@pytest.fixture
def clock():
    return Clock()


def parsed(streaming, **more):
    options = {"nameserver": "127.0.0.1:1", "pullTimeoutMs": "1", **more}
    if "subscribePattern" not in more and "assign" not in more:
        options.setdefault("subscribe", "T")
    return parse_options(options, streaming=streaming)


def stream(clock=None, kind=TopicStream, **more):
    clock = clock or Clock()
    return kind(parsed(True, **more), monotonic=clock.monotonic, pause=clock.pause)


def offsets(**queues):
    """Return offsets of queues 0, 1, ... of topic T as the checkpoint has them."""
    return encode_offsets({MessageQueue("T", "broker-a", int(name[1:])): offset for name, offset in queues.items()})


def through_json(value):
    """Offsets come back from Spark as the JSON it kept."""
    return json.loads(json.dumps(value))


def latest(reader, start):
    """Return where the next batch ends, without the number of its partitions."""
    return bare(reader.next_offset(through_json(start)))


def bare(end):
    """Return the offsets without the number of partitions."""
    return {name: value for name, value in end.items() if name != "partitions"}


def planned(partitions):
    return [[tuple(part) for part in partition.value] for partition in partitions]


def test_a_slave_that_lags_behind_is_no_data_loss(cluster):
    cluster.from_slaves = {Q0}
    assert latest(stream(), offsets(q0=120, q1=20)) == offsets(q0=120, q1=25)
    cluster.low[Q0] = 90
    assert latest(stream(), offsets(q0=80, q1=20)) == offsets(q0=100, q1=25)


def test_a_query_starts_where_its_options_say(cluster):
    assert stream().initialOffset() == encode_offsets({Q0: 100, Q1: 25})
    assert stream(startingOffsets="earliest").initialOffset() == encode_offsets({Q0: 0, Q1: 5})
    chosen = '{"T": {"broker-a": {"0": 7, "1": -2}}}'
    assert stream(startingOffsets=chosen).initialOffset() == encode_offsets({Q0: 7, Q1: 5})
    assert stream(startingTimestamp="20").initialOffset() == encode_offsets({Q0: 20, Q1: 20})
    times = '{"T": {"broker-a": {"0": 30, "1": 10}}}'
    assert stream(startingOffsetsByTimestamp=times).initialOffset() == encode_offsets({Q0: 30, Q1: 10})
    cluster.groups["readers"] = {Q0: 42}
    assert stream(startingFromGroup="readers").initialOffset() == encode_offsets({Q0: 42, Q1: 5})


def test_a_start_below_what_is_kept_is_data_loss_or_moves_up(cluster, caplog):
    chosen = '{"T": {"broker-a": {"0": 7, "1": 2}}}'
    with pytest.raises(DataLoss, match="messages 2 to 4 of queue 1"):
        stream(startingOffsets=chosen).initialOffset()
    with caplog.at_level(logging.WARNING):
        assert stream(startingOffsets=chosen, failOnDataLoss="false").initialOffset() == encode_offsets({Q0: 7, Q1: 5})
    assert "starting at the beginning of the queue" in caplog.text


def test_a_stream_of_queues_that_are_not_there_is_refused(cluster):
    with pytest.raises(TopicNotFound, match="topic 'Nothing' has no route"):
        stream(subscribe="T,Nothing").initialOffset()
    with pytest.raises(OptionError, match="there is no queue 7 of topic T on broker broker-a; that broker has queues 0, 1 of it") as caught:
        stream(assign='{"T": {"broker-a": [0, 7]}}').initialOffset()
    assert caught.value.option == "assign"
    with pytest.raises(OptionError, match="there is no queue 0 of topic T on broker broker-z; that broker has no queue of it"):
        stream(assign='{"T": {"broker-z": [0]}}').initialOffset()


def test_a_filter_the_brokers_refuse_is_refused_before_anything_is_read(cluster):
    with pytest.raises(OptionError, match="broker broker-a does not take it") as caught:
        stream(filterExpression="a > 3", filterType="SQL92").initialOffset()
    assert caught.value.option == "filterExpression"
    with pytest.raises(OptionError):
        latest(stream(filterExpression="a > 3", filterType="SQL92"), offsets(q0=90, q1=20))


def test_assigned_queues_alone_are_read_and_no_others_join(cluster):
    reader = stream(assign='{"T": {"broker-a": [1]}}', startingOffsets="earliest")
    assert reader.initialOffset() == offsets(q1=5)
    cluster.low[Q2], cluster.high[Q2] = 0, 10
    assert latest(reader, offsets(q1=5)) == offsets(q1=25)


def test_topics_that_match_a_pattern_are_read_and_new_ones_join(cluster):
    reader = stream(subscribePattern="T|U.*", startingOffsets="earliest")
    cluster.high[MessageQueue("NotU", "broker-b", 0)] = 5
    assert reader.initialOffset() == offsets(q0=0, q1=5)
    cluster.low[U0], cluster.high[U0] = 2, 8
    noted = latest(reader, offsets(q0=100, q1=25))
    assert noted == encode_offsets({Q0: 100, Q1: 25, U0: 2})
    assert latest(reader, noted) == encode_offsets({Q0: 100, Q1: 25, U0: 8})


def test_a_pattern_may_match_nothing_yet(cluster):
    reader = stream(subscribePattern="U.*")
    assert reader.initialOffset() == encode_offsets({})
    assert latest(reader, encode_offsets({})) == encode_offsets({})


# --- how much a batch takes -------------------------------------------------------------------------------------------------


def test_a_batch_takes_as_many_messages_as_it_may_in_proportion(cluster):
    assert latest(stream(maxOffsetsPerTrigger="60"), offsets(q0=0, q1=5)) == offsets(q0=50, q1=15)


def test_a_batch_takes_about_as_many_bytes_as_it_may(cluster, monkeypatch):
    monkeypatch.setattr(partitions, "PulledRows", lambda body: type("Rows", (), {"offsets": range(32)}))

    def pull(queue, offset, max_messages, max_bytes, hold_ms):
        answer = Future()
        answer.set_result(PullResult(queue, offset, PullStatus.FOUND, offset + 32, 0, 100, b"x" * 3200, 0))
        return answer

    monkeypatch.setattr(cluster, "pull", pull)
    assert latest(stream(maxBytesPerTrigger="6000"), offsets(q0=0, q1=5)) == offsets(q0=50, q1=15)
    assert latest(stream(maxBytesPerTrigger="6000", maxOffsetsPerTrigger="12"), offsets(q0=0, q1=5)) == offsets(q0=10, q1=7)


def test_a_look_at_sizes_that_fails_leaves_a_guess(cluster, monkeypatch):
    def pull(queue, offset, max_messages, max_bytes, hold_ms):
        answer = Future()
        answer.set_exception(BrokerBusy(2, "busy"))
        return answer

    monkeypatch.setattr(cluster, "pull", pull)
    assert latest(stream(maxBytesPerTrigger="60k"), offsets(q0=0, q1=5)) == offsets(q0=50, q1=15)


def test_only_queues_with_something_waiting_are_looked_at(cluster):
    latest(stream(maxBytesPerTrigger="1m"), offsets(q0=100, q1=5))
    assert cluster.pulled == [(Q1, 5)]


def test_a_batch_waits_for_enough_messages_but_not_for_ever(cluster, clock):
    reader = stream(clock, minOffsetsPerTrigger="50", maxTriggerDelay="60s")
    start = offsets(q0=90, q1=20)
    assert latest(reader, start) == start
    clock.now += 59
    assert latest(reader, start) == start
    clock.now += 1
    assert latest(reader, start) == offsets(q0=100, q1=25)
    cluster.high[Q0] = 149
    assert latest(reader, offsets(q0=100, q1=25)) == offsets(q0=100, q1=25)
    cluster.high[Q0] = 150
    assert latest(reader, offsets(q0=100, q1=25)) == offsets(q0=150, q1=25)


def test_a_query_that_ends_does_not_wait_for_enough_messages(cluster):
    reader = stream(minOffsetsPerTrigger="50")
    reader.end_here()
    assert latest(reader, offsets(q0=90, q1=20)) == offsets(q0=100, q1=25)


def test_nothing_new_is_the_offset_spark_gave(cluster):
    start = {**offsets(q0=100, q1=25), "partitions": 9}
    assert stream().next_offset(start) is start
    assert stream().partitions(through_json(start), through_json(start)) == []


def test_large_messages_are_shared_out_although_they_are_few(cluster, clock, monkeypatch):
    pulled = []

    def pull(queue, offset, max_messages, max_bytes, hold_ms):
        pulled.append((queue, offset))
        answer = Future()
        answer.set_result(PullResult(queue, offset, PullStatus.FOUND, offset + 1, 0, 100, b"x" * (4 << 20), 0))
        return answer

    monkeypatch.setattr(cluster, "pull", pull)
    monkeypatch.setattr(partitions, "PulledRows", lambda body: type("Rows", (), {"offsets": range(1)}))
    reader = stream(clock, maxPartitions="4")
    assert reader.next_offset(offsets(q0=0, q1=5))["partitions"] == 4
    assert reader.next_offset(offsets(q0=97, q1=25))["partitions"] == 2
    assert pulled == [(Q0, 0)], "sizes are looked at now and then"
    assert len(batch(maxPartitions="4").partitions()) == 4


# --- queues come and go -----------------------------------------------------------------------------------------------------


def test_a_new_queue_is_noted_first_and_read_from_its_beginning_next(cluster):
    reader = stream()
    start = offsets(q0=100, q1=25)
    cluster.low[Q2], cluster.high[Q2] = 3, 10
    noted = latest(reader, start)
    assert noted == offsets(q0=100, q1=25, q2=3)
    assert reader.partitions(start, noted) == []
    end = latest(reader, noted)
    assert end == offsets(q0=100, q1=25, q2=10)
    assert planned(reader.partitions(through_json(noted), through_json(end))) == [[(Q2, 3, 10)]]


def test_a_running_query_asks_for_the_route_now_and_then(cluster, clock):
    reader = stream(clock)
    start = offsets(q0=100, q1=25)
    for _ in range(50):
        assert latest(reader, start) == start
    assert cluster.questions == 1
    cluster.low[Q2], cluster.high[Q2] = 0, 10
    clock.now += topic_stream.ROUTE_REFRESH_S
    assert latest(reader, start) == offsets(q0=100, q1=25, q2=0)


def test_an_idle_query_of_many_queues_does_not_ask_all_the_time(cluster, clock, monkeypatch):
    def slow(queues):
        clock.now += 0.006
        return {queue: cluster.high[queue] for queue in queues}

    monkeypatch.setattr(cluster, "latest", slow)
    reader = stream(clock)
    start = offsets(q0=100, q1=25)
    latest(reader, start)
    rested = clock.now
    latest(reader, start)
    assert clock.now - rested == pytest.approx(0.006 * (1 + topic_stream.IDLE_REST))
    cluster.high[Q0] = 150
    latest(reader, start)
    busy = clock.now
    latest(reader, offsets(q0=120, q1=25))
    assert clock.now - busy == pytest.approx(0.006), "a query that is not idle asks at once"


def test_what_arrives_after_a_bounded_query_began_is_not_its_business(cluster):
    reader = stream(maxOffsetsPerTrigger="12")
    reader.end_here()
    cluster.high = {Q0: 500, Q1: 500, Q2: 9}
    end = latest(reader, offsets(q0=90, q1=20))
    assert end == offsets(q0=98, q1=24)
    assert latest(reader, end) == offsets(q0=100, q1=25)
    assert latest(reader, offsets(q0=100, q1=25)) == offsets(q0=100, q1=25)


def test_a_bounded_query_takes_a_queue_that_was_new_when_it_began(cluster):
    cluster.low[Q2], cluster.high[Q2] = 0, 9
    reader = stream()
    reader.end_here()
    noted = latest(reader, offsets(q0=100, q1=25))
    assert noted == offsets(q0=100, q1=25, q2=0)
    assert latest(reader, noted) == offsets(q0=100, q1=25, q2=9)


def test_a_queue_that_left_the_route_is_data_loss_or_waited_for(cluster):
    start = offsets(q0=90, q1=20)
    del cluster.high[Q1]
    with pytest.raises(DataLoss, match=r"gone from the route.*restart the query"):
        latest(stream(), start)
    assert latest(stream(failOnDataLoss="false"), start) == offsets(q0=100, q1=20)


def test_a_broker_that_is_away_for_a_moment_does_not_end_the_query(cluster, monkeypatch):
    routes = [ConnectFailed("127.0.0.1:1", "broker", "refused"), TopicNotFound("T"), TopicNotFound("T"), [Q0], [Q0, Q1]]

    def queues(topics):
        route = routes.pop(0)
        if isinstance(route, Exception):
            raise route
        return route

    monkeypatch.setattr(cluster, "queues", queues)
    assert latest(stream(pullTimeoutMs="60000"), offsets(q0=90, q1=20)) == offsets(q0=100, q1=25)
    assert routes == []


def test_a_broker_that_stays_away_ends_the_query_after_its_time(cluster, clock, monkeypatch):
    def latest_fails(queues):
        raise ConnectFailed("127.0.0.1:1", "broker", "refused")

    monkeypatch.setattr(cluster, "latest", latest_fails)
    with pytest.raises(ConnectFailed):
        latest(stream(clock, pullTimeoutMs="10000"), offsets(q0=90, q1=20))
    assert 10 <= clock.now - 1000 < 12


def test_a_query_for_what_is_there_ends_after_its_time_when_no_nameserver_answers(clock, monkeypatch):
    tries = []

    def no_access(*_, **__):
        tries.append(clock.now)
        assert len(tries) < 1000, "it pauses between its tries"
        raise NameserverUnavailable(["127.0.0.1:1"])

    monkeypatch.setattr(partitions, "cluster_access", no_access)
    with pytest.raises(NameserverUnavailable):
        stream(clock, pullTimeoutMs="10000").end_here()
    assert 10 <= clock.now - 1000 < 12


@pytest.mark.parametrize("error", [NameserverUnavailable(["127.0.0.1:1"]), NoBroker("t", "127.0.0.1:1")], ids=lambda e: type(e).__name__)
def test_a_query_goes_on_by_the_queues_it_knows_while_the_nameserver_is_away_or_knows_no_broker(cluster, clock, monkeypatch, caplog, error):
    reader = stream(clock)
    latest(reader, offsets(q0=90, q1=20))

    def no_nameserver(topics):
        raise error

    monkeypatch.setattr(cluster, "queues", no_nameserver)
    cluster.high[Q0] = 150
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now += topic_stream.ROUTE_REFRESH_S
            assert latest(reader, offsets(q0=100, q1=25)) == offsets(q0=150, q1=25)
    assert caplog.text.count(f"going on with the queues known so far: {error}") == 1
    with pytest.raises(type(error)):
        latest(stream(clock), offsets(q0=90, q1=20))


def test_a_topic_without_a_route_is_an_error_or_waited_for(cluster, caplog):
    start = offsets(q0=90, q1=20)
    cluster.high.clear()
    with pytest.raises(TopicNotFound):
        latest(stream(), start)
    reader = stream(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert latest(reader, start) == start
    assert caplog.text.count("waiting for topic 'T', which has no route") == 1


def test_other_topics_go_on_while_one_has_no_route(cluster):
    cluster.high[U0] = 8
    start = encode_offsets({Q0: 90, Q1: 20, U0: 3})
    del cluster.high[U0]
    with pytest.raises(TopicNotFound, match="topic 'U' has no route"):
        latest(stream(subscribe="T,U"), start)
    assert latest(stream(subscribe="T,U", failOnDataLoss="false"), start) == encode_offsets({Q0: 100, Q1: 25, U0: 3})


def test_a_topic_deleted_under_a_query_is_named_although_its_route_was_known(cluster, clock):
    reader = stream(clock)
    latest(reader, offsets(q0=90, q1=20))
    cluster.high.clear()
    with pytest.raises(TopicNotFound, match="topic 'T' has no route"):
        latest(reader, offsets(q0=100, q1=25))


def test_a_topic_that_is_just_being_deleted_is_named_as_gone(cluster, clock, monkeypatch):
    reader = stream(clock, pullTimeoutMs="5s")
    latest(reader, offsets(q0=90, q1=20))
    cluster.high = {Q0: 0, Q1: 0}

    def pause(seconds):
        clock.now += seconds
        cluster.high = {}

    reader._pause = pause
    with pytest.raises(TopicNotFound, match="topic 'T' has no route"):
        latest(reader, offsets(q0=100, q1=25))


def test_a_queue_that_went_backwards_is_data_loss_or_read_on_from_its_end(cluster, caplog):
    start = offsets(q0=90, q1=20)
    cluster.high[Q0] = 40
    with pytest.raises(DataLoss, match=r"messages 40 to 89 .*now ends at 40"):
        latest(stream(), start)
    with caplog.at_level(logging.WARNING):
        end = latest(stream(failOnDataLoss="false"), start)
    assert "going on at its end" in caplog.text
    assert end == offsets(q0=40, q1=25)
    assert planned(stream().partitions(start, end)) == [[(Q1, 20, 25)]]


def test_messages_that_expired_are_data_loss_or_left_out_of_the_limit(cluster, caplog):
    start = offsets(q0=10, q1=20)
    cluster.low[Q0] = 60
    with pytest.raises(DataLoss, match=r"messages 10 to 59 of queue 0 .*now begins at 60"):
        latest(stream(), start)
    with caplog.at_level(logging.WARNING):
        end = latest(stream(failOnDataLoss="false", maxOffsetsPerTrigger="9"), start)
    assert "going on at its beginning" in caplog.text
    assert end == offsets(q0=68, q1=21)


# --- checkpoints ------------------------------------------------------------------------------------------------------------


def test_the_checkpoint_of_other_topics_is_refused(cluster):
    cluster.high[U0] = 8
    of_u = encode_offsets({U0: 3})
    for reader in (stream(), stream(failOnDataLoss="false")):
        with pytest.raises(
            WrongCheckpoint, match=r"it has offsets of U, and this query reads T, without queue 0 of topic U on broker broker-b"
        ):
            latest(reader, of_u)
        with pytest.raises(WrongCheckpoint):
            reader.partitions(of_u, of_u)


def test_a_topic_is_dropped_from_a_query_only_on_purpose(cluster, caplog):
    cluster.high[U0] = 8
    of_both = encode_offsets({Q0: 90, Q1: 20, U0: 3})
    with pytest.raises(WrongCheckpoint, match=r"offsets of T, U, and this query reads T.*failOnDataLoss=false"):
        latest(stream(), of_both)
    with caplog.at_level(logging.WARNING):
        assert latest(stream(failOnDataLoss="false"), of_both) == encode_offsets({Q0: 100, Q1: 25, U0: 3})
    assert "queue 0 of topic U on broker broker-b is in the checkpoint but not read any more" in caplog.text


def test_a_topic_may_be_added_to_a_query(cluster):
    cluster.low[U0], cluster.high[U0] = 2, 8
    noted = latest(stream(subscribe="T,U"), offsets(q0=100, q1=25))
    assert noted == encode_offsets({Q0: 100, Q1: 25, U0: 2})


def test_the_checkpoint_of_another_source_is_refused(cluster):
    with pytest.raises(WrongCheckpoint, match="use the checkpoint directory the query was started with"):
        latest(stream(), {"orders-0": 5})


def test_the_offsets_of_finished_batches_are_committed_for_a_group(cluster):
    reader = stream(commitOffsetsToBroker="true", group="readers")
    end = latest(reader, offsets(q0=90, q1=20))
    assert cluster.committed == {("readers", Q0): 90, ("readers", Q1): 20}
    latest(reader, end)
    assert cluster.committed == {("readers", Q0): 100, ("readers", Q1): 25}
    cluster.committed.clear()
    latest(reader, end)
    assert cluster.committed == {}, "nothing has changed"
    assert latest(stream(group="readers"), end) == end
    assert cluster.committed == {}, "nobody asked for it"


def test_a_commit_that_fails_does_not_end_the_query_and_is_tried_again(cluster, caplog):
    reader = stream(commitOffsetsToBroker="true", group="readers")
    cluster.refused = BrokerBusy(2, "busy")
    with caplog.at_level(logging.WARNING):
        assert latest(reader, offsets(q0=90, q1=20)) == offsets(q0=100, q1=25)
    assert "offsets of group 'readers' were not committed" in caplog.text
    cluster.refused = None
    latest(reader, offsets(q0=90, q1=20))
    assert cluster.committed == {("readers", Q0): 90, ("readers", Q1): 20}


def test_progress_is_noted_and_ends_with_the_query(cluster, monkeypatch):
    noted = []

    class Reporter:
        def __init__(self, nameserver, topic, query, security):
            noted.append((topic, query))

        def note(self, begun, latest):
            noted.append((begun, latest))

        def close(self):
            noted.append("closed")

    monkeypatch.setattr(topic_stream, "ProgressReporter", Reporter)
    reader = stream(progressTopic="reports")
    latest(reader, offsets(q0=90, q1=20))
    reader.stop()
    assert noted == [("reports", "T"), ({Q0: 90, Q1: 20}, {Q0: 100, Q1: 25}), "closed"]
    noted.clear()
    reader = stream()
    latest(reader, offsets(q0=90, q1=20))
    reader.stop()
    assert noted == [], "nobody asked for it"


def test_the_lag_is_what_was_seen_last(cluster):
    reader = stream(maxOffsetsPerTrigger="10")
    assert reader.seen_offset() is None
    latest(reader, offsets(q0=0, q1=5))
    assert reader.seen_offset() == offsets(q0=100, q1=25)


def test_partitions_follow_from_the_offsets_alone(cluster):
    start, end = offsets(q0=0, q1=0), offsets(q0=90_000, q1=90_000)
    reader = stream(maxPartitions="4")
    first = planned(reader.partitions(start, end))
    cluster.high.clear()
    assert planned(stream(maxPartitions="4").partitions(start, end)) == first
    assert len(first) == 4


def test_a_batch_is_cut_as_it_was_when_it_was_planned_whatever_the_options_are_now(cluster):
    cluster.high = {Q0: 90_000, Q1: 90_000}
    start = offsets(q0=0, q1=5)
    reader = stream(maxPartitions="4")
    end = through_json(reader.next_offset(start))
    assert end["partitions"] == 4
    first = planned(reader.partitions(start, end))
    assert planned(stream(maxPartitions="16", minPartitions="9").partitions(start, end)) == first


def test_the_number_of_partitions_can_be_bounded_from_below_and_by_their_size(cluster):
    start, end = offsets(q0=0, q1=0), offsets(q0=90_000, q1=90_000)
    assert len(stream(maxPartitions="2", minPartitions="2").partitions(start, end)) == 2
    small = planned(stream(maxPartitions="2", maxRecordsPerPartition="20000").partitions(start, end))
    assert max(sum(high - low for _, low, high in part) for part in small) <= 20_000
    assert len(stream(minPartitions="3").partitions(offsets(q0=0), offsets(q0=30))) == 3


# --- batch ------------------------------------------------------------------------------------------------------------------


def batch(**more):
    return BatchReader(parsed(False, **more))


def test_a_batch_read_plans_what_there_is(cluster):
    assert planned(batch().partitions()) == [[(Q0, 0, 100), (Q1, 5, 25)]]
    bounds = {"startingOffsets": '{"T": {"broker-a": {"0": 7, "1": -1}}}', "endingOffsets": '{"T": {"broker-a": {"0": 9, "1": -1}}}'}
    assert planned(batch(**bounds).partitions()) == [[(Q0, 7, 9)]]
    assert batch(startingOffsets="latest").partitions() == []


def test_a_batch_read_goes_from_time_to_time(cluster):
    assert planned(batch(startingTimestamp="10", endingTimestamp="20").partitions()) == [[(Q0, 10, 20), (Q1, 10, 20)]]
    times = '{"T": {"broker-a": {"0": 30, "1": 22}}}'
    assert planned(batch(endingOffsetsByTimestamp=times).partitions()) == [[(Q0, 0, 30), (Q1, 5, 22)]]
    assert planned(batch(startingTimestamp="90").partitions()) == [[(Q0, 90, 100)]]
    with pytest.raises(OptionError, match="queue 1 of topic T on broker broker-a has no message stored at 90 or later"):
        batch(startingTimestamp="90", startingOffsetsByTimestampStrategy="error").partitions()


def test_a_batch_read_goes_on_where_a_group_is(cluster):
    cluster.groups["readers"] = {Q0: 95, Q1: 25}
    assert planned(batch(startingFromGroup="readers").partitions()) == [[(Q0, 95, 100)]]
    assert batch(startingFromGroup="readers", endingTimestamp="50").partitions() == [], "it has come further than that"
    cluster.groups["readers"] = {Q0: 95, Q1: 26}
    with pytest.raises(OptionError, match="queue 1 of topic T on broker broker-a ends at 25, offset 26 is past it") as caught:
        batch(startingFromGroup="readers").partitions()
    assert caught.value.option == "startingFromGroup"


def test_a_batch_read_of_assigned_queues_and_of_a_pattern(cluster):
    cluster.low[U0], cluster.high[U0] = 0, 3
    assert planned(batch(assign='{"U": {"broker-b": [0]}, "T": {"broker-a": [1]}}').partitions()) == [[(Q1, 5, 25), (U0, 0, 3)]]
    assert planned(batch(subscribePattern="[UV]").partitions()) == [[(U0, 0, 3)]]
    with pytest.raises(OptionError, match=r"no topic matches 'V\.\*'; there are T, U"):
        batch(subscribePattern="V.*").partitions()


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


def test_an_unknown_broker_is_named(cluster):
    chosen = '{"T": {"broker-a": {"0": 1, "1": 5}, "broker-z": {"0": 1}}}'
    with pytest.raises(OptionError, match="there is no queue 0 of topic T on broker broker-z"):
        batch(startingOffsets=chosen).partitions()


def test_a_schema_of_the_user_s_own_is_refused(cluster):
    made = RocketMQDataSource({"nameserver": "127.0.0.1:1", "subscribe": "T", "columns": "queueId"})
    with pytest.raises(
        OptionError, match=r"the schema given is struct<number:int>, but the columns are queueId INT: leave .schema\(\) out"
    ):
        made.reader(StructType([StructField("number", IntegerType())]))
    assert isinstance(made.reader(StructType([StructField("queueId", IntegerType())])), BatchReader)
    assert isinstance(made.streamReader(StructType([StructField("queueId", IntegerType())])), TopicStream)


def test_the_empty_partition_spark_makes_up_reads_nothing(cluster):
    assert list(batch().read(InputPartition(None))) == []


# --- Spark 4.2 and newer ----------------------------------------------------------------------------------------------------


@pytest.fixture
def spark42():
    """Return the kind of reader for Spark 4.2, and the limits that Spark has from then on."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark 4.0 and 4.1 have no limits")
    from sprocketmq.spark.source.stream_reader import StreamReader

    return StreamReader, limits


def test_the_limit_of_a_trigger_is_told_to_spark(cluster, spark42):
    kind, limits = spark42

    def told(**options):
        return stream(kind=kind, **options).getDefaultReadLimit()

    assert told() == limits.ReadAllAvailable()
    assert told(maxOffsetsPerTrigger="30", maxBytesPerTrigger="5", minOffsetsPerTrigger="2") == limits.ReadMaxRows(30)
    assert told(maxBytesPerTrigger="5k", minOffsetsPerTrigger="2") == limits.ReadMaxBytes(5 << 10)
    assert told(minOffsetsPerTrigger="2") == limits.ReadMinRows(2)


def test_a_query_that_runs_once_takes_all_there_is(cluster, spark42):
    kind, limits = spark42
    reader = stream(kind=kind, maxOffsetsPerTrigger="30", minOffsetsPerTrigger="1", maxBytesPerTrigger="1")
    assert bare(reader.latestOffset(offsets(q0=0, q1=5), limits.ReadAllAvailable())) == offsets(q0=100, q1=25)
    assert bare(reader.latestOffset(offsets(q0=0, q1=5), reader.getDefaultReadLimit())) != offsets(q0=100, q1=25)


def test_a_query_of_what_is_available_now_ends_there(cluster, spark42):
    kind, limits = spark42
    reader = stream(kind=kind, maxOffsetsPerTrigger="1000")
    reader.prepareForTriggerAvailableNow()
    cluster.high[Q0] = 200
    assert bare(reader.latestOffset(offsets(q0=0, q1=5), limits.ReadMaxRows(1000))) == offsets(q0=100, q1=25)
    assert reader.reportLatestOffset() == offsets(q0=100, q1=25)


# --- Spark 4.0 and 4.1 ------------------------------------------------------------------------------------------------------


def before_42(clock=None, **more):
    return stream(clock, StreamReaderBefore42, **more)


def test_before_42_a_new_query_goes_on_from_where_it_began(cluster, caplog):
    reader = before_42(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    first = reader.latestOffset()  # Spark asks for the end of the first batch before its beginning
    start = reader.initialOffset()
    assert start == offsets(q0=0, q1=5)
    assert bare(first) == offsets(q0=50, q1=15)
    assert planned(reader.partitions(through_json(start), through_json(first))) == [[(Q0, 0, 50), (Q1, 5, 15)]]
    second = reader.latestOffset()
    assert bare(second) == offsets(q0=100, q1=25)
    assert reader.latestOffset() == second
    assert caplog.text.count("runs one micro-batch with trigger(availableNow=True), and maxOffsetsPerTrigger limits it") == 1


def test_before_42_the_beginning_of_a_new_query_is_the_one_its_first_batch_was_made_with(cluster):
    reader = before_42(startingOffsets="latest")
    assert bare(reader.latestOffset()) == offsets(q0=100, q1=25)
    cluster.high[Q0] = 101
    assert reader.initialOffset() == offsets(q0=100, q1=25)


def test_before_42_a_query_goes_on_from_its_checkpoint(cluster, caplog):
    reader = before_42(maxBytesPerTrigger="1g", minOffsetsPerTrigger="2")
    last = {**offsets(q0=90, q1=25), "partitions": 1}
    assert reader.partitions(last, last) == []  # how Spark tells where the query was
    end = reader.latestOffset()
    assert bare(end) == offsets(q0=100, q1=25)
    assert planned(reader.partitions(last, through_json(end))) == [[(Q0, 90, 100)]]
    assert reader.latestOffset() == end
    assert caplog.text.count("maxBytesPerTrigger and minOffsetsPerTrigger limits it") == 1


def test_before_42_a_batch_that_was_not_finished_is_read_again_before_the_next_one(cluster):
    reader = before_42()
    start, end = offsets(q0=90, q1=20), offsets(q0=95, q1=25)
    assert reader.partitions(start, start) == []
    assert planned(reader.partitions(start, end)) == [[(Q0, 90, 95), (Q1, 20, 25)]]
    assert bare(reader.latestOffset()) == offsets(q0=100, q1=25)


def test_before_42_a_query_that_hides_where_it_was_is_refused(cluster):
    reader = before_42(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    end = reader.latestOffset()
    with pytest.raises(ConfigError, match=r"triggerAvailableNowWrapper.enabled is true: set it to false, or use Spark 4.2"):
        reader.partitions(offsets(q0=90, q1=25), through_json(end))
