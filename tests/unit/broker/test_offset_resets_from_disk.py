"""Groups that are moved to a time among messages that are not in memory: the search waits for the disk, and nothing else does."""

import asyncio

import pytest

from sprocketmq.broker import cold_reads, offset_resets
from sprocketmq.protocol.bodies import ResetOffsets
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.storage.queues import cold_reads as finder
from sprocketmq.testing import eventually

QUEUES = 3


@pytest.fixture
async def began(ask, clock):
    """Send nine messages a second apart, to the queues in turn, and return the time of the first; there is a group."""
    assert (await ask(Q.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"cg"}')).code == 0
    first = clock.time_ms()
    for number in range(9):
        assert (await ask.send("orders", queue=number % QUEUES)).code == 0
        clock.advance(1)
    return first


def reset(ask, time_ms):
    fields = {"topic": "orders", "group": "cg", "timestamp": str(time_ms), "isForce": "true"}
    return ask(Q.INVOKE_BROKER_TO_RESET_OFFSET, fields)


async def offsets(ask, time_ms):
    table = ResetOffsets.decode((await reset(ask, time_ms)).body).offset_table
    return [offset for _, offset in sorted(table.items(), key=lambda item: item[0].queue_id)][:QUEUES]


async def test_a_reset_waits_for_the_disk_and_no_other_request_does(ask, began, cold_disk):
    waiting = asyncio.ensure_future(offsets(ask, began + 4000))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    assert not waiting.done()
    cold_disk.go.set()
    assert await waiting == [2, 1, 1]


async def test_a_topic_that_is_deleted_meanwhile_is_not_reset(broker, ask, began, cold_disk):
    waiting = asyncio.ensure_future(reset(ask, began + 4000))
    await eventually(lambda: cold_disk.began)
    assert (await ask(Q.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})).code == 0
    cold_disk.go.set()
    assert (await waiting).code == R.TOPIC_NOT_EXIST
    assert broker.offsets.get("cg", "orders", 0) is None


async def test_a_disk_that_loses_everything_again_delays_a_reset_only_so_often(ask, began, cold_disk, monkeypatch):
    reads = []
    monkeypatch.setattr(offset_resets, "MAX_LOADS", 4)
    monkeypatch.setattr(finder, "resident", lambda *_: False)
    monkeypatch.setattr(finder, "read_through", lambda *_: reads.append(1))
    assert await offsets(ask, began + 4000) == [2, 1, 1]
    assert len(reads) <= 4 * 8  # as many queues as topics have by default


async def test_resets_that_wait_for_the_disk_are_limited(ask, began, cold_disk, monkeypatch):
    monkeypatch.setattr(cold_reads, "MAX_WAITING", 1)
    waiting = asyncio.ensure_future(offsets(ask, began + 4000))
    await eventually(lambda: cold_disk.began)
    assert (await reset(ask, began)).code == R.SYSTEM_BUSY
    cold_disk.go.set()
    assert await waiting == [2, 1, 1]


async def test_a_queue_that_cannot_be_read_answers_with_the_error(broker, ask, began, cold_disk, monkeypatch, caplog):
    waiting = asyncio.ensure_future(reset(ask, began + 4000))
    await eventually(lambda: cold_disk.began)

    def fails(*_, **__):
        raise OSError("no disk")

    monkeypatch.setattr(type(broker.store), "offset_by_time", fails)
    cold_disk.go.set()
    answer = await waiting
    assert (answer.code, answer.remark) == (R.SYSTEM_ERROR, "internal error: OSError: no disk")
    assert "reset of group cg on topic orders" in caplog.text
