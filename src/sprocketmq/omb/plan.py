"""What a worker process is given and what it answers: one JSON document a line, on its standard input and output.

The first line of the input is a ``WorkerPlan``, the others are ``WorkerCommand``. The worker answers with ``WorkerReport``: one when its
producers and consumers are connected (``ready``), one every ``report_s`` seconds, one for every command, before the command takes effect,
and a last one (``ended``) after the command ``stop`` or the end of the input. Each report covers the time since the one before it.
"""

from enum import StrEnum
from typing import TypeVar

import msgspec

# Latencies are histograms of microseconds: 1 us to one hour, three significant digits.
HISTOGRAM_LOWEST_US = 1
HISTOGRAM_HIGHEST_US = 3_600_000_000
HISTOGRAM_DIGITS = 3

# The first bytes of each payload: the time of the send in microseconds since the epoch, big-endian.
STAMP_BYTES = 8


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """One consumer: a member of the group ``name`` on ``topic``, which begins with the first message of the topic."""

    topic: str
    name: str


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one process. ``producers`` has one topic for each producer. Producers take turns, as payloads, keys and tags do.

    ``payloads`` are bodies without their stamp: what is sent is the stamp and ``payload[STAMP_BYTES:]``, so that lengths stay. ``rate``
    is in messages/s for all producers of this worker, 0 means as many as the client accepts. ``keys`` and ``tags`` may be empty. The load
    begins with the command ``load``.
    """

    worker: str
    driver: str
    config: dict[str, object] = {}
    producers: tuple[str, ...] = ()
    consumers: tuple[Subscription, ...] = ()
    payloads: tuple[bytes, ...] = ()
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    rate: float = 0.0
    warm_up_s: float = 0.0
    measured_s: float = 0.0
    report_s: float = 1.0


class Action(StrEnum):
    """What a worker can be told."""

    PROBE = "probe"  # each producer sends one message
    LOAD = "load"  # begin to send at the plan's rate
    HOLD = "hold"  # send nothing until the next LOAD
    PAUSE = "pause"  # consumers receive nothing until RESUME
    RESUME = "resume"
    MARK = "mark"  # only begins a new phase
    STOP = "stop"  # stop sending, wait for answers, close, report, exit


class WorkerCommand(msgspec.Struct, frozen=True):
    """One command; reports after it carry ``phase``."""

    action: Action
    phase: str = ""


class WorkerReport(msgspec.Struct, kw_only=True):
    """What happened since the last report. Histograms are HDR's V2 compressed encoding in Base64, empty when nothing was recorded.

    ``publish`` is the time from the intended send to the acknowledgement (it includes ``publish_delay``, the time from the intended to the
    actual call of send). ``end_to_end`` runs from the stamp to the delivery. ``cpu_s`` is user and kernel time of the whole process.
    A worker that cannot go on sends a report with ``failure`` and exits.
    """

    worker: str
    phase: str = ""
    elapsed_s: float = 0.0
    sent: int = 0
    sent_bytes: int = 0
    send_errors: int = 0
    first_error: str = ""
    received: int = 0
    received_bytes: int = 0
    publish: str = ""
    publish_delay: str = ""
    end_to_end: str = ""
    cpu_s: float = 0.0
    ready: bool = False
    ended: bool = False
    failure: str = ""


Line = TypeVar("Line", WorkerPlan, WorkerCommand, WorkerReport)


def to_line(value: WorkerPlan | WorkerCommand | WorkerReport) -> bytes:
    """Return ``value`` as one line of JSON."""
    return msgspec.json.encode(value) + b"\n"


def from_line(line: bytes, kind: type[Line]) -> Line:
    """Return the value of one line. Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(line, type=kind)
