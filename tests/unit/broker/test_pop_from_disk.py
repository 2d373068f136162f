"""Pops and peeks of messages that are not in memory: they wait for the disk, and nothing else does."""

import asyncio

import pytest
from popping import INVISIBLE_S, Popper

from sprocketmq.broker import cold_reads
from sprocketmq.broker.pop.popping import MAX_LOADS
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.queues import cold_reads as finder
from sprocketmq.testing import eventually


@pytest.fixture
def popper(ask):
    return Popper(ask)


def bodies(found):
    return [bytes(message.body) for message, _ in found]


async def sent(ask, count, **options):
    for n in range(count):
        await ask.send("orders", b"m%d" % n, **options)


async def test_a_pop_waits_for_the_disk_and_no_other_request_does(ask, popper, cold_disk):
    await sent(ask, 3)
    pop = asyncio.ensure_future(popper.pop())
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("orders")).code == 0
    assert not pop.done()
    cold_disk.go.set()
    assert bodies(await pop)[:3] == [b"m0", b"m1", b"m2"]


async def test_pops_that_wait_for_the_same_messages_share_a_read_and_get_each_once(ask, popper, cold_disk):
    await sent(ask, 6)
    pops = [asyncio.ensure_future(popper.pop(count=3)) for _ in range(3)]
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("other")).code == 0  # all pops have come
    cold_disk.go.set()
    assert sorted(bodies(found) for found in await asyncio.gather(*pops)) == [[], [b"m0", b"m1", b"m2"], [b"m3", b"m4", b"m5"]]
    assert cold_disk.began <= 2


async def test_what_a_pop_waits_for_is_not_taken_yet(broker, connect, ask, popper, cold_disk):
    await sent(ask, 3)
    other = await connect(broker)
    pop = asyncio.ensure_future(Popper(other).pop())
    await eventually(lambda: cold_disk.began)
    await other.close()
    with pytest.raises(Exception, match=r"."):
        await pop
    cold_disk.go.set()
    assert bodies(await popper.pop()) == [b"m0", b"m1", b"m2"]


async def test_a_pop_that_waits_for_the_disk_is_answered_when_its_topic_is_deleted(broker, ask, popper, cold_disk):
    await sent(ask, 3)
    pop = asyncio.ensure_future(popper.pop())
    await eventually(lambda: cold_disk.began)
    broker.pops.topic_deleted(broker.topics.get("orders"))
    with pytest.raises(AssertionError, match="topic\\[orders\\] not exist"):
        await pop
    cold_disk.go.set()


async def test_a_pop_that_waits_for_the_disk_is_refused_when_its_user_loses_the_right(broker, ask, popper, cold_disk):
    await sent(ask, 3)
    pop = asyncio.ensure_future(popper.pop())
    await eventually(lambda: cold_disk.began)
    broker.pops.access_changed(lambda *_: "no longer")
    with pytest.raises(AssertionError, match="no longer"):
        await pop
    cold_disk.go.set()
    assert bodies(await popper.pop()) == [b"m0", b"m1", b"m2"]


async def test_pops_that_wait_for_the_disk_are_limited(ask, popper, cold_disk, monkeypatch):
    monkeypatch.setattr(cold_reads, "MAX_WAITING", 1)
    await sent(ask, 3)
    pop = asyncio.ensure_future(popper.pop())
    await eventually(lambda: cold_disk.began)
    with pytest.raises(AssertionError, match="system busy"):
        await popper.pop()
    cold_disk.go.set()
    assert len(await pop) == 3


async def test_a_disk_that_loses_everything_again_delays_a_pop_only_so_often(ask, popper, cold_disk, monkeypatch):
    await sent(ask, 3)
    monkeypatch.setattr(cold_disk, "cached", ())
    monkeypatch.setattr("sprocketmq.storage.queues.cold_reads.read_through", lambda *_: setattr(cold_disk, "began", cold_disk.began + 1))
    assert len(await popper.pop()) == 3
    assert cold_disk.began <= MAX_LOADS


async def test_messages_that_come_again_wait_for_the_disk_and_are_counted_once(ask, popper, cold_disk, clock):
    cold_disk.go.set()
    await sent(ask, 3)
    assert len(await popper.pop()) == 3
    clock.advance(INVISIBLE_S)
    cold_disk.go.clear()
    cold_disk.cached.clear()
    began = cold_disk.began
    pop = asyncio.ensure_future(popper.pop())
    await eventually(lambda: cold_disk.began > began)
    cold_disk.go.set()
    again = await pop
    assert bodies(again) == [b"m0", b"m1", b"m2"]
    assert [message.reconsume_times for message, _ in again] == [1, 1, 1]
    assert [await popper.ack(handle) for _, handle in again] == [0, 0, 0]
    clock.advance(INVISIBLE_S)
    assert await popper.pop() == []


async def test_a_held_pop_waits_for_the_disk_when_a_message_becomes_visible_again(broker, connect, ask, popper, cold_disk, clock):
    cold_disk.go.set()
    await sent(ask, 1)
    assert len(await popper.pop()) == 1
    cold_disk.go.clear()
    cold_disk.cached.clear()
    held = asyncio.ensure_future(Popper(await connect(broker)).pop(wait_ms=60_000))
    await eventually(lambda: broker.pops.waiting_count)
    began = cold_disk.began
    clock.advance(INVISIBLE_S)
    await eventually(lambda: cold_disk.began > began)
    assert broker.pops.waiting_count == 0
    cold_disk.go.set()
    assert bodies(await held) == [b"m0"]


@pytest.mark.parametrize("attempt", ["", "a"])
async def test_in_order_a_pop_waits_for_the_disk_before_it_changes_anything(ask, popper, cold_disk, clock, attempt):
    cold_disk.go.set()
    await sent(ask, 3)
    first = await popper.pop(order="true", attemptId="before", count=2)
    assert bodies(first) == [b"m0", b"m1"]
    clock.advance(INVISIBLE_S)
    cold_disk.go.clear()
    cold_disk.cached.clear()
    began = cold_disk.began
    pop = asyncio.ensure_future(popper.pop(order="true", attemptId=attempt))
    await eventually(lambda: cold_disk.began > began)
    cold_disk.go.set()
    assert bodies(await pop)[:2] == [b"m0", b"m1"]
    assert await popper.pop(order="true", attemptId="after") == []


async def test_a_pop_gives_what_is_in_memory_rather_than_wait_for_more(broker, ask, popper, cold_disk, monkeypatch):
    for queue in (0, 1):
        await ask.send("orders", b"q%d" % queue, queue=queue)
    find = type(broker.store).find_cold
    monkeypatch.setattr(type(broker.store), "find_cold", lambda *args: find(*args) if args[2] == 1 else None)
    monkeypatch.setattr("random.randrange", lambda *_: 0)
    assert bodies(await popper.pop(queue=-1)) == [b"q0"]
    assert cold_disk.began == 0
    cold_disk.go.set()
    assert bodies(await popper.pop(queue=-1)) == [b"q1"]


async def test_pops_by_tag_wait_for_the_disk(ask, popper, cold_disk):
    await sent(ask, 8)
    await ask.send("orders", b"wanted", properties=encode_properties({"TAGS": "rare"}).decode())
    pop = asyncio.ensure_future(popper.pop(exp="rare"))
    await eventually(lambda: cold_disk.began)
    cold_disk.go.set()
    assert bodies(await pop) == [b"wanted"]


def peek(ask, *, queue="0", count=32):
    return ask(200052, {"consumerGroup": "g", "topic": "orders", "queueId": queue, "maxMsgNums": str(count)})


@pytest.mark.parametrize("queue", ["0", "-1"])
async def test_a_peek_waits_for_the_disk_and_no_other_request_does(ask, cold_disk, queue):
    await sent(ask, 3)
    peeking = asyncio.ensure_future(peek(ask, queue=queue))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    assert not peeking.done()
    cold_disk.go.set()
    answer = await peeking
    assert [bytes(message.body) for message in decode_records(answer.body)] == [b"m0", b"m1", b"m2"]
    assert (answer.code, answer.ext["restNum"]) == (0, "0")


async def test_a_peek_of_a_topic_that_is_deleted_meanwhile_is_answered(broker, ask, cold_disk):
    await sent(ask, 3)
    peeking = asyncio.ensure_future(peek(ask))
    await eventually(lambda: cold_disk.began)
    assert (await ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})).code == 0
    cold_disk.go.set()
    assert (await peeking).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_disk_that_loses_everything_again_delays_a_peek_only_so_often(ask, cold_disk, monkeypatch):
    await sent(ask, 3)
    monkeypatch.setattr(finder, "resident", lambda *_: False)
    monkeypatch.setattr(finder, "read_through", lambda *_: None)
    assert len(decode_records((await peek(ask)).body)) == 3
