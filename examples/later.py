"""A message that is delivered later."""

import asyncio
import time

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.embedded import LocalCluster


async def main() -> None:
    async with LocalCluster() as mq, Producer("shop", namesrv=mq.namesrv) as producer:
        started = time.monotonic()
        await producer.send(Message("reminders", b"pay", delay_level=1))  # level 1 is one second
        async with PushConsumer("mailer", "reminders", namesrv=mq.namesrv, consume_from="first") as consumer:
            async for batch in consumer.batches():
                print(bytes(batch[0].body).decode(), f"after {time.monotonic() - started:.0f} s")
                batch.ack()
                break


asyncio.run(main())
