"""``Namespace`` names topics and groups as a Java client with this namespace does."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.interop.apache import JavaClient
from tests.interop.reading import dead_letters, until_readable
from tests.interop.sides import RETRY_DELAYS_S, Side

from sprocketmq import Message, Namespace, Producer, PushConsumer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_numbers = itertools.count()
SHOP = Namespace("shop")


async def test_a_topic_and_a_group_of_a_java_namespace_are_named_with_the_prefix(java: JavaClient, side: Side) -> None:
    number = next(_numbers)
    topic = await side.create_topic(SHOP(f"Namespaced_{number}"))
    short, group = SHOP.remove(topic), f"billing_{number}"
    described = [{"topic": short, "body": b"from Java %d" % i} for i in range(4)]
    await asyncio.to_thread(java.send, side.namesrv, described, namespace="shop")
    async with Producer(SHOP("producers"), namesrv=side.namesrv) as producer:
        await producer.send_batch([Message(topic, b"bad, from Python")])
    await until_readable(side.namesrv, topic, 5)

    received: list[bytes] = []
    async with PushConsumer(SHOP(group), topic, namesrv=side.namesrv, consume_from="first") as consumer:
        async for batch in consumer.batches():
            received += [message.body for message in batch if SHOP.remove(message.topic) == short]
            batch.ack()
            if len(received) == 5:
                break
    assert sorted(received) == [b"bad, from Python", *(one["body"] for one in described)]

    # The same group goes on in Java where it was; another one refuses a message, whose retry topic and dead letters have the prefix, too.
    times = len(RETRY_DELAYS_S)
    options = {"namespace": "shop", "refuse": "bad.*", "max_reconsume_times": times}
    with java.push_consumer(side.namesrv, f"other_{number}", short, **options) as consumer:  # type: ignore[arg-type]
        taken = await asyncio.to_thread(consumer.take, 5 + times)
        [dead] = await dead_letters(side.namesrv, SHOP(f"other_{number}"), 1)
    assert sorted({message["body"] for message in taken}) == sorted(received)
    assert {message["topic"] for message in taken} == {short}
    assert dead["body"] == b"bad, from Python"
    with java.push_consumer(side.namesrv, group, short, namespace="shop") as consumer:
        await asyncio.to_thread(java.send, side.namesrv, [{"topic": short, "body": b"later"}], namespace="shop")
        assert [message["body"] for message in await asyncio.to_thread(consumer.take, 1)] == [b"later"]
