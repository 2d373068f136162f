"""The same clients for code without an event loop.

Each class wraps its namesake of ``sprocketmq.client``: methods that are awaited there block here, ``submit`` and ``listen`` return
``concurrent.futures.Future``. All share one background thread with an event loop (uvloop where it is installed), which runs while any of
them is open. They may be used from any thread, but not from callbacks that run on that loop.

::

    with sync.Producer("pg", namesrv="127.0.0.1:9876") as producer:
        result = producer.send(Message("orders", b"..."))
        future = producer.submit(Message("orders", b"..."))
        future.result()
"""

import asyncio
import atexit
import contextvars
import dataclasses
import functools
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload
from weakref import WeakSet

from sprocketmq import client
from sprocketmq.client.arguments import check_number
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.client.lifecycle import Client, instance_of, left_open
from sprocketmq.client.loop_bound import CLOSING, OPEN
from sprocketmq.client.send.batching import BatchingStats
from sprocketmq.client.send.waiters import OnSent, Waiter, give_error
from sprocketmq.client.stats import ProducerStats
from sprocketmq.client.traces.config import TraceStats
from sprocketmq.errors import ClientClosed, ConfigError, ForkedClient, SendQueueFull, SprocketError
from sprocketmq.net.loops import Inbox, LoopThread
from sprocketmq.protocol.message import Message, MessageQueue, SendResult, unsendable

__all__ = ["AdminClient", "Producer", "PullConsumer", "PushConsumer"]

EXIT_GRACE_S = 5.0
# A thread that iterates over batches gets as many at a time as it handles in AHEAD_S, at most MAX_AHEAD.
AHEAD_S = 0.005
MAX_AHEAD = 16

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=Client)
_C_co = TypeVar("_C_co", bound=Client, covariant=True)


# --- the loop thread ----------------------------------------------------------------------------------------------------


class _SharedThread:
    """The loop thread of all open clients: started for the first of them, stopped after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self.thread: LoopThread | None = None

    def acquire(self) -> LoopThread:
        with self._lock:
            if self.thread is None:
                self.thread = LoopThread("sprocketmq-loop").start()
            self._users += 1
            return self.thread

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self.thread is None:
                return
            thread, self.thread = self.thread, None
        thread.stop()

    def forked(self) -> None:
        self._lock = threading.Lock()  # the thread that held it exists in the parent only
        self._users = 0
        self.thread = None


shared_thread = _SharedThread()
_open_faces: "WeakSet[_Face[Any]]" = WeakSet()
# Faces that were collected while open, until the loop has closed their clients.
dropped: "dict[_Face[Any], Future[None]]" = {}


def _in_child() -> None:
    shared_thread.forked()
    _open_faces.clear()
    dropped.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _close_all() -> None:
    forgotten = list(_open_faces)
    wait(list(dropped.values()), EXIT_GRACE_S)
    for face in forgotten:
        try:
            face.end(EXIT_GRACE_S)
        except (SprocketError, TimeoutError):
            continue
    for face in forgotten:
        face.warn_unclosed()


# --- the faces ----------------------------------------------------------------------------------------------------------


class _Face(Generic[_C_co]):
    """The common part of the blocking clients. ``with`` calls ``start`` and ``close``."""

    def __init__(self, wrapped: _C_co) -> None:
        self._client = wrapped
        self._instance = instance_of(wrapped)
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Find a nameserver and start. Raises what the async client's ``start`` raises."""
        with self._lock:
            first = self._thread is None
            if first:
                self._thread = shared_thread.acquire()
        try:
            self._call(self._client.start())
        except BaseException:
            if first:
                self._leave()
            raise
        _open_faces.add(self)

    def close(self) -> None:
        """Do what the async client's ``close`` does. Has no effect when closed already, and in a forked child."""
        self.end(None)

    def end(self, timeout_s: float | None) -> None:
        """Do what ``close`` does within ``timeout_s`` seconds, or raise TimeoutError."""
        if self._thread is None or self._thread.forked:
            return
        try:
            self._call(self._client.close(), timeout_s)
        finally:
            _open_faces.discard(self)
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            if self._thread is None:
                return
            self._thread = None
        shared_thread.release()

    def __del__(self) -> None:
        thread: LoopThread | None = self.__dict__.get("_thread")  # the constructor may have raised
        if thread is None or not self._instance.home:
            return
        _open_faces.discard(self)
        # Kept alive until the loop has closed its client: accepted messages are still sent, also when the program ends.
        try:
            future = dropped[self] = thread.submit(self._client.close())
        except (ClientClosed, ForkedClient):  # when the program ends, the loop may have stopped already
            pass
        else:
            future.add_done_callback(self._dropped_closed)
        self.warn_unclosed()

    def warn_unclosed(self, warn: Callable[..., None] = warnings.warn) -> None:
        """Warn that nobody closed this client."""
        what = f"sync.{type(self).__name__}{left_open(self._client)}"
        warn(f"unclosed {what}: use 'with', or close(), before the program ends", ResourceWarning, source=self, stacklevel=3)

    def _dropped_closed(self, _: "Future[None]") -> None:
        dropped.pop(self, None)
        self._leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open_thread(self) -> LoopThread:
        """Return the loop thread of an open client. Raises ForkedClient, ClientClosed, or ConfigError on the loop's own thread."""
        instance = self._instance
        if not instance.home:
            instance.refuse()
        thread = self._thread
        if thread is None:
            raise ClientClosed(f"this {instance.kind} is closed: make a new one")
        return thread

    def _call(self, work: Coroutine[Any, Any, _R], timeout_s: float | None = None) -> _R:
        thread = self._thread
        if thread is None or thread.is_current:
            work.close()
            raise ConfigError("a blocking call on the background loop would wait for itself: use sprocketmq.client there")
        return thread.run(work, timeout_s)


def _blocking(method: Callable[Concatenate[_C, _P], Coroutine[Any, Any, _R]]) -> Callable[Concatenate["_Face[_C]", _P], _R]:
    """Return the blocking form of an async client's method."""

    @functools.wraps(method)
    def call(self: "_Face[_C]", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        self._open_thread()
        return self._call(method(self._client, *args, **kwargs))

    return call


def _on_loop(method: Callable[Concatenate[_C, _P], _R]) -> Callable[Concatenate["_Face[_C]", _P], _R]:
    """Return the blocking form of an async client's plain method: it runs on the loop, and the caller waits for its result."""

    @functools.wraps(method)
    def call(self: "_Face[_C]", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        async def run() -> _R:
            return method(self._client, *args, **kwargs)

        self._open_thread()
        return self._call(run())

    return call


def _arguments_of(make: Callable[_P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Give a constructor the arguments of ``make``, for type checkers and ``help``."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        return functools.wraps(make.__init__)(init)

    return decorate


class _Held:
    """The messages, and bytes of their bodies, that a producer has taken from threads and not answered yet."""

    __slots__ = ("bytes", "lock", "messages")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages = 0
        self.bytes = 0

    def give_back(self, count: int, size: int) -> None:
        with self.lock:
            self.messages -= count
            self.bytes -= size


class Producer(_Face[client.Producer]):
    """``sprocketmq.Producer`` for blocking code; takes the same arguments."""

    @_arguments_of(client.Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(client.Producer(*args, **kwargs))
        self._held = _Held()
        self._max_messages, self._max_bytes = self._client.max_in_flight, self._client.max_in_flight_bytes
        # Knows the client, not this face: in a reference cycle a dropped producer would not be closed at once.
        self._calls: Inbox[_Call] = Inbox(functools.partial(_send_all, self._client, self._held))
        self._client.watch_room(self._held.give_back)
        self._has_hooks = self._client.has_hooks

    send_batch = _blocking(client.Producer.send_batch)
    flush = _blocking(client.Producer.flush)
    room = _blocking(client.Producer.room)
    queues = _blocking(client.Producer.queues)

    def send(self, message: Message, *, timeout_s: float | None = None) -> SendResult:
        """Send one message and return where it was stored. Raises what the async ``send`` raises."""
        thread = self._open_thread()
        if thread.is_current:
            raise ConfigError("a blocking send on the background loop would wait for itself: use submit there")
        held = self._held
        try:
            size = len(message.body)
        except (AttributeError, TypeError) as e:
            raise unsendable(message, e) from None
        if self._has_hooks:
            message = self._client.created(message)
        with held.lock:
            held.messages += 1
            held.bytes += size
        future: Future[SendResult] = Future()
        self._calls.put((message, future, timeout_s), thread.loop)
        return future.result()

    @overload
    def submit(self, message: Message, *, timeout_s: float | None = None) -> "Future[SendResult]": ...

    @overload
    def submit(self, message: Message, callback: OnSent, *, timeout_s: float | None = None) -> None: ...

    def submit(self, message: Message, callback: OnSent | None = None, *, timeout_s: float | None = None) -> "Future[SendResult] | None":
        """Send one message and return the future of its result at once; or have ``callback`` called.

        Messages of one thread to one topic leave in order.

        ``callback(result, error)`` is called when the outcome is known, one of the two being None; what it raises is logged, and nobody
        else is harmed. It runs on the background loop, as do callbacks of the future, and must not block. Raises SendQueueFull when the
        producer's ``max_in_flight`` messages or ``max_in_flight_bytes`` are not answered yet; every other error goes to the future or
        the callback.
        """
        thread = self._open_thread()
        try:
            size = len(message.body)
        except (AttributeError, TypeError) as e:
            raise unsendable(message, e) from None
        if callback is not None and not callable(callback):
            raise ConfigError(f"the callback must be a function of result and error, not {callback!r}")
        held = self._held
        with held.lock:
            if held.messages and held.messages >= self._max_messages:
                raise SendQueueFull("messages", self._max_messages)
            if held.messages and held.bytes + size > self._max_bytes:
                raise SendQueueFull("bytes", self._max_bytes)
            held.messages += 1
            held.bytes += size
        if self._has_hooks:
            try:
                message = self._client.created(message)
            except BaseException:  # a hook was interrupted
                held.give_back(1, size)
                raise
        if callback is not None:
            self._calls.put((message, callback, timeout_s), thread.loop)
            return None
        future: Future[SendResult] = Future()
        self._calls.put((message, future, timeout_s), thread.loop)
        return future

    def stats(self) -> ProducerStats:
        """Return what the producer has done so far; ``in_flight`` includes messages on their way to the background loop."""
        return dataclasses.replace(self._client.stats(), in_flight=self._held.messages, in_flight_bytes=self._held.bytes)

    @property
    def in_flight(self) -> int:
        """Messages that are not answered yet."""
        return self._held.messages

    @property
    def trace_stats(self) -> TraceStats:
        """What became of the traces so far; all zero without ``trace``."""
        return self._client.trace_stats

    @property
    def batching_stats(self) -> BatchingStats:
        """What AutoBatch has done so far; all zero without batching."""
        return self._client.batching_stats


# A message, who gets its outcome, and its timeout: how a thread hands a send to the loop.
_Call = tuple[Message, Waiter, float | None]


def _send_all(producer: client.Producer, held: _Held, calls: deque[_Call]) -> None:
    instance = instance_of(producer)
    while calls:
        message, waiter, timeout_s = calls.popleft()
        try:
            if not instance.home:
                instance.refuse()
            producer.accept(message, waiter, timeout_s, created=True)
        except Exception as e:  # noqa: BLE001 - the error goes to who waits for the outcome
            held.give_back(1, len(message.body))
            give_error(waiter, unsendable(message, e))


class PullConsumer(_Face[client.PullConsumer]):
    """``sprocketmq.PullConsumer`` for blocking code; takes the same arguments."""

    @_arguments_of(client.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(client.PullConsumer(*args, **kwargs))

    queues = _blocking(client.PullConsumer.queues)
    pull = _blocking(client.PullConsumer.pull)
    min_offset = _blocking(client.PullConsumer.min_offset)
    max_offset = _blocking(client.PullConsumer.max_offset)
    offset_at = _blocking(client.PullConsumer.offset_at)
    committed = _blocking(client.PullConsumer.committed)
    commit = _blocking(client.PullConsumer.commit)
    subscribe = _blocking(client.PullConsumer.subscribe)
    assign = _blocking(client.PullConsumer.assign)
    poll = _blocking(client.PullConsumer.poll)
    seek_to_time = _blocking(client.PullConsumer.seek_to_time)
    seek = _on_loop(client.PullConsumer.seek)
    position = _on_loop(client.PullConsumer.position)
    pause = _on_loop(client.PullConsumer.pause)
    resume = _on_loop(client.PullConsumer.resume)
    stats = _on_loop(client.PullConsumer.stats)

    @property
    def trace_stats(self) -> TraceStats:
        """What became of the traces so far; all zero without ``trace``."""
        return self._client.trace_stats

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are polled now, sorted."""
        return self._client.assignment


class PushConsumer(_Face[client.PushConsumer]):
    """``sprocketmq.PushConsumer`` for blocking code; takes the same arguments."""

    @_arguments_of(client.PushConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(client.PushConsumer(*args, **kwargs))
        self._pools: list[ThreadPoolExecutor] = []
        # Knows the client, not this face: in a reference cycle a dropped consumer would not be closed at once.
        self._acks: Inbox[ReceivedBatch] = Inbox(functools.partial(_acknowledge_all, self._client))

    commit = _blocking(client.PushConsumer.commit)
    seek_to_time = _blocking(client.PushConsumer.seek_to_time)
    seek = _on_loop(client.PushConsumer.seek)
    pause = _on_loop(client.PushConsumer.pause)
    resume = _on_loop(client.PushConsumer.resume)
    stats = _on_loop(client.PushConsumer.stats)

    @property
    def trace_stats(self) -> TraceStats:
        """What became of the traces so far; all zero without ``trace``."""
        return self._client.trace_stats

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member consumes now, sorted."""
        return self._client.assignment

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
            taken = self._call(self._take(amount))
            if not taken:
                return
            asked, started = len(taken), time.monotonic()
            batch: ReceivedBatch | None = None
            hooks, call = self._client.hooks, None
            try:
                while taken and self._instance.state == OPEN:
                    batch = taken.popleft()
                    if hooks is not None:
                        call = hooks.handling(batch.queue, batch.delivered, batch.size_bytes, batch.attempts, iterated=True)
                    yield batch
                    if hooks is not None and call is not None:
                        hooks.handled(call, retried=batch.retried(), timed_out=batch.timed_out)
                    self._ack(batch)
                    batch = None
            finally:
                if batch is not None:
                    if hooks is not None and call is not None:
                        hooks.handled(call, retried=batch.retried(), timed_out=batch.timed_out, left=not batch.acknowledged)
                    taken.appendleft(batch)
                if taken:
                    self._give_back(taken)
            spent = time.monotonic() - started
            amount = min(MAX_AHEAD, 1 + int(AHEAD_S * asked / max(spent, 1e-6)))

    async def _take(self, amount: int) -> deque[ReceivedBatch]:
        """Wait for a batch and return it with up to ``amount`` - 1 more that are there; none when the consumer is closed."""
        taken: deque[ReceivedBatch] = deque()
        batch = await self._client.ready.take()
        while batch is not None:
            batch.on_ack = self._ack
            taken.append(batch)
            batch = self._client.ready.take_ready() if len(taken) < amount else None
        return taken

    def listen(self, handler: Callable[[ReceivedBatch], object], *, concurrency: int = 20) -> "Future[None]":
        """Have ``handler(batch)`` called for every batch, in up to ``concurrency`` threads of its own.

        Starts at once; the future ends when the consumer is closed, and raises what ended it earlier.
        """
        thread = self._open_thread()
        check_number("concurrency", concurrency, least=1, whole=True)
        if not callable(handler):
            raise ConfigError(f"the handler must be a function of a batch, not {handler!r}")
        pool = ThreadPoolExecutor(concurrency, thread_name_prefix="sprocketmq-handler")
        self._pools.append(pool)

        def call(batch: ReceivedBatch) -> object:
            try:
                return handler(batch)
            except BaseException as e:
                if isinstance(e, Exception) and not isinstance(e, StopIteration):
                    raise
                # SystemExit would end the event loop that all clients share, and a future cannot hold a StopIteration.
                raise RuntimeError(
                    f"the handler raised {type(e).__name__}, which ends nothing but its batch: close the consumer to stop"
                ) from e

        async def run() -> None:
            loop = asyncio.get_running_loop()

            async def in_thread(batch: ReceivedBatch) -> object:
                batch.on_ack = self._ack
                if self._client.hooks is None:
                    return await loop.run_in_executor(pool, call, batch)
                # Hooks may have set context variables that the handler is to see.
                return await loop.run_in_executor(pool, contextvars.copy_context().run, call, batch)

            await self._client.listen(in_thread, concurrency=concurrency)

        return thread.submit(run())

    def run(self, handler: Callable[[ReceivedBatch], object], *, concurrency: int = 20) -> None:
        """Do what ``listen`` does, and return when the consumer is closed, by another thread; raises what ended it earlier."""
        self.listen(handler, concurrency=concurrency).result()

    def _leave(self) -> None:
        super()._leave()
        pools, self._pools = self._pools, []
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _give_back(self, batches: deque[ReceivedBatch]) -> None:
        thread = self._thread
        if thread is not None and not thread.forked:
            thread.call_soon(_give_back_all, self._client, batches)

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


class AdminClient(_Face[client.AdminClient]):
    """``sprocketmq.AdminClient`` for blocking code; takes the same arguments."""

    @_arguments_of(client.AdminClient)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(client.AdminClient(*args, **kwargs))

    create_topic = _blocking(client.AdminClient.create_topic)
    delete_topic = _blocking(client.AdminClient.delete_topic)
    topics = _blocking(client.AdminClient.topics)
    topic_config = _blocking(client.AdminClient.topic_config)
    topic_configs = _blocking(client.AdminClient.topic_configs)
    topic_stats = _blocking(client.AdminClient.topic_stats)
    route = _blocking(client.AdminClient.route)
    cluster = _blocking(client.AdminClient.cluster)
    broker_runtime = _blocking(client.AdminClient.broker_runtime)
    broker_config = _blocking(client.AdminClient.broker_config)
    update_broker_config = _blocking(client.AdminClient.update_broker_config)
    namesrv_config = _blocking(client.AdminClient.namesrv_config)
    update_namesrv_config = _blocking(client.AdminClient.update_namesrv_config)
    broker_stats = _blocking(client.AdminClient.broker_stats)
    consume_time_spans = _blocking(client.AdminClient.consume_time_spans)
    create_topics = _blocking(client.AdminClient.create_topics)
    create_groups = _blocking(client.AdminClient.create_groups)
    group_readable = _blocking(client.AdminClient.group_readable)
    brokers = _blocking(client.AdminClient.brokers)
    ha_status = _blocking(client.AdminClient.ha_status)
    broker_epochs = _blocking(client.AdminClient.broker_epochs)
    change_master = _blocking(client.AdminClient.change_master)
    queues = _blocking(client.AdminClient.queues)
    min_offset = _blocking(client.AdminClient.min_offset)
    max_offset = _blocking(client.AdminClient.max_offset)
    offset_at = _blocking(client.AdminClient.offset_at)
    committed = _blocking(client.AdminClient.committed)
    commit = _blocking(client.AdminClient.commit)
    consume_stats = _blocking(client.AdminClient.consume_stats)
    query_by_key = _blocking(client.AdminClient.query_by_key)
    query_by_tag = _blocking(client.AdminClient.query_by_tag)
    query_by_unique_key = _blocking(client.AdminClient.query_by_unique_key)
    view_message = _blocking(client.AdminClient.view_message)
    message_at = _blocking(client.AdminClient.message_at)
    messages_at = _blocking(client.AdminClient.messages_at)
    search = _blocking(client.AdminClient.search)
    messages_from = _blocking(client.AdminClient.messages_from)
    batch_at = _blocking(client.AdminClient.batch_at)
    trace = _blocking(client.AdminClient.trace)
    groups = _blocking(client.AdminClient.groups)
    group_config = _blocking(client.AdminClient.group_config)
    create_group = _blocking(client.AdminClient.create_group)
    delete_group = _blocking(client.AdminClient.delete_group)
    progress = _blocking(client.AdminClient.progress)
    reset_offsets = _blocking(client.AdminClient.reset_offsets)
    reset_offset = _blocking(client.AdminClient.reset_offset)
    reset_targets = _blocking(client.AdminClient.reset_targets)
    reset_to = _blocking(client.AdminClient.reset_to)
    topic_configs_on = _blocking(client.AdminClient.topic_configs_on)
    topic_stats_on = _blocking(client.AdminClient.topic_stats_on)
    groups_on = _blocking(client.AdminClient.groups_on)
    groups_of_topic_on = _blocking(client.AdminClient.groups_of_topic_on)
    consume_stats_on = _blocking(client.AdminClient.consume_stats_on)
    members_on = _blocking(client.AdminClient.members_on)
    running_info_on = _blocking(client.AdminClient.running_info_on)
    counter_on = _blocking(client.AdminClient.counter_on)
    create_user = _blocking(client.AdminClient.create_user)
    update_user = _blocking(client.AdminClient.update_user)
    delete_user = _blocking(client.AdminClient.delete_user)
    user = _blocking(client.AdminClient.user)
    users = _blocking(client.AdminClient.users)
    put_acl = _blocking(client.AdminClient.put_acl)
    delete_acl = _blocking(client.AdminClient.delete_acl)
    acl = _blocking(client.AdminClient.acl)
    acls = _blocking(client.AdminClient.acls)
    consumers = _blocking(client.AdminClient.consumers)
    producers = _blocking(client.AdminClient.producers)
    running_info = _blocking(client.AdminClient.running_info)
