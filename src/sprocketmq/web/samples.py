"""The content of one sample of the cluster; the fields have the same names in the JSON for pages."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import msgspec


class Alarm(msgspec.Struct, frozen=True):
    """Something that needs attention: the page shows the text ``alarm.KIND`` in the viewer's language, with ``values`` put in.

    ``level`` is ``warn`` or ``bad``.
    """

    kind: str
    level: str
    values: dict[str, str | int | float] = {}


class Point(NamedTuple):
    """Messages per second and the used share of the disk, at one time."""

    time_ms: int
    in_rate: float | None
    out_rate: float | None
    disk_used: float | None


class BrokerView(msgspec.Struct, frozen=True):
    """One registered broker; ``problem`` says why it does not answer. None stands for what a broker does not report.

    ``in_total`` and ``out_total`` count since the broker's start, ``in_today`` and ``out_today`` since midnight. ``disk_used`` is the used
    share of the disk from 0 to 1. ``gone`` is set when the nameserver has dropped it.
    """

    name: str
    id: int
    address: str
    cluster: str
    problem: str = ""
    gone: bool = False
    role: str = ""
    version: str = ""
    in_rate: float | None = None
    out_rate: float | None = None
    in_total: int | None = None
    out_total: int | None = None
    in_today: int | None = None
    out_today: int | None = None
    message_bytes: float | None = None
    disk_used: float | None = None
    disk_total: float | None = None
    disk_free: float | None = None
    booted_ms: int | None = None
    oldest_ms: int | None = None
    log_start: int | None = None
    log_end: int | None = None
    dispatch_behind: int | None = None
    sends_waiting: int | None = None
    held_pulls: int | None = None
    writable: bool | None = None
    following: str = ""
    behind_bytes: int | None = None


class ClusterView(msgspec.Struct, frozen=True):
    """All brokers at one time. ``problem`` is set when the nameserver does not answer: the brokers are then those of the time before.

    ``left_out`` is how many brokers were not asked because there are too many.
    """

    time_ms: int = 0
    problem: str = ""
    brokers: Sequence[BrokerView] = ()
    left_out: int = 0
    alarms: Sequence[Alarm] = ()


class History(msgspec.Struct, frozen=True):
    """The points of one broker by column, oldest first."""

    time_ms: list[int]
    in_rate: list[float | None]
    out_rate: list[float | None]

    @classmethod
    def of(cls, points: Iterable[Point]) -> Self:
        """Return the columns of ``points``; rates in tenths are exact enough for a line."""
        rows = list(points)
        return cls([p.time_ms for p in rows], [_tenths(p.in_rate) for p in rows], [_tenths(p.out_rate) for p in rows])


def _tenths(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
