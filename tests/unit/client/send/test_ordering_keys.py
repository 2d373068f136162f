"""Messages with an ordering key: those of one key stay in one queue and in order, sent singly, as a batch or gathered."""

import copy
import pickle

import pytest

from sprocketmq import Batching, Message, MessageQueue, Producer, sync
from sprocketmq.client.send.accumulator import QUEUED, SEND_SINGLY, WAKE, Accumulator
from sprocketmq.client.send.encoding import MessageEncoder
from sprocketmq.clock import ManualClock
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BatchError, InvalidMessage
from sprocketmq.protocol.hashing import hashed_queue
from sprocketmq.protocol.ids import MessageIdFactory

KEY = "__SHARDINGKEY"
QUEUES = 4


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as cluster:
        cluster.create_topic("plain", queues=QUEUES)
        cluster.create_topic("kept", queues=QUEUES, attributes={"queue.type": "BatchCQ"})
        yield cluster


def read(cluster, topic):
    """The messages of each queue, in order."""
    with sync.PullConsumer("cg", namesrv=cluster.namesrv) as consumer:
        found = {}
        for queue in consumer.queues(topic):
            offset, messages = consumer.min_offset(queue), []
            while offset < consumer.max_offset(queue):
                result = consumer.pull(queue, offset, max_messages=1000)
                messages += result.messages
                offset = result.next_offset
            found[queue.queue_id] = messages
        return found


# Java: "polygenelubricants".hashCode() is Integer.MIN_VALUE, whose absolute value does not exist there.
@pytest.mark.parametrize(
    ("key", "queues", "chosen"),
    [("a", 4, 97 % 4), ("", 5, 0), ("polygenelubricants", 7, 2**31 % 7), ("order-1", 16, 1207111310 % 16), ("zzzzzz", 10, 685785664 % 10)],
)
def test_the_queue_is_the_rest_of_javas_hash_without_its_sign(key, queues, chosen):
    assert hashed_queue(key, queues) == chosen


def test_a_long_key_hashes_as_a_short_one_does():
    assert hashed_queue("\0" * 100 + "a", 1000) == 97


@pytest.mark.parametrize("topic", ["plain", "kept"])
@pytest.mark.parametrize("batching", [None, Batching(max_bytes=2000, max_delay_ms=5), Batching(max_bytes=2000, adaptive=True)])
def test_the_messages_of_a_key_stay_in_one_queue_and_in_order_whatever_their_tags(cluster, topic, batching):
    marker = f"{topic} {batching}"
    keys = [f"key {n}" for n in range(10)]
    with sync.Producer("pg", namesrv=cluster.namesrv, batching=batching) as producer:
        sent = [
            producer.submit(Message(topic, b"%d" % n, f"t{n % 3}", properties={"run": marker}, ordering_key=key))
            for n in range(60)
            for key in keys
        ]
        results = [future.result(60) for future in sent]
    for number, key in enumerate(keys):
        assert {result.queue_id for result in results[number :: len(keys)]} == {hashed_queue(key, QUEUES)}
    for queue_id, messages in read(cluster, topic).items():
        of_key: dict[str, list[int]] = {}
        for message in messages:
            if message.properties.get("run") == marker:
                of_key.setdefault(message.properties[KEY], []).append(int(message.body))
        assert all(bodies == list(range(60)) for bodies in of_key.values())
        assert set(of_key) == {key for key in keys if hashed_queue(key, QUEUES) == queue_id}


@pytest.mark.parametrize("topic", ["plain", "kept"])
def test_a_batch_of_one_key_goes_to_its_queue(cluster, topic):
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        for key in ("ada", "bob", "eve"):
            results = producer.send_batch([Message(topic, b"x", "t", ["k"], ordering_key=key) for _ in range(3)])
            assert {result.queue_id for result in results} == {hashed_queue(key, QUEUES)}


@pytest.mark.parametrize(("first", "second"), [("a", "b"), (None, "a"), ("a", None)])
def test_a_batch_has_one_ordering_key(cluster, first, second):
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer, pytest.raises(BatchError, match="its ordering key differs") as caught:
        producer.send_batch([Message("plain", b"x", ordering_key=first), Message("plain", b"x", ordering_key=second)])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "the ordering key is empty"),
        ("k" * (64 << 10), "the ordering key takes 65536 bytes, the limit is 32752"),
        ("ü" * 20_000, "the ordering key takes 40000 bytes"),
        ("a\x01b", "has a separator"),
        ("\ud800", "must be valid text"),
        (7, "must be text, not int"),
        (b"bytes", "must be text, not bytes"),
    ],
)
def test_what_is_no_ordering_key_is_refused_by_name(key, reason):
    with pytest.raises(InvalidMessage, match=reason) as refused:
        Message("plain", b"x", ordering_key=key)
    assert len(str(refused.value)) < 400


def test_a_key_excludes_what_else_chooses_a_queue():
    with pytest.raises(InvalidMessage, match="ordering key and queue exclude each other"):
        Message("plain", b"x", ordering_key="a", queue=MessageQueue("plain", "broker-a", 0))
    with pytest.raises(InvalidMessage, match="ordering_key alone"):
        Message("plain", b"x", properties={KEY: "b"}, ordering_key="a")


def test_a_key_set_later_is_checked_when_the_message_is_sent(cluster):
    message = Message("plain", b"x")
    message.ordering_key = ""
    for batching in (None, Batching()):
        with sync.Producer("pg", namesrv=cluster.namesrv, batching=batching) as producer:
            with pytest.raises(InvalidMessage, match="empty"):
                producer.send(message)
            with pytest.raises(InvalidMessage, match="empty"):
                producer.send_batch([message])


def test_a_key_that_leaves_no_room_for_the_other_properties_is_refused(cluster):
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer, pytest.raises(InvalidMessage, match="the properties take"):
        producer.send(Message("plain", b"x", ordering_key="k" * 32_752))


def test_a_key_and_a_priority_exclude_each_other(cluster):
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer, pytest.raises(InvalidMessage, match="has no priority"):
        producer.send(Message("plain", b"x", properties={"_SYS_MSG_PRIORITY_": "1"}, ordering_key="a"))


def test_a_message_keeps_its_key_when_it_is_copied():
    message = Message("plain", b"x", ordering_key="a")
    assert copy.deepcopy(message).ordering_key == "a"
    assert pickle.loads(pickle.dumps(message)).ordering_key == "a"


async def test_the_first_messages_to_a_topic_are_in_order_while_its_route_is_looked_up(cluster):
    async with Producer("pg", namesrv=cluster.namesrv, auto_batch=True) as producer:
        sent = [producer.submit(Message("plain", b"x", f"t{n % 2}", ordering_key="early")) for n in range(50)]
        results = [await future for future in sent]
    offsets = [result.queue_offset for result in results]
    assert offsets == sorted(offsets)
    assert {result.queue_id for result in results} == {hashed_queue("early", QUEUES)}


# --- what the accumulator does ------------------------------------------------------------------------------------------


@pytest.fixture
def accumulator():
    clock = ManualClock()
    encoder = MessageEncoder(MessageIdFactory("127.0.0.1", 1, clock), max_message_bytes=4 << 20, compression=None, compress_over_bytes=4096)

    def queue_of_key(topic, key):
        return MessageQueue(topic, "b", hashed_queue(key, 2)) if topic == "known" else None

    return Accumulator(
        Batching(max_delay_ms=1000), clock, encoder, lambda _topic, _queue: None, max_message_bytes=4 << 20, queue_of_key=queue_of_key
    )


def taken(accumulator):
    found = []
    while (batch := accumulator.take()) is not None:
        found.append(batch.members)
    return found


def test_keys_of_one_queue_share_a_batch(accumulator):
    assert accumulator.add(Message("known", b"x", ordering_key="a"), 1) is WAKE
    assert accumulator.add(Message("known", b"x", ordering_key="c"), 2) is QUEUED
    assert accumulator.add(Message("known", b"x", ordering_key="b"), 3) is WAKE
    accumulator.flush()
    assert taken(accumulator) == [[1, 2], [3]]


def test_a_batch_leaves_before_one_with_another_tag_to_its_queue_is_opened(accumulator):
    for number, tag in enumerate("xxyxx"):
        accumulator.add(Message("known", b"x", tag, ordering_key="a"), number)
    assert taken(accumulator) == [[0, 1], [2]]
    accumulator.flush()
    assert taken(accumulator) == [[3, 4]]


def test_a_message_that_is_refused_leaves_the_other_batches_alone(accumulator):
    accumulator.add(Message("known", b"x", "x", ordering_key="a"), 1)
    with pytest.raises(InvalidMessage):
        accumulator.add(Message("known", b"", "y", ordering_key="a"), 2)
    assert taken(accumulator) == []


def test_messages_are_sent_singly_while_the_route_is_not_known(accumulator):
    assert accumulator.add(Message("unknown", b"x", ordering_key="a"), 1) is SEND_SINGLY
    assert accumulator.held_bytes == 0


def test_messages_without_a_key_do_not_join_those_with_one(accumulator):
    accumulator.add(Message("known", b"keyed", ordering_key="a"), 1)
    accumulator.add(Message("known", b"plain"), 2)
    accumulator.add(Message("known", b"keyed", ordering_key="a"), 3)
    accumulator.flush()
    assert taken(accumulator) == [[1, 3], [2]]
