"""The dashboard over a cluster of either make: what Java clients did is on every page, and what a page changes is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from tests.interop.apache import JavaClient
from tests.interop.reading import dead_letters
from tests.interop.sides import PATIENCE_S, Side
from tests.visiting import Visitor

from sprocketmq.web.pages import PAGES
from sprocketmq.web.server import DashboardServer
from sprocketmq.web.target import ClusterTarget

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, GROUP = "DashboardOrders", "dashboard_group"
COUNT = 8


@pytest.fixture
async def visitor(side: Side) -> AsyncIterator[Visitor]:
    """A visitor of a dashboard over the cluster of one side."""
    server = DashboardServer(ClusterTarget(side.namesrv))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            visitor = Visitor(http)
            await visitor.hello()
            yield visitor
    finally:
        await server.stop()


async def shown(visitor: Visitor, path: str, good: Callable[[Any], bool], **query: object) -> Any:
    """Return the answer of a request as soon as it is good: brokers count and index a moment after they store."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await visitor.get(path, **query)
            assert answer.status_code == 200, answer.text
            told = answer.json()
            if good(told):
                return told
            await asyncio.sleep(0.1)


async def changed(visitor: Visitor, path: str, **body: object) -> Any:
    """Return the answer of a request that changes something."""
    answer = await visitor.post(path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_pages_show_what_java_clients_did_and_change_what_they_say(java: JavaClient, side: Side, visitor: Visitor) -> None:
    await changed(visitor, "/api/topic/create", topic=TOPIC, queues=2)
    described = [{"topic": TOPIC, "body": b"bad" if n == 3 else b"good %d" % n, "tag": "new", "keys": [f"k{n}"]} for n in range(COUNT)]
    sent = await asyncio.to_thread(java.send, side.namesrv, described)
    await changed(visitor, "/api/message/produce", topic=TOPIC, body="by hand", tag="hand", keys=["k-hand"])
    with java.push_consumer(side.namesrv, GROUP, TOPIC, refuse="bad", max_reconsume_times=0) as consumer:
        await asyncio.to_thread(consumer.take, COUNT + 1)
        await dead_letters(side.namesrv, GROUP, 1)
        await shown(visitor, "/api/topics", lambda told: any(row["name"] == TOPIC and row["queues"] == 2 for row in told["topics"]))
        await shown(visitor, "/api/topic", lambda told: told["figures"]["messages"] == COUNT + 1 and told["groups"] == [GROUP], topic=TOPIC)
        tags = await shown(visitor, "/api/topic/tags", lambda told: told["messages"] == COUNT + 1, topic=TOPIC)
        assert tags["tags"] == [{"tag": "new", "count": COUNT}, {"tag": "hand", "count": 1}]

        def consumed(told: Any) -> bool:
            owners = {row["owner"] for row in told["queue_rows"] if row["topic"] == TOPIC}
            return told["lag"] == 0 and told["members"] == 1 and owners == {consumer.client_id}

        # The consumer commits each few seconds.
        await shown(visitor, "/api/group", consumed, group=GROUP)
    for by, text in (("key", "k5"), ("id", sent[5]["msg_id"])):
        found = await shown(visitor, "/api/messages", lambda told: len(told["messages"]) == 1, topic=TOPIC, by=by, text=text)
        assert found["messages"][0]["preview"] == "good 5"
    letters = await shown(visitor, "/api/dead-letters", lambda told: len(told["messages"]) == 1, group=GROUP)
    letter = letters["messages"][0]
    place = {name: letter[name] for name in ("broker", "queue", "offset")}
    compared = await shown(visitor, "/api/dead-letter", lambda told: told["original"] is not None, group=GROUP, **place)
    assert compared["same_body"] is True
    await changed(visitor, "/api/dead-letters/replay", group=GROUP, places=[place], receipt="once")
    await shown(visitor, "/api/topic", lambda told: told["figures"]["messages"] == COUNT + 2, topic=TOPIC)
    preview = (await visitor.get("/api/group/preview", group=GROUP, topic=TOPIC, to="first")).json()
    assert preview["again"] == COUNT + 1
    offsets = [{name: row[name] for name in ("broker", "queue", "offset")} for row in preview["queues"]]
    await changed(visitor, "/api/group/reset", group=GROUP, topic=TOPIC, offsets=offsets, confirm=GROUP)
    await shown(visitor, "/api/group", lambda told: told["lag"] >= COUNT + 2, group=GROUP)
    overview = (await visitor.get("/api/overview")).json()["cluster"]
    assert side.broker in str(overview)
    stores = (await visitor.get("/api/stores")).json()
    assert side.broker in str(stores)
    await changed(visitor, "/api/topic/delete", topic=TOPIC, confirm=TOPIC)
    await shown(visitor, "/api/topics", lambda told: all(row["name"] != TOPIC for row in told["topics"]))


async def test_every_list_is_answered(visitor: Visitor) -> None:
    for page in PAGES:
        for route in page.routes:
            answer = await visitor.http.request(route.method, route.path, json={} if route.method == "POST" else None)
            # Requests that need arguments say which.
            assert answer.status_code in (200, 400, 403), (route.path, answer.text)
