"""Where reads begin and end is a question to the brokers and a pure answer; offsets in a checkpoint are read back or refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.source.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    WrongCheckpoint,
    check_same_topics,
    decode_offsets,
    decode_partitions,
    encode_offsets,
    name_some,
    settle,
)


def queue(number, broker="broker-a", topic="T"):
    return MessageQueue(topic, broker, number)


Q0, Q1 = queue(0), queue(1)
LOW = {Q0: 5, Q1: 0}
HIGH = {Q0: 50, Q1: 70}
queues = st.builds(MessageQueue, st.sampled_from(["A", "v", "topics"]), st.sampled_from(["broker-a", "b"]), st.integers(0, 9))


class FakeCluster:
    """Message n of a queue was stored at time n; group "g" has committed what ``committed`` says."""

    def __init__(self, **committed):
        self.committed = committed
        self.asked = []

    def at_time(self, queues, timestamp_ms):
        self.asked.append((tuple(queues), timestamp_ms))
        return {each: max(LOW[each], min(HIGH[each], timestamp_ms)) for each in queues}

    def group_offsets(self, group, queues):
        return self.committed.get(group, {})


def where(option="startingOffsets", cluster=None, **bound):
    return settle(Bound(option, **bound), cluster or FakeCluster(), LOW, HIGH)


def test_offsets_are_written_in_the_order_of_queues_and_read_back():
    offsets = {queue(10): 5, queue(2): 2**40, queue(0, "broker-b"): 0, queue(1, topic="v"): 7}
    text = json.dumps(encode_offsets(offsets))
    assert (
        text == '{"v": 1, "topics": {"T": {"broker-a": {"2": 1099511627776, "10": 5}, "broker-b": {"0": 0}}, "v": {"broker-a": {"1": 7}}}}'
    )
    assert decode_offsets(json.loads(text)) == offsets
    assert decode_partitions(json.loads(text)) is None


def test_the_number_of_partitions_is_kept_with_the_offsets():
    value = json.loads(json.dumps(encode_offsets({Q0: 1}, 7)))
    assert (decode_partitions(value), decode_offsets(value)) == (7, {Q0: 1})


@given(st.dictionaries(queues, st.integers(0, 2**62)))
def test_offsets_survive_the_checkpoint(offsets):
    assert decode_offsets(json.loads(json.dumps(encode_offsets(offsets)))) == offsets


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"v": 2, "topics": {}},
        {"0": 5},
        {"v": 1, "topics": 3},
        {"v": 1, "topics": {"T": 3}},
        {"v": 1, "topics": {"T": {"b": {"x": 3}}}},
        {"v": 1, "topics": {"T": {"b": {"0": -1}}}},
        {"v": 1, "topics": {"T": {"b": {"0": True}}}},
    ],
)
def test_the_checkpoint_of_something_else_is_refused(value):
    with pytest.raises(WrongCheckpoint, match="use the checkpoint directory the query was started with, or a new one"):
        decode_offsets(value)


def test_words_stand_for_the_ends_of_queues():
    assert where(place=EARLIEST) == LOW
    assert where(place=LATEST) == HIGH
    assert where(place={Q0: EARLIEST, Q1: LATEST}) == {Q0: 5, Q1: 70}
    assert where(place={Q0: 7, Q1: LATEST}) == {Q0: 7, Q1: 70}


def test_every_queue_must_be_named_and_none_that_is_not_there():
    with pytest.raises(OptionError, match="queue 1 of topic T on broker broker-a is missing; give every queue an offset"):
        where(place={Q0: 7})
    with pytest.raises(OptionError, match="there is no queue 2 of topic T on broker broker-a; there are queue 0 of topic T"):
        where(place={Q0: 7, Q1: 7, queue(2): 1})
    with pytest.raises(OptionError, match="there is no queue 0 of topic T on broker broker-z"):
        where(place={Q0: 7, Q1: 7, queue(0, "broker-z"): 1})
    with pytest.raises(OptionError, match="queue 0 of topic T on broker broker-a is missing; give every queue a time"):
        where("startingOffsetsByTimestamp", times={Q1: 7})


def test_a_time_is_looked_up_for_all_queues_and_times_each_once():
    cluster = FakeCluster()
    assert where(cluster=cluster, times=20) == {Q0: 20, Q1: 20}
    assert where(cluster=cluster, times={Q0: 60, Q1: 60}) == {Q0: 50, Q1: 60}
    assert where(cluster=cluster, times={Q0: 10, Q1: 60}) == {Q0: 10, Q1: 60}
    assert cluster.asked == [((Q0, Q1), 20), ((Q0, Q1), 60), ((Q0,), 10), ((Q1,), 60)]


def test_a_time_after_the_last_message_is_the_end_or_refused():
    bound = Bound("startingTimestamp", times=60)
    assert settle(bound, FakeCluster(), LOW, HIGH) == {Q0: 50, Q1: 60}
    with pytest.raises(OptionError, match="queue 0 of topic T on broker broker-a has no message stored at 60 or later") as caught:
        settle(bound, FakeCluster(), LOW, HIGH, error_without_match=True)
    assert caught.value.option == "startingTimestamp"


def test_a_group_s_offsets_count_and_queues_it_never_read_begin_at_their_beginning():
    cluster = FakeCluster(g={Q1: 12, Q0: None})
    assert where("startingFromGroup", cluster, group="g") == {Q0: 5, Q1: 12}
    with pytest.raises(OptionError, match="group 'nobody' has committed no offset in any queue of T; is that its name"):
        where("startingFromGroup", cluster, group="nobody")


def test_a_checkpoint_of_other_topics_is_refused_and_one_of_more_topics_only_when_strict():
    a, b = queue(0, topic="A"), queue(0, topic="B")
    assert check_same_topics([a, b], [], "A, B", strict=True) == []
    with pytest.raises(WrongCheckpoint, match=r"offsets of A, and this query reads B, without queue 0 of topic A"):
        check_same_topics([a], [a], "B", strict=False)
    with pytest.raises(WrongCheckpoint, match=r"offsets of A, B, and this query reads B.*failOnDataLoss=false"):
        check_same_topics([a, b], [a], "B", strict=True)
    assert check_same_topics([a, b], [a], "B", strict=False) == [a]


def test_of_many_names_some_are_told():
    assert name_some([]) == "none"
    assert name_some(["a", "b"]) == "a, b"
    assert name_some(list("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"
