"""Everything that differs between two runs of a program, from a seed instead: time, random numbers, ids, the order of sets."""

import os
import random
import secrets
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from sprocketmq.client import instance
from sprocketmq.clock import SystemClock
from sprocketmq.net.link import Link
from sprocketmq.net.tasks import Kept
from sprocketmq.testing.rig.virtual_loop import VirtualLoop

EPOCH_MS = 1_700_000_000_000


@contextmanager
def seeded(seed: str, loop: VirtualLoop) -> Iterator[None]:
    """Have ``time``, ``random``, ``secrets`` and ``os.urandom`` depend on the loop's time and the seed only.

    Code that asks the system for the time gets the loop's. Connections and kept tasks hash by the order in which they were first hashed,
    so that a set of them iterates in the same order each time.
    """
    rng = random.Random(f"{seed} system")
    pids = count(1000)
    serials = count(1)
    hashed: dict[int, tuple[weakref.ref[Any], int]] = {}

    def nanoseconds() -> int:
        return round(loop.time() * 1e9)

    def wall_ms() -> int:
        return EPOCH_MS + int(loop.time() * 1000)

    def serial(self: Any) -> int:
        known = hashed.get(id(self))
        if known is None or known[0]() is not self:  # the id of an object that is gone may be another's
            known = hashed[id(self)] = (weakref.ref(self), next(serials))
        return known[1]

    patches = {
        (time, "monotonic"): loop.time,
        (time, "monotonic_ns"): nanoseconds,
        (time, "time"): lambda: wall_ms() / 1000,
        (time, "time_ns"): lambda: wall_ms() * 1_000_000,
        (SystemClock, "monotonic"): staticmethod(loop.time),
        (SystemClock, "time_ms"): lambda _: wall_ms(),
        (secrets, "token_bytes"): lambda length=32: rng.randbytes(length),
        (secrets, "randbits"): rng.getrandbits,
        (os, "urandom"): rng.randbytes,
        (os, "getpid"): lambda: next(pids),
        (instance, "INSTANCES"): count(),
        (Link, "__hash__"): serial,
        (Kept, "__hash__"): serial,
    }
    state = random.getstate()
    with ExitStack() as stack:
        for (target, name), replacement in patches.items():
            stack.enter_context(patch.object(target, name, replacement))
        random.seed(f"{seed} global")
        try:
            yield
        finally:
            random.setstate(state)
