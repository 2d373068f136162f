"""AutoBatch (RIP-27) of either client at either broker: what was sent one by one and travelled together is read one by one by both clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.interop.apache import JavaClient
from tests.interop.compare import assert_as_sent, assert_same_views, java_view
from tests.interop.reading import java_pull_all, pull_all
from tests.interop.sides import Side

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COUNT = 200


def described(topic: str) -> list[dict[str, Any]]:
    """Return messages with two tags and none, one with several keys, and properties of their own."""
    return [
        {
            "topic": topic,
            "body": b"%d " % number + b"x" * (number % 50),
            "tag": ("TagA", "标签", None)[number % 3],
            "keys": [f"key-{number}", "all"] if number % 10 else [],
            "properties": {"number": str(number)},
            "flag": number,
        }
        for number in range(COUNT)
    ]


async def assert_all_clients_read(java: JavaClient, side: Side, topic: str, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Assert that pulls by both clients and a Java push consumer bring exactly what was sent; return what was pulled."""
    views = java_pull_all(java, side.namesrv, topic)
    assert_same_views(views, await pull_all(side.namesrv, topic))
    assert len({view["msg_id"] for view in views}) == len(sent)
    by_number = {view["properties"]["number"]: view for view in views}
    for one in sent:
        assert_as_sent(by_number[one["properties"]["number"]], one)
    pushed = await asyncio.to_thread(java.consume, side.namesrv, f"{topic}_all", topic, len(sent))
    places = [(view["msg_id"], view["queue_id"], view["queue_offset"]) for view in map(java_view, pushed)]
    assert sorted(places) == sorted((view["msg_id"], view["queue_id"], view["queue_offset"]) for view in views)
    tagged = await asyncio.to_thread(java.consume, side.namesrv, f"{topic}_tag", topic, len(sent[1::3]), expression="标签")
    assert Counter(message["body"] for message in tagged) == Counter(one["body"] for one in sent if one["tag"] == "标签")
    return views


@pytest.mark.parametrize("blocking", [False, True], ids=["callbacks", "blocking"])
@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_what_the_java_client_batches_by_itself(java: JavaClient, side: Side, batch_queues: bool, blocking: bool) -> None:
    topic = await side.create_topic(f"JavaAutoBatch_{batch_queues}_{blocking}", batch_queues=batch_queues)
    sent = described(topic)
    results = await asyncio.to_thread(java.send_auto_batch, side.namesrv, sent, blocking=blocking)
    assert {result["status"] for result in results} == {"SEND_OK"}
    views = await assert_all_clients_read(java, side, topic, sent)
    by_number = {view["properties"]["number"]: view for view in views}
    for one, result in zip(sent, results, strict=True):
        view = by_number[one["properties"]["number"]]
        assert result["queue_id"] == view["queue_id"]
        if batch_queues:  # the Java client tells every member of a batch of the whole
            assert result["queue_offset"] <= view["queue_offset"]
        else:
            assert result["queue_offset"] == view["queue_offset"]
            assert (result["msg_id"], result["offset_msg_id"]) == (view["msg_id"], view["offset_msg_id"])
    if batch_queues:
        assert len({view["commitlog_offset"] for view in views}) < COUNT // 2, "most messages share a record"
