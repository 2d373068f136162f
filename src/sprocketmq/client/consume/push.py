"""The push consumer: a member of a group that shares a topic's queues among its members (client-behaviour, section 9).

Pulling, flow control and commits run in the background; messages come out of ``batches()`` or go into a handler. Here is what users call,
the handing out of batches, and what becomes of them when a handler is through with them.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from sprocketmq.client.arguments import check_number
from sprocketmq.client.consume.broker_requests import BrokerRequests
from sprocketmq.client.consume.consumer_stats import ConsumerStats
from sprocketmq.client.consume.give_backs import SendBack
from sprocketmq.client.consume.group_member import ConsumeFrom, GroupMember
from sprocketmq.client.consume.offset_files import LocalOffsets
from sprocketmq.client.consume.offsets import GroupOffsets
from sprocketmq.client.consume.orderly import QueueLocks
from sprocketmq.client.consume.process_queue import BEHIND, DEAD_LETTER, Limits, ProcessQueue, ReceivedBatch
from sprocketmq.client.consume.pull_loop import PullLoops, PullSize
from sprocketmq.client.consume.pull_requests import DEFAULT_MAX_BYTES, read_subscriptions
from sprocketmq.client.consume.rebalance import Rebalance, read_strategy
from sprocketmq.client.instance import CLOSING, OPEN, Instance
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.routes import Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, SprocketError
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import ConsumeDirectlyResult, build_subscription
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX, check_group
from sprocketmq.protocol.records import ReceivedMessage

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 10.0
# A message that no broker took back is handed out again here after this time.
LOCAL_RETRY_S = 5.0
# Delay level of messages whose handler ran too long.
TIMED_OUT_LEVEL = 3
# Retries before a message is a dead letter, unless told otherwise; orderly ones go on for ever.
MAX_RECONSUME_TIMES = 16
UNLIMITED = 2**31 - 1

# While batches wait, taking one lets the event loop's other work run this often: pulls, heartbeats, the program's own tasks.
BREATHE_S = 0.02

MAX_BATCH = 1024
# Messages asked for at once, however small the batches are; brokers have limits of their own (Apache's gives 32 unless told otherwise).
PULL_MESSAGES = 512
BYTES_A_MESSAGE = 8192
MAX_PULL_BYTES = 4 << 20

Handler = Callable[[ReceivedBatch], Awaitable[Any] | Any]
Mode = Literal["clustering", "broadcasting"]


class PushConsumer(Client):
    """A member of consumer group ``group``: each queue of the subscribed topics is consumed by one member at a time.

    ``subscriptions`` maps topics to ``"*"`` or ``"tag || tag"``; a topic's name or several mean everything of them. All members of a group
    must subscribe to the same. ``consume_from`` says where a group without a committed offset starts: ``"last"`` (new messages; a young
    queue is read from its beginning, as brokers count it as new), ``"first"``, or epoch seconds. ``batch_max`` (1 to 1024) bounds the
    messages of one batch, and raises the pull size with it. Pulling of a queue pauses while more than ``max_cached`` messages or
    ``max_cached_bytes`` of it wait here, or while its offsets span more than ``max_span`` (at least two batches are always let in).

    **Delivery** is at least once. A batch counts as consumed when its handler returns or its loop body ends, but for messages given to
    ``batch.retry()``: those are sent back to the broker, which delivers them again later, to any member, through the group's retry topic
    (10 s, 30 s, 1 min ... later; ``topic`` is still the one they were sent to, ``reconsume_times`` counts). After ``max_reconsume_times``
    retries (default 16) a message goes to ``%DLQ%group``. When a handler raises, every message of the batch is sent back that was not given
    to ``batch.done()``. When it takes longer than ``consume_timeout_s``, so are they, and what it does with the batch later counts for nothing
    (``batch.timed_out``). What no broker takes back is handed out again here after 5 s. Siblings of a failed message are not repeated.

    ``orderly=True`` hands out one batch of a queue at a time; when its handler raises, or gives messages to ``batch.retry()``, the same ones
    come again after ``suspend_s``, before anything after them, without limit unless ``max_reconsume_times`` is given: a message that failed
    more often goes to ``%DLQ%group``. There is no timeout. With ``mode="broadcasting"`` every member consumes every message, and one that
    fails is logged and dropped; its offsets are kept on this machine, in ``offsets_dir`` (default ``~/.rocketmq_offsets``, as of Java clients).

    ``rebalance`` says which queues are this member's: ``"average"``, ``"circle"`` or ``"consistent-hash"`` (queue for queue as Java members
    share them), a mapping of each topic to its queues, or a function of all queues of a topic, all members and this one's name. All members
    must share alike.

    Offsets are committed every 5 seconds, when a queue goes to another member, and at close, never past a message that is not consumed
    or sent back; after a crash what was not committed comes again.

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
        orderly: bool = False,
        mode: Mode = "clustering",
        max_reconsume_times: int | None = None,
        consume_timeout_s: float = 900.0,
        suspend_s: float = 1.0,
        rebalance: Rebalance = "average",
        offsets_dir: str | os.PathLike[str] | None = None,
        max_cached: int = 1000,
        max_cached_bytes: int = 100 << 20,
        max_span: int = 2000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.group = check_group(group)
        check_number("batch_max", batch_max, least=1, most=MAX_BATCH, whole=True)
        for name, value in (("max_cached", max_cached), ("max_cached_bytes", max_cached_bytes), ("max_span", max_span)):
            check_number(name, value, least=1, whole=True)
        if mode not in ("clustering", "broadcasting"):
            raise ConfigError(f"mode must be 'clustering' or 'broadcasting', not {mode!r}")
        if max_reconsume_times is not None:
            check_number("max_reconsume_times", max_reconsume_times, least=0, most=UNLIMITED, whole=True)
        check_number("consume_timeout_s", consume_timeout_s, over=0)
        check_number("suspend_s", suspend_s, over=0)
        version = clock.time_ms()
        described = read_subscriptions(subscriptions, version)
        self._broadcasting = mode == "broadcasting"
        share = read_strategy(rebalance, list(described))
        if offsets_dir is not None and not self._broadcasting:
            raise ConfigError("offsets_dir is for mode='broadcasting': the brokers keep the offsets of a group that shares its queues")
        if not self._broadcasting:
            retry_topic = RETRY_PREFIX + group
            described[retry_topic] = build_subscription(retry_topic, "*", version)
        self._orderly = orderly
        self._timeout_s = consume_timeout_s
        self._suspend_s = suspend_s
        self._batch_max = batch_max
        self._limits = Limits(max(max_cached, 2 * batch_max), max_cached_bytes, max(max_span, 2 * batch_max))
        if max_reconsume_times is None:
            max_reconsume_times = UNLIMITED if orderly else MAX_RECONSUME_TIMES
        self._max_times = max_reconsume_times
        # Two pulls fit below the limit, so that one is on its way while the other is handled.
        pull_messages = max(batch_max, min(PULL_MESSAGES, self._limits.messages // 2), 1)
        size = PullSize(pull_messages, min(MAX_PULL_BYTES, max(DEFAULT_MAX_BYTES, BYTES_A_MESSAGE * pull_messages)))
        self._clock = clock
        self._instance = Instance(
            namesrv,
            kind="PushConsumer",
            clock=clock,
            on_request=self._on_request,
            on_route=self._on_route,
        )
        self._pulls = PullLoops(
            self._instance,
            group,
            described,
            size,
            found=self._offer,
            lost=self._rebalance_soon,
            refused=self._fail,
            may_take=self._may_take,
            commits=not self._broadcasting,
        )
        locks = QueueLocks(self._instance, group) if orderly and not self._broadcasting else None
        self._member = GroupMember(
            self._instance,
            group,
            described,
            consume_from=consume_from,
            share=None if self._broadcasting else share,
            store=LocalOffsets(self._instance, group, offsets_dir) if self._broadcasting else GroupOffsets(self._instance, group),
            locks=locks,
            open_queue=self._open_queue,
            puller=self._pulls,
            resumed=self._offer_ready,
        )
        self._broker_requests = BrokerRequests(
            self._instance,
            self._member,
            locks,
            settings={
                "PROP_CONSUMEORDERLY": str(orderly).lower(),
                "consumeMessageBatchMaxSize": str(batch_max),
                "pullBatchSize": str(pull_messages),
                "pullThresholdForQueue": str(self._limits.messages),
                "consumeConcurrentlyMaxSpan": str(self._limits.span),
                "maxReconsumeTimes": str(self._max_times),
            },
            seek=self.seek,
            consume=self._consume_directly,
        )
        self._handler: Handler | None = None
        self._back = SendBack(self._instance, group, max_times=self._max_times)
        self._ready: deque[ProcessQueue] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._listeners: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._failure: SprocketError | None = None
        self._told_of_rubbish = False
        self._breathe_at = 0.0

    # --- life ---

    async def start(self) -> None:
        """Join the group and start pulling. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is no nameserver."""
        self._instance.check_loop()
        async with self._instance.changing:
            if self._instance.state == OPEN:
                return
            await self._instance.start()
            try:
                await self._member.join()
            except BaseException:
                await self._member.end()
                await self._instance.close()
                raise
            self._pulls.watch(lambda: self._member.pulled)
            if not self._orderly:
                self._instance.every(min(60.0, self._timeout_s / 4), self._check_overdue, "watch over slow handlers")

    async def close(self) -> None:
        """Take no more, let running handlers end (10 s), commit, leave the group, disconnect. Batches not consumed come again elsewhere."""
        self._instance.check_loop()
        async with self._instance.changing:
            try:
                if self._instance.state == OPEN:
                    self._instance.state = CLOSING
                    await self._wind_up()
            finally:
                try:
                    await self._member.end()
                finally:
                    await self._instance.close()

    async def _wind_up(self) -> None:
        self._wake_takers()
        self._member.stop_pulling()
        if self._listeners:
            _, late = await asyncio.wait(self._listeners, timeout=CLOSE_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._settling:
            await asyncio.wait(self._settling, timeout=CLOSE_GRACE_S)
        await self._member.leave()

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
        queue may be handled side by side and end in any order, unless the consumer is orderly. A plain function runs on the event loop and
        must not block. What the handler returns is ignored (with one warning, as it may be meant to say something).
        """
        self._instance.check()
        check_number("concurrency", concurrency, least=1, whole=True)
        if not callable(handler):
            raise ConfigError(f"the handler must be a function of a batch, not {handler!r}")
        self._handler = handler
        task = Listening(self._listen(handler, concurrency), self.group)
        self._listeners.add(task)
        task.add_done_callback(self._listened)
        return task

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Do what ``listen`` does and return when the consumer is closed: for ``TaskGroup.create_task(consumer.run(handler))``.

        When the caller is cancelled, the handlers are. Raises what ended it earlier.
        """
        await self.listen(handler, concurrency=concurrency)

    def _listened(self, task: "asyncio.Task[None]") -> None:
        self._listeners.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and error is not self._failure:
            log.error("consumer group %s: listening has ended, its handler is called no more", self.group, exc_info=error)

    async def _listen(self, handler: Handler, concurrency: int) -> None:
        workers = {asyncio.ensure_future(self._work(handler)) for _ in range(concurrency)}
        done: set[asyncio.Task[None]] = set()
        try:
            while workers:
                done, workers = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
                for worker in done:
                    if worker.cancelled():
                        log.error("consumer group %s: a call of the handler was cancelled, and not by the consumer", self.group)
                        workers.add(asyncio.ensure_future(self._work(handler)))
                    else:
                        worker.result()  # raises what ended the consumer
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, *done, return_exceptions=True)  # what ended the consumer ended several at once

    async def _work(self, handler: Handler) -> None:
        while (batch := await self._take()) is not None:
            try:
                result = handler(batch)
                if hasattr(result, "__await__"):
                    result = await result
            except Exception as e:
                self._failed(batch, e)
            except asyncio.CancelledError as e:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    self._give_back(batch)
                    raise
                self._failed(batch, e)  # not this worker was cancelled, but something that the handler waited for
            except BaseException:
                self._give_back(batch)
                raise
            else:
                if result is not None:
                    self._warn_of_rubbish(result)
                self._ack(batch)

    async def _consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Have the handler called with one message that an operator chose. It is no part of any queue: nothing is committed or sent back."""
        result = ConsumeDirectlyResult(order=self._orderly)
        if self._handler is None:
            result.consume_result = "CR_RETURN_NULL"
            result.remark = "this consumer iterates over batches() and has no handler to call: use listen()"
            return result
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        batch = ReceivedBatch([message], queue, len(message.stored_body), 0, 0, lambda _: None)
        started = self._clock.monotonic()
        try:
            returned = self._handler(batch)
            if hasattr(returned, "__await__"):
                await returned
        except Exception as e:
            log.warning("consumer group %s: a handler failed for message %s that was sent to it", self.group, message.msg_id, exc_info=e)
            result.consume_result = "CR_THROW_EXCEPTION"
            result.remark = f"{type(e).__name__}: {e}"
        else:
            if batch.to_retry(failed=False):
                result.consume_result = "CR_LATER"
        result.spent_time_mills = round((self._clock.monotonic() - started) * 1000)
        return result

    def _warn_of_rubbish(self, result: object) -> None:
        if not self._told_of_rubbish:
            self._told_of_rubbish = True
            log.warning(
                "consumer group %s: the handler returned %r, which means nothing: a batch is consumed when the handler returns;"
                " raise, or call batch.retry(message), to have messages again",
                self.group,
                result,
            )

    def stats(self) -> ConsumerStats:
        """Return how this member is doing: each queue that it holds, and for how long and why one of them is not pulled."""
        queues = tuple(self._pulls.stats(self._member.queues[queue]) for queue in sorted(self._member.queues))
        return ConsumerStats(self.group, queues, str(self._failure or ""))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues of the subscribed topics that this member consumes now, sorted."""
        return sorted(queue for queue in list(self._member.queues) if not self._is_retry(queue))

    def _is_retry(self, queue: MessageQueue) -> bool:
        return queue.topic == RETRY_PREFIX + self.group

    async def commit(self) -> None:
        """Commit what has been consumed so far and return when the brokers have it. Raises the first broker's error; others are committed."""
        self._instance.check()
        await self._member.commit_all()

    # --- steering ---

    def pause(self, *queues: MessageQueue) -> None:
        """Neither pull ``queues`` nor hand out what is here of them; without arguments all of the assignment. Lasts until ``resume``, or
        until the queue goes to another member. Raises ConfigError for a queue that is not assigned.
        """
        self._instance.check()
        for pq in self._assigned(queues):
            pq.paused = True

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with paused queues; without arguments with all. Harmless for one that is not paused."""
        self._instance.check()
        for pq in self._assigned(queues):
            pq.paused = False
            self._pulls.go_on(pq)
            self._offer_ready(pq)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are paused, sorted."""
        return sorted(queue for queue, pq in list(self._member.queues.items()) if pq.paused)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at ``offset`` in an assigned queue: what was pulled is forgotten, and what handlers still do with it has no effect.

        The new offset is committed with the next commit. One out of range is moved to where the broker has messages. Raises ConfigError
        for a queue that is not assigned, or a negative offset.
        """
        self._instance.check()
        check_number("offset", offset, least=0, whole=True)
        for pq in self._assigned([queue]):
            pq.seek(offset)
            self._pulls.end(pq)
            self._pulls.begin(pq)

    async def seek_to_time(self, where: MessageQueue | str, timestamp_ms: int) -> None:
        """Go on at the first message stored at ``timestamp_ms`` (epoch) or later, in one queue or all assigned ones of a topic; at the end
        where there is none. Raises what asking the broker raises, and what ``seek`` raises.
        """
        self._instance.check()
        queues = [queue for queue in self.assignment if queue.topic == where] if isinstance(where, str) else [where]
        if not queues:
            raise ConfigError(f"no queue of {where!r} is assigned to this consumer now")
        self._assigned(queues)
        for queue in queues:
            offset = await self._member.offset_at(queue, timestamp_ms)
            if queue in self._member.queues:
                self.seek(queue, offset)

    def _assigned(self, queues: Sequence[MessageQueue]) -> list[ProcessQueue]:
        found = []
        for queue in queues or self.assignment:
            pq = self._member.queues.get(queue)
            if pq is None:
                raise ConfigError(f"{queue} is not assigned to this consumer now (it has {len(self.assignment)} queues, see 'assignment')")
            found.append(pq)
        return found

    # --- what the parts call ---

    def _on_request(self, conn: Connection, command: Command) -> None:
        self._broker_requests.handle(conn, command)

    def _on_route(self, route: Route) -> None:
        self._member.rebalance_soon()

    def _rebalance_soon(self) -> None:
        self._member.rebalance_soon()

    def _may_take(self, pq: ProcessQueue) -> bool:
        return self._member.may_take(pq)

    # --- handing out ---

    def _open_queue(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        return ProcessQueue(queue, offset, self._limits, self._ack, serial=self._orderly)

    async def _take(self) -> ReceivedBatch | None:
        """Return the next batch, None when the consumer is closed. Raises what ended it."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._instance.state != OPEN:
                return None
            if self._clock.monotonic() >= self._breathe_at:
                await asyncio.sleep(0)
                self._breathe_at = self._clock.monotonic() + BREATHE_S
            batch = self._take_ready()
            if batch is not None:
                return batch
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._wake_one()  # it was woken for a batch that it will not take
                raise

    def _take_ready(self) -> ReceivedBatch | None:
        while self._ready:
            pq = self._ready.popleft()
            batch = None if pq.dropped or not self._member.may_take(pq) else pq.take(self._batch_max, self._clock.monotonic())
            if batch is not None:
                if pq.ready:
                    self._offer(pq)
                return batch
        return None

    def _offer(self, pq: ProcessQueue) -> None:
        # One entry a queue and turn, so that queues are served in turn; a spare entry finds nothing and is dropped.
        self._ready.append(pq)
        self._wake_one()

    def _offer_ready(self, pq: ProcessQueue) -> None:
        if pq.ready:
            self._offer(pq)

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

    def _fail(self, error: SprocketError) -> None:
        if self._failure is None:
            log.error("consumer group %s ends: %s", self.group, error)
            self._failure = error
            self._wake_takers()

    # --- what becomes of a batch ---

    def _ack(self, batch: ReceivedBatch) -> None:
        self._instance.check_loop()
        self._end(batch, batch.to_retry(failed=False, orderly=self._orderly))

    def _failed(self, batch: ReceivedBatch, error: BaseException) -> None:
        again = batch.to_retry(failed=True, orderly=self._orderly)
        log.error(
            "consumer group %s: a handler failed for %d messages of %s from offset %d; %d of them %s",
            self.group,
            len(batch._messages),
            batch.queue,
            batch._messages[0].queue_offset,
            len(again),
            "are dropped, as the group broadcasts" if self._broadcasting else "come again",
            exc_info=error,
        )
        self._end(batch, again)

    def _end(self, batch: ReceivedBatch, again: list[tuple[ReceivedMessage, int]]) -> None:
        """Count ``batch`` as consumed but for ``again``. Without effect when it has timed out, or its queue was given up or moved."""
        pq = self._member.queues.get(batch.queue)
        if pq is None:
            return
        if not again or self._broadcasting:
            pq.finish(batch)
            self._settled(pq)
            return
        rest = pq.finish(batch, [message for message, _ in again])
        if rest is not None and self._orderly:
            self._suspend(pq, rest, again)
        elif rest is not None:
            self._settle(self._send_back(pq, rest, again), rest, LOCAL_RETRY_S)
        self._settled(pq)

    def _settle(self, work: Coroutine[Any, Any, None], rest: ReceivedBatch, delay_s: float) -> None:
        """Have ``work`` bring messages of ``rest`` to a broker. What is left when it ends, however it does, is handed out again later."""
        task = self._instance.spawn(work, f"messages of {rest.queue} given back")
        self._settling.add(task)

        def ended(_: object) -> None:
            self._settling.discard(task)
            if rest:
                self._again_later(rest, delay_s)

        task.add_done_callback(ended)

    def _settled(self, pq: ProcessQueue) -> None:
        if not pq.full:
            self._pulls.go_on(pq)
        if self._orderly:
            self._member.batch_ended(pq)
            self._offer_ready(pq)

    def _give_back(self, batch: ReceivedBatch) -> None:
        pq = self._member.queues.get(batch.queue)
        if pq is not None and pq.give_back(batch):
            self._member.batch_ended(pq)
            self._offer_ready(pq)

    async def _send_back(self, pq: ProcessQueue, rest: ReceivedBatch, levels: list[tuple[ReceivedMessage, int]]) -> None:
        pq.consumed(rest, await self._back.send(pq, levels))
        self._settled(pq)
        for message in rest:
            message.failures += 1

    def _suspend(self, pq: ProcessQueue, rest: ReceivedBatch, marks: list[tuple[ReceivedMessage, int]]) -> None:
        """Have messages of an ordered queue again after a pause; what failed too often becomes a dead letter first."""
        failed = [(message, mark) for message, mark in marks if mark != BEHIND]
        given_up = [message for message, mark in failed if mark == DEAD_LETTER or message.reconsume_times >= self._max_times]
        for message, _ in failed:
            if message not in given_up:
                message.failures += 1
        if given_up:
            self._settle(self._give_up(pq, rest, given_up), rest, self._suspend_s)
        else:
            self._again_later(rest, self._suspend_s)

    async def _give_up(self, pq: ProcessQueue, rest: ReceivedBatch, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            try:
                await self._back.publish(message, DEAD_LETTER)
            except SprocketError as e:
                log.warning("consumer group %s: message %s did not become a dead letter: %s", self.group, message.msg_id, e)
                message.failures += 1
            else:
                pq.consumed(rest, [message])
        self._settled(pq)

    def _again_later(self, rest: ReceivedBatch, delay_s: float) -> None:
        self._instance.timers.call_later(delay_s, lambda: self._give_back(rest))

    async def _check_overdue(self) -> None:
        """Send back what handlers hold for longer than the timeout."""
        before = self._clock.monotonic() - self._timeout_s
        for pq in list(self._member.queues.values()):
            for batch in pq.overdue(before):
                batch.timed_out = True
                again = [(m, level or TIMED_OUT_LEVEL) for m, level in batch.to_retry(failed=True)]
                log.warning(
                    "consumer group %s: a handler has held %d messages of %s from offset %d for over %g s; %d of them %s",
                    self.group,
                    len(batch._messages),
                    batch.queue,
                    batch._messages[0].queue_offset,
                    self._timeout_s,
                    len(again),
                    "are dropped, as the group broadcasts" if self._broadcasting else "are sent back",
                )
                self._end(batch, again)


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
        self._consumer._instance.check_loop()
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
        self._consumer._instance.check_loop()
        self._let_go()

    def __del__(self) -> None:
        instance = self._consumer._instance
        if instance.here:
            self._let_go()
        elif self._batch is not None:
            instance.soon(self._consumer._give_back, self._batch)

    def _let_go(self) -> None:
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._consumer._give_back(batch)


class Listening(asyncio.Task[None]):
    """The task of ``PushConsumer.listen``. A task group starts tasks of its own and refuses this one; its error shows what to call instead."""

    def __init__(self, work: Coroutine[Any, Any, None], group: str) -> None:
        super().__init__(work)
        self._group = group

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "ended" if self.done() else "running"
        return f"<the task of listen() of group {self._group!r}, {state}; for a task group: create_task(consumer.run(handler))>"
