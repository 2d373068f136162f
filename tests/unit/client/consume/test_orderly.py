import asyncio
from contextlib import asynccontextmanager

import pytest
from fake_cluster import answer, hang_up
from tests.inside import id_of
from tests.waiting import stays

from sprocketmq.client import PushConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume.orderly import BROKER_S, VALID_S, Leases, MemberLocks
from sprocketmq.client.instance import Instance
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConnectionLost
from sprocketmq.protocol.bodies import LockBatchRequest
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import MessageQueue

QUEUES = [MessageQueue("t", "broker-a", i) for i in range(4)]
QUEUE = QUEUES[0]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)


@asynccontextmanager
async def member(cluster, clock=None):
    instance = Instance(cluster.namesrv.address, kind="PushConsumer", clock=clock or ManualClock())
    await instance.start()
    try:
        await instance.fetch_route("t")
        yield MemberLocks(instance, "cg")
    finally:
        await instance.close()


# --- leases -------------------------------------------------------------------------------------------------------------


def test_a_lock_is_believed_for_thirty_seconds_from_when_it_was_asked_for():
    clock = ManualClock()
    leases = Leases(clock)
    asked_at = clock.monotonic()
    clock.advance(2)  # the answer took its time
    assert not leases.grant(QUEUE, asked_at)
    assert leases.holds(QUEUE)
    clock.advance(VALID_S - 2.5)
    assert leases.holds(QUEUE)
    clock.advance(0.5)
    assert not leases.holds(QUEUE)


def test_a_lock_that_was_never_granted_is_not_held():
    assert not Leases(ManualClock()).holds(QUEUE)


def test_a_renewal_within_the_brokers_minute_means_that_nobody_else_had_the_queue():
    clock = ManualClock()
    leases = Leases(clock)
    leases.grant(QUEUE, clock.monotonic())
    clock.advance(VALID_S + 1)  # not believed any more, but the broker kept it
    assert leases.grant(QUEUE, clock.monotonic())
    clock.advance(BROKER_S)
    assert not leases.grant(QUEUE, clock.monotonic())


def test_a_lock_given_up_is_gone_at_once_and_a_new_one_is_new():
    clock = ManualClock()
    leases = Leases(clock)
    leases.grant(QUEUE, clock.monotonic())
    leases.drop(QUEUE)
    leases.drop(QUEUE)
    assert not leases.holds(QUEUE)
    assert not leases.grant(QUEUE, clock.monotonic())


# --- asking brokers -----------------------------------------------------------------------------------------------------


async def test_each_broker_is_asked_once_for_all_of_its_queues(two_brokers):
    everything = [MessageQueue("t", name, i) for name in ("broker-a", "broker-b") for i in range(2)]
    async with member(two_brokers) as locks:
        result = await locks.lock(everything)
        assert result.taken == set(everything)
        assert all(locks.leases.holds(queue) for queue in everything)
        again = await locks.lock(everything)
        assert again.kept == set(everything)
        client_id = id_of(locks)
    for broker in two_brokers.brokers:
        assert broker.count(Q.LOCK_BATCH_MQ) == 2
        asked = LockBatchRequest.decode(next(c.body for c in broker.seen if c.code == Q.LOCK_BATCH_MQ))
        assert (asked.consumer_group, asked.client_id, asked.only_this_broker) == ("cg", client_id, False)
        assert [(ref.broker_name, ref.queue_id) for ref in asked.mq_set] == [(broker.name, 0), (broker.name, 1)]


async def test_what_another_member_holds_is_refused_until_that_gives_it_up(cluster):
    async with member(cluster) as first, member(cluster) as second:
        await first.lock(QUEUES[:2])
        result = await second.lock(QUEUES)
        assert (result.taken, result.refused) == (set(QUEUES[2:]), set(QUEUES[:2]))
        assert not second.leases.holds(QUEUE)
        await first.unlock(QUEUES[:2])
        assert not first.leases.holds(QUEUE)
        assert (await second.lock(QUEUES[:2])).taken == set(QUEUES[:2])


async def test_a_lock_that_somebody_else_took_meanwhile_is_lost(cluster):
    async with member(cluster) as first, member(cluster) as second:
        await first.lock([QUEUE])
        cluster.broker.locks.clear()  # as a restart of the broker does
        await second.lock([QUEUE])
        assert (await first.lock([QUEUE])).refused == {QUEUE}
        assert not first.leases.holds(QUEUE)


async def test_a_broker_that_does_not_answer_leaves_the_lock_to_run_out(two_brokers):
    clock = ManualClock()
    near, far = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)
    async with member(two_brokers, clock) as locks:
        await locks.lock([near, far])
        two_brokers.brokers[1].script(Q.LOCK_BATCH_MQ, hang_up)
        clock.advance(20)
        result = await locks.lock([near, far])
        assert result.kept == {near}
        assert isinstance(result.unknown[far], ConnectionLost)
        assert locks.leases.holds(far)
        clock.advance(10)
        assert locks.leases.holds(near)
        assert not locks.leases.holds(far)


async def test_a_refusal_to_lock_at_all_and_a_queue_without_a_broker_are_unknown(cluster):
    cluster.broker.script(Q.LOCK_BATCH_MQ, answer(R.SYSTEM_ERROR, "not today"))
    nowhere = MessageQueue("t", "gone", 0)
    async with member(cluster) as locks:
        result = await locks.lock([QUEUE, nowhere, MessageQueue("other", "broker-a", 0)])
    assert set(result.unknown) == {QUEUE, nowhere, MessageQueue("other", "broker-a", 0)}
    assert "not today" in str(result.unknown[QUEUE])
    assert not result.taken


async def test_giving_up_locks_raises_nothing_when_the_broker_is_gone(cluster):
    async with member(cluster) as locks:
        await locks.lock([QUEUE])
        await cluster.broker.stop()
        await locks.unlock([QUEUE])
        assert not locks.leases.holds(QUEUE)


async def test_locks_that_a_closing_member_may_have_are_all_known_and_no_more_are_requested(cluster):
    asked = []

    def later(conn, command):
        asked.append((conn, command))
        return True

    cluster.broker.script(Q.LOCK_BATCH_MQ, later)
    async with member(cluster) as locks:
        locking = asyncio.ensure_future(locks.lock(QUEUES[:2]))
        await cluster.broker.until(lambda: asked)
        closing = asyncio.ensure_future(locks.close())
        await stays(lambda: not closing.done())
        cluster.broker.on_LOCK_BATCH_MQ(*asked[0])
        await closing
        assert (await locking).taken == set(locks.leases.queues) == set(QUEUES[:2])
        assert (await locks.lock(QUEUES[2:])).refused == set(QUEUES[2:])
    assert cluster.broker.count(Q.LOCK_BATCH_MQ) == 1


@pytest.mark.parametrize("code", [Q.LOCK_BATCH_MQ, Q.QUERY_CONSUMER_OFFSET])
async def test_a_member_that_closes_while_it_takes_over_leaves_no_lock_behind(cluster, code, caplog):
    asked = []

    def later(conn, command):
        asked.append((conn, command))
        return True

    cluster.broker.script(code, *[later] * (1 if code == Q.LOCK_BATCH_MQ else 8))
    consumer = PushConsumer("cg", "t", namesrv=cluster.namesrv.address, orderly=True)
    await consumer.start()
    await cluster.broker.until(lambda: asked)
    closing = asyncio.ensure_future(consumer.close())
    await stays(lambda: consumer.assignment == [])
    if code == Q.LOCK_BATCH_MQ:
        cluster.broker.on_LOCK_BATCH_MQ(*asked[0])
    await closing
    assert cluster.broker.locks == {}
    assert caplog.messages == []
