"""Give back single messages of a batch: one is delivered again, one becomes a dead letter."""

import asyncio

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.embedded import LocalCluster


async def main() -> None:
    async with LocalCluster() as mq, Producer("shop", namesrv=mq.namesrv) as producer:
        await producer.send_batch([Message("orders", body) for body in (b"good", b"flaky", b"broken", b"fine")])
        done: set[bytes] = set()
        async with PushConsumer("billing", "orders", namesrv=mq.namesrv, consume_from="first") as consumer:
            async for batch in consumer.batches():
                for message in batch:
                    if message.body == b"broken":
                        batch.retry(message, delay_level=-1)  # no second try
                    elif message.body == b"flaky" and message.reconsume_times == 0:
                        batch.retry(message, delay_level=1)  # again in a second
                    else:
                        print(message.body.decode(), "after", message.reconsume_times, "retries")
                        done.add(message.body)
                if len(done) == 3:
                    batch.ack()
                    break
        print("dead letters:", [bytes(m.body).decode() for m in mq.messages("%DLQ%billing", count=1)])


asyncio.run(main())
