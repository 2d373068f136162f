"""Every request of the dashboard over a cluster of another version, whose servers know nothing but its brokers, topics and routes."""

import asyncio
import json
import re

import pytest

from sprocketmq.net.server import RemotingServer
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRoute
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.web.pages import PAGES
from sprocketmq.web.target import ClusterTarget

BROKER, TOPIC, GROUP = "broker-old", "orders", "cg"
PLACE = {"topic": TOPIC, "broker": BROKER, "queue": 0, "offset": 0}
LETTERS = {"group": GROUP, "receipt": "r1", "places": [{"broker": BROKER, "queue": 0, "offset": 0}]}
# What a page asks for, by the request; lists are left out, as they have no arguments.
ARGUMENTS = {
    "/api/topics/figures": {"names": [TOPIC]},
    "/api/topic": {"topic": TOPIC},
    "/api/topic/tags": {"topic": TOPIC},
    "/api/topic/create": {"topic": "fresh", "queues": 4},
    "/api/topic/alter": {"topic": TOPIC, "queues": 4, "perm": 6},
    "/api/topic/delete": {"topic": TOPIC, "confirm": TOPIC},
    "/api/groups/figures": {"names": [GROUP]},
    "/api/group": {"group": GROUP},
    "/api/group/preview": {"group": GROUP, "topic": TOPIC, "to": "first"},
    "/api/group/reset": {"group": GROUP, "confirm": GROUP, "topic": TOPIC, "offsets": [{"broker": BROKER, "queue": 0, "offset": 0}]},
    "/api/messages": {"topic": TOPIC, "by": "offset", "broker": BROKER, "queue": 0, "offset": 0},
    "/api/messages/queues": {"topic": TOPIC},
    "/api/messages/follow": {"topic": TOPIC},
    "/api/message": PLACE,
    "/api/message/body": PLACE,
    "/api/message/produce": {"topic": TOPIC, "body": "x"},
    "/api/dead-letters": {"group": GROUP},
    "/api/dead-letter": {"group": GROUP, "broker": BROKER, "queue": 0, "offset": 0},
    "/api/dead-letters/plan": LETTERS,
    "/api/dead-letters/replay": {**LETTERS, "confirm": GROUP},
    "/api/trace": {"id": "7F00000100002A9F0000000000000000"},
}
# These need no more than the three requests that such servers answer.
COMPLETE = {"/api/messages/topics", "/api/messages/queues"}


class OlderServers:
    """Nameserver and broker at one port."""

    def __init__(self):
        self.server = RemotingServer(self, name="nameserver")
        self.refused = set()

    async def start(self):
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}"

    def on_connect(self, conn): ...

    def on_disconnect(self, conn): ...

    def on_batch_end(self, conn): ...

    def on_request(self, conn, command):
        brokers = BrokerData("old", BROKER, {0: self.address})
        match command.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                body = ClusterInfo({BROKER: brokers}, {"old": [BROKER]})
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                body = TopicRoute([brokers], [QueueData(BROKER, 4, 4, 6)])
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                body = TopicList([TOPIC, BROKER, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"])
            case code:
                self.refused.add(code)
                remark = f" request type {code} not supported"
                conn.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
                return
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())


@pytest.fixture
async def servers():
    made = OlderServers()
    await made.start()
    yield made
    await made.server.stop()


@pytest.fixture
async def visitor(servers, visit):
    return await visit(ClusterTarget(servers.address))


def sentences(value):
    """Yield the texts of all failures within an answer."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("problem", "text", "error", "failure") and isinstance(inner, str) and inner:
                yield inner
            yield from sentences(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from sentences(inner)


def check_sentence(text):
    assert text == text.strip()
    assert "\n" not in text
    assert "Traceback" not in text
    assert len(text) < 400, text


@pytest.mark.parametrize("route", [route for page in PAGES for route in page.routes], ids=lambda route: f"{route.method} {route.path}")
async def test_each_request_is_answered_with_what_there_is_or_one_sentence(servers, visitor, route):
    ask = visitor.post if route.method == "POST" else visitor.get
    answer = await asyncio.wait_for(ask(route.path, **ARGUMENTS.get(route.path, {})), 60)
    told = answer.json()
    assert answer.status_code != 500, told
    assert answer.is_success or route.path not in {*COMPLETE, "/api/overview", "/api/topics", "/api/groups", "/api/stores"}, told
    for text in sentences(told):
        check_sentence(text)
    # What is missing is said to be what the servers do not support, not an argument or a topic that is not there.
    assert route.path in COMPLETE or re.search(r"refused with code 3: request type \d+ not supported", json.dumps(told)), told


@pytest.mark.parametrize("stream", [stream for page in PAGES for stream in page.streams], ids=lambda stream: stream.path)
async def test_each_stream_begins_or_ends_with_one_sentence(visitor, stream):
    async with asyncio.timeout(60), visitor.events(stream.path, **ARGUMENTS.get(stream.path, {})) as events:
        name, told = await anext(events)
    assert name != "failure" or told["kind"] != "InternalError", told
    for text in sentences(told):
        check_sentence(text)
