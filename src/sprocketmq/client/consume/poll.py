"""Polling of the queues assigned to a pull consumer, by hand or by its group: background pulls, positions, commits."""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Mapping

from sprocketmq.client.consume.consumer_stats import ConsumerStats, consumer_stats
from sprocketmq.client.consume.group_member import COMMIT_S, GroupMember
from sprocketmq.client.consume.offset_store import ConsumeFrom, GroupOffsets, ManualOffsets, from_where, start_offset
from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.pull_loop import PullLoops, PullSize
from sprocketmq.client.consume.rebalance import Share
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.client.hook_calls import HookCalls
from sprocketmq.client.instance import Instance
from sprocketmq.client.loop_bound import OPEN
from sprocketmq.client.stats import ConsumerCounts
from sprocketmq.errors import AccessRefused, ConfigError, SprocketError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import SubscriptionData
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage

log = logging.getLogger(__name__)

# Size of a background pull; the caller limits what a poll returns.
PULL_SIZE = PullSize(256, 1 << 20)


class Polling:
    """The queues of one pull consumer. Each is pulled ahead, up to 1,000 messages or 100 MiB, and returned by ``poll`` in order.

    With ``share`` the consumer is a member of its group and has its share of the queues; otherwise it has those given to ``assign``.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        *,
        consume_from: ConsumeFrom,
        auto_commit: bool,
        share: Share | None = None,
        counts: ConsumerCounts,
        hooks: HookCalls | None = None,
    ) -> None:
        self._counts = counts
        self._hooks = hooks
        from_where(consume_from)
        self._instance = instance
        self._group = group
        self._consume_from = consume_from
        self._offsets = OffsetRequests(instance)
        self._store = GroupOffsets(instance, group) if auto_commit else ManualOffsets(instance, group)
        self._limits = CacheLimits()
        self._pulls = PullLoops(
            instance,
            group,
            subscriptions,
            PULL_SIZE,
            found=self._offer,
            lost=self._rebalance_soon,
            refused=self._fail,
            denied=self._deny,
            commits=auto_commit,
            sends_subscription=True,
            counts=counts,
            hooks=hooks,
        )
        self.member: GroupMember | None = None
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        if share is not None:
            self.member = GroupMember(
                instance,
                group,
                subscriptions,
                consume_from=consume_from,
                share=share,
                store=self._store,
                locks=None,
                open_queue=self._open,
                puller=self._pulls,
                resumed=self._offer,
                actively=True,
            )
            self._queues = self.member.queues
        self._ready: deque[ProcessQueue] = deque()
        self._polled: list[ReceivedBatch] = []
        self._waiter: asyncio.Future[None] | None = None
        self._failure: SprocketError | None = None
        # The last refusal of a pull that will be tried again.
        self._denial: AccessRefused | None = None

    # --- life ---

    async def begin(self) -> None:
        """Join the group, or start committing the queues given by hand."""
        if self.member is not None:
            await self.member.join()
        else:
            self._instance.every(COMMIT_S, lambda: self._store.commit_behind(list(self._queues.values())), "commits")
        self._pulls.watch(self._queues.values)

    async def end(self) -> None:
        """Stop pulling; commit what was consumed, unless only the caller commits."""
        for pq in self._queues.values():
            self._pulls.end(pq)
        if self._instance.state == OPEN:
            try:
                await self._store.settle(list(self._queues.values()))
            except SprocketError as e:
                log.warning("pull consumer: offsets not committed at close: %s", e)
        for pq in self._queues.values():
            pq.dropped = True
            pq.forget()
        self._wake()

    def stats(self) -> ConsumerStats:
        """Return the state of each queue."""
        queues = [self._pulls.stats(self._queues[queue]) for queue in self.assignment]
        return consumer_stats(self._group, queues, self._failure, self._counts, self._hooks)

    # --- which queues ---

    @property
    def assignment(self) -> list[MessageQueue]:
        return sorted(self._queues)

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """Own exactly ``queues``. Known ones keep their position; new ones start at the committed offset, or by ``consume_from``."""
        going = [pq for queue, pq in self._queues.items() if queue not in queues]
        for pq in going:
            pq.dropped = True
            del self._queues[pq.queue]
            self._pulls.end(pq)
        await self._store.settle(going)
        coming = [queue for queue in dict.fromkeys(queues) if queue not in self._queues]
        starts = await all_of(start_offset(self._store, self._offsets, queue, self._consume_from) for queue in coming)
        for queue, offset in zip(coming, starts, strict=True):
            pq = self._queues[queue] = self._open(queue, offset)
            self._pulls.begin(pq)

    def _open(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        return ProcessQueue(queue, offset, self._limits, lambda _: None)

    def _rebalance_soon(self) -> None:
        if self.member is not None:
            self.member.rebalance_soon()

    # --- polling ---

    async def poll(self, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        """Return up to ``max_messages`` messages of one queue, none after ``timeout_s``. Earlier polls count as consumed now.

        When nothing is ready and a broker has refused a pull of this client, raises that error; pulls go on.
        """
        if self._waiter is not None:
            raise ConfigError("another task polls this consumer now: one task polls at a time, as each poll acknowledges the one before")
        self.consume()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if self._failure is not None:
                raise self._failure
            batch = self._take(max_messages)
            if batch is not None:
                self._polled.append(batch)
                return list(batch)
            denial, self._denial = self._denial, None
            if denial is not None:
                raise denial
            remaining = deadline - loop.time()
            if remaining <= 0 or self._instance.state != OPEN:
                return []
            self._waiter = loop.create_future()
            try:
                async with asyncio.timeout(remaining):
                    await self._waiter
            except TimeoutError:
                continue
            finally:
                self._waiter = None

    def _take(self, max_messages: int) -> ReceivedBatch | None:
        while self._ready:
            pq = self._ready.popleft()
            batch = None if pq.dropped else pq.take(max_messages, self._instance.clock.monotonic())
            if batch is not None:
                if pq.ready:
                    self._ready.append(pq)
                return batch
        return None

    def take_back(self) -> None:
        """Return the messages of the last poll again in a later one: its caller did not get them."""
        polled, self._polled = self._polled, []
        for batch in polled:
            if batch.queue in self._queues and self._instance.state == OPEN:
                self.seek(batch.queue, batch.delivered[0].queue_offset)

    def consume(self) -> None:
        """Count everything that was polled as consumed."""
        polled, self._polled = self._polled, []
        for batch in polled:
            self._finish(batch)

    def _finish(self, batch: ReceivedBatch) -> None:
        self._counts.handled(len(batch.delivered), self._instance.clock.monotonic() - batch.taken_at)
        pq = self._queues.get(batch.queue)
        if pq is not None:
            pq.finish(batch)
            if not pq.full:
                self._pulls.go_on(pq)

    async def commit(self) -> None:
        """Commit everything that was polled, and return when the brokers have it."""
        self.consume()
        await self._store.commit(list(self._queues.values()))

    def _offer(self, pq: ProcessQueue) -> None:
        self._denial = None
        if pq.ready:
            self._ready.append(pq)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _deny(self, error: AccessRefused) -> None:
        self._denial = error
        self._wake()

    def _fail(self, error: SprocketError) -> None:
        if self._failure is None:
            log.error("consumer group %s ends: %s", self._group, error)
            self._failure = error
        self._wake()

    # --- positions and pauses ---

    def assigned(self, queues: Collection[MessageQueue]) -> list[ProcessQueue]:
        """Return the process queues of ``queues`` (none: all). Raises ConfigError for one that is not assigned."""
        for queue in queues:
            if queue not in self._queues:
                raise ConfigError(f"{queue} is not assigned to this consumer now (it has {len(self._queues)} queues, see 'assignment')")
        return [self._queues[queue] for queue in queues or self.assignment]

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset``; cached messages of the queue are dropped."""
        (pq,) = self.assigned([queue])
        pq.seek(offset)
        self._pulls.end(pq)
        self._pulls.begin(pq)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        for pq in self.assigned(queues):
            pq.paused = True

    def resume(self, queues: Collection[MessageQueue]) -> None:
        for pq in self.assigned(queues):
            pq.paused = False
            self._pulls.go_on(pq)
            self._offer(pq)
