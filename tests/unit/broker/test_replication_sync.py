"""SYNC_MASTER: sends are answered when enough slaves have them; every combination with the flush mode, and what is bounded meanwhile."""

import asyncio

import pytest
from tests.waiting import stays
from transacting import COMMIT, ROLLBACK, Transactions

from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.testing import eventually

LATE, MISSING, DISK_LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT


class Slaves:
    """What a broker sees of its slaves."""

    def __init__(self):
        self.have = 0
        self.reachable = True
        self.wakes = 0

    def wrote(self):
        self.wakes += 1

    def replicated(self, count):
        return self.have

    def in_sync(self, count):
        return self.reachable


@pytest.fixture
async def start(start_broker, disk, connect):
    """Start a broker whose sends wait for slaves, with topic ``orders``; return it, its slaves and a connection."""

    async def start(flush="ASYNC_FLUSH", required=1, store=None, **settings):
        broker = await start_broker("sync", disk=disk, store={"flush_disk_type": flush, **(store or {})}, **settings)
        slaves = broker.flusher.replicas = Slaves()
        broker.acks.replicas = required
        broker.store.hold_back(broker.acks.waits)
        broker.staged.mode_changed()
        broker.topics.create_internal("orders", 4)
        return broker, slaves, await connect(broker)

    yield start
    disk.let_go()


def send(ask, **fields):
    return ask.request(310, ask.send_ext("orders", **fields), b"body")


def acknowledge(broker, slaves):
    slaves.have = broker.store.commitlog_max_offset
    broker.flusher.answer_covered()


async def test_a_send_is_answered_when_a_slave_has_it(start):
    broker, slaves, ask = await start()
    waiting = send(ask)
    await eventually(lambda: broker.acks.waiting == 1)
    assert slaves.wakes
    assert not waiting.done()
    slaves.have = broker.store.commitlog_max_offset - 1
    broker.flusher.answer_covered()
    await stays(lambda: not waiting.done())
    acknowledge(broker, slaves)
    answer = await waiting
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
    assert broker.acks.waiting == 0


@pytest.mark.parametrize(("kind", "count"), [("batch", 3), ("single", 1)])
async def test_batches_wait_as_well(start, kind, count):
    broker, slaves, ask = await start()
    waiting = asyncio.ensure_future(ask.send_batch("orders", [b"a"] * count) if kind == "batch" else ask.send("orders"))
    await eventually(lambda: broker.acks.waiting == 1)
    acknowledge(broker, slaves)
    assert (await waiting).code == 0


@pytest.mark.parametrize("fields", [{"properties": "WAIT\x01false\x02"}])
async def test_a_message_that_does_not_want_to_wait_is_answered_when_it_is_written(start, fields):
    broker, _, ask = await start()
    assert (await send(ask, **fields)).code == 0
    assert broker.acks.waiting == 0


async def test_delayed_messages_wait_as_well(start):
    broker, slaves, ask = await start()
    waiting = send(ask, properties="DELAY\x013\x02")
    await eventually(lambda: broker.acks.waiting == 1)
    acknowledge(broker, slaves)
    assert (await waiting).code == 0


async def test_a_slave_that_takes_too_long_is_said_and_the_message_is_stored(start, clock):
    broker, _, ask = await start()
    waiting = send(ask)
    await eventually(lambda: broker.acks.waiting == 1)
    clock.advance(3.0)
    broker.flusher.expire()
    answer = await waiting
    assert (answer.code, answer.ext["queueOffset"]) == (LATE, "0")
    assert await ask.bodies("orders") == [b"body"]


async def test_without_a_slave_in_sync_a_send_is_stored_and_says_so_at_once(start):
    broker, slaves, ask = await start()
    slaves.reachable = False
    answer = await send(ask)
    assert (answer.code, answer.ext["queueOffset"]) == (MISSING, "0")
    assert broker.acks.waiting == 0
    assert await ask.bodies("orders") == [b"body"]


@pytest.mark.parametrize(("outcome", "bodies"), [(COMMIT, [b"paid"]), (ROLLBACK, [])])
async def test_an_end_of_a_transaction_is_done_although_no_slave_has_it(start, outcome, bodies):
    broker, slaves, ask = await start()
    transactions = Transactions(ask)
    beginning = asyncio.ensure_future(transactions.begin(queue=0))
    await eventually(lambda: broker.acks.waiting == 1)
    acknowledge(broker, slaves)
    half = await beginning
    slaves.reachable = False
    assert (await transactions.end(half, outcome)).code == 0
    assert await ask.bodies("orders") == bodies


async def test_a_message_given_back_is_taken_although_no_slave_has_it(start):
    _, slaves, ask = await start()
    slaves.reachable = False
    log_offset = int((await send(ask)).ext["msgId"][16:], 16)
    ext = {"group": "cg", "offset": str(log_offset), "delayLevel": "-1", "originTopic": "orders", "maxReconsumeTimes": "16"}
    assert (await ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    assert await ask.bodies("%DLQ%cg") == [b"body"]


async def test_without_a_slave_in_sync_a_send_still_waits_for_the_disk(start, disk):
    broker, slaves, ask = await start("SYNC_FLUSH")
    slaves.reachable = False
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: disk.flushes)
    assert not waiting.done()
    disk.let_go()
    assert (await waiting).code == MISSING
    assert broker.acks.waiting == 0


@pytest.mark.parametrize("first", ["disk", "slave"])
async def test_with_both_a_send_waits_for_disk_and_slave(start, disk, first):
    broker, slaves, ask = await start("SYNC_FLUSH")
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: disk.flushes)
    if first == "disk":
        disk.let_go()
        await eventually(lambda: not broker.unflushed_bytes)
    else:
        acknowledge(broker, slaves)
    await stays(lambda: not waiting.done())
    if first == "disk":
        acknowledge(broker, slaves)
    else:
        disk.let_go()
    assert (await waiting).code == 0


async def test_a_disk_that_takes_too_long_is_said_although_the_slave_has_it(start, disk, clock):
    broker, slaves, ask = await start("SYNC_FLUSH")
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: disk.flushes)
    acknowledge(broker, slaves)
    clock.advance(5.0)
    broker.flusher.expire()
    assert (await waiting).code == DISK_LATE


# --- what readers see ---------------------------------------------------------------------------------------------------


def pull(ask, **fields):
    return asyncio.ensure_future(ask.bodies("orders", wait_ms=20_000, **fields))


@pytest.mark.parametrize("properties", ["", "WAIT\x01false\x02"])
async def test_readers_see_a_message_when_a_slave_has_it(start, properties):
    broker, slaves, ask = await start()
    sending = send(ask, properties=properties)
    end = broker.store.commitlog_max_offset
    await eventually(lambda: broker.store.commitlog_max_offset > end)
    assert broker.store.max_offset("orders", 0) == 0
    assert await ask.bodies("orders") == []
    waiting = pull(ask)
    await eventually(lambda: broker.pulls.held_count == 1)
    acknowledge(broker, slaves)
    assert await waiting == [b"body"]
    assert (await sending).code == 0


async def test_readers_see_a_message_when_disk_and_slave_have_it(start, disk):
    broker, slaves, ask = await start("SYNC_FLUSH")
    disk.hold()
    sending = send(ask)
    await eventually(lambda: disk.flushes)
    acknowledge(broker, slaves)
    waiting = pull(ask)
    await eventually(lambda: broker.pulls.held_count == 1)
    await stays(lambda: not waiting.done())
    disk.let_go()
    assert await waiting == [b"body"]
    assert (await sending).code == 0


async def test_readers_see_what_too_few_slaves_could_get(start):
    broker, slaves, ask = await start()
    slaves.reachable = False
    waiting = pull(ask)
    await eventually(lambda: broker.pulls.held_count == 1)
    assert (await send(ask, properties="WAIT\x01false\x02")).code == 0
    assert await waiting == [b"body"]


async def test_readers_see_what_slaves_did_not_confirm_in_time_although_no_send_waits(start, clock):
    broker, _, ask = await start()
    waiting = pull(ask)
    await eventually(lambda: broker.pulls.held_count == 1)
    assert (await send(ask, properties="WAIT\x01false\x02")).code == 0
    await stays(lambda: not waiting.done())
    clock.advance(3.0)
    broker.flusher.expire()
    assert await waiting == [b"body"]


async def test_delayed_messages_are_seen_when_a_slave_has_their_copies(start, clock):
    broker, slaves, ask = await start()
    sending = send(ask, properties="DELAY\x011\x02")
    await eventually(lambda: broker.acks.waiting == 1)
    acknowledge(broker, slaves)
    assert (await sending).code == 0
    parked = broker.store.commitlog_max_offset
    clock.advance(1.0)
    await eventually(lambda: broker.store.commitlog_max_offset > parked)
    assert await ask.bodies("orders") == []
    acknowledge(broker, slaves)
    assert await ask.bodies("orders") == [b"body"]


async def test_readers_of_uncommitted_messages_do_not_wait_for_slaves(start):
    broker, slaves, ask = await start(store={"read_uncommitted": True})
    waiting = pull(ask)
    await eventually(lambda: broker.pulls.held_count == 1)
    sending = send(ask)
    assert await waiting == [b"body"]
    assert not sending.done()
    acknowledge(broker, slaves)
    assert (await sending).code == 0


async def test_what_waits_for_slaves_is_bounded(start):
    broker, slaves, ask = await start(max_waiting_sends=3)
    waiting = [send(ask) for _ in range(3)]
    await eventually(lambda: broker.acks.waiting == 3)
    assert (await send(ask)).code == ResponseCode.SYSTEM_BUSY
    assert (await send(ask, properties="WAIT\x01false\x02")).code == 0
    acknowledge(broker, slaves)
    assert {answer.code for answer in await asyncio.gather(*waiting)} == {0}


async def test_a_failed_flush_ends_waiting_for_slaves_too(start, disk):
    broker, _, ask = await start("SYNC_FLUSH")
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: disk.flushes)
    disk.fail()
    disk.let_go()
    assert (await waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.acks.waiting == 0


async def test_a_master_that_is_replaced_acknowledges_nothing_more(start):
    broker, slaves, ask = await start()
    waiting = send(ask)
    await eventually(lambda: broker.acks.waiting == 1)
    broker.flusher.give_up()
    answer = await waiting
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "no longer the master" in answer.remark
    acknowledge(broker, slaves)
    assert broker.acks.waiting == 0


async def test_an_asynchronous_master_wakes_its_slaves_once_a_commit_and_waits_for_none(start):
    broker, slaves, ask = await start(required=0)
    before = slaves.wakes
    assert (await send(ask)).code == 0
    assert slaves.wakes == before + 1
    assert broker.acks.waiting == 0
