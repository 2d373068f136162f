"""Send a task's requests: the shared producer of a Python process, and the requests in flight of one task."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sprocketmq.client import Producer
from sprocketmq.client.lifecycle import instance_of
from sprocketmq.errors import AccessRefused, BrokerError, ClientClosed, SprocketError
from sprocketmq.net.loops import Inbox, LoopThread
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.security import NO_OPTIONS, SecurityOptions
from sprocketmq.spark.sink.row_batches import RowBatch

if TYPE_CHECKING:
    import asyncio

_R = TypeVar("_R")


class ProducerAccess:
    """A producer on an event loop in its own thread, for blocking code. Raises what the producer raises."""

    def __init__(
        self, nameserver: str, group: str, *, retries: int, timeout_s: float, security: SecurityOptions = NO_OPTIONS, **more: Any
    ) -> None:
        self.security = security
        found = security.resolve()
        self.thread = LoopThread("sprocketmq-spark-sink").start()
        # Each task bounds its requests in flight itself.
        self.producer = Producer(
            group,
            namesrv=nameserver,
            retries=retries,
            timeout_s=timeout_s,
            max_in_flight=1 << 30,
            max_in_flight_bytes=1 << 40,
            credentials=found.credentials,
            tls=found.tls or False,
            **more,
        )
        self.ids = MessageIdFactory()
        self.background = Background("Spark sink")
        try:
            self.wait(self.producer.start)
        except BaseException:
            self.close()
            raise
        # Ids contain the address of the connection, which is not part of the public API of a producer.
        self.ids = MessageIdFactory(instance_of(self.producer).namesrv.local_ip, os.getpid())

    def close(self) -> None:
        """Disconnect and end the thread. Harmless when closed already."""
        if not self.thread.alive:
            return
        try:
            self.wait(self.producer.close)
            self.wait(self.background.close)
        finally:
            self.thread.stop()

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the writable queues of ``topic``, in order."""
        return self.wait(partial(self.producer.queues, topic))

    def wait(self, make: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
        """Run the coroutine that ``make`` returns on the loop and wait for its result. Raises UserRefused, and what it raises."""
        try:
            return self.thread.run(make)
        except AccessRefused as e:
            raise self.security.refused(e) from None


_open: dict[tuple[int, tuple[Any, ...]], ProducerAccess] = {}
_lock = threading.Lock()


def producer_access(
    nameserver: str,
    group: str,
    *,
    retries: int,
    timeout_ms: int,
    security: SecurityOptions = NO_OPTIONS,
    more: tuple[tuple[str, bool], ...] = (),
) -> ProducerAccess:
    """Return this process's producer with these settings, created on first use: Spark's Python workers run many tasks."""
    key = (os.getpid(), (nameserver, group, retries, timeout_ms, security, more))
    with _lock:
        access = _open.get(key)
        if access is None:
            access = ProducerAccess(nameserver, group, retries=retries, timeout_s=timeout_ms / 1000, security=security, **dict(more))
            _open[key] = access
            atexit.register(close_producers)
        return access


def close_producers() -> None:
    """Close what ``producer_access`` opened in this process."""
    with _lock:
        for key in [key for key in _open if key[0] == os.getpid()]:
            _open.pop(key).close()


def is_too_large(error: SprocketError) -> bool:
    """Return whether a broker refused a request for its size. Brokers use the same code for invalid delays; only the text differs."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.MESSAGE_ILLEGAL and "body" in str(error)


class Sender:
    """Sends the batches of one task, at most ``max_in_flight`` requests at a time.

    With ``ordered`` a request to a queue is sent when the one before it is answered. A batch that the broker refuses as too large is sent
    in halves with ``halve``. A single message that it refuses is passed to ``refused`` (in the loop thread); without ``refused`` it is an
    error. After the first error nothing more is sent, and ``put`` and ``finish`` raise it.
    """

    def __init__(
        self,
        access: ProducerAccess,
        *,
        max_in_flight: int,
        ordered: bool = False,
        halve: bool = False,
        refused: Callable[[RowBatch, str], None] | None = None,
        failed: Callable[[RowBatch, SprocketError], BaseException] = lambda _, error: error,
    ) -> None:
        self._access = access
        self._room = threading.BoundedSemaphore(max_in_flight)
        self._max_in_flight = max_in_flight
        self._ordered = ordered
        self._halve = halve
        self._refused = refused
        self._failed = failed
        self._batches = Inbox(self._take)
        self.lanes: dict[MessageQueue, deque[RowBatch]] = {}
        self._error: BaseException | None = None
        self.rows = self.requests = self.bytes = 0

    def put(self, batch: RowBatch) -> None:
        """Send a batch, waiting while too many are in flight. Raises the error of an earlier batch."""
        self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error
        self._batches.put(batch, self._access.thread.loop)

    def finish(self) -> None:
        """Wait until every batch is answered or given up. Raises the first error."""
        self._wait()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Send nothing more and wait for the requests in flight, so that nothing of a failed task goes on."""
        if self._error is None:
            self._error = ClientClosed("the task has failed")
        self._wait()

    def _wait(self) -> None:
        for _ in range(self._max_in_flight):
            self._room.acquire()
        for _ in range(self._max_in_flight):
            self._room.release()

    # --- in the loop's thread ---

    def _take(self, batches: deque[RowBatch]) -> None:
        while batches:
            batch = batches.popleft()
            if not self._ordered or batch.queue is None:
                self._spawn(deque([batch]))
                continue
            lane = self.lanes.get(batch.queue)
            if lane is not None:
                lane.append(batch)
            else:
                self.lanes[batch.queue] = lane = deque([batch])
                self._spawn(lane)

    def _spawn(self, lane: deque[RowBatch]) -> None:
        task = self._access.background.spawn(self._lane(lane), "sends of a task", awaited=True)
        task.add_done_callback(partial(self._ended, lane))

    async def _lane(self, lane: deque[RowBatch]) -> None:
        """Send the batches of one queue one after the other, or a single batch."""
        queue = lane[0].queue
        while lane:
            if self._error is None:
                await self._send(lane[0])
            lane.popleft()
            self._room.release()
        if self._ordered and queue is not None:
            del self.lanes[queue]

    def _ended(self, lane: deque[RowBatch], task: "asyncio.Task[None]") -> None:
        """Release the batches that a task left unsent, whatever ended it."""
        if not lane:
            return
        error = ClientClosed("the task that was to send was cancelled") if task.cancelled() else task.exception()
        if self._error is None:
            self._error = error
        if self.lanes.get(queue := lane[0].queue) is lane:  # type: ignore[arg-type]
            del self.lanes[queue]  # type: ignore[arg-type]
        self._room.release(len(lane))
        lane.clear()

    async def _send(self, batch: RowBatch) -> None:
        access = self._access
        body = batch.body()
        try:
            await access.producer.send_encoded(
                batch.topic,
                body,
                batch.properties(access.ids.next),
                batch=not batch.single,
                queue=batch.queue,
                flag=batch.flag(),
                born_timestamp_ms=batch.born_ms,
            )
        except SprocketError as e:
            if isinstance(e, AccessRefused):
                e = access.security.refused(e)
            large = is_too_large(e)
            if large and batch.single and self._refused is not None:
                self._refused(batch, str(e))
                return
            if not large or batch.single or not self._halve:
                raise self._failed(batch, e) from e
            for half in batch.halves():
                await self._send(half)
            return
        self.rows += len(batch)
        self.requests += 1
        self.bytes += len(body)
