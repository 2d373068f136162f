"""Values users hold."""

import copy
import json
import pickle

import pytest

from sprocketmq.errors import InvalidMessage
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import Message, MessageQueue, Receipt, SendResult, SendStatus


def test_a_message_keeps_what_it_was_given():
    queue = MessageQueue("orders", "broker-a", 1)
    message = Message("orders", b"body", "tag", ["k"], {"colour": "red"}, queue=queue, flag=3, wait_store_ok=False)
    assert (message.topic, message.body, message.tag, list(message.keys)) == ("orders", b"body", "tag", ["k"])
    assert (dict(message.properties), message.queue, message.flag, message.wait_store_ok) == ({"colour": "red"}, queue, 3, False)
    assert repr(message) == "Message('orders', 4 bytes, tag='tag', keys=['k'])"


def test_a_message_needs_topic_and_body_only():
    message = Message("orders", b"x")
    assert (message.tag, tuple(message.keys), dict(message.properties), message.queue) == (None, (), {}, None)


@pytest.mark.parametrize("body", [bytearray(b"abc"), memoryview(b"abc")])
def test_a_body_that_can_change_is_copied(body):
    message = Message("orders", body)
    assert message.body == b"abc"
    assert type(message.body) is bytes


@pytest.mark.parametrize("body", ["text", 5, None, [1]])
def test_a_body_that_is_not_bytes_is_refused_with_advice(body):
    with pytest.raises(InvalidMessage, match="encode"):
        Message("orders", body)


def test_a_message_may_be_delayed_by_a_level_or_until_a_time():
    assert (Message("t", b"x").delay_level, Message("t", b"x").deliver_at_ms) == (0, None)
    assert Message("t", b"x", delay_level=18).delay_level == 18
    assert Message("t", b"x", delay_level=19).delay_level == 19  # a broker's table may be longer; a shorter one's last level counts
    assert Message("t", b"x", deliver_at_ms=1_700_000_000_000).deliver_at_ms == 1_700_000_000_000


@pytest.mark.parametrize("level", [-1, 2**31, "3", None, 1.5, True])
def test_a_delay_level_that_cannot_be_is_refused_and_named(level):
    with pytest.raises(InvalidMessage, match=f"delay level {level!r}"):
        Message("t", b"x", delay_level=level)


@pytest.mark.parametrize("at", [-1, 2**63, 1.5, "now", True])
def test_a_delivery_time_that_cannot_be_is_refused_and_named(at):
    with pytest.raises(InvalidMessage, match=f"deliver_at_ms .*{at!r}"):
        Message("t", b"x", deliver_at_ms=at)


def test_a_level_and_a_time_exclude_each_other():
    with pytest.raises(InvalidMessage, match="exclude each other"):
        Message("t", b"x", delay_level=3, deliver_at_ms=1)


def test_queues_are_ordered_by_topic_broker_and_number():
    queues = [MessageQueue("b", "a", 0), MessageQueue("a", "b", 10), MessageQueue("a", "b", 9), MessageQueue("a", "a", 11)]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
    assert len({MessageQueue("a", "b", 1), MessageQueue("a", "b", 1)}) == 1


def test_results_cannot_be_changed():
    result = SendResult.of(SendStatus.SEND_OK, "id", "offset id", "orders", "broker-a", 1, 42)
    with pytest.raises(AttributeError):
        result.queue_offset = 1


def test_results_are_values():
    facts = (SendStatus.SEND_OK, "id", "offset id", "orders", "broker-a", 1, 42)
    result, same, other = SendResult.of(*facts), SendResult.of(*facts), SendResult.of(*facts[:-1], 43)
    assert result == same != other
    assert result != facts
    assert {result, same, other} == {same, other}
    match result:
        case SendResult(status=SendStatus.SEND_OK, queue_offset=offset):
            assert offset == 42
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == result
    text = "status=<SendStatus.SEND_OK: 0>, msg_id='id', offset_msg_id='offset id', topic='orders', broker_name='broker-a'"
    assert repr(result) == f"SendResult({text}, queue_id=1, queue_offset=42)"


@pytest.mark.parametrize("offset_ids", ["A,B,C", "A"])
def test_the_results_of_one_request_share_what_they_have_in_common(offset_ids):
    receipt = Receipt(SendStatus.SEND_OK, MessageIdFactory().take(3), offset_ids, "orders", "broker-a", 1, 40)
    results = [SendResult(receipt, place) for place in range(3)]
    assert [one.queue_offset for one in results] == [40, 41, 42]
    assert [one.msg_id for one in results] == list(receipt.msg_ids)
    assert [one.offset_msg_id for one in results] == (offset_ids.split(",") * 3)[:3]
    assert pickle.loads(pickle.dumps(results)) == results


@pytest.mark.parametrize(
    "remake", [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))], ids=["copy", "deepcopy", "pickle"]
)
@pytest.mark.parametrize("properties", [{}, {"properties": {"source": "web"}}], ids=["plain", "with properties"])
def test_a_message_can_be_copied_and_pickled(remake, properties):
    message = Message("t", b"x", "tag", ["k"], **properties, delay_level=3, queue=MessageQueue("t", "a", 0), flag=7, wait_store_ok=False)
    again = remake(message)
    assert type(again) is Message
    assert all(getattr(again, name) == getattr(message, name) for name in Message.__struct_fields__)


def test_a_result_can_be_written_as_json():
    result = SendResult.of(SendStatus.FLUSH_DISK_TIMEOUT, "A1", "B2", "orders", "broker-a", 3, 7)
    assert json.loads(json.dumps(result.as_dict())) == {
        "status": "FLUSH_DISK_TIMEOUT",
        "msg_id": "A1",
        "offset_msg_id": "B2",
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 3,
        "queue_offset": 7,
    }
