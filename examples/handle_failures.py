"""Three errors and the data they carry: a wrong port, an unknown topic, a message that is too large."""

import asyncio

from sprocketmq import Message, Producer
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import FatalError, MessageTooLarge, NameserverUnavailable


async def main() -> None:
    try:
        async with Producer("shop", namesrv="127.0.0.1:1"):
            pass
    except NameserverUnavailable as e:
        print("tried", e.tried)
    async with LocalCluster(auto_create_topic=False) as mq, Producer("shop", namesrv=mq.namesrv) as producer:
        try:
            await producer.send(Message("nowhere", b"x"))
        except FatalError as e:
            print(type(e).__name__, "-", e)
        try:
            await producer.send(Message("orders", bytes(5 << 20)))
        except MessageTooLarge as e:
            print("too large by", e.size - e.limit, "bytes")


asyncio.run(main())
