"""One member of a consumer group: which queues it has, where it starts in them, and what it committed (client-behaviour, section 9.2)."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

from sprocketmq.client.consume.offsets import Offsets
from sprocketmq.client.consume.orderly import RENEW_S, RENEW_SOON_S, QueueLocks
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.consume.rebalance import Share, plan_assignment
from sprocketmq.client.instance import OPEN, Instance
from sprocketmq.client.routes import Route
from sprocketmq.errors import ClientClosed, ConfigError, SprocketError
from sprocketmq.net.tasks import all_of, settled
from sprocketmq.protocol.bodies import ConsumerConnection, ConsumerData, ConsumerIdList, SubscriptionData
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import ConsumerGroupRequest
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX

log = logging.getLogger(__name__)

REBALANCE_S = 20.0
REBALANCE_RETRY_S = 1.0
COMMIT_S = 5.0
# Who takes over a queue first leaves this time to who has it, which hears of the change at the same moment, to commit its offset.
HANDOVER_S = 0.2

ConsumeFrom = Literal["last", "first"] | float


class Puller(Protocol):
    """What fills the queues of a member."""

    def begin(self, pq: ProcessQueue) -> None: ...

    def end(self, pq: ProcessQueue) -> None: ...


class OffsetStore(Protocol):
    """What keeps the offsets of a group: its brokers, or a file of this machine."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool) -> int | None: ...

    async def commit(self, pqs: Iterable[ProcessQueue]) -> None: ...

    async def settle(self, pqs: Iterable[ProcessQueue]) -> None: ...

    async def commit_behind(self, pqs: Iterable[ProcessQueue]) -> None: ...


class GroupMember:
    """Balances the queues of ``subscriptions`` with the other members of ``group``, and commits what was consumed of its own.

    ``queues`` are those it has now. For one that comes ``open_queue(queue, start offset)`` makes what holds its messages, and
    ``puller.begin`` gets that; one that goes is given to ``puller.end``. ``share`` says which queues are its own; with None it has all of
    them, as every member of a group that broadcasts. ``store`` keeps the offsets.

    With ``locks`` the group consumes in order. A queue is taken over once its broker has locked it for this member, and given up once
    what a handler has of it is through (``batch_ended``), so that no two members ever have messages of it at a time; ``may_take`` tells
    whether messages may be handed out now, and ``resumed(pq)`` is called when they may again. ``actively`` is said of pull consumers.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        *,
        consume_from: ConsumeFrom,
        share: Share | None,
        store: OffsetStore,
        locks: QueueLocks | None,
        open_queue: Callable[[MessageQueue, int], ProcessQueue],
        puller: Puller,
        resumed: Callable[[ProcessQueue], None],
        actively: bool = False,
    ) -> None:
        self.group = group
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self.subscriptions = subscriptions
        self.from_where = from_where(consume_from)
        self.consume_type = "CONSUME_ACTIVELY" if actively else "CONSUME_PASSIVELY"
        self.broadcasting = share is None
        self._instance = instance
        self._consume_from = consume_from
        self._share = share
        self._store = store
        self._locks = locks
        self._open_queue = open_queue
        self._puller = puller
        self._resumed = resumed
        self._offsets = Offsets(instance)
        self._unknown: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._in_company = False
        self._other_wishes: dict[str, str] = {}
        # Queues of an orderly group that are given up as soon as their handler is through.
        self._draining: dict[MessageQueue, asyncio.Future[None]] = {}
        # Tasks that commit the last offset of a queue that is given up, and unlock it.
        self._giving_up: dict[asyncio.Task[None], MessageQueue] = {}
        self._rebalance_now = asyncio.Event()

    # --- life ---

    async def join(self) -> None:
        """Make the group known to the brokers of its topics and begin to balance. A topic without a route is looked for from then on.

        Raises what opening the offset store raises.
        """
        await self._store.open()
        for topic in self.subscriptions:
            try:
                await self._instance.fetch_route(topic)
            except SprocketError as e:
                log.warning("consumer group %s: no route of %s yet: %s", self.group, topic, e)
        # Before the first heartbeat, as the group's wishes are this member's own after that.
        await self._compare_wishes()
        self._instance.consumers = self._describe
        await self._instance.heartbeat_now()
        self._instance.keep("balance", self._keep_balanced)
        self._instance.every(COMMIT_S, self._commit_behind, "commits")
        if self._locks is not None:
            self._instance.keep("queue locks", partial(self._keep_locked, self._locks))

    def stop_pulling(self) -> None:
        """Pull nothing more; what is here may still be handled."""
        for pq in self.queues.values():
            self._puller.end(pq)

    async def leave(self) -> None:
        """Commit every queue, for the last time; the instance's close does the rest. What cannot be committed is logged."""
        # A queue that a rebalance is giving up is no longer among the others. One that waits for its handler still is.
        under_way = [task for task, queue in self._giving_up.items() if queue not in self._draining or self._draining[queue].done()]
        if under_way:
            await asyncio.wait(under_way)
        try:
            await self._store.settle(list(self.queues.values()))
        except SprocketError as e:
            log.warning("consumer group %s: offsets not committed at close: %s", self.group, e)
        if self._locks is not None:
            await self._locks.unlock(list(self.queues))

    async def end(self) -> None:
        """Have every queue count as gone: what handlers still do with their messages has no effect any more. Closes the offset store."""
        for pq in self.queues.values():
            pq.dropped = True
        await self._store.close()

    # --- balance ---

    def rebalance_soon(self) -> None:
        """Look at the group and its queues again now."""
        self._rebalance_now.set()

    def _describe(self) -> list[ConsumerData]:
        return [
            ConsumerData(
                self.group,
                self.consume_type,
                message_model="BROADCASTING" if self.broadcasting else "CLUSTERING",
                consume_from_where=self.from_where,
                subscription_data_set=list(self.subscriptions.values()),
            )
        ]

    async def _keep_balanced(self) -> None:
        while self._instance.state == OPEN:
            self._rebalance_now.clear()
            balanced = True
            for topic in self.subscriptions:
                try:
                    if await self._rebalance(topic):
                        self._troubles.pop(topic, None)
                    else:
                        balanced = False
                except ClientClosed:
                    return
                except SprocketError as e:
                    self._complain(topic, str(e), self._instance.level_of(e))
                    balanced = False
                except Exception as e:  # whatever is wrong with one topic, the others are balanced
                    self._complain(topic, f"{type(e).__name__}: {e}", logging.ERROR, e)
                    balanced = False
            if balanced and self._in_company:
                await self._compare_wishes()
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
        everything = route.subscribe_queues
        wanted = list(everything)
        listed = True
        if self._share is not None:
            members = await self._members(route)
            if not members:
                return False
            me = self._instance.client_id
            listed = me in members
            wanted = plan_assignment(everything, members, me, self._share)
            self._in_company = len(members) > 1
        going = [pq for queue, pq in self.queues.items() if queue.topic == topic and queue not in wanted]
        await all_of(self._revoke(pq) for pq in going)
        coming = mine = [queue for queue in wanted if queue not in self.queues]
        if self._locks is not None:
            mine = await self._lock(self._locks, coming)
        elif coming and self._in_company:
            await self._instance.timers.sleep(HANDOVER_S)
        added = await all_of(self._assign(queue) for queue in mine)
        if not listed:
            await self._instance.heartbeat_now()
            return False
        # A queue that is wanted again while it is given up is taken over anew when that is done.
        return len(mine) == len(coming) and all(added) and not self._draining

    def _complain(self, topic: str, trouble: str, level: int = logging.WARNING, unexpected: BaseException | None = None) -> None:
        # Once for each trouble: while it lasts it is met each second.
        if self._troubles.get(topic) == trouble:
            level = logging.DEBUG
        self._troubles[topic] = trouble
        log.log(level, "consumer group %s: %s not balanced: %s", self.group, topic, trouble, exc_info=unexpected)

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
            await self._instance.heartbeat_now()
        if error is not None:
            raise error
        return []

    async def _assign(self, queue: MessageQueue) -> bool:
        try:
            offset = await start_offset(self._store, self._offsets, queue, self._consume_from)
        except ClientClosed:
            return False
        except SprocketError as e:
            log.log(self._instance.level_of(e), "consumer group %s: no start offset for %s yet: %s", self.group, queue, e)
            return False
        if self._instance.state != OPEN:
            return False
        pq = self.queues[queue] = self._open_queue(queue, offset)
        self._puller.begin(pq)
        return True

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message of ``queue`` stored at ``timestamp_ms`` or later; its end when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)

    async def _revoke(self, pq: ProcessQueue) -> None:
        if self._locks is None:
            self._let_go(pq)
            await settled(self._give_up(pq, self._settle(pq)))
        elif pq.queue not in self._draining:
            self._puller.end(pq)
            through = self._draining[pq.queue] = asyncio.get_running_loop().create_future()
            self.batch_ended(pq)
            draining = self._give_up(pq, self._drain(self._locks, pq, through))
            draining.add_done_callback(lambda _: self._drained(pq))

    def _give_up(self, pq: ProcessQueue, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._instance.spawn(work, f"giving up of {pq.queue}")
        self._giving_up[task] = pq.queue
        task.add_done_callback(self._giving_up.pop)
        return task

    async def _drain(self, locks: QueueLocks, pq: ProcessQueue, through: "asyncio.Future[None]") -> None:
        """Give up a queue of an orderly group once no handler has messages of it, its lock last of all."""
        await through
        if pq.dropped:
            return  # the lock was lost meanwhile
        self._let_go(pq)
        await self._settle(pq)
        await locks.unlock([pq.queue])

    def _drained(self, pq: ProcessQueue) -> None:
        self._draining.pop(pq.queue, None)
        self.rebalance_soon()

    def batch_ended(self, pq: ProcessQueue) -> None:
        """Take note that a handler is through with a batch of ``pq``."""
        through = self._draining.get(pq.queue)
        if through is not None and not pq.busy and not through.done():
            through.set_result(None)

    def _let_go(self, pq: ProcessQueue) -> None:
        pq.dropped = True
        del self.queues[pq.queue]
        self._puller.end(pq)

    async def _settle(self, pq: ProcessQueue) -> None:
        try:
            await self._store.settle([pq])
        except SprocketError as e:
            log.warning("consumer group %s: offset of %s not committed when it was given up: %s", self.group, pq.queue, e)

    @property
    def pulled(self) -> list[ProcessQueue]:
        """The queues that are to be pulled: all but those that are being given up."""
        return [pq for queue, pq in self.queues.items() if queue not in self._draining]

    # --- order ---

    def may_take(self, pq: ProcessQueue) -> bool:
        """Whether messages of ``pq`` may be handed out now."""
        return self._locks is None or (self._locks.leases.holds(pq.queue) and pq.queue not in self._draining)

    async def _lock(self, locks: QueueLocks, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Return those of ``queues`` that are locked for this member; the others are asked for again soon."""
        result = await locks.lock(queues)
        for queue in result.refused:
            log.debug("consumer group %s: %s is still another member's", self.group, queue)
        for queue, error in result.unknown.items():
            self._complain(queue.topic, f"{queue} cannot be locked: {error or 'its broker has no master now'}")
        granted = [queue for queue in queues if queue in result.kept or queue in result.taken]
        if self._instance.state == OPEN:
            return granted
        await locks.unlock(granted)  # nobody is left to consume them, and the next member need not wait
        return []

    async def _keep_locked(self, locks: QueueLocks) -> None:
        pause = RENEW_S
        while self._instance.state == OPEN:
            await self._instance.timers.sleep(pause)
            held = dict(self.queues)
            result = await locks.lock(held)
            pause = RENEW_SOON_S if result.unknown else RENEW_S
            for queue in result.refused:
                self._lost(held[queue], "another member has it now")
            for queue in result.taken:
                await self._regained(locks, held[queue])
            for queue in result.kept | result.taken:
                if not held[queue].dropped:
                    self._resumed(held[queue])

    async def _regained(self, locks: QueueLocks, pq: ProcessQueue) -> None:
        """Find out whether somebody else had ``pq`` while the lock had run out."""
        try:
            committed = await self._store.committed(pq.queue, zero_if_young=False)
        except SprocketError as e:
            log.warning("consumer group %s: %s stays suspended: %s", self.group, pq.queue, e)
            locks.leases.drop(pq.queue)
        else:
            if committed is not None and committed > pq.commit_offset:
                self._lost(pq, "another member went on with it meanwhile")

    def _lost(self, pq: ProcessQueue, why: str) -> None:
        """Let go of a queue whose lock is another's: its offset is, too."""
        if pq.dropped:
            return
        log.warning("consumer group %s: lost the lock of %s: %s", self.group, pq.queue, why)
        self._let_go(pq)
        through = self._draining.get(pq.queue)
        if through is not None and not through.done():
            through.set_result(None)
        self.rebalance_soon()

    # --- what other members want ---

    async def _compare_wishes(self) -> None:
        """Warn when the group's last heartbeat wanted other messages than this member: some of them reach neither."""
        table = await self._group_wishes()
        if table is None:
            return
        retry = RETRY_PREFIX + self.group
        for topic in sorted({*table, *self.subscriptions} - {retry}):
            theirs, ours = _wish(table.get(topic)), _wish(self.subscriptions.get(topic))
            if theirs != ours and self._other_wishes.get(topic) != theirs:
                log.warning(
                    "consumer group %s: another member subscribes to %s of topic %s, this one to %s: all members must subscribe to the same,"
                    " or they miss messages; give one of them another group",
                    self.group,
                    theirs,
                    topic,
                    ours,
                )
            self._other_wishes[topic] = theirs

    async def _group_wishes(self) -> dict[str, SubscriptionData] | None:
        for topic in self.subscriptions:
            route = self._instance.routes.get(topic)
            for name in route.addresses if route else ():
                address = route.address(name) if route else None
                if address is None:
                    continue
                try:
                    ext = to_ext(ConsumerGroupRequest(self.group))
                    response = await self._instance.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext=ext)
                    if response.code == ResponseCode.SUCCESS:
                        return ConsumerConnection.decode(response.body).subscription_table
                except SprocketError as e:
                    log.debug("consumer group %s: cannot see what others subscribe to: %s", self.group, e)
                else:
                    return None
        return None

    # --- commits ---

    async def commit_all(self) -> None:
        """Commit what has been consumed and return when it is kept. Raises the first error; what can be committed is."""
        await self._store.commit(list(self.queues.values()))

    async def _commit_behind(self) -> None:
        await self._store.commit_behind(list(self.queues.values()))


def _wish(subscription: SubscriptionData | None) -> str:
    if subscription is None:
        return "nothing"
    if subscription.expression_type != "TAG":
        return f"{subscription.expression_type} {subscription.sub_string!r}"
    return f"tags {' || '.join(sorted(subscription.tags_set))!r}" if subscription.tags_set else "everything"


async def start_offset(store: OffsetStore, offsets: Offsets, queue: MessageQueue, consume_from: ConsumeFrom) -> int:
    """Return where to begin in ``queue``: where the group went to, else by ``consume_from``. Raises what asking the brokers raises."""
    at_time = not isinstance(consume_from, str)
    # With a start time, a young queue must not be taken for a committed 0.
    offset = await store.committed(queue, zero_if_young=not at_time)
    if offset is not None:
        return offset
    if consume_from == "first" or queue.topic.startswith(RETRY_PREFIX):
        return 0  # what is to be retried was consumed before: no start rule may pass it over
    if isinstance(consume_from, str):
        return await offsets.max_offset(queue)
    return await offsets.offset_at(queue, round(consume_from * 1000))


def from_where(consume_from: ConsumeFrom) -> str:
    """Return the wire's word for where a new group starts. Raises ConfigError for what is no such place."""
    if consume_from == "last":
        return "CONSUME_FROM_LAST_OFFSET"
    if consume_from == "first":
        return "CONSUME_FROM_FIRST_OFFSET"
    if type(consume_from) in (int, float) and float(consume_from) >= 0:
        return "CONSUME_FROM_TIMESTAMP"
    raise ConfigError(f"consume_from must be 'last', 'first' or epoch seconds, not {consume_from!r}")
