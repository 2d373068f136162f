"""The push consumer: a member of a group that shares the queues of its topics among its members (docs/internals/consumers.md).

Pulling, flow control and commits run in the background; messages come out of ``batches()`` or go into a handler. This module has the
arguments, the life cycle and the controls. The parts: ``group_member`` (which queues), ``pull_loop`` (pulls), ``ready_queues`` (handing
out), ``handlers`` (calling handlers), ``outcomes`` (acknowledge, retry, time out).
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextvars import Context
from typing import Literal

from sprocketmq.client.arguments import check_bools, check_number
from sprocketmq.client.consume.batches import Batches
from sprocketmq.client.consume.broker_requests import BrokerRequests
from sprocketmq.client.consume.consumer_stats import ConsumerStats, consumer_stats
from sprocketmq.client.consume.give_backs import GiveBacks
from sprocketmq.client.consume.group_member import GroupMember
from sprocketmq.client.consume.handlers import Handler, Handlers
from sprocketmq.client.consume.offset_files import LocalOffsets
from sprocketmq.client.consume.offset_store import ConsumeFrom, GroupOffsets
from sprocketmq.client.consume.orderly import MemberLocks
from sprocketmq.client.consume.outcomes import Outcomes
from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.pull_loop import PullLoops, PullSize
from sprocketmq.client.consume.pull_requests import DEFAULT_MAX_BYTES, read_subscriptions
from sprocketmq.client.consume.ready_queues import ReadyQueues
from sprocketmq.client.consume.rebalance import Rebalance, read_strategy
from sprocketmq.client.credentials import CredentialsArgument, resolve
from sprocketmq.client.hook_calls import HookCalls, check_hooks, hook_calls
from sprocketmq.client.hooks import ClientHooks
from sprocketmq.client.instance import Instance
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.loop_bound import CLOSING, OPEN
from sprocketmq.client.routes import Route
from sprocketmq.client.send.producer import Producer
from sprocketmq.client.stats import ConsumerCounts
from sprocketmq.client.traces.config import TraceConfig, TraceStats, trace_config
from sprocketmq.client.traces.deliveries import DeliveryTraces
from sprocketmq.client.traces.producer import trace_producer
from sprocketmq.client.traces.writer import TraceWriter
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError
from sprocketmq.net.client import Connection
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.bodies import build_subscription
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX, check_group

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 10.0
# Retries before a message becomes a dead letter, unless told otherwise; messages of an orderly consumer are retried for ever.
MAX_RECONSUME_TIMES = 16
UNLIMITED = 2**31 - 1

MAX_BATCH = 1024
# Messages requested at once, however small the batches are; brokers have limits of their own (Apache's default is 32).
PULL_MESSAGES = 512
BYTES_PER_MESSAGE = 8192
MAX_PULL_BYTES = 4 << 20

Mode = Literal["clustering", "broadcasting"]


class PushConsumer(Client):
    """A member of consumer group ``group``: each queue of the subscribed topics is consumed by one member at a time.

    ``subscriptions`` maps topics to ``"*"``, ``"tag || tag"`` or an ``Sql`` condition on properties; one topic name or a list of names
    subscribes to everything in them. All members of a group must subscribe to the same. ``consume_from`` says where a group without a
    committed offset starts: ``"last"`` (new messages; a young queue is read from its beginning, as brokers count it as new), ``"first"``,
    or epoch seconds. ``batch_max`` (1 to 1024) limits the messages of one batch, and raises the pull size with it. Pulling of a queue
    pauses while more than ``max_cached`` messages or ``max_cached_bytes`` of it are cached here, or while its cached offsets span more than
    ``max_span`` (two batches always fit).

    **Delivery** is at least once. A batch counts as consumed when its handler returns or its loop body ends, except for messages given to
    ``batch.retry()``: those are sent back to the broker, which delivers them again later, to any member, through the group's retry topic
    (10 s, 30 s, 1 min ... later; ``topic`` is still the original one, ``reconsume_times`` counts). After ``max_reconsume_times`` retries
    (default 16) a message goes to ``%DLQ%group``. When a handler raises, every message of the batch is sent back that was not given to
    ``batch.done()``. The same happens when it takes longer than ``consume_timeout_s``; what it does with the batch afterwards has no effect
    (``batch.timed_out``). A message that no broker takes back is handed out again here after 5 s. The other messages of the batch are not
    repeated.

    ``orderly=True`` hands out one batch of a queue at a time. When its handler raises, or gives messages to ``batch.retry()``, the same
    messages are handed out again after ``suspend_s``, before any later ones, without limit unless ``max_reconsume_times`` is given: a
    message that failed more often goes to ``%DLQ%group``. There is no timeout. With ``mode="broadcasting"`` every member consumes every
    message, and a message that fails is logged and dropped; offsets are kept on this machine, in ``offsets_dir`` (default
    ``~/.rocketmq_offsets``, as for Java clients).

    ``rebalance`` chooses this member's queues: ``"average"``, ``"circle"`` or ``"consistent-hash"`` (the same assignment as Java members
    compute), a mapping of each topic to its queues, or a function of all queues of a topic, all members and this member's name. All members
    must use the same rule.

    Offsets are committed every 5 seconds, when a queue goes to another member, and at close, never past a message that is neither consumed
    nor sent back. After a crash, messages that were not committed are delivered again.

    A user who loses access while the consumer runs, by a new secret or a deleted right, is logged as one error; pulls are tried again after
    1 to 15 s, and messages go on when access is given back. ``stats()`` tells which queues are affected.

    Topics that do not exist yet are looked up until they do. When a broker refuses for good (bad expression, a topic without permission to
    read, group not allowed), ``batches()`` and ``listen()`` end with its BrokerError.

    ``credentials``, ``tls`` and ``secure`` as for Producer. ``hooks`` are called for each pull, handler call and give-back; see
    ``ClientHooks``.
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
        credentials: CredentialsArgument | None = None,
        tls: bool | TlsConfig | None = None,
        secure: str | os.PathLike[str] | None = None,
        hooks: Sequence[ClientHooks] = (),
        trace: bool | TraceConfig = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.group: str = check_group(group)
        check_hooks(hooks)
        tracing = trace_config(trace)
        check_bools(orderly=orderly)
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
        share = read_strategy(rebalance, list(described))
        broadcasting = mode == "broadcasting"
        if offsets_dir is not None and not broadcasting:
            raise ConfigError("offsets_dir needs mode='broadcasting': the brokers keep the offsets of a group that shares its queues")
        if not broadcasting:
            retry_topic = RETRY_PREFIX + group
            described[retry_topic] = build_subscription(retry_topic, "*", version)
        self._orderly = orderly
        self._timeout_s = consume_timeout_s
        self._limits = CacheLimits(max(max_cached, 2 * batch_max), max_cached_bytes, max(max_span, 2 * batch_max))
        if max_reconsume_times is None:
            max_reconsume_times = UNLIMITED if orderly else MAX_RECONSUME_TIMES
        # Two pulls fit below the limit, so that one is on its way while the other is handled.
        pull_messages = max(batch_max, min(PULL_MESSAGES, self._limits.messages // 2), 1)
        size = PullSize(pull_messages, min(MAX_PULL_BYTES, max(DEFAULT_MAX_BYTES, BYTES_PER_MESSAGE * pull_messages)))
        security = resolve(credentials=credentials, tls=tls, secure=secure)
        instance = self._instance = Instance(
            namesrv, kind="PushConsumer", security=security, clock=clock, on_request=self._on_request, on_route=self._on_route
        )
        self._trace_writer: TraceWriter | None = None
        traces: DeliveryTraces | None = None
        if tracing is not None:
            make = trace_producer(Producer, group, "CONSUME", namesrv=namesrv, credentials=credentials, tls=tls, secure=secure, clock=clock)
            self._trace_writer = TraceWriter(tracing, group, instance, make)
            traces = DeliveryTraces(tracing, group, instance, self._trace_writer)
        self._counts = ConsumerCounts()
        # Public for sync.PushConsumer, whose handlers and loops run in other threads.
        self.hooks: HookCalls | None = hook_calls(hooks, group, instance, traces)
        # ``ready``, ``outcomes`` and ``handlers`` are public for sync.PushConsumer, which handles batches in other threads.
        self.ready: ReadyQueues = ReadyQueues(instance, group, batch_max, self._may_take)
        self._pulls = PullLoops(
            instance,
            group,
            described,
            size,
            found=self.ready.offer,
            lost=self._rebalance_soon,
            refused=self.ready.fail,
            may_take=self._may_take,
            commits=not broadcasting,
            counts=self._counts,
            hooks=self.hooks,
        )
        locks = MemberLocks(instance, group) if orderly and not broadcasting else None
        self._member = GroupMember(
            instance,
            group,
            described,
            consume_from=consume_from,
            share=None if broadcasting else share,
            store=LocalOffsets(instance, group, offsets_dir) if broadcasting else GroupOffsets(instance, group),
            locks=locks,
            open_queue=self._open_queue,
            puller=self._pulls,
            resumed=self.ready.offer_if_ready,
        )
        self.outcomes: Outcomes = Outcomes(
            instance,
            self._member,
            self._pulls,
            self.ready,
            GiveBacks(instance, group, max_times=max_reconsume_times, counts=self._counts, hooks=self.hooks),
            orderly=orderly,
            max_times=max_reconsume_times,
            suspend_s=suspend_s,
            timeout_s=consume_timeout_s,
            counts=self._counts,
        )
        self.handlers: Handlers = Handlers(group, self.ready, self.outcomes, clock, orderly=orderly, hooks=self.hooks)
        self._broker_requests = BrokerRequests(
            instance,
            self._member,
            locks,
            settings={
                "PROP_CONSUMEORDERLY": str(orderly).lower(),
                "consumeMessageBatchMaxSize": str(batch_max),
                "pullBatchSize": str(pull_messages),
                "pullThresholdForQueue": str(self._limits.messages),
                "consumeConcurrentlyMaxSpan": str(self._limits.span),
                "maxReconsumeTimes": str(max_reconsume_times),
            },
            seek=self.seek,
            consume=self.handlers.consume_directly,
        )

    # --- life ---

    async def start(self) -> None:
        """Join the group and start pulling.

        Raises NameserverUnavailable, NotRocketMQ or TlsFailed, with the address, if there is no nameserver; AuthenticationFailed or
        AuthorizationFailed when a server refuses this client.
        """
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
                self._instance.every(min(60.0, self._timeout_s / 4), self.outcomes.check_overdue, "watch over slow handlers")

    async def close(self) -> None:
        """Stop taking messages, give running handlers 10 s to end, commit, leave the group, disconnect.

        Batches that were not consumed are delivered again, to any member. Called by a handler of this consumer, it returns at once, and the
        consumer closes when its handlers have ended.
        """
        self._instance.check_loop()
        if self.handlers.calling:  # it would wait for its own caller
            if self._instance.state == OPEN:
                self._instance.state = CLOSING  # no handler gets another batch
                Context().run(self._instance.spawn, self.close(), "close")
            return
        async with self._instance.changing:
            try:
                if self._instance.state in (OPEN, CLOSING):
                    self._instance.state = CLOSING
                    await self._wind_up()
            finally:
                try:
                    await self._member.end()
                    if self._trace_writer is not None:
                        await self._trace_writer.close()
                finally:
                    await self._instance.close()

    async def _wind_up(self) -> None:
        self.ready.wake_all()
        self._member.stop_pulling()
        if self.handlers.tasks:
            _, late = await asyncio.wait(self.handlers.tasks, timeout=CLOSE_GRACE_S)
            if late:
                log.warning(
                    "consumer group %s: a handler did not end within %g s of the close and is cancelled; its messages are delivered again",
                    self.group,
                    CLOSE_GRACE_S,
                )
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self.outcomes.tasks:
            await asyncio.wait(self.outcomes.tasks, timeout=CLOSE_GRACE_S)
        await self._member.leave()

    # --- consuming ---

    def batches(self) -> Batches:
        """Iterate over batches of up to ``batch_max`` messages, each of one queue and in its order; ends when the consumer is closed.

        A batch counts as consumed when the loop asks for the next one. A batch whose loop is left by ``break`` or an exception does not: it
        is handed out again, here at once or after a restart; call ``batch.ack()`` before ``break``. Several tasks may iterate.

        Example::

            from sprocketmq import PushConsumer

            async with PushConsumer("billing", "orders", namesrv="127.0.0.1:9876", consume_from="first") as consumer:
                async for batch in consumer.batches():
                    print([message.body for message in batch])
                    batch.ack()
                    break  # one is enough here
        """
        self._instance.check()
        return Batches(self, self._instance, self.ready, self.outcomes, self.hooks)

    def listen(self, handler: Handler, *, concurrency: int = 20) -> "asyncio.Task[None]":
        """Call ``handler(batch)``, a function or coroutine function, for every batch, up to ``concurrency`` at a time.

        Starts at once and returns the task that runs until the consumer is closed; awaiting it raises the error that ended it earlier.
        Batches of one queue may be handled side by side and end in any order, unless the consumer is orderly. A plain function runs on the
        event loop and must not block. The handler's return value is ignored (with one warning, as it may be a mistake).

        Example::

            from sprocketmq import PushConsumer

            enough = asyncio.Event()

            async def handle(batch):
                print(len(batch), "messages of", batch.queue)
                enough.set()

            async with PushConsumer("shipping", "orders", namesrv="127.0.0.1:9876", consume_from="first") as consumer:
                consumer.listen(handle, concurrency=4)
                await enough.wait()
        """
        self._instance.check()
        check_number("concurrency", concurrency, least=1, whole=True)
        if not callable(handler):
            raise ConfigError(f"the handler must be a function of a batch, not {handler!r}")
        return self.handlers.listen(handler, concurrency)

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Do as ``listen`` and return when the consumer is closed: for ``TaskGroup.create_task(consumer.run(handler))``.

        Cancelling the caller cancels the handlers. Raises the error that ended the consumer.

        Example::

            from sprocketmq import PushConsumer

            enough = asyncio.Event()

            def handle(batch):
                print([message.body for message in batch])
                enough.set()

            async with PushConsumer("stock", "orders", namesrv="127.0.0.1:9876", consume_from="first") as consumer:
                async with asyncio.TaskGroup() as tasks:
                    running = tasks.create_task(consumer.run(handle))
                    await enough.wait()
                    running.cancel()
        """
        await self.listen(handler, concurrency=concurrency)

    def stats(self) -> ConsumerStats:
        """Return the state of each queue this member owns, with how long and why one of them is not pulled, and what it has done so far."""
        queues = [self._pulls.stats(self._member.queues[queue]) for queue in sorted(self._member.queues)]
        return consumer_stats(self.group, queues, self.ready.failure, self._counts, self.hooks)

    @property
    def trace_stats(self) -> TraceStats:
        """Counts of traces by outcome so far; all zero without ``trace``."""
        return TraceStats() if self._trace_writer is None else self._trace_writer.stats()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues of the subscribed topics that this member consumes now, sorted."""
        return sorted(queue for queue in list(self._member.queues) if not self._is_retry(queue))

    def _is_retry(self, queue: MessageQueue) -> bool:
        return queue.topic == RETRY_PREFIX + self.group

    async def commit(self) -> None:
        """Commit what has been consumed and return when the brokers have it. Raises the first error; all other queues are committed."""
        self._instance.check()
        await self._member.commit_all()

    # --- positions and pauses ---

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling ``queues`` and handing out their messages; without arguments, those of the whole assignment.

        Lasts until ``resume``, or until the queue goes to another member. Raises ConfigError for a queue that is not assigned.
        """
        self._instance.check()
        for pq in self._assigned(queues):
            pq.paused = True

    def resume(self, *queues: MessageQueue) -> None:
        """Continue paused queues; without arguments, all of them. Harmless for a queue that is not paused."""
        self._instance.check()
        for pq in self._assigned(queues):
            pq.paused = False
            self._pulls.go_on(pq)
            self.ready.offer_if_ready(pq)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are paused, sorted."""
        return sorted(queue for queue, pq in list(self._member.queues.items()) if pq.paused)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset`` in an assigned queue. Cached messages are dropped, and batches that handlers hold no longer count.

        The next commit stores the new offset. One out of range is moved to where the broker has messages. Raises ConfigError for a queue
        that is not assigned, or a negative offset.
        """
        self._instance.check()
        check_number("offset", offset, least=0, whole=True)
        for pq in self._assigned([queue]):
            pq.seek(offset)
            self._pulls.end(pq)
            self._pulls.begin(pq)

    async def seek_to_time(self, where: MessageQueue | str, timestamp_ms: int) -> None:
        """Continue at the first message stored at ``timestamp_ms`` (epoch) or later, or at the end when there is none.

        ``where`` is one queue, or a topic for all its assigned queues. Raises what asking the broker raises, and what ``seek`` raises.
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

    # --- callbacks of the parts ---

    def _on_request(self, conn: Connection, command: Command) -> None:
        self._broker_requests.handle(conn, command)

    def _on_route(self, route: Route) -> None:  # noqa: ARG002 - the signature of route callbacks
        self._member.rebalance_soon()

    def _rebalance_soon(self) -> None:
        self._member.rebalance_soon()

    def _may_take(self, pq: ProcessQueue) -> bool:
        return self._member.may_take(pq)

    def _open_queue(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        return ProcessQueue(queue, offset, self._limits, self.outcomes.acknowledge, serial=self._orderly)
