"""The consumers for blocking code."""

import asyncio
import contextvars
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from sprocketmq import client
from sprocketmq.client.arguments import check_number
from sprocketmq.client.consume.pull import take_back
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.client.lifecycle import instance_of
from sprocketmq.client.loop_bound import CLOSING, OPEN
from sprocketmq.client.traces.config import TraceStats
from sprocketmq.errors import ClientClosed, ConfigError, ForkedClient
from sprocketmq.net.loops import Inbox
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.sync.faces import Face, arguments_of, blocking, failure_of, on_loop

# A thread that iterates over batches gets as many at a time as it handles in AHEAD_S, at most MAX_AHEAD.
AHEAD_S = 0.005
MAX_AHEAD = 16

log = logging.getLogger(__name__)

_Consumer = TypeVar("_Consumer", bound=client.PullConsumer | client.PushConsumer)


class _ConsumerFace(Face[_Consumer]):
    """The common part of both consumers."""

    @property
    def trace_stats(self) -> TraceStats:
        """Counts of traces by outcome so far; all zero without ``trace``."""
        return self._client.trace_stats

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return self._client.assignment

    def _soon(self, action: Callable[..., object], *arguments: object) -> None:
        """Call ``action`` on the loop, unless the loop has ended or this is a forked child."""
        thread = self._thread
        if thread is not None:
            with suppress(ClientClosed, ForkedClient):
                thread.call_soon(action, *arguments)


class PullConsumer(_ConsumerFace[client.PullConsumer]):
    """``sprocketmq.PullConsumer`` for blocking code; takes the same arguments."""

    @arguments_of(client.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(client.PullConsumer(*args, **kwargs))

    queues: Final = blocking(client.PullConsumer.queues)
    pull: Final = blocking(client.PullConsumer.pull)
    min_offset: Final = blocking(client.PullConsumer.min_offset)
    max_offset: Final = blocking(client.PullConsumer.max_offset)
    offset_at: Final = blocking(client.PullConsumer.offset_at)
    committed: Final = blocking(client.PullConsumer.committed)
    commit: Final = blocking(client.PullConsumer.commit)
    subscribe: Final = blocking(client.PullConsumer.subscribe)
    assign: Final = blocking(client.PullConsumer.assign)
    seek_to_time: Final = blocking(client.PullConsumer.seek_to_time)
    seek: Final = on_loop(client.PullConsumer.seek)
    position: Final = on_loop(client.PullConsumer.position)
    pause: Final = on_loop(client.PullConsumer.pause)
    resume: Final = on_loop(client.PullConsumer.resume)
    stats: Final = on_loop(client.PullConsumer.stats)

    @functools.wraps(client.PullConsumer.poll)
    def poll(self, max_messages: int = 32, *, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        polls: list[list[ReceivedMessage]] = []

        async def run() -> None:
            polls.append(await self._client.poll(max_messages, timeout_s=timeout_s))

        self._open_thread()
        try:
            self._call(run)
        except BaseException:
            # After an interrupt. What it has returned in spite of it would count as consumed with the next poll.
            self._soon(take_back, self._client, polls)
            raise
        return polls[0]


class PushConsumer(_ConsumerFace[client.PushConsumer]):
    """``sprocketmq.PushConsumer`` for blocking code; takes the same arguments."""

    @arguments_of(client.PushConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(client.PushConsumer(*args, **kwargs))
        self._pools: list[ThreadPoolExecutor] = []
        # The threads in which a handler runs now.
        self._busy: set[int] = set()
        # The close that a handler has asked for.
        self._closing: Future[None] | None = None
        # Refers to the client, not to this object: in a reference cycle a dropped consumer would not be closed at once.
        self._acks: Inbox[ReceivedBatch] = Inbox(functools.partial(_acknowledge_all, self._client))

    commit: Final = blocking(client.PushConsumer.commit)
    seek_to_time: Final = blocking(client.PushConsumer.seek_to_time)
    seek: Final = on_loop(client.PushConsumer.seek)
    pause: Final = on_loop(client.PushConsumer.pause)
    resume: Final = on_loop(client.PushConsumer.resume)
    stats: Final = on_loop(client.PushConsumer.stats)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are paused, sorted."""
        return self._client.paused

    def batches(self) -> Iterator[ReceivedBatch]:
        """Iterate over batches, waiting for each; ends when the consumer is closed (by another thread).

        A batch counts as consumed when the loop comes back for the next one; see the async ``batches``. Several threads may iterate. A loop
        that takes less than a millisecond a batch is given a few at a time, worth 5 ms of its work at most.
        """
        self._open_thread()
        amount = 1
        while self._thread is not None:
            taken: deque[ReceivedBatch] = deque()
            batch: ReceivedBatch | None = None
            hooks, call = self._client.hooks, None
            try:
                self._call(functools.partial(self._take, amount, taken))
                asked, started = len(taken), time.monotonic()
            except BaseException:
                self._soon(_give_back_all, self._client, taken)  # also those that come while an interrupt ends the call
                raise
            if not asked:
                return
            try:
                while taken and self._instance.state == OPEN:
                    batch = taken[0]
                    if hooks is not None:
                        call = hooks.handling(batch.queue, batch.delivered, batch.size_bytes, batch.attempts, iterated=True)
                    yield batch
                    if hooks is not None and call is not None:
                        hooks.handled(call, retried=batch.retried(), timed_out=batch.timed_out)
                    self._ack(batch)
                    batch = None
                    taken.popleft()
            finally:
                if batch is not None and hooks is not None and call is not None:
                    hooks.handled(call, retried=batch.retried(), timed_out=batch.timed_out, left=not batch.acknowledged)
                if taken:
                    try:
                        self._soon(_give_back_all, self._client, taken)
                    except BaseException:  # an interrupt
                        self._soon(_give_back_all, self._client, taken)
                        raise
            spent = time.monotonic() - started
            amount = min(MAX_AHEAD, 1 + int(AHEAD_S * asked / max(spent, 1e-6)))

    async def _take(self, amount: int, taken: deque[ReceivedBatch]) -> None:
        """Wait for a batch and add it to ``taken`` with up to ``amount`` - 1 more that are there; none when the consumer is closed."""
        batch = await self._client.ready.take()
        while batch is not None:
            batch.on_ack = self._ack
            taken.append(batch)
            batch = self._client.ready.take_ready() if len(taken) < amount else None

    def listen(self, handler: Callable[[ReceivedBatch], object], *, concurrency: int = 20) -> "Future[None]":
        """Call ``handler(batch)`` for every batch, in up to ``concurrency`` threads of its own.

        Starts at once; the future ends when the consumer is closed, and raises what ended it earlier.
        """
        thread = self._open_thread()
        check_number("concurrency", concurrency, least=1, whole=True)
        if not callable(handler):
            raise ConfigError(f"the handler must be a function of a batch, not {handler!r}")
        pool = ThreadPoolExecutor(concurrency, thread_name_prefix="sprocketmq-handler")
        self._pools.append(pool)

        def call(batch: ReceivedBatch) -> object:
            thread_id = threading.get_ident()
            self._busy.add(thread_id)
            try:
                return handler(batch)
            except BaseException as e:  # noqa: BLE001
                raise failure_of(e, "the handler", "its batch: close the consumer to stop")  # noqa: B904
            finally:
                self._busy.discard(thread_id)

        async def run() -> None:
            loop = asyncio.get_running_loop()

            async def in_thread(batch: ReceivedBatch) -> object:
                batch.on_ack = self._ack
                # Hooks may have set context variables that the handler is to see, and `end` looks for its consumer there.
                return await loop.run_in_executor(pool, contextvars.copy_context().run, call, batch)

            await self._client.listen(in_thread, concurrency=concurrency)

        return thread.submit(run)

    def run(self, handler: Callable[[ReceivedBatch], object], *, concurrency: int = 20) -> None:
        """Do what ``listen`` does, and return when the consumer is closed, by another thread; raises what ended it earlier."""
        self.listen(handler, concurrency=concurrency).result()

    def end(self, timeout_s: float | None) -> None:
        """Do what ``close`` does within ``timeout_s`` seconds, or raise TimeoutError. Never waits in a handler of this consumer."""
        if self._client.handlers.calling:
            self._close_soon()
        elif self._closing is None:
            super().end(timeout_s)
        else:
            self._closing.result(timeout_s)

    def _close_soon(self) -> None:
        with self._lock:
            thread = self._thread
            if thread is None or thread.forked or self._closing is not None or self._instance.state != OPEN:
                return
            # Outside the handler's context, so that the future ends when the consumer is closed.
            closing = self._closing = contextvars.Context().run(thread.submit, self._client.close)
        closing.add_done_callback(self._closed)

    def _closed(self, closing: "Future[None]") -> None:
        if not closing.cancelled() and (error := closing.exception()) is not None:
            log.error("%r was not closed in order", self, exc_info=error)
        self._forget()

    def _leave(self) -> None:
        super()._leave()
        pools, self._pools = self._pools, []
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        if self._busy:  # threads cannot be cancelled
            log.warning("%r: %d of its handlers still run: Python waits for their threads before the program ends", self, len(self._busy))

    def _ack(self, batch: ReceivedBatch) -> None:
        thread = self._thread
        if thread is not None and not thread.forked:
            self._acks.put(batch, thread.loop)


def _acknowledge_all(consumer: client.PushConsumer, batches: deque[ReceivedBatch]) -> None:
    if instance_of(consumer).state not in (OPEN, CLOSING):
        batches.clear()  # their queues belong to other members of the group now
    while batches:
        consumer.outcomes.acknowledge(batches.popleft())


def _give_back_all(consumer: client.PushConsumer, batches: deque[ReceivedBatch]) -> None:
    if instance_of(consumer).state in (OPEN, CLOSING):
        for batch in batches:
            consumer.outcomes.give_back(batch)
