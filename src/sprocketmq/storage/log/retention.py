r"""Decides which segments to delete, and when the disk is too full for new messages. Pure: nothing here touches a file.

::

    used part of the disk (the fuller one of the commit log's and the queues')
    0 %                                  75 %               85 %               90 %                 100 %
    +------------------------------------+------------------+------------------+--------------------+
    | expired segments go                | expired segments | old segments go, | the same, and no   |
    | in the hours of ``delete_when``    | go at any hour   | expired or not   | message is taken   |
    +------------------------------------+------------------+------------------+--------------------+
                                         disk_max_used      disk_clean_        disk_warning
                                         _ratio             forcibly_ratio     _ratio

A segment goes as a whole, the oldest first, and never the one that holds the end of the log. It is expired ``file_reserved_hours`` after
it was last written. Queue files and index files follow the log they point into.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from sprocketmq.storage.config import StoreConfig

# A round deletes at most this many segments, so that a wrong clock or a wrong disk usage cannot empty a store at once.
MAX_SEGMENTS_PER_ROUND = 10
# A request to delete now stays in force for this many rounds.
MANUAL_ROUNDS = 20

_HOUR_MS = 3_600_000


class SegmentAge(NamedTuple):
    """One segment of the commit log: the log offset of its first byte, its length, and when it was last written (wall clock, ms)."""

    start: int
    size: int
    modified_ms: int


class Cause(Enum):
    """Why segments are deleted; the values appear in the log."""

    NONE = "nothing is due"
    HOUR = "they expired and this is an hour to delete in"
    MANUAL = "they expired and an administrator asked"
    SPACE = "they expired and the disk is filling up"
    FORCED = "the disk is nearly full"


class Plan(NamedTuple):
    """The decision of one round: delete ``segments`` in this order because of ``cause``; accept messages or not (``writable``)."""

    segments: tuple[SegmentAge, ...]
    cause: Cause
    writable: bool


@dataclass(frozen=True)
class Limits:
    """The settings of ``StoreConfig`` as they take effect: ratios within the borders Apache's broker keeps them in.

    A ratio of exactly 1 is beyond every disk and switches its rule off: a store on a shared disk can then fill it up, and messages are
    refused only when the disk itself refuses them.
    """

    reserved_ms: int
    hours: frozenset[int]
    max_used: float
    clean_forcibly: float
    warning: float
    forcibly: bool

    @classmethod
    def of(cls, config: StoreConfig) -> "Limits":
        """Return the limits a store with this configuration keeps."""
        return cls(
            reserved_ms=round(config.file_reserved_hours * _HOUR_MS),
            hours=frozenset(int(hour) for hour in config.delete_when.split(";")),
            max_used=_clamped(config.disk_max_used_ratio, 0.10, 0.95),
            clean_forcibly=_clamped(config.disk_clean_forcibly_ratio, 0.30, 0.85),
            warning=_clamped(config.disk_warning_ratio, 0.35, 0.90),
            forcibly=config.clean_file_forcibly,
        )

    def full(self, used: float) -> bool:
        """Return whether messages must be refused with this part of the disk in use."""
        return used > self.warning

    def cause(self, used: float, now_ms: int, *, manual: bool = False) -> Cause:
        """Return why segments may be deleted now; ``used`` is the used part of the disk, hours are those of the machine's time zone."""
        if self.forcibly and used > min(self.warning, self.clean_forcibly):
            return Cause.FORCED
        if used > min(self.warning, self.clean_forcibly, self.max_used):
            return Cause.SPACE
        if manual:
            return Cause.MANUAL
        return Cause.HOUR if time.localtime(now_ms / 1000).tm_hour in self.hours else Cause.NONE

    def expired(self, modified_ms: int, now_ms: int) -> bool:
        """Return whether a file last written then has been kept long enough."""
        return now_ms - modified_ms >= self.reserved_ms


def plan_deletion(segments: Sequence[SegmentAge], log_end: int, used: float, limits: Limits, now_ms: int, *, manual: bool = False) -> Plan:
    """Return what may be deleted from the store now.

    ``segments`` are in log order. Those before ``log_end`` may go, except the one that holds its last byte; files made ahead of the
    writes do not count. The first segment that has to stay keeps all later ones. ``used`` is the used part of the disk, from 0 to 1.
    """
    cause = limits.cause(used, now_ms, manual=manual)
    going: list[SegmentAge] = []
    if cause is not Cause.NONE:
        for segment in segments[:-1][:MAX_SEGMENTS_PER_ROUND]:
            if segment.start + segment.size >= log_end:
                break
            if cause is not Cause.FORCED and not limits.expired(segment.modified_ms, now_ms):
                break
            going.append(segment)
    return Plan(tuple(going), cause if going else Cause.NONE, not limits.full(used))


def used_part(total: int, free: int) -> float:
    """Return which part of a disk is in use, from 0 to 1; 0 for a file system that does not report its size."""
    return min(1.0, max(0.0, 1 - free / total)) if total > 0 else 0.0


def _clamped(ratio: float, low: float, high: float) -> float:
    return 1.0 if ratio == 1 else min(max(ratio, low), high)
