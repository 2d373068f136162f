"""Transactions between our clients and Apache's, through brokers of both makes, and in stores that move."""

from __future__ import annotations

import asyncio

import pytest
from tests.interop.apache import JavaClient
from tests.interop.reading import pull_all
from tests.interop.sides import Side, until

from sprocketmq import Message, TransactionOutcome, TransactionProducer
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
    return sorted(view["body"] for view in await pull_all(side.namesrv, topic))


async def test_java_transactions_end_alike_at_both_brokers(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("TransactionsOfJava")
    with java.transactions(side.namesrv, "java_transactions", topic, ENDS) as (sent, asked):
        assert [one["status"] for one in sent] == ["SEND_OK"] * len(ENDS)
        assert [one["state"] for one in sent] == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW", "UNKNOW", "UNKNOW"]
        await until("questions", lambda: {"asked and kept", "asked and dropped"} <= {one["body"] for one in asked()})
        seen = {one["body"]: one for one in reversed(asked())}
        assert (seen["asked and kept"]["topic"], seen["asked and kept"]["times"]) == (topic, "1")
        assert seen["asked and kept"]["transaction_id"] == sent[2]["msg_id"]
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while found != KEPT:
                found = await bodies(side, topic)


async def test_our_transactions_end_alike_at_both_brokers(side: Side) -> None:
    topic = await side.create_topic("TransactionsOfPython")
    asked: list[ReceivedMessage] = []

    async def check(message: ReceivedMessage) -> TransactionOutcome:
        asked.append(message)
        return TransactionOutcome.COMMIT if b"kept" in message.body else TransactionOutcome.ROLLBACK

    async with TransactionProducer("our_transactions", check, namesrv=side.namesrv, timeout_s=PATIENCE_S) as producer:
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
                found = await bodies(side, topic)
    assert {message.topic for message in asked} == {topic}


async def test_a_committed_message_looks_alike(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("TransactionLooks", queues=1)
    with java.transactions(side.namesrv, "java_looks", topic, {b"kept": "commit"}) as (sent, _):
        views: list[dict[str, object]] = []
        async with asyncio.timeout(PATIENCE_S):
            while not views:
                views = await pull_all(side.namesrv, topic)
    (view,) = views
    properties = view["properties"]
    assert isinstance(properties, dict)
    assert {"TRAN_MSG", "PGROUP", "__transactionId__", "UNIQ_KEY", "end", "TAGS"} <= properties.keys()
    assert properties.keys().isdisjoint({"REAL_TOPIC", "REAL_QID"})
    assert properties["__transactionId__"] == sent[0]["msg_id"]
