"""AdminClient finds single messages, by key, id and place."""

import pytest
from tests.records import stored

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.client.message_lookup import with_key
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, TopicNotFound
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.properties import encode_properties


@pytest.fixture
async def mq():
    async with LocalCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
async def admin(mq):
    async with AdminClient(namesrv=mq.namesrv) as client:
        await client.create_topic("orders", queues=2)
        yield client


@pytest.fixture
async def producer(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv) as client:
        yield client


def bodies(messages):
    return [bytes(message.body) for message in messages]


async def test_messages_are_found_on_all_brokers(admin, producer):
    sent = []
    for queue in await admin.queues("orders"):
        for n in range(2):
            body = f"{queue.broker_name}-{queue.queue_id}-{n}".encode()
            sent.append((body, await producer.send(Message("orders", body, keys=["all", body.decode()], queue=queue))))
    assert sorted(bodies(await admin.query_by_key("orders", "all"))) == sorted(body for body, _ in sent)
    for body, result in sent:
        (message,) = await admin.query_by_key("orders", body.decode())
        assert (message.msg_id, message.broker_name) == (result.msg_id, result.broker_name)
        assert bodies(await admin.query_by_unique_key("orders", result.msg_id)) == [body]
        assert bodies(await admin.query_by_key("orders", result.msg_id)) == [body]
        assert bodies(await admin.messages_at(result.offset_msg_id)) == [body]
    assert await admin.query_by_unique_key("orders", "all") == []
    assert await admin.query_by_key("orders", "none") == []


async def test_the_newest_are_returned_oldest_first(admin, producer):
    for n in range(5):
        await producer.send(Message("orders", b"%d" % n, keys=["k"]))
    found = await admin.query_by_key("orders", "k", max_count=3)
    assert len(found) == 3
    times = [message.store_timestamp_ms for message in found]
    assert times == sorted(times)
    last = max(message.store_timestamp_ms for message in await admin.query_by_key("orders", "k"))
    assert await admin.query_by_key("orders", "k", begin_ms=last + 1) == []


async def test_messages_of_a_batch_that_is_kept_whole_are_found_one_by_one(admin, producer):
    await admin.create_topic("bulk", queues=1, attributes={"queue.type": "BatchCQ"})
    sent = await producer.send_batch([Message("bulk", b"%d" % n, keys=[f"k{n}", "all"]) for n in range(3)])
    for n, result in enumerate(sent):
        for found in (
            await admin.query_by_key("bulk", f"k{n}"),
            await admin.query_by_unique_key("bulk", result.msg_id),
            [await admin.view_message("bulk", result.msg_id)],
        ):
            (message,) = found
            assert (bytes(message.body), message.msg_id, message.queue_offset) == (b"%d" % n, result.msg_id, result.queue_offset)
            assert (message.broker_name, message.queue_id) == (result.broker_name, result.queue_id)
    assert bodies(await admin.query_by_key("bulk", "all")) == [b"0", b"1", b"2"]
    assert bodies(await admin.query_by_key("bulk", "all", max_count=2)) == [b"1", b"2"]
    assert bodies(await admin.messages_at(sent[1].offset_msg_id)) == [b"0", b"1", b"2"]


async def test_messages_are_found_by_tag_and_by_offset_also_inside_batches(admin, producer):
    await admin.create_topic("bulk", queues=1, broker="broker-a", attributes={"queue.type": "BatchCQ"})
    await producer.send_batch([Message("bulk", b"%d" % n, tag="red") for n in range(3)])
    await producer.send(Message("bulk", b"3", tag="blue"))
    assert bodies(await admin.query_by_tag("bulk", "red")) == [b"0", b"1", b"2"]
    assert bodies(await admin.query_by_tag("bulk", "blue")) == [b"3"]
    assert bodies(await admin.query_by_tag("bulk", "red", max_count=1)) == [b"2"]
    assert await admin.query_by_key("bulk", "red") == []
    (queue,) = await admin.queues("bulk")
    for offset in range(4):
        assert bytes((await admin.message_at(queue, offset)).body) == b"%d" % offset
    assert await admin.message_at(queue, 4) is None
    assert await admin.message_at(queue, 99) is None


async def test_a_message_is_viewed_by_either_id(admin, producer):
    await producer.send(Message("orders", b"first"))
    sent = await producer.send(Message("orders", b"second"))
    for msg_id in (sent.msg_id, sent.offset_msg_id):
        message = await admin.view_message("orders", msg_id)
        assert (bytes(message.body), message.msg_id) == (b"second", sent.msg_id)
    await admin.create_topic("others", queues=1)
    assert await admin.view_message("others", sent.offset_msg_id) is None
    assert await admin.view_message("orders", "0" * 32) is None
    assert await admin.view_message("orders", "no id") is None


def do_not_search(monkeypatch):
    """Let our brokers know as much of batches as Apache's."""

    async def nothing(*_, **__):
        return []

    monkeypatch.setattr("sprocketmq.broker.query.QueryHandlers._search", nothing)
    monkeypatch.setattr("sprocketmq.broker.query.BATCHES_SEARCHED", "nothing of the kind")


async def test_brokers_that_do_not_search_for_an_id_are_read_around_the_time_in_it(admin, producer, monkeypatch):
    """Apache's brokers know the ids of batches only."""
    await admin.create_topic("bulk", queues=2, attributes={"queue.type": "BatchCQ"})
    sent = [await producer.send_batch([Message("bulk", b"%d-%d" % (n, i)) for i in range(5)]) for n in range(6)]

    do_not_search(monkeypatch)
    for n, results in enumerate(sent):
        (message,) = await admin.query_by_unique_key("bulk", results[3].msg_id)
        assert (bytes(message.body), message.queue_offset) == (b"%d-3" % n, results[3].queue_offset)
    unknown = results[3].msg_id[:-4] + "FFFF"
    assert await admin.query_by_unique_key("bulk", unknown) == []
    monkeypatch.setattr("sprocketmq.client.message_lookup.MAX_SEARCHED_BYTES", 0)
    assert await admin.query_by_unique_key("bulk", results[3].msg_id) == []


async def test_brokers_that_do_not_search_for_keys_are_read_from_the_newest_back(mq, admin, monkeypatch):
    """Apache's asynchronous AutoBatch leaves the keys of its messages out of the batch, and so out of the index."""
    await admin.create_topic("bulk", queues=1, broker="broker-b", attributes={"queue.type": "BatchCQ"})
    do_not_search(monkeypatch)
    monkeypatch.setattr("sprocketmq.client.message_lookup.SEARCHED_AT_ONCE", 7)
    route = await admin.route("bulk")
    (address,) = [broker.broker_addrs[0] for broker in route.broker_datas]
    pool = ConnectionPool(expected="broker")
    conn = await pool.get(address)
    for n in range(9):
        entries = [(0, b"%d-%d" % (n, i), b"KEYS\x01all k%d\x02TAGS\x01t%d\x02" % (n, n % 2)) for i in range(1 + n % 4)]
        ext = {"a": "pg", "b": "bulk", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "m": "true"}
        ext["i"] = "UNIQ_KEY\x01B\x02" + ("KEYS\x01all\x02" if n == 4 else "")
        assert (await conn.request(320, ext=ext, body=encode_batch(entries))).code == 0
    await pool.close()
    everything = [b"%d-%d" % (n, i) for n in range(9) for i in range(1 + n % 4)]
    assert bodies(await admin.query_by_key("bulk", "all")) == everything
    assert bodies(await admin.query_by_key("bulk", "all", max_count=3)) == everything[-3:]
    assert bodies(await admin.query_by_key("bulk", "k6")) == [b"6-0", b"6-1", b"6-2"]
    assert bodies(await admin.query_by_tag("bulk", "t0")) == [body for body in everything if body[0] % 2 == 0]
    assert await admin.query_by_key("bulk", "k9") == []
    first, last = [message.store_timestamp_ms for message in await admin.query_by_key("bulk", "all")][:: len(everything) - 1]
    assert len(await admin.query_by_key("bulk", "all", begin_ms=first, end_ms=last)) == len(everything)
    assert await admin.query_by_key("bulk", "all", begin_ms=last + 1) == []
    assert await admin.query_by_key("bulk", "all", end_ms=first - 1) == []


async def test_what_does_not_exist_is_told(admin, mq, producer):
    sent = await producer.send(Message("orders", b"x"))
    with pytest.raises(TopicNotFound):
        await admin.query_by_key("missing", "k")
    with pytest.raises(ConfigError, match="max_count must be a whole number from 1"):
        await admin.query_by_key("orders", "k", max_count=0)
    with pytest.raises(ConfigError, match="offset message id"):
        await admin.messages_at("nonsense")
    assert await admin.messages_at(sent.offset_msg_id[:16] + f"{1 << 40:016X}") == []


# --- brokers that compare hashes only ---


def record(body, *, sys_flag=0, **properties):
    return stored(body, properties, sys_flag=sys_flag)


def test_other_keys_of_the_same_hash_are_left_out():
    data = record(b"1", KEYS="Aa x") + record(b"2", KEYS="BB") + record(b"3", UNIQ_KEY="BB") + record(b"4")
    assert bodies(with_key(data, "b", "BB", "K")) == [b"2", b"3"]
    assert bodies(with_key(data, "b", "BB", "U")) == [b"3"]
    assert bodies(with_key(data, "b", "Aa", "K")) == [b"1"]


def test_of_a_batch_the_messages_with_the_key_count_or_all_when_only_the_batch_has_it():
    inner = encode_batch([(0, b"1", encode_properties({"KEYS": "a"})), (0, b"2", encode_properties({"KEYS": "b"}))])
    data = record(inner, sys_flag=0xC0, UNIQ_KEY="BATCH", KEYS="a b c")
    assert bodies(with_key(data, "b", "b", "K")) == [b"2"]
    assert bodies(with_key(data, "b", "c", "K")) == [b"1", b"2"]
    assert bodies(with_key(data, "b", "BATCH", "U")) == [b"1", b"2"]
    assert bodies(with_key(data, "b", "d", "K")) == []
