"""Explicit batches as large as one request may be, at both brokers: what our client sends as one request is taken as one."""

from __future__ import annotations

import pytest
from tests.interop.sides import Side

from sprocketmq import AdminClient, Message, Producer, PullConsumer
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

LIMIT = 4 << 20


@pytest.mark.parametrize("attributes", [{}, {"queue.type": "BatchCQ"}], ids=["plain", "BatchCQ"])
@pytest.mark.parametrize(("size", "count"), [(1, 40_000), (1024, 6_000), (100_000, 60), (LIMIT - 200, 2)])
async def test_batches_up_to_the_limit_are_taken(side: Side, attributes: dict[str, str], size: int, count: int) -> None:
    topic = f"large_{size}_{'lists' if attributes else 'plain'}"
    async with (
        AdminClient(namesrv=side.namesrv) as admin,
        Producer("large", namesrv=side.namesrv, timeout_s=60) as producer,
        PullConsumer("reader", namesrv=side.namesrv) as consumer,
    ):
        await admin.create_topic(topic, queues=1, attributes=attributes, cluster=side.cluster)
        results = await producer.send_batch([Message(topic, bytes(size), keys=["k"])] * count)
        assert [r.queue_offset for r in results] == list(range(count))
        (queue,) = await consumer.queues(topic)

        async def dispatched() -> bool:
            return await consumer.max_offset(queue) == count

        await eventually(dispatched, timeout_s=30)
