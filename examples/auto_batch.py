"""AutoBatch: many small sends share few requests, and each send gets its own result."""

import asyncio

from sprocketmq import Batching, Message, Producer
from sprocketmq.embedded import LocalCluster


async def main() -> None:
    async with LocalCluster() as mq:
        mq.create_topic("metrics", queues=1, attributes={"queue.type": "BatchCQ"})
        async with Producer("sensors", namesrv=mq.namesrv, batching=Batching(max_delay_ms=5)) as producer:
            results = await asyncio.gather(*(producer.send(Message("metrics", b"%d" % i)) for i in range(1000)))
            stats = producer.batching_stats
            print("offsets", results[0].queue_offset, "to", results[-1].queue_offset, "in", stats.batches, "batches")


asyncio.run(main())
