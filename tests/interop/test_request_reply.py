"""Requests and replies between our clients and Apache's, through brokers of both makes."""

from __future__ import annotations

import asyncio

import pytest
from tests.interop.apache import ApacheFailed, JavaClient
from tests.interop.sides import APACHES_IN_LONG, Side

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.errors import ReplyTimeout

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PATIENCE_S = 60.0


async def test_a_java_replier_answers_our_requests(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("RequestsToJava")
    with java.replier(side.namesrv, "java_answers", topic):
        async with Producer("our_requester", namesrv=side.namesrv, timeout_s=PATIENCE_S) as producer:
            replies = await asyncio.gather(*[producer.request(Message(topic, b"question %d" % number)) for number in range(10)])
    assert [reply.body for reply in replies] == [b"QUESTION %d" % number for number in range(10)]
    assert {reply.tag for reply in replies} == {"FromJava"}
    assert {reply.topic for reply in replies} == {f"{side.cluster}_REPLY_TOPIC"}


async def test_our_replier_answers_java_requests(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("RequestsFromJava")

    async def answer(batch: ReceivedBatch) -> None:
        for message in batch:
            await replier.reply(message, message.body.upper(), tag="FromPython", properties={"colour": "red"})

    async with (
        Producer("our_replier", namesrv=side.namesrv, timeout_s=PATIENCE_S) as replier,
        PushConsumer("our_answers", topic, namesrv=side.namesrv, consume_from="first") as consumer,
    ):
        consumer.listen(answer)
        for number in range(3):
            reply = await asyncio.to_thread(java.request, side.namesrv, topic, b"question %d" % number)
            assert (reply["body"], reply["tag"], reply["properties"]["colour"]) == (b"QUESTION %d" % number, "FromPython", "red")


@pytest.mark.parametrize("side", APACHES_IN_LONG, indirect=True)
async def test_java_requests_java_through_either_broker(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("RequestsJavaToJava")
    with java.replier(side.namesrv, "java_answers_java", topic):
        reply = await asyncio.to_thread(java.request, side.namesrv, topic, b"question")
    assert (reply["body"], reply["tag"]) == (b"QUESTION", "FromJava")


async def test_requests_that_nobody_answers_end_in_time(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("RequestsToNobody")
    with pytest.raises(ApacheFailed, match="RequestTimeoutException"):
        await asyncio.to_thread(java.request, side.namesrv, topic, b"?", timeout_s=3)
    async with Producer("unheard", namesrv=side.namesrv, timeout_s=PATIENCE_S) as producer:
        with pytest.raises(ReplyTimeout):
            await producer.request(Message(topic, b"?"), timeout_s=5)
