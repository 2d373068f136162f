"""POP consumers: what is given, what comes again, what is acknowledged, and what a kill leaves."""

import base64
import errno
import json
import random
from pathlib import Path

import pytest
from asking import create_topic, exchange
from popping import INVISIBLE_S, Popper, pop_ext

from sprocketmq.broker.inner_batches import InnerBatch
from sprocketmq.broker.pop import journal as journal_module
from sprocketmq.broker.pop import popping as popping_module
from sprocketmq.broker.pop import records as records_module
from sprocketmq.broker.pop import state as state_module
from sprocketmq.broker.pop.journal import frame, frames
from sprocketmq.broker.pop.popping import Popping
from sprocketmq.broker.pop.records import Batches
from sprocketmq.broker.pop.state import PopQueue
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.codes import SerializeType
from sprocketmq.protocol.command import encode_head
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage import fs
from sprocketmq.testing import eventually


@pytest.fixture
def popper(ask):
    return Popper(ask)


def bodies(found):
    return [bytes(message.body) for message, _ in found]


def committed(broker, group="g", topic="orders", queue=0):
    return broker.offsets.get(group, topic, queue)


async def sent(ask, count, **options):
    for n in range(count):
        await ask.send("orders", b"m%d" % n, **options)


async def test_a_message_is_given_once_and_again_when_its_time_is_over(ask, popper, clock):
    await sent(ask, 3)
    first = await popper.pop()
    assert bodies(first) == [b"m0", b"m1", b"m2"]
    assert await popper.pop() == []
    assert await popper.ack(first[1][1]) == 0
    clock.advance(INVISIBLE_S - 1)
    assert await popper.pop() == []
    clock.advance(1)
    again = await popper.pop()
    assert bodies(again) == [b"m0", b"m2"]
    message = again[0][0]
    assert (message.reconsume_times, message.properties["1ST_POP_TIME"]) == (1, first[0][1].split(" ")[1])
    for _, handle in again:
        assert await popper.ack(handle) == 0
    clock.advance(INVISIBLE_S)
    assert await popper.pop() == []
    assert committed(ask.broker) == 3


async def test_the_committed_offset_never_passes_what_is_not_acknowledged(ask, popper):
    await sent(ask, 4)
    found = await popper.pop()
    assert committed(ask.broker) == 0
    for n, floor in ((2, 0), (0, 1), (1, 3), (3, 4)):
        await popper.ack(found[n][1])
        assert committed(ask.broker) == floor


async def test_a_receipt_is_void_when_the_message_was_given_again(ask, popper, clock):
    await sent(ask, 1)
    ((_, old),) = await popper.pop()
    clock.advance(INVISIBLE_S)
    ((_, new),) = await popper.pop()
    assert await popper.ack(old) == 0  # late acknowledgements are no error
    assert committed(ask.broker) == 0
    assert (await popper.change(old, 10)).code == 208
    assert await popper.ack(new) == 0
    assert committed(ask.broker) == 1
    assert await popper.ack(new) == 0
    assert (await popper.change(new, 10)).code == 208


async def test_a_changed_invisible_time(ask, popper, clock):
    await sent(ask, 1)
    ((_, handle),) = await popper.pop()
    clock.advance(1)
    answer = await popper.change(handle, 5)
    assert (answer.code, answer.ext["invisibleTime"], answer.ext["reviveQid"]) == (0, "5000", "0")
    assert int(answer.ext["popTime"]) > int(handle.split(" ")[1])
    assert await popper.ack(handle) == 0
    assert committed(ask.broker) == 0  # that was the old receipt
    clock.advance(4.9)
    assert await popper.pop() == []
    clock.advance(0.1)
    assert len(await popper.pop()) == 1


async def test_all_queues_of_a_topic(ask, popper):
    for queue in range(4):
        await sent(ask, 3, queue=queue)
    found = await popper.pop(queue=-1, count=10)
    assert len(found) == 10
    rest = await popper.pop(queue=-1, count=10)
    assert len(rest) == 2
    assert len({(message.queue_id, message.queue_offset) for message, _ in found + rest}) == 12
    for _, handle in found + rest:
        assert await popper.ack(handle) == 0
    assert [committed(ask.broker, queue=queue) for queue in range(4)] == [3, 3, 3, 3]


async def test_messages_of_a_batch_are_given_and_acknowledged_alone(ask, popper, clock):
    await ask(17, {**create_topic("batched", queues=1), "attributes": "+queue.type=BatchCQ"})
    await ask.send_batch("batched", [b"a", b"b", b"c", b"d"], properties=encode_properties({"UNIQ_KEY": "u"}).decode())
    first = await popper.pop("batched", count=3)
    assert bodies(first) == [b"a", b"b", b"c"]
    assert await popper.ack(first[1][1], topic="batched") == 0
    assert bodies(await popper.pop("batched")) == [b"d"]
    clock.advance(INVISIBLE_S)
    again = await popper.pop("batched")
    assert bodies(again) == [b"a", b"c", b"d"]
    assert [message.reconsume_times for message, _ in again] == [1, 1, 1]
    for _, handle in again:
        await popper.ack(handle, topic="batched")
    assert committed(ask.broker, topic="batched") == 4


async def test_one_message_of_a_batch_that_was_popped_dies_alone(ask, popper, clock):
    await ask(17, {**create_topic("batched", queues=1), "attributes": "+queue.type=BatchCQ"})
    batch = encode_batch([(0, b"m%d" % n, f"UNIQ_KEY\x01IN{n}\x02".encode()) for n in range(4)])
    outer = encode_properties({"UNIQ_KEY": "outer"}).decode()
    assert (await ask(320, ask.send_ext("batched", properties=outer, batch=True), batch)).code == 0
    found = await popper.pop("batched")
    dead, handle = found[2]
    give_back = {
        "offset": str(dead.commitlog_offset),
        "group": "g",
        "delayLevel": "-1",
        "originMsgId": dead.msg_id,
        "maxReconsumeTimes": "0",
    }
    assert (await ask(36, give_back)).code == 0
    assert await popper.ack(handle, topic="batched") == 0
    letters = decode_records((await ask.pull("%DLQ%g", 0)).body)
    assert [(letter.body, letter.msg_id, letter.is_inner) for letter in letters] == [(b"m2", "IN2", False)]
    assert committed(ask.broker, topic="batched") == 0
    clock.advance(INVISIBLE_S)
    again = await popper.pop("batched")
    assert bodies(again) == [b"m0", b"m1", b"m3"]
    for _, each in again:
        assert await popper.ack(each, topic="batched") == 0
    assert committed(ask.broker, topic="batched") == 4


async def test_a_topic_of_priorities_is_popped_from_the_highest_down(ask, popper):
    await ask(17, {**create_topic("urgent", queues=4), "attributes": "+message.type=PRIORITY"})
    for n, priority in enumerate((0, 3, 1, 2, 0, 3)):
        answer = await ask.send(
            "urgent", b"%d of %d" % (n, priority), properties=encode_properties({"_SYS_MSG_PRIORITY_": str(priority)}).decode()
        )
        assert (answer.code, answer.ext["queueId"]) == (0, str(priority))
    assert bodies(await popper.pop("urgent", queue=-1, count=3)) == [b"1 of 3", b"5 of 3", b"3 of 2"]
    await ask.send("urgent", b"late", properties=encode_properties({"_SYS_MSG_PRIORITY_": "9"}).decode())
    assert bodies(await popper.pop("urgent", queue=-1)) == [b"late", b"2 of 1", b"0 of 0", b"4 of 0"]


async def urgent(ask, *priorities):
    for priority in priorities:
        await ask.send("urgent", b"%d" % priority, properties=encode_properties({"_SYS_MSG_PRIORITY_": str(priority)}).decode())


async def test_of_priorities_what_comes_again_comes_last(ask, popper, clock):
    """As Apache's broker has it by default, where it is in another topic."""
    await ask(17, {**create_topic("urgent", queues=4), "attributes": "+message.type=PRIORITY"})
    await urgent(ask, 3, 3, 2)
    assert bodies(await popper.pop("urgent", queue=-1)) == [b"3", b"3", b"2"]
    await urgent(ask, 0, 3)
    clock.advance(INVISIBLE_S)
    found = await popper.pop("urgent", queue=-1)
    assert [(bytes(message.body), message.reconsume_times) for message, _ in found] == [
        (b"3", 0),
        (b"0", 0),
        (b"3", 1),
        (b"3", 1),
        (b"2", 1),
    ]
    for _, handle in found:
        assert await popper.ack(handle, topic="urgent") == 0
    assert [committed(ask.broker, topic="urgent", queue=queue) for queue in range(4)] == [1, 0, 1, 3]
    clock.advance(INVISIBLE_S)
    assert await popper.pop("urgent", queue=-1) == []


async def test_a_group_for_which_priorities_count_less(ask, popper, monkeypatch):
    await ask(17, {**create_topic("urgent", queues=2), "attributes": "+message.type=PRIORITY"})
    await ask(200, {}, SubscriptionGroupConfig("g", attributes={"+priority.factor": "30"}).encode())
    await urgent(ask, 0, 0, 1, 1)
    drawn = [29, 30, 0, 99, 1]  # of a hundred; where the factor does not count, of the two queues as well
    monkeypatch.setattr(popping_module.random, "randrange", lambda _: drawn.pop(0))
    found = [bodies(await popper.pop("urgent", queue=-1, count=1)) for _ in range(3)]
    assert (found, drawn) == ([[b"1"], [b"0"], [b"1"]], [])


async def test_tags(ask, popper):
    for n in range(6):
        await ask.send("orders", b"m%d" % n, properties=encode_properties({"TAGS": "ab"[n % 2]}).decode())
    found = await popper.pop(exp="a || c")
    assert bodies(found) == [b"m0", b"m2", b"m4"]
    for _, handle in found:
        await popper.ack(handle)
    assert await popper.pop(exp="a || c") == []
    assert committed(ask.broker) == 6


async def test_where_a_new_group_begins(ask, popper):
    await sent(ask, 3)
    assert len(await popper.pop(mode=0, group="first")) == 3
    assert len(await popper.pop(mode=1, group="latest")) == 3  # the first message is still young
    ask.broker.offsets.commit("moved", "orders", 0, 2)
    assert bodies(await popper.pop(group="moved")) == [b"m2"]


# --- waiting ---


async def waiting(broker, count=1):
    await eventually(lambda: broker.pops.waiting_count == count)


async def test_a_pop_waits_for_a_message(ask, popper, connect):
    other = await connect(ask.broker)
    asked = other.request(200050, pop_ext(ask.broker, wait_ms=20_000))
    await waiting(ask.broker)
    await sent(ask, 1)
    assert bodies(popper.read(await asked)) == [b"m0"]
    assert ask.broker.pops.waiting_count == 0


async def test_a_pop_waits_for_a_message_that_becomes_visible_again(ask, popper, connect, clock):
    await sent(ask, 1)
    await popper.pop()
    other = await connect(ask.broker)
    asked = other.request(200050, pop_ext(ask.broker, wait_ms=60_000))
    await waiting(ask.broker)
    clock.advance(INVISIBLE_S)
    assert bodies(popper.read(await asked)) == [b"m0"]


async def test_a_pop_that_finds_nothing_in_its_time(ask, popper, connect, clock):
    other = await connect(ask.broker)
    asked = other.request(200050, pop_ext(ask.broker, wait_ms=5_000))
    await waiting(ask.broker)
    clock.advance(5)
    assert popper.read(await asked) == []


async def test_one_message_wakes_one_pop_of_each_group(ask, popper, connect):
    asked = []
    for group in "ggh":
        asked.append((await connect(ask.broker)).request(200050, pop_ext(ask.broker, wait_ms=20_000, group=group)))
        await waiting(ask.broker, len(asked))
    await sent(ask, 1)
    await waiting(ask.broker, 1)
    done = [popper.read(await answer) for answer in (asked[0], asked[2])]
    assert [bodies(found) for found in done] == [[b"m0"], [b"m0"]]
    await sent(ask, 1)
    assert len(popper.read(await asked[1])) == 1


async def test_the_pops_of_a_connection_end_with_it(ask, connect):
    other = await connect(ask.broker)
    other.request(200050, pop_ext(ask.broker, wait_ms=20_000)).add_done_callback(lambda done: done.exception())
    await waiting(ask.broker)
    await other.close()
    await waiting(ask.broker, 0)
    assert ask.broker.topics.get("orders").pops == 0


async def test_a_deleted_topic_answers_its_pops(ask, connect):
    other = await connect(ask.broker)
    asked = other.request(200050, pop_ext(ask.broker, wait_ms=20_000))
    await waiting(ask.broker)
    await ask(215, {"topic": "orders"})
    assert (await asked).code == 17


async def test_a_notification(ask, connect, clock):
    ext = {**pop_ext(ask.broker), "pollTime": "0"}
    assert (await ask(200054, ext)).ext["hasMsg"] == "false"
    other = await connect(ask.broker)
    asked = other.request(200054, {**ext, "pollTime": "20000"})
    await waiting(ask.broker)
    info = await ask(200055, {"consumerGroup": "g", "topic": "orders", "queueId": "0"})
    assert info.ext["pollingNum"] == "1"
    await sent(ask, 1)
    assert (await asked).ext == {"hasMsg": "true", "pollingFull": "false"}
    assert (await ask(200054, ext)).ext["hasMsg"] == "true"


async def test_a_notification_begins_nothing(ask, popper):
    ask.broker.topics.create_internal("quiet", 1)
    for n in range(3):
        await ask.send("quiet", b"m%d" % n)
    ext = {**pop_ext(ask.broker, "quiet", group="new"), "pollTime": "0"}
    assert (await ask(200054, ext)).ext["hasMsg"] == "true"
    assert committed(ask.broker, group="new", topic="quiet") is None
    assert len(await popper.pop("quiet", group="new", mode=0)) == 3


async def test_a_waiting_pop_that_fails_harms_no_other(ask, popper, connect, monkeypatch, caplog):
    others = [await connect(ask.broker) for _ in range(2)]
    asked = [other.request(200050, pop_ext(ask.broker, wait_ms=20_000, group=group)) for other, group in zip(others, "gh", strict=True)]
    await waiting(ask.broker, 2)
    pop = Popping.pop

    def fails(self, waiter):
        if waiter.group.group_name == "g":
            raise RuntimeError("planted")
        return pop(self, waiter)

    monkeypatch.setattr(Popping, "pop", fails)
    await sent(ask, 1)
    assert (await asked[0]).code == 1
    assert bodies(popper.read(await asked[1])) == [b"m0"]
    assert "cannot be answered" in caplog.text
    assert ask.broker.pops.waiting_count == 0


async def test_a_peek_takes_nothing(ask, popper):
    peek = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "maxMsgNums": "2"}
    assert (await ask(200052, peek)).code == 19
    await sent(ask, 3)
    answer = await ask(200052, peek)
    assert [bytes(message.body) for message in decode_records(answer.body)] == [b"m0", b"m1"]
    assert answer.ext["restNum"] == "1"
    assert len(await popper.pop()) == 3


# --- in order ---


async def test_a_pop_in_order_blocks_its_queue(ask, popper, clock):
    await sent(ask, 4)
    answer = await ask(200050, pop_ext(ask.broker, order="true", count=2))
    found = popper.read(answer)
    assert (bodies(found), answer.ext["reviveQid"]) == ([b"m0", b"m1"], "999")
    assert await popper.pop(order="true") == []
    await popper.ack(found[0][1])
    assert await popper.pop(order="true") == []
    clock.advance(INVISIBLE_S)
    answer = await ask(200050, pop_ext(ask.broker, order="true", count=2))
    again = popper.read(answer)
    assert bodies(again) == [b"m1", b"m2"]
    assert answer.ext["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    for _, handle in again:
        await popper.ack(handle)
    assert bodies(await popper.pop(order="true")) == [b"m3"]
    assert committed(ask.broker) == 3


async def test_an_attempt_that_is_repeated_gets_the_same(ask, popper):
    await sent(ask, 3)
    first = await popper.pop(order="true", count=2, attemptId="one")
    answer = await ask(200050, pop_ext(ask.broker, order="true", count=2, attemptId="one"))
    again = popper.read(answer)
    assert bodies(again) == bodies(first) == [b"m0", b"m1"]
    assert answer.ext["orderCountInfo"] == "0 0 0"
    assert await popper.pop(order="true", attemptId="two") == []


async def test_an_acknowledgement_wakes_a_pop_in_order(ask, popper, connect):
    await sent(ask, 2)
    ((_, handle),) = await popper.pop(order="true", count=1)
    other = await connect(ask.broker)
    asked = other.request(200050, pop_ext(ask.broker, order="true", wait_ms=20_000))
    await waiting(ask.broker)
    await popper.ack(handle)
    assert bodies(popper.read(await asked)) == [b"m1"]


async def test_a_changed_time_in_order_keeps_the_receipt(ask, popper, clock):
    await sent(ask, 1)
    ((_, handle),) = await popper.pop(order="true")
    clock.advance(2)
    answer = await popper.change(handle, 5)
    assert (answer.ext["popTime"], answer.ext["invisibleTime"]) == (handle.split(" ")[1], "7000")
    assert await popper.ack(handle) == 0
    assert committed(ask.broker) == 1


@pytest.mark.parametrize("how", ["each", "at once"])
async def test_in_order_what_follows_a_message_that_comes_again_comes_again_too(ask, popper, clock, how):
    """As Apache's broker has it: its own test acknowledges the first and the third message of a pop, and delays the second."""
    await sent(ask, 4)
    found = await popper.pop(order="true", count=3)
    receipts = [handle for _, handle in found]
    if how == "each":
        for n in (0, 2):
            assert await popper.ack(receipts[n]) == 0
    else:
        assert (await ask(200151, {}, batch_of([receipts[0], receipts[2]], rq=999))).code == 0
    assert committed(ask.broker) == 1
    assert (await popper.change(receipts[1], 3)).code == 0
    assert (await popper.change(receipts[2], 3)).code == 208  # it is acknowledged
    assert await popper.pop(order="true") == []
    clock.advance(3)
    answer = await ask(200050, pop_ext(ask.broker, order="true", count=3))
    again = popper.read(answer)
    assert bodies(again) == [b"m1", b"m2", b"m3"]
    assert answer.ext["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 0"
    for n, floor in ((0, 2), (2, 2), (1, 4)):
        assert await popper.ack(again[n][1]) == 0
        assert committed(ask.broker) == floor
    clock.advance(INVISIBLE_S)
    assert await popper.pop(order="true") == []


async def test_what_is_acknowledged_early_in_order_blocks_nobody(ask, popper, connect, clock):
    await sent(ask, 3)
    found = await popper.pop(order="true", count=2)
    assert await popper.ack(found[1][1]) == 0
    assert (await popper.change(found[0][1], 2 * INVISIBLE_S)).code == 0
    other = await connect(ask.broker)
    asked = other.request(200050, pop_ext(ask.broker, order="true", wait_ms=100_000))
    await waiting(ask.broker)
    clock.advance(INVISIBLE_S)  # the time of the one that is acknowledged
    assert ask.broker.pops.waiting_count == 1
    clock.advance(INVISIBLE_S)
    assert bodies(popper.read(await asked)) == [b"m0", b"m1", b"m2"]


@pytest.mark.parametrize("how", ["stop", "abort", "snapshot"])
async def test_what_is_acknowledged_early_in_order_survives(ask, popper, connect, start_broker, clock, how, monkeypatch):
    await sent(ask, 4)
    found = await popper.pop(order="true", count=3)
    for n in (1, 2):
        await popper.ack(found[n][1])
    if how == "snapshot":
        monkeypatch.setattr(journal_module, "REWRITE_BYTES", 0)
        ask.broker.pops.keep_short()
    await (ask.broker.stop() if how == "stop" else ask.broker.abort())
    broker = await start_broker(like=ask.broker)
    again = Popper(await connect(broker))
    assert await again.pop(order="true") == []
    assert await again.ack(found[0][1]) == 0
    assert committed(broker) == 3
    assert bodies(await again.pop(order="true")) == [b"m3"]


# --- many acknowledgements at once ---


def batch_of(handles, **names):
    entries = {}
    for handle in handles:
        start, popped, _, _, _, _, queue, offset = handle.split(" ")
        entries.setdefault((start, popped, queue), []).append(int(offset))
    acks = []
    for (start, popped, queue), offsets in entries.items():
        bits = bytearray(8)
        for offset in offsets:
            bits[(offset - int(start)) // 8] |= 1 << (offset - int(start)) % 8
        ack = {"c": "g", "t": "orders", "r": "0", "so": int(start), "q": int(queue), "rq": 0, "pt": int(popped), "it": 30000}
        acks.append({**ack, "b": base64.b64encode(bytes(bits).rstrip(b"\0")).decode(), **names})
    return json.dumps({"brokerName": "broker-a", "acks": acks}).encode()


async def test_acknowledgements_of_several_pops(ask, popper):
    await sent(ask, 20)
    found = await popper.pop(count=12) + await popper.pop(count=12)
    assert (await ask(200151, {}, batch_of([handle for _, handle in found[:-1]]))).code == 0
    assert committed(ask.broker) == 19
    long = (
        batch_of([found[-1][1]]).replace(b'"c":', b'"consumerGroup":').replace(b'"so":', b'"startOffset":').replace(b'"b":', b'"bitSet":')
    )
    assert (await ask(200151, {}, long)).code == 0
    assert committed(ask.broker) == 20


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 13),
        (b"[]", 13),
        (b'{"acks": []}', 208),
        (b'{"acks": [{"c": "g"}]}', 13),
        (b'{"acks": [{"c": "g", "t": "nosuch", "so": 0, "q": 0, "pt": 1, "b": "AQ=="}]}', 17),
        (b'{"acks": [{"c": "g", "t": "orders", "so": 0, "q": 9, "pt": 1, "b": "AQ=="}]}', 13),
        (b'{"acks": [{"c": "g", "t": "orders", "so": 0, "q": 0, "pt": 1, "b": "?"}]}', 13),
    ],
)
async def test_batches_that_cannot_be(ask, body, code):
    assert (await ask(200151, {}, body)).code == code


# --- what is refused ---


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nosuch"}, 17),
        ({"queueId": "4"}, 29),
        ({"queueId": "-2"}, 29),
        ({"maxMsgNums": "33"}, 29),
        ({"maxMsgNums": "0"}, 29),
        ({"invisibleTime": "0"}, 29),
        ({"invisibleTime": "-1"}, 29),
        ({"invisibleTime": str(365 * 86_400_000)}, 29),
        ({"expType": "SQL92", "exp": "a >"}, 23),
        ({"expType": "XPATH", "exp": "a > 1"}, 23),
        ({"exp": "||"}, 23),
        ({"bornTime": "1000"}, 210),
    ],
)
async def test_pops_that_cannot_be(ask, fields, code):
    answer = await ask(200050, {**pop_ext(ask.broker), **fields})
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert "popTime" in answer.ext


async def test_a_group_that_does_not_exist_or_may_not_read(ask, start_broker, connect):
    other = await connect(await start_broker("other", auto_create_group=False))
    other.broker.topics.create_internal("orders", 1)
    assert (await other(200050, pop_ext(other.broker))).code == 26


@pytest.mark.parametrize("handle", ["", "x", "0 1 2 3 0 broker-a 1 0 ", "0 1 2 3 0 broker-a 0", "a 1 2 3 0 broker-a 0 0 ", "0 " * 300])
async def test_forged_receipts(ask, handle):
    await sent(ask, 1)
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "extraInfo": handle, "offset": "0"}
    assert (await ask(200051, ext)).code == 13
    assert (await ask(200053, {**ext, "invisibleTime": "1000"})).code == 13


async def test_receipts_of_other_groups_and_places(ask, popper):
    await sent(ask, 1)
    ((_, handle),) = await popper.pop()
    assert await popper.ack(handle, group="stranger") == 0
    assert committed(ask.broker) == 0
    ext = popper.receipt_ext(handle)
    assert (await ask(200051, {**ext, "offset": "5"})).code == 208
    assert (await ask(200051, {**ext, "topic": "nosuch"})).code == 17
    assert (await ask(200053, {**ext, "invisibleTime": "0"})).code == 29


async def test_a_reset_while_messages_are_invisible(ask, popper, clock):
    await sent(ask, 5)
    found = await popper.pop(count=3)
    ask.broker.offsets.reset("g", "orders", 0, 1)
    assert bodies(await popper.pop()) == [b"m1", b"m2", b"m3", b"m4"]
    clock.advance(INVISIBLE_S)
    assert len(await popper.pop()) == 4
    assert await popper.ack(found[0][1]) == 0


async def test_a_group_that_was_deleted_begins_anew(ask, popper):
    await sent(ask, 3)
    await popper.pop(count=2)
    assert (await ask(207, {"groupName": "g", "cleanOffset": "true"})).code == 0
    assert committed(ask.broker) is None
    assert bodies(await popper.pop()) == [b"m0", b"m1", b"m2"]


# --- stops and kills ---


async def test_what_is_invisible_survives_a_stop(ask, popper, connect, start_broker, clock):
    await sent(ask, 4)
    found = await popper.pop(count=3)
    await popper.ack(found[1][1])
    await ask.broker.stop()
    again = Popper(await connect(await start_broker(like=ask.broker)))
    assert bodies(await again.pop()) == [b"m3"]
    clock.advance(INVISIBLE_S)
    assert bodies(await again.pop()) == [b"m0", b"m2", b"m3"]


@pytest.mark.parametrize("how", ["stop", "abort", "abort after a save"])
async def test_what_is_behind_the_floor_stays_as_it_is(ask, popper, connect, start_broker, clock, how):
    await sent(ask, 6)
    found = await popper.pop(count=5)
    for n in (0, 1, 3):
        await popper.ack(found[n][1])
    assert committed(ask.broker) == 2
    if how == "stop":
        await ask.broker.stop()
    else:
        if how == "abort after a save":
            ask.broker.files.save_offsets()
            await ask.broker.files.drain()
        await ask.broker.abort()
    broker = await start_broker(like=ask.broker)
    again = Popper(await connect(broker))
    assert bodies(await again.pop()) == [b"m5"]
    assert committed(broker) == 2
    clock.advance(INVISIBLE_S)
    assert bodies(await again.pop()) == [b"m2", b"m4", b"m5"]


async def test_kills_lose_nothing_and_repeat_nothing_that_was_acknowledged(start_broker, connect, clock, monkeypatch):
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 2_000)
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    broker = await start_broker()
    broker.topics.create_internal("orders", 2)
    await broker.files.topics.saved()
    done, held, count = set(), {}, 0
    for _ in range(12):
        popper = Popper(await connect(broker))
        for _ in range(rng.randrange(30)):
            match rng.randrange(5):
                case 0 | 1:
                    await popper.ask.send("orders", b"%d" % count, queue=rng.randrange(2))
                    count += 1
                case 2:
                    for message, handle in await popper.pop(queue=-1, count=rng.randrange(1, 8)):
                        assert bytes(message.body) not in done, seed
                        held[bytes(message.body)] = handle
                case 3 if held:
                    body = rng.choice(sorted(held))
                    assert await popper.ack(held.pop(body)) == 0
                    done.add(body)
                case 4:
                    clock.advance(rng.randrange(40))
                    held.clear()  # their receipts may not hold any more
            broker.pops.keep_short()
        match rng.randrange(3):
            case 0:
                await broker.stop()
            case 1:
                broker.files.save_offsets()
                await broker.files.drain()
        await broker.abort()
        broker = await start_broker(like=broker)
    popper = Popper(await connect(broker))
    clock.advance(INVISIBLE_S)
    left = set()
    while found := await popper.pop(queue=-1, count=32):
        for message, handle in found:
            left.add(bytes(message.body))
            await popper.ack(handle)
    assert left == {b"%d" % n for n in range(count)} - done, seed


async def test_a_journal_whose_end_is_torn(ask, popper, start_broker, connect, clock, caplog):
    await sent(ask, 3)
    await popper.pop(count=1)
    await popper.pop(count=1)
    await ask.broker.abort()
    path = ask.broker.config.store.root / "config" / "pop.journal"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + b"xyz")
    broker = await start_broker(like=ask.broker)
    assert "pop_journal_cut" in caplog.text
    again = Popper(await connect(broker))
    assert bodies(await again.pop()) == [b"m1", b"m2"]  # the second pop was not kept
    clock.advance(INVISIBLE_S)
    assert bodies(await again.pop()) == [b"m0", b"m1", b"m2"]


async def test_a_journal_that_cannot_be_read_loses_nothing(ask, popper, start_broker, connect, caplog):
    await sent(ask, 3)
    found = await popper.pop()
    await popper.ack(found[0][1])
    await ask.broker.stop()
    path = ask.broker.config.store.root / "config" / "pop.journal"
    path.write_bytes(frame(["queue", "g", "orders", 0, ["rubbish"]]))
    broker = await start_broker(like=ask.broker)
    assert "pop_journal_failed" in caplog.text
    assert bodies(await Popper(await connect(broker)).pop()) == [b"m1", b"m2"]


async def test_an_offset_that_was_moved_while_the_broker_was_stopped(ask, popper, start_broker, connect):
    await sent(ask, 5)
    await popper.pop(count=3)
    await ask.broker.stop()
    path = ask.broker.config.store.root / "config" / "consumerOffset.json"
    text = path.read_text()
    assert "\t0:0" in text
    path.write_text(text.replace("\t0:0", "\t0:2"))
    again = Popper(await connect(await start_broker(like=ask.broker)))
    assert bodies(await again.pop()) == [b"m2", b"m3", b"m4"]


async def test_a_journal_is_replaced_by_a_snapshot(ask, popper, start_broker, connect, clock, monkeypatch):
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 500)
    broker = await start_broker("short")
    broker.topics.create_internal("orders", 1)
    await broker.files.topics.saved()
    popper = Popper(await connect(broker))
    for n in range(50):
        await popper.ask.send("orders", b"m%d" % n)
        ((_, handle),) = await popper.pop()
        if n % 10:
            await popper.ack(handle)
        broker.pops.keep_short()
    assert (broker.config.store.root / "config" / "pop.journal").stat().st_size < 2_000
    await broker.abort()
    again = Popper(await connect(await start_broker(like=broker)))
    clock.advance(INVISIBLE_S)
    assert bodies(await again.pop()) == [b"m0", b"m10", b"m20", b"m30", b"m40"]


async def test_a_write_that_fails_leaves_no_gap(start_broker, connect, clock, monkeypatch):
    broker = await start_broker()
    broker.topics.create_internal("orders", 1)
    await broker.files.topics.saved()
    popper = Popper(await connect(broker))
    await sent(popper.ask, 9)
    assert bodies(await popper.pop(count=3)) == [b"m0", b"m1", b"m2"]
    full = set()
    pwrite = fs.RealFile.pwrite

    def write(file, data, offset):
        if Path(file.path).name in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        pwrite(file, data, offset)

    monkeypatch.setattr(fs.RealFile, "pwrite", write)
    full |= {"pop.journal", "pop.journal.new"}
    assert (await popper.ask(200050, pop_ext(broker, count=3))).code == 1
    full.discard("pop.journal")
    assert (await popper.ask(200050, pop_ext(broker, count=3))).code == 1  # still: an append would leave a gap
    await broker.abort()
    full.clear()
    broker = await start_broker(like=broker)
    popper = Popper(await connect(broker))
    assert bodies(await popper.pop(count=2)) == [b"m3", b"m4"]
    full.add("pop.journal")
    assert (await popper.ask(200050, pop_ext(broker, count=2))).code == 1
    assert bodies(await popper.pop(count=2)) == [b"m7", b"m8"]  # with a whole snapshot
    full.clear()
    await broker.abort()
    popper = Popper(await connect(await start_broker(like=broker)))
    clock.advance(INVISIBLE_S)
    assert bodies(await popper.pop()) == [b"m%d" % n for n in range(9)]


async def test_a_journal_that_knows_more_than_the_log(ask, popper, start_broker, connect):
    await sent(ask, 2)
    await popper.pop()
    path = ask.broker.config.store.root / "config" / "pop.journal"
    await ask.broker.abort()
    with path.open("ab") as file:  # the log has lost these when power failed
        file.write(frame(["given", "g", "orders", 0, 5, 1, 2, [2, 3, 4], ""]))
    again = Popper(await connect(await start_broker(like=ask.broker)))
    await sent(again.ask, 2)
    assert bodies(await again.pop()) == [b"m0", b"m1"]


async def test_a_suspended_message_is_not_counted(ask, popper, clock):
    await sent(ask, 1)
    ((_, handle),) = await popper.pop()
    answer = await ask(200053, {**popper.receipt_ext(handle), "invisibleTime": "1000", "suspend": "true"})
    assert answer.code == 0
    clock.advance(1)
    ((message, _),) = await popper.pop()
    assert message.reconsume_times == 0


async def test_a_reset_to_where_the_group_is(ask, popper):
    await sent(ask, 3)
    await popper.pop(count=2)
    ask.broker.offsets.reset("g", "orders", 0, 0)
    assert bodies(await popper.pop()) == [b"m0", b"m1", b"m2"]


async def test_too_many_acknowledgements_in_one_request(ask):
    entry = {"c": "g", "t": "orders", "so": 0, "q": 0, "pt": 1, "b": "AQ=="}
    assert (await ask(200151, {}, json.dumps({"acks": [entry] * 1001}).encode())).code == 13
    huge = {**entry, "b": base64.b64encode(b"\xff" * 20_000).decode()}
    assert (await ask(200151, {}, json.dumps({"acks": [huge]}).encode())).code == 13


async def test_large_messages_in_order_fit_into_an_answer(ask, popper, clock):
    for _ in range(6):
        await ask.send("orders", bytes(1_000_000))
    await popper.pop(count=2)
    await popper.pop(count=2)
    await popper.pop(count=2)
    clock.advance(INVISIBLE_S)
    found = await popper.pop(order="true")
    assert 1 <= len(found) < 6
    assert found[0][0].queue_offset == 0


def test_records_of_a_journal():
    records = [["given", "g", "t", n, [1, 2, 3]] for n in range(3)]
    data = b"".join(frame(record) for record in records)
    assert [record for record, _ in frames(data)] == records
    for cut in range(1, len(frame(records[2]))):
        assert [record for record, _ in frames(data[:-cut])] == records[:2]
    assert list(frames(b"\0" * 100)) == []


def test_a_message_that_nobody_finishes_does_not_let_the_state_grow():
    queue = PopQueue(0)
    for offset in range(20_000):
        queue.give([offset], 1_000, 61_000)
        queue.next = offset + 1
        if offset:
            assert queue.acknowledge([offset], 1_000) == [offset]
    assert len(queue._order) + len(queue._due) < 5_000
    for _ in range(5_000):
        flight = queue.give_again(0, 1_000, 61_000)
    assert len(queue._due) < 5_000
    assert queue.floor == 0
    assert queue.take_due(61_000) == 0
    assert queue.acknowledge([0], flight.popped_ms) == [0]
    assert queue.floor == 20_000


def test_a_queue_beside_a_simple_model(monkeypatch):
    monkeypatch.setattr(state_module, "_SLACK", 3)
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    queue, now, given, done = PopQueue(0), 1_000, {}, set()
    for _ in range(3000):
        match rng.randrange(5):
            case 4 if given:
                offset = rng.choice(sorted(given))
                assert queue.change(offset, given[offset][0] - 1, now, now, orderly=False) is None, seed
                flight = queue.change(offset, given[offset][0], now, now + 40, orderly=False)
                given[offset] = (flight.popped_ms, now + 40)
            case 0:
                offsets = range(queue.next, queue.next + rng.randrange(1, 4))
                queue.give(offsets, now, now + 50)
                queue.next = offsets.stop
                given.update(dict.fromkeys(offsets, (now, now + 50)))
            case 1:
                offset = queue.take_due(now)
                due = sorted(offset for offset, (_, visible) in given.items() if visible <= now)
                assert offset == (due[0] if due else None), seed
                if offset is not None:
                    flight = queue.give_again(offset, now, now + 50)
                    assert flight.popped_ms > given[offset][0], seed
                    given[offset] = (flight.popped_ms, now + 50)
            case 2 if given:
                offset = rng.choice(sorted(given))
                assert not queue.acknowledge([offset], given[offset][0] - 1), seed
                assert queue.acknowledge([offset] * 2, given.pop(offset)[0]) == [offset], seed
                done.add(offset)
            case 3:
                now += rng.randrange(30)
        assert queue.floor == min(given, default=queue.next), seed
        if rng.random() < 0.02:
            queue = PopQueue.restored(queue.snapshot())


def test_a_queue_in_order_beside_a_simple_model():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    queue, now, given, done = PopQueue(0), 1_000, {}, set()  # of each offset: the time of its pop, and until when it is invisible
    for _ in range(3000):
        match rng.randrange(4):
            case 0 if not any(visible > now for offset, (_, visible) in given.items() if offset not in done):
                assert not queue.blocks(now), seed
                for offset in sorted(given):
                    given[offset] = (queue.give_again(offset, now, now + 50).popped_ms, now + 50)
                done.clear()
                offsets = range(queue.next, queue.next + rng.randrange(1, 4))
                queue.give(offsets, now, now + 50)
                queue.next = offsets.stop
                given.update(dict.fromkeys(offsets, (now, now + 50)))
            case 1 if given:
                offset = rng.choice(sorted(given))
                assert not queue.acknowledge_in_order([offset], given[offset][0] - 1), seed
                assert queue.acknowledge_in_order([offset] * 2, given[offset][0]) == [offset] * (offset not in done), seed
                done.add(offset)
                while given and min(given) in done:
                    done.discard(min(given))
                    del given[min(given)]
            case 2 if given:
                offset = rng.choice(sorted(given))
                changed = queue.change(offset, given[offset][0], now, now + 30, orderly=True)
                assert (changed is None) == (offset in done), seed
                if changed is not None:
                    given[offset] = (changed.popped_ms, now + 30)
            case 3:
                now += rng.randrange(30)
        assert queue.floor == min(given, default=queue.next), seed
        assert queue.blocks(now) == any(visible > now for offset, (_, visible) in given.items() if offset not in done), seed
        if rng.random() < 0.02:
            queue = PopQueue.restored(queue.snapshot())


async def test_a_large_batch_is_taken_apart_once_for_all_pops_of_it(broker, ask, popper, monkeypatch):
    await ask(17, {**create_topic("batched", queues=1), "attributes": "+queue.type=BatchCQ"})
    sent = [b"%d" % n for n in range(300)]
    outer, each = encode_properties({"UNIQ_KEY": "u", "TAGS": "red"}).decode(), encode_properties({"TAGS": "red"})
    assert (await ask.send_batch("batched", sent, properties=outer, each=each)).code == 0
    taken_apart = []
    monkeypatch.setattr(records_module, "InnerBatch", lambda record: taken_apart.append(1) or InnerBatch(record))
    found = []
    while more := await popper.pop("batched", count=32, exp="red"):
        found += bodies(more)
    assert found == sent
    assert len(taken_apart) == 1
    assert await popper.pop("batched", group="other", exp="blue") == []


async def test_batches_that_are_kept_taken_apart_are_bounded(broker, ask, popper, monkeypatch):
    monkeypatch.setattr(records_module, "_MAX_KEPT_BYTES", 3_000)
    await ask(17, {**create_topic("batched", queues=1), "attributes": "+queue.type=BatchCQ"})
    for n in range(10):
        await ask.send_batch("batched", [b"%d" % n * 500, b"b" * 500], properties=encode_properties({"UNIQ_KEY": f"u{n}"}).decode())
    batches = Batches()
    for offset in range(20):
        result = broker.store.read("batched", 0, offset, max_count=1)
        (first, *_) = batches.messages_in(result.buffers, offset, None)
        assert first[0] == offset
        assert batches.kept_bytes <= 3_000
    batches.clear()
    assert batches.kept_bytes == 0


async def test_clients_with_binary_headers_pop_by_the_codes_that_fit_them(broker, ask, popper):
    """200050 and 200051 as they are left by 16 bits."""
    await ask.send("orders", b"one")

    async def binary(code, ext):
        (answer,) = await exchange(broker.address, encode_head(code, opaque=7, ext=ext, serialize=SerializeType.ROCKETMQ))
        return answer

    ((message, handle),) = popper.read(await binary(3442, pop_ext(broker)))
    assert message.body == b"one"
    assert (await binary(3443, popper.receipt_ext(handle))).code == 0
    assert (await binary(3442, pop_ext(broker))).code == 210
