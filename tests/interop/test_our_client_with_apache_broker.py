"""Our client sends to and consumes from Apache's broker; what it sent is what Apache's client reads, field by field."""

from __future__ import annotations

import pytest
from tests.interop.apache import ApacheBroker, ApacheNamesrv, JavaClient
from tests.interop.compare import assert_as_sent, in_order, java_view, our_view, ours, variety
from tests.interop.reading import java_pull_all, pull_all

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer, sync
from sprocketmq.protocol.message import MessageQueue, SendStatus
from sprocketmq.protocol.records import ReceivedMessage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES = 4


@pytest.fixture
async def topic(apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, request: pytest.FixtureRequest) -> str:
    """Create a topic of the test's own at Apache's broker, with our admin client."""
    name = "OC_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:100]
    async with AdminClient(namesrv=apache_namesrv.address) as admin:
        await admin.create_topic(name, queues=QUEUES, cluster=apache_broker.cluster)
    return name


async def test_single_messages_arrive_as_sent(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, topic: str
) -> None:
    sent = variety(topic)
    async with Producer("oc_producer", namesrv=apache_namesrv.address) as producer:
        results = [await producer.send(ours(described)) for described in sent]

    theirs = java_pull_all(java, apache_namesrv.address, topic)
    assert theirs == await pull_all(apache_namesrv.address, topic)
    by_id = {view["msg_id"]: view for view in theirs}
    assert len(by_id) == len(sent)
    for described, result in zip(sent, results, strict=True):
        view = by_id[result.msg_id]
        assert_as_sent(view, described)
        assert result.status is SendStatus.SEND_OK
        assert result.offset_msg_id == view["offset_msg_id"]
        assert (result.broker_name, result.queue_id, result.queue_offset) == (apache_broker.name, view["queue_id"], view["queue_offset"])


async def test_a_batch_arrives_as_sent_with_every_offset_of_its_own(java: JavaClient, apache_namesrv: ApacheNamesrv, topic: str) -> None:
    sent = variety(topic)
    async with Producer("oc_producer", namesrv=apache_namesrv.address) as producer:
        results = await producer.send_batch([ours(described) for described in sent])

    theirs = java_pull_all(java, apache_namesrv.address, topic)
    assert theirs == await pull_all(apache_namesrv.address, topic)
    assert len(theirs) == len(sent)
    for described, result, view in zip(sent, results, theirs, strict=True):
        assert_as_sent(view, described)
        assert (result.msg_id, result.offset_msg_id) == (view["msg_id"], view["offset_msg_id"])
        assert (result.queue_id, result.queue_offset) == (view["queue_id"], view["queue_offset"])


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
async def test_compressed_bodies_inflate_on_both_sides(
    java: JavaClient, apache_namesrv: ApacheNamesrv, topic: str, compression: str
) -> None:
    body = b"a body that is worth it " * 2000
    async with Producer("oc_producer", namesrv=apache_namesrv.address, compression=compression) as producer:  # type: ignore[arg-type]
        await producer.send(Message(topic, body))

    (theirs,) = java_pull_all(java, apache_namesrv.address, topic)
    (mine,) = await pull_all(apache_namesrv.address, topic)
    assert theirs == mine
    assert mine["body"] == body
    assert mine["store_size"] < len(body)


async def test_submitted_messages_keep_their_order_in_a_queue(
    apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, topic: str
) -> None:
    queue = MessageQueue(topic, apache_broker.name, 1)
    async with Producer("oc_producer", namesrv=apache_namesrv.address) as producer:
        # The broker may store requests of one connection out of order: it has several threads. One at a time keeps order anywhere.
        for i in range(20):
            await producer.submit(Message(topic, b"%d" % i, queue=queue))
    views = await pull_all(apache_namesrv.address, topic)
    assert [(view["queue_id"], view["body"]) for view in views] == [(1, b"%d" % i) for i in range(20)]


async def test_messages_go_to_the_queues_that_a_topic_has_left(
    apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, topic: str
) -> None:
    async with Producer("oc_producer", namesrv=apache_namesrv.address) as producer, AdminClient(namesrv=apache_namesrv.address) as admin:
        await producer.send(Message(topic, b"first"))
        await admin.create_topic(topic, queues=1, cluster=apache_broker.cluster)
        assert {(await producer.send(Message(topic, b"%d" % i))).queue_id for i in range(2 * QUEUES)} == {0}


async def test_our_push_consumer_gets_everything_once_and_commits(java: JavaClient, apache_namesrv: ApacheNamesrv, topic: str) -> None:
    sent = variety(topic) * 5
    java.send(apache_namesrv.address, sent)
    java.send_batch(apache_namesrv.address, sent)

    received: list[ReceivedMessage] = []
    async with PushConsumer("oc_push", {topic: "*"}, namesrv=apache_namesrv.address, consume_from="first") as consumer:
        async for batch in consumer.batches():
            received += batch
            batch.ack()
            if len(received) >= 2 * len(sent):
                break
    assert in_order([our_view(message) for message in received]) == java_pull_all(java, apache_namesrv.address, topic)

    async with PullConsumer("oc_push", namesrv=apache_namesrv.address) as reader:
        for queue in await reader.queues(topic):
            assert await reader.committed(queue) == await reader.max_offset(queue)


async def test_our_push_consumer_gets_only_the_tags_it_asked_for(java: JavaClient, apache_namesrv: ApacheNamesrv, topic: str) -> None:
    tags = ["TagA", "TagB", None, "标签", "TagC"] * 8
    java.send(apache_namesrv.address, [{"topic": topic, "body": b"%d" % i, "tag": tag} for i, tag in enumerate(tags)])
    expected = {b"%d" % i for i, tag in enumerate(tags) if tag in {"TagB", "标签"}}

    bodies: list[bytes] = []
    async with PushConsumer("oc_tags", {topic: "TagB || 标签"}, namesrv=apache_namesrv.address, consume_from="first") as consumer:
        async for batch in consumer.batches():
            bodies += [message.body for message in batch]
            if len(bodies) >= len(expected):
                break
    assert sorted(bodies) == sorted(expected)


async def test_a_message_waited_for_arrives_by_long_polling(java: JavaClient, apache_namesrv: ApacheNamesrv, topic: str) -> None:
    async with PushConsumer("oc_wait", {topic: "*"}, namesrv=apache_namesrv.address, consume_from="first") as consumer:
        batches = consumer.batches()
        for number in range(3):
            (sent,) = java.send(apache_namesrv.address, [{"topic": topic, "body": b"%d" % number}])
            async for batch in batches:
                assert [(message.body, message.msg_id) for message in batch] == [(b"%d" % number, sent["msg_id"])]
                break


async def test_offsets_and_times_agree_with_apaches_client(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, topic: str
) -> None:
    queue = MessageQueue(topic, apache_broker.name, 2)
    java_queue = {"topic": topic, "broker": apache_broker.name, "queue_id": 2}
    async with Producer("oc_producer", namesrv=apache_namesrv.address) as producer:
        for i in range(10):
            await producer.send(Message(topic, b"%d" % i, queue=queue))
    views = await pull_all(apache_namesrv.address, topic)
    async with PullConsumer("oc_offsets", namesrv=apache_namesrv.address) as consumer:
        for moment in (0, views[4]["store_timestamp_ms"], views[-1]["store_timestamp_ms"] + 60_000):
            theirs = java.call("offsets", namesrv=apache_namesrv.address, group="oc_offsets", queue=java_queue, timestamp_ms=moment)
            assert await consumer.offset_at(queue, moment) == theirs["at"]
            assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (theirs["min"], theirs["max"]) == (0, 10)
        assert await consumer.committed(MessageQueue(topic, apache_broker.name, 3)) in {None, 0}
        await consumer.commit(queue, 6)
        assert await consumer.committed(queue) == 6
        assert java.call("offsets", namesrv=apache_namesrv.address, group="oc_offsets", queue=java_queue)["committed"] == 6


async def test_a_topic_is_created_by_its_first_message(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker
) -> None:
    async with Producer("oc_producer", namesrv=apache_namesrv.address) as producer:
        result = await producer.send(Message("OC_BornBySending", b"first"))
    (view,) = java.consume(apache_namesrv.address, "oc_java_push", "OC_BornBySending", 1)
    assert java_view(view)["body"] == b"first"
    assert view["msg_id"] == result.msg_id


def test_the_sync_face_does_the_same(java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker) -> None:
    topic = "OC_SyncFace"
    with sync.AdminClient(namesrv=apache_namesrv.address) as admin:
        admin.create_topic(topic, queues=1, cluster=apache_broker.cluster)
    with sync.Producer("oc_producer", namesrv=apache_namesrv.address) as producer:
        single = producer.send(Message(topic, b"one"))
        batch = producer.send_batch([Message(topic, b"two"), Message(topic, b"three")])
    with sync.PullConsumer("oc_reader", namesrv=apache_namesrv.address) as consumer:
        (queue,) = consumer.queues(topic)
        found = consumer.pull(queue, 0).messages
    assert [message.body for message in found] == [b"one", b"two", b"three"]
    assert [message.msg_id for message in found] == [single.msg_id, *(result.msg_id for result in batch)]
    assert [our_view(message) for message in found] == java_pull_all(java, apache_namesrv.address, topic)


async def test_the_admin_client_tells_what_mqadmin_tells(
    java: JavaClient, apache_namesrv: ApacheNamesrv, apache_broker: ApacheBroker, topic: str
) -> None:
    async with AdminClient(namesrv=apache_namesrv.address) as admin:
        assert topic in await admin.topics()
        assert topic in java.mqadmin("topicList", "-n", apache_namesrv.address).split()
        route = await admin.route(topic)
        assert [(q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm) for q in route.queue_datas] == [
            (apache_broker.name, QUEUES, QUEUES, 6)
        ]
        assert [(b.broker_name, b.cluster, b.broker_addrs) for b in route.broker_datas] == [
            (apache_broker.name, apache_broker.cluster, {0: apache_broker.address})
        ]
        cluster = await admin.cluster()
        assert cluster.cluster_addr_table[apache_broker.cluster] == [apache_broker.name]
        await admin.delete_topic(topic)
        assert topic not in await admin.topics()


async def test_an_ordering_key_chooses_the_queue_that_javas_selector_chooses(
    java: JavaClient, apache_namesrv: ApacheNamesrv, topic: str
) -> None:
    keys = ["a", "order-1", "order-2", "Ünïcode", "\U0001f600 key", "polygenelubricants", "k" * 300, *(f"customer {n}" for n in range(40))]
    theirs = java.send_by_key(
        apache_namesrv.address, [{"topic": topic, "body": b"java", "properties": {"__SHARDINGKEY": key}} for key in keys]
    )
    chosen = [result["queue_id"] for result in theirs]
    assert set(chosen) == set(range(QUEUES))
    async with Producer("oc_producer", namesrv=apache_namesrv.address) as producer:
        singly = [await producer.send(Message(topic, b"ours", ordering_key=key)) for key in keys]
        batches = [(await producer.send_batch([Message(topic, b"ours", ordering_key=key)] * 2))[1] for key in keys]
    async with Producer("oc_gathering", namesrv=apache_namesrv.address, auto_batch=True) as producer:
        gathered = [producer.submit(Message(topic, b"ours", ordering_key=key)) for key in keys for _ in range(2)]
        assert [(await future).queue_id for future in gathered[::2]] == chosen
    assert [result.queue_id for result in singly] == chosen
    assert [result.queue_id for result in batches] == chosen
    assert {view["properties"]["__SHARDINGKEY"] for view in java_pull_all(java, apache_namesrv.address, topic)} == set(keys)
