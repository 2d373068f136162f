import asyncio

import pytest
from fake_cluster import FakeCluster, answer
from tests.inside import run_due

from sprocketmq import sync
from sprocketmq.client import Producer, PullConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import group_member as member_module
from sprocketmq.client.consume import pull_loop as pull_module
from sprocketmq.clock import ManualClock
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, ClientClosed, ConfigError, InvalidName
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.headers import PullRequest
from sprocketmq.protocol.message import Message, MessageQueue

QUEUES = [MessageQueue("t", "broker-a", i) for i in range(4)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(pull_module, "PULL_PAUSE_S", 0.001)
    monkeypatch.setattr(member_module, "REBALANCE_RETRY_S", 0.001)
    monkeypatch.setattr(member_module, "HANDOVER_S", 0.05)


def polling(cluster: FakeCluster, **options) -> PullConsumer:
    return PullConsumer("cg", namesrv=cluster.namesrv.address, **({"consume_from": "first"} | options))


async def fill(cluster: FakeCluster, amount: int, queue: int = 0, *, tag: str | None = None) -> None:
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send_batch([Message("t", b"%d" % i, tag=tag, queue=QUEUES[queue]) for i in range(amount)])


async def offsets(consumer: PullConsumer, amount: int, **options) -> list[int]:
    """Poll until ``amount`` messages came."""
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) < amount:
            found += [m.queue_offset for m in await consumer.poll(**options)]
    return found


# --- by hand ------------------------------------------------------------------------------------------------------------


async def test_a_poll_returns_no_more_than_was_asked_for_and_the_next_one_goes_on(cluster):
    await fill(cluster, 10)
    async with polling(cluster) as consumer:
        await consumer.assign(QUEUES[:1])
        assert [m.queue_offset for m in await consumer.poll(3)] == [0, 1, 2]
        assert consumer.position(QUEUES[0]) == 3
        assert [m.queue_offset for m in await consumer.poll(100)] == [3, 4, 5, 6, 7, 8, 9]
        assert await consumer.poll(timeout_s=0) == []
        assert consumer.position(QUEUES[0]) == 10
    assert not any(beat.consumer_data_set for beat in cluster.broker.beats)


async def test_queues_are_served_in_turn_and_a_poll_keeps_to_one(cluster):
    await fill(cluster, 4, 0)
    await fill(cluster, 4, 2)
    async with polling(cluster) as consumer:
        await consumer.assign([QUEUES[0], QUEUES[2]])
        polls = []
        async with asyncio.timeout(60):
            while sum(map(len, polls)) < 8:
                polls.append([(m.queue_id, m.queue_offset) for m in await consumer.poll(2)])
    assert all(len({queue for queue, _ in poll}) == 1 for poll in polls)
    assert sorted(pair for poll in polls for pair in poll) == [(queue, offset) for queue in (0, 2) for offset in range(4)]


async def test_a_restart_goes_on_after_what_was_consumed_and_reads_no_history_again(cluster):
    await fill(cluster, 10)
    async with polling(cluster) as first:
        await first.assign(QUEUES)
        assert await offsets(first, 4, max_messages=4) == [0, 1, 2, 3]
        assert (await first.poll(2))[0].queue_offset == 4  # not consumed: no poll follows
    assert cluster.broker.offsets["cg", "t", 0] == 4
    async with polling(cluster) as second:
        await second.assign(QUEUES)
        assert await offsets(second, 6) == [4, 5, 6, 7, 8, 9]
        await second.commit()
    assert cluster.broker.offsets["cg", "t", 0] == 10


async def test_without_automatic_commits_only_the_caller_commits(cluster):
    await fill(cluster, 4)
    async with polling(cluster, auto_commit=False) as consumer:
        await consumer.assign(QUEUES[:1])
        await offsets(consumer, 4)
        assert await consumer.poll(timeout_s=0) == []
        await fill(cluster, 1)
        await offsets(consumer, 1)
    assert cluster.broker.offsets == {}
    assert not any(c.header(PullRequest).sys_flag & 1 for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE)
    async with polling(cluster, auto_commit=False) as consumer:
        await consumer.assign(QUEUES[:1])
        await offsets(consumer, 5)
        await consumer.commit()
        assert cluster.broker.offsets["cg", "t", 0] == 5


async def test_automatic_commits_are_made_every_five_seconds(cluster):
    clock = ManualClock()
    await fill(cluster, 4)
    async with polling(cluster, clock=clock) as consumer:
        await consumer.assign(QUEUES[:1])
        await offsets(consumer, 4)
        await consumer.poll(timeout_s=0)
        clock.advance(5)
        run_due(consumer)
        await cluster.broker.until(lambda: cluster.broker.offsets.get(("cg", "t", 0)) == 4)


@pytest.mark.parametrize(("start", "first"), [("first", 0), ("last", 4), (1_700_000_000, 1)])
async def test_a_group_that_never_committed_starts_where_it_is_told(cluster, start, first):
    await fill(cluster, 4)
    async with polling(cluster, consume_from=start) as consumer:
        await consumer.assign(QUEUES[:1])
        await fill(cluster, 1)
        assert (await offsets(consumer, 1))[0] == first


async def test_queues_assigned_anew_go_on_and_those_left_out_are_committed(cluster):
    await fill(cluster, 4, 0)
    await fill(cluster, 4, 1)
    async with polling(cluster) as consumer:
        await consumer.assign(QUEUES[:2])
        await offsets(consumer, 8, max_messages=2)
        await consumer.poll(timeout_s=0)
        await consumer.assign([QUEUES[1], QUEUES[2]])
        assert consumer.assignment == QUEUES[1:3]
        assert cluster.broker.offsets["cg", "t", 0] == 4
        await fill(cluster, 2, 0)
        await fill(cluster, 2, 1)
        assert await offsets(consumer, 2) == [4, 5]
        assert await consumer.poll(timeout_s=0.02) == []
        await consumer.assign([])
        assert consumer.assignment == []


async def test_a_topic_that_is_assigned_later_is_polled_too(cluster):
    cluster.put("u")
    later = MessageQueue("u", "broker-a", 0)
    await fill(cluster, 1, 0)
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send_batch([Message("u", b"x", tag=tag, queue=later) for tag in "ab"])
    async with polling(cluster) as consumer:
        await consumer.assign(QUEUES[:1])
        assert [m.topic for m in await consumer.poll(timeout_s=60)] == ["t"]
        await consumer.assign([QUEUES[0], later], "b")
        assert [(m.topic, m.tag) for m in await consumer.poll(timeout_s=60)] == [("u", "b")]


async def test_an_expression_filters_by_tag(cluster):
    await fill(cluster, 3, tag="a")
    await fill(cluster, 3, tag="b")
    async with polling(cluster) as consumer:
        await consumer.assign(QUEUES[:1], "b || c")
        assert await offsets(consumer, 3) == [3, 4, 5]
    pulls = [c.header(PullRequest) for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE]
    assert {(pull.subscription, pull.sys_flag & 4) for pull in pulls} == {("b || c", 4)}


async def test_seek_goes_back_and_forth_and_forgets_what_was_pulled_ahead(cluster):
    await fill(cluster, 10)
    async with polling(cluster) as consumer:
        await consumer.assign(QUEUES[:1])
        await offsets(consumer, 2, max_messages=2)
        consumer.seek(QUEUES[0], 7)
        assert consumer.position(QUEUES[0]) == 7
        assert await offsets(consumer, 3) == [7, 8, 9]
        consumer.seek(QUEUES[0], 0)
        assert await offsets(consumer, 1, max_messages=1) == [0]
        await consumer.seek_to_time("t", 1_700_000_000_000)
        assert await offsets(consumer, 1, max_messages=1) == [1]
        consumer.seek(QUEUES[0], 99)  # beyond the end: the broker says where that is
        await fill(cluster, 1)
        assert await offsets(consumer, 1) == [10]


async def test_paused_queues_return_nothing_until_they_are_resumed(cluster):
    await fill(cluster, 2, 0)
    await fill(cluster, 2, 1)
    async with polling(cluster) as consumer:
        await consumer.assign(QUEUES[:2])
        consumer.pause(QUEUES[0])
        assert {m.queue_id for m in await consumer.poll(9)} == {1}
        assert await consumer.poll(timeout_s=0.02) == []
        consumer.resume()
        assert {m.queue_id for m in await consumer.poll(9)} == {0}


# --- as a member of the group -------------------------------------------------------------------------------------------


async def test_subscribers_share_the_queues_and_hand_over_when_one_leaves(cluster):
    for queue in range(4):
        await fill(cluster, 3, queue)
    async with polling(cluster) as first:
        await first.subscribe("t")
        await offsets(first, 12)
        await first.commit()
        async with polling(cluster) as second:
            await second.subscribe({"t": "*"})
            async with asyncio.timeout(60):
                while not (len(first.assignment) == len(second.assignment) == 2):
                    await first.poll(timeout_s=0.01)
            assert not set(first.assignment) & set(second.assignment)
            for queue in range(4):
                await fill(cluster, 1, queue)
            assert await offsets(first, 2) == await offsets(second, 2) == [3, 3]
            await second.commit()
        async with asyncio.timeout(60):
            while len(first.assignment) < 4:
                await first.poll(timeout_s=0.01)
        for queue in range(4):
            await fill(cluster, 1, queue)
        assert await offsets(first, 4) == [4, 4, 4, 4]
    data = next(beat.consumer_data_set[0] for beat in cluster.broker.beats if beat.consumer_data_set)
    assert (data.consume_type, [s.topic for s in data.subscription_data_set]) == ("CONSUME_ACTIVELY", ["t"])


# --- what cannot be -----------------------------------------------------------------------------------------------------


async def test_arguments_and_calls_that_make_no_sense_are_refused(cluster):
    with pytest.raises(ConfigError, match="consume_from"):
        polling(cluster, consume_from="middle")
    async with polling(cluster) as consumer:
        for call in (consumer.poll(), consumer.commit(), consumer.seek_to_time("t", 0), consumer.commit(QUEUES[0])):
            with pytest.raises(ConfigError):
                await call
        with pytest.raises(ConfigError, match="assign"):
            consumer.position(QUEUES[0])
        with pytest.raises(ConfigError, match="at least one"):
            await consumer.subscribe([])
        with pytest.raises(InvalidName):
            await consumer.assign([MessageQueue("no topic", "b", 0)])
        await consumer.assign(QUEUES[:1])
        for wrong in ({"max_messages": 0}, {"timeout_s": -1}):
            with pytest.raises(ConfigError, match="must be a"):
                await consumer.poll(**wrong)
        for call in (lambda: consumer.seek(QUEUES[1], 0), lambda: consumer.seek(QUEUES[0], -1), lambda: consumer.pause(QUEUES[1])):
            with pytest.raises(ConfigError):
                call()
        with pytest.raises(ConfigError, match="already"):
            await consumer.subscribe("t")
        waiting = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="another task"):
            await consumer.poll()
        waiting.cancel()
    async with polling(cluster) as consumer:
        await consumer.subscribe("t")
        with pytest.raises(ConfigError, match="subscribed"):
            await consumer.assign(QUEUES)
    with pytest.raises(ClientClosed):
        await consumer.poll()


async def test_a_lasting_refusal_is_raised_by_poll(cluster):
    cluster.broker.script(Q.PULL_MESSAGE, *[answer(R.NO_PERMISSION, "not for you")] * 20)
    async with polling(cluster) as consumer:
        await consumer.assign(QUEUES[:1])
        with pytest.raises(BrokerError, match="not for you"):
            await consumer.poll()


async def test_a_poll_that_waits_ends_when_the_consumer_is_closed(cluster):
    consumer = polling(cluster)
    await consumer.start()
    await consumer.assign(QUEUES[:1])
    waiting = asyncio.ensure_future(consumer.poll(timeout_s=60))
    await asyncio.sleep(0)
    await consumer.close()
    assert await waiting == []


# --- the blocking face, and a broker that stores batches as one record ---------------------------------------------------


def test_the_blocking_face_polls_batches_no_larger_than_asked_for():
    with LocalCluster() as mq, sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topic("batches", queues=1, attributes={"queue.type": "BatchCQ"})
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            producer.send_batch([Message("batches", b"%d" % i) for i in range(10)])
        with sync.PullConsumer("cg", namesrv=mq.namesrv, consume_from="first") as consumer:
            consumer.subscribe("batches")
            found = []
            while len(found) < 10:
                polled = consumer.poll(4)
                assert len(polled) <= 4
                found += [m.body for m in polled]
            (queue,) = consumer.assignment
            assert consumer.position(queue) == 10
            consumer.seek(queue, 5)
            assert [m.queue_offset for m in consumer.poll(2)] == [5, 6]
            consumer.commit()
            assert consumer.committed(queue) == 7
            consumer.pause()
            consumer.resume(queue)
        assert found == [b"%d" % i for i in range(10)]
