"""Dashboards without a browser: a real server on a free port, and a visitor who requests what pages request."""

from contextlib import AsyncExitStack

import httpx
import pytest
from tests.visiting import Visitor

from sprocketmq import AdminClient, Producer
from sprocketmq.embedded import LocalCluster
from sprocketmq.web.server import DashboardServer
from sprocketmq.web.target import ClusterTarget


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
