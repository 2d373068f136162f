"""Replies to requests (codes 324 and 325): each is pushed to the producer that waits for it (326) and answered when it has arrived.

A reply is not stored: only its requester can use it, and only now. Its topic has to exist and be writable nevertheless.
"""

import logging
from collections import Counter
from collections.abc import Callable

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.metrics.counters import BrokerCounters
from sprocketmq.broker.send_rules import SendRefused
from sprocketmq.broker.topics import OVERLOAD, TopicTable
from sprocketmq.clock import Clock
from sprocketmq.errors import SprocketError
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import PushReply, SendHeader, SendMessageV1, SendMessageV2
from sprocketmq.protocol.properties import (
    MAX_PROPERTIES_LENGTH,
    MSG_REGION,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TRACE_ON,
    decode_properties,
    encode_properties,
)

log = logging.getLogger(__name__)

# Timeout for the delivery of a reply to its requester, as in the reference.
PUSH_TIMEOUT_S = 10.0
# Limits of replies under way: for one requester, for all, and the bytes of all bodies. More are refused as SYSTEM_BUSY.
MAX_PUSHES_OF_ONE = 1_000
MAX_PUSHES = 10_000
MAX_PUSHED_BYTES = 64 << 20

# The outcomes, as named by the metric.
DELIVERED, REQUESTER_GONE, NOT_TAKEN, OVERLOADED, ILLEGAL = "delivered", "requester_gone", "not_taken", "overloaded", "illegal"


class ReplyHandlers:
    """Pushes replies to requesters. ``address`` returns the broker's own, which a pushed reply carries."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        clients: ClientRegistry,
        counters: BrokerCounters,
        background: Background,
        *,
        address: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._requesters = clients.requesters
        self._counts = counters.replies
        self._background = background
        self._address = address
        self._clock = clock
        self._max_body = config.max_message_bytes
        self._added = {MSG_REGION: config.region, TRACE_ON: "true"}
        self._peer_log = PeerLog(log, clock.monotonic)
        self._pushes: Counter[ServerConnection] = Counter()
        self._count = self._bytes = 0

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.SEND_REPLY_MESSAGE: self.reply_v1, RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2}

    def reply_v1(self, conn: ServerConnection, command: Command) -> None:
        """Take a reply with long field names (324)."""
        self._reply(conn, command, command.header(SendMessageV1))

    def reply_v2(self, conn: ServerConnection, command: Command) -> None:
        """Take a reply with one-letter field names (325)."""
        self._reply(conn, command, command.header(SendMessageV2))

    def _reply(self, conn: ServerConnection, command: Command, header: SendHeader) -> None:
        ext = {"msgId": "0", "queueId": str(header.queue_id), "queueOffset": "0", **self._added}
        try:
            self._check(command, header)
            pairs = decode_properties(header.properties.encode())
            requester = self._requester(conn, pairs.get(REPLY_TO_CLIENT))
            push = self._push_of(conn, header, pairs)
        except SendRefused as e:
            conn.respond(command, e.code, ext=ext, remark=e.remark)
            return
        body, command.body = bytes(command.body), b""
        self._count += 1
        self._bytes += len(body)
        self._pushes[requester] += 1
        pushing = self._background.spawn(self._push(conn, command, requester, pairs[REPLY_TO_CLIENT], push, body, ext), "a reply")
        pushing.add_done_callback(lambda _: self._ended(requester, len(body)))  # also for one that is cancelled before it began

    def _check(self, command: Command, header: SendHeader) -> None:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise self._refused(ILLEGAL, ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] of the reply not exist on this broker")
        if topic.refusal is not None:
            raise self._refused(ILLEGAL, *topic.refusal)
        size, properties = len(command.body), header.properties
        if not size or size > self._max_body or header.batch or len(properties.encode()) > MAX_PROPERTIES_LENGTH:
            remark = f"a reply is one message with a body of 1 to {self._max_body} bytes and at most 32 KiB of properties"
            raise self._refused(ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, remark)
        if self._count >= MAX_PUSHES or self._bytes + size > MAX_PUSHED_BYTES:
            raise self._refused(OVERLOADED, ResponseCode.SYSTEM_BUSY, OVERLOAD)

    def _requester(self, conn: ServerConnection, client_id: str | None) -> ServerConnection:
        if not client_id:
            raise self._refused(ILLEGAL, ResponseCode.SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null")
        requester = self._requesters.find(client_id)
        if requester is None or requester.closed:
            self._undelivered(conn, client_id, "it is not connected")
            remark = f"push reply message fail, channel of <{client_id}> not found."
            raise self._refused(REQUESTER_GONE, ResponseCode.SYSTEM_ERROR, remark)
        if self._pushes[requester] >= MAX_PUSHES_OF_ONE:
            self._undelivered(conn, client_id, f"it has not taken {MAX_PUSHES_OF_ONE} replies yet")
            raise self._refused(OVERLOADED, ResponseCode.SYSTEM_BUSY, OVERLOAD)
        return requester

    def _refused(self, outcome: str, code: int, remark: str) -> SendRefused:
        self._counts[outcome] += 1
        return SendRefused(code, remark)

    def _undelivered(self, conn: ServerConnection, client_id: str, reason: object) -> None:
        self._peer_log.event(client_id, "reply_undelivered", requester=client_id, peer=conn.peer, reason=reason)

    def _push_of(self, conn: ServerConnection, header: SendHeader, pairs: dict[str, str]) -> PushReply:
        now_ms = self._clock.time_ms()
        return PushReply(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp_ms=header.born_timestamp_ms,
            flag=header.flag,
            properties=encode_properties({**pairs, **self._added, PUSH_REPLY_TIME: str(now_ms)}).decode(),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=bool(header.unit_mode),
            born_host=conn.peer,
            store_host=self._address(),
            store_timestamp_ms=now_ms,
        )

    async def _push(
        self,
        conn: ServerConnection,
        command: Command,
        requester: ServerConnection,
        client_id: str,
        push: PushReply,
        body: bytes,
        ext: dict[str, str],
    ) -> None:
        """Push a reply and answer its sender."""
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        reason: object = None
        try:
            answer = await requester.request(code, ext=to_ext(push), body=body, timeout_s=PUSH_TIMEOUT_S)
            if answer.code:
                reason = answer.remark or f"it has answered with code {answer.code}"
        except SprocketError as e:
            reason = e
        if reason is None:
            self._counts[DELIVERED] += 1
            conn.respond(command, ResponseCode.SUCCESS, ext=ext)
            return
        self._counts[NOT_TAKEN] += 1
        self._undelivered(conn, client_id, reason)
        conn.respond(command, ResponseCode.SYSTEM_ERROR, ext=ext, remark=f"push reply message to <{client_id}>fail.")

    def _ended(self, requester: ServerConnection, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        self._pushes[requester] -= 1
        if not self._pushes[requester]:
            del self._pushes[requester]
