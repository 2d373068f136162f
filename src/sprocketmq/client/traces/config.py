"""The settings of message traces, and their limits."""

from dataclasses import dataclass

from sprocketmq.client.arguments import check_number
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.names import check_send_topic
from sprocketmq.protocol.traces import TRACE_TOPIC


@dataclass(frozen=True, kw_only=True)
class TraceConfig:
    """Message traces of a producer or consumer. Raises ConfigError for invalid values.

    ``topic`` gets the traces. ``sample`` is the share of messages that are traced, 0 to 1: the message's id decides, so producers and
    consumers with the same share choose the same messages. At most ``max_waiting`` records wait to be written, and making them takes at
    most ``cpu_share`` of the time (1: no limit); beyond either, records are dropped and counted. They are written when a trace message is
    full or ``max_delay_s`` after its first record. ``close`` takes at most ``close_timeout_s`` to write the rest.
    """

    topic: str = TRACE_TOPIC
    sample: float = 1.0
    max_waiting: int = 16_384
    cpu_share: float = 0.01
    max_delay_s: float = 1.0
    close_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        check_send_topic(self.topic)
        check_number("sample", self.sample, least=0, most=1)
        check_number("max_waiting", self.max_waiting, least=1, whole=True)
        check_number("cpu_share", self.cpu_share, least=0.001, most=1)
        check_number("max_delay_s", self.max_delay_s, over=0)
        check_number("close_timeout_s", self.close_timeout_s, over=0)


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Counts of a client's trace records: ``written``, ``dropped``, ``waiting`` now.

    ``problem`` is why the last trace message was not written, empty when it was.
    """

    written: int = 0
    dropped: int = 0
    waiting: int = 0
    problem: str = ""


def trace_config(trace: bool | TraceConfig) -> TraceConfig | None:
    """Return the settings that an argument ``trace`` stands for; None for no traces. Raises ConfigError."""
    if isinstance(trace, TraceConfig):
        return trace if trace.sample else None
    if not isinstance(trace, bool):
        raise ConfigError(f"trace must be True, False or a TraceConfig, not {trace!r}")
    return TraceConfig() if trace else None
