"""The calls of the messaging API: each authenticates its caller, does its work at the brokers, and answers with a status."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sprocketmq.client.credentials import ClientSecurity
from sprocketmq.client.routes import Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ClientClosed, SprocketError
from sprocketmq.net.address import parse_address
from sprocketmq.net.client import Connection
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.tasks import Background, share
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.names import check_group
from sprocketmq.proxy.calls import Call, Form, Method
from sprocketmq.proxy.clients import MAX_COMMANDS, Clients, Identity, KnownClient, answered
from sprocketmq.proxy.codes import OK, AddressScheme, Code, Permission, Refused, status, status_of
from sprocketmq.proxy.messages import NO_NAMESPACES, name_of, topic_of, types_of
from sprocketmq.proxy.receiving import Popped, Receiver, checked_invisible, times_of
from sprocketmq.proxy.renewals import INVISIBLE_S, SWEEP_S, Renewals
from sprocketmq.proxy.schema import (
    MESSAGES,
    SERVICE,
    AckMessageResponse,
    AckMessageResultEntry,
    Address,
    Assignment,
    Broker,
    ChangeInvisibleDurationResponse,
    Endpoints,
    MessageQueue,
    Proto,
    QueryAssignmentResponse,
    QueryRouteResponse,
    ReceiveMessageResponse,
    Resource,
    TelemetryCommand,
    seconds_of,
    timestamp,
)
from sprocketmq.proxy.sending import CHECK_TRANSACTION_STATE, Sender
from sprocketmq.proxy.upstream import Upstream
from sprocketmq.proxy.users import Users
from sprocketmq.security.login_limits import DELAY_S, LoginLimits, Penalty

log = logging.getLogger(__name__)

EXPIRE_S = 10.0
# A telemetry stream is for settings, which clients send at once.
SETTINGS_WITHIN_S = 30.0
MAX_ACKS = 1_000
MAX_LOGGED_NAME = 64
# The shortest invisible time that brokers accept: Node's client asks for 0 when a listener fails.
VISIBLE_AT_ONCE_S = 0.001


@dataclass(frozen=True)
class Caller:
    """A caller: its identity, and its user's connections to the cluster."""

    identity: Identity
    upstream: Upstream


class MessagingService:
    """The calls, in front of the cluster at ``namesrv``.

    ``users`` may call; failed logins are limited for each address. ``advertised`` is the address (``host:port``) that clients are told to
    use; None: the one they called.
    """

    def __init__(
        self,
        namesrv: str,
        security: ClientSecurity,
        users: Users,
        *,
        advertised: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._namesrv = namesrv
        self._security = security
        self._users = users
        self._advertised = None if advertised is None else endpoints_of(*parse_address(advertised))
        self._clock = clock
        self._background = Background("gRPC endpoint")
        self._upstreams: dict[str, asyncio.Task[Upstream]] = {}
        self._refusals = PeerLog(log, clock.monotonic)
        self._limits = LoginLimits(clock.monotonic)
        self.clients = Clients(clock)
        # Telemetry streams without valid settings so far: their command queues, and when they began.
        self._unsettled: dict[asyncio.Queue[Proto | None], float] = {}
        self._sender = Sender(self.clients)
        self._receiver = Receiver(self._background)
        self.renewals = Renewals(self._receiver, self.clients, clock)

    async def start(self) -> None:
        """Connect to the cluster. Raises NameserverUnavailable and the other errors of a client's start."""
        if not self._users:
            await self._upstream("")
        self._background.every(SWEEP_S, self.renewals.sweep, "renewal of invisible times")
        self._background.every(EXPIRE_S, self._expire, "clients that are gone")

    async def close(self) -> None:
        """End all streams and disconnect."""
        for client in [client for user in self._upstreams for client in self.clients.of_user(user)]:
            self.clients.remove(client, "the endpoint stops")
        await self._background.close()
        for task in self._upstreams.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                await task.result().__aexit__()

    async def _upstream(self, user: str) -> Upstream:
        task = self._upstreams.get(user)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._upstreams[user] = self._background.spawn(self._connected(user), "connecting to the cluster", awaited=True)
        return await share(task, lambda: ClientClosed("the endpoint stops"))

    async def _connected(self, user: str) -> Upstream:
        security = ClientSecurity(self._users.credentials(user), self._security.tls) if user else self._security
        upstream = Upstream(
            self._namesrv,
            security,
            on_request=lambda conn, command: self._asked(conn, command, user),
            consumers=lambda: self.clients.consumer_data(user),
            clock=self._clock,
        )
        return await upstream.__aenter__()

    def _asked(self, _conn: Connection, command: Command, user: str) -> None:
        if command.code == CHECK_TRANSACTION_STATE:
            self._sender.check(command, user)

    def _expire(self) -> None:
        for client in self.clients.expire():
            self._forget_topics(client.identity.user, client.topics)
        late = self._clock.monotonic() - SETTINGS_WITHIN_S
        problem = f"the stream has brought no settings that can be within {SETTINGS_WITHIN_S:g} s"
        for commands in [commands for commands, since in self._unsettled.items() if since <= late]:
            if commands.qsize() <= MAX_COMMANDS - 2:  # otherwise the client reads nothing; try again at the next check
                del self._unsettled[commands]
                commands.put_nowait(TelemetryCommand(status=status(Code.UNRECOGNIZED_CLIENT_TYPE, problem)))
                commands.put_nowait(None)

    def _forget_topics(self, user: str, topics: list[str]) -> None:
        """Unregister producers of those ``topics`` that no client of the user produces any more."""
        task = self._upstreams.get(user)
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            produced = {topic for client in self.clients.of_user(user) for topic in client.topics}
            for topic in topics:
                if topic not in produced:
                    task.result().produces_no_more(topic)

    # --- callers ---

    async def _caller(self, call: Call) -> Caller:
        metadata = call.metadata
        client_id = metadata.get("x-mq-client-id", "").strip()
        if not client_id:
            raise Refused(Code.CLIENT_ID_REQUIRED, "the call has no x-mq-client-id")
        if namespace := metadata.get("x-mq-namespace", "").strip():
            raise Refused(Code.BAD_REQUEST, f"x-mq-namespace is {namespace!r}: {NO_NAMESPACES}")
        try:
            user = self._users.authenticate(metadata)
        except Refused as e:
            await self._login_failed(call, client_id, e)
            raise
        if user:
            call.peer.admitted()
        return Caller(Identity(client_id, user), await self._upstream(user))

    async def _login_failed(self, call: Call, client_id: str, reason: Refused) -> None:
        host = call.peer.host
        self._refusals.event(host, "grpc_login_refused", peer=call.peer.address, client=client_id[:MAX_LOGGED_NAME], reason=reason)
        match self._limits.failed(host):
            case Penalty.DELAY:
                try:
                    await asyncio.sleep(DELAY_S)
                finally:
                    self._limits.answered()
            case Penalty.CLOSE:
                call.ends_connection = True

    def _known(self, caller: Caller) -> KnownClient:
        client = self.clients.seen(caller.identity)
        if client is None or client.settings is None:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "this client's settings are not known here: it has to send them first")
        return client

    # --- routes ---

    async def query_route(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Return the queues of a topic; each leads to this endpoint."""
        topic = topic_of(request.topic)
        route = await caller.upstream.fresh_route(topic)
        types = types_of((await caller.upstream.topic_config(topic)).attributes)
        endpoints = self._advertised or request.endpoints
        queues = [queue for name in route.readers for queue in _queues(route, name, endpoints, types)]
        return QueryRouteResponse(status=OK, message_queues=queues)

    async def query_assignment(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Return what a push consumer receives from: each broker as a whole, or for an ordered group each queue."""
        topic, group = topic_of(request.topic), _group(request.group)
        route = await caller.upstream.route(topic)
        config = await caller.upstream.group_config(group, topic)
        endpoints = self._advertised or request.endpoints
        masters = {queue.broker_name for queue in route.subscribe_queues} & set(route.masters)
        if not masters:
            raise Refused(Code.FORBIDDEN, f"no broker allows reading topic {topic!r} now")
        if config.consume_message_orderly:
            places = [(queue.broker_name, queue.queue_id) for queue in route.subscribe_queues if queue.broker_name in masters]
        else:
            places = [(name, -1) for name in sorted(masters)]
        return QueryAssignmentResponse(
            status=OK,
            assignments=[
                Assignment(message_queue=_queue(topic, name, queue_id, Permission.READ, endpoints, ())) for name, queue_id in places
            ],
        )

    # --- life of a client ---

    async def heartbeat(self, caller: Caller, _request: Proto, _call: Call) -> Proto:
        """Record a sign of life of a client."""
        self._known(caller)
        return MESSAGES["HeartbeatResponse"](status=OK)

    async def notify_client_termination(self, caller: Caller, _request: Proto, _call: Call) -> Proto:
        """Forget a client that stops."""
        client = self.clients.get(caller.identity)
        if client is not None:
            self.clients.remove(client, "it has stopped")
            self._forget_topics(client.identity.user, client.topics)
            caller.upstream.consumers_changed()
        return MESSAGES["NotifyClientTerminationResponse"](status=OK)

    async def telemetry(self, requests: AsyncIterator[Proto], call: Call) -> AsyncIterator[Proto]:
        """Receive a client's settings and answer them, and send it commands, until either side ends the stream."""
        try:
            caller = await self._caller(call)
        except SprocketError as e:
            # A client that sends its settings before it reads would otherwise fail at sending.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTINGS_WITHIN_S):
                    await anext(requests, None)
            yield TelemetryCommand(status=status_of(e))
            return
        commands: asyncio.Queue[Proto | None] = asyncio.Queue(MAX_COMMANDS)
        self._unsettled[commands] = self._clock.monotonic()
        reading = self._background.spawn(self._read_telemetry(caller, requests, commands), "a telemetry stream", awaited=True)
        try:
            while (command := await commands.get()) is not None:
                yield command
        finally:
            self._unsettled.pop(commands, None)
            await self._background.end(reading)
            client = self.clients.get(caller.identity)
            if client is not None and client.commands is commands:
                client.commands = None

    async def _read_telemetry(self, caller: Caller, requests: AsyncIterator[Proto], commands: "asyncio.Queue[Proto | None]") -> None:
        try:
            async for command in requests:
                if command.WhichOneof("command") == "settings":
                    await commands.put(await self._settle(caller, command.settings, commands))
        finally:
            if not commands.full():
                commands.put_nowait(None)

    async def _settle(self, caller: Caller, settings: Proto, commands: "asyncio.Queue[Proto | None]") -> Proto:
        try:
            known = self.clients.get(caller.identity)
            before = [] if known is None else known.topics
            client = self.clients.put(caller.identity, settings)
            client.commands = commands
            self._forget_topics(client.identity.user, before)
            group = None
            if client.group:
                topics = [topic_of(entry.topic) for entry in settings.subscription.subscriptions]
                name = _group(settings.subscription.group)
                # The settings of a group come from a broker, which is found by a topic.
                group = await caller.upstream.group_config(name, topics[0]) if topics else SubscriptionGroupConfig(name)
                caller.upstream.consumers_changed()
            else:
                for topic in client.topics:
                    caller.upstream.produces(topic)
            answer = answered(settings, group)
            client.settings = answer
            self._unsettled.pop(commands, None)
        except SprocketError as e:
            return TelemetryCommand(status=status_of(e), settings=settings)
        return TelemetryCommand(status=OK, settings=answer)

    # --- messages ---

    async def send_message(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Store messages."""
        return await self._sender.send(caller.upstream, request)

    async def end_transaction(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Commit a transaction or roll it back."""
        await self._sender.end(caller.upstream, request)
        return MESSAGES["EndTransactionResponse"](status=OK)

    async def recall_message(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Take back a message that waits for its delivery time."""
        return await self._sender.recall(caller.upstream, request)

    async def receive_message(self, request: Proto, call: Call) -> AsyncIterator[Proto]:
        """Send the messages of one pop: a status, each message, and when they were delivered."""
        taken: list[Popped] = []
        sent = 0
        caller: Caller | None = None
        try:
            caller = await self._caller(call)
            self.clients.seen(caller.identity)
            group, topic = _group(request.group), topic_of(request.message_queue.topic)
            poll_s, invisible_s = times_of(request, call.time_remaining())
            if request.auto_renew:
                self.renewals.check_room()
            # Not from the client's settings: simple consumers receive before they send them.
            config = await caller.upstream.group_config(group, topic)
            taken = await self._receiver.receive(
                caller.upstream,
                request,
                fifo=config.consume_message_orderly,
                invisible_s=invisible_s or INVISIBLE_S,
                poll_s=poll_s,
                max_attempts=max(config.retry_max_times, 0) + 1,
            )
            if not taken:
                yield ReceiveMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no message came in time"))
            else:
                yield ReceiveMessageResponse(status=OK)
                for message, receipt in taken:
                    if request.auto_renew:
                        self.renewals.hold(caller.identity, caller.upstream, group, topic, receipt)
                    yield ReceiveMessageResponse(message=message)
                    sent += 1
            yield ReceiveMessageResponse(delivery_timestamp=timestamp(self._clock.time_ms()))
        except SprocketError as e:
            yield ReceiveMessageResponse(status=status_of(e))
        except (asyncio.CancelledError, GeneratorExit):
            if caller is not None and sent < len(taken):
                topic, left = request.message_queue.topic.name, [receipt for _, receipt in taken[sent:]]
                for receipt in left:
                    self.renewals.release(str(receipt))
                release = self._receiver.release(caller.upstream, request.group.name, topic, left)
                self._background.spawn(release, f"messages of {topic} that were not delivered")
            raise

    async def ack_message(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Acknowledge messages; each has a status of its own."""
        topic, group = topic_of(request.topic), _group(request.group)
        if not request.entries or len(request.entries) > MAX_ACKS:
            raise Refused(Code.BAD_REQUEST, f"a request acknowledges 1 to {MAX_ACKS} messages")

        async def acknowledge(entry: Proto) -> Proto:
            try:
                receipt = self.renewals.release(entry.receipt_handle)
                await self._receiver.acknowledge(caller.upstream, group, topic, receipt)
            except SprocketError as e:
                return AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status_of(e))
            return AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=OK)

        if len(request.entries) == 1:  # as most clients do it: no tasks
            entries = [await acknowledge(request.entries[0])]
        else:
            entries = await asyncio.gather(*(acknowledge(entry) for entry in request.entries))
        codes = {entry.status.code for entry in entries}
        return AckMessageResponse(status=entries[0].status if len(codes) == 1 else status(Code.MULTIPLE_RESULTS), entries=entries)

    async def change_invisible_duration(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Change when a message becomes visible again."""
        topic, group = topic_of(request.topic), _group(request.group)
        seconds = seconds_of(request.invisible_duration)
        if seconds < 0:
            checked_invisible(seconds)
        seconds = max(seconds, VISIBLE_AT_ONCE_S)
        receipt = self.renewals.release(request.receipt_handle)
        changed = await self._receiver.change(caller.upstream, group, topic, receipt, seconds, suspend=request.suspend)
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=str(changed))

    async def forward_message_to_dead_letter_queue(self, caller: Caller, request: Proto, _call: Call) -> Proto:
        """Make a message a dead letter."""
        topic, group = topic_of(request.topic), _group(request.group)
        receipt = self.renewals.release(request.receipt_handle)
        await self._receiver.bury(caller.upstream, group, topic, receipt, request.message_id)
        return MESSAGES["ForwardMessageToDeadLetterQueueResponse"](status=OK)

    # --- the transport ---

    def methods(self) -> dict[str, Method]:
        """Return the methods of the API by their paths."""
        unary: dict[str, Callable[[Caller, Proto, Call], Coroutine[Any, Any, Proto]]] = {
            "QueryRoute": self.query_route,
            "QueryAssignment": self.query_assignment,
            "Heartbeat": self.heartbeat,
            "SendMessage": self.send_message,
            "AckMessage": self.ack_message,
            "ChangeInvisibleDuration": self.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self.forward_message_to_dead_letter_queue,
            "EndTransaction": self.end_transaction,
            "RecallMessage": self.recall_message,
            "NotifyClientTermination": self.notify_client_termination,
        }
        methods = {name: self._unary(name, call) for name, call in unary.items()}
        methods["ReceiveMessage"] = Method(MESSAGES["ReceiveMessageRequest"].FromString, self.receive_message, Form.ONE_TO_MANY)
        methods["Telemetry"] = Method(TelemetryCommand.FromString, self.telemetry, Form.MANY_TO_MANY)
        return {f"/{SERVICE}/{name}": method for name, method in methods.items()}

    def _unary(self, name: str, serve: Callable[[Caller, Proto, Call], Coroutine[Any, Any, Proto]]) -> Method:
        answer = MESSAGES[f"{name}Response"]

        async def guarded(request: Proto, call: Call) -> Proto:
            try:
                return await serve(await self._caller(call), request, call)
            except SprocketError as e:
                return answer(status=status_of(e))
            except Exception as e:
                log.exception("%s failed", name)
                return answer(status=status(Code.INTERNAL_SERVER_ERROR, f"{name} failed at the endpoint: {type(e).__name__}"))

        return Method(MESSAGES[f"{name}Request"].FromString, guarded)


def _group(resource: Proto) -> str:
    try:
        return check_group(name_of(resource, Code.ILLEGAL_CONSUMER_GROUP))
    except SprocketError as e:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, str(e)) from None


def endpoints_of(host: str, port: int) -> Proto:
    """Return an address in the form for clients."""
    if ":" in host:
        scheme = AddressScheme.IPV6
    elif host.replace(".", "").isdecimal():
        scheme = AddressScheme.IPV4
    else:
        scheme = AddressScheme.DOMAIN_NAME
    return Endpoints(scheme=scheme, addresses=[Address(host=host, port=port)])


def _queues(route: Route, broker_name: str, endpoints: Proto, types: tuple[int, ...]) -> list[Proto]:
    """Return the queues of one broker: those only to be read, those only to be written, then those for both, counted on."""
    reads = sum(queue.broker_name == broker_name for queue in route.subscribe_queues)
    writes = sum(queue.broker_name == broker_name for queue in route.publish_queues)
    both = min(reads, writes)
    permissions = [*[Permission.READ] * (reads - both), *[Permission.WRITE] * (writes - both), *[Permission.READ_WRITE] * both]
    return [_queue(route.topic, broker_name, i, permission, endpoints, types) for i, permission in enumerate(permissions)]


def _queue(topic: str, broker_name: str, queue_id: int, permission: int, endpoints: Proto, types: tuple[int, ...]) -> Proto:
    return MessageQueue(
        topic=Resource(name=topic),
        id=queue_id,
        permission=permission,
        broker=Broker(name=broker_name, id=0, endpoints=endpoints),
        accept_message_types=types,
    )
