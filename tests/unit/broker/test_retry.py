"""Messages given back (36), sends to retry topics, and dead letters."""

import asyncio
import threading

import pytest
from asking import exchange

from sprocketmq.broker import copies
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.protocol.records import decode_records
from sprocketmq.testing import eventually

RETRY, DEAD = "%RETRY%cg", "%DLQ%cg"
KEY = "UNIQ_KEY\x01ID{}\x02"
FIRST = KEY.format(0)


def later(broker, clock, seconds):
    clock.advance(seconds)
    done = -1
    while done != broker.delays.delivered:
        done = broker.delays.delivered
        broker.delays.fire()


async def messages(ask, topic, offset=0, **options):
    return decode_records((await ask.pull(topic, offset, **options)).body)


async def give_back(ask, place, *, group="cg", level=0, limit=16, **fields):
    ext = {"offset": str(place), "group": group, "delayLevel": str(level), "maxReconsumeTimes": str(limit), **fields}
    return await ask(36, {name: value for name, value in ext.items() if value != "None"})


async def sent(ask, body=b"body", *, properties=FIRST, **options):
    """Send a message and return its place in the log."""
    answer = await ask.send("orders", body, properties=properties, **options)
    assert answer.code == 0, answer.remark
    return int(answer.ext["msgId"][-16:], 16)


# --- giving back ---


async def test_a_message_given_back_comes_to_the_groups_retry_topic(broker, clock, ask):
    place = await sent(
        ask, b"text", properties=KEY.format(1) + "TAGS\x01red\x02KEYS\x01k\x02mine\x01yes\x02WAIT\x01true\x02", queue=2, f="0", h="7"
    )
    answer = await give_back(ask, place)
    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    later(broker, clock, 9.999)
    assert RETRY in broker.topics
    assert await messages(ask, RETRY) == []
    later(broker, clock, 0.001)
    (message,) = await messages(ask, RETRY)
    (original,) = await messages(ask, "orders", queue=2)
    assert (message.body, message.flag, message.reconsume_times, message.tag) == (b"text", 7, 1, "red")
    assert (message.born_timestamp_ms, message.born_host) == (original.born_timestamp_ms, original.born_host)
    assert message.properties == {
        **original.properties,
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": original.offset_msg_id,
        "DELAY": "3",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
        "WAIT": "false",
    }


async def test_each_time_the_message_waits_longer(broker, clock, ask):
    place = await sent(ask)
    for times, seconds in enumerate((10, 30, 60, 120)):
        assert (await give_back(ask, place)).code == 0
        later(broker, clock, seconds - 1)
        assert len(await messages(ask, RETRY)) == times
        later(broker, clock, 1)
        message = (await messages(ask, RETRY))[-1]
        assert message.reconsume_times == times + 1
        place = message.commitlog_offset
    assert message.properties["RETRY_TOPIC"] == "orders"


async def test_a_consumer_chooses_the_level(broker, clock, ask):
    await give_back(ask, await sent(ask), level=1)
    await give_back(ask, await sent(ask, properties=KEY.format(1)), level=99)
    later(broker, clock, 1)
    assert len(await messages(ask, RETRY)) == 1
    later(broker, clock, 7200)
    assert len(await messages(ask, RETRY)) == 2


async def test_retries_spread_over_the_groups_queues(broker, clock, ask):
    group = broker.groups.find("cg")
    broker.groups.put(type(group)("cg", retry_queue_nums=3))
    for number in range(40):
        await give_back(ask, await sent(ask, properties=KEY.format(number)), level=1)
    later(broker, clock, 1)
    counts = [len(await messages(ask, RETRY, queue=queue, count=100)) for queue in range(3)]
    assert sum(counts) == 40
    assert all(counts)


async def test_a_group_without_retry_queues_loses_what_it_gives_back_as_it_asked_to(broker, ask):
    group = broker.groups.find("cg")
    broker.groups.put(type(group)("cg", retry_queue_nums=0))
    assert (await give_back(ask, await sent(ask))).code == 0
    assert RETRY not in broker.topics


async def test_a_group_that_may_not_create_itself_gives_nothing_back(start_broker, connect):
    broker = await start_broker(auto_create_group=False)
    ask = await connect(broker)
    answer = await give_back(ask, 0)
    assert answer.code == 26
    assert "subscription group not exist, cg" in answer.remark


@pytest.mark.parametrize("place", [-1, 1, 17, 1 << 40])
async def test_a_place_without_a_message(ask, place):
    await sent(ask)
    answer = await give_back(ask, place)
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {place}")


async def test_a_retry_topic_that_takes_nothing(broker, ask):
    topic = broker.topics.create_internal(RETRY, 1, perm=4)
    answer = await give_back(ask, await sent(ask))
    assert (answer.code, answer.remark) == topic.refusal
    assert topic.refusal[0] == 16


async def test_a_stopping_broker_or_a_full_disk_takes_nothing_back(broker, ask):
    place = await sent(ask)
    broker.cleaning.writable = False
    assert (await give_back(ask, place)).code == 14
    broker.cleaning.writable = True
    assert (await give_back(ask, place)).code == 0


async def test_properties_over_the_limit_cannot_be_added_to(ask):
    place = await sent(ask, properties=FIRST + "a\x01" + "x" * 32_600 + "\x02")
    answer = await give_back(ask, place)
    assert answer.code == 1


async def test_giving_back_waits_for_the_disk_with_sync_flush(start_broker, connect, clock, monkeypatch):
    broker = await start_broker(store={"flush_disk_type": "SYNC_FLUSH"})
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    place = await sent(ask)
    waited = []
    wait = broker.flusher.wait
    monkeypatch.setattr(broker.flusher, "wait", lambda sends: waited.append(len(sends)) or wait(sends))
    assert (await give_back(ask, place)).code == 0
    assert waited == [1]
    later(broker, clock, 10)
    broker.store.publish(broker.store.flush_log())
    assert len(await messages(ask, RETRY)) == 1


# --- dead letters ---


async def test_a_message_that_fails_too_often_becomes_one_dead_letter(broker, clock, ask):
    place = await sent(ask, b"poison", properties=FIRST + "TAGS\x01red\x02")
    for _ in range(3):
        assert (await give_back(ask, place, level=1, limit=3)).code == 0
        later(broker, clock, 1)
        place = (await messages(ask, RETRY))[-1].commitlog_offset
    assert len(await messages(ask, RETRY)) == 3
    assert DEAD not in broker.topics
    assert (await give_back(ask, place, level=1, limit=3)).code == 0
    later(broker, clock, 10_000)
    assert len(await messages(ask, RETRY)) == 3
    (dead,) = await messages(ask, DEAD)
    (original,) = await messages(ask, "orders")
    assert (dead.body, dead.tag, dead.reconsume_times, dead.queue_id) == (b"poison", "red", 4, 0)
    assert dead.properties["RETRY_TOPIC"] == "orders"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == original.offset_msg_id
    assert dead.properties["DELAY"] == "0"
    config = broker.topics.get(DEAD).config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


async def test_the_groups_own_limit_holds_without_another(broker, ask):
    group = broker.groups.find("cg")
    broker.groups.put(type(group)("cg", retry_max_times=0))
    assert (await give_back(ask, await sent(ask), limit=None)).code == 0
    assert len(await messages(ask, DEAD)) == 1


async def test_below_level_zero_is_a_dead_letter_at_once(ask):
    await give_back(ask, await sent(ask), level=-1)
    assert len(await messages(ask, DEAD)) == 1


async def test_a_dead_letter_that_is_asked_for_again_is_there_once(broker, ask, start_broker, connect):
    place = await sent(ask)
    other = await sent(ask, properties=FIRST)  # the same message sent twice is two
    for _ in range(3):
        assert (await give_back(ask, place, level=-1)).code == 0
    await broker.abort()
    broker = await start_broker()
    ask = await connect(broker)
    assert (await give_back(ask, place, level=-1)).code == 0
    assert (await give_back(ask, other, level=-1)).code == 0
    assert (await give_back(ask, place, level=-1, group="cg2")).code == 0
    assert [m.copied_from for m in await messages(ask, DEAD)] == [place, other]
    assert len(await messages(ask, "%DLQ%cg2")) == 1


async def test_dead_letters_of_a_topic_that_was_deleted_can_come_anew(broker, ask):
    place = await sent(ask)
    await give_back(ask, place, level=-1)
    assert (await ask(215, {"topic": DEAD})).code == 0
    await give_back(ask, place, level=-1)
    assert [m.copied_from for m in await messages(ask, DEAD)] == [place]


async def test_a_message_given_back_twice_is_retried_once(broker, clock, ask, start_broker, connect):
    """The first answer was lost, or a broker was killed before it. What the group has been through may be given back again."""
    place = await sent(ask)
    for _ in range(2):
        assert (await give_back(ask, place, level=1)).code == 0
    await broker.abort()
    broker = await start_broker()
    ask = await connect(broker)
    assert (await give_back(ask, place, level=1)).code == 0
    assert (await give_back(ask, place, level=1, group="cg2")).code == 0
    later(broker, clock, 1)
    assert len(await messages(ask, RETRY)) == len(await messages(ask, "%RETRY%cg2")) == 1
    await give_back(ask, place, level=1)
    later(broker, clock, 1)
    assert len(await messages(ask, RETRY)) == 1
    broker.offsets.commit("cg", RETRY, 0, 1)
    await give_back(ask, place, level=1)
    later(broker, clock, 1)
    assert len(await messages(ask, RETRY)) == 2


@pytest.mark.parametrize("properties", [FIRST, "TAGS\x01a\x02"], ids=["unique key", "no unique key"])
@pytest.mark.parametrize("level", [1, -1], ids=["retry", "dead letter"])
async def test_no_index_is_needed_or_asked_to_find_what_was_given_back_before(start_broker, connect, clock, monkeypatch, properties, level):
    async def start():
        broker = await start_broker(store={"message_index_enable": False})
        broker.topics.create_internal("orders", 1)
        monkeypatch.setattr(broker.store, "query", lambda *_, **__: pytest.fail("the index was asked"))
        return broker, await connect(broker)

    broker, ask = await start()
    place = await sent(ask, properties=properties)
    other = await sent(ask, properties=properties)
    for _ in range(2):
        assert (await give_back(ask, place, level=level)).code == 0
    await broker.abort()
    broker, ask = await start()
    for each in (place, other, place):
        assert (await give_back(ask, each, level=level)).code == 0
    later(broker, clock, 1)
    await broker.abort()
    broker, ask = await start()
    for each in (place, other):
        assert (await give_back(ask, each, level=level)).code == 0
    later(broker, clock, 1)
    found = await messages(ask, RETRY if level > 0 else DEAD)
    assert sorted(m.born_timestamp_ms for m in found) == [1_700_000_000_000] * 2


async def test_a_message_given_back_twice_in_one_turn_is_stored_once(broker, ask):
    place = await sent(ask)
    ext = {"offset": str(place), "group": "cg", "delayLevel": "-1"}
    frames = b"".join(encode_command(Command(36, opaque=n, ext=ext)) for n in range(3))
    assert [answer.code for answer in await exchange(broker.address, frames, answers=3)] == [0, 0, 0]
    assert len(await messages(ask, DEAD)) == 1


async def test_the_answer_to_a_repeated_request_waits_for_the_disk_like_the_first(start_broker, connect, monkeypatch):
    broker = await start_broker(store={"flush_disk_type": "SYNC_FLUSH"})
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    place = await sent(ask)
    gate = threading.Event()
    flush = broker.store.flush_log

    def slow_flush():
        assert gate.wait(60)
        return flush()

    monkeypatch.setattr(broker.store, "flush_log", slow_flush)
    first = asyncio.ensure_future(give_back(ask, place, level=-1))
    await eventually(lambda: broker.acks.waiting == 1)
    second = asyncio.ensure_future(give_back(ask, place, level=-1))
    await eventually(lambda: broker.acks.waiting == 2)
    assert not first.done()
    assert not second.done()
    gate.set()
    assert [(await answer).code for answer in (first, second)] == [0, 0]
    assert (await give_back(ask, place, level=-1)).code == 0, "what is on the disk is answered at once"
    assert len(await messages(ask, DEAD)) == 1


async def test_past_its_bound_the_table_of_copies_forgets_the_oldest(broker, ask, start_broker, connect, monkeypatch):
    monkeypatch.setattr(copies, "MAX_COPIES", 2)
    places = [await sent(ask, properties=KEY.format(n)) for n in range(3)]
    for place in places:
        await give_back(ask, place, level=-1)
    await give_back(ask, places[2], level=-1)
    assert len(broker.copies) == 2
    assert [m.copied_from for m in await messages(ask, DEAD)] == places
    await give_back(ask, places[0], level=-1)
    assert [m.copied_from for m in await messages(ask, DEAD)] == [*places, places[0]]
    await broker.abort()
    broker = await start_broker()
    ask = await connect(broker)
    assert len(broker.copies) == 2
    for place in (places[2], places[0]):
        await give_back(ask, place, level=-1)
    assert len(await messages(ask, DEAD)) == 4


async def test_at_a_start_each_queue_has_a_share_of_the_table(broker, ask, start_broker, connect, clock, monkeypatch):
    places = [await sent(ask, properties=KEY.format(n)) for n in range(6)]
    for place in places[:5]:
        await give_back(ask, place, level=-1)
    await give_back(ask, places[5], level=1, group="cg2")
    await give_back(ask, places[5], level=2, group="cg3")
    later(broker, clock, 1)
    await broker.abort()
    monkeypatch.setattr(copies, "MAX_READ_AT_START", 4)
    broker = await start_broker()
    known = [broker.copies.copy_of(DEAD, place, f"ID{n}") is not None for n, place in enumerate(places)]
    assert known == [False] * 3 + [True] * 2 + [False]
    assert broker.copies.copy_of("%RETRY%cg2", places[5], "ID5") is not None
    assert broker.copies.copy_of("%RETRY%cg3", places[5], "ID5") is not None


async def test_a_copy_that_was_never_written_is_not_taken_for_one(broker, ask, monkeypatch):
    first, second = await sent(ask), await sent(ask, properties=KEY.format(1))
    await give_back(ask, await sent(ask, properties=KEY.format(2)), level=-1)

    def refuse():
        broker.store.discard()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", refuse)
        assert (await give_back(ask, first, level=-1)).code == 14
    broker.cleaning.writable = True
    assert (await give_back(ask, second, level=-1)).code == 0
    assert (await give_back(ask, first, level=-1)).code == 0
    assert [m.copied_from for m in (await messages(ask, DEAD))[1:]] == [second, first]


# --- inner batches ---


@pytest.fixture
async def lists(broker, ask):
    """Topic ``lists`` with batch queues and a batch of three; the place of its record."""
    broker.topics.create_internal("lists", 1, attributes={"queue.type": "BatchCQ"})
    broker.store.declare_batch_topic("lists")
    body = encode_batch([(n, b"body %d" % n, f"UNIQ_KEY\x01IN{n}\x02TAGS\x01red\x02KEYS\x01k{n}\x02".encode()) for n in range(3)])
    answer = await ask(320, ask.send_ext("lists", properties=KEY.format(9) + "TAGS\x01red\x02", batch=True), body)
    return int(answer.ext["msgId"][-16:], 16)


async def test_one_message_of_an_inner_batch_is_retried_alone(broker, clock, ask, lists):
    answer = await give_back(ask, lists, originMsgId="IN1")
    assert (answer.code, answer.remark) == (0, None)
    later(broker, clock, 10)
    (message,) = await messages(ask, RETRY)
    assert (message.body, message.flag, message.sys_flag, message.reconsume_times) == (b"body 1", 1, 0, 1)
    assert message.properties == {
        "UNIQ_KEY": "IN1",
        "TAGS": "red",
        "KEYS": "k1",
        "RETRY_TOPIC": "lists",
        "ORIGIN_MESSAGE_ID": "IN1",
        "DELAY": "3",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
        "WAIT": "false",
    }
    await give_back(ask, message.commitlog_offset, originMsgId="IN1")
    later(broker, clock, 30)
    assert [m.reconsume_times for m in await messages(ask, RETRY)] == [1, 2]


async def test_each_failed_member_of_a_batch_dies_alone(broker, clock, ask, lists):
    for name in ("IN0", "IN2", "IN0"):
        assert (await give_back(ask, lists, originMsgId=name, limit=0)).code == 0
    assert [m.body for m in await messages(ask, DEAD)] == [b"body 0", b"body 2"]
    assert len(await messages(ask, "lists")) == 3


@pytest.mark.parametrize("name", [None, "", "IN7", "ID9"])
async def test_a_member_that_is_not_named_is_left_to_the_client(ask, lists, name):
    answer = await give_back(ask, lists, **({} if name is None else {"originMsgId": name}))
    assert (answer.code, answer.remark) == (1, "MESSAGE_ILLEGAL")


# --- sends to retry topics ---


def fallback(times, limit=None, properties=""):
    """What a client sends when giving back failed."""
    fields = {"j": str(times)} | ({} if limit is None else {"l": str(limit)})
    return {
        **fields,
        "properties": KEY.format(5) + f"RETRY_TOPIC\x01orders\x02RECONSUME_TIME\x01{times}\x02DELAY\x01{3 + times}\x02" + properties,
    }


async def test_a_client_retries_by_a_send_of_its_own(broker, clock, ask):
    answer = await ask.send(RETRY, **fallback(1, 16))
    assert answer.code == 0, answer.remark
    later(broker, clock, 30)
    (message,) = await messages(ask, RETRY)
    assert message.reconsume_times == 1
    assert message.properties["REAL_TOPIC"] == RETRY


async def test_a_clients_own_send_becomes_a_dead_letter_past_the_limit(broker, clock, ask):
    for times in (16, 17):
        await ask.send(RETRY, **fallback(times, 16))
    await ask.send(RETRY, **fallback(1, 0))
    later(broker, clock, 7200)
    assert [m.reconsume_times for m in await messages(ask, RETRY)] == [16]
    dead = await messages(ask, DEAD)
    assert [m.reconsume_times for m in dead] == [17, 1]
    assert {m.properties["DELAY"] for m in dead} == {"-1"}


async def test_the_groups_limit_holds_for_sends_that_name_none(broker, ask):
    group = broker.groups.find("cg")
    broker.groups.put(type(group)("cg", retry_max_times=2))
    await ask.send(RETRY, **fallback(3))
    assert len(await messages(ask, DEAD)) == 1


async def test_a_send_to_the_retry_topic_of_no_group(start_broker, connect):
    broker = await start_broker(auto_create_group=False)
    broker.topics.create_internal(RETRY, 1)
    ask = await connect(broker)
    assert (await ask.send(RETRY, **fallback(1))).code == 26
    assert (await ask.send("%RETRY%other", **fallback(1))).code == 26


# --- a broker that dies in between ---


async def test_what_was_given_back_survives_the_broker(broker, clock, ask, start_broker, connect):
    for number in range(5):
        await give_back(ask, await sent(ask, b"%d" % number, properties=KEY.format(number)), level=1 + number % 2)
    await broker.files.topics.saved()  # the retry topic's entry, which a member's heartbeat makes again
    await broker.abort()
    broker = await start_broker()
    ask = await connect(broker)
    later(broker, clock, 5)
    assert sorted(m.body for m in await messages(ask, RETRY)) == [b"%d" % n for n in range(5)]


async def test_a_commit_that_fails_is_told_and_nothing_is_retried(broker, clock, ask, monkeypatch):
    place = await sent(ask)

    def refuse():
        broker.store.discard()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", refuse)
        assert (await give_back(ask, place, level=1)).code == 14
    broker.cleaning.writable = True
    assert (await give_back(ask, place, level=1)).code == 0
    later(broker, clock, 1)
    assert len(await messages(ask, RETRY)) == 1
