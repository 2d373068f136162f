"""Decisions about the stream of log bytes, without sockets or files: which reports a master accepts, and where a slave starts.

A slave compares before it follows. It asks for bytes that it has already, from a record boundary before its own end on, and appends only
when they were equal::

    slave's log   |--------------------------|============|
    master's log  |--------------------------|============|-------------->
                                          start   compared  stop = end: from here on the slave appends

The epochs of both (``storage/replica/epochs.py``) may show that the logs diverge earlier; then comparing begins before that point. They
show where to look, and that the master's log is the one to follow. The bytes alone decide what is cut off: a slave that could not ask its
master has bytes of epochs that it does not know.
"""

from collections import deque
from typing import NamedTuple, Protocol

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.storage.replica.epochs import Epoch, common_end

# How much a slave compares before it follows; doubled each time the logs differ from the first record on.
COMPARE_BYTES = 64 << 10
# A slave that wants the whole log of a master whose log begins at 0 asks from this offset, as 0 asks for the last file only. The byte at
# 0 is known: the first of a record's size, and no record has 16 MiB.
WHOLE_LOG = 1
# Ends of the log that a master remembers with their times, to compute a slave's lag in milliseconds.
MAX_MARKS = 1024
MARK_INTERVAL_S = 0.01


# --- the master's side --------------------------------------------------------------------------------------------------


class SlaveProgress:
    """What one slave was sent and has acknowledged."""

    __slots__ = ("acked", "sent")

    def __init__(self) -> None:
        self.sent = self.acked = 0

    def begin(self, report: int, begin: int, end: int, segment_bytes: int) -> None:
        """Take the first report of a connection, to a master whose log is [begin, end). 0 asks for the last file, as in the reference.

        Raises RemoteProtocolError for a report outside the log.
        """
        if report == 0:
            report = max(begin, end - end % segment_bytes)
        elif not begin <= report <= max(end, WHOLE_LOG):
            raise RemoteProtocolError(
                f"the slave reports log offset {report}, this log has {begin} to {end}: it may be another store's log"
                if report > end or report < 0
                else f"the slave reports log offset {report}, this log begins at {begin}: its copy is too old, it needs an empty store"
            )
        self.sent = self.acked = report

    def take(self, report: int) -> bool:
        """Take a later report; return whether it acknowledges more. Raises RemoteProtocolError for an impossible one."""
        if report > self.sent:
            raise RemoteProtocolError(f"the slave acknowledges log offset {report}, but was sent the log up to {self.sent} only")
        if report < self.acked and report:  # the reference's slave reports 0 while its log is empty
            raise RemoteProtocolError(f"the slave acknowledges log offset {report} after {self.acked}: acknowledgements never go back")
        grew = report > self.acked
        self.acked = max(report, self.acked)
        return grew


class Marks:
    """A history of the end of the log: since when the bytes that a slave lacks have existed.

    Memory is bounded: the longer ago a slave had everything, the longer the times between marks.
    """

    __slots__ = ("_interval_s", "_marks")

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()
        self._interval_s = MARK_INTERVAL_S

    def note(self, now: float, end: int) -> None:
        """Remember that the log ended at ``end``; times and ends never decrease."""
        marks = self._marks
        if marks and now - marks[-1][0] < self._interval_s:
            return
        if len(marks) == MAX_MARKS:
            self._marks = marks = deque(list(marks)[::2])
            self._interval_s *= 2
        marks.append((now, end))

    def forget(self, log_offset: int) -> None:
        """Drop the marks up to ``log_offset``, which every slave has."""
        marks = self._marks
        while marks and marks[0][1] <= log_offset:
            marks.popleft()
        if not marks:
            self._interval_s = MARK_INTERVAL_S

    def since(self, log_offset: int) -> float | None:
        """Return when the log first ended after ``log_offset``, None when it does not or that is unknown."""
        return next((time for time, end in self._marks if end > log_offset), None)


class Allowance:
    """Bytes that may be sent, ``per_second`` on average; what was not used adds up to at most a second's worth."""

    __slots__ = ("_at", "_left", "_per_second", "step")

    def __init__(self, per_second: int, now: float) -> None:
        self.step = max(1, per_second // 10)  # the amount to send at once, so that pauses are short
        self._per_second = per_second
        self._left = float(per_second)
        self._at = now

    def available(self, now: float) -> int:
        """Return how many bytes may be sent now, negative after more was taken."""
        self._left = min(float(self._per_second), self._left + (now - self._at) * self._per_second)
        self._at = now
        return int(self._left)

    def take(self, count: int) -> None:
        """Count bytes as sent."""
        self._left -= count


class Rate:
    """Bytes per second between the last two recorded positions, for monitoring."""

    __slots__ = ("_last", "per_second")

    def __init__(self) -> None:
        self.per_second = 0
        self._last: tuple[float, int] | None = None

    def note(self, now: float, log_offset: int) -> None:
        """Record the position of a stream."""
        if self._last is not None and now > self._last[0]:
            self.per_second = max(0, round((log_offset - self._last[1]) / (now - self._last[0])))
        self._last = (now, log_offset)


class Pauses:
    """Pauses between attempts: doubled from ``first`` to ``longest`` while the reason for them stays the same."""

    __slots__ = ("_last", "_limits")

    def __init__(self) -> None:
        self._limits = (0.0, 0.0)
        self._last = 0.0

    def following(self, limits: tuple[float, float]) -> float:
        """Return the next pause in seconds, for a reason with ``(first, longest)``."""
        self._last = min(2 * self._last, limits[1]) if limits == self._limits else limits[0]
        self._limits = limits
        return self._last

    def reset(self) -> None:
        """Reset to the first pause."""
        self._limits = (0.0, 0.0)


# --- the slave's side ---------------------------------------------------------------------------------------------------


class MasterLog(NamedTuple):
    """A master's answers: its log [begin, end), its epochs, its segment length, and how many copies of a send it waits for.

    None stands for what it does not report.
    """

    begin: int
    end: int
    epochs: tuple[Epoch, ...] | None = None
    segment_bytes: int | None = None
    copies: int | None = None


class Held(Protocol):
    """The log of a slave, as planning needs it."""

    @property
    def end(self) -> int: ...

    def record_boundary(self, log_offset: int) -> int: ...


class Start(NamedTuple):
    """Compare the master's bytes [start, stop) with those held; ``floor`` is the first log offset that both logs have."""

    start: int
    stop: int
    floor: int

    @property
    def report(self) -> int:
        """The first report makes the master send from ``start`` on."""
        return self.start or WHOLE_LOG


class Cut(NamedTuple):
    """The logs are equal up to this record boundary, and the slave must drop what follows it."""

    log_offset: int


class Refusal(NamedTuple):
    """The slave must not follow this master. ``diverged``: the logs have a common beginning, but not all of this one is the master's."""

    reason: str
    diverged: bool = False


class FurtherBack(NamedTuple):
    """The logs differ in everything that was compared: compare twice as much."""


def plan(
    held: Held, begin: int, segment_bytes: int, epochs: tuple[Epoch, ...], master: MasterLog | None, compare_bytes: int = COMPARE_BYTES
) -> Start | Refusal:
    """Decide where a slave with the log [begin, held.end) and ``epochs`` starts; ``master`` is None when the master cannot be asked.

    ``compare_bytes`` doubles from attempt to attempt while the logs differ.
    """
    end = held.end
    if end == begin:
        begin = master.begin if master is not None else begin
        return Start(begin, begin, begin)
    if master is None:
        start = max(begin, held.record_boundary(max(begin, end - compare_bytes)))
        return Start(start, end, begin)
    if master.segment_bytes not in (None, segment_bytes):
        return Refusal(
            f"the master's log has files of {master.segment_bytes} bytes, this one of {segment_bytes}: give both the same size"
            " (commitlog_segment_bytes, mappedFileSizeCommitLog)"
        )
    theirs = master.epochs or ()
    if epochs and theirs and epochs[-1].number > theirs[-1].number:
        return Refusal(
            f"the master's log ends with epoch {theirs[-1].number} at {master.end}, this one with epoch {epochs[-1].number} at {end}:"
            " it is an older master, and this copy stays as it is"
        )
    floor = max(begin, master.begin)
    agreed = common_end(epochs, end, theirs, master.end) if theirs else -1
    if floor > end or (floor == end and agreed != end):
        return Refusal(
            f"the master's log begins at {master.begin}, this copy ends at {end}: nothing can be compared."
            " Move the store away and start with an empty one"
        )
    until = min(end, master.end, agreed if agreed >= 0 else end)
    start = held.record_boundary(max(floor, until - compare_bytes))
    return Start(max(floor, start), end, floor)


def part(held: Held, begun: Start, log_offset: int, master_end: int, *, may_cut: bool) -> Cut | FurtherBack | Refusal:
    """Decide what to do with a log that equals the master's from ``begun.start`` up to ``log_offset`` only.

    ``may_cut``: both have epochs, so the master's log is the one to follow. ``master_end`` is where the master's log ends, as far as known.
    """
    boundary = held.record_boundary(log_offset)
    if boundary <= begun.start == begun.floor:
        return Refusal(
            f"this log (up to {held.end}) and the master's (up to {master_end}) have no record in common from {begun.start} on: this is"
            " another store's log. Give this slave a store of its own, or an empty one"
        )
    if not may_cut:
        return Refusal(
            f"the logs diverge at {log_offset}: the master's continues to {master_end}, this one to {held.end}, and there are no epochs to"
            " decide. This slave keeps its log; move its store away to copy the master's log",
            diverged=True,
        )
    return Cut(boundary) if boundary > begun.start else FurtherBack()
