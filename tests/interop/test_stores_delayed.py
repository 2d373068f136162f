"""Delayed messages in stores that move between the two brokers: each broker goes on with what the other one parked."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.reading import pull_all
from tests.interop.test_stores import CLUSTER, Moving

from sprocketmq import AdminClient, Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SOON, LATER = 1, 2
# The later level must outlast the stop of the first broker, and Apache's takes 11 s for one.
LEVELS = {"ours first": "1s 8s", "theirs first": "1s 18s"}
EACH = 20
TIMEOUT_S = 120.0


@pytest.fixture
def moving(home: Path, apache_namesrv: apache.ApacheNamesrv) -> Moving:
    port = apache.broker_port()
    return Moving(home, apache_namesrv.address, f"delaying-{port}", port)


async def park(namesrv: str, topic: str, name: str) -> list[bytes]:
    """Send messages of both levels and return their bodies, those that come soon first."""
    async with Producer("delaying", namesrv=namesrv) as producer:
        bodies = []
        for level in (SOON, LATER):
            for number in range(EACH):
                bodies.append(f"{name} {level} {number}".encode())
                await producer.send(Message(topic, bodies[-1], tag="T", keys=[f"key{number}"], delay_level=level))
    return bodies


async def come(namesrv: str, topic: str, wanted: list[bytes]) -> Counter[bytes]:
    """Wait until all of ``wanted`` have been delivered and return how often what has."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = Counter(view["body"] for view in await pull_all(namesrv, topic))
        if found.keys() >= set(wanted):
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {len(wanted)} have come"
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("order", ["ours first", pytest.param("theirs first", marks=pytest.mark.long)])
async def test_each_broker_delivers_what_the_other_parked_once(moving: Moving, order: str) -> None:
    namesrv, topic = moving.namesrv, f"Delayed{order.partition(' ')[0].title()}"
    ours = partial(moving.ours, settings={"message_delay_level": LEVELS[order]})
    apaches = partial(moving.apaches, settings={"messageDelayLevel": LEVELS[order]})
    first, second = (ours, apaches) if order == "ours first" else (apaches, ours)
    with first("first"):
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.create_topic(topic, queues=2, cluster=CLUSTER)
        bodies = await park(namesrv, topic, "first")
        assert await come(namesrv, topic, bodies[:EACH]) == Counter(bodies[:EACH])
    saved = json.loads((moving.store / "config/delayOffset.json").read_text().replace("\t", "").replace("1:", '"1":').replace("2:", '"2":'))
    assert saved["offsetTable"] == {"1": EACH, "2": 0}
    with second("second"):
        assert await come(namesrv, topic, bodies) == Counter(bodies)
        bodies += await park(namesrv, topic, "second")
        await come(namesrv, topic, bodies[:-EACH])
    with first("third") as last:
        assert await come(namesrv, topic, bodies) == Counter(bodies)
        views = await pull_all(namesrv, topic)
        last.kill()
    assert {view["properties"]["REAL_TOPIC"] for view in views} == {topic}
    assert len({view["msg_id"] for view in views}) == len(bodies)
