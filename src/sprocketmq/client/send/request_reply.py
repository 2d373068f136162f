"""Sends requests and waits for their replies, and replies to the requests of others (docs/guide/request-reply.md)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sprocketmq.client.instance import REQUEST_TIMEOUT_S, Instance, response_error
from sprocketmq.client.routes import Route
from sprocketmq.client.send.encoding import MessageEncoder
from sprocketmq.client.send.outbox import Outbox
from sprocketmq.client.send.queue_choice import lone_queue_of
from sprocketmq.client.send.requests import SendRequest
from sprocketmq.client.send.send_header import HEADER, header_prefix
from sprocketmq.client.send.waiting_requests import WaitingRequests
from sprocketmq.errors import (
    AccessRefused,
    ConfigError,
    MaybeStoredError,
    NoMaster,
    NotARequest,
    ReplyTimeout,
    RequesterGone,
    RequestTimeout,
    RetriableError,
    SprocketError,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.names import REPLY_TOPIC_SUFFIX
from sprocketmq.protocol.properties import CLUSTER, CORRELATION_ID, MSG_TYPE, REPLY_TO_CLIENT, TTL
from sprocketmq.protocol.records import ReceivedMessage

if TYPE_CHECKING:
    from sprocketmq.net.client import Connection

# Interval at which a producer sends heartbeats again to brokers that did not answer.
_INTRODUCE_INTERVAL_S = 1.0
# Response codes of a broker after which another one may still deliver a reply.
_GONE = ResponseCode.SYSTEM_ERROR


class Requester:
    """The requests and replies of one producer of ``group``."""

    def __init__(self, group: str, instance: Instance, outbox: Outbox, encoder: MessageEncoder, waiting: WaitingRequests) -> None:
        self._group = group
        self._instance = instance
        self._outbox = outbox
        self._encoder = encoder
        self._waiting = waiting
        # The connections over which each broker received a heartbeat; and when brokers without one may be tried again.
        self._known: dict[str, Connection] = {}
        self._introduced_at = 0.0
        self._looked_up: set[str] = set()

    # --- requests ---

    async def request(self, message: Message, timeout_s: float, *, hooked: bool) -> ReceivedMessage:
        """Send a request and return its reply; ``timeout_s`` is for both, ``hooked`` whether hooks see the message."""
        loop = self._outbox.loop
        deadline = loop.time() + timeout_s
        uniq_key, properties, body, sys_flag = self._encoder.single(message)
        with self._waiting.waiting() as (correlation_id, reply):
            await self._introduce(message.topic, deadline)
            added = {
                CORRELATION_ID: correlation_id,
                REPLY_TO_CLIENT: self._instance.client_id,
                TTL: str(max(1, round(timeout_s * 1000))),
            }
            left = max(deadline - loop.time(), 0.001)
            queue, text = lone_queue_of(message), with_properties(properties, added)
            request = SendRequest(message.topic, queue, body, text, uniq_key, left, self._outbox)
            request.in_order = False
            room, request.size = self._outbox.room, len(message.body)
            room.messages += 1
            room.bytes += request.size
            request.sys_flag, request.flag = sys_flag, message.flag
            if hooked:
                request.messages = (message,)
            await self._outbox.deliver(request)
            try:
                async with asyncio.timeout_at(deadline):
                    return await reply
            except TimeoutError:
                raise ReplyTimeout(message.topic, uniq_key, timeout_s) from None

    async def _introduce(self, topic: str, deadline: float) -> None:
        """Register this producer at every broker that may deliver a reply: those of the topic, and of the cluster's reply topic."""
        instance, now = self._instance, self._outbox.loop.time
        route = await self._route(topic, deadline - now())
        routes = [route, *[found for name in route.clusters if (found := await self._reply_route(name, deadline - now())) is not None]]
        addresses = {address for one in routes for address in one.masters.values()}
        peek = instance.brokers.peek
        strangers = [address for address in addresses if address not in self._known or peek(address) is not self._known[address]]
        if not strangers or self._introduced_at > now():
            return
        self._introduced_at = now() + _INTRODUCE_INTERVAL_S
        try:
            async with asyncio.timeout_at(min(deadline, now() + REQUEST_TIMEOUT_S)):
                await instance.heartbeat_now()
        except TimeoutError:
            return  # the brokers that answered know it; the send reports problems with the others
        greeted = instance.broker_addresses()
        for address in strangers:
            conn = peek(address)
            if conn is not None and address in greeted:
                self._known[address] = conn
        if all(address in self._known for address in addresses):
            self._introduced_at = 0.0

    async def _route(self, topic: str, budget_s: float) -> Route:
        return self._instance.routes.get(topic) or (await self._outbox.open(topic, max(budget_s, 0.001))).route

    async def _reply_route(self, cluster: str, budget_s: float) -> Route | None:
        """Return the route of a cluster's reply topic; None when it is unknown or refused to this user: then only the topic's count."""
        topic = f"{cluster}{REPLY_TOPIC_SUFFIX}"
        route = self._instance.routes.get(topic)
        if route is None and topic not in self._looked_up:
            try:
                route = await self._instance.fetch_route(topic, budget_s=max(budget_s, 0.001))
            except AccessRefused:
                route = None
            self._looked_up.add(topic)
        return route

    # --- replies ---

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        """Send the reply to ``request`` through a broker that knows its requester, that of the request first."""
        if not isinstance(request, ReceivedMessage):
            raise ConfigError(f"a reply needs the request as a consumer got it, a ReceivedMessage, not {request!r}")
        asked = request.properties
        missing = [name for name in (REPLY_TO_CLIENT, CORRELATION_ID, CLUSTER) if name not in asked]
        if missing:
            raise NotARequest(request.msg_id, missing)
        requester = asked[REPLY_TO_CLIENT]
        topic = f"{asked[CLUSTER]}{REPLY_TOPIC_SUFFIX}"
        deadline = self._outbox.loop.time() + timeout_s
        _, encoded, stored, sys_flag = self._encoder.single(message := Message(topic, body, tag, keys, properties))
        added = {name: asked[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in asked}
        text = with_properties(encoded, {MSG_TYPE: "reply", **added})
        route = await self._instance.route(topic, budget_s=timeout_s)
        masters = route.masters
        if not masters:
            raise NoMaster(sorted(route.addresses), topic)
        gone: list[str] = []
        failure: SprocketError | None = None
        for name in sorted(masters, key=lambda name: (name != request.broker_name, name)):
            left = deadline - self._outbox.loop.time()
            if left <= 0:
                break
            prefix = header_prefix(self._group, MessageQueue(topic, name, 0), batch=False)
            ext = HEADER % (prefix, sys_flag, self._instance.clock.time_ms(), message.flag, text)
            try:
                answer = await self._instance.ask(masters[name], RequestCode.SEND_REPLY_MESSAGE_V2, ext=ext, body=stored, timeout_s=left)
            except RetriableError as e:
                failure = e
                continue
            if answer.code == ResponseCode.SUCCESS:
                return
            if answer.code == _GONE:
                gone.append(answer.remark or "")
            else:
                failure = response_error(answer, masters[name], topic)
        if failure is None and gone:
            raise RequesterGone(requester, gone[0])
        if failure is None or isinstance(failure, RequestTimeout):
            raise MaybeStoredError(
                f"no broker has answered within {timeout_s:g} s to a reply for {requester}: it may have arrived", cause=failure
            ) from failure
        raise failure


def with_properties(encoded: bytes, added: Mapping[str, str]) -> bytes:
    """Return a property string as JSON with more properties, whose text is known to need no checks."""
    return encoded[:-1] + msgspec.json.encode("".join([f"{name}\x01{value}\x02" for name, value in added.items()]))[1:]
