"""What topics are told with ``updateTopic -a``, and what priorities and delays then do, at both brokers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.interop.apache import JavaClient
from tests.interop.reading import pull_all
from tests.interop.sides import LEVELS_S, Side

from sprocketmq import Batching, Message, Producer
from sprocketmq.net.client import Connection, ConnectionPool
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.command import Command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

PRIORITY = "_SYS_MSG_PRIORITY_"
UNIQ = "7F000001516DE40737036832F5A000%02d"


def update_topic(java: JavaClient, side: Side, topic: str, attributes: str, *, read: int = 4, write: int = 4) -> str:
    where = ("-n", side.namesrv, "-b", side.address, "-t", topic, "-r", str(read), "-w", str(write))
    return java.mqadmin("updateTopic", *where, *(("-a", attributes) if attributes else ()))


@asynccontextmanager
async def connected(side: Side) -> AsyncIterator[Connection]:
    pool = ConnectionPool(expected="broker")
    try:
        yield await pool.get(side.address)
    finally:
        await pool.close()


async def send(conn: Connection, topic: str, body: bytes, properties: Mapping[str, str], *, queue: int, batch: bool = False) -> Command:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    ext = {"a": "raw", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1700000000000", "h": "0", "i": text, "j": "0"}
    return await conn.request(320 if batch else 310, ext={**ext, "k": "false", "m": str(batch).lower()}, body=body, timeout_s=60)


# --- priorities ---

# What is sent to which queue, and the queue it is in afterwards; -1: any, as chance has it.
PLACED: list[tuple[dict[str, str], int, int]] = [
    *[
        ({PRIORITY: text}, asked, queue)
        for asked in (2, -1)
        for text, queue in (("0", 0), ("1", 1), ("3", 3), ("9", 3), ("+1", 1), ("007", 3))
    ],
    *[({PRIORITY: text}, 2, 2) for text in ("-1", "abc", " 1", "1_0", "1.0", str(2**31))],
    ({}, 2, 2),
    ({PRIORITY: "1", "TRAN_MSG": "false"}, 2, 1),
    *[({PRIORITY: "1", name: value}, 2, 2) for name, value in (("__SHARDINGKEY", "s"), ("DELAY", "0"), ("TIMER_DELIVER_MS", "1"))],
]


@pytest.mark.parametrize("attributes", ["+message.type=PRIORITY", "+message.type=PRIORITY,+queue.type=BatchCQ", "+message.type=NORMAL", ""])
async def test_priorities_choose_the_same_queue_at_both_brokers(java: JavaClient, side: Side, attributes: str) -> None:
    topic = f"Prio{len(attributes)}"
    assert "success" in update_topic(java, side, topic, attributes, read=6, write=4)
    expected: list[tuple[int, str, str | None]] = []
    async with connected(side) as conn:
        for number, (properties, asked, queue) in enumerate(PLACED):
            answer = await send(conn, topic, b"%d" % number, properties, queue=asked)
            assert (answer.code, (answer.ext or {}).get("queueId")) == (0, str(queue)), properties
            dropped = len(properties) > 1 and "TRAN_MSG" not in properties
            expected.append((queue, str(number), None if dropped else properties.get(PRIORITY)))
        members = encode_batch([(0, b"b%d" % n, f"{PRIORITY}\x01{n}\x02".encode()) for n in range(2)])
        for outer in ({}, {"UNIQ_KEY": UNIQ % 1}, {PRIORITY: "1"}, {PRIORITY: "1", "UNIQ_KEY": UNIQ % 2}):
            answer = await send(conn, topic, members, outer, queue=2, batch=True)
            assert (answer.code, (answer.ext or {}).get("queueId")) == (0, "2"), outer
            expected += [(2, f"b{n}", str(n)) for n in range(2)]
    views: list[dict[str, Any]] = await pull_all(side.namesrv, topic)
    found = [(view["queue_id"], view["body"].decode(), view["properties"].get(PRIORITY)) for view in views]
    assert sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("attributes", ["+message.type=PRIORITY", "+message.type=PRIORITY,+queue.type=BatchCQ"])
@pytest.mark.parametrize("way", ["singly", "explicit batch", "gathered"])
async def test_our_producer_puts_each_priority_into_its_queue(java: JavaClient, side: Side, attributes: str, way: str) -> None:
    topic = f"PrioOurs{len(attributes)}{way[0]}"
    assert "success" in update_topic(java, side, topic, attributes)
    messages = [Message(topic, b"%d-%d" % (priority, n), properties={PRIORITY: str(priority)}) for n in range(10) for priority in (0, 2, 7)]
    batching = Batching(max_bytes=1 << 20, max_delay_ms=1000) if way == "gathered" else None
    async with Producer("priorities", namesrv=side.namesrv, batching=batching) as producer:
        if way == "explicit batch":
            for priority in (0, 2, 7):
                await producer.send_batch([message for message in messages if message.properties[PRIORITY] == str(priority)])
        else:
            for future in [producer.submit(message) for message in messages]:
                await future
    found = [(view["queue_id"], view["body"]) for view in await pull_all(side.namesrv, topic)]
    assert sorted(found) == sorted((min(int(m.properties[PRIORITY]), 3), m.body) for m in messages)


# --- message.type and queue.type together ---


@pytest.mark.parametrize("kind", ["DELAY", "FIFO", "NORMAL"])
@pytest.mark.parametrize("queues", ["BatchCQ", "SimpleCQ"])
async def test_a_topic_with_both_types_takes_single_messages_batches_and_gathered_ones(
    java: JavaClient, side: Side, kind: str, queues: str
) -> None:
    topic = f"Both{kind}{queues}"
    assert "success" in update_topic(java, side, topic, f"+message.type={kind},+queue.type={queues}", read=1, write=1)
    started = time.time()
    described = [{"topic": topic, "body": b"java-%d" % n} for n in range(6)]
    java.send(side.namesrv, [{**described[0], "delay_level": 1}] if kind == "DELAY" else described[:1])
    java.send_batch(side.namesrv, described[1:3])
    java.send_auto_batch(side.namesrv, described[3:])
    async with Producer("both", namesrv=side.namesrv) as producer:
        await producer.send(Message(topic, b"ours-0", delay_level=1 if kind == "DELAY" else 0))
        await producer.send_batch([Message(topic, b"ours-1"), Message(topic, b"ours-2")])
    async with Producer("both", namesrv=side.namesrv, auto_batch=True) as producer:
        for future in [producer.submit(Message(topic, b"ours-%d" % n)) for n in range(3, 6)]:
            await future
    wanted = sorted(b"%b-%d" % (who, n) for who in (b"java", b"ours") for n in range(6))
    views: list[dict[str, Any]] = []

    async def arrived() -> bool:
        views[:] = await pull_all(side.namesrv, topic)
        return sorted(view["body"] for view in views) == wanted

    deadline = time.monotonic() + 40
    while not await arrived():
        assert time.monotonic() < deadline, f"only {sorted(view['body'] for view in views)} arrived"
    if kind == "DELAY":
        late = [view for view in views if view["body"].endswith(b"-0")]
        assert len(late) == 2
        assert time.time() >= started + LEVELS_S[0]


@pytest.mark.parametrize("topic_queues", ["BatchCQ", "SimpleCQ"])
async def test_a_batch_whose_outer_message_asks_for_a_level_is_refused_alike(java: JavaClient, side: Side, topic_queues: str) -> None:
    topic = f"OuterDelay{topic_queues}"
    assert "success" in update_topic(java, side, topic, f"+message.type=DELAY,+queue.type={topic_queues}", read=1, write=1)
    members = encode_batch([(0, b"a", b""), (0, b"b", b"")])
    async with connected(side) as conn:
        for number, more in enumerate(({}, {"UNIQ_KEY": UNIQ % 1})):
            assert (await send(conn, topic, members, {**more, "DELAY": "1"}, queue=0, batch=True)).code == 13, number
            for passed in ({"TIMER_DELIVER_MS": "1"}, {"DELAY": "0"}):
                assert (await send(conn, topic, members, {**more, **passed}, queue=0, batch=True)).code == 0, (number, passed)
    assert len(await pull_all(side.namesrv, topic)) == 8


# --- attributes ---

REFUSED = [
    ("+message.type=MIXED", "MIXED message type is not supported."),
    ("+message.type=NoSuch", "value is not in set"),
    ("+queue.type=NoSuch", "value is not in set"),
    ("+nosuch=1", "unsupported key: nosuch"),
    ("+lite.topic.expiration=43201", "value is not in range(-1, 43200)"),
]
# What Apache's broker keeps without an effect, or what ours has no part for.
OURS_REFUSES = [
    ("+reserve.time=3600", "Update topic reserveTime not supported"),
    ("+lite.topic.expiration=30", "no lite topics"),
    ("+message.type=LITE", "no lite topics"),
    ("+cleanup.policy=COMPACTION", "does not compact"),
]


async def test_attributes_are_refused_alike(java: JavaClient, side: Side) -> None:
    for number, (attributes, words) in enumerate(REFUSED):
        assert words in update_topic(java, side, f"Refused{number}", attributes), attributes


async def test_attributes_without_an_effect_are_refused_by_our_broker_only(java: JavaClient, side: Side) -> None:
    for number, (attributes, words) in enumerate(OURS_REFUSES):
        printed = update_topic(java, side, f"Without{number}", attributes)
        assert (words if side.make == "ours" else "success") in printed, attributes


# --- what is refused here and not there ---


async def test_half_of_a_transaction_is_known_by_its_property_and_never_seen(java: JavaClient, side: Side) -> None:
    assert "success" in update_topic(java, side, "Halves", "", read=1, write=1)
    async with connected(side) as conn:
        for value in ("true", "TRUE"):
            answer = await send(conn, "Halves", b"half", {"TRAN_MSG": value, "PGROUP": "raw"}, queue=0)
            assert answer.code == 0
        assert (await send(conn, "Halves", b"whole", {"TRAN_MSG": "false"}, queue=0)).code == 0
    assert [view["body"] for view in await pull_all(side.namesrv, "Halves")] == [b"whole"]


@pytest.mark.parametrize("queues", ["BatchCQ", "SimpleCQ"])
@pytest.mark.parametrize("properties", ["TRAN_MSG\x01true\x02", "DELAY\x011\x02", "TIMER_DELAY_SEC\x0130\x02"])
async def test_what_a_batch_cannot_do_for_a_member_is_refused_here_and_ignored_there(
    java: JavaClient, side: Side, queues: str, properties: str
) -> None:
    topic = f"Members{queues}{len(properties)}"
    assert "success" in update_topic(java, side, topic, f"+queue.type={queues}", read=1, write=1)
    async with connected(side) as conn:
        for outer in ({}, {"UNIQ_KEY": UNIQ % 1}):
            members = encode_batch([(0, b"a", b""), (0, b"b", properties.encode())])
            answer = await send(conn, topic, members, outer, queue=0, batch=True)
            assert answer.code == (13 if side.make == "ours" else 0)
    assert len(await pull_all(side.namesrv, topic)) == (0 if side.make == "ours" else 4)


@pytest.mark.parametrize(("queues", "theirs"), [("BatchCQ", 13), ("SimpleCQ", 1)])
async def test_a_batch_that_is_too_large_has_one_code_here(java: JavaClient, side: Side, queues: str, theirs: int) -> None:
    topic = f"TooLarge{queues}"
    assert "success" in update_topic(java, side, topic, f"+queue.type={queues}", read=1, write=1)
    async with connected(side) as conn:
        members = encode_batch([(0, bytes(3 << 20), b""), (0, bytes(2 << 20), b"")])
        answer = await send(conn, topic, members, {"UNIQ_KEY": UNIQ % 1}, queue=0, batch=True)
    assert answer.code == (13 if side.make == "ours" else theirs)


async def test_a_recall_of_a_handle_that_is_none_is_refused(java: JavaClient, side: Side) -> None:
    assert "success" in update_topic(java, side, "Refusals", "")
    async with connected(side) as conn:
        recall = await conn.request(370, ext={"topic": "Refusals", "recallHandle": "x"}, timeout_s=60)
    assert recall.code == 604
