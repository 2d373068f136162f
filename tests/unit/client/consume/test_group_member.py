"""A member of a group that closes while its queues are balanced: brokers in memory, answers when the test wants them."""

import asyncio
from types import SimpleNamespace

from sprocketmq.client.consume.group_member import GroupMember
from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.rebalance import STRATEGIES
from sprocketmq.client.loop_bound import CLOSING, OPEN
from sprocketmq.client.routes import Route
from sprocketmq.client.timers import Timers
from sprocketmq.clock import ManualClock
from sprocketmq.protocol.bodies import ConsumerIdList, build_subscription
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue

QUEUES = {topic: tuple(MessageQueue(topic, f"of-{topic}", i) for i in range(2)) for topic in ("bills", "orders")}


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


class Brokers:
    """Stands in for ``Instance``. Each topic has a broker of its own, which tells the group's members when ``may_answer`` says so."""

    def __init__(self):
        self.client_id = "member-0"
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.state = OPEN
        self.consumers = list
        self.refusal = None
        self.routes = {topic: Route(topic, queues, queues, {f"of-{topic}": {0: topic}}) for topic, queues in QUEUES.items()}
        self.members = [self.client_id]
        self.may_answer = {topic: asyncio.Event() for topic in QUEUES}
        self.tasks = []

    async def fetch_route(self, topic):
        return self.routes[topic]

    async def heartbeat_now(self):
        """The brokers know the group."""

    async def ask(self, address, code, **_):
        if code != RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return Command(ResponseCode.SYSTEM_ERROR)
        await self.may_answer[address].wait()
        return Command(ResponseCode.SUCCESS, body=ConsumerIdList(self.members).encode())

    def spawn(self, work, _name):
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def keep(self, name, work):
        self.spawn(work(), name)

    def every(self, _period_s, _job, _name):
        """Nothing is committed in between."""

    def shut(self):
        self.timers.close()
        for task in self.tasks:
            task.cancel()


class SlowOffsets:
    """Stands in for the offset store. The last commit of ``held`` waits for ``let_go``, that of ``slow`` takes longer than the others."""

    def __init__(self, held, slow):
        self.held = held
        self.slow = slow
        self.begun = []
        self.let_go = asyncio.Event()
        self.committed_last = set()

    async def open(self):
        """Nothing to open."""

    async def committed_of(self, queues, **_):
        return dict.fromkeys(queues, 0)

    def settled(self, _pq):
        return False

    async def settle(self, pqs):
        for pq in pqs:
            self.begun.append(pq.queue)
            if pq.queue == self.held:
                await self.let_go.wait()
            else:
                await turns(200 if pq.queue == self.slow else 1)
            self.committed_last.add(pq.queue)


async def test_a_queue_that_a_round_would_give_up_during_the_close_is_committed_before_the_close_ends():
    brokers = Brokers()
    offsets = SlowOffsets(held=QUEUES["bills"][1], slow=QUEUES["orders"][1])
    member = GroupMember(
        brokers,
        "group",
        {topic: build_subscription(topic, "*", 1) for topic in QUEUES},
        consume_from="first",
        share=STRATEGIES["average"],
        store=offsets,
        locks=None,
        open_queue=lambda queue, offset: ProcessQueue(queue, offset, CacheLimits(), lambda batch: None),
        puller=SimpleNamespace(begin=lambda pq: None, end=lambda pq: None),
        resumed=lambda pq: None,
    )
    for event in brokers.may_answer.values():
        event.set()
    await member.join()
    await turns(40)
    everything = {queue for queues in QUEUES.values() for queue in queues}
    assert set(member.queues) == everything

    # Another member is there: a queue of each topic goes to it. The broker of the second topic is slow to answer.
    brokers.members = [brokers.client_id, "member-1"]
    brokers.may_answer["orders"].clear()
    member.rebalance_soon()
    await turns(40)
    assert offsets.begun == [QUEUES["bills"][1]]

    brokers.state = CLOSING
    leaving = asyncio.ensure_future(member.leave())
    await turns(5)
    brokers.may_answer["orders"].set()
    await turns(5)
    offsets.let_go.set()
    await leaving
    brokers.shut()  # whatever the member has begun and not waited for ends here
    assert offsets.committed_last == everything
