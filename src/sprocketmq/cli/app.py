"""The command tree. Verbs import what they need when they run: a server must not wait for the libraries of a progress bar."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_SIGNAL, fail, report

SERVING_VERBS = ("serve", "namesrv", "broker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``sprocketmq`` with ``arguments`` (default: those of the process) and return its exit code: 0 done, 1 failed, 2 wrong usage,
    128 and its number when a signal ended it.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    interrupt = signal.SIGINT
    try:
        try:
            if arguments and arguments[0] in SERVING_VERBS:
                from sprocketmq.cli import serving  # argparse instead of typer: 10 ms instead of 60, and 6 MB less in a process that stays

                return serving.run(arguments)
            with _sigterm_as_interrupt() as came:
                try:
                    _run(arguments)
                finally:
                    interrupt = came[0] if came else interrupt
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else EXIT_FAILURE if e.code else 0
            if _is_interrupt(e):
                code = _interrupted(interrupt)
        except Exception as e:
            code = report(e)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output is gone (`sprocketmq consume t | head`). Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = _interrupted(interrupt)
    return code


def _run(arguments: Sequence[str]) -> None:
    import logging

    from sprocketmq.cli.commands import app

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="sprocketmq: %(asctime)s %(message)s", datefmt="%H:%M:%S")
    app(args=arguments, prog_name="sprocketmq")


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[list[signal.Signals]]:
    """Let SIGTERM do what SIGINT does, so that children end and temporary files go; yields the list that tells when it came."""
    came: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield came
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        came.append(signal.SIGTERM)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_interrupt(end: SystemExit) -> bool:
    """Return whether typer made ``end`` of a KeyboardInterrupt; a verb that has ended in order may exit with the same code."""
    return isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt)


def _interrupted(number: signal.Signals) -> int:
    fail(f"stopped by {number.name}")
    return EXIT_SIGNAL + number
