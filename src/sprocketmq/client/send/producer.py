"""The producer: one message, one future, or a batch at a time; retried elsewhere within one time budget."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import overload

import msgspec

from sprocketmq.client.arguments import Compression, check_number, check_timeout, compression_type
from sprocketmq.client.instance import CLOSING, OPEN, Instance
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.send.batching import ALONE, OTHERWISE, Accumulator, Batch, Batching, BatchingStats, BatchKey, no_stats
from sprocketmq.client.send.delivery import SINGLE, Delivery, Job, read_receipt
from sprocketmq.client.send.encoding import BatchResults, MessageEncoder, header, queue_of
from sprocketmq.client.send.flights import BatchFlight, Flight, OnSent, SingleFlight, Waiter
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import (
    BatchPartlySent,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    InvalidMessage,
    NotAMessage,
    RetriableError,
    SendQueueFull,
    SendTimeout,
    SprocketError,
)
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import Message, MessageQueue, SendResult, unsendable
from sprocketmq.protocol.names import RETRY_PREFIX, check_group, check_send_topic

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


class Producer(Client):
    """Send messages: one at a time, as futures, or as batches.

    ``namesrv`` is ``HOST:PORT``, several joined by ``;``, or a sequence; None reads NAMESRV_ADDR. ``timeout_s`` is the whole time a send
    may take, all tries together. ``retries`` counts further tries after one that a broker refused for the moment or did not answer; each
    prefers another broker. A broker that cannot be reached at all costs no try, only time. A retry keeps the message's id; after a lost
    connection the first try may have been stored too, so a message may be stored twice, never silently lost.

    With ``batching`` (or ``auto_batch=True``, which is ``Batching()``) ``send`` and ``submit`` gather messages into batches, and each still
    gets a result, or an error, of its own; see ``Batching`` for what travels together and when. Delayed messages, messages to retry topics
    and calls with a ``timeout_s`` of their own are sent by themselves; so are ``send_batch`` requests. The producer's ``timeout_s`` then
    begins when the batch leaves. ``batching_stats`` tells what came of it. Messages with the same topic, tag and queue keep their order;
    messages of different tags to one queue may overtake each other.

    At most ``max_in_flight`` messages and ``max_in_flight_bytes`` bytes of bodies are not answered yet: beyond them ``submit`` raises, and
    ``send`` and ``send_batch`` (one request counts as one message) wait.

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
        batching: Batching | None = None,
        auto_batch: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_group(group)
        if group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(f"the group may not be {group!r}: give your producers a name of their own")
        check_number("timeout_s", timeout_s, over=0)
        check_number("max_in_flight", max_in_flight, least=1, whole=True)
        check_number("max_in_flight_bytes", max_in_flight_bytes, least=1, whole=True)
        check_number("retries", retries, least=0, whole=True)
        check_number("compress_over_bytes", compress_over_bytes, least=0, whole=True)
        check_number("max_message_bytes", max_message_bytes, least=1, most=_MAX_BODY_BYTES, whole=True)
        self.group = group
        self._timeout_s = timeout_s
        self._max_bytes = max_message_bytes
        self._compression = compression_type(compression)
        self._compress_over = compress_over_bytes
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._clock = clock
        self._now_ms = clock.time_ms
        self._instance = Instance(namesrv, kind="Producer", clock=clock)
        self._instance.producer_groups.append(group)
        self._peek = self._instance.brokers.peek
        self._delivery = Delivery(
            self._instance,
            group,
            retries=retries,
            latency_fault_tolerance=latency_fault_tolerance,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
        )
        self._instance.on_route = self._delivery.on_route
        self._faults = self._delivery.faults
        self._publishers = self._delivery.publishers
        self._open = self._delivery.open
        self._result = self._delivery.result
        self._backlogs: dict[str, deque[Flight]] = {}
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._woken: list[asyncio.Future[None]] = []  # what they waited for has come; they are told after all others
        # Told of messages that ``_accept`` took, when they are answered or have failed: how many, and the bytes of their bodies.
        self._on_landed: Callable[[int, int], None] | None = None
        if auto_batch and batching is None:
            batching = Batching()
        self._gathered: Accumulator[Waiter] | None = None
        if batching is not None:
            if not isinstance(batching, Batching):
                raise ConfigError(f"batching must be a Batching, not {batching!r}")
            self._gathered = Accumulator(batching, clock, max_message_bytes=max_message_bytes)
        self._acting = self._turn_ending = self._due_set = False

    # --- life ---

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        self._instance.check_loop()
        async with self._instance.changing:
            if self._instance.state == OPEN:
                return
            await self._instance.start()
            self._loop = asyncio.get_running_loop()
            self._ids = MessageIdFactory(self._instance.namesrv.local_ip, os.getpid(), self._clock)
            self._encoder = MessageEncoder(
                self._ids, max_message_bytes=self._max_bytes, compression=self._compression, compress_over_bytes=self._compress_over
            )

    async def close(self) -> None:
        """Refuse further messages, wait for those in flight (they end by their time-outs at the latest), unregister, disconnect."""
        self._instance.check_loop()
        async with self._instance.changing:
            try:
                if self._instance.state == OPEN:
                    self._instance.state = CLOSING
                    await self._flush()
            finally:
                await self._instance.close()

    def _left_open(self) -> str:
        return f"{super()._left_open()} with {self._in_flight} message{'s' * (self._in_flight != 1)} on the way"

    # --- sending ---

    async def send(self, message: Message, *, timeout_s: float | None = None) -> SendResult:
        """Send one message and return where it was stored.

        ``timeout_s`` replaces the producer's; a message with its own is never gathered into a batch. A task that is cancelled meanwhile
        takes nothing back: the message may be stored. Every message of a batch that fails gets an error of the same type.
        Raises InvalidMessage, InvalidName or MessageTooLarge before anything is sent; TopicNotFound; BrokerError when it was refused for
        good; a RetriableError (ConnectFailed, BrokerBusy, SendTimeout, NameserverUnavailable) when nothing was stored but may be later; and
        MaybeStoredError when an answer was lost, so that nobody knows. Waits for ``room`` first, up to its whole time; then SendQueueFull.
        """
        instance = self._instance
        if get_ident() != instance.home or not instance.running():
            instance.refuse()
        if self._full:
            await self._wait_for_room(self._timeout_s if timeout_s is None else timeout_s)
        try:
            lone: BatchKey | None = None
            if timeout_s is None:
                gathered = self._gathered
                if gathered is not None:
                    lone = self._lone(gathered, message)
                    if lone is None:
                        future: asyncio.Future[SendResult] = self._loop.create_future()
                        if self._gather(gathered, message, future):
                            return await future
                timeout_s = self._timeout_s
            check_timeout(timeout_s)
            topic = message.topic
            deadline = self._loop.time() + timeout_s
            size = len(message.body)
            self._in_flight += 1
            self._in_flight_bytes += size
            try:
                body, sys_flag = self._encoder.body(message)
                uniq_key, properties = self._encoder.single(message)
                publisher = self._publishers.get(topic)
                if publisher is None:
                    publisher = await self._open(topic, timeout_s)
                queue = message.queue
                target = publisher.next() if queue is None else publisher.pinned(queue)
                conn = self._peek(target.address)
                failure: SprocketError | Command | None = None
                started = self._loop.time()
                if conn is not None and started < deadline:
                    ext = header(target.prefix, sys_flag, self._now_ms(), message.flag, properties)
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
                self._release(1, size)
                self._wake()
                if lone is not None:
                    self._lone_done(lone, size)
        except (AttributeError, TypeError, ConfigError) as e:
            raise unsendable(message, e) from None

    @overload
    def submit(self, message: Message, *, timeout_s: float | None = None) -> "asyncio.Future[SendResult]": ...

    @overload
    def submit(self, message: Message, callback: OnSent, *, timeout_s: float | None = None) -> None: ...

    def submit(
        self, message: Message, callback: OnSent | None = None, *, timeout_s: float | None = None
    ) -> "asyncio.Future[SendResult] | None":
        """Send one message and return the future of its result at once; or have ``callback`` called, which costs less.

        ``callback(result, error)`` is called as soon as the outcome is known, one of the two being None; what it raises is logged, and
        nobody else is harmed. Messages of one topic leave in the order of their calls, but for those that have to be tried again; with batching
        those that may share a batch do (see ``Batching``). Raises what ``send`` raises before sending, and SendQueueFull when
        ``max_in_flight`` messages or ``max_in_flight_bytes`` bytes of bodies are not answered yet (see ``room``); the future raises the rest.
        """
        if get_ident() != self._instance.home:
            self._instance.refuse()
        future: asyncio.Future[SendResult] | None = None
        try:
            count = self._in_flight + 1
            size = self._in_flight_bytes + len(message.body)
            if count > self._max_in_flight:
                raise SendQueueFull("messages", self._max_in_flight)
            if size > self._max_in_flight_bytes and count > 1:
                raise SendQueueFull("bytes", self._max_in_flight_bytes)
            waiter: Waiter
            if callback is not None:
                waiter = callback
            else:
                waiter = future = self._loop.create_future()
            gathered = self._gathered
            if gathered is not None and timeout_s is None:
                outcome = gathered.join(message, waiter)
                if outcome != OTHERWISE:
                    self._in_flight = count
                    self._in_flight_bytes = size
                    if outcome:
                        self._act()
                    return future
                if not gathered.adaptive:  # as ``_accept`` does, without another try of the short form
                    if not self._add(gathered, message, waiter):
                        self._alone(message, waiter, self._timeout_s)
                    return future
            self._accept(message, waiter, timeout_s)
        except (AttributeError, TypeError, ConfigError) as e:
            raise unsendable(message, e) from None
        return future

    async def send_batch(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> BatchResults:
        """Send messages of one topic in as few requests as ``max_message_bytes`` allows, and return one result for each, in order.

        All go to one queue (the messages' own, which must then be the same), one request after the other, so they keep their order unless
        a retry moves the rest to another broker. ``timeout_s`` is for each request with its retries. Raises BatchError for an empty batch
        or one that mixes topics, queues or wait_store_ok; what ``send`` raises, with the index of the message; BatchPartlySent when a
        later request failed, with the results of those before. A topic that keeps batches whole filters by the tag that all messages of
        a batch have: those of a batch with several tags reach only consumers that subscribe to everything. Waits for room as ``send`` does.
        """
        instance = self._instance
        if get_ident() != instance.home or not instance.running():
            instance.refuse()
        if timeout_s is None:
            timeout_s = self._timeout_s
        check_timeout(timeout_s)
        if isinstance(messages, Message | str | bytes | type) or not isinstance(messages, Iterable):
            raise NotAMessage(f"send_batch takes a list of messages, not {type(messages).__name__}: send takes a single Message")
        batch = messages if isinstance(messages, list | tuple) else list(messages)
        encoded = self._encoder.batch(batch)
        if self._full:
            await self._wait_for_room(timeout_s)
        first = batch[0]
        queue = queue_of(first)
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
                deadline = self._loop.time() + timeout_s
                job = Job(publisher, queue, target, part.body, properties, 0, 0, timeout_s, deadline, batch=True)
                response = await self._delivery.deliver(job, None)
                target = job.target
                results.add(read_receipt(response, part.uniq_keys, first.topic, target))
        except SprocketError as e:
            if len(results):
                raise BatchPartlySent(results, len(batch), address=address, cause=e) from e
            raise
        finally:
            self._release(1, size)
            self._wake()
        if publisher.provisional:
            self._instance.refresh_soon(publisher.topic)
        return results

    async def send_encoded(
        self,
        topic: str,
        body: bytes | memoryview,
        properties: str,
        *,
        batch: bool,
        queue: MessageQueue | None = None,
        flag: int = 0,
        born_timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one request that the caller has encoded, and return where it is stored, its first message in a batch.

        ``body`` is a batch body (protocol/batch.py), or with ``batch`` false a message's; it may not change until the answer is there.
        ``properties`` is the property string of the request, with UNIQ_KEY. Nothing of either is checked, and nothing is compressed; the
        result has no ``msg_id``. Raises what ``send`` raises.
        """
        instance = self._instance
        if get_ident() != instance.home or not instance.running():
            instance.refuse()
        if timeout_s is None:
            timeout_s = self._timeout_s
        check_timeout(timeout_s)
        if self._full:
            await self._wait_for_room(timeout_s)
        size = len(body)
        self._in_flight += 1
        self._in_flight_bytes += size
        try:
            deadline = self._loop.time() + timeout_s
            publisher = self._publishers.get(topic) or await self._open(topic, timeout_s)
            target = publisher.next() if queue is None else publisher.pinned(queue)
            job = Job(
                publisher, queue, target, body, msgspec.json.encode(properties), 0, flag, timeout_s, deadline, batch, born_timestamp_ms
            )
            response = await self._delivery.deliver(job, None)
            return self._result(response, publisher, job.target, "")
        finally:
            self._release(1, size)
            self._wake()

    async def flush(self) -> None:
        """Send what is gathered and wait until nothing is in flight: every message so far is answered or has failed, and callbacks know."""
        self._instance.check()
        await self._flush()

    async def _flush(self) -> None:
        self._send_gathered()
        await self._wait_below(1)

    async def room(self) -> None:
        """Wait until ``submit`` takes messages again: at once below the bounds, else when half of what is in flight is answered."""
        self._instance.check()
        if self._full:
            self._send_gathered()  # nothing can join those batches now
            await self._wait_below(max(1, self._in_flight // 2))

    @property
    def _full(self) -> bool:
        return self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes

    async def _wait_for_room(self, timeout_s: float) -> None:
        check_timeout(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                while self._full:  # others that waited may have been quicker
                    await self.room()
        except TimeoutError:
            if self._in_flight >= self._max_in_flight:
                raise SendQueueFull("messages", self._max_in_flight) from None
            raise SendQueueFull("bytes", self._max_in_flight_bytes) from None
        self._instance.check()

    @property
    def batching_stats(self) -> BatchingStats:
        """What AutoBatch has done so far; all zero without batching."""
        return self._gathered.stats() if self._gathered is not None else no_stats()

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

    def _accept(self, message: Message, waiter: Waiter, timeout_s: float | None) -> None:
        """Send one message whose outcome ``waiter`` gets. Raises what keeps it from being sent at all; ``waiter`` is left alone then."""
        gathered = self._gathered
        if gathered is None or timeout_s is not None:
            self._alone(message, waiter, self._timeout_s if timeout_s is None else timeout_s)
            return
        lone = self._lone(gathered, message) if gathered.adaptive else None
        if lone is not None:
            try:
                self._alone(message, waiter, self._timeout_s, lone)
            except BaseException:
                self._lone_done(lone, len(message.body))
                raise
        elif not self._gather(gathered, message, waiter):
            self._alone(message, waiter, self._timeout_s)

    def _alone(self, message: Message, waiter: Waiter, timeout_s: float, lone: BatchKey | None = None) -> None:
        check_timeout(timeout_s)
        topic, queue = message.topic, message.queue
        publisher = self._publishers.get(topic)
        if publisher is None:
            check_send_topic(topic)
        elif queue is not None:
            publisher.pinned(queue)
        body, sys_flag = self._encoder.body(message)
        uniq_key, properties = self._encoder.single(message)
        size = len(message.body)
        flight = SingleFlight(
            self,
            topic,
            queue,
            body,
            properties,
            timeout_s,
            waiter=waiter,
            uniq_key=uniq_key,
            size=size,
            sys_flag=sys_flag,
            flag=message.flag,
            lone=lone,
        )
        self._in_flight += 1
        self._in_flight_bytes += size
        self._launch(flight)

    def _lone(self, gathered: Accumulator[Waiter], message: Message) -> BatchKey | None:
        """Return the key of a message that leaves at once, as nothing of its kind waits or is on its way; ``_lone_done`` takes it back."""
        if not gathered.adaptive or message.delay_level or message.deliver_at_ms is not None:
            return None
        key = (message.topic, message.tag, message.wait_store_ok, queue_of(message))
        try:
            return key if gathered.lone(key, len(message.body)) else None
        except TypeError:  # something that no key can have; whoever encodes the message says what
            return None

    def _lone_done(self, key: BatchKey, size: int) -> None:
        if self._gathered is not None:
            self._gathered.lone_done(key, size)
            self._act()

    def _gather(self, gathered: Accumulator[Waiter], message: Message, waiter: Waiter) -> bool:
        """Put a message into a batch; False when it has to be sent by itself. Raises what keeps it from being sent at all."""
        outcome = gathered.join(message, waiter)
        if outcome == OTHERWISE:
            return self._add(gathered, message, waiter)
        self._in_flight += 1
        self._in_flight_bytes += len(message.body)
        if outcome:
            self._act()
        return True

    def _add(self, gathered: Accumulator[Waiter], message: Message, waiter: Waiter) -> bool:
        """Do what ``_gather`` does for a message that the short form has not taken."""
        topic, queue = message.topic, message.queue
        key = (topic, message.tag, message.wait_store_ok, queue_of(message))
        try:
            batch = gathered.open.get(key)
        except TypeError:  # something that no key can have; what follows says what
            batch = None
        if batch is None:
            publisher = self._publishers.get(topic) if type(topic) is str else None
            if publisher is None:
                check_send_topic(topic)
            if queue is not None:
                if not isinstance(queue, MessageQueue):
                    raise InvalidMessage(f"the queue must be a MessageQueue, not {queue!r}")
                if publisher is not None:
                    publisher.pinned(queue)
        entry = self._encoder.entry(message)
        keys = (message.keys,) if type(message.keys) is str else message.keys
        if message.delay_level or message.deliver_at_ms is not None or (batch is None and topic.startswith(RETRY_PREFIX)):
            outcome = gathered.alone(key)
        else:
            plain = not (keys or message.properties or message.flag)
            outcome = OTHERWISE if batch is None or plain else gathered.put(batch, entry, keys, waiter)
            if outcome == OTHERWISE:
                common = self._encoder.common(message.tag) if message.wait_store_ok else None
                outcome = gathered.add(key, entry, waiter, keys=keys, plain=plain, common=common)
        if outcome == ALONE:
            self._act()
            return False
        self._in_flight += 1
        self._in_flight_bytes += len(message.body)
        if outcome:
            self._act()
        return True

    def _act(self) -> None:
        """Send the batches that are to leave, and see to it that the others leave in time."""
        gathered = self._gathered
        if gathered is None or self._acting:  # a batch may fail while it is launched; the loop below goes on with the next
            return
        batch = gathered.take()
        if batch is not None:
            self._acting = True
            try:
                while batch is not None:
                    self._launch(BatchFlight(self, batch, self._timeout_s))
                    batch = gathered.take()
            finally:
                self._acting = False
        if gathered.eager:
            if not self._turn_ending:
                self._turn_ending = True
                self._loop.call_soon(self._end_turn)
        elif not self._due_set and (due := gathered.next_due()) is not None:
            self._due_set = True
            self._instance.timers.call_later(due - self._clock.monotonic(), self._expire)

    def _end_turn(self) -> None:
        self._turn_ending = False
        if self._gathered is not None:
            self._gathered.end_turn()
            self._act()
            for conn in self._instance.brokers.open_connections():
                conn.flush()  # the turn is over: another one would only add to the latency

    def _expire(self) -> None:
        self._due_set = False
        if self._gathered is not None:
            self._gathered.expire()
            self._act()

    def _send_gathered(self) -> None:
        if self._gathered is not None:
            self._gathered.flush()
            self._act()

    def _launch(self, flight: Flight) -> None:
        """Send a request now, or in its turn when the topic's route or a connection is not there yet."""
        topic = flight.topic
        publisher = self._publishers.get(topic)
        if publisher is not None and topic not in self._backlogs:
            queue = flight.queue
            try:
                target = publisher.next() if queue is None else publisher.pinned(queue)
            except InvalidMessage as e:
                flight.fail(e)
                return
            conn = self._peek(target.address)
            if conn is not None:
                flight.fire(publisher, target, conn)
                return
        backlog = self._backlogs.get(topic)
        if backlog is None:
            backlog = self._backlogs[topic] = deque()
            working = self._instance.spawn(self._work_off(topic, backlog), f"first sends to {topic}")
            working.add_done_callback(lambda _: self._worked_off(topic, backlog))
        backlog.append(flight)

    def _landed(self, count: int, size: int) -> None:
        """Take note that the outcome of ``count`` accepted messages with bodies of ``size`` bytes is known, before anybody is told: callbacks
        may want their room. ``_wake`` comes after them.
        """
        self._release(count, size)
        if self._on_landed is not None:
            self._on_landed(count, size)

    def _batch_done(self, batch: Batch[Waiter]) -> None:
        if self._gathered is not None:
            self._gathered.done(batch)

    async def _wait_below(self, amount: int) -> None:
        # Once it was below, that is enough: callbacks may have submitted more before this task goes on.
        if self._in_flight >= amount:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((amount, waiter))
            await waiter

    def _release(self, count: int, size: int) -> None:
        """Let ``count`` messages with bodies of ``size`` bytes no longer count as in flight; ``_wake`` tells those who waited for that."""
        self._in_flight = left = self._in_flight - count
        self._in_flight_bytes -= size
        if self._waiters:
            waiting, self._waiters = self._waiters, []
            for amount, waiter in waiting:
                if left < amount:
                    self._woken.append(waiter)
                else:
                    self._waiters.append((amount, waiter))

    def _wake(self) -> None:
        if self._woken:
            woken, self._woken = self._woken, []
            for waiter in woken:
                if not waiter.done():
                    waiter.set_result(None)

    async def _work_off(self, topic: str, backlog: "deque[Flight]") -> None:
        """Send what was submitted before its topic's route or a connection was there, in order."""
        pending: Flight | None = None
        # Each broker that does not answer is waited for once; what else was to go there is tried elsewhere at once.
        silent: dict[str, str] = {}
        try:
            while backlog:
                publisher = self._publishers.get(topic) or await self._open(topic, backlog[0].timeout_s)
                pending = backlog.popleft()
                queue = pending.queue
                try:
                    target = publisher.next() if queue is None else publisher.pinned(queue)
                    address = target.address
                    pending.publisher, pending.target = publisher, target
                    if address in silent and self._peek(address) is None:
                        raise ConnectFailed(address, "broker", silent[address])
                    conn = await self._delivery.connect(address, pending.deadline)
                    if pending.deadline <= self._loop.time():
                        raise SendTimeout(address, pending.timeout_s)
                except ConfigError as e:
                    pending.fail(e)
                except SprocketError as e:
                    if isinstance(e, ConnectFailed):
                        silent[address] = e.reason
                    pending.retry(e)
                else:
                    pending.fire(publisher, target, conn)
                pending = None
        except Exception as e:
            if pending is not None:
                backlog.appendleft(pending)
            while backlog:
                backlog.popleft().fail(e)
        except asyncio.CancelledError:
            if pending is not None:
                backlog.appendleft(pending)
            raise
        finally:
            del self._backlogs[topic]

    def _worked_off(self, topic: str, backlog: "deque[Flight]") -> None:
        """See to it that what is left is told: the task was cancelled then, perhaps before it ever ran."""
        if self._backlogs.get(topic) is backlog:
            del self._backlogs[topic]
        while backlog:
            closed = self._instance.state != OPEN
            error = ClientClosed("the producer was closed before the message was sent") if closed else RetriableError(_CANCELLED)
            backlog.popleft().fail(error)


_CANCELLED = "the task that was to send the message was cancelled: it is not sent"
