"""The pull consumer: reads any queue at any offset, or polls the queues it is assigned (docs/internals/consumers.md#polling)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from sprocketmq.client.arguments import check_bools, check_number, check_queue, check_timeout
from sprocketmq.client.consume.broker_requests import BrokerRequests
from sprocketmq.client.consume.consumer_stats import ConsumerStats, consumer_stats
from sprocketmq.client.consume.offset_store import ConsumeFrom, from_where
from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.consume.poll import Polling
from sprocketmq.client.consume.prepared_pulls import PreparedPulls
from sprocketmq.client.consume.pull_requests import (
    DEFAULT_MAX_BYTES,
    ExpressionType,
    PullResult,
    check_pull,
    pull_header,
    read_pull,
    read_subscriptions,
    subscription_of,
    subscription_to,
    type_of,
)
from sprocketmq.client.consume.rebalance import Rebalance, read_strategy
from sprocketmq.client.consume.replica_choice import ReadFrom, ReplicaChoice, check_replica
from sprocketmq.client.credentials import CredentialsArgument, resolve
from sprocketmq.client.hook_calls import check_hooks, hook_calls
from sprocketmq.client.hooks import ClientHooks
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.outages import Outages
from sprocketmq.client.routes import Route
from sprocketmq.client.send.producer import Producer
from sprocketmq.client.stats import ConsumerCounts
from sprocketmq.client.traces.config import TraceConfig, TraceStats, trace_config
from sprocketmq.client.traces.deliveries import DeliveryTraces
from sprocketmq.client.traces.producer import trace_producer
from sprocketmq.client.traces.writer import TraceWriter
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, RetriableError, SprocketError
from sprocketmq.net.client import Connection
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.bodies import CheckClientConfig, ConsumeDirectlyResult, SubscriptionData
from sprocketmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_topic
from sprocketmq.protocol.records import ReceivedMessage

# Time for a response beyond the time the pull may wait at the broker, as brokers look at waiting pulls only every 5 s.
PULL_TIMEOUT_S = 10.0


class PullConsumer(Client):
    """Reads messages at the caller's pace, in one of two ways.

    ``pull`` reads a queue at an offset and keeps no state: ``group`` only names the offsets of ``committed`` and ``commit``, and nothing is
    registered at a broker. Any number of tasks of one event loop may pull.

    ``poll`` reads the queues given by ``assign``, or the member's share of the group's queues after ``subscribe``. Each queue starts at the
    group's committed offset, or by ``consume_from`` without one (``"last"``, ``"first"`` or epoch seconds, as for PushConsumer). The
    messages of a poll count as consumed at the next poll; with ``auto_commit`` they are committed every 5 seconds, when a queue goes to
    another member, and at close, otherwise only by ``commit()``. One task polls at a time.

    ``rebalance`` chooses how members of the group share queues, as for PushConsumer. ``namesrv`` as for Producer. Use ``async with``.

    ``credentials``, ``tls`` and ``secure`` as for Producer. ``hooks`` are called for each pull, also those of ``poll`` in the background;
    see ``ClientHooks``. ``trace`` as for Producer: messages that ``poll`` returns are traced, as consumed at once.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        consume_from: ConsumeFrom = "last",
        auto_commit: bool = True,
        rebalance: Rebalance = "average",
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
        check_bools(auto_commit=auto_commit)
        if not isinstance(rebalance, Mapping):  # which is checked beside the subscriptions
            read_strategy(rebalance, ())
        from_where(consume_from)
        self._consume_from = consume_from
        self._auto_commit = auto_commit
        self._rebalance = rebalance
        self._clock = clock
        security = resolve(credentials=credentials, tls=tls, secure=secure)
        self._instance = Instance(
            namesrv, kind="PullConsumer", security=security, clock=clock, on_request=self._on_request, on_route=self._on_route
        )
        self._counts = ConsumerCounts()
        self._hooks = hook_calls(hooks, group, self._instance)
        self._trace_writer: TraceWriter | None = None
        self._traces: DeliveryTraces | None = None
        if tracing is not None:
            make = trace_producer(Producer, group, "CONSUME", namesrv=namesrv, credentials=credentials, tls=tls, secure=secure, clock=clock)
            self._trace_writer = TraceWriter(tracing, group, self._instance, make)
            self._traces = DeliveryTraces(tracing, group, self._instance, self._trace_writer)
        self._offsets = OffsetRequests(self._instance)
        self._replicas = ReplicaChoice(self._instance.routes)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._polling: Polling | None = None
        self._broker_requests: BrokerRequests | None = None

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        self._instance.check_loop()
        async with self._instance.changing:
            await self._instance.start()

    async def close(self) -> None:
        """Commit what was consumed of polled queues (with ``auto_commit``), leave the group, disconnect; requests in flight fail.

        The messages of the last poll do not count as consumed: call ``poll`` or ``commit`` first for that. Harmless when closed already.
        """
        self._instance.check_loop()
        async with self._instance.changing:
            try:
                if self._polling is not None:
                    await self._polling.end()
                if self._trace_writer is not None:
                    await self._trace_writer.close()
            finally:
                await self._instance.close()

    # --- reading by queue and offset ---

    @property
    def outages(self) -> Outages:
        """The brokers that do not answer now, so that a caller that repeats a failed ``pull`` logs each outage once."""
        return self._instance.outages

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted, as the nameserver has them now. Raises TopicNotFound for an unknown topic."""
        self._instance.check()
        check_topic(topic)
        look = partial(self._instance.fetch_route, topic)
        route = await look() or self._instance.routes.get(topic) or await self._instance.look_again(topic, look)
        return sorted(route.subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int | None = None,
        expression: str = "*",
        expression_type: ExpressionType = "TAG",
        read_from: ReadFrom = "any",
        wait_ms: int = 0,
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> PullResult:
        """Return up to ``max_messages`` messages of about ``max_bytes`` (default 256 KiB) from ``offset`` on.

        The broker's own limits may be lower; a batch that is stored as one record is returned whole, so there may be more. ``expression``
        is ``"*"``, ``"tag || tag"`` or an ``Sql``, a condition on properties, which Apache's brokers take with enablePropertyFilter only.
        ``read_from`` chooses between a master and its slaves; when the chosen one is gone another answers, and the result says which
        kind. When there is no message yet, the broker waits up to ``wait_ms`` for one (Apache's rounds short waits up to 5 s);
        ``timeout_s`` is the time for the response beyond that. An offset out of range is no error: see PullStatus. Raises TopicNotFound,
        BrokerError, BrokerBusy, ConnectFailed, ConnectionLost, RequestTimeout; ConfigError for invalid arguments.

        Example::

            from sprocketmq import PullConsumer

            async with PullConsumer("report", namesrv="127.0.0.1:9876") as consumer:
                for queue in await consumer.queues("orders"):
                    result = await consumer.pull(queue, await consumer.min_offset(queue))
                    print(queue, result.status.name, [message.body for message in result.messages])
        """
        self._instance.check()
        check_queue(queue)
        check_pull(offset=offset, max_messages=max_messages, max_bytes=max_bytes, wait_ms=wait_ms)
        check_replica(read_from)
        check_timeout(timeout_s)
        subscription, tags = subscription_of(queue.topic, expression, type_of(expression, expression_type))
        header = pull_header(
            self.group,
            queue,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes or DEFAULT_MAX_BYTES,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
            suspend_ms=wait_ms,
            subscription=subscription,
        )
        hooks = self._hooks
        began = self._clock.monotonic() if hooks is not None else 0.0
        try:
            broker_id = self._replicas.broker_id(queue, read_from, await self._instance.route(queue.topic))
            response, address = await self._instance.ask_broker(
                queue.topic,
                queue.broker_name,
                RequestCode.PULL_MESSAGE,
                ext=header,
                broker_id=broker_id,
                timeout_s=wait_ms / 1000 + timeout_s,
            )
            result = read_pull(response, address, queue, offset, tags)
            self._counts.pulled(result.next_offset - offset if result.body else 0, len(result.body))
            if hooks is not None:
                hooks.pulled(queue, began, messages=_readable(result), body_bytes=len(result.body), address=address)
        except SprocketError as e:
            self._counts.pull_failures.add(e)
            if hooks is not None:
                hooks.pulled(queue, began, error=e)
            raise
        self._replicas.note(result, self._replicas.is_master(queue, address))
        return result

    def prepare_pulls(
        self,
        queue: MessageQueue,
        *,
        max_bytes: int,
        expression: str = "*",
        expression_type: ExpressionType = "TAG",
        read_from: ReadFrom = "any",
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> PreparedPulls:
        """Return an object that pulls ``queue`` at a fraction of the cost of ``pull``, for thousands of pulls a second. Same arguments."""
        check_queue(queue)
        check_pull(max_bytes=max_bytes)
        check_replica(read_from)
        check_timeout(timeout_s)
        return PreparedPulls(
            self._instance,
            self._replicas,
            self.group,
            queue,
            max_bytes=max_bytes,
            expression=expression,
            expression_type=type_of(expression, expression_type),
            read_from=read_from,
            timeout_s=timeout_s,
        )

    async def check_expression(self, queue: MessageQueue, expression: str, expression_type: ExpressionType = "TAG") -> None:
        """Ask the queue's broker to check an expression: Apache's broker answers a pull with an invalid condition with all messages.

        Raises BrokerError with the broker's reason, and what asking a broker raises.
        """
        check_queue(queue)
        subscription, _ = subscription_of(queue.topic, expression, type_of(expression, expression_type))
        route = await self._instance.route(queue.topic)
        address = route.address(queue.broker_name)
        if address is None:
            raise RetriableError(f"topic {queue.topic!r} has no broker {queue.broker_name!r} now")
        body = CheckClientConfig(self._instance.client_id, self.group, subscription).encode()
        response = await self._instance.ask(address, RequestCode.CHECK_CLIENT_CONFIG, ext={}, body=body)
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message kept; 0 for an empty or unknown queue."""
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._offsets.max_offset(queue)

    def offsets_from_slave(self, queue: MessageQueue) -> bool:
        """Return whether a slave gave the last answer about offsets of ``queue``: it may lack messages that the master has."""
        return queue in self._offsets.from_slaves

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later; the end of the queue when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset committed for this group, None when there is none."""
        check_queue(queue)
        return await self._offsets.committed(self.group, queue)

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Commit ``offset`` (the next to read) of ``queue`` for this group, or everything polled. Returns when the brokers have it.

        Raises what asking the broker raises; ConfigError for one argument without the other.
        """
        if queue is not None and offset is not None:
            await self._offsets.commit(self.group, queue, offset)
        elif queue is None and offset is None:
            await self._assigned().commit()
        else:
            raise ConfigError("commit takes a queue and its offset, or no arguments to commit everything that was polled")

    # --- polling ---

    @property
    def trace_stats(self) -> TraceStats:
        """Counts of traces by outcome so far; all zero without ``trace``."""
        return TraceStats() if self._trace_writer is None else self._trace_writer.stats()

    def stats(self) -> ConsumerStats:
        """Return the state of each polled queue, with how long and why one of them is not pulled, and what the consumer has done so far.

        Pulls of ``prepare_pulls`` are not counted.
        """
        if self._polling is None:
            return consumer_stats(self.group, (), "", self._counts, self._hooks)
        return self._polling.stats()

    async def subscribe(self, subscriptions: Mapping[str, str] | Iterable[str] | str) -> None:
        """Join the group and poll this member's share of the queues. ``subscriptions`` as for PushConsumer.

        Raises ConfigError after an earlier ``assign`` or ``subscribe``, InvalidName for an invalid topic or expression, and
        AuthenticationFailed or AuthorizationFailed when a broker refuses this client.
        """
        self._instance.check()
        if self._polling is not None:
            raise ConfigError(
                "this PullConsumer has its queues already: call subscribe once, or assign; use another consumer for more topics"
            )
        described = read_subscriptions(subscriptions, self._clock.time_ms())
        share = read_strategy(self._rebalance, list(described))
        self._subscriptions.update(described)
        polling = self._polling = Polling(
            self._instance,
            self.group,
            self._subscriptions,
            consume_from=self._consume_from,
            auto_commit=self._auto_commit,
            share=share,
            counts=self._counts,
            hooks=self._hooks,
        )
        if polling.member is not None:
            self._broker_requests = BrokerRequests(
                self._instance, polling.member, None, settings={"PROP_CONSUMEORDERLY": "false"}, seek=self.seek, consume=_no_handler
            )
        try:
            await polling.begin()
        except BaseException:
            self._polling = self._broker_requests = None
            self._subscriptions.clear()
            raise

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Poll exactly ``queues``, whatever other members of the group do. Queues that were assigned before keep their position.

        ``expression`` applies to topics that are new here. Raises ConfigError after ``subscribe``, and what asking for start offsets
        raises.
        """
        self._instance.check()
        if self._broker_requests is not None:
            raise ConfigError(
                "this PullConsumer has subscribed, so its group assigns the queues: use another consumer to assign them by hand"
            )
        chosen = list(queues)
        for queue in chosen:
            check_queue(queue)
            if queue.topic not in self._subscriptions:
                self._subscriptions[check_topic(queue.topic)] = subscription_to(queue.topic, expression, 0)
        if self._polling is None:
            self._polling = Polling(
                self._instance,
                self.group,
                self._subscriptions,
                consume_from=self._consume_from,
                auto_commit=self._auto_commit,
                counts=self._counts,
                hooks=self._hooks,
            )
            await self._polling.begin()
        await self._polling.assign(chosen)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are polled now, sorted."""
        return [] if self._polling is None else self._polling.assignment

    async def poll(self, max_messages: int = 32, *, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        """Return up to ``max_messages`` messages of one queue, in its order; an empty list after ``timeout_s`` seconds.

        Queues are served in turn. The messages of earlier polls count as consumed. Raises ConfigError before ``assign`` or ``subscribe``,
        or while another task polls; BrokerError when a broker refuses for good; AuthenticationFailed or AuthorizationFailed while a broker
        refuses this client, after which later polls may succeed.
        """
        check_number("max_messages", max_messages, least=1, whole=True)
        check_number("timeout_s", timeout_s, least=0)
        messages = await self._assigned().poll(max_messages, timeout_s)
        if self._traces is not None and messages:
            self._traces.polled(messages[0].topic, messages)
        return messages

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that ``poll`` returns of ``queue``. Raises ConfigError when it is not assigned."""
        (pq,) = self._assigned().assigned([queue])
        return pq.position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset``; one out of range is moved to where messages are. Raises ConfigError for an unassigned queue."""
        check_number("offset", offset, least=0, whole=True)
        self._assigned().seek(queue, offset)

    async def seek_to_time(self, where: MessageQueue | str, timestamp_ms: int) -> None:
        """Continue at the first message stored at ``timestamp_ms`` (epoch) or later, or at the end when there is none.

        ``where`` is one queue, or a topic for all its assigned queues. Raises what asking the broker raises, and what ``seek`` raises.
        """
        polling = self._assigned()
        for queue in [queue for queue in self.assignment if queue.topic == where] if isinstance(where, str) else [where]:
            polling.assigned([queue])
            self.seek(queue, await self._offsets.offset_at(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling and returning messages of ``queues``; without arguments, of all. Raises ConfigError for an unassigned queue."""
        self._assigned().pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Continue paused queues; without arguments, all of them."""
        self._assigned().resume(queues)

    def _assigned(self) -> Polling:
        self._instance.check()
        if self._polling is None:
            raise ConfigError("no queues to poll: call subscribe() to share queues with the group, or assign() to choose them")
        return self._polling

    # --- callbacks of the parts ---

    def _on_request(self, conn: Connection, command: Command) -> None:
        if self._broker_requests is not None:
            self._broker_requests.handle(conn, command)
        else:
            conn.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported")

    def _on_route(self, route: Route) -> None:  # noqa: ARG002 - the signature of route callbacks
        if self._polling is not None and self._polling.member is not None:
            self._polling.member.rebalance_soon()


def _readable(result: PullResult) -> Sequence[ReceivedMessage]:
    """Return the messages of a pull for hooks, none when they are damaged: reading them raises for the program then."""
    try:
        return result.messages
    except SprocketError:
        return ()


async def _no_handler(_: ReceivedMessage) -> ConsumeDirectlyResult:
    return ConsumeDirectlyResult("CR_RETURN_NULL", remark="this consumer polls and has no handler to call")


def take_back(consumer: PullConsumer, polls: Sequence[object]) -> None:
    """Have the messages of the last poll returned again, unless ``polls`` is empty. For wrappers of clients, not for users."""
    polling = consumer._polling  # noqa: SLF001 - this module's own class
    if polls and polling is not None:
        polling.take_back()
