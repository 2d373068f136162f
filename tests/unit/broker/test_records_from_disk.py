"""Requests about single messages that are not in memory: they wait for the disk, and nothing else does."""

import asyncio

import pytest

from sprocketmq.broker import cold_reads
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.queues import cold_reads as finder
from sprocketmq.testing import eventually


async def stored(ask, body=b"body"):
    """Send a message and return its log offset."""
    answer = await ask.send("orders", body)
    return int(answer.ext["msgId"][16:], 16)


def back(ask, offset):
    ext = {"offset": str(offset), "group": "g", "delayLevel": "0", "originTopic": "orders", "originMsgId": "", "unitMode": "false"}
    return ask(36, {**ext, "maxReconsumeTimes": "16"})


def view(ask, offset):
    return ask(33, {"offset": str(offset)})


def read_parts(monkeypatch):
    """Let each read succeed at once, without keeping anything in memory; return the lengths that were read."""
    lengths = []
    monkeypatch.setattr(finder, "resident", lambda *_: False)
    monkeypatch.setattr(finder, "read_through", lambda _, parts: lengths.extend(end - begin for begin, end in parts))
    return lengths


@pytest.mark.parametrize("request_of", [back, view])
async def test_a_request_waits_for_the_disk_and_no_other_does(ask, cold_disk, request_of):
    offset = await stored(ask)
    waiting = asyncio.ensure_future(request_of(ask, offset))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    assert not waiting.done()
    cold_disk.go.set()
    assert (await waiting).code == 0


async def test_a_message_given_back_after_a_wait_is_stored_and_comes_again(broker, ask, cold_disk, clock):
    offset = await stored(ask)
    cold_disk.go.set()
    assert (await back(ask, offset)).code == 0
    assert (await back(ask, offset)).code == 0  # repeated: stored once
    clock.advance(10)
    broker.delays.fire()
    await eventually(lambda: broker.delays.delivered == 1)
    (again,) = decode_records((await ask.pull("%RETRY%g", 0, group="g")).body)
    assert (bytes(again.body), again.reconsume_times) == (b"body", 1)


async def test_a_long_message_is_read_in_two_steps(ask, cold_disk, monkeypatch):
    offset = await stored(ask, b"x" * 100_000)
    lengths = []
    monkeypatch.setattr(finder, "resident", lambda _, begin, end: end - begin == 4 and bool(lengths))
    monkeypatch.setattr(finder, "read_through", lambda _, parts: lengths.extend(end - begin for begin, end in parts))
    (message,) = decode_records((await view(ask, offset)).body)
    assert lengths == [finder.RECORD_BYTES, message.store_size]


async def test_a_disk_that_loses_everything_again_delays_a_request_only_so_often(ask, cold_disk, monkeypatch):
    offset = await stored(ask)
    lengths = read_parts(monkeypatch)
    assert (await view(ask, offset)).code == 0
    assert len(lengths) == cold_reads.MAX_RECORD_LOADS


@pytest.mark.parametrize("offset", [-1, 1 << 40])
async def test_where_no_record_is_nothing_is_read(ask, cold_disk, offset):
    await stored(ask)
    assert (await view(ask, offset)).code == 1
    assert (await back(ask, offset)).code == 1
    assert cold_disk.began == 0


async def test_requests_that_wait_for_the_disk_are_limited(ask, cold_disk, monkeypatch):
    monkeypatch.setattr(cold_reads, "MAX_WAITING", 1)
    offset = await stored(ask)
    waiting = asyncio.ensure_future(view(ask, offset))
    await eventually(lambda: cold_disk.began)
    assert (await view(ask, offset)).code == 2
    cold_disk.go.set()
    assert (await waiting).code == 0


async def test_a_request_that_fails_after_its_wait_answers_with_the_error(broker, ask, cold_disk, monkeypatch, caplog):
    offset = await stored(ask)
    waiting = asyncio.ensure_future(view(ask, offset))
    await eventually(lambda: cold_disk.began)

    def fails(*_):
        raise ValueError("broken")

    monkeypatch.setattr(type(broker.store), "record_at", fails)
    cold_disk.go.set()
    assert (await waiting).remark == "internal error: ValueError: broken"
    assert "request 33" in caplog.text
