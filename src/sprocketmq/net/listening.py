"""Listening on an address, with or without TLS."""

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator

from sprocketmq.errors import ConfigError, PortInUse
from sprocketmq.net.address import bind_host
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerContext, ServerTls
from sprocketmq.net.tls_listener import TlsListener

_BACKLOG = 1024
# asyncio makes the transport of an accepted socket one turn of the loop after it was accepted, and calls ``connection_made`` in the next.
_ACCEPT_TURNS = 2

MakeProtocol = Callable[[], asyncio.BaseProtocol]
Listener = asyncio.Server | TlsListener


async def listen(make_protocol: MakeProtocol, host: str, port: int) -> asyncio.Server:
    """Listen on ``host:port`` (host ``*``: all IPv4 addresses; port 0: any free one).

    Raises PortInUse when the port is taken or not allowed, and ConfigError for a host that is not an address of this machine.
    """
    with _explained(host, port):
        return await asyncio.get_running_loop().create_server(make_protocol, bind_host(host), port, backlog=_BACKLOG)


async def listen_with_tls(
    make_protocol: MakeProtocol,
    host: str,
    port: int,
    tls: ServerTls | None,
    *,
    name: str,
    peer_log: PeerLog,
    refusal: Callable[[socket.socket, int], str] = lambda _sock, _arriving: "",
    silence_s: float | None = None,
) -> Listener:
    """Do the same with the TLS settings ``tls``; None or the mode DISABLED: without TLS. The other arguments are those of ``TlsListener``.

    Also raises ConfigError for certificate files that cannot be used.
    """
    if tls is None or not tls.enabled:
        return await listen(make_protocol, host, port)
    loop = asyncio.get_running_loop()
    context = await loop.run_in_executor(None, lambda: ServerContext(tls, name=name))
    with _explained(host, port):
        sockets = await _bind(bind_host(host), port)
    return TlsListener(make_protocol, sockets, tls, context, name=name, peer_log=peer_log, refusal=refusal, silence_s=silence_s)


def keep_port(host: str, port: int) -> socket.socket:
    """Return a socket that reserves the port of a stopped server until it is closed.

    The server may listen there again meanwhile. Raises OSError when another process has the port.
    """
    kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, port))
    except BaseException:
        kept.close()
        raise
    return kept


class KeptPorts:
    """Reserved ports of stopped servers that will be restarted there, by the server's name."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

    def keep(self, name: str, host: str, port: int) -> None:
        """Reserve a port until ``give_up``. Has no effect when another process has it, and on systems other than Linux.

        They would refuse the restarted server a port that another socket is bound to (macOS), or would share it with it (Windows).
        """
        if sys.platform == "linux" and name not in self._sockets:
            with contextlib.suppress(OSError):
                self._sockets[name] = keep_port(host, port)

    def give_up(self, name: str) -> None:
        """Stop holding the port of a server that has come back."""
        kept = self._sockets.pop(name, None)
        if kept is not None:
            kept.close()

    def close(self) -> None:
        """Stop holding all ports."""
        for name in list(self._sockets):
            self.give_up(name)


async def stop_accepting(listener: Listener) -> None:
    """Close ``listener``. What it had accepted is a connection when this returns, which its owner can close then.

    ``asyncio.Server.close`` alone loses sockets that are on their way: their transports are made without their protocols ever knowing.
    """
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):  # loops without readers, such as Windows' default, accept in another way
        for sock in listener.sockets:
            loop.remove_reader(sock)
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    listener.close()


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return non-blocking sockets that listen on every address of ``host``."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


@contextlib.contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if isinstance(e, socket.gaierror) or e.errno == errno.EADDRNOTAVAIL:
            reason = (e.strerror or str(e)) if isinstance(e, socket.gaierror) else os.strerror(errno.EADDRNOTAVAIL)
            raise ConfigError(f"cannot listen on host {host!r}: {reason}; name an address of this machine, or * for all of them") from None
        raise PortInUse(host, port, os.strerror(e.errno) if e.errno else str(e)) from None
    except OverflowError:
        raise PortInUse(host, port, "a port is a number from 0 to 65535") from None
