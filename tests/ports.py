"""Ports of the loopback interface where nothing listens, and which nobody else is given meanwhile."""

import socket

LOOPBACK = "127.0.0.1"


def hold(port: int = 0) -> socket.socket:
    """Return a socket that is bound to the port (0: any free one) and does not listen: connecting to it is refused.

    A port that is merely free may be given to a server of another test, which then answers. A server of this test may listen on the port
    while it is held, or after the socket is closed.
    """
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, port))
    except OSError:
        held.close()
        raise
    return held


def address_of(held: socket.socket) -> str:
    """Return ``host:port`` of a held port."""
    return f"{LOOPBACK}:{held.getsockname()[1]}"
