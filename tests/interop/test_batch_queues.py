"""Batch queues (RIP-26) between the two sides: Apache's Java client with a BatchCQ topic of our broker, and both brokers asked the same."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.interop.apache import ApacheBroker, ApacheFailed, ApacheNamesrv, JavaClient
from tests.interop.compare import INNER, assert_as_sent, assert_same_views, variety
from tests.interop.ours import OurProcess
from tests.interop.reading import java_pull_all, pull_all
from tests.interop.sides import Side

from sprocketmq import AdminClient, Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# Sizes of batches sent to one queue: queue offsets [0,2) [2,7) [7,8) [8,25) [25,28) [28,68).
BATCHES = (2, 5, 1, 17, 3, 40)
# Where a pull begins and how many messages it asks for; the middles and ends of batches are among them.
PULLS = ((0, 1), (0, 3), (0, 7), (0, 32), (3, 32), (7, 2), (10, 1), (24, 32), (25, 4), (30, 64), (67, 32), (68, 32), (69, 32))


def create_batch_topic(java: JavaClient, namesrv: str, broker: str, topic: str, queues: int = 2) -> None:
    """Create a topic with batch queues as an operator would, with Apache's admin tool."""
    size = str(queues)
    printed = java.mqadmin("updateTopic", "-n", namesrv, "-b", broker, "-t", topic, "-r", size, "-w", size, "-a", "+queue.type=BatchCQ")
    assert "success" in printed, printed


@pytest.fixture
def topic(java: JavaClient, our_cluster: OurProcess, request: pytest.FixtureRequest) -> str:
    """A BatchCQ topic of the test's own at our broker."""
    name = "BQ_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:100]
    create_batch_topic(java, our_cluster.namesrv, our_cluster.broker, name)
    return name


async def test_the_admin_tool_creates_a_topic_with_batch_queues(our_cluster: OurProcess, topic: str) -> None:
    async with AdminClient(namesrv=our_cluster.namesrv) as admin:
        ((_, config),) = (await admin.topic_config(topic)).items()
    assert config.attributes == {"queue.type": "BatchCQ"}
    assert (config.read_queue_nums, config.write_queue_nums) == (2, 2)


async def test_a_batch_is_stored_as_one_and_both_clients_unwrap_it(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    sent = variety(topic)
    result = java.send_batch(namesrv, sent)
    assert (result["status"], result["queue_offset"]) == ("SEND_OK", 0)
    assert "," not in result["msg_id"] + result["offset_msg_id"], "one record, one id"

    theirs = java_pull_all(java, namesrv, topic)
    assert_same_views(theirs, await pull_all(namesrv, topic))
    assert [view["queue_offset"] for view in theirs] == list(range(len(sent)))
    assert {view["commitlog_offset"] for view in theirs} == {theirs[0]["commitlog_offset"]}
    for described, view in zip(sent, theirs, strict=True):
        assert view["sys_flag"] & INNER == INNER
        assert_as_sent(view, described)


async def test_single_messages_in_a_batch_queue_stay_single(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    sent = variety(topic)
    results = java.send(namesrv, sent)
    theirs = java_pull_all(java, namesrv, topic)
    assert_same_views(theirs, await pull_all(namesrv, topic))
    by_id = {view["msg_id"]: view for view in theirs}
    for described, result in zip(sent, results, strict=True):
        view = by_id[result["msg_id"]]
        assert_as_sent(view, described)
        assert not view["sys_flag"] & INNER
        assert (result["queue_id"], result["queue_offset"]) == (view["queue_id"], view["queue_offset"])


async def test_what_the_java_client_batches_by_itself_arrives_once_each_and_by_tag(
    java: JavaClient, our_cluster: OurProcess, topic: str
) -> None:
    namesrv = our_cluster.namesrv
    sent = [{"topic": topic, "body": b"auto %d" % i, "tag": ("TagA", "TagB")[i % 2], "keys": [f"auto-{i}"]} for i in range(300)]
    results = java.send_auto_batch(namesrv, sent)
    assert {result["status"] for result in results} == {"SEND_OK"}

    theirs = java_pull_all(java, namesrv, topic)
    assert_same_views(theirs, await pull_all(namesrv, topic))
    assert Counter(view["body"] for view in theirs) == Counter(message["body"] for message in sent)
    assert len({view["commitlog_offset"] for view in theirs}) < len(sent), "some messages share a record"
    received = java.consume(namesrv, "bq_auto_tags", topic, 150, expression="TagB")
    assert Counter(message["body"] for message in received) == Counter(message["body"] for message in sent if message["tag"] == "TagB")


def test_a_push_consumer_gets_every_message_of_every_batch_once_and_goes_on(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    bodies = []
    for number in range(20):
        batch = [{"topic": topic, "body": b"%d of %d" % (i, number)} for i in range(1 + number)]
        java.send_batch(namesrv, batch)
        bodies += [message["body"] for message in batch]
    received = java.consume(namesrv, "bq_push", topic, len(bodies))
    assert Counter(message["body"] for message in received) == Counter(bodies)
    with java.push_consumer(namesrv, "bq_push", topic) as consumer:
        java.send_batch(namesrv, [{"topic": topic, "body": b"later %d" % i} for i in range(5)])
        assert Counter(message["body"] for message in consumer.take(5)) == Counter(b"later %d" % i for i in range(5))


def pulled(java: JavaClient, namesrv: str, broker: str, topic: str, offset: int, count: int) -> tuple[Any, ...]:
    """Return what a pull says and which queue offsets it brings."""
    result = java.pull(namesrv, "bq_pulls", {"topic": topic, "broker": broker, "queue_id": 0}, offset, max_messages=count)
    found = [message["queue_offset"] for message in result["messages"]]
    return result["status"], found, result["next_offset"], result["min_offset"], result["max_offset"]


async def test_both_brokers_answer_pulls_alike(
    java: JavaClient, our_cluster: OurProcess, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker
) -> None:
    topic = "BQ_Alike"
    async with AdminClient(namesrv=our_cluster.namesrv) as admin:
        ((_, (our_broker,)),) = (await admin.cluster()).cluster_addr_table.items()
    sides = ((our_cluster.namesrv, our_cluster.broker, our_broker), (apache_namesrv.address, apache_broker.address, apache_broker.name))
    answers = []
    for namesrv, address, name in sides:
        create_batch_topic(java, namesrv, address, topic, queues=1)
        for size in BATCHES:
            java.send_batch(namesrv, [{"topic": topic, "body": b"%d" % i} for i in range(size)])
        queue = {"topic": topic, "broker": name, "queue_id": 0}
        offsets = java.call("offsets", namesrv=namesrv, group="bq_pulls", queue=queue, timestamp_ms=0)
        assert java_pull_all(java, namesrv, topic)[-1]["queue_offset"] == sum(BATCHES) - 1
        answers.append([offsets] + [pulled(java, namesrv, name, topic, *pull) for pull in PULLS])
    assert answers[0] == answers[1]


def found(ask: Callable[..., Any], *arguments: str) -> object:
    """Return what can be compared of the messages that a broker finds, or the code of its refusal."""
    try:
        messages = ask(*arguments)
    except ApacheFailed as failure:
        code = re.search(r"CODE: \d+", str(failure))
        return code[0] if code else str(failure)
    every = messages if isinstance(messages, list) else [messages]
    return sorted((message["queue_offset"], message["sys_flag"], message["keys"], len(message["body"])) for message in every)


def asked(java: JavaClient, namesrv: str, broker: str, topic: str) -> list[object]:
    """Send a batch, a single message and what becomes a batch by itself; return what asking for each by key and by its ids finds."""
    create_batch_topic(java, namesrv, broker, topic, queues=1)
    batch = java.send_batch(namesrv, [{"topic": topic, "body": b"batch %d" % i, "keys": [f"batch-{i}"]} for i in range(5)])
    (single,) = java.send(namesrv, [{"topic": topic, "body": b"single", "keys": ["single-key"]}])
    java.send_auto_batch(namesrv, [{"topic": topic, "body": b"auto %d" % i, "keys": [f"auto-{i}"]} for i in range(5)])
    deadline = time.monotonic() + 60
    while not isinstance(found(java.query, namesrv, topic, "single-key"), list):  # Apache's broker indexes a moment later
        assert time.monotonic() < deadline
    by_key = [found(java.query, namesrv, topic, key) for key in ("single-key", "batch-3", "auto-3", "no-such")]
    ids = [result[name] for result in (single, batch) for name in ("msg_id", "offset_msg_id")]
    return by_key + [found(java.view, namesrv, topic, msg_id) for msg_id in ids]


def test_our_broker_finds_messages_inside_batches_and_apaches_the_whole_batch(
    java: JavaClient, our_cluster: OurProcess, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker
) -> None:
    ours = asked(java, our_cluster.namesrv, our_cluster.broker, "BQ_Found")
    apaches = asked(java, apache_namesrv.address, apache_broker.address, "BQ_Found")
    single = [(5, 0, "single-key", len(b"single"))]
    nothing = "CODE: 208"
    # By a single message's key, two inside batches, none; then by the ids of the single message and of the batch.
    first = [(0, 0, "batch-0", len(b"batch 0"))]
    assert ours == [single, [(3, 0, "batch-3", len(b"batch 3"))], [(9, 0, "auto-3", len(b"auto 3"))], nothing, single, single, first, first]
    whole = apaches[-1]
    assert apaches == [single, nothing, nothing, nothing, single, single, whole, whole]
    ((offset, sys_flag, keys, size),) = whole  # type: ignore[misc]
    assert (offset, sys_flag, keys) == (0, INNER, None)
    assert size > 5 * len(b"batch 0")


async def test_the_common_tag_of_our_batches_reaches_consumers_that_filter(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("BQ_CommonTag", queues=1, batch_queues=True)
    async with Producer("bq_tags", namesrv=side.namesrv) as producer:
        for tag in ("TagA", "TagB"):
            await producer.send_batch([Message(topic, f"{tag} {i}".encode(), tag=tag) for i in range(10)])
    received = await asyncio.to_thread(java.consume, side.namesrv, "bq_common_tag", topic, 10, expression="TagB")
    assert Counter(message["body"] for message in received) == Counter(b"TagB %d" % i for i in range(10))
