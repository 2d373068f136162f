"""Values users hold."""

import pytest

from sprocketmq.errors import InvalidMessage
from sprocketmq.protocol.message import Message, MessageQueue, SendResult, SendStatus


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


def test_queues_are_ordered_by_topic_broker_and_number():
    queues = [MessageQueue("b", "a", 0), MessageQueue("a", "b", 10), MessageQueue("a", "b", 9), MessageQueue("a", "a", 11)]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
    assert len({MessageQueue("a", "b", 1), MessageQueue("a", "b", 1)}) == 1


def test_results_cannot_be_changed():
    result = SendResult(SendStatus.SEND_OK, "id", "offset id", "orders", "broker-a", 1, 42)
    with pytest.raises(AttributeError):
        result.queue_offset = 1
