"""Send one message and read it back, with a cluster inside this process."""

import asyncio

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.embedded import LocalCluster


async def main() -> None:
    async with LocalCluster() as mq:
        async with Producer("shop", namesrv=mq.namesrv) as producer:
            result = await producer.send(Message("orders", b"a teapot", tag="new", keys=["order-1"]))
            print("stored in queue", result.queue_id, "at offset", result.queue_offset)
        async with PushConsumer("billing", {"orders": "new"}, namesrv=mq.namesrv, consume_from="first") as consumer:
            async for batch in consumer.batches():
                print("received", batch[0].body.decode(), batch[0].keys)
                batch.ack()
                break


asyncio.run(main())
