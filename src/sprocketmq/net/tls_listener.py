"""A listener for encrypted and plain connections on one port: the first byte of a connection distinguishes them.

::

    accept --> wait for one byte, which stays in the socket (MSG_PEEK) --> 0x16: TLS handshake --> connection
                                                                       '-> else: plain connection, unless TLS is enforced

No frame begins with 0x16, as its length would be above the limit. Until a connection is made, a socket is bounded in time and all of them
in number, and the oldest of too many is closed.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial

from sprocketmq.net.address import format_address
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerContext, ServerTls, TlsMode
from sprocketmq.net.tasks import Background

# From accepting a socket to its connection, and how many sockets may be on this way.
ARRIVAL_TIMEOUT_S = 10.0
MAX_ARRIVALS = 1_000
# How long a closing connection waits for its peer's close notification; the peer may have answers to read before it.
CLOSE_TIMEOUT_S = 10.0
RELOAD_INTERVAL_S = 2.0
TLS_HANDSHAKE = b"\x16"

_ACCEPTS_PER_TURN = 100
_ACCEPT_RETRY_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# OpenSSL's reasons, explained for the operator of the server.
_NO_TLS = "its bytes are not TLS"
_CLOSED = "it closed the connection; asyncio's clients do so when they do not trust this server's certificate"
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no client certificate, which tls_client_auth requires",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.2 or later",
    "VERSION_TOO_LOW": "it does not speak TLS 1.2 or later",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust this server's certificate: give it the certificate of the authority (ca.pem)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not trust this server's certificate: give it the certificate of the authority (ca.pem)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses this server's certificate, perhaps for the host name: it must be in the certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds this server's certificate expired: renew it, or check its clock",
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "UNEXPECTED_MESSAGE": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "BAD_RECORD_TYPE": _NO_TLS,
    "UNEXPECTED_EOF_WHILE_READING": _CLOSED,
}


class _Arrival:
    """An accepted socket on its way to a connection."""

    __slots__ = ("deadline", "ended", "host", "peer", "reading", "sock", "task")

    def __init__(self, sock: socket.socket, address: tuple[str, int], deadline: float) -> None:
        self.sock = sock
        self.host = address[0]
        self.peer = format_address(address[0], address[1])
        self.deadline = deadline
        self.reading = False
        self.ended = False
        self.task: asyncio.Task[None] | None = None


class TlsListener:
    """Listens on bound ``sockets``, and makes a protocol for each connection, as ``asyncio.Server`` does for plain ones.

    ``refusal`` returns why a socket is refused while this many others are pending, "" when it is accepted. With ``silence_s`` a socket that
    was silent for this time is a plain connection, for protocols in which the server speaks first. ``failed`` counts the sockets that were
    taken and became no connection.
    """

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        sockets: list[socket.socket],
        tls: ServerTls,
        context: ServerContext,
        *,
        name: str,
        peer_log: PeerLog,
        refusal: Callable[[socket.socket, int], str],
        silence_s: float | None,
    ) -> None:
        self.sockets = sockets
        self.failed = 0
        self._make_protocol = make_protocol
        self._enforcing = tls.mode is TlsMode.ENFORCING
        self._context = context
        self._name = name
        self._peer_log = peer_log
        self._refusal = refusal
        self._silence_s = None if self._enforcing else silence_s
        self._loop = asyncio.get_running_loop()
        # In the order of their deadlines.
        self._arrivals: dict[_Arrival, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._background = Background(name)
        self._background.every(RELOAD_INTERVAL_S, self._refresh, "check of the TLS files")
        for sock in sockets:
            self._loop.add_reader(sock, self._accept, sock)

    @property
    def arriving(self) -> int:
        """How many accepted sockets have not become connections yet."""
        return len(self._arrivals)

    def close(self) -> None:
        """Stop listening, and close the sockets that have not become connections."""
        for timer in self._paused.values():
            timer.cancel()
        self._paused.clear()
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self.sockets = []
        for arrival in list(self._arrivals):
            self._end(arrival)

    async def wait_closed(self) -> None:
        """Return when none of its tasks runs any more."""
        await self._background.drain(1.0)  # the handshakes that ``close`` ended
        await self._background.close()

    async def _refresh(self) -> None:
        await self._loop.run_in_executor(None, self._context.refresh)

    # --- accepting ---

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _EXHAUSTED:
                    raise
                self._peer_log.event("", "accept_failed", server=self._name, reason=os.strerror(e.errno))
                self._loop.remove_reader(listening)
                self._paused[listening] = self._loop.call_later(_ACCEPT_RETRY_S, self._accept_again, listening)
                return
            sock.setblocking(False)
            self._arrived(_Arrival(sock, address, self._loop.time() + ARRIVAL_TIMEOUT_S))

    def _accept_again(self, listening: socket.socket) -> None:
        del self._paused[listening]
        self._loop.add_reader(listening, self._accept, listening)

    def _arrived(self, arrival: _Arrival) -> None:
        if reason := self._refusal(arrival.sock, len(self._arrivals)):
            self._peer_log.event(arrival.host, "connection_refused", server=self._name, peer=arrival.peer, reason=reason)
            arrival.sock.close()
            return
        if len(self._arrivals) >= MAX_ARRIVALS:
            self._fail(next(iter(self._arrivals)), f"{MAX_ARRIVALS} newer connections wait for their TLS handshake, the limit")
        self._arrivals[arrival] = None
        if self._timer is None:
            self._timer = self._loop.call_at(arrival.deadline, self._expire)
        self._peek(arrival)
        if self._silence_s is not None and arrival.reading:
            self._loop.call_later(self._silence_s, self._silent, arrival)

    def _silent(self, arrival: _Arrival) -> None:
        if arrival.reading:
            self._stop_reading(arrival)
            self._connect(arrival, None)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for arrival in list(self._arrivals):
            if arrival.deadline > now:
                self._timer = self._loop.call_at(arrival.deadline, self._expire)
                return
            what = "no byte came" if arrival.task is None else "the TLS handshake was not finished"
            self._fail(arrival, f"{what} within {ARRIVAL_TIMEOUT_S:g} s")

    # --- the first byte ---

    def _peek(self, arrival: _Arrival) -> None:
        try:
            first = arrival.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if not arrival.reading:
                arrival.reading = True
                self._loop.add_reader(arrival.sock, self._peek, arrival)
            return
        except OSError:
            first = b""
        self._stop_reading(arrival)
        if not first:
            self._end(arrival)
        elif first == TLS_HANDSHAKE:
            self._connect(arrival, self._context.context)
        elif self._enforcing:
            self._fail(
                arrival,
                "it does not speak TLS, which this port requires (tls_mode=enforcing): connect it with TLS, or allow plain connections"
                " with tls_mode=permissive",
            )
        else:
            self._connect(arrival, None)

    def _stop_reading(self, arrival: _Arrival) -> None:
        if arrival.reading:
            arrival.reading = False
            self._loop.remove_reader(arrival.sock)

    def _connect(self, arrival: _Arrival, context: ssl.SSLContext | None) -> None:
        arrival.task = self._background.spawn(self._connecting(arrival, context), "a new connection", awaited=True)
        arrival.task.add_done_callback(partial(self._connected, arrival))

    async def _connecting(self, arrival: _Arrival, context: ssl.SSLContext | None) -> None:
        connect = self._loop.connect_accepted_socket
        if context is None:
            await connect(self._make_protocol, arrival.sock)
            return
        await connect(
            self._make_protocol,
            arrival.sock,
            ssl=context,
            ssl_handshake_timeout=ARRIVAL_TIMEOUT_S,
            ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
        )

    def _connected(self, arrival: _Arrival, task: "asyncio.Task[None]") -> None:
        self._forget(arrival)
        if task.cancelled() or (error := task.exception()) is None or arrival.ended:
            return
        self.failed += 1
        self._log(arrival, f"the TLS handshake failed: {_failure(error)}")

    # --- ending ---

    def _forget(self, arrival: _Arrival) -> None:
        self._arrivals.pop(arrival, None)
        if not self._arrivals and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, arrival: _Arrival) -> None:
        self._forget(arrival)
        arrival.ended = True
        if arrival.task is not None:
            with contextlib.suppress(OSError):  # the peer closed first
                arrival.sock.shutdown(socket.SHUT_RDWR)  # ends the handshake, and the transport closes the socket
            return
        self._stop_reading(arrival)
        arrival.sock.close()

    def _fail(self, arrival: _Arrival, reason: str) -> None:
        self.failed += 1
        self._log(arrival, reason)
        self._end(arrival)

    def _log(self, arrival: _Arrival, reason: str) -> None:
        self._peer_log.event(arrival.host, "handshake_failed", server=self._name, peer=arrival.peer, reason=reason)


def _failure(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its client certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", error.reason or str(error))
    if isinstance(error, ConnectionResetError):
        return _CLOSED
    return str(error) or type(error).__name__
