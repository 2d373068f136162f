"""The producer: its options, checks and calls. ``outbox.py`` sends the messages to the brokers."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from typing import overload

from sprocketmq.client.arguments import Compression, check_bools, check_number, check_timeout, compression_type
from sprocketmq.client.credentials import CredentialsArgument, resolve
from sprocketmq.client.hook_calls import check_hooks, hook_calls
from sprocketmq.client.hooks import ClientHooks
from sprocketmq.client.instance import Instance
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.loop_bound import CLOSING, OPEN
from sprocketmq.client.send.accumulator import QUEUED, SEND_AT_ONCE, SEND_SINGLY, WAKE, Accumulator, Added
from sprocketmq.client.send.batching import Batching, BatchingStats
from sprocketmq.client.send.encoding import MessageEncoder
from sprocketmq.client.send.explicit_batches import ExplicitBatches
from sprocketmq.client.send.faults import FaultTable
from sprocketmq.client.send.gathering import Gathering
from sprocketmq.client.send.outbox import Outbox
from sprocketmq.client.send.queue_choice import Publishers, lone_queue_of
from sprocketmq.client.send.recalls import recall
from sprocketmq.client.send.request_reply import Requester
from sprocketmq.client.send.requests import SendRequest
from sprocketmq.client.send.results import BatchResults
from sprocketmq.client.send.room import Room
from sprocketmq.client.send.waiters import OnSent, Waiter, WithMessage
from sprocketmq.client.send.waiting_requests import WaitingRequests
from sprocketmq.client.stats import ProducerCounts, ProducerStats
from sprocketmq.client.traces.config import TraceConfig, TraceStats, trace_config
from sprocketmq.client.traces.producer import trace_producer
from sprocketmq.client.traces.sends import SendTraces
from sprocketmq.client.traces.writer import TraceWriter
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError
from sprocketmq.net.client import Connection
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import NO_PROPERTIES, Message, MessageQueue, SendResult, unsendable
from sprocketmq.protocol.names import check_group
from sprocketmq.protocol.records import ReceivedMessage

SEND_TIMEOUT_S = 3.0
# Tries after the first that reached a broker; see ``Producer``.
RETRIES = 2
MAX_MESSAGE_BYTES = 4_194_304
COMPRESS_OVER_BYTES = 4096
MAX_IN_FLIGHT = 10_000
MAX_IN_FLIGHT_BYTES = 100 << 20

DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"

# A frame also holds the header, with up to 32 KiB of properties.
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
    begins when the batch leaves. ``batching_stats`` has the counters. Messages with the same topic, tag and queue keep their order;
    messages of different tags to one queue may overtake each other, unless they have an ordering key.

    At most ``max_in_flight`` messages and ``max_in_flight_bytes`` bytes of bodies are not answered yet: beyond them ``submit`` raises, and
    ``send`` and ``send_batch`` (one request counts as one message) wait.

    Bodies of ``compress_over_bytes`` and more are compressed by ``compression`` (zlib, lz4, zstd; None: never); batches are not.
    With ``latency_fault_tolerance`` a broker that answers slowly (0.55 s or more) or fails gets no messages for 2 to 30 s, while there are
    others. With ``retry_another_broker_when_not_store_ok`` a message that was stored, but not as safely as the broker was asked to (see
    ``SendStatus``), is sent to another broker too; the result is the best, or the last.
    Messages to a topic that does not exist yet are sent by the template topic's route, and the broker creates it if it may.

    All methods may be used by any number of tasks of one event loop. Use ``async with``, or ``start`` and ``close``.
    Raises ConfigError for invalid arguments.

    ``credentials`` (Credentials, a function that returns them, or the path of a file) sign every request; ``tls`` (True or a TlsConfig)
    encrypts all connections; ``secure`` names a directory of ``sprocketmq secure init``, which has both. Without them the environment and
    ``~/.config/sprocketmq`` are used (``sprocketmq.client.credentials`` has the order). ``tls=False`` turns TLS off.

    ``hooks`` are objects whose methods are called for each message and request; see ``ClientHooks``. ``trace`` (True or a TraceConfig)
    writes a trace of each message that was stored, by a producer of its own; see ``TraceConfig`` for its limits.

    Example::

        from sprocketmq import Message, Producer

        async with Producer("shop", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"3 apples", tag="new"))
            print(result.status.name, result.queue_id, result.queue_offset)
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
        credentials: CredentialsArgument | None = None,
        tls: bool | TlsConfig | None = None,
        secure: str | os.PathLike[str] | None = None,
        hooks: Sequence[ClientHooks] = (),
        trace: bool | TraceConfig = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_group(group)
        if group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(f"the group may not be {group!r}: give your producers a name of their own")
        check_hooks(hooks)
        tracing = trace_config(trace)
        check_bools(
            auto_batch=auto_batch,
            latency_fault_tolerance=latency_fault_tolerance,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
        )
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
        self._clock = clock
        if batching is not None and not isinstance(batching, Batching):
            raise ConfigError(f"batching must be a Batching, not {batching!r}")
        self._batching = Batching() if auto_batch and batching is None else batching
        publishers = Publishers(group, FaultTable(clock.monotonic) if latency_fault_tolerance else None)
        self._publishers = publishers
        self._by_topic = publishers.by_topic
        security = resolve(credentials=credentials, tls=tls, secure=secure)
        self._waiting_requests = WaitingRequests(max_in_flight, clock)
        self._instance = Instance(
            namesrv,
            kind="Producer",
            security=security,
            clock=clock,
            on_request=self._brokers_requests(),
            on_route=publishers.on_route,
        )
        self._instance.producer_groups.append(group)
        self._hooks = hook_calls(hooks, group, self._instance)
        counts = ProducerCounts()
        self._trace_writer: TraceWriter | None = None
        self._traces: SendTraces | None = None
        if tracing is not None:
            make = trace_producer(Producer, group, "PRODUCE", namesrv=namesrv, credentials=credentials, tls=tls, secure=secure, clock=clock)
            self._trace_writer = TraceWriter(tracing, group, self._instance, make)
            self._traces = SendTraces(tracing, group, self._instance, self._trace_writer, counts)
        self._room = Room(max_in_flight, max_in_flight_bytes)
        self._outbox = Outbox(
            self._instance,
            publishers,
            self._room,
            counts,
            retries=retries,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
            hooks=self._hooks,
            traces=self._traces,
        )
        self._accumulator: Accumulator[Waiter] | None = None
        # The same without hooks, for the short cut of ``submit``.
        self._direct_accumulator: Accumulator[Waiter] | None = None
        self._gathering: Gathering | None = None

    # --- life ---

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        self._instance.check_loop()
        async with self._instance.changing:
            if self._instance.state == OPEN:
                return
            await self._instance.start()
            self._prepare(self._instance.namesrv.local_ip)

    def _prepare(self, local_ip: str) -> None:
        """Create the parts that need the event loop, or the address of this machine for message ids."""
        self._loop = asyncio.get_running_loop()
        self._outbox.start(self._loop)
        ids = MessageIdFactory(local_ip, os.getpid(), self._clock)
        self._encoder = MessageEncoder(
            ids, max_message_bytes=self._max_bytes, compression=self._compression, compress_over_bytes=self._compress_over
        )
        self._explicit = ExplicitBatches(self._encoder, self._outbox, self._hooks)
        self._requester = Requester(self.group, self._instance, self._outbox, self._encoder, self._waiting_requests)
        if self._batching is not None:
            publishers = self._publishers
            self._accumulator = Accumulator(
                self._batching,
                self._clock,
                self._encoder,
                publishers.check,
                max_message_bytes=self._max_bytes,
                queue_of_key=publishers.queue_of_key,
            )
            if self._hooks is None:
                self._direct_accumulator = self._accumulator
            self._gathering = Gathering(
                self._accumulator,
                self._encoder,
                self._outbox,
                self._instance,
                self._clock,
                self._timeout_s,
                with_messages=self._hooks is not None,
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
                self._waiting_requests.close()
                try:
                    if self._trace_writer is not None:
                        await self._trace_writer.close()
                finally:
                    await self._instance.close()

    def _left_open(self) -> str:
        return f"{super()._left_open()} with {self.in_flight} message{'s' * (self.in_flight != 1)} on the way"

    # --- sending ---

    async def send(self, message: Message, *, timeout_s: float | None = None) -> SendResult:
        """Send one message and return where it was stored.

        ``timeout_s`` replaces the producer's; a message with its own is never gathered into a batch. Cancelling the task does not take the
        message back: it may be stored. Every message of a batch that fails gets an error of the same type.
        Raises InvalidMessage, InvalidName or MessageTooLarge before anything is sent; TopicNotFound or TopicReadOnly; BrokerError when it
        was refused for good; a RetriableError (ConnectFailed, NoBroker, NoMaster, BrokerBusy, SendTimeout, NameserverUnavailable) when
        nothing was stored but may be later; and MaybeStoredError when an answer was lost and the message may be stored or not. Waits for
        ``room`` first, up to its whole time; then SendQueueFull.

        Example::

            from sprocketmq import Message, Producer

            async with Producer("shop", namesrv="127.0.0.1:9876", auto_batch=True) as producer:
                results = await asyncio.gather(*(producer.send(Message("orders", b"%d" % n)) for n in range(100)))
                print(len(results), "stored")
        """
        instance, room = self._instance, self._room
        if get_ident() != instance.home or not instance.running():
            instance.refuse()
        if room.messages >= room.max_messages or room.bytes >= room.max_bytes:
            await self._wait_for_room(self._timeout_s if timeout_s is None else timeout_s)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        request = self.accept(message, future, timeout_s, None, False)
        try:
            return await future
        except asyncio.CancelledError:
            if request is not None:
                self._outbox.abandon(request)
            raise

    @overload
    def submit(self, message: Message, *, timeout_s: float | None = None) -> "asyncio.Future[SendResult]": ...

    @overload
    def submit(self, message: Message, callback: OnSent, *, timeout_s: float | None = None) -> None: ...

    def submit(
        self, message: Message, callback: OnSent | None = None, *, timeout_s: float | None = None
    ) -> "asyncio.Future[SendResult] | None":
        """Send one message and return the future of its result at once; or call ``callback`` with the result, which costs less.

        ``callback(result, error)`` is called as soon as the outcome is known, one of the two being None; what it raises is logged and
        affects no other message. Messages of one topic leave in the order of their calls, except those that are tried again; with batching
        those that may share a batch do (see ``Batching``). Raises what ``send`` raises before sending, and SendQueueFull when
        ``max_in_flight`` messages or ``max_in_flight_bytes`` bytes of bodies are not answered yet (see ``room``); the future raises the
        rest.

        Example::

            from sprocketmq import Message, Producer

            def sent(result, error):
                print(result or error)

            async with Producer("shop", namesrv="127.0.0.1:9876") as producer:
                producer.submit(Message("orders", b"3 apples"), sent)
                await producer.flush()
        """
        if get_ident() != self._instance.home:
            self._instance.refuse()
        room = self._room
        try:
            count = room.messages + 1
            size = room.bytes + len(message.body)
            if count > room.max_messages or (size > room.max_bytes and count > 1):
                raise room.refusal(len(message.body))
            future: asyncio.Future[SendResult] | None = None
            waiter: Waiter
            if callback is not None:
                waiter = callback
            else:
                waiter = future = self._loop.create_future()
            added = None
            accumulator = self._direct_accumulator
            if accumulator is not None and timeout_s is None:
                # Short cut: ``accept`` would cost another 11 % (benchmarks/micro/client.py, submit_auto_batch_callbacks).
                added = accumulator.add(message, waiter)
                if added is QUEUED or added is WAKE:
                    room.messages = count
                    room.bytes = size
                    if added is WAKE:
                        self._wake()
                    return future
            self.accept(message, waiter, timeout_s, added)
        except (AttributeError, TypeError, ConfigError) as e:
            raise unsendable(message, e) from None
        return future

    def accept(
        self,
        message: Message,
        waiter: Waiter,
        timeout_s: float | None = None,
        added: Added | None = None,
        in_order: bool = True,
        *,
        created: bool = False,
    ) -> SendRequest | None:
        """Send one message without checking for room; ``waiter`` gets its outcome. Shared by ``send``, ``submit`` and ``sync.Producer``.

        ``added`` is what the accumulator returned if it was asked already; ``in_order`` as in ``SendRequest``; ``created``: hooks have seen
        the message (``created``). Returns the request, or None when the message is in a batch. Raises what ``submit`` raises, except
        SendQueueFull.
        """
        member = waiter
        if self._hooks is not None:
            if not created:
                message = self._hooks.created(message)
            if not isinstance(waiter, WithMessage):
                member = WithMessage(waiter, message)
        room = self._room
        gathering = self._gathering
        try:
            size = len(message.body)
            if timeout_s is not None:
                check_timeout(timeout_s)
            else:
                timeout_s = self._timeout_s
                if gathering is not None:
                    if added is None:
                        added = gathering.accumulator.add(message, member)
                    if added is QUEUED or added is WAKE:
                        room.messages += 1
                        room.bytes += size
                        if added is WAKE:
                            self._wake()
                        return None
                    if added is SEND_SINGLY:
                        gathering.wake()  # the open batch of its key leaves first, to keep the order
            topic, queue = message.topic, message.queue
            if message.ordering_key is not None:
                queue = lone_queue_of(message)
            if queue is not None or topic not in self._by_topic:
                self._publishers.check(topic, queue)
            uniq_key, properties, body, sys_flag = self._encoder.single(message)
            request = SendRequest(
                topic, queue, body, properties, uniq_key, timeout_s, self._outbox, 1, size, sys_flag, message.flag, False, in_order, waiter
            )
            if self._hooks is not None:
                request.messages = (message,)
            if gathering is not None and added is SEND_AT_ONCE:
                request.gathered = gathering.accumulator.lone(message)
                request.gathering = gathering
        except (AttributeError, TypeError, ConfigError) as e:
            raise unsendable(message, e) from None
        room.messages += 1
        room.bytes += size
        room.holder = self
        self._outbox.launch(request)
        return request

    @property
    def has_hooks(self) -> bool:
        """Whether the producer has hooks."""
        return self._hooks is not None

    def created(self, message: Message) -> Message:
        """Return ``message`` after the changes of hooks. For ``sync.Producer``, which calls this in the thread that sends."""
        return message if self._hooks is None else self._hooks.created(message)

    def _wake(self) -> None:
        """Send the batches that are ready. This producer stays alive until they are answered."""
        self._room.holder = self
        if self._gathering is not None:
            self._gathering.wake()

    async def send_batch(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> BatchResults:
        """Send messages of one topic in as few requests as ``max_message_bytes`` allows, and return one result for each, in order.

        All go to one queue (the messages' own, or that of their ordering key, which must then be the same), one request after the other,
        so they keep their order unless a retry moves the rest to another broker. ``timeout_s`` is for each request with its retries.
        Raises BatchError for an empty batch or one that mixes topics, queues, ordering keys or wait_store_ok; what ``send`` raises, with
        the index of the message; BatchPartlySent when a later request failed, with the results of those before. A topic that keeps batches
        whole filters by the tag that all messages of a batch have: those of a batch with several tags reach only consumers that subscribe
        to everything. Waits for room as ``send`` does.

        Example::

            from sprocketmq import Message, Producer

            async with Producer("shop", namesrv="127.0.0.1:9876") as producer:
                results = await producer.send_batch([Message("orders", b"%d" % n) for n in range(100)])
                print(results[0].queue_offset, results[-1].queue_offset)
        """
        timeout_s = self._checked_timeout(timeout_s)
        batch, encoded = self._explicit.encode(messages)
        if self._room.full:
            await self._wait_for_room(timeout_s)
        self._room.holder = self
        return await self._explicit.send(batch, encoded, timeout_s)

    async def send_oneway(self, message: Message, *, timeout_s: float | None = None) -> None:
        """Write one message to the connection to a broker without waiting for an answer: for messages that may be lost, such as samples.

        Whether the message is stored remains unknown: a broker that refuses it sends no answer, messages under way when a connection is
        lost are lost, and nothing is retried. The message has no id or offset to look for, is never gathered into a batch, and neither
        events nor traces report it; ``stats().oneway`` counts it. Waits for a route, a connection, and while more than 1 MiB of earlier
        messages wait to be written to the broker's socket, up to ``timeout_s`` (default: the producer's). ``flush`` and ``close`` wait
        until sockets have taken what was sent. Raises what ``send`` raises before anything is sent; TopicNotFound, ConnectFailed and the
        like when there is no way to a broker; and SendQueueFull when it took nothing for the whole time.
        """
        timeout_s = self._checked_timeout(timeout_s)
        message = self.created(message)
        try:
            queue = lone_queue_of(message)
            self._publishers.check(message.topic, queue)
            uniq_key, properties, body, sys_flag = self._encoder.single(message)
        except (AttributeError, TypeError, ConfigError) as e:
            raise unsendable(message, e) from None
        request = SendRequest(
            message.topic, queue, body, properties, uniq_key, timeout_s, self._outbox, 1, len(body), sys_flag, message.flag
        )
        await self._outbox.write_oneway(request)

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

        ``body`` is a batch body (protocol/batch.py), or with ``batch`` false a message's; it must not change until the answer arrives.
        ``properties`` is the property string of the request, with UNIQ_KEY. Nothing of either is checked, and nothing is compressed; the
        result has no ``msg_id``. Raises what ``send`` raises.
        """
        timeout_s = self._checked_timeout(timeout_s)
        if self._room.full:
            await self._wait_for_room(timeout_s)
        self._room.holder = self
        return await self._explicit.send_encoded(
            topic, body, properties, batch=batch, queue=queue, flag=flag, born_timestamp_ms=born_timestamp_ms, timeout_s=timeout_s
        )

    async def recall(self, recall_handle: str, *, timeout_s: float | None = None) -> str:
        """Take back a message that waits for its ``deliver_at_ms``, by the ``recall_handle`` of its result; return the message's id.

        May be repeated. When it returns, the message is not delivered, unless that had begun. Raises ConfigError for an invalid handle;
        BrokerError when the message is due already, or the broker recalls none (Apache's: ``recallMessageEnable``); TopicNotFound; a
        RetriableError when the broker cannot be reached; and MaybeStoredError when it does not answer.
        """
        return await recall(self._instance, self.group, recall_handle, self._checked_timeout(timeout_s))

    # --- request and reply ---

    async def request(self, message: Message, *, timeout_s: float | None = None) -> ReceivedMessage:
        """Send a message that asks for a reply, and return the reply that a consumer of its topic sends (``reply``).

        ``timeout_s``, else the producer's, is the time for both. Requests are never gathered into batches; at most ``max_in_flight`` wait
        for replies. Raises what ``send`` raises, and ReplyTimeout when the request is stored and no reply came: a later one is refused.

        Example::

            from sprocketmq import Message, Producer, PushConsumer

            async def answer(batch):
                for request in batch:
                    await producer.reply(request, b"17 cents for " + request.body)

            async with (
                Producer("prices", namesrv="127.0.0.1:9876") as producer,
                PushConsumer("price_service", "questions", namesrv="127.0.0.1:9876", consume_from="first") as consumer,
            ):
                consumer.listen(answer)
                reply = await producer.request(Message("questions", b"apples"), timeout_s=30)
                print(reply.body)
        """
        timeout_s = self._checked_timeout(timeout_s)
        try:
            if self._hooks is not None:
                message = self._hooks.created(message)
            self._publishers.check(message.topic, lone_queue_of(message))
        except (AttributeError, TypeError, ConfigError) as e:
            raise unsendable(message, e) from None
        if self._room.full:
            await self._wait_for_room(timeout_s)
        return await self._requester.request(message, timeout_s, hooked=self._hooks is not None)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        timeout_s: float | None = None,
    ) -> None:
        """Reply to a consumed message whose sender waits in ``request``; returns when the reply has arrived there.

        It travels through the broker to the requester's connection and is stored nowhere. Raises NotARequest when the sender waits for
        none; RequesterGone when it has disconnected or its timeout has passed; InvalidMessage or MessageTooLarge for an invalid reply; a
        RetriableError when no broker could be reached; and MaybeStoredError when none answered in time.
        """
        timeout_s = self._checked_timeout(timeout_s)
        await self._requester.reply(request, body, tag=tag, keys=keys, properties=properties, timeout_s=timeout_s)

    def _checked_timeout(self, timeout_s: float | None) -> float:
        """Return the timeout of a call. Raises when the producer cannot be used here, ConfigError for an invalid timeout."""
        self._instance.check()
        if timeout_s is None:
            return self._timeout_s
        check_timeout(timeout_s)
        return timeout_s

    # --- room ---

    async def flush(self) -> None:
        """Send what is gathered and wait until nothing is in flight: every message is answered or has failed, and callbacks were called."""
        self._instance.check()
        await self._flush()

    def _brokers_requests(self) -> Callable[[Connection, Command], None]:
        """Return the handler of brokers' requests; it must not refer to this producer, which could not be collected when dropped."""
        return self._waiting_requests.handle

    async def _flush(self) -> None:
        self._flush_gathered()
        await self._room.wait_below(1)
        if self._outbox.counts.oneway:
            await self._outbox.drain_oneway(self._timeout_s)

    async def room(self) -> None:
        """Wait until ``submit`` takes messages again.

        Returns at once below the bounds, else when half of what is in flight is answered; after a body that was too large for the bytes
        that were left, when it fits.
        """
        self._instance.check()
        await self._room.wait(self._flush_gathered)

    def _flush_gathered(self) -> None:
        if self._gathering is not None:
            self._gathering.flush()

    async def _wait_for_room(self, timeout_s: float) -> None:
        check_timeout(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                while self._room.full:  # other waiters may have taken the room
                    await self._room.wait_for_half(self._flush_gathered)
                    self._instance.check()
        except TimeoutError:
            raise self._room.refusal() from None
        self._instance.check()

    def refused(self, size: int) -> None:
        """Make the next ``room`` wait until a body of ``size`` bytes fits. For ``sync.Producer``, in any thread."""
        self._room.refused = size

    def watch_room(self, on_freed: Callable[[int, int], None]) -> None:
        """Call ``on_freed(count, bytes)`` for messages whose outcome is known, before their waiters get it."""
        self._room.on_freed = on_freed

    @property
    def trace_stats(self) -> TraceStats:
        """Counts of traces by outcome so far; all zero without ``trace``."""
        if self._trace_writer is None or self._traces is None:
            return TraceStats()
        written = self._trace_writer.stats()
        return replace(written, dropped=written.dropped + self._traces.passed_over)

    @property
    def batching_stats(self) -> BatchingStats:
        """What AutoBatch has done so far; all zero without batching."""
        return self._accumulator.stats() if self._accumulator is not None else BatchingStats()

    def stats(self) -> ProducerStats:
        """Return what the producer has done so far. Any thread may call."""
        room, hooks = self._room, self._hooks
        return self._outbox.counts.snapshot(
            self.group,
            in_flight=room.messages,
            in_flight_bytes=room.bytes,
            hook_failures=0 if hooks is None else hooks.failures,
            slow_hooks=0 if hooks is None else hooks.slow,
        )

    @property
    def in_flight(self) -> int:
        """Messages (and batch requests) that are not answered yet."""
        return self._room.messages

    @property
    def max_in_flight(self) -> int:
        """The most messages that may be in flight."""
        return self._room.max_messages

    @property
    def max_in_flight_bytes(self) -> int:
        """The most bytes of bodies that may be in flight."""
        return self._room.max_bytes

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues a message to ``topic`` may go to.

        Raises TopicNotFound, TopicReadOnly, NoBroker, NoMaster or NameserverUnavailable.
        """
        self._instance.check()
        publisher = self._by_topic.get(topic) or await self._outbox.open(topic, self._timeout_s)
        return list(publisher.route.publish_queues)
