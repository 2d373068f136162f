"""Searches for the offset of a time among messages that are not in memory: they wait for the disk, and nothing else does."""

import asyncio

import pytest

from sprocketmq.broker import cold_reads, queue_offsets
from sprocketmq.errors import ConnectionLost
from sprocketmq.testing import eventually


async def offset_at(ask, time_ms, boundary=""):
    answer = await ask(29, {"topic": "orders", "queueId": "0", "timestamp": str(time_ms), "boundaryType": boundary})
    return int(answer.ext["offset"]) if answer.code == 0 else answer.remark


async def sent_each_second(ask, clock, count):
    began = clock.time_ms()
    for _ in range(count):
        await ask.send("orders")
        clock.advance(1)
    return began


async def test_a_search_waits_for_the_disk_and_no_other_request_does(ask, clock, cold_disk):
    began = await sent_each_second(ask, clock, 9)
    search = asyncio.ensure_future(offset_at(ask, began + 5000))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    assert not search.done()
    cold_disk.go.set()
    assert await search == 5


@pytest.mark.parametrize("boundary", ["LOWER", "UPPER"])
async def test_the_answers_are_those_of_messages_in_memory(ask, clock, cold_disk, boundary, monkeypatch):
    began = await sent_each_second(ask, clock, 20)
    cold_disk.go.set()
    times = [began + 500 * half for half in range(-1, 42)]
    with monkeypatch.context() as patch:
        patch.setattr(queue_offsets, "MAX_LOADS", 0)
        expected = [await offset_at(ask, time_ms, boundary) for time_ms in times]
    began = cold_disk.began
    assert [await offset_at(ask, time_ms, boundary) for time_ms in times] == expected
    assert cold_disk.began > began


async def test_a_disk_that_loses_everything_again_delays_a_search_only_so_often(ask, clock, cold_disk, monkeypatch):
    began = await sent_each_second(ask, clock, 9)
    monkeypatch.setattr(cold_disk, "cached", ())
    monkeypatch.setattr("sprocketmq.storage.queues.cold_reads.read_through", lambda *_: setattr(cold_disk, "began", cold_disk.began + 1))
    assert await offset_at(ask, began + 3000) == 3
    assert cold_disk.began <= queue_offsets.MAX_LOADS


async def test_searches_that_wait_for_the_disk_are_limited(ask, clock, cold_disk, monkeypatch):
    monkeypatch.setattr(cold_reads, "MAX_WAITING", 1)
    began = await sent_each_second(ask, clock, 3)
    search = asyncio.ensure_future(offset_at(ask, began + 1000))
    await eventually(lambda: cold_disk.began)
    assert "system busy" in await offset_at(ask, began)
    cold_disk.go.set()
    assert await search == 1


async def test_a_queue_that_cannot_be_read_answers_with_the_error(broker, ask, clock, cold_disk, monkeypatch, caplog):
    began = await sent_each_second(ask, clock, 3)
    search = asyncio.ensure_future(offset_at(ask, began + 1000))
    await eventually(lambda: cold_disk.began)

    def fails(*_, **__):
        raise OSError("no disk")

    monkeypatch.setattr(type(broker.store), "offset_by_time", fails)
    cold_disk.go.set()
    assert await search == "internal error: OSError: no disk"
    assert "topic orders, queue 0" in caplog.text


async def test_a_search_ends_with_its_connection(broker, connect, ask, clock, cold_disk, monkeypatch):
    began = await sent_each_second(ask, clock, 3)
    leaving = await connect(broker)
    search = asyncio.ensure_future(offset_at(leaving, began + 1000))
    await eventually(lambda: cold_disk.began)
    await leaving.close()
    await eventually(lambda: broker.connection_count == 1)
    searches = []
    monkeypatch.setattr(type(broker.store), "offset_by_time", lambda *_, **__: searches.append(1) or 0)
    cold_disk.go.set()
    assert await offset_at(ask, began) == 0
    assert len(searches) == 1
    with pytest.raises(ConnectionLost):
        await search
