"""Our gRPC endpoint in front of a broker of either make, with topics and groups for its clients."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

from tests.interop.sides import Side

from sprocketmq import AdminClient
from sprocketmq.client.credentials import NO_SECURITY
from sprocketmq.proxy.server import EndpointServer
from sprocketmq.proxy.users import Users


@contextlib.asynccontextmanager
async def endpoint_of(side: Side, users: Users) -> AsyncIterator[str]:
    """Run our endpoint in front of the broker of one make."""
    server = EndpointServer(side.namesrv, host="127.0.0.1", port=0, security=NO_SECURITY, users=users)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


async def topic_of(side: Side, kind: str = "NORMAL", **more: str) -> str:
    """Create a topic for messages of one type."""
    topic = f"grpc-{kind.lower()}-{uuid.uuid4().hex[:8]}"
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_topic(topic, queues=2, cluster=side.cluster, attributes={"message.type": kind, **more})
    return topic


async def group_at_start(side: Side, topic: str) -> str:
    """Return a new group that begins at the first message: a group that the broker does not know begins at the last."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(group)
        for queue in await admin.queues(topic):
            await admin.commit(group, queue, 0)
    return group
