"""Recalls of timed messages come out alike at both brokers, whoever sent the message and whoever takes it back."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.interop.apache import ApacheFailed, JavaClient
from tests.interop.reading import pull_all
from tests.interop.sides import Side

from sprocketmq import Message, Producer
from sprocketmq.errors import BrokerError
from sprocketmq.protocol.recall import RecallHandle

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

DELAY_S = 8
PATIENCE_S = 90.0


async def come(side: Side, topic: str, wanted: set[bytes]) -> None:
    """Wait until what was sent last has come, and check that nothing else has."""
    found: set[bytes] = set()
    async with asyncio.timeout(PATIENCE_S):
        while b"last" not in found:
            found = {view["body"] for view in await pull_all(side.namesrv, topic)}
    assert found == wanted | {b"last"}


async def test_messages_of_either_client_are_recalled_by_either(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("Recalls")
    async with Producer("recalling", namesrv=side.namesrv, timeout_s=60) as producer:
        due_ms = int(time.time() * 1000) + DELAY_S * 1000

        async def ours(body: bytes, later_ms: int = 0) -> str:
            return (await producer.send(Message(topic, body, deliver_at_ms=due_ms + later_ms))).recall_handle

        by_ours, by_java, kept = await ours(b"ours, by ours"), await ours(b"ours, by java"), await ours(b"ours, kept")
        javas = [java.send_timed(side.namesrv, topic, body, DELAY_S) for body in (b"java's, by ours", b"java's, by java", b"java's, kept")]
        assert await producer.recall(by_ours) == RecallHandle.parse(by_ours).uniq_key
        assert await producer.recall(javas[0]) == RecallHandle.parse(javas[0]).uniq_key
        assert java.recall(side.namesrv, topic, by_java) == RecallHandle.parse(by_java).uniq_key
        assert java.recall(side.namesrv, topic, javas[1]) == RecallHandle.parse(javas[1]).uniq_key
        assert len({by_ours, by_java, kept, *javas}) == 6
        await ours(b"last", 4_000)
        await come(side, topic, {b"ours, kept", b"java's, kept"})


async def test_handles_that_cannot_be_are_refused_at_both_brokers(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("WrongRecalls")
    past = str(RecallHandle(topic, side.broker, int(time.time() * 1000) - 1000, "7F000001516DE40737036832F5A00002"))
    async with Producer("recalling", namesrv=side.namesrv, timeout_s=60) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.recall(past)
        assert caught.value.code == 604
    with pytest.raises(ApacheFailed):
        java.recall(side.namesrv, topic, past)
