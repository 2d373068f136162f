"""The ready line of servers, and what stops them: SIGINT and SIGTERM, or the end of standard input."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

from sprocketmq.cli.errors import drop_output
from sprocketmq.errors import ConfigError, FatalError


@contextlib.contextmanager
def on_stop_signals(act: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call ``act`` in the running loop with each SIGINT and SIGTERM; restores the previous handlers."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        try:
            loop.add_signal_handler(number, act, number)
        except NotImplementedError:  # on Windows
            signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(act, signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


def print_ready(line: str) -> None:
    """Print the ready line. Raises FatalError when nobody can read it."""
    try:
        print(line, flush=True)
    except OSError as e:
        drop_output()
        raise FatalError(f"the ready line cannot be written to standard output: {e.strerror or e}; redirect it, or leave it open") from None


def watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set ``stop`` when standard input ends. Raises ConfigError for an input without events, such as a file or /dev/null."""
    fd = sys.stdin.fileno()

    def look() -> None:
        try:
            ended = not os.read(fd, 4096)
        except BlockingIOError:
            ended = False
        except OSError:  # a closed terminal
            ended = True
        if ended:
            loop.remove_reader(fd)
            stop.set()

    try:
        loop.add_reader(fd, look)
    except OSError:
        raise ConfigError(
            "--stop-with-stdin waits for the end of a pipe, a socket or a terminal, and standard input is a file, /dev/null or closed:"
            " start this with a pipe, or leave the option out"
        ) from None
