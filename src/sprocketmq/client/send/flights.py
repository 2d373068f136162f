"""Send requests on their way: one message, or a gathered batch, each with those who wait for its result."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import InvalidStateError as BlockingStateError
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec

from sprocketmq.client.send.batching import Batch, BatchKey
from sprocketmq.client.send.delivery import BATCH, SINGLE, Job, Publisher, Target, read_receipt
from sprocketmq.client.send.encoding import header
from sprocketmq.errors import MaybeStoredError, SprocketError
from sprocketmq.net.client import Connection
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue, SendResult

if TYPE_CHECKING:
    from sprocketmq.client.send.producer import Producer

log = logging.getLogger(__name__)

OnSent = Callable[[SendResult | None, BaseException | None], object]

_NOT_WAITING = (asyncio.InvalidStateError, BlockingStateError)


# Who is told the outcome: a task of the loop, a callback, or a thread.
Waiter = asyncio.Future[SendResult] | Future[SendResult] | OnSent


def call_back(callback: OnSent, result: SendResult | None, error: BaseException | None) -> None:
    """Call a user's callback; what it raises is logged and goes no further."""
    try:
        callback(result, error)
    except (Exception, asyncio.CancelledError):
        log.exception("the callback of a sent message raised")


def refuse(waiter: Waiter, error: BaseException) -> None:
    """Give out an error. Callbacks are called in the loop's next turn: one that sends again at once must not find itself on its own stack."""
    if callable(waiter):
        asyncio.get_running_loop().call_soon(call_back, waiter, None, error)
        return
    try:
        waiter.set_exception(error)
    except _NOT_WAITING:
        _gone(waiter)
    except AttributeError:  # a callback that is no function: whoever submits does not take the time to look
        log.exception("the callback of a sent message cannot be called")


def _gone(waiter: asyncio.Future[SendResult] | Future[SendResult]) -> None:
    """End a waiter that was cancelled; a thread that waits for several needs to be told."""
    if isinstance(waiter, Future) and waiter.cancelled():
        waiter.set_running_or_notify_cancel()


class Flight:
    """One send request; told the outcome of its first try by the connection, and tried again by the producer's ``Delivery``."""

    __slots__ = (
        "body",
        "deadline",
        "flag",
        "producer",
        "properties",
        "publisher",
        "queue",
        "started",
        "sys_flag",
        "target",
        "timeout_s",
        "topic",
    )

    batch: bool
    publisher: Publisher
    target: Target

    def __init__(
        self, producer: "Producer", topic: str, queue: MessageQueue | None, body: bytes, properties: bytes, timeout_s: float
    ) -> None:
        self.producer = producer
        self.topic = topic
        self.queue = queue
        self.body = body
        self.properties = properties
        self.sys_flag = self.flag = 0
        self.timeout_s = timeout_s
        self.deadline = producer._loop.time() + timeout_s

    def fire(self, publisher: Publisher, target: Target, conn: Connection) -> None:
        """Send the request on ``conn``; it fails when it cannot be written as a frame."""
        self.publisher = publisher
        self.target = target
        producer = self.producer
        self.started = now = producer._loop.time()
        prefix = target.batch_prefix if self.batch else target.prefix
        ext = header(prefix, self.sys_flag, producer._now_ms(), self.flag, self.properties)
        try:
            conn.request_for(self, BATCH if self.batch else SINGLE, ext=ext, body=self.body, timeout_s=self.deadline - now)
        except SprocketError as e:
            self.fail(e)

    # --- what the connection tells (``Receiver``) ---

    def done(self) -> bool:
        return False

    def set_result(self, response: Command) -> None:
        producer = self.producer
        if producer._faults is not None:
            producer._faults.answered(self.target.broker_name, producer._loop.time() - self.started)
        if response.code:
            self.retry(response)
            return
        try:
            self.stored(response, self.target)
        except SprocketError as e:
            self.fail(e)
        except Exception:  # the connection has other requests to look after
            log.exception("the result of a send to %s was not given out", self.topic)

    def set_exception(self, error: SprocketError) -> None:
        self.retry(error)

    # --- outcomes ---

    def retry(self, failure: SprocketError | Command) -> None:
        """Go on in the background after a first try that ended with ``failure``."""
        retrying = self.producer._instance.spawn(self._retry(failure), f"second try of a send to {self.topic}")
        retrying.add_done_callback(self._retried)

    def _retried(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():  # perhaps before it ever ran
            self.fail(MaybeStoredError(f"the producer was closed while a message to {self.topic!r} was being sent"))

    async def _retry(self, failure: SprocketError | Command) -> None:
        job = Job(
            self.publisher,
            self.queue,
            self.target,
            self.body,
            self.properties,
            self.sys_flag,
            self.flag,
            self.timeout_s,
            self.deadline,
            batch=self.batch,
        )
        try:
            response = await self.producer._delivery.deliver(job, failure)
            self.stored(response, job.target)
        except Exception as e:
            self.fail(e)

    def stored(self, response: Command, target: Target) -> None:
        """Give out the result. Raises RemoteProtocolError, with nothing given out, for a response without its fields."""
        raise AssertionError("a subclass knows who waits")

    def fail(self, error: BaseException) -> None:
        """Give out the error."""
        raise AssertionError("a subclass knows who waits")


class SingleFlight(Flight):
    """One submitted message. ``lone`` is its key when it left at once, as nothing of its kind was on its way (adaptive mode)."""

    __slots__ = ("lone", "size", "uniq_key", "waiter")

    batch = False

    def __init__(
        self,
        producer: "Producer",
        topic: str,
        queue: MessageQueue | None,
        body: bytes,
        properties: bytes,
        timeout_s: float,
        *,
        waiter: Waiter,
        uniq_key: str,
        size: int,
        sys_flag: int,
        flag: int,
        lone: BatchKey | None,
    ) -> None:
        super().__init__(producer, topic, queue, body, properties, timeout_s)
        self.waiter = waiter
        self.uniq_key = uniq_key
        self.size = size
        self.sys_flag = sys_flag
        self.flag = flag
        self.lone = lone

    def stored(self, response: Command, target: Target) -> None:
        result = self.producer._delivery.result(response, self.publisher, target, self.uniq_key)
        self._landed()
        waiter = self.waiter
        if callable(waiter):
            call_back(waiter, result, None)
        else:
            try:
                waiter.set_result(result)
            except _NOT_WAITING:
                _gone(waiter)
        self.producer._wake()

    def fail(self, error: BaseException) -> None:
        self._landed()
        refuse(self.waiter, error)
        self.producer._wake()

    def _landed(self) -> None:
        self.producer._landed(1, self.size)
        if self.lone is not None:
            self.producer._lone_done(self.lone, self.size)


class BatchFlight(Flight):
    """One gathered batch; its members are those who wait, and each gets a result, or an error, of its own.

    A batch of one is sent as an ordinary message, which costs the broker and its readers less.
    """

    __slots__ = ("batch", "gathered", "size", "uniq_keys")

    def __init__(self, producer: "Producer", gathered: Batch[Waiter], timeout_s: float) -> None:
        topic, tag, wait_store_ok, queue = gathered.key
        amount = len(gathered.members)
        self.gathered = gathered
        self.batch = amount > 1
        self.size = gathered.body_bytes
        self.uniq_keys = producer._ids.take(amount)
        if self.batch:
            properties = producer._encoder.outer_properties(wait_store_ok=wait_store_ok, tag=tag, keys=gathered.united)
            super().__init__(producer, topic, queue, gathered.encode(self.uniq_keys), properties, timeout_s)
        else:
            flag, body, text = gathered.only(self.uniq_keys[0])
            super().__init__(producer, topic, queue, body, msgspec.json.encode(text), timeout_s)
            self.flag = flag
        gathered.bodies.clear()  # the request has them now
        gathered.rare.clear()

    def stored(self, response: Command, target: Target) -> None:
        receipt = read_receipt(response, self.uniq_keys, self.topic, target)
        producer, publisher, waiters = self.producer, self.publisher, self.gathered.members
        if publisher.provisional:
            producer._instance.refresh_soon(publisher.topic)
        results = map(SendResult, repeat(receipt), range(len(waiters)))
        self._landed()
        try:
            for waiter, result in zip(waiters, results, strict=False):
                if callable(waiter):
                    try:  # ``call_back``, without another call
                        waiter(result, None)
                    except (Exception, asyncio.CancelledError):
                        log.exception("the callback of a sent message raised")
                else:
                    try:
                        waiter.set_result(result)
                    except _NOT_WAITING:
                        _gone(waiter)
                    except AttributeError:
                        log.exception("the callback of a sent message cannot be called")
        finally:
            producer._wake()
            if producer._gathered is not None and producer._gathered.eager:
                producer._act()

    def fail(self, error: BaseException) -> None:
        self._landed()
        try:
            for waiter in self.gathered.members:
                refuse(waiter, _like(error))
        finally:
            self.producer._wake()
            self.producer._act()

    def _landed(self) -> None:
        producer = self.producer
        producer._landed(len(self.gathered.members), self.size)
        producer._batch_done(self.gathered)


def _like(error: BaseException) -> BaseException:
    """Return an error of the same type with the same data: tasks that raise it must not share one traceback."""
    kind = type(error)
    twin = kind.__new__(kind)
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    twin.__cause__ = error.__cause__
    return twin
