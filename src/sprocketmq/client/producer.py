"""The producer: one message, one future, or a batch at a time; retried elsewhere within one time budget."""

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Literal, Self

from sprocketmq.client.delivery import BATCH, SINGLE, STATUSES, Delivery, Job, Publisher, Target
from sprocketmq.client.encoding import BatchResults, MessageEncoder, header
from sprocketmq.client.instance import CLOSING, OPEN, Instance
from sprocketmq.client.routes import Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import (
    BatchPartlySent,
    ClientClosed,
    ConfigError,
    MaybeStoredError,
    SendQueueFull,
    SprocketError,
)
from sprocketmq.net.client import Connection
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command
from sprocketmq.protocol.compression import CompressionType
from sprocketmq.protocol.headers import SendResponse
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import Message, MessageQueue, SendResult
from sprocketmq.protocol.names import check_group, check_send_topic

SEND_TIMEOUT_S = 3.0
# Tries after the first that reached a broker; see ``Producer``.
RETRIES = 2
MAX_MESSAGE_BYTES = 4_194_304
COMPRESS_OVER_BYTES = 4096
MAX_IN_FLIGHT = 10_000
MAX_IN_FLIGHT_BYTES = 100 << 20

DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"

# A frame has to hold the header too, with up to 32 KiB of properties.
_MAX_BODY_BYTES = MAX_FRAME_LENGTH - (256 << 10)

Compression = CompressionType | Literal["zlib", "lz4", "zstd"]


class _Pending:
    """One submitted message; called back with the future of its response."""

    __slots__ = (
        "body",
        "deadline",
        "future",
        "message",
        "producer",
        "properties",
        "publisher",
        "started",
        "sys_flag",
        "target",
        "timeout_s",
        "uniq_key",
    )

    publisher: Publisher
    target: Target

    def __init__(
        self,
        producer: "Producer",
        message: Message,
        body: bytes,
        sys_flag: int,
        uniq_key: str,
        properties: bytes,
        timeout_s: float,
    ) -> None:
        loop = producer._loop
        self.producer = producer
        self.message = message
        self.body = body
        self.sys_flag = sys_flag
        self.uniq_key = uniq_key
        self.properties = properties
        self.timeout_s = timeout_s
        self.deadline = loop.time() + timeout_s
        self.future: asyncio.Future[SendResult] = loop.create_future()

    def fire(self, publisher: Publisher, target: Target, conn: Connection) -> None:
        """Send the request on ``conn``."""
        self.publisher = publisher
        self.target = target
        producer, message = self.producer, self.message
        self.started = now = producer._loop.time()
        ext = header(target.prefix, self.sys_flag, producer._now_ms(), message.flag, self.properties)
        conn.request(SINGLE, ext=ext, body=self.body, timeout_s=self.deadline - now).add_done_callback(self)

    def __call__(self, response: "asyncio.Future[Command]") -> None:
        error = response.exception()
        if error is None:
            command = response.result()
            producer = self.producer
            if producer._faults is not None:
                producer._faults.answered(self.target.broker_name, producer._loop.time() - self.started)
            if not command.code:
                try:
                    self.resolve(producer._result(command, self.publisher, self.target, self.uniq_key))
                except SprocketError as e:
                    self.fail(e)
                return
            self.retry(command)
        elif isinstance(error, SprocketError):
            self.retry(error)
        else:
            self.fail(error)

    def retry(self, failure: SprocketError | Command | None) -> None:
        self.producer._instance.spawn(self._retry(failure))

    async def _retry(self, failure: SprocketError | Command | None) -> None:
        message = self.message
        job = Job(
            self.publisher,
            message.queue,
            self.target,
            self.body,
            self.properties,
            self.sys_flag,
            message.flag,
            self.timeout_s,
            self.deadline,
        )
        try:
            response = await self.producer._delivery.deliver(job, failure)
            self.resolve(self.producer._result(response, self.publisher, job.target, self.uniq_key))
        except asyncio.CancelledError:
            self.fail(MaybeStoredError(f"the producer was closed while message {self.uniq_key} was being sent"))
            raise
        except Exception as e:
            self.fail(e)

    def resolve(self, result: SendResult) -> None:
        self.producer._release(len(self.message.body))
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.producer._release(len(self.message.body))
        if not self.future.done():
            self.future.set_exception(error)


class Producer:
    """Send messages: one at a time, as futures, or as batches.

    ``namesrv`` is ``HOST:PORT``, several joined by ``;``, or a sequence; None reads NAMESRV_ADDR. ``timeout_s`` is the whole time a send
    may take, all tries together. ``retries`` counts further tries after one that a broker refused for the moment or did not answer; each
    prefers another broker. A broker that cannot be reached at all costs no try, only time. A retry keeps the message's id; after a lost
    connection the first try may have been stored too, so a message may be stored twice, never silently lost.

    Bodies of ``compress_over_bytes`` and more are compressed by ``compression`` (zlib, lz4, zstd; None: never); batches are not.
    With ``latency_fault_tolerance`` a broker that answers slowly (0.55 s or more) or fails gets no messages for 2 to 30 s, while there are
    others. With ``retry_another_broker_when_not_store_ok`` a message that was stored, but not as safely as the broker was asked to (see
    ``SendStatus``), is sent to another broker too; the result is the best, or the last.
    Messages to a topic that does not exist yet are sent by the template topic's route, and the broker creates it if it may.

    All methods may be used by any number of tasks of one event loop. Use ``async with``, or ``start`` and ``close``.
    Raises ConfigError for arguments that cannot be.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        compression: Compression | None = "zlib",
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        latency_fault_tolerance: bool = False,
        retry_another_broker_when_not_store_ok: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_group(group)
        if group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(f"the group may not be {group!r}: give your producers a name of their own")
        for name, value in (("timeout_s", timeout_s), ("max_in_flight", max_in_flight), ("max_in_flight_bytes", max_in_flight_bytes)):
            if value <= 0:
                raise ConfigError(f"{name} must be more than 0, not {value}")
        if retries < 0:
            raise ConfigError(f"retries must be 0 or more, not {retries}")
        if not 0 < max_message_bytes <= _MAX_BODY_BYTES:
            raise ConfigError(f"max_message_bytes must be from 1 to {_MAX_BODY_BYTES}, not {max_message_bytes}")
        self.group = group
        self._timeout_s = timeout_s
        self._max_bytes = max_message_bytes
        self._compression = _compression_type(compression)
        self._compress_over = compress_over_bytes
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._clock = clock
        self._now_ms = clock.time_ms
        self._instance = Instance(namesrv, kind="Producer", clock=clock, on_route=self._on_route)
        self._instance.producer_groups.append(group)
        self._peek = self._instance.brokers.peek
        self._delivery = Delivery(
            self._instance,
            group,
            retries=retries,
            latency_fault_tolerance=latency_fault_tolerance,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
        )
        self._faults = self._delivery.faults
        self._publishers = self._delivery.publishers
        self._open = self._delivery.open
        self._result = self._delivery.result
        self._backlogs: dict[str, deque[_Pending]] = {}
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    # --- life ---

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        await self._instance.start()
        self._loop = asyncio.get_running_loop()
        ids = MessageIdFactory(self._instance.namesrv.local_ip, os.getpid(), self._clock)
        self._encoder = MessageEncoder(
            ids, max_message_bytes=self._max_bytes, compression=self._compression, compress_over_bytes=self._compress_over
        )

    async def close(self) -> None:
        """Refuse further messages, wait for those in flight (they end by their time-outs at the latest), unregister, disconnect."""
        try:
            if self._instance.state == OPEN:
                self._instance.state = CLOSING
                await self.flush()
        finally:
            await self._instance.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # --- sending ---

    async def send(self, message: Message, *, timeout_s: float | None = None) -> SendResult:
        """Send one message and return where it was stored. ``timeout_s`` replaces the producer's.

        Raises InvalidMessage, InvalidName or MessageTooLarge before anything is sent; TopicNotFound; BrokerError when it was refused for
        good; a RetriableError (ConnectFailed, BrokerBusy, NameserverUnavailable) when nothing was stored but may be later; and
        MaybeStoredError when an answer was lost, so that nobody knows.
        """
        if self._instance.state != OPEN:
            self._instance.refuse()
        if timeout_s is None:
            timeout_s = self._timeout_s
        topic = message.topic
        deadline = self._loop.time() + timeout_s
        body, sys_flag = self._encoder.body(message)
        uniq_key, properties = self._encoder.single(message)
        size = len(message.body)
        self._in_flight += 1
        self._in_flight_bytes += size
        try:
            publisher = self._publishers.get(topic)
            if publisher is None:
                publisher = await self._open(topic, timeout_s)
            queue = message.queue
            target = publisher.next() if queue is None else publisher.pinned(queue)
            conn = self._peek(target.address)
            failure: SprocketError | Command | None = None
            if conn is not None:
                ext = header(target.prefix, sys_flag, self._now_ms(), message.flag, properties)
                started = self._loop.time()
                try:
                    response = await conn.request(SINGLE, ext=ext, body=body, timeout_s=deadline - started)
                except SprocketError as e:
                    failure = e
                else:
                    if self._faults is not None:
                        self._faults.answered(target.broker_name, self._loop.time() - started)
                    if not response.code:
                        return self._result(response, publisher, target, uniq_key)
                    failure = response
            job = Job(publisher, queue, target, body, properties, sys_flag, message.flag, timeout_s, deadline)
            response = await self._delivery.deliver(job, failure)
            return self._result(response, publisher, job.target, uniq_key)
        finally:
            self._release(size)

    def submit(self, message: Message, *, timeout_s: float | None = None) -> "asyncio.Future[SendResult]":
        """Send one message and return the future of its result at once.

        Messages of one topic leave in the order of their calls. Raises what ``send`` raises before sending, and SendQueueFull when
        ``max_in_flight`` messages or ``max_in_flight_bytes`` bytes of bodies are not answered yet (see ``room``); the future raises the rest.
        """
        if self._instance.state != OPEN:
            self._instance.refuse()
        if self._in_flight:
            if self._in_flight >= self._max_in_flight:
                raise SendQueueFull("messages", self._max_in_flight)
            if self._in_flight_bytes + len(message.body) > self._max_in_flight_bytes:
                raise SendQueueFull("bytes", self._max_in_flight_bytes)
        return self._submit(message, timeout_s)

    def _submit(self, message: Message, timeout_s: float | None) -> "asyncio.Future[SendResult]":
        size = len(message.body)
        topic = message.topic
        publisher = self._publishers.get(topic)
        if publisher is None:
            check_send_topic(topic)
        body, sys_flag = self._encoder.body(message)
        uniq_key, properties = self._encoder.single(message)
        pending = _Pending(self, message, body, sys_flag, uniq_key, properties, self._timeout_s if timeout_s is None else timeout_s)
        if publisher is not None and topic not in self._backlogs:
            queue = message.queue
            target = publisher.next() if queue is None else publisher.pinned(queue)
            conn = self._peek(target.address)
            if conn is not None:
                self._in_flight += 1
                self._in_flight_bytes += size
                pending.fire(publisher, target, conn)
                return pending.future
        self._in_flight += 1
        self._in_flight_bytes += size
        backlog = self._backlogs.get(topic)
        if backlog is None:
            backlog = self._backlogs[topic] = deque()
            self._instance.spawn(self._work_off(topic, backlog))
        backlog.append(pending)
        return pending.future

    async def send_batch(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> BatchResults:
        """Send messages of one topic in as few requests as ``max_message_bytes`` allows, and return one result for each, in order.

        All go to one queue (the messages' own, which must then be the same), one request after the other, so they keep their order unless
        a retry moves the rest to another broker. ``timeout_s`` is for each request with its retries. Raises BatchError for an empty batch
        or one that mixes topics, queues or wait_store_ok; what ``send`` raises, with the index of the message; BatchPartlySent when a
        later request failed, with the results of those before.
        """
        if self._instance.state != OPEN:
            self._instance.refuse()
        if timeout_s is None:
            timeout_s = self._timeout_s
        batch = messages if isinstance(messages, list | tuple) else list(messages)
        encoded = self._encoder.batch(batch)
        first = batch[0]
        queue = first.queue
        size = sum([len(part.body) for part in encoded])
        self._in_flight += 1
        self._in_flight_bytes += size
        results = BatchResults(first.topic)
        address = ""
        try:
            publisher = self._publishers.get(first.topic)
            if publisher is None:
                publisher = await self._open(first.topic, timeout_s)
            target = publisher.next() if queue is None else publisher.pinned(queue)
            for part in encoded:
                properties = self._encoder.outer_properties(wait_store_ok=first.wait_store_ok, tag=part.tag, keys=part.keys)
                address = target.address
                started = self._loop.time()
                deadline = started + timeout_s
                conn = self._peek(address)
                failure: SprocketError | Command | None = None
                response: Command | None = None
                if conn is not None:
                    ext = header(target.batch_prefix, 0, self._now_ms(), 0, properties)
                    try:
                        response = await conn.request(BATCH, ext=ext, body=part.body, timeout_s=timeout_s)
                    except SprocketError as e:
                        failure = e
                    else:
                        if self._faults is not None:
                            self._faults.answered(target.broker_name, self._loop.time() - started)
                        if response.code:
                            failure, response = response, None
                if response is None:
                    job = Job(publisher, queue, target, part.body, properties, 0, 0, timeout_s, deadline, batch=True)
                    response = await self._delivery.deliver(job, failure)
                    target = job.target
                stored = response.header(SendResponse)
                results.add(part.uniq_keys, stored, STATUSES[response.code], target.broker_name)
        except SprocketError as e:
            if len(results):
                raise BatchPartlySent(results, len(batch), address=address, cause=e) from e
            raise
        finally:
            self._release(size)
        if publisher.provisional:
            self._instance.refresh_soon(publisher.topic)
        return results

    async def flush(self) -> None:
        """Wait until every message sent or submitted so far is answered or has failed."""
        await self._wait_below(1)

    async def room(self) -> None:
        """Wait until ``submit`` takes messages again: at once below the bounds, else when half of what is in flight is answered."""
        if self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes:
            await self._wait_below(max(1, self._in_flight // 2))

    @property
    def in_flight(self) -> int:
        """Messages (and batch requests) that are not answered yet."""
        return self._in_flight

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues a message to ``topic`` may be sent to. Raises TopicNotFound or NameserverUnavailable."""
        self._instance.check()
        publisher = self._publishers.get(topic) or await self._open(topic, self._timeout_s)
        return list(publisher.route.publish_queues)

    # --- inside ---

    async def _wait_below(self, amount: int) -> None:
        while self._in_flight >= amount:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((amount, waiter))
            await waiter

    def _release(self, size: int) -> None:
        self._in_flight = left = self._in_flight - 1
        self._in_flight_bytes -= size
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for amount, waiter in waiters:
                if left >= amount:
                    self._waiters.append((amount, waiter))
                elif not waiter.done():
                    waiter.set_result(None)

    def _on_route(self, route: Route) -> None:
        self._delivery.on_route(route)

    async def _work_off(self, topic: str, backlog: "deque[_Pending]") -> None:
        """Send what was submitted before its topic's route or a connection was there, in order."""
        pending: _Pending | None = None
        try:
            while backlog:
                publisher = self._publishers.get(topic) or await self._open(topic, backlog[0].timeout_s)
                pending = backlog.popleft()
                queue = pending.message.queue
                try:
                    target = publisher.next() if queue is None else publisher.pinned(queue)
                    pending.publisher, pending.target = publisher, target
                    conn = await self._delivery.connect(target.address, pending.deadline)
                except ConfigError as e:
                    pending.fail(e)
                except SprocketError as e:
                    pending.retry(e)
                else:
                    pending.fire(publisher, target, conn)
                pending = None
        except asyncio.CancelledError:
            error: BaseException = ClientClosed("the producer was closed before the message was sent")
            for left in [*([pending] if pending else []), *backlog]:
                left.fail(error)
            raise
        except Exception as e:
            for left in backlog:
                left.fail(e)
        finally:
            del self._backlogs[topic]


def _compression_type(compression: Compression | None) -> CompressionType | None:
    if compression is None or isinstance(compression, CompressionType):
        return compression
    try:
        return CompressionType[compression.upper()]
    except (KeyError, AttributeError):
        raise ConfigError(f"compression must be 'zlib', 'lz4', 'zstd' or None, not {compression!r}") from None
