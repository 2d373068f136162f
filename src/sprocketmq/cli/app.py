"""The command tree. Verbs import what they need when they run: a server must not wait for the libraries of a progress bar."""

import os
import sys
from collections.abc import Sequence

from sprocketmq.cli.errors import EXIT_FAILURE, report

SERVING_VERBS = ("serve", "namesrv", "broker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``sprocketmq`` with ``arguments`` (default: those of the process) and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            if arguments and arguments[0] in SERVING_VERBS:
                from sprocketmq.cli import serving  # argparse instead of typer: 10 ms instead of 60, and 6 MB less in a process that stays

                return serving.run(arguments)
            import logging

            from sprocketmq.cli.commands import app

            logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="sprocketmq: %(asctime)s %(message)s", datefmt="%H:%M:%S")
            app(args=arguments, prog_name="sprocketmq")
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else EXIT_FAILURE if e.code else 0
        except Exception as e:
            code = report(e)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output is gone (`sprocketmq consume t | head`). Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    return code
