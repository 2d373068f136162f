"""The port of the endpoint: plain and encrypted connections on the same port, passed on to the gRPC server.

gRPC's own ports take either kind, not both. So it listens on a Unix socket in a directory of its own, and this module accepts connections,
ends their TLS, and relays bytes between the two. Clients of some languages use TLS unless told otherwise, those of others do not.

The gRPC server knows a connection by the path of this end of it, ``DIR/NUMBER``, and so its calls lead back to the client's address.
"""

import asyncio
import contextlib
import itertools
import socket
from pathlib import Path
from typing import cast

from sprocketmq.net.address import format_address
from sprocketmq.net.listening import Listener, listen_with_tls, stop_accepting
from sprocketmq.net.newcomers import NewcomerLimits, Newcomers
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tasks import Background

MAX_CONNECTIONS = 10_000


class _Side(asyncio.Protocol):
    """One of two connections between which bytes are relayed; ``other`` is None until it is connected."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        # What arrived before the other side was connected: one read at most, as uvloop reads once even when paused.
        self.early = b""
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # both sides are streams

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
            if self.transport is not None:
                self.transport.pause_reading()
        elif self.other.transport is not None and not self.other.ended:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        return False  # HTTP/2 has no half-closed connections: the transport closes, and so does the other side

    def pause_writing(self) -> None:
        self._read_from_other(go_on=False)

    def resume_writing(self) -> None:
        self._read_from_other(go_on=True)

    def _read_from_other(self, *, go_on: bool) -> None:
        transport = None if self.other is None else self.other.transport
        if transport is not None and not transport.is_closing():
            if go_on:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Client(_Side):
    """A client's connection; ``number`` names it at the gRPC server."""

    # Almost nothing: what has arrived waits in the other side's buffer, which is bounded.
    retained_bytes = 0

    def __init__(self, front: "Front", number: int) -> None:
        super().__init__()
        self._front = front
        self.number = str(number)
        self.host = self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).pause_reading()
        name = transport.get_extra_info("peername")
        if name:
            self.host, self.address = name[0], format_address(*name[:2])
        self._front.opened(self)
        self._front.background.spawn(self._connect(), "a connection to the gRPC server")

    async def _connect(self) -> None:
        server = _Side()
        server.other = self
        try:
            sock = await self._front.dial(self.number)
            await asyncio.get_running_loop().create_unix_connection(lambda: server, sock=sock)
        except OSError as e:
            self.abort(str(e))
            return
        self.other = server
        if self.transport is None:
            if server.transport is not None:
                server.transport.close()
        else:
            if self.early and server.transport is not None:
                server.transport.write(self.early)
            self.early = b""
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._front.closed(self)
        super().connection_lost(error)

    def abort(self, _reason: str) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def end(self) -> None:
        """Make the gRPC server close the connection after the answers it has given."""
        if self.other is not None and self.other.transport is not None and not self.other.ended:
            self.other.ended = True
            self.other.transport.write_eof()


class Front:
    """Accepts connections and relays them to the gRPC server; the service's ``Peers``.

    With ``logins`` the connections that ``admitted`` was not called for are bounded as those of a broker are.
    """

    def __init__(self, peer_log: PeerLog, *, logins: bool, limits: NewcomerLimits) -> None:
        self._path = Path()
        self._peer_log = peer_log
        self._numbers = itertools.count(1)
        self._connections: dict[str, _Client] = {}
        self._newcomers = Newcomers(limits, self._newcomer_closed) if logins else None
        self.background = Background("gRPC endpoint")
        self._listener: Listener | None = None

    async def start(self, path: Path, host: str, port: int, tls: ServerTls | None) -> int:
        """Listen for the server whose Unix socket is at ``path``, and return the port. Raises PortInUse and ConfigError."""
        self._path = path
        self._listener = await listen_with_tls(
            lambda: _Client(self, next(self._numbers)),
            host,
            port,
            tls,
            name="gRPC endpoint",
            peer_log=self._peer_log,
            refusal=self._refusal,
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def _refusal(self, _sock: socket.socket, arriving: int) -> str:
        full = len(self._connections) + arriving >= MAX_CONNECTIONS
        return f"{MAX_CONNECTIONS} connections are open, the limit" if full else ""

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        await stop_accepting(listener)
        await self.background.close()
        for client in list(self._connections.values()):
            client.abort("the endpoint stops")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await listener.wait_closed()

    # --- connections of clients ---

    def opened(self, client: _Client) -> None:
        """Record a new connection."""
        self._connections[client.number] = client
        if self._newcomers is not None:
            self._newcomers.add(client)

    def closed(self, client: _Client) -> None:
        """Forget a connection."""
        self._connections.pop(client.number, None)
        if self._newcomers is not None:
            self._newcomers.discard(client)

    def _newcomer_closed(self, client: _Client, reason: str) -> None:
        self._peer_log.event(client.host, "newcomer_refused", server="gRPC endpoint", peer=client.address, reason=reason)

    async def dial(self, number: str) -> socket.socket:
        """Connect to the gRPC server under that name. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            own = self._path.with_name(number)
            sock.bind(str(own))
            own.unlink()  # the socket keeps the name
            await asyncio.get_running_loop().sock_connect(sock, str(self._path))
        except BaseException:
            sock.close()
            raise
        return sock

    # --- the service's Peers ---

    def address(self, peer: str) -> str:
        """Return ``host:port`` of the client that the gRPC server knows as ``peer``."""
        client = self._connections.get(_number(peer))
        return "" if client is None else client.address

    def admitted(self, peer: str) -> None:
        """Record that a call of that client had a login."""
        client = self._connections.get(_number(peer))
        if client is not None and self._newcomers is not None:
            self._newcomers.discard(client)

    def end(self, peer: str) -> None:
        """Close that client's connection, after the answers that were given."""
        client = self._connections.get(_number(peer))
        if client is not None:
            client.end()


def _number(peer: str) -> str:
    return peer.rpartition("/")[2]
