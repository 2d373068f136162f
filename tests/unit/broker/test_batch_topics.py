"""Topics of batch queues (queue.type=BatchCQ): what is stored of a batch, what is refused, what readers get."""

import asyncio
import struct

import pytest
from asking import create_topic

from sprocketmq.client.admin import AdminClient
from sprocketmq.client.consume.pull import PullConsumer
from sprocketmq.client.consume.push import PushConsumer
from sprocketmq.client.send.producer import Producer
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.message import Message
from sprocketmq.protocol.records import Record, decode_records, walk_records
from sprocketmq.testing import eventually

TOPIC = "batches"
KEY = "UNIQ_KEY\x01id{}\x02"
TOO_LARGE = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)


def create(name=TOPIC, attributes="+queue.type=BatchCQ", queues=2):
    return create_topic(name, queues, attributes=attributes)


@pytest.fixture
async def ask(broker, connect):
    ask = await connect(broker)
    assert (await ask(17, create())).code == 0
    return ask


def keyed(ask, bodies, *, number=1, properties="", **options):
    return ask.send_batch(TOPIC, bodies, properties=KEY.format(number) + properties, **options)


def outer_records(body):
    return [Record(body, at, size) for at, size in walk_records(body)]


async def pulled(ask, offset=0, **options):
    """Return the range of offsets of each record a pull gives, and where to go on."""
    answer = await ask.pull(TOPIC, offset, **options)
    spans = []
    for record in outer_records(answer.body):
        count = int(record.properties.get("INNER_NUM", "1"))
        spans.append((record.queue_offset, record.queue_offset + count))
    return spans, int(answer.ext["nextBeginOffset"])


# --- the topic ----------------------------------------------------------------------------------------------------------


async def test_a_topic_of_batch_queues_is_created_kept_and_never_changed(ask, tmp_path):
    assert '"queue.type":"BatchCQ"' in (tmp_path / "store/config/topics.json").read_text()
    answer = await ask(17, create())
    assert (answer.code, answer.remark) == (1, "attempt to update an unchangeable attribute. key: queue.type")
    assert (await ask(17, create(attributes="+queue.type=SimpleCQ"))).code == 1
    assert (await ask(17, create(attributes="", queues=3))).code == 0
    assert ask.broker.topics.get(TOPIC).config.attributes == {"queue.type": "BatchCQ"}


async def test_a_topic_with_messages_in_plain_queues_becomes_none_of_batch_queues(ask):
    await ask.send("plain")
    ask.broker.topics._topics.pop("plain")  # its entry is lost, its messages are there
    answer = await ask(17, create("plain"))
    assert answer.code == 1
    assert "plain queues" in answer.remark
    assert "plain" not in ask.broker.topics


@pytest.mark.parametrize("ending", ["stop", "abort"])
async def test_a_restart_keeps_inner_batches_and_their_offsets(ask, start_broker, connect, ending):
    await keyed(ask, [b"a", b"b", b"c"])
    await ask.send(TOPIC, b"d")
    await ask.close()
    await getattr(ask.broker, ending)()
    again = await connect(await start_broker())
    assert again.broker.topics.get(TOPIC).batch_queues
    assert await again.bodies(TOPIC) == [b"a", b"b", b"c", b"d"]
    assert (await keyed(again, [b"e"], number=2)).ext["queueOffset"] == "4"


async def test_a_topic_without_its_entry_is_still_one_of_batch_queues(ask, start_broker, connect, tmp_path):
    await keyed(ask, [b"a", b"b"], queue=1)
    await ask.close()
    await ask.broker.abort()
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "store/config" / name).unlink(missing_ok=True)
    again = await connect(await start_broker())
    assert again.broker.topics.get(TOPIC).config.attributes == {"queue.type": "BatchCQ"}
    assert await again.bodies(TOPIC, queue=1) == [b"a", b"b"]


async def test_a_topic_whose_entry_lost_its_attribute_gets_it_back(ask, start_broker, connect, tmp_path):
    await keyed(ask, [b"a", b"b"])
    await ask.close()
    await ask.broker.stop()
    path = tmp_path / "store/config/topics.json"
    path.write_text(path.read_text().replace('"queue.type":"BatchCQ"', ""))
    again = await connect(await start_broker())
    assert again.broker.topics.get(TOPIC).config.attributes == {"queue.type": "BatchCQ"}
    assert (await keyed(again, [b"c"], number=2)).ext["batchUniqId"] == "id2"
    assert await again.bodies(TOPIC) == [b"a", b"b", b"c"]


async def test_an_entry_with_an_impossible_name_does_not_keep_a_broker_from_starting(ask, start_broker, connect, tmp_path):
    await ask.close()
    await ask.broker.stop()
    path = tmp_path / "store/config/topics.json"
    path.write_text(path.read_text().replace('"batches"', '"no/name"'))
    again = await connect(await start_broker())
    assert (await again.send("no/name")).code == 13
    assert (await again.send("orders")).code == 0


async def test_a_deleted_topic_may_come_back_as_one_of_plain_queues(ask, start_broker, connect):
    await keyed(ask, [b"a", b"b"])
    assert (await ask(215, {"topic": TOPIC})).code == 0
    assert (await ask(17, create(attributes=""))).code == 0
    assert (await keyed(ask, [b"c", b"d"])).ext["msgId"].count(",") == 1
    await ask.close()
    await ask.broker.abort()
    again = await connect(await start_broker())
    assert await again.bodies(TOPIC) == [b"c", b"d"]
    assert not again.broker.topics.get(TOPIC).batch_queues


# --- what is stored -----------------------------------------------------------------------------------------------------


async def test_a_batch_with_a_key_becomes_one_record(ask, broker):
    body = encode_batch([(1, b"a", b"TAGS\x01x\x02"), (2, b"bb", b""), (3, b"ccc", b"KEYS\x01k")])
    properties = KEY.format(1) + "WAIT\x01true\x02TAGS\x01x\x02KEYS\x01k1 k2"
    answer = await ask(320, ask.send_ext(TOPIC, batch=True, properties=properties, h="9", f="0"), body)
    assert (answer.code, answer.remark) == (0, None)
    assert answer.ext == {
        "queueId": "0",
        "batchUniqId": "id1",
        "transactionId": "id1",
        "msgId": answer.ext["msgId"],
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "queueOffset": "0",
    }
    (record,) = outer_records((await ask.pull(TOPIC, 0)).body)
    assert (bytes(record.stored_body), record.sys_flag, record.flag, record.queue_offset) == (body, 192, 9, 0)
    assert record.offset_msg_id == answer.ext["msgId"]
    assert record.properties == {
        "UNIQ_KEY": "id1",
        "WAIT": "true",
        "TAGS": "x",
        "KEYS": "k1 k2",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "INNER_NUM": "3",
        "INNER_BASE": "0",
    }
    messages = decode_records((await ask.pull(TOPIC, 0)).body)
    assert [(m.body, m.queue_offset, m.flag, m.tag) for m in messages] == [(b"a", 0, 1, "x"), (b"bb", 1, 2, None), (b"ccc", 2, 3, None)]
    assert broker.store.max_offset(TOPIC, 0) == 3
    assert (await ask(30, {"topic": TOPIC, "queueId": "0"})).ext["offset"] == "3"


async def test_a_batch_without_a_key_becomes_a_record_each(ask):
    await keyed(ask, [b"a", b"b"])
    answer = await ask.send_batch(TOPIC, [b"c", b"d"])
    assert (answer.ext["queueOffset"], answer.ext["msgId"].count(",")) == ("2", 1)
    assert not {"batchUniqId", "transactionId"} & answer.ext.keys()
    assert await pulled(ask) == ([(0, 2), (2, 3), (3, 4)], 4)
    assert [record.sys_flag for record in outer_records((await ask.pull(TOPIC, 0)).body)] == [192, 0, 0]


async def test_a_single_message_is_one_without_any_wrapping(ask):
    answer = await ask.send(TOPIC, b"one", properties="TAGS\x01t\x02")
    assert "batchUniqId" not in answer.ext
    (record,) = outer_records((await ask.pull(TOPIC, 0)).body)
    assert (record.body, record.sys_flag, record.tag) == (b"one", 0, "t")
    assert "INNER_NUM" not in record.properties


async def test_a_keyed_batch_on_a_plain_topic_stays_a_record_each(ask):
    answer = await ask.send_batch("orders", [b"a", b"b"], properties=KEY.format(1))
    assert answer.ext["msgId"].count(",") == 1
    assert "batchUniqId" not in answer.ext


async def test_batches_of_one_readiness_are_committed_once_and_get_neighbouring_offsets(ask, broker, monkeypatch):
    commits = []
    commit = broker.store.commit
    monkeypatch.setattr(broker.store, "commit", lambda: (commits.append(1), commit()))
    ext = [ask.send_ext(TOPIC, batch=True, properties=KEY.format(n)) for n in range(10)]
    answers = await asyncio.gather(*(ask.request(320, one, encode_batch([(0, b"%d" % n, b"")] * 3)) for n, one in enumerate(ext)))
    assert [int(answer.ext["queueOffset"]) for answer in answers] == list(range(0, 30, 3))
    assert len(commits) == 1


async def test_the_counters_count_messages(ask, broker):
    await keyed(ask, [b"a", b"b", b"c"])
    await ask.send(TOPIC, b"d")
    await ask.pull(TOPIC, 0)
    assert (broker.counters.put_messages, broker.counters.put_requests) == (4, 2)
    assert (broker.counters.get_messages, broker.counters.get_found) == (4, 1)
    assert (broker.counters.inner_batches.count, broker.counters.inner_batches.total, broker.counters.batches.count) == (1, 3, 0)


async def test_inner_batches_wait_for_the_disk_as_well(start_broker, connect):
    ask = await connect(await start_broker("sync", store={"flush_disk_type": "SYNC_FLUSH"}))
    await ask(17, create())
    answer = await keyed(ask, [b"a", b"b"])
    assert (answer.code, answer.ext["batchUniqId"]) == (0, "id1")
    assert ask.broker.flusher.count > 0
    assert await ask.bodies(TOPIC) == [b"a", b"b"]


# --- what is refused ----------------------------------------------------------------------------------------------------


def entry(size, body_length, properties_length=0, rest=b""):
    return struct.pack(">iiiii", size, 0, 0, 0, body_length) + rest + struct.pack(">h", properties_length)


BROKEN = {
    "size 0": entry(0, 0),
    "size -1": entry(-1, 0),
    "the smallest size there is": entry(-(2**31), 0),
    "the largest size there is": entry(2**31 - 1, 0),
    "size past the end": entry(23, 0),
    "size less than its overhead": entry(21, 0),
    "body length negative": entry(22, -1),
    "body length past its entry": entry(22, 2**31 - 1),
    "properties negative": entry(22, 0, -1),
    "properties past their entry": entry(22, 0, 32767),
    "shorter than an entry": b"x",
    "a good entry and a bit": entry(22, 0) + b"\0" * 21,
    "a good entry and a broken one": entry(22, 0) + entry(0, 0),
    "more messages than 16 bits count": entry(22, 0) * 32768,
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in BROKEN.items()])
async def test_a_broken_batch_is_illegal_and_nothing_of_it_is_stored(ask, broker, body):
    answer = await ask(320, ask.send_ext(TOPIC, batch=True, properties=KEY.format(1)), body)
    assert answer.code == 13
    assert answer.remark.startswith(f"{TOO_LARGE} ")
    assert answer.ext == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
    assert broker.store.max_offset(TOPIC, 0) == 0
    assert (await keyed(ask, [b"good"])).ext["queueOffset"] == "0"


async def test_the_largest_batch_there_is(ask):
    assert (await ask(320, ask.send_ext(TOPIC, batch=True, properties=KEY.format(1)), entry(22, 0) * 32767)).code == 0
    assert (await keyed(ask, [b"next"], number=2)).ext["queueOffset"] == "32767"
    assert await pulled(ask, 32766, count=1) == ([(0, 32767)], 32767)


@pytest.mark.parametrize("topic", [TOPIC, "orders"])
@pytest.mark.parametrize("claim", ["INNER_NUM\x012\x02", "INNER_BASE\x010\x02"])
async def test_what_only_a_broker_says_of_a_batch_is_illegal(ask, topic, claim):
    answer = await ask.send_batch(topic, [b"a", b"b"], properties=KEY.format(1) + claim)
    assert (answer.code, answer.remark) == (13, TOO_LARGE)
    assert (await ask.send_batch(topic, [b"a"], properties=KEY.format(1) + "MY_INNER_NUM\x012\x02")).code == 0


@pytest.mark.parametrize("fields", [{"f": "128"}, {"f": "64"}, {"f": "192"}, {"properties": "INNER_NUM\x013\x02"}])
async def test_a_single_message_that_claims_to_be_a_batch_is_illegal(ask, fields):
    answer = await ask.send(TOPIC, encode_batch([(0, b"a", b"")] * 3), **fields)
    assert (answer.code, answer.remark) == (13, TOO_LARGE)


async def test_batches_obey_the_rules_of_all_sends(ask):
    assert (await keyed(ask, [b"a"], properties="DELAY\x011\x02")).code == 13
    assert (await keyed(ask, [b"a"], queue=2)).code == 29
    assert (await keyed(ask, [bytes(4 << 20)])).code == 13
    answer = await ask(320, ask.send_ext(TOPIC, batch=True, properties=KEY.format(1)), b"")
    assert (answer.code, answer.remark) == (1, "the message body is empty")
    assert (await keyed(ask, [b"a"], properties="P\x01" + "x" * 32700 + "\x02")).code == 13
    assert (await keyed(ask, [b"a"])).ext["queueOffset"] == "0"


# --- what readers get ---------------------------------------------------------------------------------------------------


async def test_a_pull_returns_whole_batches_as_the_reference_does(ask):
    """The recorded answers of Apache's broker: batches [0,2) [2,7) [7,8) [8,25) [25,28) [28,68), (offset, count) -> range, next."""
    for number, count in enumerate((2, 5, 1, 17, 3, 40)):
        await keyed(ask, [b"x"] * count, number=number)
    expected = {
        (0, 1): (0, 2),
        (0, 3): (0, 2),
        (0, 7): (0, 7),
        (0, 32): (0, 28),
        (3, 32): (2, 28),
        (10, 1): (8, 25),
        (67, 32): (28, 68),
    }
    for (offset, count), (first, end) in expected.items():
        spans, following = await pulled(ask, offset, count=count)
        assert (spans[0][0], spans[-1][1], following) == (first, end, end), (offset, count)
    for offset, code in ((68, 19), (69, 21)):
        answer = await ask.pull(TOPIC, offset)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (code, "68")


async def test_a_held_pull_is_woken_by_a_batch_its_tag_lets_through(ask, broker):
    waiting = asyncio.ensure_future(ask.bodies(TOPIC, wait_ms=20_000, expression="x"))
    await eventually(lambda: broker.pulls.held_count)
    await keyed(ask, [b"untagged"], number=1)
    await keyed(ask, [b"other"], number=2, properties="TAGS\x01y\x02")
    assert broker.pulls.held_count == 1
    await keyed(ask, [b"a", b"b"], number=3, properties="TAGS\x01x\x02")
    assert await waiting == [b"a", b"b"]


async def test_offsets_by_time_are_those_of_whole_batches(ask, clock):
    times = []
    for number in range(3):
        times.append(clock.time_ms())
        await keyed(ask, [b"a", b"b"], number=number)
        clock.advance(10)

    async def at(time_ms):
        return (await ask(29, {"topic": TOPIC, "queueId": "0", "timestamp": str(time_ms)})).ext["offset"]

    assert [await at(time) for time in (0, times[1] - 1, times[1], times[2])] == ["0", "2", "2", "4"]
    assert await at(times[2] + 1_000_000) == "4"  # behind the newest: the last batch, as in the reference


async def test_consumers_deliver_inner_messages_from_the_asked_offset_on(start_broker, namesrv):
    await start_broker(namesrv=(namesrv.address,))
    async with AdminClient(namesrv=namesrv.address) as admin, Producer("pg", namesrv=namesrv.address) as producer:
        await admin.create_topic(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})
        await admin.create_topic(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})  # again is fine
        results = await producer.send_batch([Message(TOPIC, b"%d" % n, tag="even" if n % 2 == 0 else "odd") for n in range(6)])
        assert [result.queue_offset for result in results] == list(range(6))
        assert len({result.msg_id for result in results}) == 6
        single = await producer.send(Message(TOPIC, b"6"))
        assert single.queue_offset == 6
        async with PullConsumer("cg", namesrv=namesrv.address) as consumer:
            (queue,) = await consumer.queues(TOPIC)
            found = await consumer.pull(queue, 4)
            assert [(m.queue_offset, m.body) for m in found.messages] == [(4, b"4"), (5, b"5"), (6, b"6")]
            assert found.next_offset == 7
            assert [m.msg_id for m in found.messages[:2]] == [result.msg_id for result in results[4:]]
            await consumer.commit(queue, 2)
        async with PushConsumer("cg", {TOPIC: "*"}, namesrv=namesrv.address) as consumer:
            seen = []
            async for batch in consumer.batches():
                seen += [(m.queue_offset, m.body) for m in batch]
                if len(seen) >= 5:
                    break
            assert seen == [(n, b"%d" % n) for n in range(2, 7)]
