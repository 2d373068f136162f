"""Entry point of ``sprocketmq``. Commands import what they need when they run, so that servers start without the terminal libraries."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_SIGNAL, drop_output, fail, report
from sprocketmq.cli.serving_verbs import DESCRIPTIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``sprocketmq`` with ``arguments`` (default: those of the process) and return its exit code.

    0: done. 1: failed. 2: wrong usage. 128 plus its number: ended by a signal.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    serves = bool(arguments) and arguments[0] in DESCRIPTIONS
    _fill_closed_streams(refusing=not serves)
    _escape_what_cannot_be_encoded()
    interrupt = signal.SIGINT
    try:
        try:
            if serves:
                from sprocketmq.cli import serving  # argparse instead of typer saves 50 ms, and 6 MB in a process that stays

                return serving.run(arguments[0], arguments[1:])
            with _sigterm_as_interrupt() as came:
                try:
                    _run(arguments)
                finally:
                    interrupt = came[0] if came else interrupt
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else EXIT_FAILURE if e.code else 0
            if _is_interrupt(e):
                code = _interrupted(interrupt)
            elif isinstance(e.__context__, BrokenPipeError):  # typer exits with 1 then
                raise e.__context__ from None
        except Exception as e:  # noqa: BLE001 - any error becomes a line on stderr and an exit code
            code = report(e)
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as e:  # such as a full disk
            code = report(e)
            drop_output()
    except BrokenPipeError:
        # The reader of the output has closed it (`sprocketmq consume t | head`). Without this Python would report that again at exit.
        drop_output()
        code = 0
    except KeyboardInterrupt:
        code = _interrupted(interrupt)
    return code


def _escape_what_cannot_be_encoded() -> None:
    """Write characters that standard output's encoding lacks as escapes, as standard error does, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _fill_closed_streams(*, refusing: bool) -> None:
    """Replace standard streams that were closed before the start, or the next opened file would take their numbers.

    With ``refusing`` reading and writing them fails, as results must not get lost; a server only writes its ready line.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        refused = os.O_WRONLY if fd == 0 else os.O_RDONLY
        taken = os.open(os.devnull, refused if refusing and fd != 2 else os.O_RDWR)
        if taken != fd:
            os.dup2(taken, fd)
            os.close(taken)
        setattr(sys, name, open(fd, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115 - it stays open


def _run(arguments: Sequence[str]) -> None:
    import logging

    if "_SPROCKETMQ_COMPLETE" in os.environ:  # a shell asks for completions; it would take every line as one
        os.environ["TERMINAL_WIDTH"] = "1000"
    from sprocketmq.cli.commands import app

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="sprocketmq: %(asctime)s %(message)s", datefmt="%H:%M:%S")
    # It logs the errors that it raises, interrupts included, with their stack.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    app(args=arguments, prog_name="sprocketmq")


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[list[signal.Signals]]:
    """Handle SIGTERM like SIGINT, so that children end and temporary files are removed; yields a list that gets the signal."""
    came: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield came
        return

    def interrupt(_number: int, frame: FrameType | None) -> None:
        came.append(signal.SIGTERM)
        handler = signal.getsignal(signal.SIGINT)  # asyncio has one that cancels the task, and Spark one that cancels its jobs
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # SIGINT is ignored, as in a background job of a shell
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_interrupt(end: SystemExit) -> bool:
    """Whether typer raised ``end`` for a KeyboardInterrupt; a command may use the same exit code."""
    return isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt)


def _interrupted(number: signal.Signals) -> int:
    fail(f"stopped by {number.name}")
    return EXIT_SIGNAL + number
