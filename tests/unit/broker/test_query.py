"""Messages are found by key, unique key, tag and place, as the reference answers."""

import pytest

from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.store import MessageStore

LATEST = str(2**63 - 1)
NOT_FOUND = "can not find message, maybe time range not correct"


@pytest.fixture
async def ask(broker, connect):
    return await connect(broker)


def properties(**pairs):
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def query(ask, key, *, topic="orders", count=32, begin="0", end=LATEST, kind="K", **more):
    ext = {"topic": topic, "key": key, "maxNum": str(count), "beginTimestamp": begin, "endTimestamp": end, "indexType": kind}
    return ask(12, ext | {"_UNIQUE_KEY_QUERY": "false"} | more)


async def found(ask, key, **how):
    answer = await query(ask, key, **how)
    assert (answer.code, answer.remark) in [(0, None), (22, NOT_FOUND)]
    return [bytes(message.body) for message in decode_records(answer.body)] if answer.code == 0 else []


async def test_messages_are_found_by_each_of_their_keys(ask):
    await ask.send("orders", b"one", properties=properties(KEYS="a b", UNIQ_KEY="U1"))
    await ask.send("orders", b"two", properties=properties(KEYS="b", UNIQ_KEY="U2"), queue=1)
    await ask.send("orders", b"three", properties=properties(KEYS="ab", UNIQ_KEY="U3"))
    assert await found(ask, "a") == [b"one"]
    assert await found(ask, "b") == [b"one", b"two"]
    assert await found(ask, "ab") == [b"three"]
    assert await found(ask, "U2") == [b"two"]
    assert await found(ask, "a b") == []
    assert await found(ask, "b", topic="others") == []


async def test_a_unique_key_finds_its_message(ask):
    await ask.send("orders", b"one", properties=properties(UNIQ_KEY="U1"))
    answer = await query(ask, "U1", count=1, _UNIQUE_KEY_QUERY="true", kind="U")
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"one"]


async def test_a_message_without_an_id_of_its_own_is_found_by_the_one_it_got(ask):
    sent = await ask.send("orders", b"one")
    message = decode_records((await ask.pull("orders", 0)).body)[0]
    assert sent.code == 0
    assert await found(ask, message.properties["UNIQ_KEY"]) == [b"one"]


async def test_tags_are_looked_up_by_their_own_index_type(ask):
    for n in range(3):
        await ask.send("orders", b"%d" % n, properties=properties(TAGS="red" if n else "blue"))
    assert await found(ask, "red", kind="T") == [b"1", b"2"]
    assert await found(ask, "red") == []


async def test_keys_of_the_same_hash_are_told_apart(ask):
    await ask.send("orders", b"Aa", properties=properties(KEYS="Aa"))
    await ask.send("orders", b"BB", properties=properties(KEYS="BB"))
    assert await found(ask, "Aa") == [b"Aa"]
    assert await found(ask, "BB") == [b"BB"]


async def test_the_answer_is_the_newest_messages_in_the_order_they_were_stored(ask):
    for n in range(70):
        await ask.send("orders", b"%d" % n, properties=properties(KEYS="k"))
    assert await found(ask, "k", count=3) == [b"67", b"68", b"69"]
    assert len(await found(ask, "k", count=1000)) == 64
    assert await found(ask, "k", count=0) == []
    assert await found(ask, "k", count=-1) == []
    unique = await query(ask, "k", _UNIQUE_KEY_QUERY="true")
    assert len(decode_records(unique.body)) == 32


async def test_only_messages_of_the_time_range_are_found(ask, clock):
    times = []
    for n in range(4):
        times.append(clock.time_ms())
        await ask.send("orders", b"%d" % n, properties=properties(KEYS="k"))
        clock.advance(0.4)
    assert await found(ask, "k", begin=str(times[1]), end=str(times[2])) == [b"1", b"2"]
    assert await found(ask, "k", begin=str(times[3] + 1)) == []
    assert await found(ask, "k", end=str(times[0] - 1)) == []
    assert await found(ask, "k", begin=str(times[2]), end=str(times[1])) == []


async def test_headers_tell_how_far_the_index_goes(ask, clock):
    await ask.send("orders", b"x", properties=properties(KEYS="k"))
    now = clock.time_ms()
    clock.advance(5)
    last = await ask.send("orders", b"y", properties=properties(KEYS="j"))
    answer = await query(ask, "k")
    place = int(last.ext["msgId"][16:], 16)
    assert answer.ext == {"indexLastUpdateTimestamp": str(now + 5000), "indexLastUpdatePhyoffset": str(place)}
    answer = await query(ask, "none")
    assert (answer.code, answer.remark, answer.body) == (22, NOT_FOUND, b"")
    assert answer.ext == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


async def test_messages_of_a_batch_on_a_plain_topic_are_found_one_by_one(ask):
    await ask.send_batch("orders", [b"a", b"b"], each=properties(KEYS="inner").encode())
    assert await found(ask, "inner") == [b"a", b"b"]


async def test_a_batch_kept_whole_is_found_by_the_keys_of_the_batch_alone(broker, ask):
    create = {"topic": "bulk", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    create |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+queue.type=BatchCQ"}
    assert (await ask(17, create)).code == 0
    outer = properties(UNIQ_KEY="B1", KEYS="outer")
    assert (await ask.send_batch("bulk", [b"a", b"b"], properties=outer, each=properties(KEYS="inner").encode())).code == 0
    assert await found(ask, "inner", topic="bulk") == []
    for key in ("outer", "B1"):
        answer = await query(ask, key, topic="bulk")
        assert answer.code == 0
        (record,) = broker.store.query("bulk", key)
        assert answer.body == record
        body_length = int.from_bytes(record[84:88], "big")
        assert [bytes(entry.body) for entry in split_batch(bytes(record[88 : 88 + body_length]))] == [b"a", b"b"]


async def test_long_answers_leave_out_older_messages(ask, monkeypatch):
    monkeypatch.setattr("sprocketmq.broker.query.MAX_ANSWER_BYTES", 5000)
    for n in range(5):
        await ask.send("orders", b"%d" % n * 2000, properties=properties(KEYS="k"))
    assert [body[:1] for body in await found(ask, "k")] == [b"3", b"4"]
    await ask.send("orders", b"5" * 9000, properties=properties(KEYS="k"))
    assert [body[:1] for body in await found(ask, "k")] == [b"5"]


async def test_keys_are_found_again_after_a_restart(start_broker, connect):
    broker = await start_broker("kept")
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    await ask.send("orders", b"before", properties=properties(KEYS="k"))
    await ask.close()
    await broker.stop()
    again = await connect(await start_broker("kept"))
    await again.send("orders", b"after", properties=properties(KEYS="k"))
    assert await found(again, "k") == [b"before", b"after"]


async def test_a_store_without_an_index_finds_nothing(start_broker, connect):
    broker = await start_broker("bare", store={"message_index_enable": False})
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    await ask.send("orders", b"x", properties=properties(KEYS="k"))
    assert await found(ask, "k") == []


async def test_an_index_that_cannot_be_read_is_told(ask, monkeypatch):
    def broken(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(MessageStore, "query", broken)
    answer = await query(ask, "k")
    assert (answer.code, answer.remark) == (1, "the key index cannot be read: Input/output error")


async def test_a_message_is_found_by_its_place(ask):
    sent = await ask.send("orders", b"one")
    place = str(int(sent.ext["msgId"][16:], 16))
    answer = await ask(33, {"offset": place, "topic": "orders"})
    assert (answer.code, answer.ext) == (0, {})
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"one"]
    for wrong in ("1", "99999999", "-1"):
        answer = await ask(33, {"offset": wrong})
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {wrong}")


async def test_what_the_disk_does_not_have_yet_is_not_shown(start_broker, connect):
    broker = await start_broker("sync", store={"flush_disk_type": "SYNC_FLUSH"})
    store = broker.store
    store.stage_message("orders", 0, b"x", b"KEYS\x01k\x02", tags_code=0, born_timestamp_ms=1, born_host=bytes(8))
    store.commit()
    ask = await connect(broker)
    assert await found(ask, "k") == []
    assert (await ask(33, {"offset": "0"})).code == 1
    store.publish(store.flush())
    assert await found(ask, "k") == [b"x"]
    assert (await ask(33, {"offset": "0"})).code == 0
