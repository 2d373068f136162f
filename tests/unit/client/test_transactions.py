"""The producer of transactions against our broker, over sockets."""

import asyncio
import contextlib
import dataclasses
import threading

import pytest
from fake_cluster import FakeBroker
from test_with_broker import Real
from tests.inside import instance_of
from tests.ports import address_of, hold

from sprocketmq import TransactionOutcome, TransactionProducer, sync
from sprocketmq.client import PullConsumer
from sprocketmq.client.send import transaction_checks
from sprocketmq.client.send.outbox import Outbox
from sprocketmq.client.send.transaction_checks import TransactionChecks
from sprocketmq.errors import (
    BrokerError,
    ConfigError,
    InvalidMessage,
    MaybeStoredError,
    NoMaster,
    NotAMessage,
    RetriableError,
    TopicNotFound,
    TransactionEnded,
    TransactionNotBegun,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.message import Message, MessageQueue, SendStatus
from sprocketmq.testing import eventually

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN


@pytest.fixture
async def start(tmp_path):
    """Start a broker with topic ``orders``; it asks about transactions after ``timeout_s``."""
    started = []

    async def start(timeout_s=3600.0, **options):
        settings = {"transaction_timeout_s": timeout_s, "transaction_check_interval_s": min(timeout_s, 0.2), **options}
        running = Real(tmp_path / "store", **settings)
        await running.start()
        started.append(running)
        running.broker.topics.create_internal("orders", 4)
        await running.broker.files.topics.saved()
        return running

    yield start
    for running in started:
        await running.stop()


@pytest.fixture
async def real(start):
    return await start()


def nobody_asks(message):
    raise AssertionError(f"a broker asked about {message!r}")


@pytest.fixture
async def producer(real):
    async with TransactionProducer("pg", nobody_asks, namesrv=real.namesrv.address, timeout_s=60) as producer:
        yield producer


async def read(real, topic="orders"):
    """Return the bodies in the queues of a topic."""
    found = []
    async with PullConsumer("reader", namesrv=real.namesrv.address) as consumer:
        for queue in await consumer.queues(topic):
            result = await consumer.pull(queue, 0)
            found += [bytes(message.body) for message in result.messages]
    return sorted(found)


# --- outcomes ---


async def test_a_block_that_ends_commits_and_one_that_raises_rolls_back(real, producer):
    async with producer.transaction(Message("orders", b"kept", tag="red", keys=("k",), properties={"a": "b"})) as transaction:
        assert await read(real) == []
        assert transaction.outcome is UNKNOWN
    assert transaction.outcome is COMMIT
    with pytest.raises(ZeroDivisionError):
        async with producer.transaction(Message("orders", b"dropped")):
            raise ZeroDivisionError
    assert await read(real) == [b"kept"]
    assert not len(real.broker.transactions.open_halves)


async def test_consumers_get_the_message_as_it_was_sent(real, producer):
    message = Message("orders", b"x" * 10_000, tag="red", keys=("k",), properties={"a": "b"}, flag=7, ordering_key="o")
    async with producer.transaction(message) as transaction:
        pass
    async with PullConsumer("reader", namesrv=real.namesrv.address) as consumer:
        queue = MessageQueue("orders", "broker-a", transaction.result.queue_id)
        (got,) = (await consumer.pull(queue, 0)).messages
    assert (bytes(got.body), got.tag, list(got.keys), got.flag, got.properties["a"]) == (message.body, "red", ["k"], 7, "b")
    assert got.msg_id == transaction.id
    assert got.properties["__SHARDINGKEY"] == "o"


async def test_an_outcome_is_told_by_hand(real, producer):
    first = await producer.begin(Message("orders", b"first"))
    second = await producer.begin(Message("orders", b"second"))
    await second.rollback()
    await first.commit()
    assert await read(real) == [b"first"]
    with pytest.raises(TransactionEnded, match="COMMIT") as caught:
        await first.rollback()
    assert caught.value.outcome == "COMMIT"
    with pytest.raises(TransactionEnded):
        second.defer()


async def test_a_block_may_tell_the_outcome_itself_or_leave_it_to_the_check(real, producer):
    async with producer.transaction(Message("orders", b"rolled back")) as transaction:
        await transaction.rollback()
    async with producer.transaction(Message("orders", b"left open")) as transaction:
        transaction.defer()
    assert "deferred" in repr(transaction)
    with pytest.raises(RuntimeError):
        async with producer.transaction(Message("orders", b"left open, too")) as transaction:
            transaction.defer()
            raise RuntimeError
    assert await read(real) == []
    assert len(real.broker.transactions.open_halves) == 2


async def test_a_cancelled_block_rolls_back(real, producer):
    begun = asyncio.Event()

    async def work():
        async with producer.transaction(Message("orders", b"x")):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not len(real.broker.transactions.open_halves))
    assert await read(real) == []


async def test_the_blocks_own_error_counts_when_the_rollback_fails(start, caplog):
    real = await start()
    async with TransactionProducer("pg", nobody_asks, namesrv=real.namesrv.address, timeout_s=60) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", b"x")):
                await real.broker.abort()
                raise ZeroDivisionError
        assert "is not rolled back, the broker asks about it" in caplog.text
        await real.start_broker()


async def test_a_commit_that_cannot_be_told_may_be_told_again(start):
    real = await start()
    async with TransactionProducer("pg", nobody_asks, namesrv=real.namesrv.address, timeout_s=60) as producer:
        transaction = await producer.begin(Message("orders", b"x"))
        await real.restart_broker(killed=True)
        for _ in range(100):
            try:
                await transaction.commit()
            except RetriableError:
                assert transaction.outcome is UNKNOWN
            except MaybeStoredError:
                pytest.fail("the connection is known to be gone")
            else:
                break
        assert await read(real) == [b"x"]


async def test_a_commit_goes_to_the_new_master_when_the_broker_has_another(real, producer):
    with contextlib.closing(hold()) as gone:
        transaction = await producer.begin(Message("orders", b"x"))
        believe_in_master(producer, address_of(gone))
        await transaction.commit(timeout_s=60)
    assert transaction.outcome is COMMIT
    assert await read(real) == [b"x"]


async def test_a_commit_that_a_slave_refuses_goes_to_the_master(real, producer):
    former = FakeBroker()
    former.on_END_TRANSACTION = lambda conn, command: conn.respond(command, ResponseCode.SLAVE_NOT_AVAILABLE)
    await former.start()
    try:
        transaction = await producer.begin(Message("orders", b"x"))
        believe_in_master(producer, former.address)
        await transaction.commit(timeout_s=60)
        assert former.count(RequestCode.END_TRANSACTION) == 1
        assert await read(real) == [b"x"]
    finally:
        await former.close()


def believe_in_master(producer, address):
    routes = instance_of(producer).routes
    routes["orders"] = dataclasses.replace(routes["orders"], addresses={"broker-a": {0: address}})


async def test_without_a_master_an_outcome_may_be_told_later(real, producer):
    transaction = await producer.begin(Message("orders", b"x"))
    routes, route = instance_of(producer).routes, instance_of(producer).routes["orders"]
    routes["orders"] = dataclasses.replace(route, addresses={"broker-a": {1: "127.0.0.1:1"}})
    with pytest.raises(NoMaster, match="nothing is changed"):
        await transaction.commit(timeout_s=0.001)
    assert transaction.outcome is UNKNOWN
    await transaction.commit(timeout_s=60)
    assert await read(real) == [b"x"]


async def test_a_refused_commit_says_why(real, producer):
    transaction = await producer.begin(Message("orders", b"x"))
    real.broker.topics.delete("orders")
    with pytest.raises((BrokerError, TopicNotFound)):
        await transaction.commit()


async def test_a_half_message_that_is_less_safe_than_asked_is_rolled_back(real, producer, monkeypatch):
    monkeypatch.setattr(Outbox, "deliver", _less_safe(Outbox.deliver))
    with pytest.raises(TransactionNotBegun, match="FLUSH_DISK_TIMEOUT") as caught:
        await producer.begin(Message("orders", b"x"))
    assert caught.value.status == "FLUSH_DISK_TIMEOUT"
    await eventually(lambda: not len(real.broker.transactions.open_halves))


def _less_safe(deliver):
    async def stored_otherwise(self, request):
        receipt = await deliver(self, request)
        receipt.status = SendStatus.FLUSH_DISK_TIMEOUT
        return receipt

    return stored_otherwise


# --- wrong use ---


@pytest.mark.parametrize("message", [Message("orders", b"x", delay_level=3), Message("orders", b"x", deliver_at_ms=1 << 45)])
async def test_a_delay_is_refused(producer, message):
    with pytest.raises(InvalidMessage, match="cannot have a delay"):
        await producer.begin(message)


async def test_what_is_no_message_is_refused(producer):
    with pytest.raises(NotAMessage):
        await producer.begin("orders")


@pytest.mark.parametrize(
    "options", [{"check": None}, {"check": nobody_asks, "check_timeout_s": 0}, {"check": nobody_asks, "check_timeout_s": float("nan")}]
)
def test_a_check_that_cannot_be_is_refused(options):
    with pytest.raises(ConfigError):
        TransactionProducer("pg", **options)


def test_an_outcome_is_printed_by_its_name():
    assert str(TransactionOutcome.COMMIT) == f"{TransactionOutcome.COMMIT}" == "TransactionOutcome.COMMIT"


@pytest.mark.parametrize("value", [0, -1, True, "1", 1e9])
async def test_a_time_before_the_check_that_cannot_be_is_refused(producer, value):
    with pytest.raises(ConfigError, match="check_after_s must be a number more than 0, at most 259,200"):
        await producer.begin(Message("orders", b"x"), check_after_s=value)


# --- checks ---


async def test_the_broker_asks_the_check_about_what_was_left_open(start):
    real = await start(0.1)
    asked = []

    async def check(message):
        asked.append(message)
        return COMMIT if message.body == b"committed" else ROLLBACK

    async with TransactionProducer("pg", check, namesrv=real.namesrv.address, timeout_s=60) as producer:
        for body in (b"committed", b"rolled back"):
            async with producer.transaction(Message("orders", body, keys=("k",), properties={"a": "b"})) as transaction:
                transaction.defer()
        await eventually(lambda: not len(real.broker.transactions.open_halves))
    assert await read(real) == [b"committed"]
    assert {(message.topic, message.properties["a"]) for message in asked} == {("orders", "b")}
    assert {message.msg_id for message in asked} >= {transaction.id}


async def test_another_producer_of_the_group_answers_for_one_that_died(start):
    real = await start(0.1)
    async with TransactionProducer("pg", nobody_asks, namesrv=real.namesrv.address, timeout_s=60) as dead:
        (await dead.begin(Message("orders", b"x"), check_after_s=1)).defer()
    async with TransactionProducer("pg", lambda _: COMMIT, namesrv=real.namesrv.address, timeout_s=60) as producer:
        (await producer.begin(Message("orders", b"y"))).defer()
        await eventually(lambda: not len(real.broker.transactions.open_halves))
    assert await read(real) == [b"x", b"y"]


@pytest.mark.parametrize("rubbish", [None, True, "COMMIT_MESSAGE", 8])
async def test_rubbish_from_the_check_is_no_outcome(start, caplog, rubbish):
    real = await start(0.05)
    answers = [rubbish, RuntimeError("no database"), COMMIT]

    def check(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with TransactionProducer("pg", check, namesrv=real.namesrv.address, timeout_s=60) as producer:
        (await producer.begin(Message("orders", b"x"))).defer()
        await eventually(lambda: not len(real.broker.transactions.open_halves))
    assert await read(real) == [b"x"]
    assert f"must return a TransactionOutcome, not {rubbish!r}" in caplog.text
    assert "no database" in caplog.text


async def test_a_check_that_hangs_is_given_up_and_holds_nothing_up(start, caplog):
    real = await start(0.05)
    hung = 0

    async def check(message):
        nonlocal hung
        if message.body == b"hangs" and hung < 2:
            hung += 1
            await asyncio.Event().wait()
        return COMMIT

    async with TransactionProducer("pg", check, check_timeout_s=0.1, namesrv=real.namesrv.address, timeout_s=60) as producer:
        for body in (b"hangs", b"other"):
            (await producer.begin(Message("orders", body))).defer()
        await eventually(lambda: not len(real.broker.transactions.open_halves))
    assert await read(real) == [b"hangs", b"other"]
    assert "has not returned within 0.1 s" in caplog.text


class _Connection:
    address = "127.0.0.1:1"

    def respond(self, *_args, **_fields):
        raise AssertionError("nothing is answered to a question")


class _Question:
    code = RequestCode.CHECK_TRANSACTION_STATE

    def __init__(self, body, group="pg"):
        self.body = body

    def header(self, kind):
        return kind(half_offset=0, commit_log_offset=0)


def test_a_question_that_cannot_be_read_is_dropped(caplog):
    checks = TransactionChecks(nobody_asks, "pg", timeout_s=60, otherwise=nobody_asks, clock=_Clock())
    checks.handle(_Connection(), _Question(b"no record"))
    checks.handle(_Connection(), _Question(b""))
    assert "transaction_check_dropped" in caplog.text


class _Clock:
    def monotonic(self):
        return 0.0


async def test_questions_that_wait_are_bounded(start, monkeypatch, caplog):
    monkeypatch.setattr(transaction_checks, "CHECKS_AT_ONCE", 1)
    monkeypatch.setattr(transaction_checks, "MAX_WAITING", 2)
    real = await start(0.1)
    gate = asyncio.Event()

    async def check(_):
        await gate.wait()
        return COMMIT

    async with TransactionProducer("pg", check, namesrv=real.namesrv.address, timeout_s=60) as producer:
        for n in range(5):
            (await producer.begin(Message("orders", b"%d" % n))).defer()
        await eventually(lambda: "2 questions wait for the check" in caplog.text)
        gate.set()
        await eventually(lambda: not len(real.broker.transactions.open_halves))
    assert await read(real) == [b"%d" % n for n in range(5)]


async def test_requests_and_replies_work_in_a_producer_of_transactions(real, producer):
    assert (await producer.send(Message("orders", b"plain"))).status is SendStatus.SEND_OK
    with pytest.raises(MaybeStoredError):
        await producer.request(Message("orders", b"question"), timeout_s=0.2)


# --- blocking ---


def test_the_blocking_producer_of_transactions(tmp_path):
    from sprocketmq.embedded import LocalCluster

    threads = []

    def check(message):
        threads.append(threading.current_thread().name)
        if len(threads) == 1:
            raise SystemExit  # ends this check only, and the broker asks again
        return COMMIT if message.body == b"asked" else ROLLBACK

    with LocalCluster(transaction_timeout_s=0.2) as cluster:
        with sync.AdminClient(namesrv=cluster.namesrv) as admin:
            admin.create_topic("orders", queues=1)
        with sync.TransactionProducer("pg", check, namesrv=cluster.namesrv, timeout_s=60) as producer:
            with producer.transaction(Message("orders", b"kept"), check_after_s=3600) as transaction:
                assert transaction.outcome is UNKNOWN
            assert (transaction.outcome, transaction.message.body) == (COMMIT, b"kept")
            with pytest.raises(KeyboardInterrupt), producer.transaction(Message("orders", b"dropped"), check_after_s=3600):
                raise KeyboardInterrupt
            by_hand = producer.begin(Message("orders", b"by hand"), check_after_s=3600)
            by_hand.commit()
            with pytest.raises(TransactionEnded):
                by_hand.rollback()
            producer.begin(Message("orders", b"asked")).defer()
            with sync.PushConsumer("cg", "orders", namesrv=cluster.namesrv, consume_from="first") as consumer:
                found = set()
                for batch in consumer.batches():
                    found |= {bytes(message.body) for message in batch}
                    batch.ack()
                    if len(found) == 3:
                        break
    assert found == {b"kept", b"by hand", b"asked"}
    assert all(name.startswith("sprocketmq-check") for name in threads)
