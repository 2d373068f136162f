"""Explicit batches and the broker: the same results, consumers and queries on topics that keep batches whole and on those that do not."""

import pytest

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer
from sprocketmq.errors import BatchError, MessageTooLarge
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.testing import eventually

KINDS = pytest.mark.parametrize("attributes", [{}, {"queue.type": "BatchCQ"}], ids=["plain", "BatchCQ"])


@pytest.fixture
async def admin(rocketmq):
    async with AdminClient(namesrv=rocketmq.namesrv) as running:
        yield running


@pytest.fixture
async def producer(rocketmq):
    async with Producer("pg", namesrv=rocketmq.namesrv) as running:
        yield running


async def stored(rocketmq, topic: str) -> list:
    async with PullConsumer("reader", namesrv=rocketmq.namesrv) as consumer:
        return [m for queue in await consumer.queues(topic) for m in (await consumer.pull(queue, 0, max_messages=1024)).messages]


@KINDS
async def test_every_result_is_where_the_message_is(rocketmq, admin, producer, attributes):
    await admin.create_topic("t", queues=1, attributes=attributes)
    batch = [Message("t", b"%d" % i, tag="ab"[i % 2], keys=[f"k{i}"], properties={"n": str(i)}, flag=i) for i in range(20)]
    results = [*await producer.send_batch(batch[:7]), *await producer.send_batch(batch[7:])]
    found = await stored(rocketmq, "t")
    assert [(r.queue_offset, r.msg_id, r.offset_msg_id) for r in results] == [(m.queue_offset, m.msg_id, m.offset_msg_id) for m in found]
    assert [(m.body, m.tag, m.keys, m.properties["n"]) for m in found] == [(m.body, m.tag, list(m.keys), m.properties["n"]) for m in batch]
    assert [r.queue_offset for r in results] == list(range(20))


@KINDS
async def test_a_batch_whose_messages_share_a_tag_reaches_those_who_subscribe_to_it(rocketmq, admin, producer, attributes):
    await admin.create_topic("t", queues=1, attributes=attributes)
    await producer.send_batch([Message("t", b"other", tag="b")] * 3)
    await producer.send_batch([Message("t", b"%d" % i, tag="a") for i in range(5)])
    seen: list[bytes] = []
    async with PushConsumer("cg", {"t": "a"}, namesrv=rocketmq.namesrv, consume_from="first") as consumer:
        async for batch in consumer.batches():
            seen += [m.body for m in batch]
            if len(seen) >= 5:
                break
    assert seen == [b"%d" % i for i in range(5)]


@KINDS
async def test_each_message_of_a_batch_is_found_by_its_own_keys_alone(admin, producer, attributes):
    await admin.create_topic("t", queues=1, attributes=attributes)
    await producer.send_batch([Message("t", b"%d" % i, keys=[f"k{i}", "all"]) for i in range(4)])

    async def found() -> bool:
        return [m.body for m in await admin.query_by_key("t", "k2")] == [b"2"]

    await eventually(found)
    assert sorted(m.body for m in await admin.query_by_key("t", "all")) == [b"0", b"1", b"2", b"3"]


@KINDS
async def test_each_message_of_a_split_batch_is_found_by_its_keys(rocketmq, admin, attributes):
    await admin.create_topic("t", queues=1, attributes=attributes)
    async with Producer("small", namesrv=rocketmq.namesrv, max_message_bytes=2000) as producer:
        results = await producer.send_batch([Message("t", b"%d " % i + bytes(300), tag="a", keys=[f"k{i}"]) for i in range(20)])
    assert [r.queue_offset for r in results] == list(range(20))

    async def found() -> bool:
        return [(m.queue_offset, m.msg_id) for m in await admin.query_by_key("t", "k17")] == [(17, results[17].msg_id)]

    await eventually(found)


@KINDS
async def test_a_batch_that_breaks_a_rule_leaves_nothing_behind(rocketmq, admin, producer, attributes):
    await admin.create_topic("t", queues=1, attributes=attributes)
    good = Message("t", b"x")
    for odd, error in (
        (Message("t", b"x", delay_level=2), BatchError),
        (Message("%RETRY%cg", b"x"), BatchError),
        (Message("u", b"x"), BatchError),
        (Message("t", b"x", wait_store_ok=False), BatchError),
        (Message("t", bytes(4 << 20)), MessageTooLarge),
    ):
        with pytest.raises(error) as e:
            await producer.send_batch([good, good, odd, good])
        assert e.value.index == 2
    assert await stored(rocketmq, "t") == []
    assert producer.in_flight == 0


@KINDS
async def test_a_request_that_was_encoded_elsewhere_is_sent_as_it_is(rocketmq, admin, producer, attributes):
    await admin.create_topic("t", queues=2, attributes=attributes)
    queue = (await producer.queues("t"))[1]
    entries = [(7, b"%d" % i, encode_properties({"KEYS": f"k{i}", "WAIT": "true", "UNIQ_KEY": f"{i:032X}"})) for i in range(3)]
    result = await producer.send_encoded(
        "t", memoryview(encode_batch(entries)), "UNIQ_KEY\x01batch\x02", batch=True, queue=queue, born_timestamp_ms=1234
    )
    single = await producer.send_encoded("t", b"alone", f"UNIQ_KEY\x01{9:032X}\x02", batch=False, queue=queue, flag=8)
    assert (result.queue_id, result.queue_offset, result.msg_id) == (1, 0, "")
    assert single.queue_offset == 3
    found = await stored(rocketmq, "t")
    assert [(m.body, m.msg_id, m.flag) for m in found] == [
        *((b"%d" % i, f"{i:032X}", 7) for i in range(3)),
        (b"alone", f"{9:032X}", 8),
    ]
    assert {m.born_timestamp_ms for m in found[:3]} == {1234}
    assert producer.in_flight == 0
