"""Delayed messages of either client at either broker come when they are due, not before, as what they were; and stores with them move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.interop.apache import JavaClient
from tests.interop.compare import assert_same_views, ours
from tests.interop.reading import java_pull_all, pull_all
from tests.interop.sides import LEVELS_S, Side, until

from sprocketmq import Producer, PushConsumer
from sprocketmq.clock import SYSTEM_CLOCK

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# What two readings of the machine's clock may be apart, as they are rounded to milliseconds.
CLOCKS_MS = 5


def delayed(topic: str, sender: str) -> list[dict[str, Any]]:
    """Return messages of four levels, the slowest first, and of one that is past the broker's last."""
    return [
        {"topic": topic, "body": f"{sender} {level}".encode(), "tag": "TagA", "keys": [f"{sender}-{level}"], "delay_level": level}
        for level in (2, 5, 4, 1, 18)
    ]


async def test_delayed_messages_of_both_clients_come_to_both_when_they_are_due(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("Delayed", queues=2)
    mine: list[tuple[int, bytes]] = []
    described = [*delayed(topic, "java"), *delayed(topic, "python")]
    async with (
        Producer("delay_producer", namesrv=side.namesrv) as producer,
        PushConsumer("delay_python", {topic: "TagA"}, namesrv=side.namesrv, consume_from="first") as consumer,
    ):
        consumer.listen(lambda batch: mine.extend((SYSTEM_CLOCK.time_ms(), message.body) for message in batch))
        with java.push_consumer(side.namesrv, "delay_java", topic, "TagA") as theirs:
            java.send(side.namesrv, delayed(topic, "java"))
            for one in delayed(topic, "python"):
                await producer.send(ours(one))
            await until("all messages being due", lambda: len(mine) >= len(described))
            taken = await asyncio.to_thread(theirs.take, len(described))
    views = await pull_all(side.namesrv, topic)
    assert_same_views(java_pull_all(java, side.namesrv, topic), views)
    assert len(views) == len(described)
    sent = {one["body"]: one for one in described}
    found = {view["body"]: view for view in views}
    for body, one in sent.items():
        assert (found[body]["tag"], found[body]["keys"], found[body]["topic"]) == (one["tag"], one["keys"], topic)
        added = {"UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "CLUSTER", "MSG_REGION", "TRACE_ON"}
        assert found[body]["properties"].keys() == added
        assert found[body]["properties"]["REAL_QID"] == str(found[body]["queue_id"])
    for came in (mine, [(message["received_ms"], message["body"]) for message in taken + theirs.rest]):
        assert {body for _, body in came} == set(sent)
        for at, body in came:
            delay_s = LEVELS_S[sent[body]["delay_level"] - 1]
            assert at >= found[body]["born_timestamp_ms"] + delay_s * 1000 - CLOCKS_MS


async def test_messages_with_a_time_of_their_own_come_at_that_time(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("DeliveredAt", queues=1)
    received: list[tuple[int, bytes]] = []
    now_ms = SYSTEM_CLOCK.time_ms()
    described = [{"topic": topic, "body": b"%d" % after, "deliver_at_ms": now_ms + after} for after in (4000, 2000, 3000)]
    async with (
        Producer("delay_producer", namesrv=side.namesrv) as producer,
        PushConsumer("deliver_at", topic, namesrv=side.namesrv, consume_from="first") as consumer,
    ):
        consumer.listen(lambda batch: received.extend((SYSTEM_CLOCK.time_ms(), message.body) for message in batch))
        java.send(side.namesrv, described)
        for one in described:
            await producer.send(ours(one))
        with java.push_consumer(side.namesrv, "deliver_at_java", topic) as theirs:
            taken = await asyncio.to_thread(theirs.take, 2 * len(described))
            await until("all times", lambda: len(received) == 2 * len(described))
    for came in (received, [(message["received_ms"], message["body"]) for message in taken + theirs.rest]):
        assert sorted(body for _, body in came) == sorted(2 * [one["body"] for one in described])
        # Apache's wheel turns once a second, and a message comes with its second.
        assert all(at >= now_ms + int(body) - (CLOCKS_MS if side.make == "ours" else 1000) for at, body in came)
    views = await pull_all(side.namesrv, topic)
    assert_same_views(java_pull_all(java, side.namesrv, topic), views)
    assert [view["body"] for view in views] == sorted(view["body"] for view in views), "the queue is in the order of their times"
    assert [int(view["properties"]["TIMER_DELIVER_MS"]) for view in views] == [now_ms + int(view["body"]) for view in views]
