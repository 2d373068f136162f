"""Apache's Java client, default settings, sends to our broker and consumes from it; both clients read the same, field by field."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.interop.apache import CONSUME_TIMEOUT_S, ApacheFailed, JavaClient
from tests.interop.compare import assert_as_sent, in_order, java_view, variety
from tests.interop.ours import OurProcess
from tests.interop.reading import java_pull_all, pull_all

from sprocketmq import AdminClient, Message, Producer, PullConsumer
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import MessageQueue

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES = 4


@pytest.fixture
async def topic(our_cluster: OurProcess, request: pytest.FixtureRequest) -> str:
    """Create a topic of the test's own at our broker."""
    name = "JC_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:100]
    async with AdminClient(namesrv=our_cluster.namesrv) as admin:
        await admin.create_topic(name, queues=QUEUES)
    return name


@pytest.fixture(params=["json", "binary"])
def sender(request: pytest.FixtureRequest) -> JavaClient:
    """The Java client, with each of the two header serialisations."""
    client: JavaClient = request.getfixturevalue("java" if request.param == "json" else "java_binary")
    return client


async def test_single_messages_arrive_as_sent(sender: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    sent = variety(topic)
    results = sender.send(our_cluster.namesrv, sent)

    theirs = java_pull_all(sender, our_cluster.namesrv, topic)
    assert theirs == await pull_all(our_cluster.namesrv, topic)
    by_id = {view["msg_id"]: view for view in theirs}
    assert len(by_id) == len(sent)
    for described, result in zip(sent, results, strict=True):
        view = by_id[result["msg_id"]]
        assert_as_sent(view, described)
        assert result["status"] == "SEND_OK"
        assert (result["region_id"], result["trace_on"]) == ("DefaultRegion", True)
        assert result["offset_msg_id"] == view["offset_msg_id"]
        assert (result["broker"], result["queue_id"], result["queue_offset"]) == (view["broker"], view["queue_id"], view["queue_offset"])
        ip, port, physical = parse_offset_msg_id(result["offset_msg_id"])
        assert (f"{ip}:{port}", physical) == (our_cluster.broker, view["commitlog_offset"])


async def test_a_batch_arrives_as_sent_with_every_offset_of_its_own(sender: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    sent = variety(topic)
    result = sender.send_batch(our_cluster.namesrv, sent)

    theirs = java_pull_all(sender, our_cluster.namesrv, topic)
    assert theirs == await pull_all(our_cluster.namesrv, topic)
    assert [view["msg_id"] for view in theirs] == result["msg_id"].split(",")
    assert [view["offset_msg_id"] for view in theirs] == result["offset_msg_id"].split(",")
    assert [view["queue_offset"] for view in theirs] == [result["queue_offset"] + i for i in range(len(sent))]
    assert {view["queue_id"] for view in theirs} == {result["queue_id"]}
    for described, view in zip(sent, theirs, strict=True):
        assert_as_sent(view, described)


async def test_a_push_consumer_gets_everything_once_and_commits(sender: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    group = f"{topic}_group"[:100]
    sent = variety(topic) * 10
    async with Producer("jc_producer", namesrv=our_cluster.namesrv) as producer:
        await producer.send_batch([Message(**described) for described in sent])
        for described in sent:
            await producer.send(Message(**described))

    received = sender.consume(our_cluster.namesrv, group, topic, 2 * len(sent))
    assert in_order([java_view(message) for message in received]) == await pull_all(our_cluster.namesrv, topic)

    async with PullConsumer(group, namesrv=our_cluster.namesrv) as reader:
        for queue in await reader.queues(topic):
            assert await reader.committed(queue) == await reader.max_offset(queue)


def test_a_push_consumer_goes_on_where_its_group_stopped(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    java.send(namesrv, [{"topic": topic, "body": b"before %d" % i} for i in range(12)])
    assert len(java.consume(namesrv, "jc_goes_on", topic, 12)) == 12
    java.send(namesrv, [{"topic": topic, "body": b"after %d" % i} for i in range(12)])
    received = java.consume(namesrv, "jc_goes_on", topic, 12)
    assert sorted(message["body"] for message in received) == sorted(b"after %d" % i for i in range(12))


def test_a_push_consumer_gets_only_the_tags_it_asked_for(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    tags = ["TagA", "TagB", None, "标签", "TagC"] * 8
    described = [{"topic": topic, "body": b"%d" % i, "tag": tag} for i, tag in enumerate(tags)]
    java.send(namesrv, described[:20])
    java.send_batch(namesrv, described[20:])
    expected = sorted(b"%d" % i for i, tag in enumerate(tags) if tag in {"TagB", "标签"})
    with java.push_consumer(namesrv, "jc_tags", topic, "TagB || 标签") as consumer:
        received = consumer.take(len(expected))
        assert sorted(message["body"] for message in received) == expected
        # What comes next to it was filtered out, not held back.
        java.send(namesrv, [{"topic": topic, "body": b"other", "tag": "TagA"}, {"topic": topic, "body": b"last", "tag": "TagB"}])
        assert [message["body"] for message in consumer.take(1)] == [b"last"]


def test_a_waiting_push_consumer_gets_each_message(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    with java.push_consumer(namesrv, "jc_waits", topic) as consumer:
        java.send(namesrv, [{"topic": topic, "body": b"first"}])
        assert [message["body"] for message in consumer.take(1)] == [b"first"]
        for number in range(5):
            (result,) = java.send(namesrv, [{"topic": topic, "body": b"%d" % number}])
            (message,) = consumer.take(1)
            assert (message["body"], message["msg_id"]) == (b"%d" % number, result["msg_id"])


def test_two_push_consumers_of_a_group_share_the_queues(
    java: JavaClient, java_binary: JavaClient, our_cluster: OurProcess, topic: str
) -> None:
    namesrv = our_cluster.namesrv
    with java.push_consumer(namesrv, "jc_share", topic) as first, java_binary.push_consumer(namesrv, "jc_share", topic) as second:
        received: list[list[dict[str, Any]]] = [[], []]
        sent: list[str] = []
        deadline = time.monotonic() + CONSUME_TIMEOUT_S
        while not received[1]:  # each round sends to every queue; the second member has its half as soon as the first has given it up
            assert time.monotonic() < deadline, "the second member of the group was never given a queue"
            sent += [result["msg_id"] for result in java.send(namesrv, [{"topic": topic, "body": b"x"}] * QUEUES)]
            for consumer, messages in zip((first, second), received, strict=True):
                messages.extend(consumer.take(QUEUES, timeout_s=0.25))
        before = [len(messages) for messages in received]
        sent += [result["msg_id"] for result in java.send(namesrv, [{"topic": topic, "body": b"y"}] * QUEUES * 5)]
        for _ in range(50):
            for consumer, messages in zip((first, second), received, strict=True):
                messages.extend(consumer.take(QUEUES * 5, timeout_s=0.1))
            if sum(map(len, received)) >= len(sent):
                break
    shares = [{message["queue_id"] for message in messages[start:]} for messages, start in zip(received, before, strict=True)]
    assert all(shares), "both members go on receiving"
    # At least once: a queue that changes hands may bring what was consumed but not committed yet a second time.
    assert {message["msg_id"] for messages in received for message in messages} == set(sent)


async def test_offsets_and_times_agree_with_our_client(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    async with Producer("jc_producer", namesrv=namesrv) as producer:
        (queue, *_) = await producer.queues(topic)
        for i in range(10):
            await producer.send(Message(topic, b"%d" % i, queue=queue))
    views = await pull_all(namesrv, topic)
    java_queue = {"topic": topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
    async with PullConsumer("jc_offsets", namesrv=namesrv) as consumer:
        for moment in (0, views[4]["store_timestamp_ms"], views[-1]["store_timestamp_ms"] + 60_000):
            theirs = java.call("offsets", namesrv=namesrv, group="jc_offsets", queue=java_queue, timestamp_ms=moment)
            assert theirs["at"] == await consumer.offset_at(queue, moment)
            assert (theirs["min"], theirs["max"]) == (0, 10)
        await consumer.commit(queue, 6)
        assert java.call("offsets", namesrv=namesrv, group="jc_offsets", queue=java_queue)["committed"] == 6


def test_pulling_outside_a_queue_is_answered_as_apache_does(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    (sent,) = java.send(namesrv, [{"topic": topic, "body": b"only"}])
    queue = {"topic": topic, "broker": sent["broker"], "queue_id": sent["queue_id"]}
    found = java.pull(namesrv, "jc_outside", queue, 0)
    assert (found["status"], found["next_offset"], found["min_offset"], found["max_offset"]) == ("FOUND", 1, 0, 1)
    assert java.pull(namesrv, "jc_outside", queue, 1)["status"] == "NO_NEW_MSG"
    assert java.pull(namesrv, "jc_outside", queue, 0, expression="nothing")["status"] == "NO_MATCHED_MSG"
    beyond = java.pull(namesrv, "jc_outside", queue, 5)
    assert (beyond["status"], beyond["next_offset"]) == ("OFFSET_ILLEGAL", 1)


async def test_a_topic_is_created_by_its_first_message(java: JavaClient, our_cluster: OurProcess) -> None:
    topic = "JC_BornBySending"
    (result,) = java.send(our_cluster.namesrv, [{"topic": topic, "body": b"first"}])
    (message,) = java.consume(our_cluster.namesrv, "jc_born", topic, 1)
    assert (message["body"], message["msg_id"]) == (b"first", result["msg_id"])
    async with AdminClient(namesrv=our_cluster.namesrv) as admin:
        # The Java client asks for 4 queues of a topic that it causes to be created.
        assert [queue.queue_id for queue in await admin.queues(topic)] == [0, 1, 2, 3]


def test_what_is_too_large_for_the_broker_is_refused_and_harms_nobody(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    with pytest.raises(ApacheFailed, match="message body size over max value"):
        java.send(namesrv, [{"topic": topic, "body": b"x" * (4 * 1024 * 1024 + 1)}])
    with pytest.raises(ApacheFailed, match="propert"):
        java.send(namesrv, [{"topic": topic, "body": b"x", "properties": {"p": "v" * 32768}}])
    (result,) = java.send(namesrv, [{"topic": topic, "body": b"fits"}])
    assert result["status"] == "SEND_OK"


async def test_messages_of_both_clients_take_turns_in_one_queue(java: JavaClient, our_cluster: OurProcess, topic: str) -> None:
    namesrv = our_cluster.namesrv
    async with Producer("jc_producer", namesrv=namesrv) as producer:
        queue = (await producer.queues(topic))[0]
        java_queue = {"topic": topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        offsets = []
        for i in range(10):
            (theirs,) = java.send(namesrv, [{"topic": topic, "body": b"java %d" % i}], queue=java_queue)
            mine = await producer.send(Message(topic, b"python %d" % i, queue=MessageQueue(topic, queue.broker_name, queue.queue_id)))
            offsets += [theirs["queue_offset"], mine.queue_offset]
    assert offsets == list(range(20))
    bodies = [view["body"] for view in java_pull_all(java, namesrv, topic)]
    assert bodies == [b"%b %d" % (who, i) for i in range(10) for who in (b"java", b"python")]
