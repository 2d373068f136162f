"""What tests of push consumers share."""

import asyncio
from contextlib import asynccontextmanager

from fake_cluster import FakeCluster

from sprocketmq.client import PushConsumer


@asynccontextmanager
async def push(cluster: FakeCluster, subscriptions="t", group: str = "cg", **options):
    """Run a consumer that starts with the first message."""
    options.setdefault("consume_from", "first")
    async with PushConsumer(group, subscriptions, namesrv=cluster.namesrv.address, **options) as consumer:
        yield consumer


async def take(consumer: PushConsumer, amount: int) -> list[bytes]:
    """Consume ``amount`` messages, acknowledge them all."""
    bodies: list[bytes] = []
    async with asyncio.timeout(60):
        async for batch in consumer.batches():
            bodies += [m.body for m in batch]
            if len(bodies) >= amount:
                batch.ack()
                break
    return bodies
