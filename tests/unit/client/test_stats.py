"""``stats()`` of producers and consumers: what they count, and that they count it in a bounded amount of memory."""

import asyncio

import pytest
from consuming import push, take
from fake_cluster import FakeCluster, answer

from sprocketmq import Batching, ClientHooks, Message, Producer, PullConsumer, sync
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import pull_loop
from sprocketmq.client.send import requests as requests_module
from sprocketmq.client.stats import DurationCounts, Durations, FailureCounts, ProducerStats, SizeCounts
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerBusy, BrokerError
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(requests_module, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(requests_module, "BUSY_PAUSE_S", 0.001)
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.001)


def test_durations_are_estimated_within_a_power_of_two():
    counts = DurationCounts()
    assert counts.summary() == Durations()
    for milliseconds in range(1, 101):
        counts.add(milliseconds / 1000)
    summary = counts.summary()
    assert (summary.count, summary.max_s) == (100, 0.1)
    assert summary.mean_s == pytest.approx(0.0505)
    assert 0.032 <= summary.p50_s <= 0.066
    assert summary.p50_s <= summary.p90_s <= summary.p99_s <= 0.1
    counts.add(-1.0)
    counts.add(1e30)
    assert counts.summary().max_s == 1e30
    assert len(counts.counts) == 64


def test_sizes_are_counted_by_powers_of_two():
    sizes = SizeCounts()
    for size in (1, 2, 3, 8, 15, 16, 1 << 99):
        sizes.add(size)
    assert sizes.histogram() == {1: 1, 2: 2, 8: 2, 16: 1, 1 << 63: 1}


def test_kinds_of_errors_are_bounded():
    failures = FailureCounts()
    for i in range(300):
        failures.add(type(f"Error{i}", (Exception,), {})())
    assert (failures.total, len(failures.counts), failures.counts["other"]) == (300, 101, 200)


async def test_a_producer_counts_messages_batches_retries_and_failures(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        assert producer.stats() == ProducerStats("pg")
        await producer.send(Message("t", b"12345"))
        await producer.send_batch([Message("t", b"x")] * 10)
        cluster.broker.script(Q.SEND_MESSAGE_V2, answer(R.SYSTEM_BUSY, "busy"), answer(R.SYSTEM_BUSY, "busy"))
        await producer.send(Message("t", b"x"))
        cluster.broker.script(Q.SEND_MESSAGE_V2, *[answer(R.SYSTEM_BUSY, "busy")] * 3, answer(R.MESSAGE_ILLEGAL, "no"))
        for _ in range(2):
            with pytest.raises((BrokerBusy, BrokerError)):
                await producer.send(Message("t", b"x"))
        future = producer.submit(Message("t", b"123"))
        assert (producer.stats().in_flight, producer.stats().in_flight_bytes) == (1, 3)
        await future
        stats = producer.stats()
    assert (stats.messages, stats.requests, stats.batches, stats.messages_per_request) == (13, 4, 1, {1: 3, 8: 1})
    assert stats.bytes > 5 + 10 + 1 + 3
    assert (stats.retries, stats.failed, stats.failures) == (4, 2, {"BrokerBusy": 1, "BrokerError": 1})
    assert (stats.in_flight, stats.in_flight_bytes) == (0, 0)
    assert stats.latency.count == 4
    assert 0 <= stats.latency.p50_s <= stats.latency.max_s
    with pytest.raises(AttributeError):
        stats.messages = 0


async def test_batches_of_autobatch_are_counted_and_failures_of_hooks(cluster):
    class Broken(ClientHooks):
        def sending(self, event):
            raise ValueError

    batching = Batching(max_delay_ms=30_000)
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching, hooks=[Broken()]) as producer:
        futures = [producer.submit(Message("t", b"x")) for _ in range(20)]
        await producer.flush()
        await asyncio.gather(*futures)
        stats = producer.stats()
    assert (stats.messages, stats.requests, stats.batches, stats.messages_per_request) == (20, 1, 1, {16: 1})
    assert stats.hook_failures == 1


async def fill(cluster: FakeCluster, amount: int) -> None:
    async with Producer("filler", namesrv=cluster.namesrv.address) as producer:
        for i in range(amount):
            await producer.send(Message("t", b"%d" % i, queue=QUEUE))


async def test_a_push_consumer_counts_pulls_batches_failures_and_give_backs(cluster):
    await fill(cluster, 6)
    release = asyncio.Event()

    async def handler(batch):
        await release.wait()
        if batch[0].body == b"0":
            raise ValueError("no")

    async with push(cluster, batch_max=2) as consumer:
        consumer.listen(handler, concurrency=2)
        await eventually(lambda: consumer.stats().in_flight == 4)
        release.set()
        await eventually(lambda: consumer.stats().batches == 3 and consumer.stats().given_back == 2)
        stats = consumer.stats()
    assert (stats.messages, stats.messages_per_batch) == (6, {2: 3})
    assert stats.pulls >= 1
    assert stats.bytes > 6
    assert (stats.handler_failures, stats.retried, stats.give_back_failures) == ({"ValueError": 1}, 2, 0)
    assert stats.handler_time.count == 3
    assert stats.in_flight == 0


async def test_iterating_and_failing_pulls_are_counted(cluster):
    await fill(cluster, 2)
    cluster.broker.script(Q.PULL_MESSAGE, answer(R.MESSAGE_ILLEGAL, "no"))
    async with push(cluster) as consumer:
        assert await take(consumer, 2) == [b"0", b"1"]
        await eventually(lambda: consumer.stats().pull_failures)
        stats = consumer.stats()
    assert stats.pull_failures == {"BrokerError": 1}
    assert (stats.batches, stats.handler_time.count) == (1, 1)


async def test_a_pull_consumer_counts_pulls_and_polls(cluster):
    await fill(cluster, 3)
    async with PullConsumer("cg", namesrv=cluster.namesrv.address, consume_from="first") as consumer:
        await consumer.pull(QUEUE, 0)
        cluster.broker.script(Q.PULL_MESSAGE, answer(R.NO_PERMISSION, "no"))
        with pytest.raises(BrokerError):
            await consumer.pull(QUEUE, 0)
        stats = consumer.stats()
        assert (stats.pulls, stats.messages, stats.pull_failures, stats.queues) == (1, 3, {"BrokerError": 1}, ())
        await consumer.assign([QUEUE])
        assert len(await consumer.poll(2)) == 2
        assert consumer.stats().in_flight == 2
        assert len(await consumer.poll(2)) == 1
        stats = consumer.stats()
    assert (stats.messages, stats.batches, stats.messages_per_batch, stats.in_flight) == (6, 1, {2: 1}, 1)


def test_blocking_clients_have_the_same_statistics():
    with LocalCluster() as cluster, sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        producer.send(Message("t", b"x"))
        assert (producer.stats().messages, producer.stats().in_flight) == (1, 0)
        with sync.PushConsumer("cg", "t", namesrv=cluster.namesrv, consume_from="first") as consumer:
            for batch in consumer.batches():
                assert consumer.stats().in_flight == 1
                batch.ack()
                break
            assert consumer.stats().batches == 1
