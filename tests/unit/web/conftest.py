"""Dashboards without a browser: a real server on a free port, and a visitor who requests what pages request."""

import json
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from sprocketmq import AdminClient, Producer
from sprocketmq.embedded import LocalCluster
from sprocketmq.web.server import DashboardServer
from sprocketmq.web.target import ClusterTarget


class Visitor:
    """A browser's requests: with the Host, the cookie and the token that a page would send."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.csrf = ""

    async def hello(self) -> dict:
        session = (await self.http.get("/api/session")).json()
        self.csrf = session["csrf"] or ""
        return session

    async def login(self, access_key: str, secret_key: str) -> httpx.Response:
        answer = await self.http.post("/api/login", json={"access_key": access_key, "secret_key": secret_key})
        if answer.is_success:
            self.csrf = answer.json()["csrf"]
        return answer

    async def get(self, path: str, **query) -> httpx.Response:
        return await self.http.get(path, params=query)

    async def post(self, path: str, **body) -> httpx.Response:
        return await self.http.post(path, json=body, headers={"X-CSRF-Token": self.csrf})

    @asynccontextmanager
    async def events(self, path: str, **query):
        """Yield an iterator of the (name, data) of a stream's events."""
        async with self.http.stream("GET", path, params=query) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield _events(answer)


async def _events(answer: httpx.Response):
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@pytest.fixture(scope="module")
def cluster():
    """An embedded cluster, shared by a module's tests."""
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="module")
def secured_cluster():
    """A secured embedded cluster."""
    with LocalCluster(secure=True) as running:
        yield running


@pytest.fixture
async def visit():
    """``await visit(target, **options)``: start a dashboard and return a Visitor of it; all end with the test."""
    async with AsyncExitStack() as stack:

        async def start(target: ClusterTarget, **options) -> Visitor:
            server = DashboardServer(target, **options)
            await server.start()
            stack.push_async_callback(server.stop)
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=60))
            visitor = Visitor(http)
            visitor.server = server
            await visitor.hello()
            return visitor

        yield start


@pytest.fixture
async def visitor(cluster, visit):
    """A visitor of a dashboard over ``cluster``."""
    return await visit(ClusterTarget(cluster.namesrv))


@pytest.fixture
async def mq():
    """A cluster for one test."""
    async with LocalCluster() as running:
        yield running


@pytest.fixture
async def admin(mq):
    """An AdminClient of ``mq``, with topic ``orders`` of two queues, and ``bulk``, whose batches are stored whole."""
    async with AdminClient(namesrv=mq.namesrv) as client:
        await client.create_topic("orders", queues=2)
        await client.create_topic("bulk", queues=1, attributes={"queue.type": "BatchCQ"})
        yield client


@pytest.fixture
async def producer(mq, admin):
    async with Producer("web-tests", namesrv=mq.namesrv) as client:
        yield client
