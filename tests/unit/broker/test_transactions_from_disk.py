"""Half messages that are not in memory: their checks and outcomes wait for the disk, and nothing else does."""

import asyncio

import pytest
from transacting import COMMIT, ROLLBACK, UNKNOWN, Transactions

from sprocketmq.broker.cold_reads import MAX_RECORD_LOADS
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.ids import offset_msg_id
from sprocketmq.protocol.names import DISCARDED_HALVES_TOPIC
from sprocketmq.storage.queues import cold_reads as finder
from sprocketmq.testing import eventually

TIMEOUT_S = 6.0
INTERVAL_S = 30.0


@pytest.fixture
def transactions(ask):
    return Transactions(ask)


async def test_checks_wait_for_the_disk_and_no_request_does(broker, ask, clock, transactions, cold_disk):
    await ask.heartbeat(producers=["pg"])
    for number in range(5):
        await transactions.begin(b"%d" % number)
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    await transactions.begin(b"later")
    assert broker.checks.asked == 0
    cold_disk.go.set()
    await eventually(lambda: broker.checks.asked == 5)
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    await eventually(lambda: broker.checks.asked == 6)


async def test_what_has_an_outcome_before_the_disk_answers_is_not_asked_about(broker, ask, clock, transactions, cold_disk):
    await ask.heartbeat(producers=["pg"])
    kept, ended = [await transactions.begin(body) for body in (b"kept", b"ended")]
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    await eventually(lambda: cold_disk.began)
    broker.transactions.open_halves.end(int(ended["tranStateTableOffset"]), ROLLBACK)
    cold_disk.go.set()
    await eventually(lambda: broker.checks.asked)
    assert broker.checks.asked == 1
    assert (await transactions.end(kept, COMMIT)).code == 0


async def test_a_stop_while_checks_wait_asks_nobody(broker, ask, clock, transactions, cold_disk):
    await ask.heartbeat(producers=["pg"])
    await transactions.begin()
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    await eventually(lambda: cold_disk.began)
    broker.checks.stop()
    cold_disk.go.set()
    assert (await ask.send("others")).code == 0
    broker.checks.start()
    await eventually(lambda: broker.checks.asked == 1)


async def test_a_disk_that_loses_everything_again_delays_checks_only_so_often(broker, ask, clock, transactions, cold_disk, monkeypatch):
    reads = []
    monkeypatch.setattr(finder, "resident", lambda *_: False)
    monkeypatch.setattr(finder, "read_through", lambda *_: reads.append(1))
    await ask.heartbeat(producers=["pg"])
    await transactions.begin()
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    await eventually(lambda: broker.checks.asked == 1)
    assert len(reads) == MAX_RECORD_LOADS


async def test_a_half_message_whose_place_cannot_be_found_is_asked_about_all_the_same(broker, ask, clock, transactions, monkeypatch):
    await ask.heartbeat(producers=["pg"])
    await transactions.begin()

    def fails(_):
        raise OSError("no more files may be open")

    monkeypatch.setattr(broker.store, "find_cold_record", fails)
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    assert broker.checks.asked == 1


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK, UNKNOWN])
async def test_an_outcome_waits_for_the_disk_and_no_other_request_does(ask, broker, transactions, cold_disk, outcome):
    half = await transactions.begin()
    waiting = asyncio.ensure_future(transactions.end(half, outcome))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    assert not waiting.done()
    cold_disk.go.set()
    assert (await waiting).code == 0
    assert len(broker.transactions.open_halves) == (outcome == UNKNOWN)
    assert await ask.bodies("orders", queue=1) == ([b"paid"] if outcome == COMMIT else [])


async def test_a_refused_outcome_is_refused_after_the_wait(ask, transactions, cold_disk):
    half = await transactions.begin()
    cold_disk.go.set()
    answer = await transactions.end(half, COMMIT, producerGroup="other")
    assert (answer.code, answer.remark) == (1, "The producer group wrong")


async def test_a_transaction_that_was_given_up_on_is_resumed_after_the_wait(start_broker, connect, clock, cold_disk):
    broker = await start_broker(transaction_check_max=1)
    ask = await connect(broker)
    await ask.heartbeat(producers=["pg"])
    cold_disk.cached.add("everything")
    await Transactions(ask).begin()
    for _ in range(2):
        clock.advance(INTERVAL_S + 1)
        broker.checks.fire()
    assert broker.checks.discarded == 1
    ((log_offset, _, _),) = broker.store.units(DISCARDED_HALVES_TOPIC, 0, 0, 1)
    cold_disk.cached.clear()
    clock.advance(10)  # what was in memory a moment ago counts as being there still
    message = {"msgId": offset_msg_id(broker.store.store_host, log_offset)}
    waiting = asyncio.ensure_future(ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, message))
    await eventually(lambda: cold_disk.began)
    cold_disk.go.set()
    assert (await waiting).code == 0
    assert len(broker.transactions.open_halves) == 1


async def test_a_resumption_of_no_message_is_refused(ask):
    answer = await ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "xyz"})
    assert answer.code == 1
