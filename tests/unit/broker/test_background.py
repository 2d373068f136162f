"""What a broker does in the background, when it fails or is cancelled: it is logged and goes on, or the broker ends."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from sprocketmq.broker import registration
from sprocketmq.broker.saving import SavedFile
from sprocketmq.errors import ConnectionLost
from sprocketmq.net.tasks import Background
from sprocketmq.testing import eventually


class Broken(Exception):
    """A fault in the program."""


def fails_once(outcome, then=lambda *_, **__: None):
    """Return a function that raises ``outcome`` first and does as ``then`` from then on."""
    left = [outcome]

    def call(*arguments, **named):
        if left:
            raise left.pop()
        return then(*arguments, **named)

    return call


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_delayed_messages_come_after_their_service_has_failed(broker, ask, clock, caplog, monkeypatch):
    assert (await ask.send("orders", b"late", properties="DELAY\x011\x02")).code == 0
    monkeypatch.setattr(broker.staged, "finish", fails_once(Broken("x"), broker.staged.finish))
    clock.advance(1)
    broker.delays.fire()
    assert broker.delays.armed
    assert errors(caplog) == ["delayed messages have to wait"]
    clock.advance(10)
    broker.delays.fire()
    assert await ask.bodies("orders") == [b"late"]


async def test_delayed_messages_come_after_one_could_not_be_staged(broker, ask, clock, caplog, monkeypatch):
    for _ in range(2):
        assert (await ask.send("orders", b"late", properties="DELAY\x011\x02")).code == 0
    monkeypatch.setattr(broker.store, "stage_copy", fails_once(Broken("x"), broker.store.stage_copy))
    clock.advance(1)
    broker.delays.fire()
    assert errors(caplog) == ["delayed messages have to wait"]
    for _ in range(3):
        clock.advance(10)
        broker.delays.fire()
    assert await ask.bodies("orders") == [b"late", b"late"]


async def test_a_held_pull_that_cannot_be_answered_keeps_no_other_waiting(broker, ask, clock, caplog, monkeypatch):
    waiting = [ask.pull("orders", 0, queue=queue, wait_ms=1000) for queue in range(2)]
    await eventually(lambda: broker.pulls.held_count == 2)
    monkeypatch.setattr(broker.store, "read", fails_once(Broken("x"), broker.store.read))
    clock.advance(5)
    broker.pulls.held.expire()
    answers = [await pull for pull in waiting]
    assert sorted(answer.code for answer in answers) == [1, 19]
    assert "internal error: Broken: x" in [answer.remark for answer in answers]
    assert len(errors(caplog)) == 1


async def test_a_round_of_cleaning_that_fails_or_is_cancelled_is_logged_and_the_next_one_comes(broker, caplog, monkeypatch):
    cleaning = broker.cleaning
    await eventually(lambda: cleaning.due is not None)
    monkeypatch.setattr(broker.store, "segments", fails_once(Broken("x"), broker.store.segments))
    cleaning.begin()
    await eventually(lambda: cleaning.due is not None)
    assert errors(caplog) == ["broker broker-a: cleaning failed"]
    cleaning.begin()
    cleaning.round.cancel()  # before its first step
    await eventually(lambda: cleaning.due is not None)
    await eventually(lambda: len(errors(caplog)) == 2)


async def test_a_settling_whose_outcome_cannot_be_told_ends_the_broker(broker, ask, monkeypatch):
    await ask.send("orders")
    monkeypatch.setattr(broker.store, "publish", fails_once(Broken("x"), broker.store.publish))
    broker.flusher.settle()
    await eventually(lambda: broker.failure is not None)
    assert not broker.flusher.settling
    assert (await ask.send("orders")).code != 0


async def test_a_broker_whose_flushing_thread_dies_fails_as_for_a_failed_flush(start_broker, connect, monkeypatch, caplog):
    broker = await start_broker(flush_interval_s=0.001)
    monkeypatch.setattr(broker.flusher, "_attempt", fails_once(SystemExit(1)))
    ask = await connect(broker)
    await ask.send("orders")
    failure = await asyncio.wait_for(broker.wait_failed(), 60)
    assert "the thread that flushes has ended: SystemExit" in str(failure)
    assert (await ask.send("orders")).code != 0


async def test_news_of_topics_that_could_not_be_told_are_told_soon(start_broker, namesrv, monkeypatch, caplog):
    broker = await start_broker(namesrv=(namesrv.address,))
    monkeypatch.setattr(registration, "RegisterBrokerBody", fails_once(Broken("x"), registration.RegisterBrokerBody))
    broker.topics.create_internal("orders", 4)
    await eventually(lambda: namesrv.routes.route("orders") is not None)
    assert errors(caplog) == ["broker broker-a: news of changed topics failed"]


async def test_topics_are_registered_after_the_registration_has_failed(start_broker, namesrv, monkeypatch, caplog):
    broker = await start_broker(namesrv=(namesrv.address,))
    monkeypatch.setattr(registration, "RegisterBrokerBody", fails_once(Broken("x"), registration.RegisterBrokerBody))
    for conn in broker.registrar.pool.open_connections():
        conn.abort("for the test")
    await eventually(lambda: errors(caplog))
    await eventually(lambda: broker.registered and namesrv.routes.broker("broker-a") is not None)
    assert errors(caplog) == ["broker broker-a: registration failed, it runs again in 0.1 s"]


# --- saved files --------------------------------------------------------------------------------------------------------


class SlowFile:
    path = "/config/topics.json"

    def __init__(self) -> None:
        self.saved: list[dict] = []

    def save(self, tree: dict) -> None:
        self.saved.append(tree)


@pytest.fixture
def file():
    return SlowFile()


@pytest.fixture
def saving(file):
    table = {"t": 1}
    with ThreadPoolExecutor(1) as threads:
        yield SavedFile(file, table.copy, threads=threads, background=Background("broker"))


async def test_a_save_that_is_cancelled_is_logged_and_made_up_for(saving, file, caplog):
    saving.touch().cancel()
    await eventually(lambda: errors(caplog))
    assert saving.dirty
    await saving.saved()
    assert file.saved[-1] == {"t": 1}
    assert not saving.dirty


async def test_cancelling_who_waits_for_a_save_does_not_end_it(saving, file, caplog):
    saving.note()
    one, other = (asyncio.ensure_future(saving.saved()) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    await other
    assert file.saved == [{"t": 1}]
    assert one.cancelled()
    assert errors(caplog) == []


async def test_who_waits_for_a_save_that_is_cancelled_is_told_so(saving):
    saving.note()
    waiting = asyncio.ensure_future(saving.saved())
    await asyncio.sleep(0)
    saving.saving().cancel()
    with pytest.raises(OSError, match="was cancelled"):
        await waiting


async def test_sends_that_wait_for_their_topic_are_answered_when_its_save_is_cancelled(broker, ask, monkeypatch):
    saving = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(broker.sends.new_topics, "_saved", lambda: saving)
    sent = asyncio.ensure_future(ask.send("never_seen", b"x"))
    await eventually(lambda: broker.sends.new_topics.parked)
    saving.cancel()
    answer = await sent
    assert answer.code == 14
    assert "was cancelled" in answer.remark


async def test_sends_that_wait_for_their_topic_are_answered_when_one_of_them_fails(broker, ask, monkeypatch, caplog):
    saving = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(broker.sends.new_topics, "_saved", lambda: saving)
    sent = [asyncio.ensure_future(ask.send("never_seen", b"%d" % i)) for i in range(2)]
    await eventually(lambda: len(broker.sends.new_topics.parked.get("never_seen", ())) == 2)
    monkeypatch.setattr(broker.store, "stage_message", fails_once(Broken("x"), broker.store.stage_message))
    saving.set_result(None)
    assert sorted([(await one).code for one in sent]) == [0, 14]
    assert errors(caplog) == ["a send that waited for topic never_seen failed"]


async def test_a_flush_whose_answers_cannot_be_given_keeps_nobody_waiting_at_the_stop(start_broker, connect, monkeypatch, caplog):
    broker = await start_broker(store={"flush_disk_type": "SYNC_FLUSH"})
    monkeypatch.setattr(broker.staged, "answer", fails_once(Broken("x"), broker.staged.answer))
    ask = await connect(broker)
    lost = asyncio.ensure_future(ask.send("orders"))
    await eventually(lambda: errors(caplog))
    assert (await ask.send("orders")).code == 0
    await asyncio.wait_for(broker.stop(), 60)
    with pytest.raises(ConnectionLost):
        await lost
    assert errors(caplog) == ["1 sends that waited for disk or replicas are not answered"]
