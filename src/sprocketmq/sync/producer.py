"""The producer for blocking code."""

import dataclasses
import functools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, overload

from sprocketmq import client
from sprocketmq.client.lifecycle import instance_of
from sprocketmq.client.send.batching import BatchingStats
from sprocketmq.client.send.waiters import OnSent, Waiter, give_error
from sprocketmq.client.stats import ProducerStats
from sprocketmq.client.traces.config import TraceStats
from sprocketmq.errors import ConfigError, SendQueueFull
from sprocketmq.net.loops import Inbox, InterruptibleFuture
from sprocketmq.protocol.message import Message, SendResult, unsendable
from sprocketmq.sync.faces import Face, arguments_of, blocking

if TYPE_CHECKING:
    from concurrent.futures import Future


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


class Producer(Face[client.Producer]):
    """``sprocketmq.Producer`` for blocking code; takes the same arguments.

    Example::

        from sprocketmq import Message, sync

        with sync.Producer("shop", namesrv="127.0.0.1:9876") as producer:
            print(producer.send(Message("orders", b"3 apples")).queue_offset)
    """

    @arguments_of(client.Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._wrap(client.Producer(*args, **kwargs))

    def _wrap(self, producer: client.Producer) -> None:
        super().__init__(producer)
        self._held = _Held()
        self._max_messages, self._max_bytes = self._client.max_in_flight, self._client.max_in_flight_bytes
        # Refers to the client, not to this object: in a reference cycle a dropped producer would not be closed at once.
        self._calls: Inbox[_Call] = Inbox(functools.partial(_send_all, self._client, self._held))
        self._client.watch_room(self._held.give_back)
        self._has_hooks = self._client.has_hooks

    send_batch: Final = blocking(client.Producer.send_batch)
    send_oneway: Final = blocking(client.Producer.send_oneway)
    flush: Final = blocking(client.Producer.flush)
    room: Final = blocking(client.Producer.room)
    queues: Final = blocking(client.Producer.queues)
    recall: Final = blocking(client.Producer.recall)
    request: Final = blocking(client.Producer.request)
    reply: Final = blocking(client.Producer.reply)

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
        future: InterruptibleFuture[SendResult] = InterruptibleFuture()
        self._calls.put((message, future, timeout_s), thread.loop)
        return future.result()

    @overload
    def submit(self, message: Message, *, timeout_s: float | None = None) -> "Future[SendResult]": ...

    @overload
    def submit(self, message: Message, callback: OnSent, *, timeout_s: float | None = None) -> None: ...

    def submit(self, message: Message, callback: OnSent | None = None, *, timeout_s: float | None = None) -> "Future[SendResult] | None":
        """Send one message and return the future of its result at once; or call ``callback`` with it.

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
                self._client.refused(size)
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
        future: InterruptibleFuture[SendResult] = InterruptibleFuture()
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
        """Counts of traces by outcome so far; all zero without ``trace``."""
        return self._client.trace_stats

    @property
    def batching_stats(self) -> BatchingStats:
        """What AutoBatch has done so far; all zero without batching."""
        return self._client.batching_stats


# A message, the receiver of its outcome, and its timeout: the form in which a thread hands a send to the loop.
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
