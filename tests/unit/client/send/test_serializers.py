"""Serializers are functions of the program that sends: what one raises comes out unchanged, and nothing of its batch is sent."""

import pytest
from tests.inside import bytes_in_flight

from sprocketmq.client import Producer
from sprocketmq.client.send.batching import Batching
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.message import Message


class CannotEncode(Exception):
    pass


def message_of(value):
    if not isinstance(value, int):
        raise CannotEncode(value)
    return Message("t", b"%d" % value)


def sent(cluster):
    """Return the bodies of each request."""
    return [[bytes(entry.body) for entry in split_batch(one.body)] for one in cluster.broker.seen if one.code == Q.SEND_BATCH_MESSAGE]


async def test_a_serializer_that_raises_in_a_batch_has_nothing_sent(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        with pytest.raises(CannotEncode, match="three"):
            await producer.send_batch(map(message_of, [1, 2, "three", 4]))
        assert sent(cluster) == []
        assert (producer.in_flight, bytes_in_flight(producer)) == (0, 0)
        await producer.send_batch(map(message_of, [5, 6]))
    assert sent(cluster) == [[b"5", b"6"]]


async def test_a_serializer_that_raises_between_sends_leaves_the_gathered_batch_whole(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=Batching(max_delay_ms=30_000)) as producer:
        futures = [producer.submit(message_of(1))]
        with pytest.raises(CannotEncode):
            futures.append(producer.submit(message_of("two")))
        futures.append(producer.submit(message_of(3)))
        await producer.flush()
        assert [future.result().queue_offset for future in futures] == [0, 1]
    assert sent(cluster) == [[b"1", b"3"]]
