"""Helpers for tests of code that uses SprocketMQ: the pytest fixture ``rocketmq`` (see ``plugin``), waiting without guessing, a network
that fails when told to (``proxy``), and servers to be killed (``serving``).

Importing this loads neither pytest nor the broker.
"""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["eventually", "wait_until"]

_T = TypeVar("_T")

# How long a wait may take that is not told otherwise. For a machine that is slow or busy, set it once, in conftest.py:
# ``sprocketmq.testing.TIMEOUT_S = 60``. A wait that comes true ends at once, so a large value costs nothing but patience with failures.
TIMEOUT_S = 5.0
INTERVAL_S = 0.002


def wait_until(condition: Callable[[], _T], *, timeout_s: float | None = None, what: str = "") -> _T:
    """Call ``condition`` until it returns something true, and return that.

    Raises TimeoutError after ``timeout_s`` (``TIMEOUT_S``, 5 seconds, by default), naming ``what`` was waited for. An AssertionError of ``condition`` counts as "not yet" and
    becomes the cause of the TimeoutError; other errors come through at once.
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
            raise TimeoutError(_complaint(condition, timeout_s, what)) from failed
        time.sleep(INTERVAL_S)


async def eventually(condition: Callable[[], _T | Awaitable[_T]], *, timeout_s: float | None = None, what: str = "") -> _T:
    """Do what ``wait_until`` does, without blocking the event loop; ``condition`` may be a coroutine function."""
    import asyncio  # late: pytest loads this package in every run, with or without such tests

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
            raise TimeoutError(_complaint(condition, timeout_s, what)) from failed
        await asyncio.sleep(INTERVAL_S)


def _complaint(condition: Callable[[], object], timeout_s: float, what: str) -> str:
    return f"{what or getattr(condition, '__qualname__', repr(condition))} did not come true within {timeout_s:g} s"
