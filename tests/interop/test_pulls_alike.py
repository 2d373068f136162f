"""The same pulls and the same admin requests, sent byte for byte to both brokers, are answered alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.interop.sides import Side, ask

from sprocketmq import Message, Producer
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import ConsumerData, HeartbeatData, build_subscription
from sprocketmq.protocol.command import Command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

GROUP = "AskedAlike"


async def pull(conn: Connection, topic: str, offset: int, *, count: int = 32, tags: str = "*", flags: int = 4) -> Command:
    """Pull without waiting."""
    ext = {"consumerGroup": GROUP, "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": count, "sysFlag": flags}
    ext |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": tags, "subVersion": 0, "expressionType": "TAG"}
    return await ask(conn, 11, **ext)


async def put_messages(side: Side, topic: str, count: int, *, batches_of: int = 1) -> None:
    """Store messages with the tag ``theirs`` in queue 0 of a new topic."""
    await side.create_topic(topic, queues=1, batch_queues=batches_of > 1)
    async with Producer(group="AskedAlikeSender", namesrv=side.namesrv) as producer:
        for _ in range(count // batches_of):
            messages = [Message(topic, b"x", tag="theirs") for _ in range(batches_of)]
            await (producer.send_batch(messages) if batches_of > 1 else producer.send(messages[0]))


async def test_a_group_that_may_not_read_a_topic_is_refused_alike(side: Side, conn: Connection) -> None:
    await side.create_topic("ForbiddenAlike", queues=1)
    beat = HeartbeatData("alike", [], [ConsumerData(GROUP, subscription_data_set=[build_subscription("ForbiddenAlike", "*", 0)])])
    assert (await ask(conn, 34, beat.encode())).code == 0

    async def forbidden(**fields: str) -> tuple[int, str | None, Any]:
        answer = await ask(conn, 353, group=GROUP, topic="ForbiddenAlike", **fields)
        return answer.code, answer.remark or None, json.loads(answer.body)

    said = {"group": GROUP, "topic": "ForbiddenAlike"}
    assert await forbidden() == (0, None, {**said, "readable": True})
    assert await forbidden(readable="false") == (0, None, {**said, "readable": False})
    assert await forbidden() == (0, None, {**said, "readable": False})
    answer = await pull(conn, "ForbiddenAlike", 0, flags=0)
    assert (answer.code, (answer.ext or {}).get("forbiddenType")) == (16, "5")
    assert answer.remark == f"the consumer group[{GROUP}] is forbidden for topic[ForbiddenAlike]"
    assert (await pull(conn, "ForbiddenAlike", 0)).code == 19, "a pull that brings its own subscription is not looked at"
    table = json.loads((await ask(conn, 201)).body)["forbiddenTable"]
    assert table == {GROUP: {"ForbiddenAlike": 4}}
    assert (await ask(conn, 353, group=GROUP, topic="AnotherTopic", readable="false")).code == 0
    assert await forbidden(readable="true") == (0, None, {**said, "readable": True})
    table = json.loads((await ask(conn, 201)).body)["forbiddenTable"]
    assert table == ({} if side.make == "apaches" else {GROUP: {"AnotherTopic": 4}}), "Apache's broker forgets the group's other topics"
    assert (await pull(conn, "ForbiddenAlike", 0, flags=0)).code == 19


@pytest.mark.parametrize(("count", "reached"), [(1, 800), (32, 800), (900, 900)])
async def test_a_pull_with_a_tag_looks_as_far_alike(side: Side, conn: Connection, count: int, reached: int) -> None:
    topic = f"FilteredAlike{count}"
    await put_messages(side, topic, 1000)
    answer = await pull(conn, topic, 0, count=count, tags="mine")
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert answer.ext is not None
    assert int(answer.ext["nextBeginOffset"]) == reached


async def test_in_a_batch_queue_it_is_the_messages_that_bound_the_look(side: Side, conn: Connection) -> None:
    await put_messages(side, "FilteredBatchesAlike", 1000, batches_of=10)
    answer = await pull(conn, "FilteredBatchesAlike", 0, tags="mine")
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert answer.ext is not None
    assert int(answer.ext["nextBeginOffset"]) == 350
