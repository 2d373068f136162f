"""Keep the messages of each customer in order: same key, same queue."""

import asyncio

from sprocketmq import Message, Producer, PullConsumer
from sprocketmq.embedded import LocalCluster


async def main() -> None:
    async with LocalCluster() as mq:
        mq.create_topic("steps", queues=4)
        async with Producer("shop", namesrv=mq.namesrv) as producer:
            for step in range(3):
                for customer in ("ada", "bob", "eve"):
                    await producer.send(Message("steps", b"%d" % step, tag=customer, ordering_key=customer))
        async with PullConsumer("audit", namesrv=mq.namesrv) as consumer:
            for queue in await consumer.queues("steps"):
                if end := await consumer.max_offset(queue):
                    messages = (await consumer.pull(queue, 0, max_messages=end)).messages
                    print("queue", queue.queue_id, [(m.tag, m.body.decode()) for m in messages])


asyncio.run(main())
