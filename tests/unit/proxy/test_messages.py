"""Conversion between messages of the API and stored messages."""

import gzip
import hashlib
import zlib

import pytest
from tests.records import stored

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import decode_records
from sprocketmq.proxy.codes import ENCODING_GZIP, Code, MessageType, Refused
from sprocketmq.proxy.messages import (
    MAX_BODY_BYTES,
    body_of,
    check_type,
    delivered,
    properties_of,
    queue_of_group,
    topic_of,
    type_of,
    types_of,
)
from sprocketmq.proxy.receipts import Receipt
from sprocketmq.proxy.schema import MESSAGES, Message, Resource, SystemProperties, duration, timestamp


def message(body=b"x", user=None, **system):
    return Message(
        topic=Resource(name="orders"),
        body=body,
        user_properties=user or {},
        system_properties=SystemProperties(message_id="id-1", **system),
    )


def refusal(call, *arguments):
    with pytest.raises(Refused) as refused:
        call(*arguments)
    return refused.value.code


def test_properties_as_they_are_stored():
    found = properties_of(message(user={"colour": "red"}, tag="t", keys=["a", "b"], message_group="g", born_host="here"), "orders")
    assert found == {"colour": "red", "UNIQ_KEY": "id-1", "TAGS": "t", "KEYS": "a b", "__SHARDINGKEY": "g", "BORN_HOST": "here"}
    assert type_of(found) is MessageType.FIFO


def test_a_delivery_time_and_a_transaction():
    found = properties_of(message(delivery_timestamp=timestamp(1_795_229_533_001)), "orders")
    assert found["TIMER_DELIVER_MS"] == "1795229533001"
    assert type_of(found) is MessageType.DELAY
    found = properties_of(message(message_type=MessageType.TRANSACTION, orphaned_transaction_recovery_duration=duration(90)), "orders")
    assert (found["TRAN_MSG"], found["PGROUP"], found["CHECK_IMMUNITY_TIME_IN_SECONDS"]) == ("true", "orders", "90")
    assert type_of(found) is MessageType.TRANSACTION
    assert type_of(properties_of(message(priority=3), "orders")) is MessageType.PRIORITY
    assert type_of(properties_of(message(), "orders")) is MessageType.NORMAL


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"message_id": " "}, Code.ILLEGAL_MESSAGE_ID),
        ({"tag": " "}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["a", ""]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "\x01"}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_type": 4, "orphaned_transaction_recovery_duration": duration(3601)}, Code.BAD_REQUEST),
    ],
)
def test_system_properties_that_cannot_be(wrong, code):
    system = {"message_id": "id-1", **wrong}
    bad = Message(topic=Resource(name="orders"), body=b"x", system_properties=SystemProperties(**system))
    assert refusal(properties_of, bad, "orders") == code


@pytest.mark.parametrize(
    ("user", "code"),
    [
        ({"KEYS": "k"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"__SHARDINGKEY": "k"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"a": "\x01"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"": "v"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({str(n): "v" for n in range(129)}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"a": "v" * (16 << 10)}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_user_properties_that_cannot_be(user, code):
    assert refusal(properties_of, message(user=user), "orders") == code


def test_bodies():
    assert body_of(message(b"hello")) == b"hello"
    assert body_of(message(gzip.compress(b"hello"), body_encoding=ENCODING_GZIP)) == b"hello"
    assert body_of(message(zlib.compress(b"hello"), body_encoding=ENCODING_GZIP)) == b"hello"
    assert refusal(body_of, message(b"")) == Code.MESSAGE_BODY_EMPTY
    assert refusal(body_of, message(bytes(MAX_BODY_BYTES + 1))) == Code.MESSAGE_BODY_TOO_LARGE
    bomb = gzip.compress(bytes(64 << 20))
    assert refusal(body_of, message(bomb, body_encoding=ENCODING_GZIP)) == Code.MESSAGE_BODY_TOO_LARGE
    assert refusal(body_of, message(b"no gzip", body_encoding=ENCODING_GZIP)) == Code.MESSAGE_CORRUPTED
    assert refusal(body_of, message(gzip.compress(b"hello")[:-4], body_encoding=ENCODING_GZIP)) == Code.MESSAGE_CORRUPTED


@pytest.mark.parametrize("name", ["", "a b", "RMQ_SYS_TRACE_TOPIC", "x" * 300])
def test_topics_that_cannot_be(name):
    assert refusal(topic_of, Resource(name=name)) == Code.ILLEGAL_TOPIC


def test_types_of_topics():
    assert types_of({}) == (MessageType.NORMAL,)
    assert types_of({"message.type": "FIFO"}) == (MessageType.FIFO,)
    assert types_of({"message.type": "MIXED"}) == (1, 2, 3, 4)
    check_type("t", MessageType.DELAY, types_of({"message.type": "MIXED"}))
    assert refusal(check_type, "t", MessageType.FIFO, types_of({})) == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_a_message_group_stays_on_its_queue_and_moves_little_when_queues_are_added():
    queues = [MessageQueue("t", "broker-a", n) for n in range(9)]
    groups = [f"group-{n}" for n in range(2000)]
    before = [queue_of_group(group, queues[:8]).queue_id for group in groups]
    after = [queue_of_group(group, queues).queue_id for group in groups]
    assert set(before) == set(range(8))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {8}  # a jump consistent hash moves keys to the new queue only
    assert len(moved) < len(groups) / 6


def test_a_stored_message_as_it_is_delivered():
    pairs = {
        "UNIQ_KEY": "id-1",
        "TAGS": "t",
        "KEYS": "a b",
        "colour": "red",
        "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "c",
        "WAIT": "true",
        "_SYS_MSG_PRIORITY_": "2",
        "DLQ_ORIGIN_TOPIC": "o",
        "DLQ_ORIGIN_MESSAGE_ID": "i",
        "BORN_TIMESTAMP": "123456",
    }
    (found,) = decode_records(stored(b"hello", pairs, queue_offset=9, queue_id=2))
    receipt = Receipt(7, 1, 2, 3, 0, "broker-a", 2, 9, 4)
    shown = delivered(found, "orders", receipt, 60_000, None)
    system = shown.system_properties
    assert (shown.topic.name, shown.body, dict(shown.user_properties)) == ("orders", b"hello", {"colour": "red"})
    assert (system.message_id, system.tag, list(system.keys), system.message_group) == ("id-1", "t", ["a", "b"], "g")
    assert (system.body_digest.type, system.body_digest.checksum) == (2, hashlib.md5(b"hello").hexdigest().upper())
    assert (system.delivery_attempt, system.priority, system.trace_context) == (1, 2, "c")
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("o", "i")
    assert (system.queue_id, system.queue_offset, system.receipt_handle) == (2, 9, str(receipt))
    assert system.born_timestamp.seconds == 123
    assert system.invisible_duration.seconds == 60
    assert delivered(found, "orders", receipt, 60_000, 4).system_properties.delivery_attempt == 5
    assert MESSAGES["Message"].FromString(shown.SerializeToString()) == shown
