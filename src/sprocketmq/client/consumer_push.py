"""The push consumer: a member of a group that shares a topic's queues among its members (client-behaviour, section 9).

Pulling, flow control and commits run in the background; messages come out of ``batches()`` or go into a handler.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from sprocketmq.client.instance import CLOSING, OPEN, Instance
from sprocketmq.client.offsets import Offsets
from sprocketmq.client.process_queue import Limits, ProcessQueue, ReceivedBatch
from sprocketmq.client.pulling import DEFAULT_MAX_BYTES, PullResult, PullStatus, pull_header, read_pull, subscription_tags
from sprocketmq.client.rebalance import plan_assignment
from sprocketmq.client.routes import MASTER_ID, Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import BrokerError, ConfigError, SprocketError, TopicNotFound
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import ConsumerData, ConsumerIdList, build_subscription
from sprocketmq.protocol.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import ConsumerGroupRequest, UpdateConsumerOffset
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_topic

log = logging.getLogger(__name__)

REBALANCE_S = 20.0
REBALANCE_RETRY_S = 1.0
COMMIT_S = 5.0
# How often a commit that an older one has overtaken is repeated.
SETTLE_TRIES = 3
SUSPEND_MS = 15_000
PULL_TIMEOUT_S = 30.0
PULL_PAUSE_S = 1.0
# A failed batch waits 1, 2, 4 ... seconds, at most this, before it is handed out again.
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
# A broker may refuse a group for a moment, as it has not heard of it yet; after this many times in a row it means it.
REFUSALS = 5
CLOSE_GRACE_S = 10.0

MAX_BATCH = 1024
MAX_PULL_BYTES = 4 << 20

_NOT_KNOWN_YET = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
)
_FOR_GOOD = _NOT_KNOWN_YET | {ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}

Handler = Callable[[ReceivedBatch], Awaitable[Any] | None]
ConsumeFrom = Literal["last", "first"] | float


class PushConsumer:
    """A member of consumer group ``group``: each queue of the subscribed topics is consumed by one member at a time.

    ``subscriptions`` maps topics to ``"*"`` or ``"tag || tag"``; a topic's name or several mean everything of them. All members of a group
    must subscribe to the same. ``consume_from`` says where a group without a committed offset starts: ``"last"`` (new messages; a young
    queue is read from its beginning, as brokers count it as new), ``"first"``, or epoch seconds. ``batch_max`` bounds the messages of
    one batch, and raises the pull size with it. Pulling of a queue pauses while more than ``max_cached`` messages or ``max_cached_bytes``
    of it wait here, or while its offsets span more than ``max_span`` (at least two batches are always let in).

    **Delivery** is at least once. A batch counts as consumed when its handler returns or its loop body ends. When a handler raises, the
    same batch is handed out again after 1, 2, 4 ... up to 30 seconds, without end; nothing after it is committed meanwhile, and once
    ``max_span`` is reached the queue waits for it. So a message that can never be handled must be caught by the handler. Offsets are
    committed every 5 seconds, when a queue goes to another member, and at close; after a crash what was not committed comes again.

    Topics that do not exist yet are looked for until they do. A broker's lasting refusal (bad expression, no permission, group not
    allowed) ends ``batches()`` and ``listen()`` with its BrokerError.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, str] | Iterable[str] | str,
        *,
        namesrv: str | Sequence[str] | None = None,
        consume_from: ConsumeFrom = "last",
        batch_max: int = 32,
        max_cached: int = 1000,
        max_cached_bytes: int = 100 << 20,
        max_span: int = 2000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.group = check_group(group)
        if isinstance(subscriptions, str):
            subscriptions = (subscriptions,)
        if not isinstance(subscriptions, Mapping):
            subscriptions = dict.fromkeys(subscriptions, "*")
        if not subscriptions:
            raise ConfigError("subscribe to at least one topic")
        if not 1 <= batch_max <= MAX_BATCH:
            raise ConfigError(f"batch_max must be from 1 to {MAX_BATCH}, not {batch_max}")
        if min(max_cached, max_cached_bytes, max_span) < 1:
            raise ConfigError("max_cached, max_cached_bytes and max_span must be 1 or more")
        self._from_where = _from_where(consume_from)
        self._consume_from = consume_from
        version = clock.time_ms()
        self._subscriptions = {check_topic(topic): build_subscription(topic, text, version) for topic, text in subscriptions.items()}
        self._tags = {topic: subscription_tags(subscription) for topic, subscription in self._subscriptions.items()}
        self._batch_max = batch_max
        self._pull_messages = max(32, batch_max)
        self._pull_bytes = min(MAX_PULL_BYTES, DEFAULT_MAX_BYTES * self._pull_messages // 32)
        self._limits = Limits(max(max_cached, 2 * batch_max), max_cached_bytes, max(max_span, 2 * batch_max))
        self._instance = Instance(namesrv, kind="PushConsumer", clock=clock, on_request=self._on_request, on_route=self._on_route)
        self._instance.consumers = self._describe
        self._offsets = Offsets(self._instance)
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._room: dict[MessageQueue, asyncio.Future[None]] = {}
        self._unknown: set[str] = set()
        self._ready: deque[ProcessQueue] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._listeners: set[asyncio.Task[None]] = set()
        self._failure: SprocketError | None = None
        self._rebalance_now = asyncio.Event()

    # --- life ---

    async def start(self) -> None:
        """Join the group and start pulling. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is no nameserver."""
        if self._instance.state == OPEN:
            return
        await self._instance.start()
        try:
            for topic in self._subscriptions:
                try:
                    await self._instance.fetch_route(topic)
                except SprocketError as e:
                    log.warning("consumer group %s: no route of %s yet: %s", self.group, topic, e)
            await self._instance.heartbeat_soon()
        except BaseException:
            await self._instance.close()
            raise
        self._instance.spawn(self._keep_balanced())
        self._instance.every(COMMIT_S, self._commit_behind)

    async def close(self) -> None:
        """Take no more, let running handlers end (10 s), commit, leave the group, disconnect. Batches not consumed come again elsewhere."""
        try:
            if self._instance.state == OPEN:
                self._instance.state = CLOSING
                await self._wind_up()
        finally:
            for pq in self._queues.values():
                pq.dropped = True
            await self._instance.close()

    async def _wind_up(self) -> None:
        self._wake_takers()
        for pull in self._pulls.values():
            pull.cancel()
        if self._listeners:
            _, late = await asyncio.wait(self._listeners, timeout=CLOSE_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        try:
            await _all(self._settle(pq) for pq in self._queues.values())
        except SprocketError as e:
            log.warning("consumer group %s: offsets not committed at close: %s", self.group, e)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # --- consuming ---

    def batches(self) -> "Batches":
        """Iterate over batches of up to ``batch_max`` messages, each of one queue and in its order; ends when the consumer is closed.

        A batch counts as consumed when the loop comes back for the next one. Leaving the loop by ``break`` or an exception does not count:
        the batch is handed out again, here at once or after a restart; call ``batch.ack()`` before ``break``. Several tasks may iterate.
        """
        self._instance.check()
        return Batches(self)

    def listen(self, handler: Handler, *, concurrency: int = 20) -> "asyncio.Task[None]":
        """Have ``handler(batch)``, a function or coroutine function, called for every batch, up to ``concurrency`` at a time.

        Starts at once and returns the task that runs until the consumer is closed; awaiting it raises what ended it earlier. Batches of one
        queue may be handled side by side and end in any order. A plain function runs on the event loop and must not block.
        """
        self._instance.check()
        if concurrency < 1:
            raise ConfigError(f"concurrency must be 1 or more, not {concurrency}")
        task = asyncio.ensure_future(self._listen(handler, concurrency))
        self._listeners.add(task)
        task.add_done_callback(self._listeners.discard)
        return task

    async def _listen(self, handler: Handler, concurrency: int) -> None:
        workers = [asyncio.ensure_future(self._work(handler)) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, handler: Handler) -> None:
        while (batch := await self._take()) is not None:
            try:
                result = handler(batch)
                if result is not None:
                    await result
            except Exception as e:
                self._failed(batch, e)
            except BaseException:
                self._give_back(batch)
                raise
            else:
                self._ack(batch)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member consumes now, sorted."""
        return sorted(self._queues)

    async def commit(self) -> None:
        """Commit what has been consumed so far and return when the brokers have it. Raises the first broker's error; others are committed."""
        self._instance.check()
        await self._commit_all()

    async def _commit_all(self) -> None:
        await _all(self._commit_queue(pq) for pq in self._queues.values())

    # --- handing out ---

    async def _take(self) -> ReceivedBatch | None:
        """Return the next batch, None when the consumer is closed. Raises what ended it."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._instance.state != OPEN:
                return None
            while self._ready:
                pq = self._ready.popleft()
                batch = None if pq.dropped else pq.take(self._batch_max)
                if batch is not None:
                    if pq.ready:
                        self._offer(pq)
                    return batch
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._wake_one()  # it was woken for a batch that it will not take
                raise

    def _offer(self, pq: ProcessQueue) -> None:
        # One entry a queue and turn, so that queues are served in turn; a spare entry finds nothing and is dropped.
        self._ready.append(pq)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._takers:
            waiter = self._takers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_takers(self) -> None:
        for waiter in self._takers:
            if not waiter.done():
                waiter.set_result(None)
        self._takers.clear()

    def _ack(self, batch: ReceivedBatch) -> None:
        pq = self._queues.get(batch.queue)
        if pq is not None and pq.ack(batch) and not pq.full:
            self._open_room(batch.queue)

    def _open_room(self, queue: MessageQueue) -> None:
        waiter = self._room.pop(queue, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _give_back(self, batch: ReceivedBatch) -> None:
        pq = self._queues.get(batch.queue)
        if pq is not None and pq.give_back(batch):
            self._offer(pq)

    def _failed(self, batch: ReceivedBatch, error: Exception) -> None:
        delay = min(RETRY_MAX_S, RETRY_FIRST_S * 2**batch.attempts)
        batch.attempts += 1
        log.error(
            "consumer group %s: a handler failed for %d messages of %s from offset %d; they come again in %g s",
            self.group,
            len(batch),
            batch.queue,
            batch[0].queue_offset,
            delay,
            exc_info=error,
        )
        self._instance.timers.call_later(delay, lambda: self._give_back(batch))

    def _fail(self, error: SprocketError) -> None:
        if self._failure is None:
            log.error("consumer group %s ends: %s", self.group, error)
            self._failure = error
            self._wake_takers()

    # --- pulling ---

    async def _pull_loop(self, pq: ProcessQueue) -> None:
        queue = pq.queue
        tags = self._tags[queue.topic]
        timers = self._instance.timers
        broker_id = MASTER_ID
        refusals = 0
        failing = False
        while not pq.dropped:
            if pq.full:
                waiter = self._room[queue] = asyncio.get_running_loop().create_future()
                await waiter
                continue
            commit = pq.commit_offset
            try:
                response, address = await self._pull(pq, commit, broker_id)
                if response.code in _FOR_GOOD:
                    refusals += 1
                    error = BrokerError(response.code, response.remark, address=address)
                    if refusals >= REFUSALS:
                        self._fail(error)
                        return
                    if response.code in _NOT_KNOWN_YET:
                        await self._instance.heartbeat_soon()
                    raise error
                result = read_pull(response, address, queue, pq.next_offset, tags)
                messages = result.messages
            except SprocketError as e:
                # Once for each outage: every queue comes by here each second while it lasts.
                level = logging.DEBUG if failing else logging.WARNING
                log.log(level, "consumer group %s: pull of %s failed, again every %g s: %s", self.group, queue, PULL_PAUSE_S, e)
                failing = True
                if isinstance(e, TopicNotFound):
                    self._rebalance_now.set()
                await timers.sleep(PULL_PAUSE_S)
                continue
            refusals = 0
            failing = False
            if commit and broker_id == MASTER_ID:
                pq.persisted = max(pq.persisted, commit)
            broker_id = result.suggested_broker_id
            if result.status is PullStatus.OFFSET_MOVED:
                await self._offset_moved(pq, result)
                return
            pq.put(messages, len(result.body), result.next_offset)
            if messages:
                self._offer(pq)

    async def _pull(self, pq: ProcessQueue, commit: int, broker_id: int) -> tuple[Command, str]:
        queue = pq.queue
        header = pull_header(
            self.group,
            queue,
            pq.next_offset,
            max_messages=self._pull_messages,
            max_bytes=self._pull_bytes,
            sys_flag=PULL_SUSPEND | (PULL_COMMIT_OFFSET if commit and broker_id == MASTER_ID else 0),
            commit_offset=commit,
            suspend_ms=SUSPEND_MS,
            subscription=self._subscriptions[queue.topic],
        )
        return await self._instance.ask_broker(
            queue.topic, queue.broker_name, RequestCode.PULL_MESSAGE, ext=header, broker_id=broker_id, timeout_s=PULL_TIMEOUT_S
        )

    async def _offset_moved(self, pq: ProcessQueue, result: PullResult) -> None:
        """Go on where the broker says: its queue begins later, ends earlier, or an operator has reset the offset."""
        log.warning(
            "consumer group %s: offset %d of %s is out of range, going on at %d", self.group, pq.next_offset, pq.queue, result.next_offset
        )
        try:
            await self._offsets.commit(self.group, pq.queue, result.next_offset)
        except SprocketError as e:
            log.warning("consumer group %s: offset of %s not committed: %s", self.group, pq.queue, e)
        if not pq.dropped:
            self._drop(pq)
            self._rebalance_now.set()

    # --- balance ---

    def _describe(self) -> list[ConsumerData]:
        return [ConsumerData(self.group, consume_from_where=self._from_where, subscription_data_set=list(self._subscriptions.values()))]

    def _on_request(self, conn: Connection, command: Command) -> None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance_now.set()

    def _on_route(self, route: Route) -> None:
        self._rebalance_now.set()

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
            if topic not in self._unknown:
                self._unknown.add(topic)
                log.warning("consumer group %s: topic %s does not exist yet, waiting for it", self.group, topic)
            return False
        members = await self._members(route)
        if not members:
            return False
        me = self._instance.client_id
        wanted = plan_assignment(route.subscribe_queues, members, me)
        for pq in [pq for queue, pq in self._queues.items() if queue.topic == topic and queue not in wanted]:
            await self._revoke(pq)
        added = await asyncio.gather(*(self._assign(queue) for queue in wanted if queue not in self._queues))
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
        pq = self._queues[queue] = ProcessQueue(queue, offset, self._limits, self._ack)
        self._pulls[queue] = self._instance.spawn(self._pull_loop(pq))
        return True

    async def _start_offset(self, queue: MessageQueue) -> int:
        at_time = not isinstance(self._consume_from, str)
        # With a start time, a young queue must not be taken for a committed 0.
        offset = await self._offsets.committed(self.group, queue, zero_if_young=not at_time)
        if offset is not None:
            return offset
        if self._consume_from == "first":
            return 0
        if isinstance(self._consume_from, str):
            return await self._offsets.max_offset(queue)
        return await self._offsets.offset_at(queue, round(self._consume_from * 1000))

    async def _revoke(self, pq: ProcessQueue) -> None:
        self._drop(pq)
        try:
            await self._settle(pq)
        except SprocketError as e:
            log.warning("consumer group %s: offset of %s not committed when it was given up: %s", self.group, pq.queue, e)

    def _drop(self, pq: ProcessQueue) -> None:
        pq.dropped = True
        del self._queues[pq.queue]
        self._room.pop(pq.queue, None)
        pull = self._pulls.pop(pq.queue)
        if pull is not asyncio.current_task():
            pull.cancel()

    # --- commits ---

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
        for pq in list(self._queues.values()):
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


class Batches:
    """The iterator of ``PushConsumer.batches``: coming back for more acknowledges the batch before, letting go of it gives that back.

    A class and not a generator, as a generator that a loop leaves is closed some turns of the event loop later.
    """

    __slots__ = ("_batch", "_consumer")

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._batch: ReceivedBatch | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedBatch:
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._consumer._ack(batch)
        taken = await self._consumer._take()
        if taken is None:
            raise StopAsyncIteration
        self._batch = taken
        return taken

    async def aclose(self) -> None:
        """Give back the batch that was not acknowledged."""
        self._let_go()

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._consumer._give_back(batch)


def _from_where(consume_from: ConsumeFrom) -> str:
    if consume_from == "last":
        return "CONSUME_FROM_LAST_OFFSET"
    if consume_from == "first":
        return "CONSUME_FROM_FIRST_OFFSET"
    if type(consume_from) in (int, float) and float(consume_from) >= 0:
        return "CONSUME_FROM_TIMESTAMP"
    raise ConfigError(f"consume_from must be 'last', 'first' or epoch seconds, not {consume_from!r}")
