"""One shape for a message whoever received it, and the messages that the interop tests send."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from sprocketmq import Message
from sprocketmq.protocol.records import ReceivedMessage

# Added by the Java client to what it hands out; no broker stores them.
ADDED_BY_JAVA = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
COMPRESSED = 1


def java_view(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a message that Apache's Java client received."""
    view = {**message, "keys": (message["keys"] or "").split()}
    view["properties"] = {name: value for name, value in message["properties"].items() if name not in ADDED_BY_JAVA}
    del view["unique_key"]
    view.pop("received_ms", None)
    return view


def our_view(message: ReceivedMessage) -> dict[str, Any]:
    """Return all fields of a message that our client received, under the same names."""
    return {
        "topic": message.topic,
        "body": message.body,
        "tag": message.tag,
        "keys": message.keys,
        "properties": message.properties,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "flag": message.flag,
        # The Java client clears the bit of what it has inflated; the record keeps it.
        "sys_flag": message.sys_flag & ~COMPRESSED,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "store_size": message.store_size,
        "commitlog_offset": message.commitlog_offset,
        "body_crc": message.body_crc,
    }


def in_order(views: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages ordered by broker, queue and offset: consumers of several queues get them interleaved."""
    return sorted(views, key=lambda view: (view["broker"], view["queue_id"], view["queue_offset"]))


# Both bits of an inner batch. Its messages have no size, CRC and place of their own; the Java client knows none, ours has the whole batch's.
INNER = 0xC0


def assert_same_views(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
    """Assert that two listings have the same messages with the same fields, whichever client read them, in the same order.

    The broker's name is left out: a store read without a broker has none.
    """

    def comparable(view: Mapping[str, Any]) -> dict[str, Any]:
        known = {name: value for name, value in view.items() if name not in {"broker", "unique_key", "received_ms"}}
        known["keys"] = view["keys"].split() if isinstance(view["keys"], str) else view["keys"] or []
        known["properties"] = {name: value for name, value in view["properties"].items() if name not in ADDED_BY_JAVA}
        if view["sys_flag"] & INNER:
            del known["store_size"], known["body_crc"], known["offset_msg_id"]
        return known

    assert len(found) == len(expected), f"{len(found)} messages instead of {len(expected)}"
    for at, (one, other) in enumerate(zip(map(comparable, found), map(comparable, expected), strict=True)):
        different = {name: (one[name], other[name]) for name in other if one.get(name) != other[name]}
        assert one.keys() == other.keys()
        assert not different, f"message {at}: {different}"


def variety(topic: str) -> list[dict[str, Any]]:
    """Return messages that differ in everything a sender can set: what a Java sender takes, and `ours` turns into our own."""
    noise = random.Random(7).randbytes(6000)
    return [
        {"topic": topic, "body": b"plain"},
        {"topic": topic, "body": b"with a tag", "tag": "TagA"},
        {"topic": topic, "body": b"with one key", "keys": ["order-1"]},
        {
            "topic": topic,
            "body": b"with everything",
            "tag": "TagB",
            "keys": ["k1", "k2"],
            "properties": {"a": "1", "b c": "x=y"},
            "flag": 7,
        },
        {
            "topic": topic,
            "body": "Zwölf Boxkämpfer 中文 𝄞".encode(),
            "tag": "标签",
            "keys": ["ключ"],
            "properties": {"имя": "値 𝄞 \\ \" '"},
        },
        {"topic": topic, "body": bytes(range(256)), "tag": "TagA", "flag": -1},
        {"topic": topic, "body": b"compressible " * 1000, "tag": "TagA"},
        {"topic": topic, "body": noise, "properties": {"kind": "noise"}},
    ]


def ours(described: Mapping[str, Any]) -> Message:
    """Return a described message as our own."""
    return Message(**described)


def assert_as_sent(view: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    """Assert that a received message has everything its sender set, and nothing of a sender's in addition."""
    assert view["topic"] == described["topic"]
    assert view["body"] == described["body"]
    assert view["tag"] == described.get("tag")
    assert view["keys"] == described.get("keys", [])
    assert view["flag"] == described.get("flag", 0)
    reserved = {"TAGS", "KEYS", "UNIQ_KEY", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON"}
    assert {name: value for name, value in view["properties"].items() if name not in reserved} == described.get("properties", {})
