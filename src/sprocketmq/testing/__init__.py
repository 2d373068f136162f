"""Helpers for tests of code that uses SprocketMQ.

They are the pytest fixture ``rocketmq`` (see ``plugin``), waiting for a condition, a proxy that makes the network fail (``proxy``), and
server processes that a test can kill (``serving``).

Importing this package loads neither pytest nor the broker. ``rig`` has the tools of SprocketMQ's own tests.
"""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["eventually", "wait_until"]

_T = TypeVar("_T")

# The default timeout. For a slow or busy machine, set it once, in conftest.py: ``sprocketmq.testing.TIMEOUT_S = 60``. A wait ends as soon
# as its condition is true, so a large value costs time only when a test fails.
TIMEOUT_S = 5.0
INTERVAL_S = 0.002


def wait_until(condition: Callable[[], _T], *, timeout_s: float | None = None, what: str = "") -> _T:
    """Call ``condition`` until it returns a true value, and return that value.

    Raises TimeoutError after ``timeout_s`` (default ``TIMEOUT_S``, 5 seconds), naming ``what`` was waited for. An AssertionError raised by
    ``condition`` counts as "not yet" and becomes the cause of the TimeoutError; other errors are raised at once.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    deadline = time.monotonic() + timeout_s
    while True:
        failed: AssertionError | None = None
        value = None
        try:
            value = condition()
        except AssertionError as e:
            failed = e
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(_timeout_text(condition, timeout_s, what)) from failed
        time.sleep(INTERVAL_S)


async def eventually(condition: Callable[[], _T | Awaitable[_T]], *, timeout_s: float | None = None, what: str = "") -> _T:
    """Do as ``wait_until`` without blocking the event loop; ``condition`` may be a coroutine function."""
    import asyncio  # late, because pytest loads this package in every run

    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    deadline = time.monotonic() + timeout_s
    while True:
        failed: AssertionError | None = None
        value: _T | None = None
        try:
            answer = condition()
            value = await answer if inspect.isawaitable(answer) else answer
        except AssertionError as e:
            failed = e
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(_timeout_text(condition, timeout_s, what)) from failed
        await asyncio.sleep(INTERVAL_S)


def _timeout_text(condition: Callable[[], object], timeout_s: float, what: str) -> str:
    return f"{what or getattr(condition, '__qualname__', repr(condition))} did not come true within {timeout_s:g} s"
