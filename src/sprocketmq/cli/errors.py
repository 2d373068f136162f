"""Failures of commands: one or two lines on stderr and an exit code, never a traceback."""

import contextlib
import os
import sys

from sprocketmq.errors import BrokerNameTaken, ConfigError, PortInUse, SprocketError, StoreLocked, StoreNotSupported, StoreNotWritable

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
# Plus the number of the signal: 130 for SIGINT, 143 for SIGTERM.
EXIT_SIGNAL = 128

# This environment variable, set to any value, shows tracebacks, for bug reports.
DEBUG_VARIABLE = "SPROCKETMQ_DEBUG"

# Arguments that error texts name, and the options for them.
_OPTIONS = {
    "credentials=": "--secure DIR, or --access-key-file FILE",
    "tls=True": "--secure DIR, or --tls-ca FILE",
    "set ca_file": "--tls-ca FILE",
    "leave tls out": "--no-tls",
}
# ConfigErrors caused by the machine's state, not by the command line.
_NOT_USAGE = (BrokerNameTaken, PortInUse, StoreLocked, StoreNotSupported, StoreNotWritable)


def fail(message: str) -> None:
    """Write ``sprocketmq: MESSAGE`` to stderr; a stderr that is gone is ignored."""
    with contextlib.suppress(OSError):
        print(f"sprocketmq: {message}", file=sys.stderr, flush=True)


def drop_output() -> None:
    """Redirect standard output to /dev/null: Python writes the remaining output at exit, and it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code_of(error: SprocketError) -> int:
    """Return 2 for an error of the command line or a configuration file, 1 for everything else."""
    return EXIT_USAGE if isinstance(error, ConfigError) and not isinstance(error, _NOT_USAGE) else EXIT_FAILURE


def _option_for(text: str) -> str:
    """Return the command-line options for the arguments that an error's text names, which is written for programs."""
    option = next((option for phrase, option in _OPTIONS.items() if phrase in text), "")
    return f" (on the command line: {option})" if option else ""


def report(error: BaseException) -> int:
    """Print ``error`` on stderr and return the exit code; raises ``error`` again when SPROCKETMQ_DEBUG is set."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    if isinstance(error, SprocketError):
        fail(f"{error}{_option_for(str(error))}")
        return exit_code_of(error)
    if isinstance(error, BrokenPipeError):
        return EXIT_OK
    if isinstance(error, OSError):
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return EXIT_FAILURE
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        from sprocketmq.spark.errors import as_own_error

        return report(as_own_error(error))
    fail(f"internal error: {type(error).__name__}: {error}; set {DEBUG_VARIABLE}=1 and run it again for the details of a bug report")
    return EXIT_FAILURE
