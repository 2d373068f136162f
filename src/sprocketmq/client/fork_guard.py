"""Clients do not survive ``os.fork``: the child shares their sockets and has no thread that runs their loop.

Weak references to all open clients are kept here; in a forked child each is marked, and raises when it is used.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Guarded(Protocol):
    """An object to be told that it is in a forked child. Called in the child, before anything else runs."""

    def forked(self) -> None: ...


_guarded: "WeakSet[Guarded]" = WeakSet()


def guard(client: Guarded) -> None:
    """Call ``client.forked()`` in every child forked from now on."""
    _guarded.add(client)


def _mark_in_child() -> None:
    for client in list(_guarded):
        client.forked()
    _guarded.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_in_child)
