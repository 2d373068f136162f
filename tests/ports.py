"""Ports of the loopback interface: where nothing listens, which nobody else is given meanwhile, and that a process of tests has to itself."""

import fcntl
import functools
import itertools
import random
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

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


@functools.cache
def own_ports() -> Iterator[int]:
    """Return ports that no other process of tests uses and that the system gives to nobody, again and again; none if it may.

    A server that ends and comes back at its port needs that: the system may give a port that it got from there to somebody else meanwhile.
    """
    try:
        above = int(_EPHEMERAL.read_text().split()[0])
    except OSError:
        above = 0
    for first in range(FIRST, min(LAST, above) - SLICE, SLICE):
        claim = open(Path(tempfile.gettempdir(), f"sprocketmq-test-ports-{first}"), "w")  # noqa: SIM115 - as long as the process
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        ports = list(range(first, first + SLICE))
        at = random.SystemRandom().randrange(SLICE)
        return itertools.cycle(ports[at:] + ports[:at])
    return iter(())


# Open files, whose locks end with the process.
_claims: list[Any] = []


def on_own_ports(listen: Callable[..., Awaitable[_T]]) -> Callable[..., Awaitable[_T]]:
    """Return ``listen(*arguments, port)`` that takes one of ``own_ports`` for port 0."""

    @functools.wraps(listen)
    async def listen_there(*arguments: Any) -> _T:
        *others, port = arguments
        if port == 0:
            for own in itertools.islice(own_ports(), SLICE):
                try:
                    return await listen(*others, own)
                except (OSError, PortInUse):  # somebody else, who knows nothing of this, listens there
                    continue
        return await listen(*arguments)

    return listen_there
