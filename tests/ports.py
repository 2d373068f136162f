"""Ports of the loopback interface: where nothing listens, which nobody else is given meanwhile, and that a process of tests has to itself."""

import contextlib
import fcntl
import functools
import random
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any, TypeVar

from sprocketmq.errors import PortInUse
from sprocketmq.net.listening import keep_port

LOOPBACK = "127.0.0.1"

# Ports that tests use of their own accord; those of the system, from which it gives away, begin above them on most machines.
FIRST, LAST = 12_000, 31_999
SLICE = 400
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

_T = TypeVar("_T")


def hold(port: int = 0) -> socket.socket:
    """Return a socket that is bound to the port (0: any free one) and does not listen: connecting to it is refused.

    A port that is merely free may be given to a server of another test, which then answers. A server of this test may listen on the port
    while it is held, or after the socket is closed.
    """
    return keep_port(LOOPBACK, port)


def address_of(held: socket.socket) -> str:
    """Return ``host:port`` of a held port."""
    return f"{LOOPBACK}:{held.getsockname()[1]}"


class OwnPorts:
    """Ports that no other process of tests uses and that the system gives to nobody, one after the other, again and again.

    A server that ends and comes back at its port needs such a port: the system may give one that it got from there to another process
    meanwhile. There are none where the system may give away all ports, or where 50 processes have theirs.
    """

    def __init__(self) -> None:
        self.ports, self._claim = self._claimed()
        self._at = random.SystemRandom().randrange(SLICE)

    def take(self, count: int = 1) -> range:
        """Return the next `count` ports in a row, at most SLICE; none when there are none."""
        if self._at + count > SLICE:
            self._at = 0
        self._at += count
        return self.ports[self._at - count : self._at]

    @staticmethod
    def _claimed() -> tuple[range, IO[str] | None]:
        """Return ports and the open file whose lock claims them as long as the process runs."""
        try:
            above = int(_EPHEMERAL.read_text().split()[0])
        except OSError:
            above = 0
        for first in range(FIRST, min(LAST, above) - SLICE, SLICE):
            try:
                claim = open(Path(tempfile.gettempdir(), f"sprocketmq-test-ports-{first}"), "w")  # noqa: SIM115 - as long as the process
            except PermissionError:  # another user has, or had, them
                continue
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                claim.close()
                continue
            return range(first, first + SLICE), claim
        return range(0), None


@functools.cache
def own_ports() -> OwnPorts:
    """Return the ports of this process."""
    return OwnPorts()


def free_ports(*offsets: int) -> int:
    """Return a port P such that P and every P + offset can be bound on loopback now, for a server of another program.

    Such a server may take a minute until it listens. Nobody is offered one of its ports meanwhile, where the process has ports of its own.
    """
    places = (0, *offsets)
    count = max(places) - min(places) + 1
    for _ in range(SLICE):
        own = own_ports().take(count)
        port = (own[0] if own else random.SystemRandom().randrange(FIRST, LAST - count)) - min(places)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for offset in places:
                held.enter_context(socket.socket()).bind((LOOPBACK, port + offset))
            return port
    raise RuntimeError(f"found no free port with free neighbours at {offsets}")


def on_own_ports(listen: Callable[..., Awaitable[_T]]) -> Callable[..., Awaitable[_T]]:
    """Return ``listen(*arguments, port)`` that takes one of ``own_ports`` for port 0."""

    @functools.wraps(listen)
    async def listen_there(*arguments: Any) -> _T:
        *others, port = arguments
        if port == 0:
            for _ in range(SLICE):
                for own in own_ports().take():
                    # Another program, which knows nothing of this, may listen there.
                    with contextlib.suppress(OSError, PortInUse):
                        return await listen(*others, own)
        return await listen(*arguments)

    return listen_there
