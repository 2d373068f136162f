"""Keys are indexed soon after their messages, so that monitoring sees an idle broker idle."""

import threading

import pytest

from sprocketmq.broker import flushing
from sprocketmq.protocol.bodies import RuntimeInfo
from sprocketmq.protocol.records import decode_records
from sprocketmq.testing import eventually


@pytest.fixture
def by_hand(monkeypatch):
    """Nothing looks at the index unless the test does."""
    monkeypatch.setattr(flushing, "INDEX_TICK_S", 3600)


async def behind(ask):
    table = RuntimeInfo.decode((await ask(28)).body).table
    return int(table["dispatchBehindBytes"]), int(table["dispatchBehindMs"])


async def looked(broker):
    """Have the index looked at; tell whether that indexed."""
    broker.flusher.look_at_index()
    task = broker.flusher._indexing
    if task is not None:
        await task
    return task is not None


async def test_when_the_log_does_not_grow_what_waits_is_indexed(by_hand, broker, ask, clock):
    await ask.send("orders", properties="KEYS\x01k\x02")
    clock.advance(0.02)
    size, waited_ms = await behind(ask)
    assert size > 0
    assert waited_ms == 20
    assert not await looked(broker), "it may be growing"
    assert await looked(broker)
    assert await behind(ask) == (0, 0)
    assert not await looked(broker)
    assert broker.store.indexed_until[1] == 0
    assert len(broker.store.query("orders", "k")) == 1


async def test_while_the_log_grows_few_keys_are_indexed_when_they_have_waited(by_hand, broker, ask, clock):
    await ask.send("orders", properties="KEYS\x01k\x02")
    assert not await looked(broker)
    for waited_s, indexed in ((0.24, False), (0.01, True)):
        clock.advance(waited_s)
        await ask.send("orders", properties="KEYS\x01k\x02")
        assert await looked(broker) is indexed
    assert await behind(ask) == (0, 0)


async def test_a_busy_broker_leaves_many_keys_to_the_commits_that_index_them_together(by_hand, broker, ask, clock, monkeypatch):
    monkeypatch.setattr(flushing, "INDEX_FEW_BYTES", 1000)
    await ask.send("orders", b"x" * 1000, properties="KEYS\x01k\x02")
    for _ in range(3):
        clock.advance(1)
        await ask.send("orders", b"x" * 1000, properties="KEYS\x01k\x02")
        assert not await looked(broker)
    assert await looked(broker), "it is idle now"
    assert await behind(ask) == (0, 0)


async def test_a_disk_that_refuses_is_left_to_the_next_thorough_flush(by_hand, broker, ask, clock, monkeypatch):
    await ask.send("orders", properties="KEYS\x01k\x02")
    monkeypatch.setattr(broker.store.index._keys, "_index", lambda staged: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert not await looked(broker)
    assert await looked(broker)
    assert broker.store.index_failure == "No space left on device"
    assert broker.flusher._index_timer is None


@pytest.mark.parametrize(("size", "in_a_thread"), [(1000, False), (40_000, True)])
async def test_a_question_by_key_indexes_much_in_another_thread(by_hand, broker, ask, monkeypatch, size, in_a_thread):
    await ask.send("orders", b"x" * size, properties="KEYS\x01k\x02")
    threads = []
    process = broker.store.index._keys.process

    def noting(*arguments):
        threads.append(threading.current_thread() is threading.main_thread())
        process(*arguments)

    monkeypatch.setattr(broker.store.index._keys, "process", noting)
    times = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    answer = await ask(12, {"topic": "orders", "key": "k", **times})
    assert [len(m.body) for m in decode_records(answer.body)] == [size]
    assert threads == ([False, True] if in_a_thread else [True])


async def test_it_happens_by_itself_without_a_thorough_flush(broker, ask, monkeypatch):
    monkeypatch.setattr(broker.store, "flush", lambda **_: pytest.fail("that would index as well"))
    for _ in range(3):
        await ask.send("orders", properties="KEYS\x01k\x02")
        await eventually(lambda: broker.store.index_lag[0] == 0)
    monkeypatch.undo()
