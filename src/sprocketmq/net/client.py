"""Client connections: many requests in flight on one socket, answered in any order."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from sprocketmq.errors import ClientClosed, ConnectFailed, ConnectionLost, NotRocketMQ, RequestTimeout, SprocketError, TlsFailed
from sprocketmq.net.address import parse_address
from sprocketmq.net.link import Buffers, Link, buffers_length
from sprocketmq.net.login import Login
from sprocketmq.net.tasks import Background, share
from sprocketmq.net.tls import handshake_failure
from sprocketmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode, SerializeType
from sprocketmq.protocol.command import Command, encode_head
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.protocol.frame import FrameError, ReceiveBuffer

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
# The timer for expired requests runs at the next deadline, but not more often than this.
MIN_SWEEP_S = 0.02

# Reads without a large frame before a connection's large buffer is freed. Consumers pull one response of megabytes after the other, and
# growing the buffer for each would cost more than decoding it.
LARGE_FRAME_PATIENCE = 64

# With TLS both sides send a close notification; this is the timeout for the peer's. Apache's servers never send one.
TLS_CLOSE_TIMEOUT_S = 0.2

_NO_PERMISSION = int(ResponseCode.NO_PERMISSION)

# The connections of all clients of a loop receive into one buffer, a read after the other.
_receive_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, ReceiveBuffer] = WeakKeyDictionary()


def receive_buffer(loop: asyncio.AbstractEventLoop) -> ReceiveBuffer:
    """Return the buffer that client connections of ``loop`` receive into."""
    buffer = _receive_buffers.get(loop)
    if buffer is None:
        buffer = _receive_buffers[loop] = ReceiveBuffer(patience=LARGE_FRAME_PATIENCE)
    return buffer


OnRequest = Callable[["Connection", Command], None]


class Receiver(Protocol):
    """Takes the outcome of a request: a future, or an object whose methods are called in the turn of the loop that brings the outcome.

    One of the two setters is called, once; it must neither raise nor block.
    """

    def done(self) -> bool:
        """Return whether the outcome is no longer wanted."""
        ...

    def set_result(self, result: Command, /) -> None:
        """Take the response, whatever its code."""
        ...

    def set_exception(self, exception: SprocketError, /) -> None:
        """Take the reason why there is no response."""
        ...


class Connection(Link):
    """A connection to one nameserver or broker. With a ``login`` every request is signed, one-way requests too; answers never are."""

    __slots__ = (
        "_failure",
        "_login",
        "_on_request",
        "_opaque",
        "_pending",
        "_serialize",
        "_sweep",
        "_sweep_at",
        "address",
        "expected",
        "gone",
        "peer_version",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        receive: ReceiveBuffer,
        *,
        expected: str,
        on_request: OnRequest | None = None,
        serialize: int = SerializeType.JSON,
        login: Login | None = None,
    ) -> None:
        super().__init__(loop, receive)
        self.address = address
        self.expected = expected
        self._on_request = on_request
        self._serialize = serialize
        self._login = login
        self._opaque = 0
        self._pending: dict[int, tuple[Receiver, float, float, int]] = {}
        self._sweep_at = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._failure: SprocketError | None = None
        # The version in the peer's first answer, as Apache numbers its releases; 0 before it.
        self.peer_version: int = 0
        # Resolved when the connection has ended and its socket is closed.
        self.gone: asyncio.Future[None] = loop.create_future()

    @property
    def in_flight(self) -> int:
        """How many requests wait for their response."""
        return len(self._pending)

    def request(
        self, code: int, *, ext: Mapping[str, str] | bytes | None = None, body: Buffers = b"", timeout_s: float = 3.0
    ) -> "asyncio.Future[Command]":
        """Send a request and return the future of its response, whatever the response code.

        The future raises RequestTimeout after ``timeout_s`` seconds (a late answer is dropped), ConnectionLost when the connection
        ends first, or NotRocketMQ when the peer answers with something else. Raises LocalProtocolError when the frame is too large.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self.request_for(future, code, ext=ext, body=body, timeout_s=timeout_s)
        return future

    def request_for(
        self,
        receiver: Receiver,
        code: int,
        *,
        ext: Mapping[str, str] | bytes | None = None,
        body: Buffers = b"",
        timeout_s: float = 3.0,
    ) -> None:
        """Send a request whose outcome goes to ``receiver``. Errors are those of ``request``."""
        if self.closed:
            receiver.set_exception(self._failure or ConnectionLost(self.address, self.close_reason))
            return
        opaque = self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        length = buffers_length(body)
        if self._login is not None:
            ext = self._login.sign(ext, body)
        head = encode_head(code, opaque=opaque, ext=ext, body_length=length, serialize=self._serialize)
        deadline = self._loop.time() + timeout_s
        self._pending[opaque] = (receiver, deadline, timeout_s, code)
        if self._sweep is None or deadline < self._sweep_at:
            self._schedule_sweep(deadline)
        self.write(head, body)

    async def ask(self, code: int, *, ext: Mapping[str, str] | bytes | None = None, body: Buffers = b"", timeout_s: float = 3.0) -> Command:
        """Send a request and return its response; once more when it was refused and there are other credentials now.

        Raises what the future of ``request`` raises.
        """
        signed_by = None if self._login is None else self._login.current
        response = await self.request(code, ext=ext, body=body, timeout_s=timeout_s)
        if self._login is not None and response.code == _NO_PERMISSION and self._login.current is not signed_by:
            response = await self.request(code, ext=ext, body=body, timeout_s=timeout_s)
        return response

    def oneway(self, code: int, *, ext: Mapping[str, str] | bytes | None = None, body: Buffers = b"") -> None:
        """Send a request that needs no response; dropped when the connection is closed."""
        opaque = self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        length = buffers_length(body)
        if self._login is not None:
            ext = self._login.sign(ext, body)
        self.write(encode_head(code, opaque=opaque, flag=FLAG_ONEWAY, ext=ext, body_length=length, serialize=self._serialize), body)

    def respond(self, request: Command, code: int, *, remark: str | None = None, body: Buffers = b"") -> None:
        """Answer a request of the peer; nothing is written for a one-way request or on a closed connection."""
        if request.flag & FLAG_ONEWAY or self.closed:
            return
        length = buffers_length(body)
        head = encode_head(code, opaque=request.opaque, flag=FLAG_RESPONSE, remark=remark, body_length=length, serialize=self._serialize)
        self.write(head, body)

    def _handle(self, commands: list[Command]) -> None:
        pop = self._pending.pop
        login = self._login
        if not self.peer_version:
            self.peer_version = max(1, commands[0].version)
        for command in commands:
            if command.body:  # the receive buffer is reused, and commands outlive this call
                command.body = bytes(command.body)
            if command.flag & FLAG_RESPONSE:
                if login is not None and command.code == _NO_PERMISSION:
                    login.refused()
                entry = pop(command.opaque, None)
                if entry is not None and not entry[0].done():
                    entry[0].set_result(command)
            elif self._on_request is not None:
                self._on_request(self, command)
        # One request at a time: the next one has nothing to wait for either. With more in flight, those of a turn leave together.
        self._write_at_once = not self._pending and len(commands) == 1

    def _schedule_sweep(self, when: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep_at = max(when, self._loop.time() + MIN_SWEEP_S)
        self._sweep = self._loop.call_at(self._sweep_at, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        now = self._loop.time()
        following = None
        for opaque, (receiver, deadline, timeout_s, code) in list(self._pending.items()):
            if receiver.done():
                del self._pending[opaque]
            elif deadline <= now:
                del self._pending[opaque]
                _tell(receiver, RequestTimeout(self.address, code, round(timeout_s * 1000)))
            elif following is None or deadline < following:
                following = deadline
        if following is not None:
            self._schedule_sweep(following)

    def connection_lost(self, exc: Exception | None) -> None:
        # With TLS 1.3 a server refuses a client's certificate after the client's side of the handshake is done.
        if isinstance(exc, ssl.SSLError) and not self.received_bytes:
            self._failure = handshake_failure(self.address, self.expected, exc)
        super().connection_lost(exc)

    def _broken(self, error: FrameError) -> None:
        if error.looks_like.startswith("a TLS"):
            self._failure = TlsFailed(self.address, self.expected, "needs tls")
            self.abort(str(error))
            return
        found = f"it answered with {error.looks_like}" if error.looks_like else str(error)
        self._failure = NotRocketMQ(self.address, self.expected, found)
        self.abort(str(error))

    def _ended(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        failure = self._failure
        if failure is None:
            reason = self.close_reason
            if not self.received_bytes:
                reason += f" before it ever answered; expected a RocketMQ {self.expected} there"
                if self.extra_info("sslcontext") is None:
                    reason += ", and if it requires TLS, pass tls=True"
            self._failure = failure = ConnectionLost(self.address, reason)
        pending, self._pending = self._pending, {}
        for receiver, *_ in pending.values():
            if not receiver.done():
                _tell(receiver, failure)
        if not self.gone.done():
            self.gone.set_result(None)


class ConnectionPool:
    """At most one connection for each address, opened on first use and again after it was lost. Belongs to one event loop.

    With ``tls`` every connection is encrypted; the server's certificate must name ``server_name``, or the host of the address. With
    ``credentials`` every request is signed.
    """

    def __init__(
        self,
        *,
        expected: str,
        on_request: OnRequest | None = None,
        serialize: int = SerializeType.JSON,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        credentials: Credentials | Login | None = None,
    ) -> None:
        self._expected = expected
        self._on_request = on_request
        self._serialize = serialize
        self._tls = tls
        self._server_name = server_name
        self.login: Login | None = Login(credentials) if isinstance(credentials, Credentials) else credentials
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._background = Background(f"connections to {expected}s")
        self._closed = False

    def peek(self, address: str) -> Connection | None:
        """Return the open connection to ``address``, or None."""
        conn = self._connections.get(address)
        return conn if conn is not None and not conn.closed else None

    def open_connections(self) -> list[Connection]:
        """Return the connections that are open now."""
        return [conn for conn in self._connections.values() if not conn.closed]

    async def get(self, address: str, *, timeout_s: float = CONNECT_TIMEOUT_S, expected: str | None = None) -> Connection:
        """Return the connection to ``address``, opening it when there is none. Concurrent callers share one attempt.

        Raises ConnectFailed when nothing accepts within ``timeout_s`` seconds, TlsFailed when the TLS handshake fails, ConfigError for a
        malformed address, and ClientClosed after ``close``.
        """
        conn = self.peek(address)
        if conn is not None:
            return conn
        if self._closed:
            raise ClientClosed("this client is closed")
        task = self._opening.get(address)
        if task is None:
            opening = self._open(address, timeout_s, expected or self._expected)
            task = self._opening[address] = self._background.spawn(opening, address, awaited=True)
            task.add_done_callback(lambda _: self._opening.pop(address, None))
        return await share(task, lambda: self._given_up(address))

    def _given_up(self, address: str) -> SprocketError:
        if self._closed:
            return ClientClosed("this client is closed")
        return ConnectFailed(address, self._expected, "the attempt was cancelled")

    async def _open(self, address: str, timeout_s: float, expected: str) -> Connection:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        receive = receive_buffer(loop)

        def connection() -> Connection:
            return Connection(
                loop,
                address,
                receive,
                expected=expected,
                on_request=self._on_request,
                serialize=self._serialize,
                login=self.login,
            )

        encrypted: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = {"ssl": self._tls, "server_hostname": self._server_name or host, "ssl_shutdown_timeout": TLS_CLOSE_TIMEOUT_S}
        try:
            async with asyncio.timeout(timeout_s):
                _, conn = await loop.create_connection(connection, host, port, **encrypted)
        except TimeoutError:
            raise ConnectFailed(address, expected, f"no answer within {timeout_s:g} s") from None
        except OSError as e:
            if isinstance(e, ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError) and self._tls is not None:
                raise handshake_failure(address, expected, e) from None
            raise ConnectFailed(address, expected, _reason(e)) from None
        if self._closed:
            conn.close()
            raise ClientClosed("this client is closed")
        self._connections[address] = conn
        return conn

    def drop(self, address: str) -> None:
        """Close and forget the connection to ``address``, when there is one."""
        conn = self._connections.pop(address, None)
        if conn is not None:
            conn.close()

    async def close(self) -> None:
        """Close every connection for good; requests in flight fail with ConnectionLost."""
        self._closed = True
        await self._background.close()
        await self._end_connections()

    async def disconnect(self) -> None:
        """Close every connection; ``get`` opens new ones."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        await self._end_connections()

    def abandon(self) -> None:
        """Do what ``close`` does without waiting for the tasks that are opening connections."""
        self._closed = True
        self._background.cancel()
        self._close_connections()

    async def _end_connections(self) -> None:
        ending = [conn.gone for conn in self._connections.values()]
        self._close_connections()
        if self._tls is not None and ending:
            # The close notification of TLS takes a round trip, after which the socket is closed: the loop must not end before.
            await asyncio.wait(ending)

    def _close_connections(self) -> None:
        for conn in self._connections.values():
            conn.close()
        self._connections.clear()


def _tell(receiver: Receiver, error: SprocketError) -> None:
    try:
        receiver.set_exception(error)
    except Exception:  # the other receivers still have to be notified
        log.exception("the receiver of a request failed on its outcome: %s", error)


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused, nothing listens there"
    return error.strerror or str(error)
