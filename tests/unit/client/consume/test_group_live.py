"""Groups of several members against our own brokers: who consumes what while members join, leave and crash, and brokers go."""

import asyncio
import itertools
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from tests.inside import id_of, instance_of, listeners, process_queues
from tests.waiting import stays

from sprocketmq.broker import locks as broker_locks
from sprocketmq.client import AdminClient, Producer, PushConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import group_member as member_module
from sprocketmq.client.consume import orderly as orderly_module
from sprocketmq.client.loop_bound import CLOSED
from sprocketmq.embedded import LocalCluster
from sprocketmq.protocol.message import Message, MessageQueue

names = (f"{i}" for i in itertools.count())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(member_module, "REBALANCE_RETRY_S", 0.05)
    monkeypatch.setattr(member_module, "RENEW_S", 0.1)
    monkeypatch.setattr(member_module, "RENEW_SOON_S", 0.05)


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="module")
def mq2():
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
async def topic(mq):
    """A topic of its own, with six queues."""
    name = "t" + next(names)
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_topic(name, queues=6)
    return name


async def fill(mq, topic: str, rounds: int, first: int = 0) -> None:
    """Send ``first``, ``first + 1`` ... to every queue of ``topic``."""
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        queues = await producer.queues(topic)
        for queue in queues:
            await producer.send_batch([Message(topic, b"%d" % (first + i), queue=queue) for i in range(rounds)])


class Group:
    """Members of one group, and everything that their handlers saw."""

    def __init__(self, mq, topic: str, **options) -> None:
        self.mq = mq
        self.topic = topic
        self.name = "g" + topic
        self.options = {"consume_from": "first", "batch_max": 4} | options
        self.members: dict[str, PushConsumer] = {}
        self.seen: dict[MessageQueue, list[tuple[str, int]]] = defaultdict(list)
        self.inside: dict[MessageQueue, set[str]] = defaultdict(set)
        self.overlaps: list[MessageQueue] = []
        self.changed = asyncio.Event()
        self.pause_s = 0.0
        self.stack = AsyncExitStack()

    async def join(self, name: str, **options) -> PushConsumer:
        consumer = PushConsumer(self.name, self.topic, namesrv=self.mq.namesrv, **(self.options | options))
        await self.stack.enter_async_context(consumer)
        self.members[name] = consumer

        async def handle(batch):
            if self.inside[batch.queue]:
                self.overlaps.append(batch.queue)
            self.inside[batch.queue].add(name)
            try:
                await asyncio.sleep(self.pause_s)
                self.seen[batch.queue] += [(name, m.queue_offset) for m in batch]
                self.changed.set()
            finally:
                self.inside[batch.queue].discard(name)

        consumer.listen(handle, concurrency=8)
        return consumer

    async def leave(self, name: str) -> None:
        await self.members.pop(name).close()

    async def crash(self, name: str) -> None:
        """End a member as a killed process does: its connections end, and it says nothing to anybody."""
        consumer = self.members.pop(name)
        instance = instance_of(consumer)
        for task in [*listeners(consumer)]:
            task.cancel()
        instance.state = CLOSED
        await instance._shut()

    async def commit(self) -> None:
        for consumer in self.members.values():
            await consumer.commit()

    async def until(self, condition, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.02)

    def covered(self, queues: int = 6) -> bool:
        """Whether every queue has one owner."""
        everything = [queue for consumer in self.members.values() for queue in consumer.assignment]
        return len(everything) == len(set(everything)) == queues

    def balanced(self, queues: int = 6) -> bool:
        """Whether every queue has one owner, and no member two more than another."""
        sizes = [len(consumer.assignment) for consumer in self.members.values()]
        return self.covered(queues) and max(sizes) - min(sizes) <= 1

    def offsets(self) -> dict[MessageQueue, list[int]]:
        return {queue: [offset for _, offset in seen] for queue, seen in self.seen.items()}

    def all_seen(self, amount: int, queues: int = 6) -> bool:
        return len(self.seen) == queues and all(set(offsets) >= set(range(amount)) for offsets in self.offsets().values())


@asynccontextmanager
async def group(mq, topic, **options):
    made = Group(mq, topic, **options)
    async with made.stack:
        yield made


@pytest.mark.parametrize("rebalance", ["average", "circle", "consistent-hash"])
async def test_members_that_join_and_leave_in_quiet_consume_every_message_once(mq, topic, rebalance):
    async with group(mq, topic, rebalance=rebalance) as g:
        await g.join("a")
        await g.until(lambda: len(g.members["a"].assignment) == 6)
        await fill(mq, topic, 10)
        await g.until(lambda: g.all_seen(10))
        await g.join("b")
        await g.join("c")
        shares = g.covered if rebalance == "consistent-hash" else g.balanced
        await g.until(shares)
        await fill(mq, topic, 10, 10)
        await g.until(lambda: g.all_seen(20))
        await g.leave("a")
        await g.until(shares)
        await fill(mq, topic, 10, 20)
        await g.until(lambda: g.all_seen(30))
        assert {q.queue_id: sorted(o) for q, o in g.offsets().items() if sorted(o) != list(range(30))} == {}, g.seen
        assert len({name for seen in g.seen.values() for name, _ in seen}) >= 2


async def test_what_a_crashed_member_had_not_committed_is_consumed_by_the_others(mq, topic):
    await fill(mq, topic, 20)
    async with group(mq, topic) as g:
        await g.join("a")
        await g.join("b")
        await g.until(g.balanced)
        g.pause_s = 0.02
        await fill(mq, topic, 20, 20)
        await g.until(lambda: sum(map(len, g.seen.values())) > 150)
        await g.crash("a")
        await g.until(lambda: g.all_seen(40))
        await g.until(g.balanced)
        assert len(g.members["b"].assignment) == 6


async def test_members_by_configuration_keep_to_their_queues_and_leave_the_rest(mq, topic):
    queues = [MessageQueue(topic, "broker-a", i) for i in range(6)]
    await fill(mq, topic, 5)
    async with group(mq, topic) as g:
        await g.join("a", rebalance={topic: queues[:2]})
        await g.join("b", rebalance={topic: queues[2:5]})
        await g.until(lambda: all(set(g.offsets().get(queue, ())) == set(range(5)) for queue in queues[:5]))
        assert (g.members["a"].assignment, g.members["b"].assignment) == (queues[:2], queues[2:5])
        assert queues[5] not in g.seen


async def test_a_function_decides_and_one_that_fails_leaves_everything_in_place(mq, topic, caplog):
    broken = False

    def by_evenness(queues, members, me):
        if broken:
            raise LookupError("no table")
        return [queue for queue in queues if queue.queue_id % len(members) == members.index(me)]

    async with group(mq, topic, rebalance=by_evenness) as g:
        await g.join("a")
        await g.join("b")
        await g.until(lambda: g.balanced() and len({q.queue_id % 2 for q in g.members["a"].assignment}) == 1)
        before = {name: consumer.assignment for name, consumer in g.members.items()}
        broken = True
        await g.join("c", rebalance="average")
        await g.until(lambda: "LookupError: no table" in caplog.text)
        assert {name: g.members[name].assignment for name in before} == before


# --- in order -----------------------------------------------------------------------------------------------------------


async def test_in_order_no_message_comes_twice_or_early_while_members_join_and_leave(mq, topic):
    async with group(mq, topic, orderly=True) as g:
        g.pause_s = 0.005
        await g.join("a")
        await fill(mq, topic, 40)
        await g.join("b")
        await g.until(lambda: sum(map(len, g.seen.values())) > 40)
        await g.join("c")
        await g.until(lambda: sum(map(len, g.seen.values())) > 80)
        await g.leave("a")
        await fill(mq, topic, 40, 40)
        await g.until(lambda: sum(map(len, g.seen.values())) > 260)
        await g.leave("b")
        await g.until(lambda: g.all_seen(80))
        assert all(offsets == list(range(80)) for offsets in g.offsets().values())
        assert g.overlaps == []
        await g.until(g.balanced)


async def test_in_order_a_crash_repeats_a_stretch_but_never_changes_the_order(mq, topic, monkeypatch):
    # A broker keeps the locks of who crashed for a minute, as that may be cut off and still at work.
    monkeypatch.setattr(broker_locks, "LOCK_S", 1.0)
    monkeypatch.setattr(orderly_module, "BROKER_S", 1.0)
    monkeypatch.setattr(orderly_module, "VALID_S", 0.5)
    async with group(mq, topic, orderly=True) as g:
        g.pause_s = 0.005
        await g.join("a")
        await g.join("b")
        await g.until(g.balanced)
        await fill(mq, topic, 40)
        await g.until(lambda: sum(map(len, g.seen.values())) > 100)
        await g.crash("a")
        await g.until(lambda: g.all_seen(40))
        assert g.overlaps == []
        for seen in g.seen.values():
            order = [offset for _, offset in seen]
            assert len(order) >= 40
            for name in ("a", "b"):
                own = [offset for who, offset in seen if who == name]
                assert own == list(range(own[0], own[0] + len(own))) if own else True
            # What comes again begins where the broker last heard of it.
            assert order[0] == 0
            assert all(after <= before + 1 for before, after in itertools.pairwise(order))


async def test_in_order_a_queue_is_given_up_only_after_its_handler_is_through(mq, topic):
    async with group(mq, topic, orderly=True) as g:
        await g.join("a")
        await g.until(lambda: len(g.members["a"].assignment) == 6)
        g.pause_s = 0.5
        await fill(mq, topic, 4)
        await g.until(lambda: len(g.inside) == 6)
        await g.join("b")
        await stays(lambda: g.members["b"].assignment == [])
        g.pause_s = 0
        await g.until(g.balanced)
        await fill(mq, topic, 4, 4)
        await g.until(lambda: g.all_seen(8))
        assert all(offsets == list(range(8)) for offsets in g.offsets().values())


async def test_in_order_nothing_is_handed_out_while_the_lock_is_not_sure(mq, topic, monkeypatch):
    async with group(mq, topic, orderly=True) as g:
        consumer = await g.join("a")
        await g.until(lambda: len(consumer.assignment) == 6)
        monkeypatch.setattr(orderly_module, "VALID_S", 0.0)
        await fill(mq, topic, 4)
        await g.until(lambda: all(pq.held_messages for pq in process_queues(consumer).values() if pq.queue.topic == topic))
        assert not g.seen
        monkeypatch.setattr(orderly_module, "VALID_S", 30.0)
        await g.until(lambda: g.all_seen(4))  # the next renewal lets them go on
        assert all(offsets == list(range(4)) for offsets in g.offsets().values())


async def test_in_order_a_lock_that_another_client_took_is_lost_with_a_warning(mq, topic, caplog, monkeypatch):
    async with group(mq, topic, orderly=True) as g:
        consumer = await g.join("a")
        await g.until(lambda: len(consumer.assignment) == 6)
        stolen = MessageQueue(topic, "broker-a", 0)
        table = mq._servers._brokers["broker-a"].locks._groups[g.name]
        table[topic, 0] = ("somebody@else", table[topic, 0][1])
        await g.until(lambda: stolen not in consumer.assignment)
        assert "another member has it now" in caplog.text
        del table[topic, 0]
        await g.until(lambda: stolen in consumer.assignment)


# --- operators ----------------------------------------------------------------------------------------------------------


async def test_an_operator_resets_a_running_group_and_asks_a_member_how_it_is_doing(mq, topic):
    async with group(mq, topic) as g, AdminClient(namesrv=mq.namesrv) as admin:
        await fill(mq, topic, 6)
        await g.join("a")
        await g.join("b")
        await g.until(lambda: g.balanced() and g.all_seen(6))
        await g.commit()
        g.seen.clear()
        await admin.reset_offsets(g.name, topic, "first")
        # The members hear of it with their next pull, which a new message brings about.
        await fill(mq, topic, 1, 6)
        await g.until(lambda: g.all_seen(7))
        clients = {id_of(consumer): consumer for consumer in g.members.values()}
        for client_id, consumer in clients.items():
            info = await admin.running_info(g.name, client_id)
            assert sorted(queue for queue in info.mq_table if queue.topic == topic) == consumer.assignment
            assert info.properties["consumerGroup"] == g.name


async def test_a_second_member_with_another_subscription_is_warned_and_the_broker_logs_it(mq, topic, caplog):
    async with group(mq, topic) as g:
        await g.join("a")
        other = PushConsumer(g.name, {topic: "b"}, namesrv=mq.namesrv, consume_from="first")
        await g.stack.enter_async_context(other)
    assert f"another member subscribes to everything of topic {topic}, this one to tags 'b'" in caplog.text
    assert f"subscriptions_differ group={g.name} topic={topic}" in caplog.text


# --- brokers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True])
async def test_the_queues_of_a_lost_broker_are_given_up_and_taken_again_when_it_is_back(mq2, orderly, monkeypatch):
    monkeypatch.setattr(instance_module, "ROUTE_REFRESH_S", 0.1)
    monkeypatch.setattr(instance_module, "HEARTBEAT_S", 0.2)
    topic = "t" + next(names)
    async with AdminClient(namesrv=mq2.namesrv) as admin:
        await admin.create_topic(topic, queues=3)
    async with group(mq2, topic, orderly=orderly) as g:
        await g.join("a")
        await g.join("b")
        await g.until(g.balanced)
        await fill(mq2, topic, 5)
        await g.until(lambda: g.all_seen(5))
        await g.commit()
        await asyncio.to_thread(mq2.stop_broker, "broker-b")
        await g.until(lambda: g.balanced(3))
        await fill(mq2, topic, 5, 5)
        await g.until(lambda: sum(map(len, g.seen.values())) == 6 * 5 + 3 * 5)
        await g.commit()  # the members hear of the broker at different times: one takes a queue over while the other still has it
        await asyncio.to_thread(mq2.start_broker, "broker-b")
        await g.until(g.balanced)
        async with Producer("pg", namesrv=mq2.namesrv) as producer:
            for queue in await producer.queues(topic):
                if queue.broker_name == "broker-b":
                    await producer.send_batch([Message(topic, b"x", queue=queue)] * 5)
        await g.until(lambda: g.all_seen(10))
        assert g.overlaps == [] or not orderly
        assert all(offsets == list(range(10)) for offsets in g.offsets().values())
