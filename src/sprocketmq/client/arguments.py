"""Checks of arguments: the error names the argument, what it may be and what it was."""

from numbers import Integral, Real
from typing import Literal

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.compression import CompressionType, check_library
from sprocketmq.protocol.message import MessageQueue

Compression = CompressionType | Literal["zlib", "lz4", "zstd"]

# Offsets and times are signed 64-bit numbers on the wire.
LARGEST_OFFSET = 2**63 - 1


def check_number(
    name: str, value: object, *, over: float | None = None, least: float | None = None, most: float | None = None, whole: bool = False
) -> None:
    """Raise ConfigError unless ``value`` is a number over ``over``, from ``least`` to ``most``, and an integer if ``whole``."""
    if not isinstance(value, bool) and isinstance(value, Integral if whole else Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        if (over is None or number > over) and (least is None or number >= least) and (most is None or number <= most):
            return
    kind = "a whole number" if whole else "a number"
    if over is not None:
        bounds = f" more than {over:g}" + ("" if most is None else f", at most {most:,}")
    elif most is not None:
        bounds = f" from {least:g} to {most:,}"
    else:
        bounds = "" if least is None else f", {least:g} or more"
    raise ConfigError(f"{name} must be {kind}{bounds}, not {value!r}")


def check_bools(**values: object) -> None:
    """Raise ConfigError unless all are True or False: ``"no"`` would count as True."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, not {value!r}")


def check_queue(queue: object) -> None:
    """Raise ConfigError unless ``queue`` is a MessageQueue."""
    if not isinstance(queue, MessageQueue):
        raise ConfigError(f"the queue must be a MessageQueue, one of queues(topic), not {queue!r}")


def check_timeout(timeout_s: float) -> None:
    """Raise ConfigError unless ``timeout_s`` is over 0; for hot paths."""
    try:
        if timeout_s > 0 and timeout_s is not True:
            return
    except TypeError:
        pass
    raise ConfigError(f"timeout_s must be a number of seconds over 0, not {timeout_s!r}")


def compression_type(compression: Compression | None) -> CompressionType | None:
    """Return the compression that an argument of a producer selects. Raises ConfigError; PartNotInstalled without its library."""
    if compression is None:
        return None
    try:
        kind = compression if isinstance(compression, CompressionType) else CompressionType[compression.upper()]
    except (KeyError, AttributeError):
        raise ConfigError(f"compression must be 'zlib', 'lz4', 'zstd' or None, not {compression!r}") from None
    check_library(kind)
    return kind
