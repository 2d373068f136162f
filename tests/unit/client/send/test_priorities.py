"""Messages with a priority: each ends in its queue, sent singly, as a batch or gathered."""

import pytest

from sprocketmq import Batching, Message, MessageQueue, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BatchError, InvalidMessage

PRIORITY = "_SYS_MSG_PRIORITY_"


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as cluster:
        cluster.create_topic("plain", queues=4)
        cluster.create_topic("kept", queues=4, attributes={"queue.type": "BatchCQ", "message.type": "PRIORITY"})
        yield cluster


def producer_at(cluster, **options):
    return sync.Producer("pg", namesrv=cluster.namesrv, **options)


def message(topic, priority, body=b"x", **fields):
    return Message(topic, body, properties={PRIORITY: str(priority)} if priority is not None else {}, **fields)


@pytest.mark.parametrize("topic", ["plain", "kept"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_gathered_messages_of_several_priorities_end_in_their_queues(cluster, topic, adaptive):
    batching = Batching(max_bytes=1 << 20, max_delay_ms=20, adaptive=adaptive)
    with producer_at(cluster, batching=batching) as producer:
        sent = [(priority, producer.submit(message(topic, priority))) for _ in range(20) for priority in (0, 1, 9)]
        queues = {(priority, future.result(60).queue_id) for priority, future in sent}
        assert queues == {(0, 0), (1, 1), (9, 3)}
        assert producer.batching_stats.batches < len(sent) / 2, "they travelled together"


@pytest.mark.parametrize("topic", ["plain", "kept"])
def test_a_batch_of_one_priority_goes_to_its_queue(cluster, topic):
    with producer_at(cluster) as producer:
        for priority, queue in ((0, 0), (2, 2), (7, 3)):
            results = producer.send_batch([message(topic, priority) for _ in range(3)])
            assert {result.queue_id for result in results} == {queue}
        asked = MessageQueue(topic, "broker-a", 0)
        assert producer.send_batch([message(topic, 2, queue=asked)])[0].queue_id == 2, "as for one sent singly"
        assert producer.send(message(topic, 2, queue=asked)).queue_id == 2


@pytest.mark.parametrize(("first", "second"), [(0, 1), (None, 1), (1, None)])
def test_a_batch_has_one_priority(cluster, first, second):
    with producer_at(cluster) as producer, pytest.raises(BatchError, match="its priority differs") as caught:
        producer.send_batch([message("plain", first), message("plain", second)])
    assert caught.value.index == 1


@pytest.mark.parametrize("value", ["-1", "abc", "1.5", str(2**31), " 1"])
def test_what_is_no_priority_is_refused_before_it_is_sent(cluster, value):
    with producer_at(cluster) as producer, pytest.raises(InvalidMessage, match="whole number from 0"):
        producer.send(Message("plain", b"x", properties={PRIORITY: value}))


@pytest.mark.parametrize("fields", [{"delay_level": 1}, {"deliver_at_ms": 1}])
def test_a_delayed_message_has_no_priority(cluster, fields):
    with producer_at(cluster) as producer, pytest.raises(InvalidMessage, match="has no priority"):
        producer.send(message("plain", 1, **fields))
    with producer_at(cluster) as producer, pytest.raises(InvalidMessage, match="has no priority"):
        producer.send(Message("plain", b"x", properties={PRIORITY: "1", "__SHARDINGKEY": "s"}))
