"""Broadcasting: every member gets every message, whatever its make, keeps its offsets itself, and nothing is given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.interop.apache import JavaClient
from tests.interop.reading import pull_all, until_readable
from tests.interop.sides import Side, until

from sprocketmq import AdminClient, PullConsumer, PushConsumer
from sprocketmq.client.consume.received_batch import ReceivedBatch

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_every_member_gets_everything_and_keeps_its_offsets(java: JavaClient, side: Side, tmp_path: Path, batch_queues: bool) -> None:
    topic, group = await side.create_topic(f"Broadcast_{batch_queues}", batch_queues=batch_queues), f"broadcast_{batch_queues}"

    def send(word: str) -> list[bytes]:
        messages = [{"topic": topic, "body": f"{word} {number}".encode()} for number in range(20)]
        java.send_batch(side.namesrv, messages) if batch_queues else java.send(side.namesrv, messages)
        return [message["body"] for message in messages]

    mine: list[bytes] = []

    def refuse_some(batch: ReceivedBatch) -> None:
        mine.extend(message.body for message in batch)
        if any(message.body.endswith(b"3") for message in batch):
            raise RuntimeError("refused by the test")

    def python_member() -> PushConsumer:
        where = {"namesrv": side.namesrv, "offsets_dir": tmp_path}
        return PushConsumer(group, topic, consume_from="first", mode="broadcasting", **where)  # type: ignore[arg-type]

    sent = await asyncio.to_thread(send, "first")
    await until_readable(side.namesrv, topic, len(sent))
    with java.push_consumer(side.namesrv, group, topic, broadcasting=True, refuse=".*3") as theirs:
        async with python_member() as member:
            member.listen(refuse_some)
            sent += await asyncio.to_thread(send, "second")
            await until("everything coming to the Python member", lambda: len(mine) >= len(sent))
            taken = await asyncio.to_thread(theirs.take, len(sent))
        missed = await asyncio.to_thread(send, "while away")
        async with python_member() as member:
            member.listen(refuse_some)
            await until("what it missed coming to the Python member", lambda: len(mine) >= len(sent + missed))
        taken += await asyncio.to_thread(theirs.take, len(missed))
    received = [message["body"] for message in taken + theirs.rest]
    assert Counter(received) == Counter(sent + missed), "also what was refused, once"
    assert Counter(mine) == Counter(sent + missed), "also what was refused, once, and nothing twice after the restart"
    async with PullConsumer(group, namesrv=side.namesrv) as reader, AdminClient(namesrv=side.namesrv) as admin:
        assert {await reader.committed(queue) for queue in await reader.queues(topic)} == {None}
        assert f"%DLQ%{group}" not in await admin.topics()
    assert await pull_all(side.namesrv, f"%RETRY%{group}") == [], "brokers make the topic, as they know no better"
