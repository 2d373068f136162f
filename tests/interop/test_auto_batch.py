"""AutoBatch (RIP-27) of either client at either broker: what was sent one by one and travelled together is read one by one by both clients."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from tests.interop.apache import JavaClient
from tests.interop.compare import assert_as_sent, assert_same_views, java_view, ours
from tests.interop.reading import java_pull_all, pull_all, until_readable
from tests.interop.sides import PATIENCE_S, Side

from sprocketmq import AdminClient, Batching, Producer, sync
from sprocketmq.protocol.message import SendResult, SendStatus
from sprocketmq.protocol.records import ReceivedMessage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

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


async def assert_all_clients_read(java: JavaClient, namesrv: str, topic: str, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Assert that pulls by both clients and a Java push consumer bring exactly what was sent; return what was pulled."""
    await until_readable(namesrv, topic, len(sent))
    views = java_pull_all(java, namesrv, topic)
    assert_same_views(views, await pull_all(namesrv, topic))
    assert len({view["msg_id"] for view in views}) == len(sent)
    by_number = {view["properties"]["number"]: view for view in views}
    for one in sent:
        assert_as_sent(by_number[one["properties"]["number"]], one)
    with (
        java.push_consumer(namesrv, f"{topic}_all", topic) as everything,
        java.push_consumer(namesrv, f"{topic}_tag", topic, "标签") as some,
    ):
        pushed = await asyncio.to_thread(everything.take, len(sent))
        tagged = await asyncio.to_thread(some.take, len(sent[1::3]))
    places = [(view["msg_id"], view["queue_id"], view["queue_offset"]) for view in map(java_view, pushed)]
    assert sorted(places) == sorted((view["msg_id"], view["queue_id"], view["queue_offset"]) for view in views)
    assert Counter(message["body"] for message in tagged) == Counter(one["body"] for one in sent if one["tag"] == "标签")
    return views


@pytest.mark.parametrize("blocking", [False, True], ids=["callbacks", "blocking"])
@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_what_the_java_client_batches_by_itself(java: JavaClient, side: Side, batch_queues: bool, blocking: bool) -> None:
    topic = await side.create_topic(f"JavaAutoBatch_{batch_queues}_{blocking}", batch_queues=batch_queues)
    sent = described(topic)
    results = await asyncio.to_thread(java.send_auto_batch, side.namesrv, sent, blocking=blocking)
    assert {result["status"] for result in results} == {"SEND_OK"}
    views = await assert_all_clients_read(java, side.namesrv, topic, sent)
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


@pytest.mark.parametrize("adaptive", [False, True], ids=["gathering", "adaptive"])
@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_what_our_client_batches_by_itself(java: JavaClient, side: Side, batch_queues: bool, adaptive: bool) -> None:
    topic = await side.create_topic(f"OurAutoBatch_{batch_queues}_{adaptive}", batch_queues=batch_queues)
    sent = described(topic)
    batching = Batching(max_bytes=4096, adaptive=adaptive)
    async with Producer("auto_batch_producer", namesrv=side.namesrv, batching=batching) as producer:
        submitted = [producer.submit(ours(one)) for one in sent[: COUNT // 2]]
        results = await asyncio.gather(*submitted, *(producer.send(ours(one)) for one in sent[COUNT // 2 :]))
        stats = producer.batching_stats
    assert stats.messages + stats.direct == COUNT
    assert stats.held_bytes == 0
    assert stats.batches < COUNT // 2, "most messages travelled together"
    views = await assert_all_clients_read(java, side.namesrv, topic, sent)
    by_number = {view["properties"]["number"]: view for view in views}
    for one, result in zip(sent, results, strict=True):
        view = by_number[one["properties"]["number"]]
        assert result.status is SendStatus.SEND_OK
        assert (result.msg_id, result.broker_name) == (view["msg_id"], side.broker)
        assert (result.queue_id, result.queue_offset) == (view["queue_id"], view["queue_offset"])
        if not batch_queues:
            assert result.offset_msg_id == view["offset_msg_id"]
    if batch_queues:
        assert len({view["commitlog_offset"] for view in views}) < COUNT // 2, "most messages share a record"


async def test_our_sync_face_batches_too(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("OurSyncAutoBatch", batch_queues=True)
    sent = described(topic)

    def send() -> list[SendResult]:
        with sync.Producer("auto_batch_producer", namesrv=side.namesrv, auto_batch=True) as producer:
            return [future.result() for future in [producer.submit(ours(one)) for one in sent]]

    results = await asyncio.to_thread(send)
    by_id = {view["msg_id"]: view for view in await assert_all_clients_read(java, side.namesrv, topic, sent)}
    for one, result in zip(sent, results, strict=True):
        view = by_id[result.msg_id]
        assert view["body"] == one["body"]
        assert (result.queue_id, result.queue_offset) == (view["queue_id"], view["queue_offset"])


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_messages_batched_by_either_client_are_found_by_key(java: JavaClient, side: Side, batch_queues: bool) -> None:
    topic = await side.create_topic(f"AutoBatchFound_{batch_queues}", batch_queues=batch_queues)
    theirs = [{"topic": topic, "body": b"java %d" % i, "keys": [f"java-{i}"], "tag": "TagA"} for i in range(20)]
    mine = [{"topic": topic, "body": b"python %d" % i, "keys": [f"python-{i}"], "tag": "TagA"} for i in range(20)]
    # Apache's broker knows the keys of a batch only, and its client unites the messages' keys only when sends block.
    await asyncio.to_thread(java.send_auto_batch, side.namesrv, theirs, blocking=side.make == "apaches")
    async with Producer("auto_batch_producer", namesrv=side.namesrv, auto_batch=True) as producer:
        await asyncio.gather(*(producer.send(ours(one)) for one in mine))
    await until_readable(side.namesrv, topic, len(theirs) + len(mine))
    by_key = {view["keys"][0]: view for view in await pull_all(side.namesrv, topic)}
    async with AdminClient(namesrv=side.namesrv) as admin:
        for key in ("java-0", "java-19", "python-0", "python-7", "python-19"):
            expected = by_key[key]
            found = await until_found(admin, topic, key)
            assert [(one.body, one.keys, one.queue_id, one.queue_offset, one.msg_id) for one in found] == [
                tuple(expected[name] for name in ("body", "keys", "queue_id", "queue_offset", "msg_id"))
            ]
            assert [one.msg_id for one in await admin.query_by_unique_key(topic, expected["msg_id"])] == [expected["msg_id"]]
            (seen,) = java.query(side.namesrv, topic, key)
            if side.make == "apaches" and batch_queues:  # it answers with the record, which is the batch
                assert expected["body"] in seen["body"]
                assert key in seen["keys"].split()
            else:
                assert (seen["body"], seen["keys"], seen["msg_id"]) == (expected["body"], key, expected["msg_id"])
                assert (seen["queue_id"], seen["queue_offset"]) == (expected["queue_id"], expected["queue_offset"])


async def until_found(admin: AdminClient, topic: str, key: str) -> list[ReceivedMessage]:
    """Return what a key finds, as soon as there is something: Apache's broker indexes a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await admin.query_by_key(topic, key)):
        assert time.monotonic() < deadline, f"nothing with the key {key}"
        await asyncio.sleep(0.02)
    return found
