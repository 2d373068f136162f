"""What counts as in memory or on the disk, which broker answers suggest, slaves, and pulls that wait for the disk."""

import asyncio

import pytest
from tests.inside import queue_of

from sprocketmq.broker import cold_reads, pull
from sprocketmq.broker.replication.roles import Role
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.queues import cold_reads as finder
from sprocketmq.testing import eventually

MIB = 1 << 20


def suggested(answer):
    return int(answer.ext["suggestWhichBrokerId"])


async def fill(ask, count, size=700, topic="orders"):
    for n in range(count):
        await ask.send(topic, bytes([n]) * size)


# --- limits and suggestions ---


async def test_messages_far_behind_the_end_have_limits_of_their_own(start_broker, connect, monkeypatch):
    monkeypatch.setattr(pull, "memory_bytes", lambda: 10_000)
    limits = {"max_transfer_count_on_message_in_disk": 2, "max_transfer_bytes_on_message_in_disk": 1500}
    ask = await connect(await start_broker(access_message_in_memory_max_ratio=40, **limits))
    await fill(ask, 10)  # the last four are at most 4,000 bytes behind
    first, behind, near = [await ask.pull("orders", offset) for offset in (0, 4, 6)]
    assert [len(decode_records(answer.body)) for answer in (first, behind, near)] == [1, 1, 4]
    assert [suggested(answer) for answer in (first, behind, near)] == [1, 1, 0]
    small = await ask.pull("orders", 0, maxMsgBytes="100000", count=1)
    assert len(decode_records(small.body)) == 1
    await fill(ask, 10, 1, topic="short")
    assert len(await ask.bodies("orders", 6)) == 1


async def test_batch_queues_have_these_limits_too(start_broker, connect, monkeypatch):
    monkeypatch.setattr(pull, "memory_bytes", lambda: 10_000)
    broker = await start_broker(max_transfer_count_on_message_in_disk=4)
    broker.store.declare_batch_topic("batched")
    ask = await connect(broker)
    await ask.send("batched")  # creates it
    for _ in range(8):
        await ask.send_batch("batched", [b"x" * 300] * 4)
    far, near = await ask.pull("batched", 0, count=100), await ask.pull("batched", 29, count=100)
    assert int(far.ext["nextBeginOffset"]) < 8
    assert int(near.ext["nextBeginOffset"]) == 33


async def test_the_old_names_of_the_limits_hold_for_all_messages(start_broker):
    config = (await start_broker(max_transfer_count=3, max_transfer_bytes=2 * MIB)).config
    assert (config.max_transfer_count_on_message_in_memory, config.max_transfer_count_on_message_in_disk) == (3, 3)
    assert (config.max_transfer_bytes_on_message_in_memory, config.max_transfer_bytes_on_message_in_disk) == (2 * MIB, MIB // 4)


async def test_groups_say_which_broker_is_suggested(start_broker, connect, monkeypatch):
    monkeypatch.setattr(pull, "memory_bytes", lambda: 1000)
    broker = await start_broker()
    ask = await connect(broker)
    await fill(ask, 4)
    group = broker.groups.find("cg")
    group.broker_id, group.which_broker_when_consume_slowly = 2, 3
    assert [suggested(await ask.pull("orders", offset)) for offset in (0, 4)] == [3, 2]


async def test_a_master_without_slave_read_enable_suggests_itself(start_broker, connect, monkeypatch):
    monkeypatch.setattr(pull, "memory_bytes", lambda: 1000)
    ask = await connect(await start_broker(slave_read_enable=False))
    await fill(ask, 4)
    assert suggested(await ask.pull("orders", 0)) == 0


# --- slaves ---


@pytest.fixture
async def slave(broker, ask):
    """A broker with two messages that is told to be a slave; its master is away."""
    await fill(ask, 2)
    broker.role.take(Role.SLAVE, 1)
    return broker


async def test_a_slave_whose_master_is_away_answers_and_holds_pulls(slave, ask):
    answer = await ask.pull("orders", 0)
    assert (answer.code, suggested(answer), len(decode_records(answer.body))) == (0, 0, 2)
    assert (await ask.pull("orders", 2)).code == 19
    waiting = asyncio.ensure_future(ask.pull("orders", 2, wait_ms=30_000))
    await eventually(lambda: slave.pulls.held_count == 1)
    slave.pulls.topic_deleted(slave.topics.get("orders"))
    assert (await waiting).code == 17


@pytest.mark.parametrize("offset", [-1, 3, 100])
async def test_a_slave_moves_no_offset(slave, ask, offset):
    answer = await ask.pull("orders", offset, wait_ms=30_000)
    assert (answer.code, int(answer.ext["nextBeginOffset"]), suggested(answer)) == (20, offset, 0)


async def test_a_slave_sends_consumers_back_to_a_living_master(slave, ask):
    slave.role.follow("127.0.0.1:1", "")
    found = await ask.pull("orders", 0)
    assert (found.code, suggested(found)) == (0, 0)
    for offset in (2, 3):
        answer = await ask.pull("orders", offset, wait_ms=30_000)
        assert (answer.code, int(answer.ext["nextBeginOffset"]), suggested(answer)) == (20, offset, 0)


async def test_a_slave_without_slave_read_enable_refuses_pulls(start_broker, connect):
    broker = await start_broker(slave_read_enable=False)
    ask = await connect(broker)
    await fill(ask, 1)
    broker.role.take(Role.SLAVE, 1)
    answer = await ask.pull("orders", 0)
    assert answer.code == 2
    assert answer.remark.startswith("[REJECTREQUEST]system busy")


# --- pulls that wait for the disk ---


async def test_a_pull_waits_for_the_disk_and_no_other_request_does(broker, ask, cold_disk):
    await fill(ask, 3)
    cold = asyncio.ensure_future(ask.pull("orders", 0))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("orders")).code == 0
    assert not cold.done()
    cold_disk.go.set()
    assert len(decode_records((await cold).body)) == 4


async def test_a_pull_that_waits_for_the_disk_is_answered_when_its_topic_is_deleted(broker, ask, cold_disk):
    await fill(ask, 3)
    cold = asyncio.ensure_future(ask.pull("orders", 0))
    await eventually(lambda: cold_disk.began)
    broker.pulls.topic_deleted(broker.topics.get("orders"))
    assert (await cold).code == 17
    cold_disk.go.set()


async def test_a_connection_may_end_while_its_pull_waits_for_the_disk(broker, connect, ask, cold_disk):
    await fill(ask, 3)
    other = await connect(broker)
    cold = asyncio.ensure_future(other.pull("orders", 0))
    await eventually(lambda: cold_disk.began)
    await other.close()
    with pytest.raises(Exception, match=r"."):
        await cold
    cold_disk.go.set()
    assert len(await ask.bodies("orders")) == 3


async def test_retention_may_delete_what_a_pull_waits_for(broker, ask, cold_disk, monkeypatch):
    await fill(ask, 3)
    cold = asyncio.ensure_future(ask.pull("orders", 0))
    await eventually(lambda: cold_disk.began)
    monkeypatch.setattr(type(broker.store), "find_cold", lambda *_: None)
    queue_of(broker.store, "orders", 0).min_offset = 2
    cold_disk.go.set()
    answer = await cold
    assert (answer.code, answer.remark, int(answer.ext["nextBeginOffset"])) == (21, "OFFSET_TOO_SMALL", 2)


async def test_pulls_that_wait_for_the_disk_are_limited(broker, ask, cold_disk, monkeypatch):
    monkeypatch.setattr(cold_reads, "MAX_WAITING", 2)
    await fill(ask, 3)
    waiting = [asyncio.ensure_future(ask.pull("orders", offset)) for offset in range(2)]
    await eventually(lambda: cold_disk.began == 2)
    answer = await ask.pull("orders", 0)
    assert (answer.code, answer.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
    cold_disk.go.set()
    assert [answer.code for answer in await asyncio.gather(*waiting)] == [0, 0]


async def test_pulls_of_the_same_messages_share_a_read_of_the_disk(broker, ask, cold_disk):
    await fill(ask, 3)
    waiting = [asyncio.ensure_future(ask.bodies("orders")) for _ in range(3)]
    await eventually(lambda: cold_disk.began)
    await ask.pull("unknown", 0)  # the pulls before it have come as well
    cold_disk.go.set()
    assert [len(found) for found in await asyncio.gather(*waiting)] == [3, 3, 3]
    assert cold_disk.began == 1


async def test_a_disk_that_loses_everything_again_delays_a_pull_three_times_at_most(broker, ask, cold_disk, monkeypatch):
    await fill(ask, 3)
    monkeypatch.setattr(finder, "resident", lambda *_: False)
    cold_disk.go.set()
    assert len(await ask.bodies("orders")) == 3
    assert cold_disk.began == 3


async def test_pulls_that_follow_one_from_the_disk_have_its_limits_for_five_seconds(start_broker, connect, clock, cold_disk):
    ask = await connect(await start_broker(max_transfer_count_on_message_in_disk=2))
    await fill(ask, 6)
    cold_disk.go.set()
    assert [len(await ask.bodies("orders", offset)) for offset in (0, 2)] == [2, 2]
    assert cold_disk.began == 1
    assert (await ask.pull("orders", 6)).code == 19
    clock.advance(10)
    assert len(await ask.bodies("orders", 1)) == 5


async def test_pulls_that_follow_one_from_the_disk_have_its_limits_for_some_bytes(start_broker, connect, clock, cold_disk, monkeypatch):
    monkeypatch.setattr(pull, "BEHIND_BYTES", 1500)
    ask = await connect(await start_broker(max_transfer_count_on_message_in_disk=1, max_transfer_bytes_on_message_in_disk=3000))
    await fill(ask, 6)
    cold_disk.go.set()
    assert [len(await ask.bodies("orders", offset)) for offset in (0, 1, 2)] == [1, 1, 1]
    clock.advance(finder.FRESH_S)
    assert len(await ask.bodies("orders", 3)) == 3


async def test_a_page_that_is_missing_makes_no_reader_of_the_disk(start_broker, connect, monkeypatch):
    broker = await start_broker(max_transfer_count_on_message_in_disk=1)
    ask = await connect(broker)
    await fill(ask, 6)
    found = [finder.ColdRead([("gone", 0, 4096)], 6, slight=True)]
    monkeypatch.setattr(type(broker.store), "find_cold", lambda *_: found.pop() if found else None)
    assert [len(await ask.bodies("orders", offset)) for offset in (0, 1)] == [1, 5]


async def test_answers_from_the_disk_are_shorter_while_messages_come_in(start_broker, connect, clock, cold_disk):
    ask = await connect(await start_broker(max_transfer_bytes_on_message_in_disk=4800))
    await fill(ask, 6, 300)
    cold_disk.go.set()
    assert len(await ask.bodies("orders")) == 2
    clock.advance(2)
    assert len(await ask.bodies("orders")) == 6
    await ask.send("orders")
    assert len(await ask.bodies("orders")) == 2
