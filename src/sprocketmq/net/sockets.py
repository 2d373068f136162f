"""What is asked of the system for connections: data sent at once, and enough file descriptors."""

import asyncio
import contextlib
import socket
import sys

from sprocketmq.net.address import is_loopback

# More than a server needs, and few enough for programs that go through all of their descriptors. The second is OPEN_MAX of macOS, whose
# kernel refuses a higher limit even where it names none.
_WANTED_DESCRIPTORS = (65_536, 10_240)


# Congestion control that sends by a clock of its own, and what every Linux lets any user choose instead.
_PACING, _PLAIN = b"bbr", b"reno"
_NAME_BYTES = 16


def send_at_once(transport: asyncio.BaseTransport) -> None:
    """Have the system send what is written to ``transport`` as soon as the peer has room for it. Never raises.

    Small segments do not wait for others. Between two sockets of one machine there is no network to share, so the connection gets no
    congestion control that paces what is sent, as servers often have it (BBR): there it only costs processor time and throughput.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # macOS refuses it for a connection that the peer has reset already, which is closed next
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux" and _is_local(sock):
                chosen = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
                if chosen.startswith(_PACING):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _PLAIN)


def _is_local(sock: socket.socket) -> bool:
    """Return whether both ends of a connection have one address, or the peer one of the loopback interface. Raises OSError."""
    peer = str(sock.getpeername()[0])
    return peer == sock.getsockname()[0] or is_loopback(peer.removeprefix("::ffff:"))


def descriptor_limit() -> int:
    """Return how many files and sockets this process may have open, 0 for no known limit."""
    if sys.platform == "win32":  # no such limit
        return 0
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft, 0)  # unlimited is negative


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files and sockets to 65,536, or as near as the user may, and return the limit; 0: none known.

    Shells and service managers give 256 (macOS) or 1024 (Linux) for the sake of programs that call ``select``. A higher one is left alone.
    """
    limit = descriptor_limit()
    if sys.platform == "win32" or limit == 0:
        return 0
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in _WANTED_DESCRIPTORS:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if raised <= limit:
            return limit
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            return raised
    return limit
