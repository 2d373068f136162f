"""Delayed messages of either client at either broker come when they are due, not before, as what they were; and stores with them move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.interop.apache import ApacheBroker, ApacheFailed, ApacheNamesrv, JavaClient
from tests.interop.compare import assert_same_views, ours
from tests.interop.ours import OurProcess
from tests.interop.reading import java_pull_all, pull_all
from tests.interop.sides import LEVELS_S, Side, until

from sprocketmq import AdminClient, Message, Producer, PushConsumer
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import BrokerError

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

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


async def test_apaches_broker_delivers_at_the_time_that_our_client_asks_for(
    apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker
) -> None:
    topic, namesrv = "DeliveredAt", apache_namesrv.address
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=1, cluster=apache_broker.cluster)
    received: list[tuple[int, bytes]] = []
    async with (
        Producer("delay_producer", namesrv=namesrv) as producer,
        PushConsumer("deliver_at", topic, namesrv=namesrv, consume_from="first") as consumer,
    ):
        consumer.listen(lambda batch: received.extend((SYSTEM_CLOCK.time_ms(), message.body) for message in batch))
        now_ms = SYSTEM_CLOCK.time_ms()
        for after_ms in (4000, 2500):
            await producer.send(Message(topic, b"%d" % after_ms, deliver_at_ms=now_ms + after_ms))
        await until("both times", lambda: len(received) == 2)
    assert [body for _, body in received] == [b"2500", b"4000"]
    # Its wheel turns once a second, and a message is delivered with its second.
    assert all(at >= now_ms + int(body) - 1000 for at, body in received)


async def test_our_broker_refuses_a_time_of_delivery_from_either_client(java: JavaClient, our_cluster: OurProcess) -> None:
    topic, later_ms = "NotDeliveredAt", SYSTEM_CLOCK.time_ms() + 60_000
    with pytest.raises(ApacheFailed, match="delay levels only"):
        java.send(our_cluster.namesrv, [{"topic": topic, "body": b"x", "deliver_at_ms": later_ms}])
    async with Producer("delay_producer", namesrv=our_cluster.namesrv) as producer:
        with pytest.raises(BrokerError, match="delay levels only"):
            await producer.send(Message(topic, b"x", deliver_at_ms=later_ms))
