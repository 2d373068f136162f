"""Send ten thousand messages in batches and count them per queue."""

import asyncio
from collections import Counter

from sprocketmq import Message, Producer
from sprocketmq.embedded import LocalCluster


async def main() -> None:
    async with LocalCluster() as mq, Producer("meters", namesrv=mq.namesrv) as producer:
        readings = [Message("readings", b"%d kWh" % i, tag="power") for i in range(10_000)]
        batches = [readings[i : i + 500] for i in range(0, len(readings), 500)]
        answers = await asyncio.gather(*(producer.send_batch(batch) for batch in batches))
        per_queue = Counter(result.queue_id for results in answers for result in results)
        print(sum(per_queue.values()), "stored over", len(per_queue), "queues")


asyncio.run(main())
