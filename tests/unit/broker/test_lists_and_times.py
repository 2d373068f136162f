"""Topics and groups in lists (18, 225), and the times between which a group reads (303)."""

import pytest

from sprocketmq.broker import groups, topics
from sprocketmq.protocol.bodies import (
    ConsumeTimeSpans,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
)


async def put_topics(ask, *configs):
    answer = await ask(18, {}, TopicConfigList(list(configs)).encode())
    return answer.code, answer.remark


async def put_groups(ask, *configs):
    answer = await ask(225, {}, SubscriptionGroupList(list(configs)).encode())
    return answer.code, answer.remark


async def test_topics_of_a_list_are_created_and_changed_also_when_one_is_as_it_was(ask, broker):
    same = TopicConfig("orders", 4, 4)
    batch = TopicConfig("bulk", 2, 2, attributes={"+queue.type": "BatchCQ"})
    assert await put_topics(ask, same, TopicConfig("new", 3, 3), batch) == (0, None)
    assert broker.topics.get("new").config == TopicConfig("new", 3, 3)
    assert broker.topics.get("bulk").batch_queues
    assert await put_topics(ask, TopicConfig("orders", 8, 8), TopicConfig("bulk", 2, 2, attributes={"queue.type": "BatchCQ"})) == (0, None)
    assert broker.topics.get("orders").config.read_queue_nums == 8


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (TopicConfig("bad topic"), 29),
        (TopicConfig("TBW102"), 29),
        (TopicConfig("good"), 29),
        (TopicConfig("other", attributes={"+no.such": "x"}), 1),
        (TopicConfig("other", 99_999), 29),
    ],
    ids=["name", "system", "twice", "attribute", "queues"],
)
async def test_one_bad_topic_refuses_the_list(ask, broker, bad, code):
    before = len(broker.topics)
    assert (await put_topics(ask, TopicConfig("good"), bad))[0] == code
    assert len(broker.topics) == before


async def test_a_list_beyond_the_limit_of_topics_is_refused_whole(ask, broker, monkeypatch):
    monkeypatch.setattr(topics, "MAX_TOPICS", len(broker.topics) + 1)
    assert await put_topics(ask, TopicConfig("one"), TopicConfig("two")) == (1, f"this broker has {topics.MAX_TOPICS} topics, its limit")
    assert "one" not in broker.topics


async def test_groups_of_a_list_are_created_and_changed_or_none(ask, broker, monkeypatch):
    first, second = SubscriptionGroupConfig("first", retry_max_times=3), SubscriptionGroupConfig("second")
    assert await put_groups(ask, first, second) == (0, None)
    assert await put_groups(ask, first, SubscriptionGroupConfig("second", retry_queue_nums=2)) == (0, None)
    assert broker.groups.get("first") == first
    assert broker.groups.get("second").retry_queue_nums == 2
    for bad in (SubscriptionGroupConfig("bad group"), SubscriptionGroupConfig("third")):
        assert (await put_groups(ask, SubscriptionGroupConfig("third"), bad))[0] == 29
        assert "third" not in broker.groups
    monkeypatch.setattr(groups, "MAX_GROUPS", len(broker.groups.table().subscription_group_table) + 1)
    assert (await put_groups(ask, SubscriptionGroupConfig("third"), SubscriptionGroupConfig("fourth")))[0] == 1
    assert "third" not in broker.groups


async def test_lists_without_a_body_are_refused(ask):
    for code in (18, 225):
        assert (await ask(code)).code == 1


async def test_a_slave_refuses_lists(pair, connect):
    _, slave = await pair()
    ask = await connect(slave)
    assert (await put_topics(ask, TopicConfig("one")))[0] == 16
    assert (await put_groups(ask, SubscriptionGroupConfig("one")))[0] == 16


async def spans(ask, topic="orders", group="cg"):
    answer = await ask(303, {"topic": topic, "group": group})
    assert answer.code == 0
    return ConsumeTimeSpans.decode(answer.body).consume_time_span_set


async def test_time_spans_of_a_group(ask, broker, clock):
    broker.groups.find("cg")
    clock.advance(1)
    first = clock.time_ms()
    await ask.send("orders", queue=1)
    clock.advance(5)
    await ask.send("orders", queue=1)
    last = clock.time_ms()
    clock.advance(2)
    found = await spans(ask)
    assert [span.message_queue.queue_id for span in found] == [0, 1, 2, 3]
    empty, filled = found[:2]
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.consume_time_stamp, empty.delay_time) == (-1, -1, -1, 0)
    assert empty.min_time_stamp_str == ""
    assert (filled.min_time_stamp, filled.max_time_stamp, filled.consume_time_stamp) == (first, last, first)
    assert filled.delay_time == 7000, "nothing was committed: the oldest message has waited"
    assert filled.min_time_stamp_str.endswith(f":{first % 1000:03}")
    await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "1", "commitOffset": "1"})
    assert ((await spans(ask))[1].consume_time_stamp, (await spans(ask))[1].delay_time) == (first, 2000)
    await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "1", "commitOffset": "2"})
    assert ((await spans(ask))[1].consume_time_stamp, (await spans(ask))[1].delay_time) == (last, 0)


async def test_time_spans_of_an_unknown_topic(ask):
    assert (await ask(303, {"topic": "nosuch", "group": "cg"})).code == 17
