"""What tests do about time, in one place. To wait for something there is ``sprocketmq.testing``; nothing else in a test sleeps."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sprocketmq import AdminClient, Producer
from sprocketmq.client import nameservers
from sprocketmq.net.client import ConnectionPool
from sprocketmq.testing import wait_until

MOMENT_S = 0.02


async def stays(condition: Callable[[], object], for_s: float = MOMENT_S) -> None:
    """Fail when a condition ends within a moment.

    Nothing can be waited for that is not to happen. On a busy machine the moment may be too short to see it, and the test passes as it
    should for code that is right; code that is wrong fails it on the next machine, or in the next run.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert condition(), "it did not stay so"
        await asyncio.sleep(0.001)
    assert condition(), "it did not stay so"


def next_millisecond() -> int:
    """Wait until the clock of store times, which counts milliseconds, has gone on, and return it."""
    before = time.time_ns() // 1_000_000
    while (now := time.time_ns() // 1_000_000) <= before:
        time.sleep(0.0005)
    return now


def freeze(pid: int) -> None:
    """Stop a process by SIGSTOP, and return when none of its threads runs any more: on a busy machine each goes on for a while.

    ``SIGCONT`` lets it go on.
    """
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    wait_until(lambda: all("\nState:\tT" in (thread / "status").read_text() for thread in threads.iterdir()))


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Give sends, requests and connects more than their 3 s: on a busy machine a process may stand still for as long.

    A JVM does so at its first handshake, and Apache's broker waits for a disk that other programs keep busy. A send takes connections to
    both servers within its own limit, each for up to 20 s, so it has 60.
    """
    patch.setitem(Producer.__init__.__kwdefaults__, "timeout_s", 60.0)
    patch.setitem(AdminClient.__init__.__kwdefaults__, "timeout_s", 60.0)
    patch.setitem(ConnectionPool.get.__kwdefaults__, "timeout_s", 20.0)
    patch.setattr(nameservers, "REQUEST_TIMEOUT_S", 20.0)
    patch.setitem(nameservers.Nameservers.request.__kwdefaults__, "budget_s", 20.0)
