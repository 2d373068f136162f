"""Messages are found by key, unique key, tag and place, as the reference answers."""

import asyncio
import random
import threading

import pytest

import sprocketmq.broker.query as query_module
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ClientClosed, ConnectionLost
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.bodies import ConsumeQueueUnits
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.records import Record, decode_records, walk_records
from sprocketmq.storage.queues import cold_reads as finder
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing import eventually

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


async def test_a_query_of_a_store_with_old_messages_waits_for_the_disk_and_no_other_request_does(broker, ask, cold_disk, monkeypatch):
    for n in range(3):
        await ask.send("orders", b"%d" % n, properties=properties(KEYS="k"))
    load, reached, go_on = type(broker.store).load_for_query, threading.Event(), threading.Event()

    def slowly(*args, **options):
        reached.set()
        go_on.wait(30)
        load(*args, **options)

    monkeypatch.setattr(type(broker.store), "load_for_query", slowly)
    cold_disk.go.set()
    finding = asyncio.ensure_future(found(ask, "k"))
    await eventually(reached.is_set)
    assert (await ask.send("orders", b"3")).code == 0
    assert not finding.done()
    go_on.set()
    assert await finding == [b"0", b"1", b"2"]


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("cut"), IndexError("dropped")])
async def test_what_cannot_be_read_ahead_is_left_to_the_query(broker, ask, cold_disk, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(type(broker.store), "load_for_query", fails)
    await ask.send("orders", b"one", properties=properties(KEYS="k"))
    assert await found(ask, "k") == [b"one"]


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


# --- batches that are kept whole -----------------------------------------------------------------------------------------


@pytest.fixture
async def bulk(ask):
    """Send batches to topic ``bulk``, one queue of batches; each message is ``(body, its properties)``."""
    create = {"topic": "bulk", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    create |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+queue.type=BatchCQ"}
    assert (await ask(17, create)).code == 0

    async def send(*messages, flag=0, **outer):
        body = encode_batch([(flag, text, properties(**pairs).encode()) for text, pairs in messages])
        answer = await ask(320, ask.send_ext("bulk", properties=properties(**{"UNIQ_KEY": "BATCH", **outer}), batch=True), body)
        assert answer.code == 0
        return int(answer.ext["msgId"][16:], 16)

    return send


async def messages(ask, key, **how):
    answer = await query(ask, key, topic="bulk", **how)
    return list(single_records(answer.body)) if answer.code == 0 else []


def single_records(data):
    """Read records the way a reader that knows nothing of batches does."""
    for at, size in walk_records(data):
        message = Record(data, at, size)
        message.verify_crc()
        yield message


async def test_the_message_with_a_key_comes_out_of_its_batch_as_a_record_of_its_own(ask, bulk, clock):
    await bulk((b"before", {}))
    clock.advance(1)
    place = await bulk(
        (b"a", {"KEYS": "k1"}), (b"b", {"KEYS": "k2 k3", "TAGS": "t", "own": "x", "UNIQ_KEY": "U2"}), KEYS="k1 k2 k3", flag=7
    )
    (message,) = await messages(ask, "k3")
    assert bytes(message.body) == b"b"
    assert message.properties == {"KEYS": "k2 k3", "TAGS": "t", "own": "x", "UNIQ_KEY": "U2"}
    assert (message.queue_id, message.queue_offset, message.commitlog_offset, message.flag) == (0, 2, place, 7)
    assert (message.sys_flag, message.topic, message.store_timestamp_ms) == (0, "bulk", clock.time_ms())
    assert (message.born_timestamp_ms, message.store_host) == (1700000000000, ask.broker.address)
    assert [bytes(m.body) for m in await messages(ask, "k1")] == [b"a"]
    assert await messages(ask, "k4") == []


async def test_answers_count_messages_not_batches(ask, bulk):
    for n in range(3):
        await bulk(*((b"%d-%d" % (n, i), {"KEYS": "k"}) for i in range(40)), KEYS="k")
    assert [bytes(m.body) for m in await messages(ask, "k", count=3)] == [b"2-37", b"2-38", b"2-39"]
    newest = await messages(ask, "k", count=64)
    assert [m.queue_offset for m in newest] == list(range(56, 120))


async def test_single_messages_of_a_batch_topic_are_found_among_batches(ask, bulk):
    await bulk((b"in batch", {"KEYS": "k"}), KEYS="k")
    await ask.send("bulk", b"alone", properties=properties(KEYS="k"))
    assert [bytes(m.body) for m in await messages(ask, "k")] == [b"in batch", b"alone"]


async def test_a_tag_finds_its_messages_in_batches(ask, bulk):
    await bulk((b"a", {"TAGS": "red"}), (b"b", {"TAGS": "red"}), TAGS="red")
    assert [bytes(m.body) for m in await messages(ask, "red", kind="T")] == [b"a", b"b"]


async def test_keys_that_only_the_batch_has_give_all_its_messages(ask, bulk):
    await bulk((b"a", {}), (b"b", {}), KEYS="outer")
    assert [bytes(m.body) for m in await messages(ask, "outer")] == [b"a", b"b"]


async def test_keys_are_found_that_a_producer_gave_to_the_messages_alone(ask, bulk):
    await bulk((b"a", {"KEYS": "k1 all", "SOME_KEYS": "no"}), (b"b", {"KEYS": "k2 all"}), (b"c", {}), KEYS="")
    assert [bytes(m.body) for m in await messages(ask, "k2")] == [b"b"]
    assert [bytes(m.body) for m in await messages(ask, "all")] == [b"a", b"b"]
    assert await messages(ask, "no") == []


async def test_a_tag_is_found_that_only_messages_have(ask, bulk):
    await bulk((b"a", {"TAGS": "red"}), (b"b", {"TAGS": "blue"}))
    assert [bytes(m.body) for m in await messages(ask, "blue", kind="T")] == [b"b"]


async def test_a_search_for_keys_goes_back_from_the_newest(ask, bulk, clock, monkeypatch):
    monkeypatch.setattr("sprocketmq.broker.query.SEARCH_SLICE_MESSAGES", 7)
    stored = []
    for n in range(30):
        clock.advance(1)
        stored.append(clock.time_ms())
        await bulk(*((b"%d-%d" % (n, i), {"KEYS": "k" if i == 1 else "other"}) for i in range(1 + n % 5)))
    having = [n for n in range(30) if n % 5]
    assert [bytes(m.body) for m in await messages(ask, "k")] == [b"%d-1" % n for n in having]
    assert [bytes(m.body) for m in await messages(ask, "k", count=3)] == [b"%d-1" % n for n in having[-3:]]
    assert [bytes(m.body) for m in await messages(ask, "k", begin=str(stored[10]), end=str(stored[12]))] == [b"11-1", b"12-1"]
    monkeypatch.setattr("sprocketmq.broker.query.MAX_SEARCHED_BYTES", 3000)
    few = await messages(ask, "k")
    assert 0 < len(few) < 24
    assert bytes(few[-1].body) == b"29-1"


async def test_what_the_index_knows_and_what_it_does_not_are_one_answer(ask, bulk):
    """Some producers unite the keys of a batch, others do not, and both may send the same ones."""
    for n in range(9):
        body = ((b"%d-a" % n, {"KEYS": "k"}), (b"%d-b" % n, {}), (b"%d-c" % n, {"KEYS": "k other"}))
        if n % 3 == 2:
            await ask.send("bulk", b"%d" % n, properties=properties(KEYS="k"))
        else:
            await bulk(*body, **({"KEYS": "k other"} if n % 3 else {}))
    everything = [text for n in range(9) for text in ([b"%d" % n] if n % 3 == 2 else [b"%d-a" % n, b"%d-c" % n])]
    for count in (64, len(everything), 7, 6, 5, 4, 3, 2, 1):
        assert [bytes(m.body) for m in await messages(ask, "k", count=count)] == everything[-count:], count


async def test_the_newest_of_all_queues_are_found_however_messages_spread(ask, monkeypatch):
    monkeypatch.setattr("sprocketmq.broker.query.SEARCH_SLICE_MESSAGES", 4)
    ask.broker.topics.create_internal("spread", 3, attributes={"queue.type": "BatchCQ"})
    chance = random.Random(7)
    everything = []
    for n in range(60):
        bodies = [b"%d-%d" % (n, i) for i in range(chance.choice([1, 1, 2, 9]))]
        with_key = chance.random() < 0.4
        body = encode_batch([(0, text, b"KEYS\x01k\x02" if with_key else b"") for text in bodies])
        outer = properties(UNIQ_KEY="B", KEYS="k" if with_key and chance.random() < 0.5 else "")
        queue = chance.choice([0, 0, 0, 0, 1, 2])
        assert (await ask(320, ask.send_ext("spread", queue=queue, properties=outer, batch=True), body)).code == 0
        everything += bodies if with_key else []
    for count in (1, 2, 5, 13, 64):
        answer = await query(ask, "k", topic="spread", count=count)
        assert [bytes(m.body) for m in single_records(answer.body)] == everything[-count:], count


@pytest.mark.parametrize("how", [{"kind": "U"}, {"_UNIQUE_KEY_QUERY": "true"}])
async def test_the_id_of_a_batch_gives_its_messages_under_that_id(ask, bulk, how):
    """Apache's producers give every message of an automatic batch the id of the batch, and its tools compare ids."""
    await bulk((b"a", {"UNIQ_KEY": "U1", "KEYS": "k"}), (b"b", {"UNIQ_KEY": "U2"}), UNIQ_KEY="OUTER")
    found = await messages(ask, "OUTER", count=1, **how)
    assert [(bytes(m.body), m.msg_id, m.queue_offset) for m in found] == [(b"a", "OUTER", 0), (b"b", "OUTER", 1)]
    assert found[0].keys == ["k"]


async def test_a_place_gives_all_messages_of_its_batch(ask, bulk):
    place = await bulk((b"a", {"UNIQ_KEY": "U1"}), (b"b", {"UNIQ_KEY": "U2"}))
    answer = await ask(33, {"offset": str(place)})
    assert [(bytes(m.body), m.msg_id, m.queue_offset) for m in single_records(answer.body)] == [(b"a", "U1", 0), (b"b", "U2", 1)]


def ids(clock, count=1, *, at_s=0.0):
    """Return ids made so long from now."""
    made = ManualClock(clock.time_ms())
    made.advance(at_s)
    return MessageIdFactory("192.0.2.7", 4711, made).take(count)


@pytest.mark.parametrize("kind", ["K", "U"])
async def test_an_id_finds_its_message_by_the_time_it_was_made(ask, bulk, clock, kind):
    for _ in range(20):
        await bulk((b"x", {"UNIQ_KEY": ids(clock)[0]}))
        clock.advance(30)
    wanted, neighbour = ids(clock, 2)
    clock.advance(0.010)
    await bulk((b"it", {"UNIQ_KEY": wanted, "own": "x"}), (b"next", {"UNIQ_KEY": neighbour}))
    for _ in range(20):
        clock.advance(30)
        await bulk((b"x", {"UNIQ_KEY": ids(clock)[0]}))
    (message,) = await messages(ask, wanted, kind=kind, _UNIQUE_KEY_QUERY=str(kind == "U").lower())
    assert (bytes(message.body), message.msg_id, message.queue_offset, message.properties["own"]) == (b"it", wanted, 20, "x")
    (message,) = await messages(ask, neighbour, kind=kind)
    assert (bytes(message.body), message.queue_offset) == (b"next", 21)


@pytest.mark.parametrize("seconds", [-25 * 3600, -8 * 3600, -59, -0.5, -0.1, 59, 3600, 5.5 * 3600, 14 * 3600])
async def test_ids_of_clocks_that_differ_and_of_other_time_zones_find_their_messages_too(ask, bulk, clock, seconds):
    clock.advance(10 * 86400)  # the middle of a month
    wanted = ids(clock, at_s=seconds)[0]
    await bulk((b"it", {"UNIQ_KEY": wanted}))
    clock.advance(30 * 3600)  # an id of the future would count as last month's
    assert [bytes(m.body) for m in await messages(ask, wanted)] == [b"it"]


async def test_an_id_that_nobody_sent_is_not_found(ask, bulk, clock):
    await bulk((b"x", {"UNIQ_KEY": ids(clock)[0]}))
    clock.advance(60)
    assert await messages(ask, ids(clock, at_s=-60)[0]) == []
    assert await messages(ask, "F" * 32) == []
    assert await messages(ask, "F" * 31) == []


async def test_an_id_in_a_body_or_another_property_is_no_match(ask, bulk, clock):
    wanted = ids(clock)[0]
    await bulk((wanted.encode(), {"own": wanted, "UNIQ_KEY": wanted[:-1] + "G"}))
    clock.advance(1)
    assert await messages(ask, wanted) == []


async def test_an_id_is_searched_within_the_asked_times(ask, bulk, clock):
    wanted = ids(clock)[0]
    await bulk((b"it", {"UNIQ_KEY": wanted}))
    stored = clock.time_ms()
    clock.advance(1)
    assert len(await messages(ask, wanted, begin=str(stored), end=str(stored))) == 1
    assert await messages(ask, wanted, begin=str(stored + 1)) == []
    assert await messages(ask, wanted, end=str(stored - 1)) == []


async def test_a_search_is_bounded(ask, bulk, clock, monkeypatch):
    monkeypatch.setattr("sprocketmq.broker.query.MAX_SEARCHED_BYTES", 3000)
    monkeypatch.setattr("sprocketmq.broker.query.SEARCH_SLICE_BYTES", 1000)
    wanted = ids(clock)[0]
    for _ in range(10):
        await bulk((b"x" * 900, {}))
    await bulk((b"it", {"UNIQ_KEY": wanted}))
    clock.advance(1)
    assert await messages(ask, wanted) == []


@pytest.mark.parametrize("wanted", ["a key", "an id"])
async def test_a_search_waits_for_the_disk_and_no_other_request_does(ask, bulk, clock, cold_disk, monkeypatch, wanted):
    monkeypatch.setattr(MessageStore, "load_for_query", lambda *_, **__: None)
    id_ = ids(clock)[0]
    await bulk((b"it", {"UNIQ_KEY": id_, "KEYS": "k"}), (b"other", {}))
    clock.advance(10)
    await bulk((b"later", {}))
    finding = asyncio.ensure_future(messages(ask, "k" if wanted == "a key" else id_))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("orders", b"x")).code == 0
    assert not finding.done()
    cold_disk.go.set()
    assert [bytes(m.body) for m in await finding] == [b"it"]


@pytest.mark.parametrize("wanted", ["a key", "an id"])
async def test_a_disk_that_loses_everything_again_delays_a_search_only_so_often(ask, bulk, clock, cold_disk, monkeypatch, wanted):
    reads = []
    monkeypatch.setattr(finder, "resident", lambda *_: False)
    monkeypatch.setattr(finder, "read_through", lambda *_: reads.append(1))
    monkeypatch.setattr(query_module, "MAX_LOADS", 3)
    id_ = ids(clock)[0]
    await bulk((b"it", {"UNIQ_KEY": id_, "KEYS": "k"}), (b"other", {}))
    clock.advance(10)
    assert [bytes(m.body) for m in await messages(ask, "k" if wanted == "a key" else id_)] == [b"it"]
    assert reads


async def test_searches_take_turns_and_too_many_are_told_to_slow_down(ask, bulk, monkeypatch):
    monkeypatch.setattr("sprocketmq.broker.query.MAX_SEARCHES", 3)
    await bulk(*((b"x", {"KEYS": "k"}) for _ in range(5)))
    asked = [query(ask, key, topic="bulk") for key in ("k", "none", "none", "k", "k")]
    codes = [answer.code for answer in await asyncio.gather(*asked)]
    assert codes == [0, 22, 22, 2, 2]
    assert (await query(ask, "k", topic="bulk")).code == 0


@pytest.fixture
def taken_apart(monkeypatch):
    """Keys of the index are looked for in each batch that it names: the places of the batches that were taken apart for that."""
    places = []

    def members(record, keep, **how):
        places.append(Record(record, 0, len(record)).commitlog_offset)
        return split(record, keep, **how)

    split = query_module.unpacked
    monkeypatch.setattr(query_module, "unpacked", members)
    return places


async def test_questions_that_are_told_to_slow_down_cost_no_work(ask, bulk, taken_apart, monkeypatch):
    monkeypatch.setattr(query_module, "MAX_SEARCHES", 2)
    for _ in range(3):
        await bulk((b"x", {"KEYS": "k"}), KEYS="k")
    codes = [answer.code for answer in await asyncio.gather(*(query(ask, "k", topic="bulk") for _ in range(6)))]
    assert codes == [0, 0, 2, 2, 2, 2]
    assert len(taken_apart) == 2 * 3


async def test_questions_are_dropped_when_who_asked_is_gone(broker, connect, ask, bulk, taken_apart):
    for _ in range(5):
        await bulk((b"x", {"KEYS": "k"}), KEYS="k")
    other = await connect(broker)
    asked = [asyncio.ensure_future(query(other, "k", topic="bulk")) for _ in range(50)]
    await asyncio.sleep(0)
    await other.close()
    assert all(isinstance(end, ConnectionLost | ClientClosed) for end in await asyncio.gather(*asked, return_exceptions=True))
    assert len(await messages(ask, "k")) == 5
    assert len(taken_apart) < 50 * 5


async def test_no_more_batches_are_taken_apart_than_fill_an_answer(ask, bulk, taken_apart, monkeypatch):
    monkeypatch.setattr(query_module, "MAX_ANSWER_BYTES", 3000)
    for n in range(10):
        await bulk((b"%d" % n * 1000, {"KEYS": "k"}), KEYS="k")
    assert [bytes(m.body)[:1] for m in await messages(ask, "k")] == [b"8", b"9"]
    assert len(taken_apart) == 3


async def test_a_search_for_keys_looks_at_few_bytes_in_a_turn(ask, bulk, monkeypatch):
    monkeypatch.setattr(query_module, "SEARCH_SLICE_BYTES", 2000)
    for n in range(10):
        await bulk((b"%d" % n * 900, {"KEYS": "k"}), (b"x", {}))
    slices = []
    units = ask.broker.store.units
    monkeypatch.setattr(ask.broker.store, "units", lambda *which: slices.append(which) or units(*which))
    assert [bytes(m.body)[:1] for m in await messages(ask, "k")] == [b"%d" % n for n in range(10)]
    assert [count for _, _, _, count in slices] == [20, 16, 12, 8, 4]


async def test_tools_read_from_the_asked_offset_on_and_consumers_get_batches_whole(ask, bulk):
    await bulk(*((b"%d" % n, {}) for n in range(5)))
    await bulk((b"5", {}))
    answer = await ask.pull("bulk", 3, group="TOOLS_CONSUMER", count=1)
    assert [(bytes(m.body), m.queue_offset) for m in single_records(answer.body)] == [(b"3", 3)]
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == (0, "4", "6")
    answer = await ask.pull("bulk", 3, group="TOOLS_CONSUMER")
    assert [m.queue_offset for m in single_records(answer.body)] == [3, 4]
    assert answer.ext["nextBeginOffset"] == "5"
    for offset in (0, 5, 6):
        as_tool, as_consumer = await ask.pull("bulk", offset, group="TOOLS_CONSUMER"), await ask.pull("bulk", offset)
        assert (as_tool.code, as_tool.ext, as_tool.body) == (as_consumer.code, as_consumer.ext, as_consumer.body)
    whole = await ask.pull("bulk", 3, count=1)
    assert [m.queue_offset for m in decode_records(whole.body)] == [0, 1, 2, 3, 4]


async def test_what_a_queue_points_at(ask, bulk):
    async def units(topic, index, count=10, **more):
        return await ask(321, {"topic": topic, "queueId": "0", "index": str(index), "count": str(count), **more})

    first = await ask.send("orders", b"one", properties=properties(TAGS="TagA"))
    await ask.send("orders", b"two")
    body = ConsumeQueueUnits.decode((await units("orders", 0)).body)
    place = int(first.ext["msgId"][16:], 16)
    assert (body.min_queue_index, body.max_queue_index) == (0, 2)
    assert (body.queue_data[0].physic_offset, body.queue_data[0].tags_code, body.queue_data[0].eval) == (place, 2598919, False)
    assert len(ConsumeQueueUnits.decode((await units("orders", 0, count=1)).body).queue_data) == 1
    offline = ConsumeQueueUnits.decode((await units("orders", 0, consumerGroup="cg")).body)
    assert (offline.filter_data, offline.subscription_data) == ("cg@orders is not online!", None)
    await ask.heartbeat(consumers=["cg"], expression="TagA")
    online = ConsumeQueueUnits.decode((await units("orders", 0, consumerGroup="cg")).body)
    assert (online.filter_data, online.subscription_data.tags_set) == ("null", ["TagA"])

    places = [await bulk((b"a", {}), (b"b", {})), await bulk((b"c", {}))]
    for index, expected in ((0, places), (1, places), (2, places[1:])):
        assert [u.physic_offset for u in ConsumeQueueUnits.decode((await units("bulk", index)).body).queue_data] == expected
    answer = await units("bulk", 3)
    assert (answer.code, answer.remark, answer.body) == (0, "Index 3 of 0@bulk is not exist!", b"")
    answer = await units("nosuch", 0)
    assert (answer.code, answer.remark) == (1, "0@nosuch is not exist!")


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
