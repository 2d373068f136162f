"""The counters that the hot paths add to."""

import gc

import pytest
from asking import Asking

from sprocketmq.broker.metrics import counters
from sprocketmq.broker.metrics.counters import BrokerCounters, Histogram
from sprocketmq.broker.topics import Topic
from sprocketmq.protocol.bodies import TopicConfig


def topic_named(name):
    return Topic(TopicConfig(name, 4, 4))


def test_a_histogram_counts_up_to_and_including_its_bounds():
    sizes = Histogram((10, 20))
    for value in (1, 10, 11, 20, 21):
        sizes.add(value)
    sizes.add(15, 3)
    sizes.add_all([5, 6])
    sizes.add_all([5, 30])
    assert sizes.counts == [5, 5, 2]
    assert (sizes.count, sizes.total) == (12, 63 + 45 + 11 + 35)


@pytest.mark.parametrize(("part", "bound"), [(0.1, 10), (0.5, 10), (0.51, 20), (0.9, 20), (0.91, 20), (1.0, 20)])
def test_a_quantile_is_the_bound_below_which_that_part_lies(part, bound):
    sizes = Histogram((10, 20))
    sizes.add(3, 5)
    sizes.add(12, 4)
    sizes.add(99)
    assert sizes.quantile(part) == bound
    assert Histogram((10, 20)).quantile(part) == 0


def test_counters_of_a_topic_end_with_it():
    broker = BrokerCounters()
    topic = topic_named("orders")
    broker.of_topic(topic).of_type("normal").add(3, 300, [100], 0.5)
    broker.of_topic(topic).of_type("delay").add(1, 50, [50], 0.0)
    broker.of_group(topic, "cg").get_messages += 2
    (counted,) = broker.topics
    assert (counted.put_messages, counted.put_bytes, counted.put_requests, counted.put_time_s) == (4, 350, 2, 0.5)
    assert [(group.topic, group.group, group.get_messages) for group in broker.groups] == [("orders", "cg", 2)]
    del topic, counted
    gc.collect()
    assert (len(broker.topics), len(broker.groups)) == (0, 0)


def test_too_many_groups_share_their_counters(monkeypatch):
    monkeypatch.setattr(counters, "MAX_GROUP_COUNTERS", 2)
    broker = BrokerCounters()
    topic = topic_named("orders")
    found = [broker.of_group(topic, f"cg{number}") for number in range(5)]
    assert len(set(found)) == 3
    assert found[2] is found[3] is found[4] is broker.other_groups
    assert broker.of_group(topic, "cg1") is found[1]


async def test_sends_are_counted_by_topic_and_message_type(ask, broker):
    await ask.send("orders", body=b"x" * 100)
    await ask.send("orders", body=b"x" * 2000, properties="__SHARDINGKEY\x01k\x02")
    await ask.send("orders", properties="DELAY\x013\x02")
    counted = broker.topics.get("orders").counters
    assert {name: (put.messages, put.requests, put.sizes.counts[:2]) for name, put in counted.by_type.items()} == {
        "normal": (1, 1, [1, 0]),
        "fifo": (1, 1, [0, 1]),
    }
    parked = broker.topics.get("SCHEDULE_TOPIC_XXXX").counters
    assert (parked.is_system, parked.by_type["delay"].messages) == (True, 1)
    assert broker.store.commitlog_max_offset == counted.put_bytes + parked.put_bytes
    assert (broker.counters.put_messages, broker.counters.put_requests, broker.counters.commit.count) == (3, 3, 3)


async def test_pulls_are_counted_by_topic_and_group(ask, broker):
    for _ in range(3):
        await ask.send("orders")
    found = await ask.pull("orders", 0)
    got = broker.topics.get("orders").counters.groups["cg"]
    assert (got.get_messages, got.get_requests, got.get_bytes) == (3, 1, len(found.body))
    await ask.pull("orders", 3)
    assert (got.get_requests, broker.counters.get_found, broker.counters.get_missed) == (1, 1, 1)


async def test_messages_given_back_are_counted_by_their_topic(ask: Asking, broker):
    await ask.send("orders")
    await ask.send("orders")
    for log_offset, level in ((0, 0), (0, -1), (0, -1)):
        answer = await ask(36, {"offset": str(log_offset), "group": "cg", "delayLevel": str(level), "originTopic": "orders"})
        assert answer.code == 0
    given_back = broker.topics.get("orders").counters.groups["cg"]
    assert (given_back.sent_back, given_back.dead_letters) == (2, 1)
    assert broker.topics.get("%DLQ%cg").counters.put_messages == 1
