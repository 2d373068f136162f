"""A member of a consumer group: balancing, taking over and releasing queues, commits (docs/internals/consumers.md#sharing-queues)."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from sprocketmq.client.consume.offset_store import ConsumeFrom, OffsetStore, from_where, quick_starts, start_offset
from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.consume.orderly import RENEW_S, RENEW_SOON_S, MemberLocks
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.consume.rebalance import Share, plan_assignment
from sprocketmq.client.consume.subscription_check import SubscriptionCheck
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.loop_bound import OPEN
from sprocketmq.client.routes import Route
from sprocketmq.errors import AccessRefused, ClientClosed, SprocketError
from sprocketmq.net.tasks import all_of, settled
from sprocketmq.protocol.bodies import ConsumerData, ConsumerIdList, SubscriptionData
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import ConsumerGroupRequest
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX

log = logging.getLogger(__name__)

REBALANCE_S = 20.0
REBALANCE_RETRY_S = 1.0
COMMIT_S = 5.0
# Subscriptions are compared with those of other members no more often: each answer names all members of the group.
COMPARE_S = 60.0
# Grace period for the previous owner of a queue, which learns of the change at the same moment, to commit its offset.
HANDOVER_S = 0.2
# How many topics are balanced at a time: each waits for answers, and for the previous owners of its queues.
TOPICS_AT_A_TIME = 10


class Puller(Protocol):
    """Fills the queues of a member."""

    def begin(self, pq: ProcessQueue) -> None: ...

    def end(self, pq: ProcessQueue) -> None: ...


class _Release:
    """A queue on its way to another member. ``idle`` is resolved when no handler has messages of it; ``task`` commits and unlocks it."""

    __slots__ = ("idle", "task")

    task: "asyncio.Task[None]"

    def __init__(self, idle: "asyncio.Future[None]") -> None:
        self.idle = idle

    def handler_ended(self) -> None:
        if not self.idle.done():
            self.idle.set_result(None)


class GroupMember:
    """Balances the queues of ``subscriptions`` with the other members of ``group``, and commits what was consumed of its own queues.

    ``queues`` are those it owns now. ``open_queue(queue, start offset)`` makes the ProcessQueue of one that is taken over, and
    ``puller.begin`` starts pulling it; ``puller.end`` stops pulling one that is released. ``share`` chooses the member's queues; without it
    (a broadcasting group) the member has all queues. ``store`` keeps the offsets.

    With ``locks`` the group consumes in order. A queue is taken over when its broker has locked it for this member, and released when no
    handler has messages of it (``batch_ended``), so no two members ever hold messages of it at the same time. ``may_take`` tells whether
    messages may be handed out now; ``resumed(pq)`` is called when they may again. ``actively`` marks pull consumers.
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
        locks: MemberLocks | None,
        open_queue: Callable[[MessageQueue, int], ProcessQueue],
        puller: Puller,
        resumed: Callable[[ProcessQueue], None],
        actively: bool = False,
    ) -> None:
        self.group = group
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self.subscriptions = subscriptions
        self.from_where: str = from_where(consume_from)
        self.consume_type = "CONSUME_ACTIVELY" if actively else "CONSUME_PASSIVELY"
        self.broadcasting: bool = share is None
        self.check: SubscriptionCheck = SubscriptionCheck(instance, group, subscriptions)
        self._instance = instance
        self._consume_from = consume_from
        self._share = share
        self._store = store
        self._locks = locks
        self._open_queue = open_queue
        self._puller = puller
        self._resumed = resumed
        self._offsets = OffsetRequests(instance)
        self._unknown_topics: set[str] = set()
        # The last problem of each topic, so that it is logged once.
        self._problems: dict[str, str] = {}
        self._has_peers = False
        self._compare_at = 0.0  # monotonic s
        # Topics that other members had queues of, as of the last time that they were balanced.
        self._shared: set[str] = set()
        # Queues being released. One of an orderly group stays in ``queues`` until its handler has ended.
        self._releases: dict[ProcessQueue, _Release] = {}
        self._rebalance_now = asyncio.Event()
        # The queues of each topic that the last plan gave this member and that it has not taken over, and since when (monotonic s).
        self._coming: dict[str, dict[MessageQueue, float]] = {}
        # Rounds that wait for previous owners to commit.
        self._pauses: set[asyncio.Future[None]] = set()
        # One topic at a time: a broker that has 32 MiB of unread answers for a connection has it pull again, which costs both a read each.
        self._taking_over = asyncio.Lock()
        # What brokers answered to the question for the group's members, for the topics that are balanced together.
        self._listed: dict[str, list[str] | SprocketError] = {}
        self._listing = asyncio.Lock()

    # --- life ---

    async def join(self) -> None:
        """Register the group at the brokers of its topics and start balancing. A topic without a route is looked up again until it has one.

        Raises what opening the offset store raises, and AuthenticationFailed or AuthorizationFailed when a broker refuses this client.
        """
        await self._store.open()
        for topic in self.subscriptions:
            try:
                await self._instance.fetch_route(topic)
            except SprocketError as e:
                log.warning("consumer group %s: no route of %s yet: %s", self.group, topic, e)
        await self.check.conditions()
        # Before the first heartbeat, which replaces the group's subscriptions at the broker with this member's.
        await self.check.compare()
        self._instance.consumers = self._describe
        try:
            await self._instance.heartbeat_now()
            if self._instance.refusal is not None:
                await self._instance.unregister()  # from the brokers that did not refuse
                self._instance.consumers = list
                raise self._instance.refusal
        except asyncio.CancelledError:
            # The heartbeat goes on. Others would leave queues to a member that never pulls.
            self._instance.consumers = list
            self._instance.spawn(self._instance.withdraw(self.group), "leaving a group that was not joined")
            raise
        self._instance.keep("balance", self._keep_balanced)
        self._instance.every(COMMIT_S, self.commit_behind, "commits")
        if self._locks is not None:
            self._instance.keep("queue locks", partial(self._keep_locked, self._locks))

    def stop_pulling(self) -> None:
        """Stop pulling; messages that are here may still be handled."""
        for pq in self.queues.values():
            self._puller.end(pq)

    async def leave(self) -> None:
        """Commit every queue for the last time; closing the instance unregisters the group. Failed commits are logged."""
        # These have left ``queues``, and no others will: see ``_revoke``. One that waits for its handler is still there, and settled here.
        await self._releases_begun()
        try:
            await self._store.settle(list(self.queues.values()))
        except SprocketError as e:
            log.warning("consumer group %s: offsets not committed at close: %s", self.group, e)
        if self._locks is not None:
            # Also those that were granted for queues whose start is not known yet. A release unlocks when it has committed.
            await self._locks.close()
            released = {pq.queue for pq, release in self._releases.items() if release.idle.done()}
            await self._locks.unlock([queue for queue in self._locks.leases.queues if queue not in released])
            await self._releases_begun()  # of handlers that have ended meanwhile

    async def _releases_begun(self) -> None:
        """Wait for the releases of queues that no handler has messages of any more."""
        while releasing := [release.task for release in self._releases.values() if release.idle.done()]:
            await asyncio.wait(releasing)

    async def end(self) -> None:
        """Drop every queue: what handlers still do with its messages has no effect. Closes the offset store."""
        for pq in self.queues.values():
            pq.dropped = True
        await self._store.close()
        for pq in self.queues.values():
            pq.forget()

    # --- balance ---

    def rebalance_soon(self) -> None:
        """Balance the queues again now, without waiting for the period to end, or for the previous owners of queues that are coming."""
        self._rebalance_now.set()
        for pause in self._pauses:
            if not pause.done():
                pause.set_result(None)

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
            held: dict[str, list[ProcessQueue]] = {topic: [] for topic in self.subscriptions}
            for queue, pq in self.queues.items():
                held[queue.topic].append(pq)
            balanced = True
            topics = list(held)
            for first in range(0, len(topics), TOPICS_AT_A_TIME):
                together = topics[first : first + TOPICS_AT_A_TIME]
                self._listed.clear()
                balanced = all(await all_of(self._balance(topic, held[topic]) for topic in together)) and balanced
                if self._instance.state != OPEN:
                    return
            if balanced and self._has_peers and self._instance.clock.monotonic() >= self._compare_at:
                self._compare_at = self._instance.clock.monotonic() + COMPARE_S
                await self.check.compare()
            timer = self._instance.timers.call_later(REBALANCE_S if balanced else REBALANCE_RETRY_S, self._rebalance_now.set)
            await self._rebalance_now.wait()
            timer.cancel()

    async def _balance(self, topic: str, held: list[ProcessQueue]) -> bool:
        """Balance one topic and report problems. Returns False when it should be tried again soon."""
        try:
            balanced = await self._rebalance(topic, held)
        except ClientClosed:
            return False
        except AccessRefused as e:
            self._report(topic, str(e), self._instance.level_of(e))
            return True  # tried again after the usual time: brokers limit refusals
        except SprocketError as e:
            self._report(topic, str(e), self._instance.level_of(e))
            return False
        except Exception as e:  # noqa: BLE001 - whatever is wrong with one topic, the others are balanced
            self._report(topic, f"{type(e).__name__}: {e}", logging.ERROR, e)
            return False
        if balanced:
            self._problems.pop(topic, None)
        return balanced

    async def _rebalance(self, topic: str, held: list[ProcessQueue]) -> bool:
        """Take over and release queues of ``topic`` as planned. Returns whether the member has what the plan gives it.

        ``held`` are the queues of the topic that the member had as the round began; only rounds add any.
        """
        route = self._instance.routes.get(topic) or await self._instance.fetch_route(topic)
        if route is None:
            # The group's retry topic appears a moment after the first heartbeat.
            if topic not in self._unknown_topics and not topic.startswith(RETRY_PREFIX):
                self._unknown_topics.add(topic)
                log.warning("consumer group %s: topic %s does not exist yet, waiting for it", self.group, topic)
            return False
        everything = route.subscribe_queues
        wanted = list(everything)
        listed, left = True, False
        if self._share is not None:
            members = await self._members(route)
            if not members:
                return False
            me = self._instance.client_id
            listed = me in members
            wanted = plan_assignment(everything, members, me, self._share)
            self._has_peers = has_peers = len(members) > 1
            left = topic in self._shared and not has_peers
            (self._shared.add if has_peers else self._shared.discard)(topic)
        chosen = set(wanted)
        going = [pq for pq in held if pq.queue not in chosen and self.queues.get(pq.queue) is pq]
        await all_of(self._revoke(pq) for pq in going)
        coming = mine = [queue for queue in wanted if queue not in self.queues]
        if self._locks is not None:
            mine = await self._lock(self._locks, coming)
        elif not await self._handed_over(topic, coming, HANDOVER_S if self._has_peers or left else 0.0):
            return False
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in mine:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        async with self._taking_over:
            added = all(await all_of(self._take_over(queues) for queues in by_broker.values()))
        if not listed:
            await self._instance.heartbeat_now()
            return False
        # A queue that the plan gives back while it is being released is taken over again when that has ended.
        return len(mine) == len(coming) and added and all(pq.queue.topic != topic for pq in self._releases)

    async def _handed_over(self, topic: str, coming: list[MessageQueue], grace_s: float) -> bool:
        """Wait until ``coming`` have been this member's for ``grace_s``. Returns False, at once, when there may be another plan by now.

        The round that makes it may have to release queues, whose next owners wait no longer than this member would.
        """
        if not coming:
            self._coming.pop(topic, None)
            return True
        now = self._instance.clock.monotonic
        before = self._coming.get(topic, {})
        self._coming[topic] = since = {queue: before.get(queue, now()) for queue in coming}
        rest = max(since.values()) + grace_s - now()
        if rest <= 0:
            return True
        if not self._rebalance_now.is_set():
            pause: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            timer = self._instance.timers.call_later(rest, lambda: None if pause.done() else pause.set_result(None))
            self._pauses.add(pause)
            try:
                await pause
            finally:
                self._pauses.discard(pause)
                timer.cancel()
        return not self._rebalance_now.is_set()

    def _report(self, topic: str, problem: str, level: int = logging.WARNING, unexpected: BaseException | None = None) -> None:
        # A lasting problem comes up each second: only its first report is a warning.
        if self._problems.get(topic) == problem:
            level = logging.DEBUG
        self._problems[topic] = problem
        log.log(level, "consumer group %s: %s not balanced: %s", self.group, topic, problem, exc_info=unexpected)

    async def _members(self, route: Route) -> list[str]:
        error: SprocketError | None = None
        for name in route.addresses:
            address = route.address(name)
            if address is None:
                continue
            async with self._listing:
                listed = self._listed.get(address)
                if listed is None:
                    listed = self._listed[address] = await self._ask_members(address)
            if isinstance(listed, SprocketError):
                error = listed
            elif listed:
                return listed
        if error is not None:
            raise error
        return []

    async def _ask_members(self, address: str) -> list[str] | SprocketError:
        """Return the client ids of the group that a broker knows, or why it did not answer."""
        try:
            response = await self._instance.ask(
                address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=to_ext(ConsumerGroupRequest(self.group))
            )
        except SprocketError as e:
            return e
        if response.code == ResponseCode.SUCCESS:
            return ConsumerIdList.decode(response.body).consumer_id_list
        if response.code == ResponseCode.NO_PERMISSION:
            return response_error(response, address)
        # The broker knows no member of the group: our heartbeat has not arrived.
        await self._instance.heartbeat_now()
        return []

    async def _take_over(self, queues: Collection[MessageQueue]) -> bool:
        """Open ``queues``, all of one broker, at their start offsets. Returns whether all of them have a start offset."""
        starts = await quick_starts(self._store, self._offsets, queues, self._consume_from)
        for queue, offset in starts.items():
            self._open(queue, offset)
        return all(await all_of(self._take_over_one(queue) for queue in queues if queue not in starts)) and self._instance.state == OPEN

    async def _take_over_one(self, queue: MessageQueue) -> bool:
        try:
            offset = await start_offset(self._store, self._offsets, queue, self._consume_from)
        except ClientClosed:
            return False
        except SprocketError as e:
            log.log(self._instance.level_of(e), "consumer group %s: no start offset for %s yet: %s", self.group, queue, e)
            return False
        self._open(queue, offset)
        return True

    def _open(self, queue: MessageQueue, offset: int) -> None:
        if self._instance.state == OPEN:
            pq = self.queues[queue] = self._open_queue(queue, offset)
            self._puller.begin(pq)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message of ``queue`` stored at ``timestamp_ms`` or later; its end when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)

    @property
    def pulled(self) -> list[ProcessQueue]:
        """The queues that should be pulled: all that are not being released."""
        return [pq for pq in self.queues.values() if pq not in self._releases]

    # --- releasing queues ---

    async def _revoke(self, pq: ProcessQueue) -> None:
        """Release a queue. Returns when its offset is committed; for an orderly group at once, as a handler may take long.

        A member that closes releases none any more, as ``leave`` would not wait for it: there it is settled with the others.
        """
        if pq in self._releases or self._instance.state != OPEN:
            return
        if self._locks is None and self._store.settled(pq):
            self._drop(pq)
            return
        release = self._releases[pq] = _Release(asyncio.get_running_loop().create_future())
        self._puller.end(pq)
        if self._locks is None:
            release.handler_ended()  # handlers of other groups may go on: their batches no longer count
            self._drop(pq)
        else:
            self.batch_ended(pq)
        release.task = self._instance.spawn(self._release(pq, release), f"release of {pq.queue}")
        release.task.add_done_callback(lambda _: self._released(pq))
        if self._locks is None:
            await settled(release.task)

    async def _release(self, pq: ProcessQueue, release: _Release) -> None:
        await release.idle
        if self._locks is not None:
            if pq.dropped:
                return  # the lock was lost meanwhile
            self._drop(pq)
        try:
            await self._store.settle([pq])
        except SprocketError as e:
            log.warning("consumer group %s: offset of %s not committed when it was released: %s", self.group, pq.queue, e)
        if self._locks is not None:
            await self._locks.unlock([pq.queue])  # last: the next owner reads the committed offset

    def _released(self, pq: ProcessQueue) -> None:
        self._releases.pop(pq, None)
        if self._locks is not None:
            self.rebalance_soon()

    def batch_ended(self, pq: ProcessQueue) -> None:
        """Record that a handler has finished a batch of ``pq``."""
        release = self._releases.get(pq)
        if release is not None and not pq.busy:
            release.handler_ended()

    def _drop(self, pq: ProcessQueue) -> None:
        pq.dropped = True
        del self.queues[pq.queue]
        self._puller.end(pq)

    # --- order ---

    def may_take(self, pq: ProcessQueue) -> bool:
        """Whether messages of ``pq`` may be handed out now."""
        return self._locks is None or (self._locks.leases.holds(pq.queue) and pq not in self._releases)

    async def _lock(self, locks: MemberLocks, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Return those of ``queues`` that are locked for this member; the others are requested again soon."""
        result = await locks.lock(queues)
        for queue in result.refused:
            log.debug("consumer group %s: %s is still locked by another member", self.group, queue)
        for queue, error in result.unknown.items():
            self._report(queue.topic, f"{queue} cannot be locked: {error or 'its broker has no master now'}")
        if self._instance.state != OPEN:
            return []  # ``leave`` releases what was granted
        return [queue for queue in queues if queue in result.kept or queue in result.taken]

    async def _keep_locked(self, locks: MemberLocks) -> None:
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

    async def _regained(self, locks: MemberLocks, pq: ProcessQueue) -> None:
        """Find out whether another member consumed ``pq`` while its lock had expired."""
        try:
            committed = await self._store.committed(pq.queue, zero_if_young=False)
        except SprocketError as e:
            log.warning("consumer group %s: %s stays suspended: %s", self.group, pq.queue, e)
            locks.leases.drop(pq.queue)
        else:
            if committed is not None and committed > pq.commit_offset:
                self._lost(pq, "another member consumed it meanwhile")

    def _lost(self, pq: ProcessQueue, why: str) -> None:
        """Drop a queue that another member has locked. Its offset is not committed: it is the other member's now."""
        if pq.dropped:
            return
        log.warning("consumer group %s: lost the lock of %s: %s", self.group, pq.queue, why)
        self._drop(pq)
        release = self._releases.get(pq)
        if release is not None:
            release.handler_ended()
        self.rebalance_soon()

    # --- commits ---

    async def commit_all(self) -> None:
        """Commit what has been consumed and return when it is stored. Raises the first error; all other queues are committed."""
        await self._store.commit(list(self.queues.values()))

    async def commit_behind(self) -> None:
        """Commit what has been consumed without waiting for the brokers, as the member does every 5 s."""
        await self._store.commit_behind(list(self.queues.values()))
