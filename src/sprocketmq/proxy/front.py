"""The port of the endpoint: plain and encrypted connections on the same port, passed on to the gRPC server.

gRPC's own ports take either kind, not both. So it listens on a Unix socket in a directory of its own, and this takes connections, ends
their TLS, and passes bytes between the two. Clients of some languages use TLS unless told otherwise, those of others do not.
"""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import cast

from sprocketmq.net.listening import Listener, listen_with_tls, stop_accepting
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tasks import Background

MAX_CONNECTIONS = 10_000


class _Side(asyncio.Protocol):
    """One of two connections between which bytes are passed; ``other`` is None until it is there."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        # What has arrived before the other side was there: one read at most, as uvloop reads once whatever is said.
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # both sides are streams

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
            if self.transport is not None:
                self.transport.pause_reading()
        elif self.other.transport is not None:
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
    """A client's connection."""

    def __init__(self, front: "Front") -> None:
        super().__init__()
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).pause_reading()
        self._front.connections.add(self)
        self._front.background.spawn(self._connect(), "a connection to the gRPC server")

    async def _connect(self) -> None:
        server = _Side()
        server.other = self
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: server, str(self._front.path))
        except OSError:
            if self.transport is not None:
                self.transport.abort()
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
        self._front.connections.discard(self)
        super().connection_lost(error)


class Front:
    """Listens on ``host:port`` and passes connections on to the server that listens on the Unix socket at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: set[_Client] = set()
        self.background = Background("gRPC endpoint")
        self._listener: Listener | None = None

    async def start(self, host: str, port: int, tls: ServerTls | None, peer_log: PeerLog) -> int:
        """Listen, and return the port. Raises PortInUse and ConfigError."""
        self._listener = await listen_with_tls(
            lambda: _Client(self), host, port, tls, name="gRPC endpoint", peer_log=peer_log, refusal=self._refusal
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def _refusal(self, _sock: socket.socket, arriving: int) -> str:
        full = len(self.connections) + arriving >= MAX_CONNECTIONS
        return f"{MAX_CONNECTIONS} connections are open, the limit" if full else ""

    async def stop(self) -> None:
        """Listen no more and close all connections."""
        if self._listener is None:
            return
        await stop_accepting(self._listener)
        await self.background.close()
        for client in list(self.connections):
            if client.transport is not None:
                client.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._listener.wait_closed()
