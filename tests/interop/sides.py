"""A broker of either make, for tests that must come out the same at both; and waiting for what clients do in their own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sprocketmq import AdminClient
from sprocketmq.net.client import Connection
from sprocketmq.protocol.command import Command

PATIENCE_S = 120.0

# For tests in which Apache's broker is a control, or one more server behind a path that other tests take to it.
APACHES_IN_LONG = ["ours", pytest.param("apaches", marks=pytest.mark.long)]

# What both brokers are told. A first, second and third retry take the third, fourth and fifth.
RETRY_DELAYS_S = (1, 2, 3)
LEVELS_S = (1, 4, *RETRY_DELAYS_S, *[1] * 13)
DELAY_LEVELS = " ".join(f"{delay}s" for delay in LEVELS_S)


@dataclass(frozen=True)
class Side:
    """Where a broker of one make is, and what it is called."""

    make: str
    namesrv: str
    address: str
    broker: str
    cluster: str

    async def create_topic(self, topic: str, *, queues: int = 4, batch_queues: bool = False) -> str:
        """Create a topic, of batch queues if asked for, and return its name."""
        attributes = {"queue.type": "BatchCQ"} if batch_queues else {}
        async with AdminClient(namesrv=self.namesrv) as admin:
            await admin.create_topic(topic, queues=queues, cluster=self.cluster, attributes=attributes)
        return topic

    def queue(self, topic: str, queue_id: int) -> dict[str, Any]:
        """Return a queue as the Java client is told of one."""
        return {"topic": topic, "broker": self.broker, "queue_id": queue_id}


async def ask(conn: Connection, code: int, body: bytes = b"", **ext: object) -> Command:
    """Send one request and return its answer, whatever that is."""
    return await conn.request(code, ext={name: str(value) for name, value in ext.items()}, body=body, timeout_s=60)


async def until(what: str, happened: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until it happened, looking from a thread of its own, as it may ask the Java client. Fails with `what` was waited for."""
    deadline = time.monotonic() + patience_s
    while not await asyncio.to_thread(happened):
        assert time.monotonic() < deadline, f"{what} did not happen within {patience_s:g} s"
        await asyncio.sleep(0.05)
