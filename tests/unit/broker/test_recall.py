"""Recalls of timed messages: what is taken back never comes, and everything else does."""

import base64
import errno
import random

import pytest

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.recall import RecallHandle, handle_of
from sprocketmq.testing import eventually


async def timed(ask, body, after_ms, **options):
    answer = await ask.send("orders", body, properties=f"TIMER_DELAY_MS\x01{after_ms}\x02", **options)
    assert answer.code == 0, answer.remark
    return answer.ext


def recall(ask, handle, topic="orders"):
    return ask(370, {"topic": topic, "recallHandle": handle, "producerGroup": "pg", "bname": "broker-a"})


def later(broker, clock, seconds):
    clock.advance(seconds)
    broker.delays.fire()


async def test_a_timed_message_has_a_handle_and_no_other_has(ask, broker, clock):
    ext = await timed(ask, b"x", 5_000)
    handle = RecallHandle.parse(ext["recallHandle"])
    assert handle == ("orders", "broker-a", clock.time_ms() + 5_001, ext["transactionId"])
    assert ext.keys() == {"queueId", "transactionId", "msgId", "TRACE_ON", "MSG_REGION", "queueOffset", "recallHandle"}
    assert "recallHandle" not in (await ask.send("orders", b"x")).ext
    assert "recallHandle" not in (await ask.send("orders", b"x", properties="DELAY\x013\x02")).ext


async def test_a_recalled_message_is_not_delivered(ask, broker, clock):
    kept = await timed(ask, b"kept", 5_000)
    recalled = await timed(ask, b"recalled", 5_000)
    answer = await recall(ask, recalled["recallHandle"])
    assert (answer.code, answer.ext) == (0, {"msgId": recalled["transactionId"], "MSG_REGION": "DefaultRegion"})
    later(broker, clock, 6)
    assert await ask.bodies("orders") == [b"kept"]
    assert broker.delays.timers.waiting == 0
    assert not broker.delays.timers.is_recalled("orders", recalled["transactionId"])
    assert kept["recallHandle"] != recalled["recallHandle"]


async def test_a_message_is_recalled_once_or_often(ask, broker, clock):
    recalled = await timed(ask, b"recalled", 5_000)
    for _ in range(3):
        assert (await recall(ask, recalled["recallHandle"])).code == 0
    later(broker, clock, 6)
    assert await ask.bodies("orders") == []
    assert broker.delays.timers.waiting == 0


async def test_recalls_outlive_a_kill(ask, broker, clock, start_broker, connect):
    handles = {b"%d" % n: (await timed(ask, b"%d" % n, 5_000 + n * 10))["recallHandle"] for n in range(10)}
    for body in (b"2", b"5"):
        assert (await recall(ask, handles[body])).code == 0
    await broker.files.topics.saved()
    await broker.abort()
    again = await start_broker(like=broker)
    ask = await connect(again)
    assert (await recall(ask, handles[b"7"])).code == 0
    later(again, clock, 10)
    assert await ask.bodies("orders") == [b"%d" % n for n in range(10) if n not in (2, 5, 7)]


@pytest.mark.parametrize("seed", range(5))
async def test_kills_bring_no_recalled_message_back_and_lose_no_other(start_broker, connect, clock, seed):
    rng = random.Random(seed)
    broker = await start_broker()
    broker.topics.create_internal("orders", 1)
    sent, taken = {}, set()
    for _ in range(6):
        ask = await connect(broker)
        for _ in range(rng.randrange(12)):
            body = b"%d" % len(sent)
            sent[body] = (await timed(ask, body, rng.randrange(20_000, 60_000)))["recallHandle"]
        for body in rng.sample(sorted(sent), min(len(sent), rng.randrange(4))):
            if (await recall(ask, sent[body])).code == 0:
                taken.add(body)
        later(broker, clock, rng.random() * 12)
        if rng.random() < 0.4:
            broker.files.save_offsets()
            broker.store.flush()
        await broker.abort()
        broker = await start_broker(like=broker)
    ask = await connect(broker)
    found, offset = [], 0
    clock.advance(120)
    for _ in range(10):
        broker.delays.fire()
    while bodies := await ask.bodies("orders", offset):
        found += bodies
        offset += len(bodies)
    assert sorted(found) == sorted(set(sent) - taken)


async def test_a_promoted_slave_knows_the_recalls(pair, connect):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    handles = [(await timed(at_master, b"%d" % n, 1_500))["recallHandle"] for n in range(3)]
    assert (await recall(at_master, handles[1])).code == 0
    await eventually(lambda: slave.store.commitlog_max_offset == master.store.commitlog_max_offset)
    refused = await recall(at_slave, handles[0])
    assert refused.code == 11
    assert (await at_slave(1008, {"masterAddress": slave.address, "masterEpoch": "1000"})).code == 0
    await eventually(lambda: slave.store.max_offset("orders", 0) == 2)
    assert await at_slave.bodies("orders") == [b"0", b"2"]


# --- bad handles ---


@pytest.mark.parametrize(
    ("handle", "words"),
    [
        ("x", "recall handle is invalid"),
        ("", "recall handle is invalid"),
        ("€", "recall handle is invalid"),
        ("A" * 65_536, "recall handle is invalid"),
        (base64.urlsafe_b64encode(b"v1 orders broker-a 1").decode(), "recall handle is invalid"),
        (base64.urlsafe_b64encode(b"v2 orders broker-a 9999999999999 u").decode(), "recall handle is invalid"),
        (base64.urlsafe_b64encode(b"v1 orders broker-a soon u").decode(), "recall handle is invalid"),
        (base64.urlsafe_b64encode(b"v1 orders broker-a " + b"9" * 40 + b" u").decode(), "recall handle is invalid"),
        (base64.urlsafe_b64encode(b"v1 orders broker-a \xff u").decode(), "recall handle is invalid"),
        (str(RecallHandle("bills", "broker-a", 1_700_000_005_000, "u")), "topic not match"),
        (str(RecallHandle("orders", "broker-b", 1_700_000_005_000, "u")), "broker service not available"),
        (str(RecallHandle("orders", "broker-a", 1_600_000_000_000, "u")), "timestamp invalid"),
        (str(RecallHandle("orders", "broker-a", 1_900_000_000_000, "u")), "timestamp invalid"),
    ],
)
async def test_handles_that_name_no_waiting_message_are_refused(ask, broker, handle, words):
    answer = await recall(ask, handle)
    assert (answer.code, words in answer.remark) == (604, True), answer.remark
    assert broker.delays.timers.waiting == 0


async def test_an_unknown_topic_is_refused(ask):
    answer = await recall(ask, str(RecallHandle("nosuch", "broker-a", 1_700_000_005_000, "u")), topic="nosuch")
    assert answer.code == 17


async def test_recalls_of_one_topic_touch_no_other(ask, broker, clock):
    broker.topics.create_internal("bills", 1)
    ext = await timed(ask, b"kept", 5_000)
    foreign = RecallHandle.parse(ext["recallHandle"])._replace(topic="bills")
    assert (await recall(ask, str(foreign), topic="bills")).code == 0
    later(broker, clock, 6)
    assert await ask.bodies("orders") == [b"kept"]


async def test_recalls_can_be_turned_off(start_broker, connect):
    broker = await start_broker(recall_message_enable=False)
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    answer = await recall(ask, (await timed(ask, b"x", 5_000))["recallHandle"])
    assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden: recall_message_enable is false")


async def test_a_disk_that_refuses_recalls_nothing(ask, broker, clock, monkeypatch):
    ext = await timed(ask, b"kept", 5_000)

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", full)
        assert (await recall(ask, ext["recallHandle"])).code == 14
    broker.store.discard()
    later(broker, clock, 6)
    assert await ask.bodies("orders") == [b"kept"]


async def test_a_marker_that_a_client_sends_itself_is_refused(ask):
    answer = await ask.send("orders", properties="TIMER_DEL_UNIQKEY\x01a\x02TIMER_DELAY_SEC\x0160\x02")
    assert (answer.code, "request 370" in answer.remark) == (13, True)


def test_a_handle_is_that_of_the_reference():
    text = "djEgRnhEZWxheSBicm9rZXItYSAxNzk1MjI5NTMzMDAxIEMwMDAwMjAyNUY5NTMwOTQ2RTA5Njc5QzhFRUMwMDFD"
    assert RecallHandle.parse(text) == ("FxDelay", "broker-a", 1795229533001, "C00002025F9530946E09679C8EEC001C")
    assert handle_of("FxDelay", "broker-a", 1795229533000, "C00002025F9530946E09679C8EEC001C") == text
    assert handle_of("t", "b", 1, "an id with blanks") == ""
    with pytest.raises(RemoteProtocolError, match="give it back as the send returned it"):
        RecallHandle.parse("?")
