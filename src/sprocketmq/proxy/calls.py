"""gRPC on HTTP/2: connections of clients, their calls, the messages of these, and the statuses that end them.

``CallServer`` listens, and runs a task for each call of a ``Method``. Plain and encrypted connections share the port: clients of some
languages use TLS unless told otherwise, those of others do not.
"""

import asyncio
import contextlib
import logging
import re
import socket
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from enum import Enum, IntEnum, auto
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.net.address import format_address
from sprocketmq.net.listening import Listener, listen_with_tls, stop_accepting
from sprocketmq.net.newcomers import NewcomerLimits, Newcomers
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tasks import Background
from sprocketmq.proxy.header_fields import literal_fields
from sprocketmq.proxy.http2 import ConnectionFault, ErrorCode, Session, Stream
from sprocketmq.proxy.schema import Proto

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 10_000
MAX_CALLS = 10_000
# The longest message of the API: one with the largest body, its properties, and what encloses them; sends may gather a few.
MAX_CALL_BYTES = 32 << 20
# Of one connection's calls, what has come of requests that are not whole.
MAX_BUFFERED_BYTES = 64 << 20
# Of one connection's answers, what its client has not made room for.
MAX_WAITING_BYTES = 64 << 20
# Requests of one stream that wait to be read; while there are more, the client may not send.
MAX_WAITING_REQUESTS = 16

GREETING_S = 10.0
IDLE_S = 120.0
# A client that has calls, and from which nothing came for so long, is asked for a sign of life, and then has as long again.
SILENCE_S = 60.0
# How long a client has to read the last answers of a connection that ends.
CLOSING_S = 5.0
CHECK_S = 1.0

_WRITE_BUFFER_BYTES = 1 << 20
_PREFIX = struct.Struct(">BI")
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_ENCODINGS = ("gzip", "deflate")
# zlib's number for "whatever header the data has".
_ANY_HEADER = 47

_CONTENT = ("content-type", "application/grpc")
# With a format of messages, or parameters; not "application/grpc-web".
_IS_CALL = re.compile(r"application/grpc(?:[+;]|$)")
# ":status: 200" is number 8 of the table that both sides have.
_OK_STATUS = b"\x88"
_BEGIN = _OK_STATUS + literal_fields(_CONTENT)
_END = literal_fields(("grpc-status", "0"))


class Status(IntEnum):
    """The statuses that this server gives, of those in https://grpc.io/docs/guides/status-codes/ ."""

    OK = 0
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(Exception):
    """A call ends with a status instead of its answer."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Form(Enum):
    """How many messages a method takes and gives."""

    ONE_TO_ONE = auto()
    ONE_TO_MANY = auto()
    MANY_TO_MANY = auto()


class Method(NamedTuple):
    """A method: ``serve(request, call)`` is a coroutine that returns the answer, or an asynchronous generator of the answers.

    With MANY_TO_MANY the request is an asynchronous iterator of requests, which ends early when the client has gone.
    """

    parse: Callable[[bytes], Proto]
    serve: Callable[[Any, "Call"], Any]
    form: Form = Form.ONE_TO_ONE


class Call:
    """One call; ``metadata`` are its header fields."""

    __slots__ = (
        "_body",
        "_deadline",
        "_draining",
        "_held",
        "_reading",
        "_requests",
        "begun",
        "ends_connection",
        "metadata",
        "metadata_bytes",
        "method",
        "over",
        "peer",
        "stream",
        "task",
    )

    def __init__(self, peer: "Peer", stream: Stream, method: Method, metadata: Mapping[str, str], deadline: float | None) -> None:
        self.peer = peer
        self.stream = stream
        self.method = method
        self.metadata = metadata
        # Counted for connections that have no login.
        self.metadata_bytes = sum(map(len, metadata)) + sum(map(len, metadata.values())) if peer.newcomer else 0
        self.task: asyncio.Task[None] | None = None
        # Whether the answer has begun, and whether the call has ended for either side.
        self.begun = False
        self.over = False
        self.ends_connection = False
        self._deadline = deadline
        self._body = bytearray()
        self._requests: deque[Proto] = deque()
        self._held = 0
        # What waits for a request, and for the client to read.
        self._reading: asyncio.Future[None] | None = None
        self._draining: asyncio.Future[None] | None = None

    def time_remaining(self) -> float | None:
        """Return the seconds until the client gives up, None when it waits for ever."""
        return None if self._deadline is None else max(0.0, self._deadline - self.peer.now())

    @property
    def late(self) -> bool:
        """Whether the client has given up."""
        return self._deadline is not None and self._deadline <= self.peer.now()

    @property
    def buffered_bytes(self) -> int:
        """What it holds of a request that has not come whole."""
        return len(self._body)

    # --- requests ---

    def feed(self, data: bytes) -> None:
        """Take data of the stream. Raises CallFailed."""
        self._body += data
        for message in self._whole():
            self._requests.append(self._parsed(message))
        if len(self._requests) > MAX_WAITING_REQUESTS:
            self._held += len(data)
        elif not self.stream.ended:
            self.peer.session.credit(self.stream, len(data))
        self.wake()

    def only_request(self) -> Proto:
        """Return the request of a method that takes one. Raises CallFailed when there are none or more."""
        if len(self._requests) != 1 or self._body:
            raise CallFailed(Status.INTERNAL, "the method takes one request, whole")
        return self._requests.popleft()

    async def requests(self) -> AsyncIterator[Proto]:
        """Return the requests of a method that takes many, as they come."""
        while True:
            if self._requests:
                request = self._requests.popleft()
                if self._held and len(self._requests) <= MAX_WAITING_REQUESTS:
                    held, self._held = self._held, 0
                    self.peer.session.credit(self.stream, held)
                    self.peer.flush_soon()
                yield request
            elif self.stream.ended or self.over:
                return
            else:
                self._reading = asyncio.get_running_loop().create_future()
                await self._reading

    def _whole(self) -> Iterator[bytes]:
        body = self._body
        while len(body) >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(body)
            if size > MAX_CALL_BYTES:
                raise CallFailed(Status.RESOURCE_EXHAUSTED, f"a message of {size} bytes, more than {MAX_CALL_BYTES}, the limit")
            end = _PREFIX.size + size
            if len(body) < end:
                return
            message = bytes(body[_PREFIX.size : end])
            del body[:end]
            yield self._inflated(message) if compressed else message

    def _inflated(self, message: bytes) -> bytes:
        if self.metadata.get("grpc-encoding") not in _ENCODINGS:
            raise CallFailed(Status.INTERNAL, "a compressed message in a call without grpc-encoding")
        inflater = zlib.decompressobj(_ANY_HEADER)
        try:
            whole = inflater.decompress(message, MAX_CALL_BYTES)
        except zlib.error as e:
            raise CallFailed(Status.INTERNAL, f"a message that cannot be decompressed: {e}") from None
        if inflater.unconsumed_tail:
            raise CallFailed(Status.RESOURCE_EXHAUSTED, f"a message of more than {MAX_CALL_BYTES} bytes, the limit")
        return whole

    def _parsed(self, message: bytes) -> Proto:
        try:
            return self.method.parse(message)
        except Exception as e:  # noqa: BLE001 - protobuf's implementations have errors of their own
            raise CallFailed(Status.INTERNAL, f"a request that cannot be decoded: {e}") from None

    # --- answers ---

    def answer(self, message: Proto) -> None:
        """Send the only answer, and end the call."""
        if not self.over:
            self._begin()
            self._leave()
            self.peer.session.send(self.stream, _framed(message), _END)
            self.peer.flush_soon()

    async def send(self, message: Proto) -> None:
        """Send one of the answers, and wait while the client does not read."""
        if self.over:
            return
        self._begin()
        self.peer.session.send(self.stream, _framed(message))
        self.peer.flush_soon()
        while self.stream.pending and not self.over:
            self._draining = asyncio.get_running_loop().create_future()
            await self._draining

    def end(self, status: Status = Status.OK, reason: str = "") -> None:
        """End the call with a status."""
        if self.over:
            return
        self._leave()
        fields = _END if status is Status.OK else status_fields(status, reason)
        self.peer.session.answer(self.stream, fields if self.begun else _BEGIN + fields, last=True)
        self.peer.flush_soon()

    def gone(self) -> None:
        """Cancel the work: the stream was ended early."""
        self._leave()
        if self.task is not None:
            self.task.cancel()

    def wake(self) -> None:
        """Let the call look again whether it can go on."""
        for waiter in (self._reading, self._draining):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self.peer.session.answer(self.stream, _BEGIN)

    def _leave(self) -> None:
        self.over = True
        self.wake()


class Peer(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, server: "CallServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._pinged = False
        self._closed_at: float | None = None
        self.session = Session(self)
        self.host = self.address = ""
        # Whether it has no login yet, and is counted for that.
        self.newcomer = False
        self._greeted = False
        self.heard_at = self.now()

    def now(self) -> float:
        """Return the server's time in seconds."""
        return self._server.clock.monotonic()

    @property
    def closing(self) -> bool:
        """Whether it ends as soon as the client has read what was answered."""
        return self._closed_at is not None

    @property
    def retained_bytes(self) -> int:
        """What it holds of calls that have not come whole, and of the calls of one that has no login."""
        calls = (cast("Call", stream.call) for stream in self.session.streams.values())
        return self.session.retained_bytes + sum(call.buffered_bytes + call.metadata_bytes for call in calls)

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        name = transport.get_extra_info("peername")
        if name:
            self.host, self.address = name[0], format_address(*name[:2])
        self._server.opened(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self.heard_at = self.now()
        self._pinged = False
        self._greeted = True
        try:
            self.session.receive(data)
        except ConnectionFault as e:
            self._server.broken(self, e)
            self.session.leave(e.code, str(e))
            self.close()
            return
        if self.newcomer:
            self._server.received(self)
        self.flush()
        if self.session.leaving and not self.session.streams:
            self.close()

    def eof_received(self) -> bool:
        return False  # HTTP/2 has no half-closed connections

    def pause_writing(self) -> None:
        # What arrives has answers, if only acknowledgements: a client that does not read them is not read either.
        self.session.paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self.session.resume()
            self.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._server.closed(self)
        for stream in list(self.session.streams.values()):
            cast("Call", stream.call).gone()

    def flush_soon(self) -> None:
        """Write in the loop's next turn what the session has to say."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what the session has to say."""
        self._flushing = False
        out = self.session.take()
        if out and self._transport is not None:
            self._transport.write(out)
        if self.session.waiting_bytes > MAX_WAITING_BYTES:
            self.abort(f"{MAX_WAITING_BYTES} bytes of answers wait for it, the limit")

    def close(self) -> None:
        """Close after what has been answered."""
        self.flush()
        if self._transport is not None and self._closed_at is None:
            self._closed_at = self.now()
            self._transport.close()

    def abort(self, _reason: str) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def admitted(self) -> None:
        """Record that a call had a login."""
        if self.newcomer:
            self.newcomer = False
            self._server.admitted(self)

    def look_after(self, now: float) -> None:
        """End what takes too long; called every second."""
        session = self.session
        if self._closed_at is not None:
            if now - self._closed_at >= CLOSING_S:
                self.abort("it does not read its last answers")
            return
        session.calm()
        silent_s = now - self.heard_at
        if not session.streams:
            if silent_s >= (IDLE_S if self._greeted else GREETING_S):
                session.leave()
                self.close()
            return
        for stream in list(session.streams.values()):
            call = cast("Call", stream.call)
            if call.late:
                call.end(Status.DEADLINE_EXCEEDED, "the call took longer than its timeout")
                call.gone()
                if stream.id in session.streams:  # its answer waits for a client that has given up
                    session.reset(stream, ErrorCode.CANCEL)
        self.flush()
        if silent_s >= 2 * SILENCE_S:
            self.abort("it gives no sign of life")
        elif silent_s >= SILENCE_S and not self._pinged:
            self._pinged = True
            session.ping()
            self.flush()

    # --- the session ---

    def opened(self, stream: Stream, fields: dict[str, str]) -> None:
        if fields[":method"] != "POST" or not _IS_CALL.match(fields.get("content-type", "")):
            self.session.answer(stream, literal_fields((":status", "415")), last=True)
            return
        try:
            stream.call = call = self._server.call(self, stream, fields)
            if call.method.form is Form.MANY_TO_MANY:
                self._server.run(call, call.requests())
            elif stream.ended:
                call.only_request()
        except CallFailed as e:
            self.session.answer(stream, _BEGIN + status_fields(e.status, str(e)), last=True)

    def received(self, stream: Stream, data: bytes) -> None:
        call = cast("Call", stream.call)
        try:
            call.feed(data)
            if call.buffered_bytes:
                self._check_buffered()
            if stream.ended and call.method.form is not Form.MANY_TO_MANY:
                self._server.run(call, call.only_request())
        except CallFailed as e:
            call.end(e.status, str(e))
            call.gone()

    def _check_buffered(self) -> None:
        if self.retained_bytes > MAX_BUFFERED_BYTES:
            raise CallFailed(Status.RESOURCE_EXHAUSTED, f"calls of this connection wait with {MAX_BUFFERED_BYTES} bytes, the limit")

    def reset(self, stream: Stream) -> None:
        if stream.call is not None:
            cast("Call", stream.call).gone()

    def drained(self, stream: Stream) -> None:
        cast("Call", stream.call).wake()


class CallServer:
    """Serves ``methods``, by their paths, to clients.

    With ``logins`` the connections that ``Peer.admitted`` was not called for are bounded as those of a broker are.
    """

    def __init__(
        self, methods: Mapping[str, Method], peer_log: PeerLog, *, logins: bool, limits: NewcomerLimits, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.clock = clock
        self._methods = methods
        self._peer_log = peer_log
        self._peers: set[Peer] = set()
        self._calls = 0
        self._newcomers = Newcomers(limits, self._newcomer_closed) if logins else None
        self._background = Background("gRPC endpoint")
        self._listener: Listener | None = None

    async def start(self, host: str, port: int, tls: ServerTls | None) -> int:
        """Listen, and return the port. Raises PortInUse and ConfigError."""
        self._listener = await listen_with_tls(
            lambda: Peer(self), host, port, tls, name="gRPC endpoint", peer_log=self._peer_log, refusal=self._refusal
        )
        self._background.every(CHECK_S, self._look_after, "a look after the connections")
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self, timeout_s: float) -> None:
        """Stop listening, let calls end for up to ``timeout_s`` seconds, and close all connections. May be called twice."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        await stop_accepting(listener)
        for peer in self._peers:
            peer.session.leave()
            peer.flush()
        await self._background.drain(timeout_s)
        await self._background.close()
        for peer in list(self._peers):
            peer.close()
        await asyncio.sleep(0)  # lets transports write what fits into the sockets
        for peer in list(self._peers):
            peer.abort("the endpoint stops")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await listener.wait_closed()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._peers)

    @property
    def closing_connections(self) -> int:
        """How many of these end as soon as their clients have read what was answered."""
        return sum(peer.closing for peer in self._peers)

    def _refusal(self, _sock: socket.socket, arriving: int) -> str:
        full = len(self._peers) + arriving >= MAX_CONNECTIONS
        return f"{MAX_CONNECTIONS} connections are open, the limit" if full else ""

    def _look_after(self) -> None:
        now = self.clock.monotonic()
        for peer in list(self._peers):
            peer.look_after(now)

    # --- connections ---

    def opened(self, peer: Peer) -> None:
        """Record a new connection."""
        self._peers.add(peer)
        if self._newcomers is not None:
            peer.newcomer = True
            self._newcomers.add(peer)

    def received(self, peer: Peer) -> None:
        """Count what a newcomer retains."""
        if self._newcomers is not None:
            self._newcomers.received(peer)

    def admitted(self, peer: Peer) -> None:
        """Record that a call of a newcomer had a login."""
        if self._newcomers is not None:
            self._newcomers.discard(peer)

    def broken(self, peer: Peer, fault: ConnectionFault) -> None:
        """Log a connection that does not speak the protocol."""
        self._peer_log.event(peer.host, "frame_refused", server="gRPC endpoint", peer=peer.address, reason=fault)

    def closed(self, peer: Peer) -> None:
        """Forget a connection."""
        self._peers.discard(peer)
        if self._newcomers is not None:
            self._newcomers.discard(peer)

    def _newcomer_closed(self, peer: Peer, reason: str) -> None:
        self._peer_log.event(peer.host, "newcomer_refused", server="gRPC endpoint", peer=peer.address, reason=reason)

    # --- calls ---

    def call(self, peer: Peer, stream: Stream, fields: Mapping[str, str]) -> Call:
        """Return the call that header fields begin. Raises CallFailed."""
        path = fields[":path"]
        method = self._methods.get(path)
        if method is None:
            raise CallFailed(Status.UNIMPLEMENTED, f"there is no method {path[:200]}")
        if fields.get("grpc-encoding", "identity") not in ("identity", *_ENCODINGS):
            raise CallFailed(Status.UNIMPLEMENTED, f"requests are compressed with {' or '.join(_ENCODINGS)} here, or not at all")
        return Call(peer, stream, method, fields, self._deadline(fields.get("grpc-timeout")))

    def _deadline(self, timeout: str | None) -> float | None:
        if timeout is None:
            return None
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            raise CallFailed(Status.INTERNAL, f"{timeout[:20]!r} is not a timeout")
        return self.clock.monotonic() + int(match[1]) * _UNITS[match[2]]

    def run(self, call: Call, request: Any) -> None:
        """Begin the work of a call. Raises CallFailed."""
        if self._calls >= MAX_CALLS:
            raise CallFailed(Status.RESOURCE_EXHAUSTED, f"{MAX_CALLS} calls are under way, the limit")
        self._calls += 1
        call.task = self._background.spawn(self._serve(call, request), "a call", awaited=True)
        call.task.add_done_callback(self._ended)

    def _ended(self, _task: object) -> None:
        self._calls -= 1

    async def _serve(self, call: Call, request: Any) -> None:
        method = call.method
        try:
            if method.form is Form.ONE_TO_ONE:
                call.answer(await method.serve(request, call))
            else:
                async with contextlib.aclosing(method.serve(request, call)) as answers:
                    async for answer in answers:
                        await call.send(answer)
                call.end()
        except CallFailed as e:
            call.end(e.status, str(e))
        except Exception:
            log.exception("a call of %s failed", call.metadata.get(":path"))
            call.end(Status.INTERNAL, "the call failed at the endpoint")
        if call.ends_connection:
            call.peer.session.leave()
            call.peer.close()


def status_fields(status: Status, reason: str) -> bytes:
    """Encode a status that is not OK, with the reason as gRPC's clients decode it."""
    return literal_fields(("grpc-status", str(int(status))), ("grpc-message", quote(reason, safe=" !#$&'()*+,/:;=?@[]~")))


def _framed(message: Proto) -> bytes:
    data = message.SerializeToString()
    return bytes(_PREFIX.pack(0, len(data)) + data)
