"""Messages that a consumer refuses come again after the right delays, the right number of times, and then are dead letters, once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from tests.interop.apache import ConsumerOptions, JavaClient
from tests.interop.compare import INNER, assert_same_views
from tests.interop.reading import java_pull_all, pull_all
from tests.interop.sides import PATIENCE_S, RETRY_DELAYS_S, Side

from sprocketmq.errors import TopicNotFound

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

TIMES = len(RETRY_DELAYS_S)
# What two readings of the machine's clock may be apart, as they are rounded to milliseconds.
CLOCKS_MS = 5


def bodies(count: int) -> list[bytes]:
    """Return bodies of which every fifth is one that consumers of these tests refuse."""
    return [b"%b %d" % (b"bad" if number % 5 == 2 else b"good", number) for number in range(count)]


async def send_described(java: JavaClient, side: Side, topic: str, count: int, *, in_batches: bool) -> list[dict[str, Any]]:
    """Send messages with tags, keys and properties; return how both clients read them."""
    described = [
        {"topic": topic, "body": body, "tag": "TagA", "keys": [f"key-{number}"], "properties": {"number": str(number)}, "flag": number}
        for number, body in enumerate(bodies(count))
    ]
    if in_batches:
        for start in range(0, count, 10):
            await asyncio.to_thread(java.send_batch, side.namesrv, described[start : start + 10])
    else:
        await asyncio.to_thread(java.send, side.namesrv, described)
    return await pull_all(side.namesrv, topic)


async def dead_letters(side: Side, group: str, count: int) -> list[dict[str, Any]]:
    """Wait for a group's dead letters and return them."""
    deadline = time.monotonic() + PATIENCE_S
    views: list[dict[str, Any]] = []
    while len(views) < count:
        assert time.monotonic() < deadline, f"{len(views)} dead letters instead of {count}"
        await asyncio.sleep(0.1)
        with contextlib.suppress(TopicNotFound):
            views = await pull_all(side.namesrv, f"%DLQ%{group}")
    return views


def assert_delivered(received: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]], times: int = TIMES) -> None:
    """Assert that a Java consumer got what it refused `times` times again, each after its delay, and all else once."""
    attempts: dict[bytes, list[Mapping[str, Any]]] = {}
    for message in sorted(received, key=lambda message: message["received_ms"]):
        attempts.setdefault(message["body"], []).append(message)
    assert set(attempts) == {view["body"] for view in sent}
    for view in sent:
        came = attempts[view["body"]]
        assert [message["reconsume_times"] for message in came] == list(range(times + 1 if view["body"].startswith(b"bad") else 1))
        for message in came:
            assert (message["topic"], message["msg_id"]) == (view["topic"], view["msg_id"])
            assert_same_content(message, view)
        waited = [after["received_ms"] - before["received_ms"] for before, after in pairwise(came)]
        assert all(took >= delay * 1000 - CLOCKS_MS for took, delay in zip(waited, RETRY_DELAYS_S, strict=False)), waited


def assert_same_content(found: Mapping[str, Any], view: Mapping[str, Any]) -> None:
    """Assert that a message has everything its sender set."""
    for name in ("body", "tag", "flag"):
        assert found[name] == view[name]
    keys = found["keys"].split() if isinstance(found["keys"], str) else found["keys"]
    assert keys == view["keys"]
    assert found["properties"]["number"] == view["properties"]["number"]


def assert_dead(found: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]], times: int = TIMES) -> None:
    """Assert that the dead letters are the refused messages, once each, and say where they are from."""
    refused = {view["msg_id"]: view for view in sent if view["body"].startswith(b"bad")}
    assert sorted(view["msg_id"] for view in found) == sorted(refused)
    for view in found:
        origin = refused[view["msg_id"]]
        assert_same_content(view, origin)
        assert view["reconsume_times"] == times + 1
        assert view["properties"]["RETRY_TOPIC"] == origin["topic"]
        assert view["properties"]["ORIGIN_MESSAGE_ID"] in {origin["offset_msg_id"], origin["msg_id"]}
        assert not view["sys_flag"] & INNER


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_what_java_listeners_refuse_ends_among_the_dead_letters(java: JavaClient, side: Side, batch_queues: bool) -> None:
    topic = await side.create_topic(f"JavaRefuses_{batch_queues}", batch_queues=batch_queues)
    sent = await send_described(java, side, topic, 30, in_batches=batch_queues)
    refused = sum(view["body"].startswith(b"bad") for view in sent)
    with ExitStack() as running:
        consumers = {}
        for how in ("later", "exception", "null"):
            group = f"java_{how}_{batch_queues}"
            options: ConsumerOptions = {"refuse": "bad.*", "refuse_by": how, "max_reconsume_times": TIMES}
            consumers[group] = running.enter_context(java.push_consumer(side.namesrv, group, topic, **options))
        received = {group: await asyncio.to_thread(consumer.take, len(sent) + TIMES * refused) for group, consumer in consumers.items()}
        dead = {group: await dead_letters(side, group, refused) for group in consumers}
    for group, consumer in consumers.items():
        assert_delivered(received[group] + consumer.rest, sent)
        assert_dead(dead[group], sent)
        assert_same_views(java_pull_all(java, side.namesrv, f"%DLQ%{group}"), dead[group])
