"""What a broker's metrics say of transactions, timed messages and pops, scraped over HTTP."""

import errno

import pytest
from popping import INVISIBLE_S, Popper, pop_ext
from tests.scraping import scrape
from transacting import COMMIT, ROLLBACK, Transactions

from sprocketmq.storage import fs

CHECKPOINTS = {"revive_message_type": "CK", "put_status": "PUT_OK"}
ACKS = {"revive_message_type": "ACK", "put_status": "PUT_OK"}


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
async def broker(start_broker):
    broker = await start_broker(metrics_exporter="prom", metrics_port=0)
    broker.topics.create_internal("orders", 4)
    return broker


@pytest.fixture
def page(broker):
    return lambda: scrape(broker.metrics.address)


@pytest.fixture
def transactions(ask):
    return Transactions(ask)


@pytest.fixture
def popper(ask):
    return Popper(ask)


async def test_transactions_by_what_became_of_them(page, transactions):
    await transactions.send(COMMIT)
    await transactions.send(COMMIT)
    await transactions.send(ROLLBACK)
    await transactions.begin()
    found = await page()
    assert found.values("rocketmq_commit_messages_total", "topic") == {("orders",): 2}
    assert found.values("rocketmq_rollback_messages_total", "topic") == {("orders",): 1}
    assert found.values("rocketmq_half_messages", "topic") == {("orders",): 1}


async def test_how_long_transactions_took_from_the_message_to_its_commit(clock, page, transactions):
    assert not (await page()).values("rocketmq_finish_message_latency_milliseconds_count", "topic")
    for seconds in (2, 100, -50):  # the clock of the last producer is ahead
        half = await transactions.begin(g=str(clock.time_ms() - seconds * 1000))
        await transactions.end(half, COMMIT)
        await transactions.end(half, COMMIT)
    await transactions.send(ROLLBACK)
    found = await page()
    assert found.value("rocketmq_finish_message_latency_milliseconds_sum", topic="orders") == 102_000
    buckets = found.values("rocketmq_finish_message_latency_milliseconds_bucket", "le", topic="orders")
    assert [buckets[bound,] for bound in ("5000.0", "60000.0", "600000.0", "+Inf")] == [2, 2, 3, 3]


async def test_timed_messages_are_counted_by_topic_while_they_wait(ask, broker, clock, page, start_broker, connect):
    async def timed(topic, seconds):
        return (await ask.send(topic, properties=f"TIMER_DELIVER_MS\x01{clock.time_ms() + seconds * 1000}\x02")).ext

    broker.topics.create_internal("bills", 1)
    for topic, seconds in (("orders", 3), ("orders", 40), ("bills", 40)):
        recallable = await timed(topic, seconds)
    recall = {"topic": "bills", "recallHandle": recallable["recallHandle"], "producerGroup": "pg", "bname": "broker-a"}
    assert (await ask(370, recall)).code == 0
    assert (await page()).values("rocketmq_timing_messages", "topic") == {("orders",): 2, ("bills",): 1}
    clock.advance(10)
    broker.delays.fire()
    assert (await page()).values("rocketmq_timing_messages", "topic") == {("orders",): 1, ("bills",): 1}
    await broker.stop()
    restarted = await start_broker(like=broker)
    found = await scrape(restarted.metrics.address)
    assert found.values("rocketmq_timing_messages", "topic") == {("orders",): 1, ("bills",): 1}
    clock.advance(40)
    restarted.delays.fire()
    # The topic of the recalled message had no traffic since the start.
    assert (await scrape(restarted.metrics.address)).values("rocketmq_timing_messages", "topic") == {("orders",): 0}


async def test_timed_messages_that_cannot_be_delivered_yet_are_still_counted(ask, broker, clock, monkeypatch, page):
    await ask.send("orders", properties=f"TIMER_DELIVER_MS\x01{clock.time_ms() + 1000}\x02")
    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", no_space)
        clock.advance(2)
        broker.delays.fire()
    assert (await page()).values("rocketmq_timing_messages", "topic") == {("orders",): 1}


async def test_pops_are_counted_as_the_journal_notes_them(ask, clock, page, popper):
    for _ in range(3):
        await ask.send("orders")
    await ask.send("orders", queue=1)
    popped = sorted(await popper.pop(queue=-1), key=lambda pair: pair[0].queue_id)  # a pop begins at any queue
    (_, first), (_, second), _, _ = popped
    assert await popper.ack(first) == 0
    assert await popper.ack(first) == 0  # repeated: no effect
    found = await page()
    assert found.values("rocketmq_pop_revive_in_message_total", "consumer_group", "topic", "revive_message_type") == {
        ("g", "orders", "CK"): 2,
        ("g", "orders", "ACK"): 1,
    }
    assert not found.values("rocketmq_pop_revive_retry_messages_total", "topic")
    assert (await popper.change(second, 60)).code == 0
    assert (await page()).value("rocketmq_pop_revive_in_message_total", **CHECKPOINTS) == 3
    clock.advance(INVISIBLE_S + 1)
    assert len(await popper.pop(queue=-1)) == 2
    found = await page()
    assert found.value("rocketmq_pop_revive_retry_messages_total", consumer_group="g", topic="orders", put_status="PUT_OK") == 2
    assert found.value("rocketmq_pop_revive_in_message_total", **CHECKPOINTS) == 5
    assert found.value("rocketmq_pop_revive_in_message_total", **ACKS) == 1


async def test_what_is_popped_and_not_acknowledged_is_in_the_buffers(ask, page, popper):
    async def buffers():
        found = await page()
        return found.value("rocketmq_pop_checkpoint_buffer_size"), found.value("rocketmq_pop_offset_buffer_size")

    assert await buffers() == (0, 0)
    for _ in range(4):
        await ask.send("orders")
    handles = [handle for _, handle in await popper.pop()]
    assert await buffers() == (4, 4)
    await popper.ack(handles[1])
    await popper.ack(handles[3])
    assert await buffers() == (2, 4)  # the first one holds up the offset of the group
    await popper.ack(handles[0])
    assert await buffers() == (1, 2)


async def test_pops_that_the_journal_cannot_take_are_not_counted_as_noted(ask, broker, monkeypatch, page):
    await ask.send("orders")
    with monkeypatch.context() as patch:
        patch.setattr(fs.RealFile, "pwrite", no_space)
        assert (await ask(200050, pop_ext(broker))).code == 1
    assert not (await page()).values("rocketmq_pop_revive_in_message_total", "topic")


async def test_nothing_waits_to_be_revived(page):
    found = await page()
    assert found.values("rocketmq_pop_revive_lag_milliseconds", "queue_id") == {("0",): 0}
    assert found.values("rocketmq_pop_revive_latency_milliseconds", "queue_id") == {("0",): 0}
