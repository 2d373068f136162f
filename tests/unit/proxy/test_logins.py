"""Clients of the gRPC endpoint that fail to log in, or do not try: each address is limited, and users are served all the while."""

import asyncio
import contextlib
import hashlib
import hmac

import grpc
import pytest
from tests.waiting import stays

from sprocketmq.client import AdminClient
from sprocketmq.client.credentials import NO_SECURITY, resolve
from sprocketmq.embedded import LocalCluster
from sprocketmq.net.address import parse_address
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.proxy.codes import Code
from sprocketmq.proxy.schema import MESSAGES, SERVICE
from sprocketmq.proxy.server import EndpointServer
from sprocketmq.proxy.users import Users
from sprocketmq.security.login_limits import ANSWERED, PROMPT
from sprocketmq.testing import eventually

ALICE = Credentials("alice", "the-secret-of-alice")
DATE = "20261123T150000Z"


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as running:
        running.create_topic("orders", queues=1)
        yield running


@contextlib.asynccontextmanager
async def endpoint_of(mq, **options):
    users = Users({ALICE.access_key: ALICE})
    server = EndpointServer(mq.namesrv, host="127.0.0.1", port=0, users=users, **({"security": NO_SECURITY} | options))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def endpoint(mq):
    async with endpoint_of(mq) as server:
        yield server


@pytest.fixture
async def connect():
    """Opens a connection of its own."""
    async with contextlib.AsyncExitStack() as opened:

        async def connect(endpoint):
            options = [("grpc.use_local_subchannel_pool", 1)]
            return await opened.enter_async_context(grpc.aio.insecure_channel(endpoint.address, options))

        yield connect


async def ask(channel, secret, user="alice", topic="orders"):
    """Ask for a route with a signature by that secret, and return the status."""
    method = channel.unary_unary(
        f"/{SERVICE}/QueryRoute",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=MESSAGES["QueryRouteResponse"].FromString,
    )
    request = MESSAGES["QueryRouteRequest"]()
    request.topic.name = topic
    signature = hmac.new(secret.encode(), DATE.encode(), hashlib.sha1).hexdigest()
    authorization = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    metadata = (("x-mq-client-id", "client-1"), ("x-mq-date-time", DATE), ("authorization", authorization))
    return (await method(request, metadata=metadata, timeout=60)).status.code


async def begun(endpoint):
    """Open a connection that begins as HTTP/2 does and goes no further."""
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    writer.write(b"PRI * HTTP/2.0")
    return reader, writer


async def test_the_connections_of_an_address_that_fails_often_are_closed_and_others_served(endpoint, connect, monkeypatch, caplog):
    monkeypatch.setattr("sprocketmq.proxy.service.DELAY_S", 0.001)
    good, bad = await connect(endpoint), await connect(endpoint)
    assert await ask(good, "the-secret-of-alice") == Code.OK
    for number in range(ANSWERED):
        assert await ask(bad, "wrong", f"user-{number}") == Code.UNAUTHORIZED
    assert bad.get_state() is grpc.ChannelConnectivity.READY
    for _ in range(2):
        assert await ask(bad, "wrong") == Code.UNAUTHORIZED, "answered, then closed"
        await eventually(lambda: bad.get_state() is not grpc.ChannelConnectivity.READY)
    assert good.get_state() is grpc.ChannelConnectivity.READY
    assert await ask(good, "the-secret-of-alice") == Code.OK
    assert await ask(await connect(endpoint), "the-secret-of-alice") == Code.OK
    assert "peer=127.0.0.1:" in caplog.text


async def test_answers_to_an_address_that_fails_often_wait(endpoint, connect, monkeypatch):
    monkeypatch.setattr("sprocketmq.proxy.service.DELAY_S", 3600)
    channel = await connect(endpoint)
    for _ in range(PROMPT):
        assert await ask(channel, "wrong") == Code.UNAUTHORIZED
    late = asyncio.ensure_future(ask(channel, "wrong"))
    await stays(lambda: not late.done())
    assert await ask(channel, "the-secret-of-alice") == Code.OK
    late.cancel()


async def test_silent_connections_are_bounded_and_keep_nobody_out(mq, connect):
    async with endpoint_of(mq, newcomer_limits=NewcomerLimits(connections=2)) as endpoint:
        user = await connect(endpoint)
        assert await ask(user, "the-secret-of-alice") == Code.OK
        silent = [await begun(endpoint) for _ in range(4)]
        for reader, _ in silent[:2]:
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 60)
        assert user.get_state() is grpc.ChannelConnectivity.READY
        assert await ask(await connect(endpoint), "the-secret-of-alice") == Code.OK
        for _, writer in silent:
            writer.close()


async def test_connections_without_a_login_end_in_time(mq):
    async with endpoint_of(mq, newcomer_limits=NewcomerLimits(seconds=0.05)) as endpoint:
        reader, writer = await begun(endpoint)
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_a_user_may_do_at_the_cluster_what_its_policies_allow_and_no_more(connect):
    with LocalCluster(secure=True) as mq:
        for topic in ("orders", "wages"):
            mq.create_topic(topic, queues=1)
        entry = PolicyEntryInfo("Topic:orders", ["Pub", "Get"], [], "Allow")
        async with AdminClient(namesrv=mq.namesrv, secure=mq.secure) as admin:
            await admin.create_user(mq.brokers[0], ALICE.access_key, ALICE.secret_key.reveal())
            await admin.put_acl(mq.brokers[0], AclInfo(f"User:{ALICE.access_key}", [PolicyInfo([entry])]))
        # The endpoint itself has the login of the administrator.
        async with endpoint_of(mq, security=resolve(secure=mq.secure)) as endpoint:
            channel = await connect(endpoint)

            async def admitted():
                return await ask(channel, "the-secret-of-alice") == Code.OK

            await eventually(admitted, what="the nameserver has read the file of users again")
            assert await ask(channel, "the-secret-of-alice", topic="wages") == Code.FORBIDDEN
