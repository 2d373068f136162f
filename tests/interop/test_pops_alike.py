"""The same pops, acknowledgements and group settings, sent byte for byte to both brokers, are answered alike."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.interop.sides import PATIENCE_S, Side, ask

from sprocketmq import AdminClient, Message, MessageQueue, Producer, PullConsumer
from sprocketmq.net.client import Connection
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.records import decode_records
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

LONG_MS = 600_000


class Popped(NamedTuple):
    """One message of a pop."""

    body: bytes
    reconsume_times: int
    queue_id: int
    handle: str


class Popper:
    """A POP consumer of one group and topic, as Apache's Java client is one: it makes the receipts of new messages itself."""

    def __init__(self, conn: Connection, side: Side, group: str, topic: str) -> None:
        self.conn = conn
        self.side = side
        self.group = group
        self.topic = topic

    async def ask(self, code: int, body: bytes = b"", **ext: object) -> Command:
        """Send one request and return its answer, whatever that is."""
        return await ask(self.conn, code, body, **ext)

    def fields(self) -> dict[str, object]:
        return {"consumerGroup": self.group, "topic": self.topic, "bornTime": int(time.time() * 1000), "expType": "TAG", "exp": "*"}

    async def pop(self, count: int, *, queue: int = -1, invisible_ms: int = LONG_MS, order: bool = False) -> tuple[list[Popped], str]:
        """Pop without waiting; return the messages, and how often those of an ordered pop were delivered."""
        more = {"queueId": queue, "maxMsgNums": count, "invisibleTime": invisible_ms, "pollTime": 0, "initMode": 0}
        answer = await self.ask(200050, **self.fields(), **more, order="true" if order else "false")
        if answer.code != 0:
            assert answer.code in (19, 209, 210), (answer.code, answer.remark)
            return [], ""
        ext = answer.ext or {}
        starts = {int(item.split(" ")[1]): item.split(" ")[2] for item in ext["startOffsetInfo"].split(";") if item[0] == "0"}
        common = f"{ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 {self.side.broker}"
        found = [
            Popped(
                bytes(message.body),
                message.reconsume_times,
                message.queue_id,
                message.properties.get("POP_CK") or f"{starts[message.queue_id]} {common} {message.queue_id} {message.queue_offset}",
            )
            for message in decode_records(answer.body)
        ]
        return found, ext.get("orderCountInfo", "")

    async def until_popped(self, count: int, **options: Any) -> tuple[list[Popped], str]:
        """Pop again and again until there is something."""

        async def taken() -> tuple[list[Popped], str] | None:
            popped = await self.pop(count, **options)
            return popped if popped[0] else None

        found = await eventually(taken, timeout_s=PATIENCE_S)
        assert found is not None
        return found

    async def until_there_is_something(self) -> None:
        """Ask by notifications until there is something to pop."""

        async def told() -> bool:
            answer = await self.ask(200054, **self.fields(), queueId=-1, pollTime=0)
            return (answer.ext or {})["hasMsg"] == "true"

        await eventually(told, timeout_s=PATIENCE_S)

    def receipt(self, message: Popped) -> dict[str, object]:
        offset = message.handle.split(" ")[7]
        names = {"consumerGroup": self.group, "topic": self.topic, "queueId": message.queue_id}
        return {**names, "extraInfo": message.handle, "offset": offset}

    async def ack(self, message: Popped) -> int:
        return (await self.ask(200051, **self.receipt(message))).code

    async def change(self, message: Popped, invisible_ms: int) -> int:
        return (await self.ask(200053, **self.receipt(message), invisibleTime=invisible_ms)).code

    async def committed(self) -> int:
        """Return the group's offset of queue 0."""
        answer = await self.ask(14, consumerGroup=self.group, topic=self.topic, queueId=0)
        return int((answer.ext or {})["offset"])


@pytest.fixture
def popper(side: Side, conn: Connection) -> Callable[[str, str], Popper]:
    """Make poppers of one connection to the broker."""
    return lambda group, topic: Popper(conn, side, group, topic)


async def create(side: Side, topic: str, group: str, *, queues: int, message_type: str) -> None:
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_topic(topic, queues=queues, cluster=side.cluster, attributes={"message.type": message_type})
        await admin.create_group(group, cluster=side.cluster)


async def send(side: Side, topic: str, *messages: Message) -> None:
    """Send, and wait until the messages are in queues: Apache's broker puts them there a moment after its answer."""
    async with Producer(group="PopsAlikeSender", namesrv=side.namesrv) as producer:
        results = [await producer.send(message) for message in messages]
    async with PullConsumer("PopsAlikeReader", namesrv=side.namesrv) as reader:

        async def in_queues() -> bool:
            ends = [await reader.max_offset(MessageQueue(topic, one.broker_name, one.queue_id)) for one in results]
            return all(end > one.queue_offset for end, one in zip(ends, results, strict=True))

        await eventually(in_queues, timeout_s=PATIENCE_S)


async def test_in_order_what_follows_a_message_that_comes_again_comes_again_too(side: Side, popper: Callable[[str, str], Popper]) -> None:
    await create(side, "PopsInOrderAlike", "PopsInOrder", queues=1, message_type="FIFO")
    await send(side, "PopsInOrderAlike", *(Message("PopsInOrderAlike", b"%d" % n) for n in range(4)))
    one = popper("PopsInOrder", "PopsInOrderAlike")
    found, _ = await one.pop(3, order=True)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert (await one.pop(3, order=True))[0] == []
    assert [await one.ack(found[0]), await one.change(found[1], 1_000), await one.ack(found[2])] == [0, 0, 0]
    assert await one.committed() == 1
    found, counts = await one.until_popped(3, order=True)
    assert [message.body for message in found] == [b"1", b"2", b"3"]
    assert counts == "0 qo0%1 1;0 qo0%2 1;0 0 0"
    for message, committed in ((found[1], 1), (found[0], 3), (found[2], 4)):
        assert await one.ack(message) == 0
        assert await one.committed() == committed
    assert (await one.pop(3, order=True))[0] == []


async def test_of_priorities_the_highest_comes_first_and_what_comes_again_last(side: Side, popper: Callable[[str, str], Popper]) -> None:
    topic = "PrioritiesAlike"
    await create(side, topic, "PopsPriorities", queues=4, message_type="PRIORITY")
    one = popper("PopsPriorities", topic)
    await send(side, topic, Message(topic, b"failed", properties={"_SYS_MSG_PRIORITY_": "3"}))
    assert [message.body for message in (await one.until_popped(1, invisible_ms=1_000))[0]] == [b"failed"]
    await one.until_there_is_something()
    await send(side, topic, *(Message(topic, b"%d" % n, properties={"_SYS_MSG_PRIORITY_": str(n)}) for n in (1, 3, 0, 2)))
    found, _ = await one.pop(32)
    assert [(message.body, message.reconsume_times) for message in found] == [(b"3", 0), (b"2", 0), (b"1", 0), (b"0", 0), (b"failed", 1)]
    assert [await one.ack(message) for message in found] == [0] * 5


async def test_the_priority_factor_of_a_group_is_set_alike(side: Side, popper: Callable[[str, str], Popper]) -> None:
    one = popper("PopsFactor", "unused")

    async def put(**attributes: str) -> tuple[int, str]:
        answer = await one.ask(200, json.dumps({"groupName": "PopsFactor", "attributes": attributes}).encode())
        return answer.code, answer.remark or ""

    async def kept() -> dict[str, str] | None:
        groups = json.loads((await one.ask(201)).body)["subscriptionGroupTable"]
        found: dict[str, str] | None = groups["PopsFactor"]["attributes"] if "PopsFactor" in groups else None
        return found

    code, _ = await put(**{"+priority.factor": "101"})
    assert code == 1
    assert await kept() is None
    assert await put(**{"+priority.factor": "0"}) == (0, "")
    assert await kept() == {"priority.factor": "0"}
    assert await put() == (0, "")
    assert await kept() == {"priority.factor": "0"}, "what is not named stays"
    assert (await put(**{"+nosuch": "1"}))[0] == 1
    assert await put(**{"-priority.factor": ""}) == (0, "")
    assert await kept() == {}
