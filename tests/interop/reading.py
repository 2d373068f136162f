"""Read a whole topic: with our pull consumer, and with Apache's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from tests.interop.apache import JavaClient
from tests.interop.compare import in_order, java_view, our_view

from sprocketmq import PullConsumer
from sprocketmq.errors import BrokerError, NoBroker, TopicNotFound
from sprocketmq.sync import AdminClient

PATIENCE_S = 120.0


async def until_readable(namesrv: str, topic: str, count: int) -> None:
    """Wait until consumers see `count` messages: Apache's broker puts what it has stored into its queues a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    async with PullConsumer("interop_reader", namesrv=namesrv) as consumer:
        queues = await consumer.queues(topic)
        while sum([await consumer.max_offset(queue) for queue in queues]) < count:
            assert time.monotonic() < deadline, f"fewer than {count} messages of {topic} after {PATIENCE_S:g} s"
            await asyncio.sleep(0.02)


async def pull_all(namesrv: str, topic: str) -> list[dict[str, Any]]:
    """Return every message of the topic as our pull consumer reads it, once all that is stored is in queues."""
    await asyncio.to_thread(wait_until_dispatched, namesrv)
    views = []
    async with PullConsumer("interop_reader", namesrv=namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                views += [our_view(message) for message in result.messages]
                offset = result.next_offset
    return in_order(views)


def java_pull_all(java: JavaClient, namesrv: str, topic: str) -> list[dict[str, Any]]:
    """Return every message of the topic as Apache's pull consumer reads it."""
    wait_until_dispatched(namesrv)
    views = []
    for queue in java.call("queues", namesrv=namesrv, group="interop_java_reader", topic=topic):
        offsets = java.call("offsets", namesrv=namesrv, group="interop_java_reader", queue=queue)
        offset = max(offsets["min"], 0)  # Apache says -1 for an empty batch queue
        while offset < offsets["max"]:
            result = java.pull(namesrv, "interop_java_reader", queue, offset)
            views += [java_view(message) for message in result["messages"]]
            offset = result["next_offset"]
    return in_order(views)


def wait_until_dispatched(namesrv: str) -> None:
    """Wait until the brokers have put everything stored into queues: Apache's answers a send before it has."""
    deadline = time.monotonic() + PATIENCE_S
    with AdminClient(namesrv=namesrv) as admin:
        for broker in admin.cluster().broker_addr_table.values():
            for address in broker.broker_addrs.values():
                while not _dispatched(admin, address):
                    assert time.monotonic() < deadline, f"the broker at {address} still dispatches after {PATIENCE_S:g} s"
                    time.sleep(0.02)


def _dispatched(admin: AdminClient, address: str) -> bool:
    try:
        return int(admin.broker_runtime(address)["dispatchBehindBytes"]) == 0
    except BrokerError:  # Apache's has no statistics in its first second
        return False


async def dead_letters(namesrv: str, group: str, count: int) -> list[dict[str, Any]]:
    """Wait for a group's dead letters and return them."""
    deadline = time.monotonic() + PATIENCE_S
    views: list[dict[str, Any]] = []
    while len(views) < count:
        assert time.monotonic() < deadline, f"{len(views)} dead letters instead of {count}"
        await asyncio.sleep(0.1)
        with contextlib.suppress(TopicNotFound, NoBroker):
            views = await pull_all(namesrv, f"%DLQ%{group}")
    return views
