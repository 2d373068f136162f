"""What the page Messages asks for."""

import base64
import os

import msgspec
import pytest

from sprocketmq import Message
from sprocketmq.errors import ConfigError, InvalidMessage, RemoteProtocolError, RetriableError, TopicNotFound
from sprocketmq.web.api import messages
from sprocketmq.web.api.message_views import SHOWN_BYTES, body_part
from sprocketmq.web.api.messages import NewMessage, Wanted, download, find, follow, produce, show

HOSTILE = "<script>alert(1)</script>"


def previews(found):
    return [line["preview"] for line in found["messages"]]


async def look(admin, result):
    return await show(admin, result.topic, result.broker_name, result.queue_id, result.queue_offset)


async def test_messages_are_found_in_every_way(admin, producer):
    sent = [await producer.send(Message("orders", b"%d" % n, tag="red", keys=["k", f"k{n}"])) for n in range(5)]
    assert sorted(previews(await find(admin, Wanted("orders")))) == ["0", "1", "2", "3", "4"]
    assert previews(await find(admin, Wanted("orders", by="key", text=" k3 "))) == ["3"]
    assert len(previews(await find(admin, Wanted("orders", by="tag", text="red")))) == 5
    for msg_id in (sent[2].msg_id, sent[2].offset_msg_id):
        assert previews(await find(admin, Wanted("orders", by="id", text=msg_id))) == ["2"]
    where = sent[4]
    found = await find(admin, Wanted("orders", by="offset", broker=where.broker_name, queue=where.queue_id, offset=where.queue_offset))
    assert previews(found) == ["4"]
    assert previews(await find(admin, Wanted("orders", contains="k1"))) == ["1"]
    assert previews(await find(admin, Wanted("orders", queue=where.queue_id, broker=where.broker_name)))[0] == "4"


async def test_a_result_that_is_cut_says_so(admin, producer):
    for n in range(5):
        await producer.send(Message("orders", b"%d" % n, keys=["k"]))
    found = await find(admin, Wanted("orders", count=2))
    assert (len(found["messages"]), found["cut"], found["in_range"]) == (2, "messages", 5)
    assert (await find(admin, Wanted("orders", count=5)))["cut"] is None
    assert (await find(admin, Wanted("orders", by="key", text="k", count=2)))["cut"] == "messages"
    assert (await find(admin, Wanted("orders", by="key", text="k", count=6)))["cut"] is None


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("orders", count=0),
        Wanted("orders", count=10_000),
        Wanted("orders", begin_ms=5, end_ms=4),
        Wanted("orders", by="key", text="  "),
        Wanted("orders", by="offset", queue=7),
        Wanted("orders", by="offset", queue=0, broker="broker-z"),
        Wanted("or ders"),
    ],
    ids=repr,
)
async def test_what_cannot_be_searched_is_refused(admin, wanted):
    with pytest.raises(ConfigError):
        await find(admin, wanted)


async def test_an_unknown_topic_is_refused(admin):
    with pytest.raises(TopicNotFound):
        await find(admin, Wanted("nowhere"))
    with pytest.raises(TopicNotFound):
        await show(admin, "nowhere", "broker-a", 0, 0)
    with pytest.raises(ConfigError, match="deleted"):
        await show(admin, "orders", "broker-a", 0, 99)


async def test_a_message_is_shown_with_its_properties_and_its_body(admin, producer):
    text = HOSTILE.encode()
    shown = await look(admin, await producer.send(Message("orders", text, tag="t", keys=["k"], properties={HOSTILE: HOSTILE})))
    assert shown["properties"] == {HOSTILE: HOSTILE}
    assert {"TAGS", "KEYS", "UNIQ_KEY"} <= set(shown["system_properties"])
    assert base64.b64decode(shown["body"]["part"]) == text
    assert shown["batch"] is None


async def test_compressed_bodies_are_inflated(admin, producer):
    body = b'{"n": 12345678901234567890, "x": [1.10, "' + b"a" * 20_000 + b'"]}'
    result = await producer.send(Message("orders", body))
    shown = await look(admin, result)
    assert base64.b64decode(shown["body"]["part"]) == body
    assert (shown["compression"], shown["body"]["bytes"]) == ("ZLIB", len(body))
    assert shown["stored_bytes"] < len(body)
    (line,) = (await find(admin, Wanted("orders")))["messages"]
    assert (line["bytes"], line["preview"][:5], line["compression"]) == (len(body), '{"n":', "ZLIB")
    assert await download(admin, result.topic, result.broker_name, result.queue_id, result.queue_offset) == body


async def test_a_large_body_is_shown_in_part(admin, producer):
    body = os.urandom(4_000_000)
    result = await producer.send(Message("orders", body))
    shown = await look(admin, result)
    assert shown["body"]["bytes"] == len(body)
    assert base64.b64decode(shown["body"]["part"]) == body[:SHOWN_BYTES]
    assert await download(admin, result.topic, result.broker_name, result.queue_id, result.queue_offset) == body
    (line,) = (await find(admin, Wanted("orders")))["messages"]
    assert line["preview"] is None
    assert line["stored_bytes"] > 3_900_000


async def test_a_batch_is_drawn_around_each_of_its_messages(admin, producer):
    sent = await producer.send_batch([Message("bulk", b"x" * (n + 1), tag=f"t{n}") for n in range(100)])
    shown = await look(admin, sent[70])
    batch = shown["batch"]
    assert (batch["index"], batch["count"], batch["first_offset"], len(batch["drawn"])) == (70, 100, 0, 64)
    assert batch["drawn"][70 - batch["drawn_from"]] == {"offset": 70, "bytes": 71, "msg_id": sent[70].msg_id, "tag": "t70"}
    assert base64.b64decode(shown["body"]["part"]) == b"x" * 71
    assert all(line["inner"] for line in (await find(admin, Wanted("bulk")))["messages"])
    alone = await look(admin, await producer.send(Message("orders", b"alone")))
    assert alone["batch"] is None
    assert not any(line["inner"] for line in (await find(admin, Wanted("orders")))["messages"])


async def test_a_test_message_is_produced_only_to_a_topic_that_is_there(admin, producer):
    done = await produce(admin, producer, NewMessage("orders", "00ff", "hex", tag="t", keys=("k",), properties={"a": "b"}, queue=1))
    assert (done["status"], done["queue"], done["topic"]) == ("SEND_OK", 1, "orders")
    shown = await show(admin, "orders", done["broker"], done["queue"], done["offset"])
    assert (base64.b64decode(shown["body"]["part"]), shown["tag"], shown["keys"], shown["properties"]) == (
        b"\0\xff",
        "t",
        ["k"],
        {"a": "b"},
    )
    with pytest.raises(TopicNotFound):
        await produce(admin, producer, NewMessage("nowhere", "x"))
    assert "nowhere" not in await admin.topics()


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (NewMessage("orders", "0g", "hex"), ConfigError),
        (NewMessage("orders", "a", "base64"), ConfigError),
        (NewMessage("orders", ""), InvalidMessage),
        (NewMessage("orders", "x" * (1 << 20) + "x"), ConfigError),
        (NewMessage("orders", "x", queue=9), ConfigError),
        (NewMessage("orders", "x", properties={"UNIQ_KEY": "x"}), ConfigError),
        (NewMessage("orders", "x", keys=("two words",)), ConfigError),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_a_test_message_that_cannot_be_is_refused(admin, producer, wanted, error):
    with pytest.raises(error):
        await produce(admin, producer, wanted)


async def test_following_shows_what_comes_and_touches_no_group(admin, producer):
    await producer.send(Message("orders", b"before"))
    groups = await admin.groups()
    stream = follow(admin, "orders", tick_s=0.01)
    assert (await anext(stream))["queues"] == 2
    await producer.send(Message("orders", b"one"))
    seen = []
    while len(seen) < 1:
        seen += (await anext(stream))["messages"]
    for n in range(20):
        await producer.send(Message("bulk", b"other topic %d" % n))
        await producer.send(Message("orders", b"%d" % n))
    while len(seen) < 21:
        tick = await anext(stream)
        assert tick["skipped"] == 0
        seen += tick["messages"]
    await stream.aclose()
    assert sorted(line["preview"] for line in seen) == sorted(["one", *map(str, range(20))])
    assert await admin.groups() == groups
    assert set((await admin.committed("TOOLS_CONSUMER", "orders")).values()) == {None}


async def test_a_busy_topic_is_followed_in_part_and_counted(admin, producer):
    stream = follow(admin, "bulk", tick_s=0.01)
    await anext(stream)
    await producer.send_batch([Message("bulk", b"%d" % n) for n in range(500)])
    shown = skipped = 0
    while not shown:
        tick = await anext(stream)
        shown, skipped = len(tick["messages"]), tick["skipped"]
    assert (shown, skipped) == (messages.FOLLOWED_MESSAGES, 450)
    assert tick["messages"][-1]["preview"] == "499"
    await stream.aclose()


async def test_following_ends_when_the_topic_is_gone(admin, producer):
    stream = follow(admin, "orders", tick_s=0.01)
    await anext(stream)
    await admin.delete_topic("orders")
    ticks = [tick async for tick in stream]
    assert ticks[-1]["ended"] == "gone"
    assert "orders" in ticks[-1]["problem"]


async def test_following_outlives_a_broker_that_is_away(admin, monkeypatch):
    real = admin.topic_stats
    failures = ["the broker is away"]

    async def topic_stats(topic):
        if failures:
            raise RetriableError(failures.pop())
        return await real(topic)

    monkeypatch.setattr(admin, "topic_stats", topic_stats)
    stream = follow(admin, "orders", tick_s=0.01)
    assert (await anext(stream))["problem"] == "the broker is away"
    assert (await anext(stream))["queues"] == 2
    await stream.aclose()


def test_a_question_of_a_wrong_shape_is_refused():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"topic": "t", "by": "magic"}, Wanted)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"topic": "t", "more": 1}, Wanted)


def test_a_damaged_body_is_shown_as_it_is_stored():
    class Damaged:
        stored_body = b"broken"

        @property
        def body(self):
            raise RemoteProtocolError("it does not inflate")

    shown = body_part(Damaged())
    assert (base64.b64decode(shown["part"]), shown["damage"]) == (b"broken", "it does not inflate")
