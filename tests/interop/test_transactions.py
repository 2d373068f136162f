"""Transactions between our clients and Apache's, through brokers of both makes, and in stores that move."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.apache import JavaClient
from tests.interop.reading import pull_all
from tests.interop.sides import Side, until
from tests.interop.test_stores import CLUSTER, Moving

from sprocketmq import AdminClient, Message, TransactionOutcome, TransactionProducer
from sprocketmq.protocol.records import ReceivedMessage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PATIENCE_S = 60.0
ENDS = {
    b"kept": "commit",
    b"dropped": "rollback",
    b"asked and kept": "check commit",
    b"asked and dropped": "check rollback",
    b"failed": "throw",
}
KEPT = [b"asked and kept", b"kept"]


async def bodies(side: Side, topic: str) -> list[bytes]:
    """Return the bodies of a topic, sorted, and of those at Apache's broker one of each.

    That broker stores the half message again with every question and commits one for every answer: a producer that takes longer to answer
    than the broker waits before it asks again commits several.
    """
    found = sorted(view["body"] for view in await pull_all(side.namesrv, topic))
    return sorted({*found}) if side.make == "apaches" else found


async def test_java_transactions_end_alike_at_both_brokers(java: JavaClient, transacting_side: Side) -> None:
    topic = await transacting_side.create_topic("TransactionsOfJava")
    with java.transactions(transacting_side.namesrv, "java_transactions", topic, ENDS) as (sent, asked):
        assert [one["status"] for one in sent] == ["SEND_OK"] * len(ENDS)
        assert [one["state"] for one in sent] == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW", "UNKNOW", "UNKNOW"]
        await until("questions", lambda: {"asked and kept", "asked and dropped"} <= {one["body"] for one in asked()})
        seen = {one["body"]: one for one in reversed(asked())}
        assert (seen["asked and kept"]["topic"], seen["asked and kept"]["times"]) == (topic, "1")
        assert seen["asked and kept"]["transaction_id"] == sent[2]["msg_id"]
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while found != KEPT:
                found = await bodies(transacting_side, topic)


async def test_our_transactions_end_alike_at_both_brokers(transacting_side: Side) -> None:
    topic = await transacting_side.create_topic("TransactionsOfPython")
    asked: list[ReceivedMessage] = []

    async def check(message: ReceivedMessage) -> TransactionOutcome:
        asked.append(message)
        return TransactionOutcome.COMMIT if b"kept" in message.body else TransactionOutcome.ROLLBACK

    async with TransactionProducer("our_transactions", check, namesrv=transacting_side.namesrv, timeout_s=PATIENCE_S) as producer:
        async with producer.transaction(Message(topic, b"kept", keys=("k",), tag="t")):
            pass
        with pytest.raises(ValueError, match="no"):
            async with producer.transaction(Message(topic, b"dropped")):
                raise ValueError("no")
        for body in (b"asked and kept", b"asked and dropped"):
            async with producer.transaction(Message(topic, body)) as transaction:
                transaction.defer()
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while found != KEPT or len({message.msg_id for message in asked}) < 2:
                found = await bodies(transacting_side, topic)
    assert {message.topic for message in asked} == {topic}


async def test_a_committed_message_looks_alike(java: JavaClient, transacting_side: Side) -> None:
    topic = await transacting_side.create_topic("TransactionLooks", queues=1)
    with java.transactions(transacting_side.namesrv, "java_looks", topic, {b"kept": "commit"}) as (sent, _):
        views: list[dict[str, object]] = []
        async with asyncio.timeout(PATIENCE_S):
            while not views:
                views = await pull_all(transacting_side.namesrv, topic)
    (view,) = views
    properties = view["properties"]
    assert isinstance(properties, dict)
    assert {"TRAN_MSG", "PGROUP", "__transactionId__", "UNIQ_KEY", "end", "TAGS"} <= properties.keys()
    assert properties.keys().isdisjoint({"REAL_TOPIC", "REAL_QID"})
    assert properties["__transactionId__"] == sent[0]["msg_id"]


# --- stores that move ---


@pytest.fixture
def moving(home: Path, apache_namesrv: apache.ApacheNamesrv) -> Moving:
    port = apache.broker_port()
    return Moving(home, apache_namesrv.address, f"deciding-{port}", port)


async def decide(namesrv: str, topic: str, run: str, expected: set[bytes], asked: Counter[str]) -> None:
    """Commit one transaction, roll one back, leave two open, and answer questions about those of earlier brokers until all is there.

    `asked` counts the questions that were answered with an outcome.
    """
    answers = {True: TransactionOutcome.COMMIT, False: TransactionOutcome.ROLLBACK}

    async def check(message: ReceivedMessage) -> TransactionOutcome:
        if message.body.startswith(run.encode()):
            return TransactionOutcome.UNKNOWN  # the next broker is to ask
        asked[message.msg_id] += 1
        return answers[b"kept" in message.body]

    async with TransactionProducer("deciders", check, namesrv=namesrv, timeout_s=PATIENCE_S) as producer:
        async with producer.transaction(Message(topic, f"{run}: committed".encode())):
            pass
        await (await producer.begin(Message(topic, f"{run}: rolled back".encode()))).rollback()
        for end in ("kept", "dropped"):
            (await producer.begin(Message(topic, f"{run}: {end} later".encode()))).defer()
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while set(found) != expected:
                found = [view["body"] for view in await pull_all(namesrv, topic)]
    asked_again = asked.total() - len(asked)  # an answer that took too long may have committed one more
    assert len(found) <= len(expected) + asked_again, "delivered more than once"


@pytest.mark.parametrize("order", ["ours first", pytest.param("theirs first", marks=pytest.mark.long)])
async def test_each_broker_asks_about_what_the_other_left_open(moving: Moving, order: str) -> None:
    namesrv, topic = moving.namesrv, f"Deciding{order.partition(' ')[0].title()}"
    ours = partial(moving.ours, settings={"transaction_timeout_s": 1.0, "transaction_check_interval_s": 2.0})
    apaches = partial(moving.apaches, settings={"transactionTimeOut": "6000", "transactionCheckInterval": "2000"})
    first, second = (ours, apaches) if order == "ours first" else (apaches, ours)
    expected, asked = {b"first: committed"}, Counter[str]()
    with first("first"):
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.create_topic(topic, queues=2, cluster=CLUSTER)
        await decide(namesrv, topic, "first", expected, asked)
    expected |= {b"second: committed", b"first: kept later"}
    with second("second"):
        await decide(namesrv, topic, "second", expected, asked)
    expected |= {b"third: committed", b"second: kept later"}
    with first("third"):
        await decide(namesrv, topic, "third", expected, asked)
