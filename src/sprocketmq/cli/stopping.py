"""SIGINT and SIGTERM for commands that run in an event loop."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_stop_signals(act: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call ``act`` in the running loop with each SIGINT and SIGTERM; restores the previous handlers."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, act, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
