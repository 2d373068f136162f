"""Closing a client whose task is cancelled meanwhile still closes its connections."""

import asyncio

import pytest
from tests.inside import broker_connections, instance_of

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.embedded import LocalCluster


@pytest.mark.parametrize("turns", range(6))
async def test_a_consumer_cancelled_while_it_closes_leaves_no_connection_open(turns):
    async with LocalCluster() as mq:
        async with Producer("pg", namesrv=mq.namesrv) as producer:
            await producer.send_batch([Message("orders", b"%d" % i) for i in range(10)])
        consumer = PushConsumer("cg", "orders", namesrv=mq.namesrv, consume_from="first")
        await consumer.start()
        async for batch in consumer.batches():
            batch.ack()
            break
        connections = [*broker_connections(consumer).open_connections(), *instance_of(consumer).namesrv.pool.open_connections()]
        assert connections
        closing = asyncio.ensure_future(consumer.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        if turns:  # before the first turn a task has not begun, and there is nothing to finish
            assert all(conn.closed for conn in connections)
        await consumer.close()
