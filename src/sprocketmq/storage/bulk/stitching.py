"""Joining ranges of the commit log that were parsed independently: which records are valid, and where the log ends.

A stretch is accepted only if it begins exactly where the records before it end. Its parser had to guess the start of its first record,
as a cut can fall into a body, and bytes in a body that look like a record must not be taken for one. Where there is no valid record,
``LogScan`` decides what is damage and where the log continues, so the result equals that of reading the log record by record.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import DamagedRange, LogScan, is_blank


class Stretch(Protocol):
    """The result of parsing a range of the log: ``records`` records from ``start`` to ``end``, the last stored at ``last_time_ms``."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def last_time_ms(self) -> int: ...


S = TypeVar("S", bound=Stretch)


class Answer(NamedTuple, Generic[S]):
    """The parsed range ``[begin, limit)`` of log offsets; ``stretch`` is None when it was not parsed."""

    begin: int
    limit: int
    stretch: S | None


class LogOrder(Generic[S]):
    """One pass over a log from ``start`` on. ``end`` is the end of the last accepted record, ``damaged`` the ranges skipped.

    With ``resync`` damage is skipped if valid records follow; otherwise the first bytes that are not a record end the log.
    """

    def __init__(self, log: CommitLog, start: int, *, resync: bool, last_time: int = 0) -> None:
        self._log = log
        self._start = start
        self._resync = resync
        self.last_time = last_time
        self.end = start
        self.damaged: list[DamagedRange] = []

    def stretches(self, take: Callable[[], Answer[S] | None], read: Callable[[Segment, int, int], S]) -> Iterator[S]:
        """Yield the accepted stretches, in log order.

        ``take`` returns the answers in log order, None after the last. ``read`` parses the range ``[begin, limit)`` of a segment, with a
        record expected at ``begin``: it is called for ranges that no answer has, or whose stretch begins elsewhere.
        """
        log_offset = self._start
        answer = take()
        while (segment := self._log.find(log_offset)) is not None:
            if answer is not None and answer.limit <= log_offset:
                answer = take()
                continue
            stretch = None
            if answer is not None and answer.begin <= log_offset:
                stretch = answer.stretch
                if stretch is None or not stretch.records or stretch.start != log_offset:
                    stretch = read(segment, log_offset - segment.start, answer.limit - segment.start)
            if stretch is not None and stretch.records:
                log_offset = self.end = stretch.end
                self.last_time = stretch.last_time_ms
                yield stretch
                continue
            following = self._follow(segment, log_offset)
            if following is None:
                break
            log_offset = following

    def _follow(self, segment: Segment, log_offset: int) -> int | None:
        """Return where the log continues when no valid record begins at ``log_offset`` of ``segment``; None at the log's end."""
        inside = log_offset - segment.start
        if is_blank(segment.view, inside):
            self.end = segment.start + segment.size
            return self.end
        scan = LogScan(self._log, log_offset, check_crc=True, resync=self._resync, last_time=self.last_time)
        records = next(scan.batches(), None)
        self.damaged += scan.damaged
        if records is None:
            self.end = scan.end
            return None
        first = records[0].log_offset
        assert first > log_offset, f"two readers disagree about the record at {log_offset}"
        return first
