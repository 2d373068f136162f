"""Pull loops of queues that are held: none ends without a word, and one that is idle says why."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from consuming import push
from fake_cluster import answer
from tests.inside import instance_of, settling

from sprocketmq import Message, Producer, sync
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import group_member, outcomes, pull_loop, pull_room
from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.pull_loop import PullLoops, PullSize
from sprocketmq.client.instance import Instance
from sprocketmq.client.stats import ConsumerCounts
from sprocketmq.clock import ManualClock
from sprocketmq.errors import BrokerError
from sprocketmq.net.tasks import Kept
from sprocketmq.protocol.bodies import ConsumerData, build_subscription
from sprocketmq.protocol.codes import PULL_SUSPEND
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.headers import PullRequest
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

QUEUES = [MessageQueue("t", "broker-a", i) for i in range(4)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.001)
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)


class Loops(PullLoops):
    """The pull loops of a client that is no consumer otherwise."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.refusal = None
        self.holds_lock = True
        subscriptions = {"t": build_subscription("t", "*", 1)}
        size = PullSize(2, 1 << 20)
        super().__init__(
            instance,
            "cg",
            subscriptions,
            size,
            found=lambda pq: None,
            lost=lambda: None,
            refused=self.refuse,
            may_take=lambda pq: self.holds_lock,
            counts=ConsumerCounts(),
        )

    def refuse(self, error) -> None:
        self.refusal = error

    def waits_for_room(self, pq: ProcessQueue) -> bool:
        return self._loops[pq.queue].room is not None

    def task(self, pq: ProcessQueue) -> Kept:
        """Return the task that pulls a queue."""
        return self._loops[pq.queue].kept

    def open(self, number: int, limit: int = 1000) -> ProcessQueue:
        pq = ProcessQueue(QUEUES[number], 0, CacheLimits(messages=limit), lambda batch: None)
        self.begin(pq)
        return pq


@asynccontextmanager
async def pulling(cluster, clock=None):
    instance = Instance(cluster.namesrv.address, kind="PushConsumer", **({"clock": clock} if clock else {}))
    await instance.start()
    await instance.fetch_route("t")
    instance.consumers = lambda: [ConsumerData("cg", "CONSUME_PASSIVELY", subscription_data_set=[build_subscription("t", "*", 1)])]
    try:
        yield Loops(instance)
    finally:
        await instance.close()


async def fill(cluster, amount: int, queue: int = 0) -> None:
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for i in range(amount):
            await producer.send(Message("t", b"%d" % i, queue=QUEUES[queue]))


def pulls(cluster, queue: int) -> int:
    asked = [command.header(PullRequest) for command in cluster.broker.seen if command.code == Q.PULL_MESSAGE]
    return sum(header.queue_id == queue for header in asked)


def last_pull(cluster) -> PullRequest:
    return [command.header(PullRequest) for command in cluster.broker.seen if command.code == Q.PULL_MESSAGE][-1]


def end_held(cluster) -> None:
    """Answer the pulls that wait as a broker does when their time is over."""
    held, cluster.broker.held = cluster.broker.held, []
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    for conn, command in held:
        conn.respond(command, R.PULL_NOT_FOUND, ext=ext)


def said(caplog, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


async def test_a_loop_that_is_ended_while_it_waits_for_a_heartbeat_takes_no_other_with_it(cluster, caplog):
    await fill(cluster, 1, queue=1)
    beats = []
    cluster.broker.script(Q.HEART_BEAT, lambda conn, command: beats.append((conn, command)) or True)
    cluster.broker.script(Q.PULL_MESSAGE, *[answer(R.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")] * 2)
    async with pulling(cluster) as loops:
        ended, other = loops.open(0), loops.open(1)
        await eventually(lambda: beats and pulls(cluster, 0) == pulls(cluster, 1) == 1)
        loops.end(ended)
        await asyncio.sleep(0)
        conn, command = beats[0]
        conn.respond(command, R.SUCCESS, ext={})
        await eventually(lambda: other.held_messages == 1)
        assert pulls(cluster, 0) == 1
        assert said(caplog, logging.ERROR) == []


async def test_a_queue_that_is_too_full_is_idle_and_says_so_less_and_less_often(cluster, caplog):
    await fill(cluster, 8)
    clock = ManualClock()
    async with pulling(cluster, clock) as loops:
        pq = loops.open(0, limit=3)
        await eventually(lambda: loops.waits_for_room(pq))
        assert loops.stats(pq).idle_s == 0.0
        clock.advance(59)
        loops.check([pq])
        assert said(caplog) == []
        assert loops.stats(pq).why_idle == "4 messages of it wait for handlers, the limit is 3"
        for _ in range(30):  # 60, 120, 240 s
            clock.advance(10)
            loops.check([pq])
        waits = "4 messages of it wait for handlers, the limit is 3"
        lines = [f"consumer group cg: t@broker-a:0 idle for {s} s: {waits}" for s in (69, 139, 279)]
        assert [line.replace(str(pq.queue), "t@broker-a:0") for line in said(caplog)] == lines
        batch = pq.take(10)
        pq.finish(batch)
        loops.go_on(pq)
        await eventually(lambda: "is pulled again after 359 s" in caplog.text)
        assert loops.stats(pq).why_idle == "" or pq.full


async def test_queues_that_are_behind_are_pulled_in_turns_when_their_answers_are_large_and_waiting_pulls_do_not_count(cluster, monkeypatch):
    monkeypatch.setattr(pull_room, "ON_THE_WAY_BYTES", 1)
    for queue in range(3):
        await fill(cluster, 6, queue)
    kept = []

    def keep(conn, command) -> bool:
        """Keep a pull of a queue that has more messages, but for its first one."""
        if not 0 < command.header(PullRequest).queue_offset < 6:
            return False
        kept.append((conn, command))
        return True

    cluster.broker.script(Q.PULL_MESSAGE, *[keep] * 20)
    async with pulling(cluster, ManualClock()) as loops:  # answers that take no time come from nearby
        queues = [loops.open(number) for number in range(4)]
        for turn in range(6):
            await eventually(lambda turn=turn: len(kept) == turn + 1)
            await loops.instance.heartbeat_now()  # on the same connection: another pull would have come before it
            assert len(kept) == turn + 1
            cluster.broker.on_PULL_MESSAGE(*kept[-1])
        await eventually(lambda: len(cluster.broker.held) == 4)
        assert [command.header(PullRequest).queue_id for _, command in kept[:3]] == [0, 1, 2]
        assert sorted(command.header(PullRequest).queue_id for _, command in kept[3:]) == [0, 1, 2]
        assert [pq.held_messages for pq in queues] == [6, 6, 6, 0]


async def test_a_pull_that_waits_at_its_broker_is_not_idle(cluster, caplog):
    clock = ManualClock()
    async with pulling(cluster, clock) as loops:
        pq = loops.open(0)
        await eventually(lambda: cluster.broker.held)
        clock.advance(10_000)
        loops.check([pq])
        assert said(caplog) == []
        stats = loops.stats(pq)
        assert (stats.idle_s, stats.why_idle, stats.last_error) == (0.0, "", "")


async def test_an_idle_queues_pulls_are_held_longer_and_longer_until_a_message_comes(cluster):
    clock = ManualClock()
    async with pulling(cluster, clock) as loops:
        loops.open(0)
        for seconds in (15, 30):
            await eventually(lambda: cluster.broker.held)
            assert last_pull(cluster).suspend_timeout_ms == seconds * 1000
            clock.advance(seconds)
            loops.instance.timers.run_due()
            asked = pulls(cluster, 0)
            end_held(cluster)
            await eventually(lambda asked=asked: pulls(cluster, 0) == asked + 1)
        await fill(cluster, 1)
        await eventually(lambda: last_pull(cluster).queue_offset == 1)
        assert last_pull(cluster).suspend_timeout_ms == 15_000


async def test_pulls_that_end_early_are_not_held_longer(cluster):
    clock = ManualClock()
    async with pulling(cluster, clock) as loops:
        loops.open(0)
        await eventually(lambda: cluster.broker.held)
        clock.advance(14)
        end_held(cluster)
        await eventually(lambda: pulls(cluster, 0) == 2)
        assert last_pull(cluster).suspend_timeout_ms == 15_000


async def test_a_queue_that_was_paused_is_idle_and_nobody_is_warned(cluster, caplog):
    clock = ManualClock()
    async with pulling(cluster, clock) as loops:
        pq = ProcessQueue(QUEUES[0], 0, CacheLimits(), lambda batch: None)
        pq.paused = True
        loops.begin(pq)
        await eventually(lambda: loops.waits_for_room(pq))
        clock.advance(10_000)
        loops.check([pq])
        assert said(caplog) == []
        assert (loops.stats(pq).idle_s, loops.stats(pq).why_idle) == (10_000.0, "it is paused")


async def test_a_queue_whose_broker_is_away_says_why_it_is_idle(cluster, caplog, monkeypatch):
    monkeypatch.setattr(pull_loop, "IDLE_S", 0.01)
    async with pulling(cluster) as loops:
        pq = loops.open(0)
        await eventually(lambda: cluster.broker.held)
        await cluster.broker.stop()
        cluster.broker.held.clear()
        await eventually(lambda: "its pulls fail: cannot connect" in loops.stats(pq).why_idle)
        assert "cannot connect" in loops.stats(pq).last_error
        await eventually(lambda: loops.stats(pq).idle_s > 0.01)
        loops.check([pq])
        assert any(line.endswith(loops.stats(pq).why_idle) for line in said(caplog))
        await cluster.broker.restart()
        await eventually(lambda: cluster.broker.held)
        await fill(cluster, 1)
        await eventually(lambda: pq.held_messages == 1)
        assert "is pulled again after" in caplog.text


async def test_the_first_pull_after_a_failure_is_answered_at_once(cluster, caplog):
    async with pulling(cluster) as loops:
        pq = loops.open(0)
        await eventually(lambda: cluster.broker.held)
        held = last_pull(cluster).sys_flag
        await cluster.broker.stop()
        cluster.broker.held.clear()
        await eventually(lambda: loops.stats(pq).last_error)
        await cluster.broker.restart()
        await eventually(lambda: cluster.broker.held)
        assert "connected again to broker broker-a" in caplog.text
        flags = [command.header(PullRequest).sys_flag for command in cluster.broker.seen if command.code == Q.PULL_MESSAGE]
        assert held & PULL_SUSPEND
        assert flags == [held, held & ~PULL_SUSPEND, held]


async def test_a_full_queue_without_its_lock_says_so(cluster):
    await fill(cluster, 4)
    async with pulling(cluster) as loops:
        pq = loops.open(0, limit=1)
        await eventually(lambda: loops.waits_for_room(pq))
        loops.holds_lock = False
        assert loops.stats(pq).why_idle.startswith("this member has lost its lock for now, and 2 messages")


async def test_a_queue_that_is_held_without_a_loop_is_pulled_again(cluster, caplog):
    await fill(cluster, 1)
    async with pulling(cluster) as loops:
        pq = loops.open(0)
        loops.task(pq).stop()
        loops.check([pq])
        await eventually(lambda: pq.held_messages == 1)
        loops.end(pq)
        loops.check([pq])
        assert [line.partition(": ")[2].rpartition(": ")[2] for line in said(caplog, logging.ERROR)] == [
            "its pull loop is gone; it is started again"
        ] * 2
        await eventually(lambda: cluster.broker.held)


async def test_a_loop_that_nobody_told_of_room_goes_on(cluster, caplog):
    await fill(cluster, 6)
    async with pulling(cluster) as loops:
        pq = loops.open(0, limit=1)
        await eventually(lambda: loops.waits_for_room(pq))
        pq.finish(pq.take(2))
        loops.check([pq])
        await eventually(lambda: pq.next_offset == 4)
        assert "was not told that there is room" in caplog.text


async def test_a_loop_whose_group_is_refused_for_good_stays_ended_and_says_so(cluster, caplog):
    cluster.broker.script(Q.PULL_MESSAGE, *[answer(R.NO_PERMISSION, "not you")] * 5)
    async with pulling(cluster) as loops:
        pq = loops.open(0)
        await eventually(lambda: loops.refusal is not None)
        await eventually(lambda: not loops.task(pq).alive)
        loops.check([pq])
        assert "not you" in loops.stats(pq).why_idle
        assert said(caplog, logging.ERROR) == []


async def test_a_loop_that_fails_in_the_program_is_logged_and_pulls_on(cluster, caplog, monkeypatch):
    await fill(cluster, 1)
    read_pull, outcomes = pull_loop.read_pull, [ValueError("a fault in the program")]

    def fails_once(*arguments):
        if outcomes:
            raise outcomes.pop()
        return read_pull(*arguments)

    monkeypatch.setattr(pull_loop, "read_pull", fails_once)
    async with pulling(cluster) as loops:
        pq = loops.open(0)
        await eventually(lambda: pq.held_messages == 1)
        assert len(said(caplog, logging.ERROR)) == 1
        assert "a fault in the program" in caplog.text


async def test_a_loop_that_begins_while_its_client_closes_ends(cluster):
    async with pulling(cluster) as loops:
        pq = loops.open(0)
        kept = loops.task(pq)
    assert not kept.alive
    pq = loops.open(0)
    await eventually(lambda: not loops.task(pq).alive)


# --- consumers ----------------------------------------------------------------------------------------------------------


async def test_a_consumer_tells_how_its_queues_are_doing(cluster):
    await fill(cluster, 3)
    async with push(cluster, batch_max=2) as consumer:
        async with asyncio.timeout(60):
            batch = await anext(consumer.batches())
        await eventually(lambda: len(consumer.stats().queues) == 5)
        stats = consumer.stats()
        assert (stats.group, stats.failure) == ("cg", "")
        first = next(queue for queue in stats.queues if queue.queue == QUEUES[0])
        assert (first.commit_offset, first.next_offset, first.cached_messages, first.why_idle) == (0, 3, 3, "")
        batch.ack()
        first = next(queue for queue in consumer.stats().queues if queue.queue == QUEUES[0])
        assert (first.commit_offset, first.cached_messages) == (2, 1)


async def test_the_blocking_consumers_tell_the_same(cluster):
    def consume():
        with (
            sync.PushConsumer("cg", "t", namesrv=cluster.namesrv.address) as push,
            sync.PullConsumer("pg", namesrv=cluster.namesrv.address) as pull,
        ):
            return push.stats().group, pull.stats().group

    assert await asyncio.to_thread(consume) == ("cg", "pg")


async def test_a_consumer_that_ended_says_what_ended_it(cluster):
    cluster.broker.script(Q.PULL_MESSAGE, *[answer(R.NO_PERMISSION, "not you")] * 100)
    async with push(cluster) as consumer:
        with pytest.raises(BrokerError, match="not you"):
            async with asyncio.timeout(60):
                await anext(consumer.batches())
        assert "not you" in consumer.stats().failure


async def test_a_handlers_call_that_is_cancelled_by_a_stranger_ends_no_consumer(cluster, caplog):
    await fill(cluster, 2)
    handled, calls = [], []

    async def handler(batch):
        calls.append(asyncio.current_task())
        if len(calls) == 1:
            await asyncio.Event().wait()
        handled.extend(message.body for message in batch)

    async with push(cluster, batch_max=1) as consumer:
        listening = consumer.listen(handler, concurrency=1)
        await eventually(lambda: calls)
        calls[0].cancel()
        await eventually(lambda: sorted(handled) == [b"0", b"1"])
        assert not listening.done()
        assert "a call of the handler was cancelled, and not by the consumer" in caplog.text


async def test_a_listener_that_fails_says_so_although_nobody_awaits_it(cluster, caplog, monkeypatch):
    await fill(cluster, 1)

    def fails(self, batch):
        raise ValueError("a fault in the program")

    async with push(cluster) as consumer:
        monkeypatch.setattr(outcomes.Outcomes, "acknowledge", fails)
        listening = consumer.listen(lambda batch: None)
        await asyncio.wait([listening])
        await eventually(lambda: "listening has ended, its handler is no longer called" in caplog.text)
        monkeypatch.undo()


async def test_messages_whose_way_back_was_cut_short_are_handed_out_again(cluster, monkeypatch, caplog):
    monkeypatch.setattr(outcomes, "LOCAL_RETRY_S", 0.01)
    await fill(cluster, 1)
    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, lambda conn, command: True)  # no answer
    async with push(cluster) as consumer:
        iterator = consumer.batches()
        async with asyncio.timeout(60):
            batch = await anext(iterator)
            batch.retry(batch[0])
            batch.ack()
            await eventually(lambda: cluster.broker.count(Q.CONSUMER_SEND_MSG_BACK) == 1)
            next(iter(settling(consumer))).cancel()
            again = await anext(iterator)
        assert again[0].body == b"0"


async def test_a_topic_that_cannot_be_balanced_does_not_keep_others_from_it(cluster, monkeypatch, caplog):
    monkeypatch.setattr(group_member, "REBALANCE_RETRY_S", 0.01)
    cluster.put("u")
    plan = group_member.plan_assignment

    def fails_for_t(everything, *rest):
        if everything[0].topic == "t":
            raise ValueError("a fault in the program")
        return plan(everything, *rest)

    monkeypatch.setattr(group_member, "plan_assignment", fails_for_t)
    async with push(cluster, ["t", "u"]) as consumer:
        await eventually(lambda: {queue.topic for queue in consumer.assignment} == {"u"})
        assert len([line for line in said(caplog, logging.ERROR) if "a fault in the program" in line]) == 1


# --- what closing leaves to nobody --------------------------------------------------------------------------------------


async def test_a_message_that_was_just_submitted_is_told_when_the_client_ends(cluster):
    producer = Producer("pg", namesrv=cluster.namesrv.address)
    await producer.start()
    sent = producer.submit(Message("t", b"x"))
    await instance_of(producer).close()
    with pytest.raises(Exception, match="closed"):
        async with asyncio.timeout(60):
            await sent
    assert producer.in_flight == 0
