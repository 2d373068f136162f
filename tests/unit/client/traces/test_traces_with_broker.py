"""Producers and consumers write traces to a broker, and AdminClient.trace finds them: one for each message, also inside batches."""

import asyncio
import time

import pytest

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer, TraceConfig, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.protocol.traces import TRACE_TOPIC

# All traces, whatever the machine does meanwhile; written when the client closes.
ALL = TraceConfig(cpu_share=1, max_delay_s=60, close_timeout_s=60)


@pytest.fixture
async def mq():
    async with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
async def admin(mq):
    async with AdminClient(namesrv=mq.namesrv) as client:
        await client.create_topic("orders", queues=1)
        await client.create_topic("bulk", queues=1, attributes={"queue.type": "BatchCQ"})
        yield client


async def consume(mq, group, topics, amount, handler=lambda batch: None, **settings):
    """Have a traced consumer handle this many messages, and close it."""
    ended = asyncio.Event()
    seen = []

    def handle(batch):
        seen.extend(batch)
        if len(seen) >= amount:
            ended.set()
        handler(batch)

    async with PushConsumer(group, topics, namesrv=mq.namesrv, consume_from="first", trace=ALL, **settings) as consumer:
        consumer.listen(handle)
        await ended.wait()
    return consumer.trace_stats


async def test_a_single_message(mq, admin):
    before_ms = time.time_ns() // 1_000_000
    async with Producer("pg", namesrv=mq.namesrv, trace=ALL) as producer:
        result = await producer.send(Message("orders", b"hello", tag="red", keys=["k1", "k2"]))
        delayed = await producer.send(Message("orders", b"later", delay_level=18))
    assert (producer.trace_stats.written, producer.trace_stats.dropped) == (2, 0)
    (send,) = (await admin.trace(result.msg_id)).sends
    assert (send.group, send.topic, send.tags, send.keys, send.body_bytes) == ("pg", "orders", "red", "k1 k2", 5)
    assert (send.success, send.message_type, send.region, send.offset_msg_id) == (True, "NORMAL", "DefaultRegion", result.offset_msg_id)
    assert send.store_host == mq.brokers[0]
    assert before_ms - 1000 <= send.time_ms <= time.time_ns() // 1_000_000
    assert send.cost_ms >= 0
    (send,) = (await admin.trace(delayed.msg_id)).sends
    assert send.message_type == "DELAY"


@pytest.mark.parametrize("topic", ["orders", "bulk"])
async def test_every_message_of_a_batch_has_its_own_trace(mq, admin, topic):
    messages = [Message(topic, b"x" * (n % 7 + 1), tag="t" if n % 2 else "u", keys=[f"k{n}"] if n % 3 else []) for n in range(50)]
    async with Producer("pg", namesrv=mq.namesrv, trace=ALL) as producer:
        results = await producer.send_batch(messages)
    assert producer.trace_stats.written == 50
    for n in (0, 1, 17, 49):
        (send,) = (await admin.trace(results[n].msg_id)).sends
        assert (send.body_bytes, send.tags, send.keys) == (n % 7 + 1, messages[n].tag, " ".join(messages[n].keys))
        assert send.offset_msg_id == results[n].offset_msg_id
    stats = await consume(mq, "cg", {topic: "*"}, 50)
    assert (stats.written, stats.dropped) == (100, 0)
    for n in (0, 25, 49):
        (delivery,) = (await admin.trace(results[n].msg_id)).deliveries
        assert (delivery.group, delivery.retry_times, delivery.success, delivery.outcome) == ("cg", 0, True, "SUCCESS")
        assert delivery.time_ms <= delivery.end_ms


@pytest.mark.parametrize("topic", ["orders", "bulk"])
async def test_every_message_that_auto_batch_gathers_has_its_own_trace(mq, admin, topic):
    async with Producer("pg", namesrv=mq.namesrv, auto_batch=True, trace=ALL) as producer:
        results = await asyncio.gather(*[producer.send(Message(topic, b"y" * (n + 1), keys=[f"a{n}"])) for n in range(40)])
    assert producer.trace_stats.written == 40
    for n in (0, 13, 39):
        (send,) = (await admin.trace(results[n].msg_id)).sends
        assert (send.body_bytes, send.keys, send.offset_msg_id) == (n + 1, f"a{n}", results[n].offset_msg_id)


async def test_a_handler_that_fails_and_a_message_given_to_retry(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        first = await producer.send(Message("orders", b"fails"))
        second = await producer.send(Message("orders", b"retried"))
    failed = set()

    def handle(batch):
        for message in batch:
            if message.body not in failed:
                failed.add(message.body)
                if message.body == b"fails":
                    raise ValueError("no")
                batch.retry(message, 1)

    await consume(mq, "cg", {"orders": "*"}, 4, handle, batch_max=1, orderly=True, suspend_s=0.01)
    attempts = (await admin.trace(first.msg_id)).deliveries
    assert [(d.outcome, d.success) for d in attempts] == [("EXCEPTION", False), ("SUCCESS", True)]
    attempts = (await admin.trace(second.msg_id)).deliveries
    assert [(d.outcome, d.success) for d in attempts] == [("FAILED", False), ("SUCCESS", True)]


async def test_a_loop_over_batches_is_traced_too(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        results = [await producer.send(Message("orders", b"%d" % n)) for n in range(2)]
    async with PushConsumer("cg", {"orders": "*"}, namesrv=mq.namesrv, consume_from="first", batch_max=1, trace=ALL) as consumer:
        batches = consumer.batches()
        await anext(batches)
        await anext(batches)
        await batches.aclose()
    done, left = [(await admin.trace(result.msg_id)).deliveries[0] for result in results]
    assert (done.success, left.success) == (True, False)


async def test_messages_that_are_polled_count_as_consumed(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        result = await producer.send(Message("orders", b"polled"))
    async with PullConsumer("cg", namesrv=mq.namesrv, consume_from="first", trace=ALL) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        while not await consumer.poll(timeout_s=1):
            pass
    assert consumer.trace_stats.written == 2
    (delivery,) = (await admin.trace(result.msg_id)).deliveries
    assert (delivery.group, delivery.success, delivery.cost_ms) == ("cg", True, 0)


async def test_producer_and_consumer_choose_the_same_messages(mq, admin):
    half = TraceConfig(sample=0.5, cpu_share=1, max_delay_s=60, close_timeout_s=60)
    async with Producer("pg", namesrv=mq.namesrv, trace=half) as producer:
        results = []
        while len({result.msg_id[:-2] for result in results}) < 30:  # those of a moment are chosen together
            results += await producer.send_batch([Message("orders", b"%d" % n) for n in range(10)])
    ended = asyncio.Event()
    count = 0

    def handle(batch):
        nonlocal count
        count += len(batch)
        if count >= len(results):
            ended.set()

    async with PushConsumer("cg", {"orders": "*"}, namesrv=mq.namesrv, consume_from="first", trace=half) as consumer:
        consumer.listen(handle)
        await ended.wait()
    assert 0 < producer.trace_stats.written < len(results)
    assert consumer.trace_stats.written == 2 * producer.trace_stats.written
    traces = [await admin.trace(result.msg_id) for result in results[::10]]
    assert [len(trace.sends) for trace in traces] == [len(trace.deliveries) for trace in traces]


async def test_traces_are_not_traced(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv, trace=ALL) as producer:
        await producer.send(Message(TRACE_TOPIC, b"Pub\x01rubbish\x02"))
    assert producer.trace_stats.written == 0
    stats = await consume(mq, "cg", {TRACE_TOPIC: "*"}, 1)
    assert stats.written == 0


async def test_without_the_argument_nothing_is_traced(mq, admin):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        await producer.send(Message("orders", b"x"))
        assert producer.trace_stats.written == producer.trace_stats.waiting == 0
    assert TRACE_TOPIC not in await admin.topics()


# --- blocking clients ---


def test_blocking_clients():
    with LocalCluster() as mq, sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topic("orders", queues=1)
        with sync.Producer("pg", namesrv=mq.namesrv, trace=ALL, auto_batch=True) as producer:
            futures = [producer.submit(Message("orders", b"%d" % n, keys=[f"k{n}"])) for n in range(20)]
            results = [future.result() for future in futures]
        assert producer.trace_stats.written == 20
        with sync.PushConsumer("cg", {"orders": "*"}, namesrv=mq.namesrv, consume_from="first", trace=ALL) as consumer:
            seen = 0
            for batch in consumer.batches():
                seen += len(batch)
                if seen >= 20:
                    batch.ack()
                    break
        assert consumer.trace_stats.written == 40
        trace = admin.trace(results[7].msg_id)
        assert [send.keys for send in trace.sends] == ["k7"]
        assert [delivery.success for delivery in trace.deliveries] == [True]


# --- when traces cannot be written ---


async def test_a_trace_topic_that_does_not_exist_affects_no_message(caplog):
    quick = TraceConfig(cpu_share=1, max_delay_s=0.01)
    async with LocalCluster(auto_create_topic=False) as mq, AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_topic("orders", queues=1)
        async with Producer("pg", namesrv=mq.namesrv, trace=quick) as producer:
            for n in range(5):
                await producer.send(Message("orders", b"%d" % n))
        stats = producer.trace_stats
        assert (stats.written, stats.dropped, stats.waiting) == (0, 5, 0)
        assert TRACE_TOPIC in stats.problem
    lines = [record.message for record in caplog.records if "traces" in record.message]
    assert len(lines) == 1
    assert "pg" in lines[0]


async def test_a_user_who_may_not_write_traces_sends_all_the_same(caplog):
    async with LocalCluster(secure=True) as mq:
        directory = await asyncio.to_thread(mq.create_user, "app", {"Topic:orders": "Pub,Sub"})
        async with AdminClient(namesrv=mq.namesrv, secure=mq.secure) as admin:
            await admin.create_topic("orders", queues=1)
        quick = TraceConfig(cpu_share=1, max_delay_s=0.01)
        async with Producer("pg", namesrv=mq.namesrv, secure=directory, trace=quick) as producer:
            for n in range(3):
                await producer.send(Message("orders", b"%d" % n))
        assert (producer.trace_stats.written, producer.trace_stats.dropped) == (0, 3)
    assert len([record for record in caplog.records if "traces of group" in record.message]) == 1


async def test_a_broker_that_is_gone_ends_no_close_late():
    async with LocalCluster() as mq:
        async with AdminClient(namesrv=mq.namesrv) as admin:
            await admin.create_topic("orders", queues=1)
        lost = TraceConfig(cpu_share=1, max_delay_s=60, close_timeout_s=0.1)
        producer = Producer("pg", namesrv=mq.namesrv, trace=lost)
        await producer.start()
        await producer.send(Message("orders", b"x"))
        assert producer.trace_stats.waiting == 1
    await asyncio.wait_for(producer.close(), 60)
    assert (producer.trace_stats.written, producer.trace_stats.dropped, producer.trace_stats.waiting) == (0, 1, 0)
