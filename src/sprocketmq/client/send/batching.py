"""The options and the counters of AutoBatch (RIP-27). The messages are gathered in ``accumulator.py``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sprocketmq.client.arguments import check_bools
from sprocketmq.errors import ConfigError

MAX_BATCH_BYTES = 2 << 20
MAX_DELAY_MS = 30_000
# RIP-27's default.
BATCH_BYTES = 32 * 1024
# A larger batch saves both sides requests. While twice as much of its key is unanswered it delays nothing: the broker has work meanwhile.
BUSY_BATCH_BYTES = 256 * 1024
# While this many batches, of whatever keys, are unanswered, the brokers have work for some milliseconds. A batch that is due then waits for
# an answer, and more messages share it: those of a hundred topics would travel by tens otherwise.
BUSY_BATCHES = 32
# The most that it waits, in delays.
BUSY_DELAYS = 4


@dataclass(frozen=True, slots=True)
class Batching:
    """How a producer gathers messages (AutoBatch, RIP-27).

    Messages of the same topic, tag and wait_store_ok (and queue, when they name one) travel together. A batch leaves when it has
    ``max_bytes`` of encoded messages (1 to 2 MiB; it never has more), or ``max_delay_ms`` (1 to 30,000) after its first message at the
    latest.

    With ``max_bytes=None``, the default, batches have 32 KiB, and grow while the brokers are behind: up to half of what is unanswered of
    the messages that may travel together, or a sixteenth of all that is, but not beyond 256 KiB. While 32 batches are unanswered, one that
    is due waits for an answer, up to four times ``max_delay_ms``.

    Messages that are larger (with None: than 32 KiB), or that come while batches of ``total_max_bytes`` are not answered yet, are sent by
    themselves; a batch of one travels as an ordinary message.

    By default every message waits for others, which suits many senders; a single task that awaits each send then sends one message every
    ``max_delay_ms``. With ``adaptive=True`` a message leaves at once while no message that could share its batch is in flight; under load,
    messages gather until the answer comes, the batch is full or the delay is over. Raises ConfigError for values out of bounds.
    """

    max_bytes: int | None = None
    max_delay_ms: int = 10
    total_max_bytes: int = 32 << 20
    adaptive: bool = False

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            _check("max_bytes", self.max_bytes, MAX_BATCH_BYTES)
        _check("max_delay_ms", self.max_delay_ms, MAX_DELAY_MS)
        _check("total_max_bytes", self.total_max_bytes, None)
        check_bools(adaptive=self.adaptive)


def _check(name: str, value: object, most: int | None) -> None:
    if type(value) is not int or value < 1 or (most is not None and value > most):
        bounds = f"from 1 to {most:,}" if most is not None else "1 or more"
        raise ConfigError(f"batching: {name} must be a whole number, {bounds}, not {value!r}")


@dataclass(frozen=True, slots=True)
class BatchingStats:
    """Counters of AutoBatch since the producer was created.

    ``batches`` have left with ``messages`` messages in all; ``direct`` messages were sent by themselves. ``histogram`` counts batches by
    size: the count at 8 is of batches of 8 to 15 messages; sizes that did not occur are left out. ``held_bytes`` are waiting or unanswered
    now. ``linger_ms_mean`` and ``linger_ms_max`` say how long batches waited, counted from their first message.
    """

    batches: int = 0
    messages: int = 0
    direct: int = 0
    histogram: Mapping[int, int] = field(default_factory=dict)
    held_bytes: int = 0
    linger_ms_mean: float = 0.0
    linger_ms_max: float = 0.0
