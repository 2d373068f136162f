"""A remoting server: accepts connections, passes their commands to a handler, writes its responses."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from sprocketmq.errors import ConnectionLost, LocalProtocolError, ProtocolError, RequestTimeout, SprocketError
from sprocketmq.net.address import parse_address
from sprocketmq.net.link import Buffers, Link, buffers_length
from sprocketmq.net.listening import Listener, listen_with_tls, stop_accepting
from sprocketmq.net.newcomers import NewcomerLimits, Newcomers
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.sockets import descriptor_limit
from sprocketmq.net.tasks import Background
from sprocketmq.net.tls_listener import TlsListener
from sprocketmq.protocol.codes import CODES_BY_LOW_BITS, FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode, SerializeType
from sprocketmq.protocol.command import Command, encode_head, encode_success
from sprocketmq.protocol.frame import TLS_HANDSHAKE, FrameError, ReceiveBuffer
from sprocketmq.protocol.records import pack_host

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 120.0
SWEEP_INTERVAL_S = 10.0
# A peer that leaves this many bytes of responses unread is disconnected; until then its own requests are not read either.
MAX_WRITE_BACKLOG = 64 << 20

# The memory of one read, of one connection after the other. A batch of 256 KiB would seldom be whole in a read of as much, and a frame in
# two parts is copied: 1 MiB takes a tenth of the broker's time from such batches to a plain topic.
RECEIVE_BYTES = 1 << 20

# Requests that are finished and answered together. With one write for everything a client has in flight, client and server would take
# turns and one of them would be idle: 64 sends in flight reach 31,000/s that way, and 55,000/s in halves, at the same CPU time each.
REQUESTS_PER_WRITE = 32

_BINARY = int(SerializeType.ROCKETMQ)
# Answers with no more fields than this are far from the limits of a frame.
_SHORT_EXT_BYTES = 64 << 10

# Answers that are logged; the guard logs those of its own (NO_PERMISSION).
_REJECTIONS = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
    }
)

_NO_TLS_HERE = "; this port does not encrypt (tls_mode=disabled): connect it without TLS, or set tls_mode, tls_cert_file and tls_key_file"


class Handler(Protocol):
    """Handles the connections of a server. No method may block; a body is a view that is valid during the call only."""

    def on_connect(self, conn: "ServerConnection") -> None: ...

    def on_request(self, conn: "ServerConnection", command: Command) -> None: ...

    def on_batch_end(self, conn: "ServerConnection") -> None:
        """Finish what the last requests (up to REQUESTS_PER_WRITE) began; responses queued here still leave in the same write."""
        ...

    def on_disconnect(self, conn: "ServerConnection") -> None: ...


class Guard(Protocol):
    """Decides which requests reach the handler. No method may block; bodies are valid as for a ``Handler``."""

    def admits(self, conn: "ServerConnection", command: Command) -> bool:
        """Return whether ``command`` may be handled; if not, it has already been answered or its connection closed."""
        ...

    def connected(self, conn: "ServerConnection") -> None: ...

    def disconnected(self, conn: "ServerConnection") -> None: ...


class AnswerObserver(Protocol):
    """Learns of every answer of a server. ``now`` is its clock, in seconds. No method may block.

    An answer is one number: request code << 17 | one-way << 16 | response code.
    """

    now: Callable[[], float]

    def answered(self, answers: list[int], since: float) -> None:
        """Record answers that were given together, to requests of one readiness of a socket that were handled from ``since`` on."""
        ...

    def answered_late(self, request: Command, code: int, since: float, *, long_polling: bool) -> None:
        """Record an answer that was given after its request was handled."""
        ...


class ServerConnection(Link):
    """One accepted connection. ``attachment`` is the handler's own; ``peer_host`` the peer as records store it.

    With an observer ``handling_since`` is when the handling of the last requests began.

    ``user`` is whom the guard authenticated last, ``authenticated_at`` when, in seconds of the guard's clock.
    """

    __slots__ = (
        "_answers",
        "_asked",
        "_guard",
        "_handler",
        "_next_opaque",
        "_observer",
        "_serialize",
        "_server",
        "attachment",
        "authenticated_at",
        "handling_since",
        "peer_host",
        "user",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, server: "RemotingServer") -> None:
        super().__init__(loop, server.receive)
        self._server = server
        self._handler = server.handler
        self._guard = server.guard
        self._observer = server.observer
        self._answers = server.answers
        self.handling_since = 0.0
        self._serialize = server.serialize
        self._next_opaque = 0
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self.peer_host = b""
        self.user: str | None = None
        self.authenticated_at = 0.0
        self.attachment: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        server = self._server
        host, port = parse_address(self.peer)
        if reason := server.refusal(transport.get_extra_info("socket")):
            server.refused_connections += 1
            server.peer_log.event(host, "connection_refused", server=server.name, peer=self.peer, reason=reason)
            self.abort(reason)
            return
        self.peer_host = pack_host(host, port)
        server.connections.add(self)
        self._handler.on_connect(self)
        if self._guard is not None:
            server.newcomers.add(self)
            self._guard.connected(self)

    def _handle(self, commands: list[Command]) -> None:
        if len(commands) <= REQUESTS_PER_WRITE:
            self._handle_some(commands)
            return
        for at in range(0, len(commands), REQUESTS_PER_WRITE):
            self._handle_some(commands[at : at + REQUESTS_PER_WRITE])
            self.flush()
            if self.closed:  # the peer does not read its responses: skip the rest of its requests
                return

    def _handle_some(self, commands: list[Command]) -> None:
        handler = self._handler
        guard = self._guard
        observer = self._observer
        if observer is not None:
            self.handling_since = observer.now()
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                asked = self._asked.pop(command.opaque, None)
                if asked is not None and not asked.done():
                    command.body = bytes(command.body)
                    asked.set_result(command)
                continue
            if command.serialize == _BINARY:
                command.code = CODES_BY_LOW_BITS.get(command.code, command.code)
            try:
                if guard is not None and not self._admitted(guard, command):
                    if self.closed:
                        break
                    continue
                handler.on_request(self, command)
            except ProtocolError as e:
                self.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
            except SprocketError as e:
                self.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"{type(e).__name__}: {e}")
            except Exception as e:  # noqa: BLE001 - answered with SYSTEM_ERROR; other requests go on
                server = self._server
                server.failed_requests += 1
                server.peer_log.event(
                    f"request {command.code}", "request_failed", server=server.name, code=command.code, peer=self.peer, trace=True
                )
                self.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"internal error: {type(e).__name__}: {e}")
        handler.on_batch_end(self)
        if observer is not None and self._answers:
            observer.answered(self._answers, self.handling_since)
            self._answers.clear()

    def _admitted(self, guard: Guard, command: Command) -> bool:
        raise NotImplementedError("connections of a server with a guard are of the class GuardedConnection")

    def respond(
        self,
        request: Command,
        code: int,
        *,
        ext: Mapping[str, str] | bytes | None = None,
        remark: str | None = None,
        body: Buffers = b"",
        since: float = 0.0,
        long_polling: bool = False,
    ) -> None:
        """Answer ``request``, now or later; nothing is written for a one-way request or on a closed connection.

        ``ext`` as bytes is ready JSON text. A response over the frame limit becomes a SYSTEM_ERROR that says so. ``since`` is the
        ``handling_since`` of a request that has waited, ``long_polling`` whether it did because the client asked for it.
        """
        observer = self._observer
        if observer is not None:
            if self._in_batch and not since:
                self._answers.append(request.code << 17 | (request.flag & FLAG_ONEWAY) << 15 | code)
            else:
                observer.answered_late(request, code, since or self.handling_since, long_polling=long_polling)
        if code and code in _REJECTIONS:
            self._server.rejected(request, code, self.peer, remark)
        if request.flag & FLAG_ONEWAY or self.closed:
            return
        length = buffers_length(body)
        try:
            head = encode_head(
                code,
                opaque=request.opaque,
                flag=FLAG_RESPONSE,
                ext=ext,
                remark=remark,
                body_length=length,
                serialize=self._serialize,
            )
        except LocalProtocolError as e:
            body = b""
            head = encode_head(
                ResponseCode.SYSTEM_ERROR, opaque=request.opaque, flag=FLAG_RESPONSE, remark=str(e), serialize=self._serialize
            )
        self.write(head, body)

    def succeed(self, request: Command, ext: bytes) -> None:
        """Answer ``request`` as ``respond`` does with code 0 and ready JSON text, in less time: most answers to sends are such."""
        if not self._in_batch or self._serialize or self.closed or request.flag & FLAG_ONEWAY or len(ext) > _SHORT_EXT_BYTES:
            self.respond(request, ResponseCode.SUCCESS, ext=ext)
            return
        if self._observer is not None:
            self._answers.append(request.code << 17)
        self._out.append(encode_success(request.opaque, ext))

    def oneway(self, code: int, *, ext: Mapping[str, str] | None = None, body: Buffers = b"") -> None:
        """Send the client a request that needs no response."""
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        length = buffers_length(body)
        head = encode_head(code, opaque=self._next_opaque, flag=FLAG_ONEWAY, ext=ext, body_length=length, serialize=self._serialize)
        self.write(head, body)

    async def request(self, code: int, *, ext: Mapping[str, str] | None = None, body: Buffers = b"", timeout_s: float) -> Command:
        """Send the client a request and return its response, whatever its code.

        Raises RequestTimeout when it does not answer in time, and ConnectionLost when the connection ends.
        """
        if self.closed:
            raise ConnectionLost(self.peer, self.close_reason)
        opaque = self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        answer = self._asked[opaque] = self._loop.create_future()
        self.write(encode_head(code, opaque=opaque, ext=ext, body_length=buffers_length(body), serialize=self._serialize), body)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise RequestTimeout(self.peer, code, round(timeout_s * 1000)) from None
        finally:
            self._asked.pop(opaque, None)

    def flush(self) -> None:
        super().flush()
        # asyncio calls pause_writing once; responses written after that still add to the backlog.
        if self._writing_paused and self.write_backlog > MAX_WRITE_BACKLOG:
            self.abort("the peer does not read its responses")

    def pause_writing(self) -> None:
        # The peer does not read its responses: read no more of its requests until it does.
        super().pause_writing()
        self._stop_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()

    def _read_on(self) -> None:
        if not self._writing_paused:
            super()._read_on()

    def _broken(self, error: FrameError) -> None:
        server = self._server
        server.broken_connections += 1
        advice = _NO_TLS_HERE if error.looks_like == TLS_HANDSHAKE else ""
        server.peer_log.event(parse_address(self.peer)[0], "frame_refused", server=server.name, peer=self.peer, reason=f"{error}{advice}")
        self.abort(str(error))

    def _ended(self) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(self.peer, self.close_reason))
        if self in self._server.connections:
            self._server.connections.discard(self)
            self._handler.on_disconnect(self)
            if self._guard is not None:
                self._server.newcomers.discard(self)
                self._guard.disconnected(self)


class GuardedConnection(ServerConnection):
    """A connection of a server with a guard: a newcomer until its first request is admitted."""

    __slots__ = ("_newcomers",)

    def __init__(self, loop: asyncio.AbstractEventLoop, server: "RemotingServer") -> None:
        super().__init__(loop, server)
        self._newcomers: Newcomers[Link] | None = server.newcomers

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        if self._newcomers is not None and not self.closed:
            self._newcomers.received(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._newcomers is not None:  # it would use memory that is not counted, such as TLS's buffers
            self.abort("the peer does not read its refusals")

    def _admitted(self, guard: Guard, command: Command) -> bool:
        if not guard.admits(self, command):
            return False
        if self._newcomers is not None:
            self._newcomers.discard(self)
            self._newcomers = None
        return True


class RemotingServer:
    """Listen on one address. ``name`` appears in log lines; ``serialize`` is the header serialisation of its responses.

    ``tls`` says whether connections may be, or must be, encrypted. With a ``guard`` only requests that it admits are handled, and
    ``newcomer_limits`` hold until a connection has one. The ``observer`` learns of every answer.

    Counters: ``broken_connections`` sent bytes that are not frames, ``refused_connections`` were over a limit, and the handler of
    ``failed_requests`` raised an unexpected error. ``peer_log`` takes the warnings about them.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        serialize: int = SerializeType.JSON,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        max_connections: int = 10_000,
        tls: ServerTls | None = None,
        guard: Guard | None = None,
        newcomer_limits: NewcomerLimits = NewcomerLimits(),  # noqa: B008 - frozen
        observer: AnswerObserver | None = None,
    ) -> None:
        self.handler = handler
        self.guard = guard
        self.observer = observer
        self.name = name
        self.serialize = serialize
        self.idle_timeout_s = idle_timeout_s
        self.max_connections = max_connections
        self._tls = tls
        self.connections: set[ServerConnection] = set()
        # The answers of the connection that is being handled, for the observer.
        self.answers: list[int] = []
        self.newcomers: Newcomers[Link] = Newcomers(newcomer_limits, self._newcomer_closed)
        self.receive = ReceiveBuffer(RECEIVE_BYTES)
        self.peer_log = PeerLog(log, time.monotonic)
        self._rejections = PeerLog(log, time.monotonic, level=logging.INFO)
        self.broken_connections = self.refused_connections = self.failed_requests = 0
        self._descriptors = 0
        self._server: Listener | None = None
        self._background = Background(name)

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (host ``*``: all IPv4 addresses; port 0: any free one) and return the port.

        Raises PortInUse when the port is taken or not allowed, and ConfigError for a host that is not an address of this machine or for
        certificate files that cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._descriptors = descriptor_limit()
        connection = ServerConnection if self.guard is None else GuardedConnection
        self._server = await listen_with_tls(
            lambda: connection(loop, self), host, port, self._tls, name=self.name, peer_log=self.peer_log, refusal=self._refuses_arrival
        )
        self._background = Background(self.name)
        self._background.every(SWEEP_INTERVAL_S, partial(self._close_idle, loop), "sweep of idle connections")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def arriving(self) -> int:
        """How many accepted sockets are not connections yet: with TLS, those whose first byte or handshake is pending."""
        return self._server.arriving if isinstance(self._server, TlsListener) else 0

    def counters(self) -> dict[str, str]:
        """Return the counters under their names in the runtime information (28)."""
        counters = {
            "connections": str(len(self.connections)),
            "brokenConnections": str(self.broken_connections),
            "refusedConnections": str(self.refused_connections),
            "failedRequests": str(self.failed_requests),
        }
        if isinstance(self._server, TlsListener):
            counters["failedHandshakes"] = str(self._server.failed)
        return counters

    def refusal(self, sock: socket.socket | None, arriving: int = 0) -> str:
        """Return why a new connection cannot be taken, or ""; ``arriving`` others are accepted and not connected yet.

        The system gives out the lowest free descriptor, so that the number of a new one tells how many are in use.
        """
        if len(self.connections) + arriving >= self.max_connections:
            return f"{self.max_connections} connections are open, the limit (max_connections)"
        if self._descriptors and sock is not None and sock.fileno() >= self._descriptors - max(16, self._descriptors // 16):
            return (
                f"nearly all of the {self._descriptors} file descriptors this process may have are open, and files need the last ones;"
                " raise the limit (ulimit -n, or LimitNOFILE of a systemd unit)"
            )
        return ""

    def _refuses_arrival(self, sock: socket.socket, arriving: int) -> str:
        reason = self.refusal(sock, arriving)
        self.refused_connections += bool(reason)
        return reason

    async def stop(self) -> None:
        """Stop listening and close every connection after its queued responses."""
        await self._background.close()
        server = self._server
        if server is None:
            return
        await stop_accepting(server)
        for conn in list(self.connections):
            conn.close("server stopped")
        await asyncio.sleep(0)  # lets transports write what fits into the sockets
        for conn in list(self.connections):
            conn.drop()
        await asyncio.sleep(0)
        await server.wait_closed()
        self._server = None

    def rejected(self, request: Command, code: int, peer: str, remark: str | None) -> None:
        """Log that a request is answered with an error, except for routes of unknown topics, which clients request all the time."""
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            key = f"request {request.code} answer {code}"
            self._rejections.event(key, "request_rejected", server=self.name, code=request.code, answer=code, peer=peer, reason=remark)

    def _newcomer_closed(self, link: Link, reason: str) -> None:
        self.refused_connections += 1
        self.peer_log.event(parse_address(link.peer)[0], "newcomer_refused", server=self.name, peer=link.peer, reason=reason)

    def _close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        self.peer_log.sweep()
        self._rejections.sweep()
        limit = loop.time() - self.idle_timeout_s
        for conn in list(self.connections):
            if conn.last_active < limit:
                conn.close("idle")
