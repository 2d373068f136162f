"""Clients read on from a slave while the master is away, wait for what it does not have yet, and go back."""

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import Any

import pytest
from consuming import push, take
from fake_cluster import FakeBroker, FakeCluster
from tests.inside import instance_of

from sprocketmq import AdminClient, Message, Producer, PullConsumer
from sprocketmq.client import away, instance
from sprocketmq.client.consume import pull_loop
from sprocketmq.client.consume.pull_requests import PullStatus
from sprocketmq.errors import RetriableError, TopicNotFound
from sprocketmq.protocol.bodies import BrokerData, QueueData, TopicRoute
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.01)
    monkeypatch.setattr(pull_loop, "STALL_PAUSE_S", 0.01)
    monkeypatch.setattr(instance, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(away, "LOOK_S", 0.02)


class Replicated(FakeCluster):
    """A master and its slave; the slave has what ``replicate`` copied last."""

    def __init__(self) -> None:
        super().__init__()
        self.slave = FakeBroker("broker-a")

    async def start(self) -> None:
        await super().start()
        await self.slave.start()

    async def stop(self) -> None:
        await self.slave.close()
        await super().stop()

    def put(self, topic: str, queues: int = 1, *, master: bool = True) -> None:
        addresses = ({0: self.broker.address} if master else {}) | {1: self.slave.address}
        self.namesrv.routes[topic] = TopicRoute([BrokerData("c", "broker-a", addresses)], [QueueData("broker-a", queues, queues, 6)])

    def replicate(self, messages: int | None = None) -> None:
        for queue, records in self.broker.queues.items():
            self.slave.queues[queue][:] = records if messages is None else records[:messages]
        held, self.slave.held = self.slave.held, []
        for conn, command in held:
            self.slave.on_PULL_MESSAGE(conn, command)

    async def send(self, *bodies: bytes, **options: Any) -> None:
        async with Producer("pg", namesrv=self.namesrv.address, **options) as producer:
            for body in bodies:
                await producer.send(Message("t", body, queue=QUEUE))


@pytest.fixture
async def cluster():
    running = Replicated()
    await running.start()
    running.put("t")
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def reading(cluster):
    async with PullConsumer("cg", namesrv=cluster.namesrv.address) as consumer:
        yield consumer


def bodies(result) -> list[bytes]:
    return [message.body for message in result.messages]


async def test_a_pull_is_answered_by_the_slave_at_once_when_the_master_is_gone(cluster, caplog):
    await cluster.send(b"1", b"2")
    cluster.replicate()
    async with reading(cluster) as consumer:
        assert (await consumer.pull(QUEUE, 0)).from_master
        await cluster.broker.stop()
        for _ in range(2):
            result = await consumer.pull(QUEUE, 0)
            assert bodies(result) == [b"1", b"2"]
            assert not result.from_master
        assert await consumer.max_offset(QUEUE) == 2
        assert consumer.offsets_from_slave(QUEUE)
    said = [r.getMessage() for r in caplog.records if "master of broker" in r.getMessage()]
    assert len(said) == 1
    assert "PullConsumer: the master of broker broker-a is away, its slaves are read until it returns" in said[0]


async def test_reads_go_back_to_the_master_when_it_accepts_connections_again(cluster, caplog):
    caplog.set_level(logging.WARNING)
    await cluster.send(b"1")
    cluster.replicate()
    async with reading(cluster) as consumer:
        await cluster.broker.stop()
        assert not (await consumer.pull(QUEUE, 0)).from_master
        await cluster.broker.restart()
        await eventually(lambda: "is back" in caplog.text)
        assert (await consumer.pull(QUEUE, 0)).from_master
        await consumer.max_offset(QUEUE)
        assert not consumer.offsets_from_slave(QUEUE)


async def test_a_route_without_a_master_is_looked_up_until_it_has_one(cluster, caplog):
    await cluster.send(b"1")
    cluster.replicate()
    cluster.put("t", master=False)
    async with reading(cluster) as consumer:
        assert not (await consumer.pull(QUEUE, 0)).from_master
        cluster.put("t")
        await eventually(lambda: "is back" in caplog.text)
        assert (await consumer.pull(QUEUE, 0)).from_master


async def test_what_a_slave_does_not_have_yet_is_no_new_message_at_the_requested_offset(cluster):
    await cluster.send(b"1", b"2", b"3")
    cluster.replicate(1)
    cluster.put("t", master=False)
    async with reading(cluster) as consumer:
        result = await consumer.pull(QUEUE, 3)
    assert (result.status, result.next_offset, result.from_master) == (PullStatus.NO_NEW_MESSAGE, 3, False)


async def test_prepared_pulls_change_brokers_with_the_route(cluster):
    await cluster.send(b"1")
    cluster.replicate()
    async with reading(cluster) as consumer:
        await consumer.pull(QUEUE, 0)
        pulls = consumer.prepare_pulls(QUEUE, max_bytes=1000)

        class Receiver:
            def deliver(self, response):
                pass

            def fail(self, error):
                pass

        assert pulls.send(Receiver(), 0, 1) == cluster.broker.address
        await cluster.broker.stop()
        await consumer.pull(QUEUE, 0)
        assert pulls.send(Receiver(), 0, 1) == cluster.slave.address
        await cluster.broker.restart()
        await eventually(lambda: not instance_of(consumer).routes["t"].away)
        await consumer.pull(QUEUE, 0)
        assert pulls.send(Receiver(), 0, 1) == cluster.broker.address


async def test_a_push_consumer_reads_on_in_order_without_gap_or_reset_and_goes_back(cluster):
    await cluster.send(*(b"%d" % i for i in range(4)))
    cluster.replicate(2)
    async with push(cluster) as consumer:
        assert await take(consumer, 4) == [b"0", b"1", b"2", b"3"]
        await cluster.broker.stop()
        # The slave ends at 2 and is asked for 4.
        await cluster.slave.until(lambda: cluster.slave.count(Q.PULL_MESSAGE) > 2)
        await cluster.broker.restart()
        await cluster.send(b"4", b"5")
        cluster.replicate()
        assert await take(consumer, 2) == [b"4", b"5"]
        await cluster.broker.stop()
        await cluster.slave.until(lambda: cluster.slave.held)
        await cluster.broker.restart()
        await cluster.send(b"6")
        cluster.replicate()
        assert await take(consumer, 1) == [b"6"]


async def test_offsets_are_committed_at_the_slave_meanwhile_and_again_at_the_master(cluster):
    await cluster.send(b"1", b"2")
    cluster.replicate()
    key = ("cg", "t", 0)
    async with push(cluster) as consumer:
        await take(consumer, 2)
        await consumer.commit()
        assert cluster.broker.offsets[key] == 2
        await cluster.broker.stop()
        await cluster.slave.until(lambda: cluster.slave.count(Q.PULL_MESSAGE))
        await consumer.commit()
        assert cluster.slave.offsets[key] == 2
        cluster.broker.offsets[key] = 1  # it had not saved the last one
        await cluster.broker.restart()
        await eventually(lambda: not instance_of(consumer).routes["t"].away)
        await consumer.commit()
        assert cluster.broker.offsets[key] == 2


async def test_slaves_get_heartbeats_of_consumers_and_not_of_producers(cluster):
    await cluster.send(b"1")
    assert not cluster.slave.beats
    async with push(cluster):
        await cluster.slave.until(lambda: cluster.slave.beats)


async def test_nothing_is_sent_to_a_slave(cluster):
    cluster.put("t", master=False)
    with pytest.raises((TopicNotFound, RetriableError)):
        async with asyncio.timeout(60):
            await cluster.send(b"1", timeout_s=0.5)
    assert not any(c.code in {Q.SEND_MESSAGE_V2, Q.SEND_BATCH_MESSAGE} for c in cluster.slave.seen)


async def test_a_suggested_slave_is_asked_and_the_master_when_it_is_gone(cluster):
    await cluster.send(b"1", b"2")
    cluster.replicate()

    def suggest(conn, command):
        ext = {"suggestWhichBrokerId": "1", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "2"}
        conn.respond(command, R.SUCCESS, ext=ext, body=cluster.broker.queues["t", 0][0])
        return True

    async with reading(cluster) as consumer:
        cluster.broker.script(Q.PULL_MESSAGE, suggest, suggest)
        await consumer.pull(QUEUE, 0, max_messages=1)
        assert not (await consumer.pull(QUEUE, 1)).from_master  # which suggests the master again
        assert (await consumer.pull(QUEUE, 0, max_messages=1)).from_master
        await cluster.slave.stop()
        assert (await consumer.pull(QUEUE, 1)).from_master


async def test_the_admin_client_reads_from_a_slave(cluster):
    await cluster.send(b"1", b"2")
    cluster.replicate()
    cluster.slave.offsets["cg", "t", 0] = 1
    async with AdminClient(namesrv=cluster.namesrv.address) as admin:
        assert await admin.max_offset(QUEUE) == 2
        await cluster.broker.stop()
        assert await admin.max_offset(QUEUE) == 2
        assert await admin.committed("cg", "t") == {QUEUE: 1}
        found = await admin.message_at(QUEUE, 1)
        assert found is not None
        assert found.body == b"2"
