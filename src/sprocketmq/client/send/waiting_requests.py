"""The requests of a producer that wait for their replies, and the replies that brokers push to it (326)."""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sprocketmq.clock import Clock
from sprocketmq.errors import ClientClosed, ConfigError, ProtocolError, RemoteProtocolError, SendQueueFull
from sprocketmq.net.address import parse_address
from sprocketmq.net.client import Connection
from sprocketmq.protocol.codes import SYSFLAG_COMPRESSED, SYSFLAG_COMPRESSION_MASK, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import PushReply
from sprocketmq.protocol.names import MAX_INTERNAL_TOPIC_LENGTH
from sprocketmq.protocol.properties import ARRIVE_TIME, CORRELATION_ID, decode_properties, encode_properties
from sprocketmq.protocol.records import ReceivedMessage, decode_records, encode_record, pack_host

log = logging.getLogger(__name__)

LINE_INTERVAL_S = 10.0

_COMPRESSION = SYSFLAG_COMPRESSED | SYSFLAG_COMPRESSION_MASK
_NO_HOST = bytes(8)


class WaitingRequests:
    """Requests by correlation id, at most ``limit``. ``handle`` receives the requests of brokers to the producer."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        # Late replies since the last log line about them, and when the next line may be written.
        self._untaken = 0
        self._next_line = 0.0
        self._replies: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._replies)

    @contextmanager
    def waiting(self) -> Iterator[tuple[str, "asyncio.Future[ReceivedMessage]"]]:
        """Yield a new correlation id and the future of its reply, which is dropped afterwards. Raises SendQueueFull."""
        if len(self._replies) >= self._limit:
            raise SendQueueFull("requests", self._limit)
        correlation_id = str(uuid.uuid4())
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._replies[correlation_id] = reply
        try:
            yield correlation_id, reply
        finally:
            del self._replies[correlation_id]
            if reply.done() and not reply.cancelled():
                reply.exception()  # the request may have ended meanwhile

    def close(self) -> None:
        """Fail all requests that still wait."""
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ClientClosed("the producer was closed while a request waited for its reply"))

    def handle(self, conn: Connection, command: Command) -> None:
        """Take a reply; answer with an error when no request waits for it, so that the replier learns that it came too late."""
        if command.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            conn.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported")
            return
        try:
            message = read_reply(command.header(PushReply), command.body, self._clock.time_ms())
            correlation_id = message.properties.get(CORRELATION_ID, "")
        except ProtocolError as e:
            self._refuse(conn, command, f"the reply cannot be read: {e}")
            return
        reply = self._replies.get(correlation_id)
        if reply is None or reply.done():
            self._refuse(
                conn, command, f"no request waits for the reply {correlation_id or '(without CORRELATION_ID)'}: its time may be over"
            )
            return
        reply.set_result(message)
        conn.respond(command, ResponseCode.SUCCESS)

    def _refuse(self, conn: Connection, command: Command, remark: str) -> None:
        self._untaken += 1
        now = self._clock.monotonic()
        if now >= self._next_line:
            log.info(
                "%d replies were refused since the last such line; the last came from broker %s: %s", self._untaken, conn.address, remark
            )
            self._untaken = 0
            self._next_line = now + LINE_INTERVAL_S
        conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)


def read_reply(header: PushReply, body: bytes | memoryview, arrived_ms: int) -> ReceivedMessage:
    """Return a pushed reply as a received message. Raises ProtocolError for an invalid one."""
    topic = header.topic.encode()
    if not topic or len(topic) > MAX_INTERNAL_TOPIC_LENGTH:
        raise RemoteProtocolError(f"a reply with a topic of {len(topic)} bytes")
    pairs = decode_properties(header.properties.encode())
    record = encode_record(
        topic=topic,
        body=body,
        properties=encode_properties({**pairs, ARRIVE_TIME: str(arrived_ms)}),
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        born_timestamp_ms=header.born_timestamp_ms,
        born_host=_host(header.born_host),
        store_timestamp_ms=header.store_timestamp_ms,
        store_host=_host(header.store_host),
        flag=header.flag,
        sys_flag=header.sys_flag & _COMPRESSION,
        reconsume_times=header.reconsume_times,
    )
    return decode_records(record)[0]


def _host(address: str) -> bytes:
    """Return an address in the form of records; 0.0.0.0 when it cannot be parsed, as it is only displayed."""
    try:
        return pack_host(*parse_address(address.rpartition("/")[2]))
    except (ConfigError, ValueError):
        return _NO_HOST
