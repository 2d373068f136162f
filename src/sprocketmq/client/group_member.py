"""One member of a consumer group: which queues it has, where it starts in them, and what it committed (client-behaviour, section 9.2)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal, Protocol

from sprocketmq.client.instance import OPEN, Instance
from sprocketmq.client.offsets import Offsets
from sprocketmq.client.process_queue import ProcessQueue
from sprocketmq.client.rebalance import plan_assignment
from sprocketmq.client.routes import Route
from sprocketmq.errors import ConfigError, SprocketError
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import ConsumerData, ConsumerIdList, SubscriptionData
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import ConsumerGroupRequest, UpdateConsumerOffset
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX

log = logging.getLogger(__name__)

REBALANCE_S = 20.0
REBALANCE_RETRY_S = 1.0
COMMIT_S = 5.0
# How often a commit that an older one has overtaken is repeated.
SETTLE_TRIES = 3

ConsumeFrom = Literal["last", "first"] | float


class Puller(Protocol):
    """What fills the queues of a member."""

    def begin(self, pq: ProcessQueue) -> None: ...

    def end(self, pq: ProcessQueue) -> None: ...


class GroupMember:
    """Balances the queues of ``subscriptions`` with the other members of ``group``, and commits what was consumed of its own.

    ``queues`` are those it has now. For one that comes ``open_queue(queue, start offset)`` makes what holds its messages, and
    ``puller.begin`` gets that; one that goes is given to ``puller.end``.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        *,
        consume_from: ConsumeFrom,
        open_queue: Callable[[MessageQueue, int], ProcessQueue],
        puller: Puller,
    ) -> None:
        self.group = group
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self._instance = instance
        self._subscriptions = subscriptions
        self._from_where = _from_where(consume_from)
        self._consume_from = consume_from
        self._open_queue = open_queue
        self._puller = puller
        self._offsets = Offsets(instance)
        self._unknown: set[str] = set()
        self._rebalance_now = asyncio.Event()
        instance.consumers = self._describe

    # --- life ---

    async def join(self) -> None:
        """Make the group known to the brokers of its topics and begin to balance. A topic without a route is looked for from then on."""
        for topic in self._subscriptions:
            try:
                await self._instance.fetch_route(topic)
            except SprocketError as e:
                log.warning("consumer group %s: no route of %s yet: %s", self.group, topic, e)
        await self._instance.heartbeat_soon()
        self._instance.spawn(self._keep_balanced())
        self._instance.every(COMMIT_S, self._commit_behind)

    def stop_pulling(self) -> None:
        """Pull nothing more; what is here may still be handled."""
        for pq in self.queues.values():
            self._puller.end(pq)

    async def leave(self) -> None:
        """Commit every queue, for the last time; the instance's close does the rest. What cannot be committed is logged."""
        try:
            await _all(self._settle(pq) for pq in self.queues.values())
        except SprocketError as e:
            log.warning("consumer group %s: offsets not committed at close: %s", self.group, e)

    def drop_all(self) -> None:
        """Have every queue count as gone: what handlers still do with their messages has no effect any more."""
        for pq in self.queues.values():
            pq.dropped = True

    # --- balance ---

    def rebalance_soon(self) -> None:
        """Look at the group and its queues again now."""
        self._rebalance_now.set()

    def on_request(self, conn: Connection, command: Command) -> None:
        """Take a request of a broker."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance_now.set()

    def _describe(self) -> list[ConsumerData]:
        return [ConsumerData(self.group, consume_from_where=self._from_where, subscription_data_set=list(self._subscriptions.values()))]

    async def _keep_balanced(self) -> None:
        while self._instance.state == OPEN:
            self._rebalance_now.clear()
            balanced = True
            for topic in self._subscriptions:
                try:
                    balanced &= await self._rebalance(topic)
                except SprocketError as e:
                    log.warning("consumer group %s: %s not balanced: %s", self.group, topic, e)
                    balanced = False
            timer = self._instance.timers.call_later(REBALANCE_S if balanced else REBALANCE_RETRY_S, self._rebalance_now.set)
            await self._rebalance_now.wait()
            timer.cancel()

    async def _rebalance(self, topic: str) -> bool:
        """Take over and give up queues of ``topic`` as the plan says; tells whether that is done."""
        route = self._instance.routes.get(topic) or await self._instance.fetch_route(topic)
        if route is None:
            # The group's retry topic is there a moment after the first heartbeat.
            if topic not in self._unknown and not topic.startswith(RETRY_PREFIX):
                self._unknown.add(topic)
                log.warning("consumer group %s: topic %s does not exist yet, waiting for it", self.group, topic)
            return False
        members = await self._members(route)
        if not members:
            return False
        me = self._instance.client_id
        wanted = plan_assignment(route.subscribe_queues, members, me)
        for pq in [pq for queue, pq in self.queues.items() if queue.topic == topic and queue not in wanted]:
            await self._revoke(pq)
        added = await asyncio.gather(*(self._assign(queue) for queue in wanted if queue not in self.queues))
        if me not in members:
            await self._instance.heartbeat_soon()
            return False
        return all(added)

    async def _members(self, route: Route) -> list[str]:
        ext = to_ext(ConsumerGroupRequest(self.group))
        error: SprocketError | None = None
        for name in route.addresses:
            address = route.address(name)
            if address is None:
                continue
            try:
                response = await self._instance.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=ext)
            except SprocketError as e:
                error = e
                continue
            if response.code == ResponseCode.SUCCESS:
                return ConsumerIdList.decode(response.body).consumer_id_list
            # The broker has no member of the group: our heartbeat has not arrived.
            await self._instance.heartbeat_soon()
        if error is not None:
            raise error
        return []

    async def _assign(self, queue: MessageQueue) -> bool:
        try:
            offset = await self._start_offset(queue)
        except SprocketError as e:
            log.warning("consumer group %s: no start offset for %s yet: %s", self.group, queue, e)
            return False
        if self._instance.state != OPEN:
            return False
        pq = self.queues[queue] = self._open_queue(queue, offset)
        self._puller.begin(pq)
        return True

    async def _start_offset(self, queue: MessageQueue) -> int:
        at_time = not isinstance(self._consume_from, str)
        # With a start time, a young queue must not be taken for a committed 0.
        offset = await self._offsets.committed(self.group, queue, zero_if_young=not at_time)
        if offset is not None:
            return offset
        if self._consume_from == "first" or queue.topic.startswith(RETRY_PREFIX):
            return 0  # what is to be retried was consumed before: no start rule may pass it over
        if isinstance(self._consume_from, str):
            return await self._offsets.max_offset(queue)
        return await self._offsets.offset_at(queue, round(self._consume_from * 1000))

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message of ``queue`` stored at ``timestamp_ms`` or later; its end when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)

    async def _revoke(self, pq: ProcessQueue) -> None:
        pq.dropped = True
        del self.queues[pq.queue]
        self._puller.end(pq)
        try:
            await self._settle(pq)
        except SprocketError as e:
            log.warning("consumer group %s: offset of %s not committed when it was given up: %s", self.group, pq.queue, e)

    # --- commits ---

    async def commit_all(self) -> None:
        """Commit what has been consumed and return when the brokers have it. Raises the first broker's error; others are committed."""
        await _all(self._commit_queue(pq) for pq in self.queues.values())

    async def _commit_queue(self, pq: ProcessQueue) -> None:
        offset = pq.commit_offset
        if offset != pq.persisted:
            await self._offsets.commit(self.group, pq.queue, offset)
            pq.persisted = offset

    async def _settle(self, pq: ProcessQueue) -> None:
        """Commit a queue that is pulled no more, and see to it that this stays the last word.

        The pull that was under way carries an older offset, and a broker with several threads may take that after ours.
        """
        await self._commit_queue(pq)
        for _ in range(SETTLE_TRIES):
            committed = await self._offsets.committed(self.group, pq.queue)
            if committed is None or committed >= pq.commit_offset:
                return
            await self._offsets.commit(self.group, pq.queue, pq.commit_offset)

    async def _commit_behind(self) -> None:
        """Commit without waiting for answers; one that is lost is made up for by the next."""
        for pq in list(self.queues.values()):
            offset = pq.commit_offset
            if offset == pq.persisted:
                continue
            route = self._instance.routes.get(pq.queue.topic)
            address = route.address(pq.queue.broker_name) if route else None
            conn = self._instance.brokers.peek(address) if address else None
            if conn is not None:
                ext = to_ext(UpdateConsumerOffset(self.group, pq.queue.topic, pq.queue.queue_id, offset))
                conn.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)


async def _all(commits: Iterable[Awaitable[None]]) -> None:
    """Let all of them end, then raise the first error."""
    for result in await asyncio.gather(*commits, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _from_where(consume_from: ConsumeFrom) -> str:
    if consume_from == "last":
        return "CONSUME_FROM_LAST_OFFSET"
    if consume_from == "first":
        return "CONSUME_FROM_FIRST_OFFSET"
    if type(consume_from) in (int, float) and float(consume_from) >= 0:
        return "CONSUME_FROM_TIMESTAMP"
    raise ConfigError(f"consume_from must be 'last', 'first' or epoch seconds, not {consume_from!r}")
