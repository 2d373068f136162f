"""Members of one group against a broker in memory: real balancing, locks and offsets, no sockets, and random orders of events.

Members join, leave, crash and learn of new queues at different times; answers take a random number of turns of the loop. Whatever
happens, nothing is committed that nobody consumed, an ordered queue is never with two live members and never skips ahead, and once all
is quiet every queue has one owner and every message was consumed.
"""

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from sprocketmq.broker.locks import QueueLocks as BrokerLocks
from sprocketmq.client.consume.group_member import GroupMember
from sprocketmq.client.consume.offset_store import GroupOffsets
from sprocketmq.client.consume.orderly import MemberLocks
from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.rebalance import STRATEGIES
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.client.loop_bound import CLOSED, CLOSING, OPEN
from sprocketmq.client.routes import Route
from sprocketmq.client.timers import Timers
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConnectionLost
from sprocketmq.protocol.bodies import ConsumerIdList, LockBatchRequest, LockBatchResponse, build_subscription
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue

TOPIC, BROKER, ADDRESS, GROUP = "t", "b", "b:1", "g"
MESSAGES = 12
MAX_QUEUES = 5
MAX_MEMBERS = 4
# Longer than a broker keeps a lock, in steps that let members renew theirs.
LONG_ENOUGH_S, STEP_S = 100, 5


class MemoryBroker:
    """What a broker knows of one group: who is in it, offsets, locks. It hears of a crash when ``notice`` is called, as a broker may
    take its time to see a connection end."""

    def __init__(self, clock: ManualClock) -> None:
        self.locks = BrokerLocks(clock)
        self.members: dict[str, Member] = {}
        self.offsets: dict[MessageQueue, int] = {}

    def notify(self) -> None:
        for member in self.members.values():
            if member.alive:
                member.group.rebalance_soon()

    def join(self, member: "Member") -> None:
        if member.client_id not in self.members:
            self.members[member.client_id] = member
            self.notify()

    def leave(self, client_id: str) -> None:
        if self.members.pop(client_id, None) is not None:
            self.notify()

    def notice(self) -> None:
        for client_id in [client_id for client_id, member in self.members.items() if not member.alive]:
            self.leave(client_id)

    def answer(self, code: int, ext: dict[str, str] | bytes, body: bytes) -> Command:
        if isinstance(ext, bytes):  # written as JSON already
            ext = json.loads(ext)
        if code == Q.GET_CONSUMER_LIST_BY_GROUP:
            if not self.members:
                return Command(R.SYSTEM_ERROR)
            return Command(R.SUCCESS, body=ConsumerIdList(list(self.members)).encode())
        if code in (Q.LOCK_BATCH_MQ, Q.UNLOCK_BATCH_MQ):
            request = LockBatchRequest.decode(body)
            if code == Q.UNLOCK_BATCH_MQ:
                self.locks.unlock(request.consumer_group, request.client_id, request.mq_set)
                return Command(R.SUCCESS)
            return Command(R.SUCCESS, body=LockBatchResponse(self.locks.lock(GROUP, request.client_id, request.mq_set)).encode())
        if code == Q.GET_CONSUMER_CONNECTION_LIST:
            return Command(R.CONSUMER_NOT_ONLINE)
        queue = MessageQueue(ext["topic"], BROKER, int(ext["queueId"]))
        if code == Q.QUERY_CONSUMER_OFFSET:
            known = self.offsets.get(queue)
            return Command(R.QUERY_NOT_FOUND) if known is None else Command(R.SUCCESS, ext={"offset": str(known)})
        assert code == Q.UPDATE_CONSUMER_OFFSET
        self.offsets[queue] = int(ext["commitOffset"])
        return Command(R.SUCCESS)


class MemoryInstance:
    """Stands in for ``Instance``: the same calls, answered by the broker in memory after a few turns of the loop."""

    def __init__(self, client_id: str, broker: MemoryBroker, clock: ManualClock, chance: random.Random, queues: int) -> None:
        self.client_id = client_id
        self.address = ADDRESS  # it stands in for its only connection, too
        self.clock = clock
        self.timers = Timers(clock)
        self.state = OPEN
        self.consumers: Any = list
        self.refusal = None
        self.brokers = SimpleNamespace(peek=lambda address: self)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.errors: list[BaseException] = []
        self.member: Member
        self._broker = broker
        self._chance = chance
        self.see(queues)

    def see(self, queues: int) -> None:
        everything = tuple(MessageQueue(TOPIC, BROKER, i) for i in range(queues))
        self.routes = {TOPIC: Route(TOPIC, everything, everything, {BROKER: {0: ADDRESS}})}

    async def fetch_route(self, topic: str) -> Route | None:
        return self.routes.get(topic)

    async def _turns(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        if self.state == CLOSED:
            raise ConnectionLost(ADDRESS)

    async def ask(self, address: str, code: int, *, ext: Any = None, body: bytes = b"", timeout_s: float = 3.0) -> Command:
        await self._turns()
        response = self._broker.answer(code, ext or {}, body)
        await self._turns()
        return response

    async def ask_broker(self, topic: str, broker_name: str, code: int, *, ext: Any) -> tuple[Command, str]:
        return await self.ask(ADDRESS, code, ext=ext), ADDRESS

    def request(self, code: int, *, ext: Any, timeout_s: float) -> "asyncio.Task[Command]":
        return self.spawn(self.ask(ADDRESS, code, ext=ext, timeout_s=timeout_s), "request")

    def oneway(self, code: int, *, ext: Any) -> None:
        self._broker.answer(code, ext, b"")

    async def heartbeat_now(self) -> None:
        await asyncio.wait([self.spawn(self._beat(), "heartbeat")])

    async def _beat(self) -> None:
        await self._turns()
        self._broker.join(self.member)

    def keep(self, name: str, work: Any) -> None:
        self.spawn(work(), name)

    def spawn(self, work: Any, name: str) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self.state == OPEN:
            self.errors.append(error)

    def every(self, period_s: float, job: Any, name: str) -> None:
        """The model says when offsets are committed."""

    def shut(self) -> None:
        self.state = CLOSED
        self.timers.close()
        for task in list(self.tasks):
            task.cancel()


class Member:
    """One member: the real GroupMember, and handlers that hold batches until the model ends them."""

    def __init__(self, instance: MemoryInstance, *, orderly: bool, share: Any) -> None:
        self.client_id = instance.client_id
        self.instance = instance
        self.alive = True
        self.orderly = orderly
        self.out: list[ReceivedBatch] = []
        instance.member = self
        self.group = GroupMember(
            instance,  # type: ignore[arg-type]
            GROUP,
            {TOPIC: build_subscription(TOPIC, "*", 1)},
            consume_from="first",
            share=share,
            store=GroupOffsets(instance, GROUP),  # type: ignore[arg-type]
            locks=MemberLocks(instance, GROUP) if orderly else None,  # type: ignore[arg-type]
            open_queue=self.open_queue,
            puller=self,
            resumed=lambda pq: None,
        )

    def open_queue(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        return ProcessQueue(queue, offset, CacheLimits(), lambda batch: None, serial=self.orderly)

    def begin(self, pq: ProcessQueue) -> None:
        """All there is of a queue comes at once."""
        messages: list[Any] = [SimpleNamespace(queue_offset=offset) for offset in range(pq.next_offset, MESSAGES)]
        pq.put(messages, len(messages), max(MESSAGES, pq.next_offset))

    def end(self, pq: ProcessQueue) -> None:
        pass

    def take(self, count: int) -> list[ReceivedBatch]:
        found = []
        for pq in self.group.queues.values():
            batch = pq.take(count) if self.group.may_take(pq) else None
            if batch is not None:
                found.append(batch)
        self.out += found
        return found

    def finish(self, batch: ReceivedBatch) -> None:
        self.out = [other for other in self.out if other is not batch]  # batches are lists, and equal ones are not the same
        pq = self.group.queues.get(batch.queue)
        if pq is not None:
            pq.finish(batch)
            self.group.batch_ended(pq)


class Rebalancing:
    """One run: ``seed`` chooses the events, and how many turns each answer takes."""

    def __init__(self, seed: int, *, orderly: bool, share: str, queues: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock)
        self.chance = random.Random(seed)
        self.orderly = orderly
        self.share = STRATEGIES[share]
        self.queues = queues
        self.members: list[Member] = []
        self.number = 0
        self.consumed: dict[MessageQueue, set[int]] = {}
        self.ends: dict[MessageQueue, int] = {}
        self.crashed = False
        self.events: list[str] = []

    def play(self, steps: int) -> None:
        """Have ``steps`` random events happen, then let everything come to rest."""
        events = [self.work, self.join, self.leave, self.crash, self.notice_crashes, self.add_queue, self.refresh]
        try:
            self.join()
            for event in self.chance.choices(events, (60, 12, 8, 4, 4, 2, 10), k=steps):
                self.events.append(event.__name__)
                event()
                self.check()
            self.settle()
            self.check()
        except AssertionError as e:
            raise AssertionError(f"{e}, after {', '.join(self.events)}") from e
        finally:
            for member in self.members:
                member.instance.shut()
            self.spin(20)
            self.loop.close()

    # --- running ---

    def spin(self, turns: int) -> None:
        async def wait() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def run(self, work: Any) -> None:
        self.loop.run_until_complete(work)

    def pass_time(self, seconds: float) -> None:
        async def due() -> None:
            for member in self.members:
                member.instance.timers.run_due()

        self.clock.advance(seconds)
        self.run(due())
        self.spin(60)

    @property
    def live(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def pick(self) -> Member | None:
        return self.chance.choice(self.live) if self.live else None

    # --- events ---

    def join(self) -> None:
        if len(self.live) == MAX_MEMBERS:
            return
        self.number += 1
        instance = MemoryInstance(f"m{self.chance.randrange(100)}-{self.number}", self.broker, self.clock, self.chance, self.queues)

        async def start() -> None:
            member = Member(instance, orderly=self.orderly, share=self.share)
            self.members.append(member)
            instance.spawn(member.group.join(), "join")

        self.run(start())

    def leave(self) -> None:
        """Close as PushConsumer does: handlers may end first, or are cancelled."""
        member = self.pick()
        if member is None:
            return
        member.instance.state = CLOSING
        if self.chance.random() < 0.5:
            for batch in list(member.out):
                self.end_batch(member, batch)
        member.out.clear()
        member.group.stop_pulling()
        self.run(member.group.leave())
        member.alive = False
        self.broker.leave(member.client_id)
        self.run(member.group.end())
        member.instance.shut()

    def crash(self) -> None:
        member = self.pick()
        if member is None:
            return
        member.alive = False
        member.out.clear()
        member.instance.shut()
        self.crashed = True

    def notice_crashes(self) -> None:
        self.broker.notice()

    def work(self) -> None:
        """Members hand out what they may, some handlers end, and time passes."""
        chance = self.chance
        if chance.random() < 0.7:
            self.take(chance.randint(1, 3))
        share = chance.choice([0, 0.3, 0.7, 1])
        for member in self.live:
            for batch in list(member.out):
                if chance.random() < share:
                    self.end_batch(member, batch)
        if chance.random() < 0.3:
            for member in self.live:
                self.run(member.group.commit_behind())
        self.spin(chance.randint(1, 20))
        self.pass_time(chance.choice([0, 0, 0.3, 1, 5, 15]))

    def take(self, count: int) -> None:
        for member in self.live:
            for batch in member.take(count):
                if self.orderly:
                    others = [other for other in self.live if other is not member and any(o.queue == batch.queue for o in other.out)]
                    assert not others, f"{batch.queue} is with two live members"
                    assert batch[0].queue_offset <= self.ends.get(batch.queue, 0), "messages were skipped"

    def add_queue(self) -> None:
        """The members hear of it one by one."""
        self.queues = min(self.queues + 1, MAX_QUEUES)

    def refresh(self) -> None:
        member = self.pick()
        if member is None:
            return
        member.instance.see(self.queues)
        member.group.rebalance_soon()

    def end_batch(self, member: Member, batch: ReceivedBatch) -> None:
        offsets = [message.queue_offset for message in batch]
        if self.orderly:
            end = self.ends.get(batch.queue, 0)
            assert offsets[0] == end or (self.crashed and offsets[0] < end), "an ordered queue repeats or skips without a crash"
            self.ends[batch.queue] = max(end, offsets[-1] + 1)
        self.consumed.setdefault(batch.queue, set()).update(offsets)
        member.finish(batch)

    def settle(self) -> None:
        """Let everything come to rest: then each queue has one owner, and what is left is consumed."""
        self.broker.notice()
        for member in self.live:
            member.instance.see(self.queues)
            member.group.rebalance_soon()
        for _ in range(LONG_ENOUGH_S // STEP_S):
            for member in self.live:
                for batch in list(member.out):
                    self.end_batch(member, batch)
            self.pass_time(STEP_S)
            for member in self.live:
                self.run(member.group.commit_behind())
        if not self.live:
            return
        everything = {MessageQueue(TOPIC, BROKER, i) for i in range(self.queues)}
        owned = [queue for member in self.live for queue in member.group.queues]
        assert sorted(owned) == sorted(everything), "every queue has one owner"
        for member in self.live:
            while member.take(5):
                for batch in list(member.out):
                    self.end_batch(member, batch)
        assert all(self.consumed.get(queue) == set(range(MESSAGES)) for queue in everything)

    # --- what always holds ---

    def check(self) -> None:
        for queue, offset in self.broker.offsets.items():
            assert set(range(offset)) <= self.consumed.get(queue, set()), f"{queue} is committed beyond what was consumed"
        assert [error for member in self.members for error in member.instance.errors] == []


@example(seed=0, orderly=True, share="average", queues=3)
@example(seed=1, orderly=False, share="average", queues=3)
# Members leave while a queue whose handler has just ended is being given up: its last offset is committed all the same.
@example(seed=1670239, orderly=True, share="average", queues=1)
@example(seed=727, orderly=True, share="average", queues=2)
@given(seed=st.integers(0, 2**32), orderly=st.booleans(), share=st.sampled_from(sorted(STRATEGIES)), queues=st.integers(1, MAX_QUEUES))
@settings(max_examples=60, phases=[Phase.explicit, Phase.generate])  # a smaller seed makes no smaller run
def test_whatever_members_do_nothing_is_lost_and_an_ordered_queue_is_with_one_of_them(seed, orderly, share, queues):
    Rebalancing(seed, orderly=orderly, share=share, queues=queues).play(40)
