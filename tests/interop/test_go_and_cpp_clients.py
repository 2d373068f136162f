"""Apache's clients for Go and C++ (the latter in a package for Python) at our broker, and at Apache's as a control."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.interop.reading import dead_letters, pull_all
from tests.interop.remoting_clients import cpp_python, go_program, run_cpp, run_go
from tests.interop.sides import Side

from sprocketmq import AdminClient, Message, MessageQueue, Producer, PushConsumer
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(600)]

COUNT = 20


@pytest.fixture(scope="session")
def go() -> Path:
    """Return the program with the client for Go."""
    return go_program()


@pytest.fixture(scope="session")
def cpp() -> Path:
    """Return the Python that has the client for C++."""
    return cpp_python()


@pytest.mark.parametrize("how", ["singly", "batch", "async", "oneway"])
async def test_what_go_sends_in_any_way_arrives(go: Path, side: Side, how: str) -> None:
    topic = await side.create_topic(f"GoSends_{how}", queues=2)
    sent = [
        {"body": b"%d" % n, "tag": f"Tag{n % 2}", "keys": [f"k{n}", "all"], "properties": {"number": str(n), "имя": "値"}}
        for n in range(COUNT)
    ]
    results = await asyncio.to_thread(run_go, go, "send", side.namesrv, topic, how, messages=sent)
    found = {view["body"]: view for view in await pull_all(side.namesrv, topic)}
    assert len(found) == COUNT
    for one in sent:
        view = found[one["body"]]
        assert (view["tag"], view["keys"]) == (one["tag"], one["keys"])
        assert view["properties"].items() >= {"number": view["body"].decode(), "имя": "値"}.items()
    if how == "singly":
        places = [(result["msg_id"], result["offset_msg_id"], result["queue_id"], result["queue_offset"]) for result in results]
        views = [found[one["body"]] for one in sent]
        assert places == [tuple(view[name] for name in ("msg_id", "offset_msg_id", "queue_id", "queue_offset")) for view in views]


async def test_go_consumers_get_everything_by_tag_and_give_up_what_they_refuse(go: Path, side: Side) -> None:
    topic, group = await side.create_topic("GoConsumes", queues=2), "go_group"
    async with Producer("for_go", namesrv=side.namesrv) as producer:
        await producer.send_batch([Message(topic, b"%d" % n, tag=f"Tag{n % 2}") for n in range(COUNT)])
        await producer.send(Message(topic, b"bad", tag="Tag0"))
        await producer.send(Message(topic, b"late", tag="Tag0", delay_level=1))
    everything, tagged, broadcast = await asyncio.gather(
        asyncio.to_thread(run_go, go, "consume", side.namesrv, group, topic, "*", "concurrent", COUNT + 3),
        asyncio.to_thread(run_go, go, "consume", side.namesrv, f"{group}_tag", topic, "Tag1", "concurrent", COUNT // 2),
        asyncio.to_thread(run_go, go, "consume", side.namesrv, f"{group}_all", topic, "*", "broadcast", COUNT + 2),
    )
    assert Counter(one["body"] for one in everything) == Counter([b"%d" % n for n in range(COUNT)] + [b"bad", b"bad", b"late"])
    assert sorted(one["reconsume_times"] for one in everything if one["body"] == b"bad") == [0, 1]
    assert {one["tag"] for one in tagged} == {"Tag1"}
    assert {one["body"] for one in broadcast} >= {b"%d" % n for n in range(COUNT)}
    (dead,) = await dead_letters(side.namesrv, group, 1)
    assert dead["body"] == b"bad"


async def test_go_keeps_the_order_of_each_key(go: Path, side: Side) -> None:
    topic, group = await side.create_topic("GoOrders", queues=2), "go_orderly"
    sent = [{"body": b"%d" % n, "ordering_key": f"key-{n % 3}"} for n in range(COUNT)]
    await asyncio.to_thread(run_go, go, "send", side.namesrv, topic, "keyed", messages=sent)
    received = await asyncio.to_thread(run_go, go, "consume", side.namesrv, group, topic, "*", "orderly", COUNT)
    for key in range(3):
        assert [one["body"] for one in received if int(one["body"]) % 3 == key] == [b"%d" % n for n in range(key, COUNT, 3)]


async def test_go_decides_transactions(go: Path, transacting_side: Side) -> None:
    side = transacting_side
    topic = await side.create_topic("GoTransactions", queues=2)
    sent = [{"body": body} for body in (b"commit", b"rollback", b"unknown")]
    said = await asyncio.to_thread(run_go, go, "transactions", side.namesrv, topic, 12, messages=sent)
    assert [line["checked"] for line in said if "checked" in line] == ["unknown"]
    assert sorted(view["body"] for view in await pull_all(side.namesrv, topic)) == [b"commit", b"unknown"]


@pytest.mark.parametrize("client", ["go", "cpp"])
async def test_a_member_of_ours_shares_a_group_with_one_of_theirs(go: Path, cpp: Path, side: Side, home: Path, client: str) -> None:
    queues = 4
    topic, group = await side.create_topic(f"Shared_{client}", queues=queues), f"shared_{client}"
    mine: list[bytes] = []

    async def handle(batch: ReceivedBatch) -> None:
        mine.extend(message.body for message in batch)

    async with (
        Producer("shared", namesrv=side.namesrv) as producer,
        PushConsumer(group, topic, namesrv=side.namesrv, consume_from="first") as consumer,
    ):
        consumer.listen(handle)
        await eventually(lambda: len(consumer.assignment) == queues)
        half = queues // 2 * COUNT
        theirs = asyncio.ensure_future(
            asyncio.to_thread(run_go, go, "consume", side.namesrv, group, topic, "*", "concurrent", half)
            if client == "go"
            else asyncio.to_thread(run_cpp, cpp, home, side.namesrv, "consume", topic, group, half)  # type: ignore[arg-type]
        )
        await eventually(lambda: len(consumer.assignment) == queues // 2)
        bodies = [b"%d" % n for n in range(queues * COUNT)]
        for n, body in enumerate(bodies):
            await producer.send(Message(topic, body, queue=MessageQueue(topic, side.broker, n % queues)))
        received: list[bytes] = [one["body"] if client == "go" else one[0].encode() for one in await theirs]
        assert len(received) == half
        await eventually(lambda: len(mine) + len(received) >= len(bodies))
    assert Counter(mine + received) == Counter(bodies)


async def test_what_cpp_sends_arrives_and_its_consumers_get_it(cpp: Path, side: Side, home: Path) -> None:
    topic = await side.create_topic("Cpp", queues=2)
    sent = await asyncio.to_thread(run_cpp, cpp, home, side.namesrv, "send", topic)
    bodies = {f"body {n} ü" for n in range(10)} | {"late", "one-way"}
    pushed = await asyncio.to_thread(run_cpp, cpp, home, side.namesrv, "consume", topic, "cpp_group", 12)
    found = {view["body"].decode(): view for view in await pull_all(side.namesrv, topic)}
    assert found.keys() == bodies
    for number, (msg_id, offset) in enumerate(sent):
        view = found[f"body {number} ü"]
        assert (view["msg_id"], view["queue_offset"]) == (msg_id, offset)
        assert (view["tag"], view["keys"], view["properties"]["number"]) == ("TagA", [f"key-{number}"], str(number))
    orderly = await asyncio.to_thread(run_cpp, cpp, home, side.namesrv, "consume", topic, "cpp_orderly", 12, "orderly")
    for received in (pushed, orderly):
        assert {one[0] for one in received} == bodies
        assert len(received) == 12
    for queue_id in {one[4] for one in orderly}:
        offsets = [one[5] for one in orderly if one[4] == queue_id]
        assert offsets == sorted(offsets)
    pulled = await asyncio.to_thread(run_cpp, cpp, home, side.namesrv, "pull", topic)
    assert {one[0] for one in pulled} == bodies
    async with AdminClient(namesrv=side.namesrv) as admin:
        assert sum(queue.committed_offset for queue in (await admin.progress("cpp_group", topic)).queues) == 12
