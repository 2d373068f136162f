"""Message traces are understood by both sides: those of our clients by mqadmin, those of Java clients by AdminClient.trace; at both brokers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.interop.apache import ConsumerOptions, JavaClient
from tests.interop.sides import Side, until

from sprocketmq import AdminClient, Message, MessageTrace, Producer, PushConsumer, SendResult, TraceConfig, sync
from sprocketmq.errors import TopicNotFound
from sprocketmq.protocol.traces import TRACE_TOPIC

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# Everything, written when the client closes at the latest.
ALL = TraceConfig(cpu_share=1, max_delay_s=0.5, close_timeout_s=60)
PLAIN, BATCHES = "TracedPlain", "TracedBatches"


async def found(namesrv: str, msg_id: str, *, sends: int, deliveries: int) -> MessageTrace:
    """Wait until the traces are indexed, and return them."""
    traces: list[MessageTrace] = []

    def complete() -> bool:
        try:
            trace = admin.trace(msg_id)
        except TopicNotFound:  # the first trace creates it
            return False
        traces.append(trace)
        return len(trace.sends) >= sends and len(trace.deliveries) >= deliveries

    with sync.AdminClient(namesrv=namesrv) as admin:
        try:
            await until(f"{sends} sends and {deliveries} deliveries in the trace of {msg_id}", complete)
        except AssertionError as e:
            raise AssertionError(f"{e}: there are {traces[-1:]}") from None
    return traces[-1]


async def send_and_consume(namesrv: str) -> dict[str, SendResult]:
    """Send single messages, batches and AutoBatches with traces, have them consumed with traces; return some of the results by kind."""
    results: dict[str, SendResult] = {}
    async with Producer("traced_pg", namesrv=namesrv, trace=ALL) as producer:
        results["single"] = await producer.send(Message(PLAIN, b"hello", tag="red", keys=["single-key"]))
        for topic in (PLAIN, BATCHES):
            sent = await producer.send_batch([Message(topic, b"%d" % n, tag="blue", keys=[f"batch-{n}"]) for n in range(5)])
            results[f"batch in {topic}"] = sent[3]
    async with Producer("traced_auto_pg", namesrv=namesrv, auto_batch=True, trace=ALL) as producer:
        for topic in (PLAIN, BATCHES):
            gathered = await asyncio.gather(*[producer.send(Message(topic, b"%d" % n, keys=[f"auto-{n}"])) for n in range(5)])
            results[f"AutoBatch in {topic}"] = gathered[2]
    left = 21
    ended = asyncio.Event()

    def handle(batch: list[object]) -> None:
        nonlocal left
        left -= len(batch)
        if left <= 0:
            ended.set()

    topics = {PLAIN: "*", BATCHES: "*"}
    async with PushConsumer("traced_cg", topics, namesrv=namesrv, consume_from="first", trace=ALL) as consumer:
        consumer.listen(handle)
        await asyncio.wait_for(ended.wait(), 120)
    assert consumer.trace_stats.dropped == 0
    return results


async def test_mqadmin_shows_what_our_clients_have_traced(java: JavaClient, side: Side) -> None:
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_topic(PLAIN, queues=1)
        await admin.create_topic(BATCHES, queues=1, attributes={"queue.type": "BatchCQ"})
        results = await send_and_consume(side.namesrv)
        for kind, result in results.items():
            trace = await found(side.namesrv, result.msg_id, sends=1, deliveries=1)
            assert [delivery.success for delivery in trace.deliveries] == [True], kind
            assert trace.sends[0].offset_msg_id == result.offset_msg_id, kind
    for kind, result in results.items():
        printed = java.mqadmin("queryMsgTraceById", "-n", side.namesrv, "-i", result.msg_id)
        rows = [line.split() for line in printed.splitlines() if line.strip()]
        (sent,) = [row for row in rows if row[0] == "Pub"]
        assert sent[1] == ("traced_auto_pg" if "Auto" in kind else "traced_pg"), kind
        assert sent[-1] == "success", kind
        assert any("traced_cg" in row for row in rows) or "traced_cg" in printed, kind


async def test_our_tools_show_what_java_clients_have_traced(java: JavaClient, side: Side) -> None:
    topic = "JavaTraced"
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_topic(topic, queues=1)
        messages = [{"topic": topic, "body": b"one", "tag": "red", "keys": ["j1"]}, {"topic": topic, "body": b"three"}]
        sent = await asyncio.to_thread(java.send_traced, side.namesrv, messages)

        with contextlib.ExitStack() as running:
            options: ConsumerOptions = {"traced": True, "refuse": "three", "refuse_times": 1, "delay_level": 1}
            consumer = java.push_consumer(side.namesrv, "traced_java_cg", topic, **options)
            await asyncio.to_thread(running.enter_context, consumer)
            first = await found(side.namesrv, sent[0]["msg_id"], sends=1, deliveries=1)
            second = await found(side.namesrv, sent[1]["msg_id"], sends=1, deliveries=2)
    (send,) = first.sends
    assert (send.group, send.topic, send.tags, send.keys, send.body_bytes) == ("interop_java_traced", topic, "red", "j1", 3)
    assert (send.success, send.message_type, send.store_host) == (True, "NORMAL", side.address)
    assert first.trace_topic == TRACE_TOPIC
    assert [(d.group, d.success, d.outcome, d.retry_times) for d in first.deliveries] == [("traced_java_cg", True, "SUCCESS", 0)]
    assert [(d.success, d.outcome) for d in second.deliveries] == [(False, "FAILED"), (True, "SUCCESS")]
