"""Putting stretches of the commit log that were read apart from each other back into order: what counts, and where the log ends.

A stretch counts only when it begins exactly where the records before it end. Its reader had to guess where its first record begins, as a
cut can fall into a body, and bytes in a body that look like a record must not get in. Where something is no record, ``LogScan`` decides
what is damage and where the log goes on: the outcome is that of reading the log record by record.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import DamagedRange, LogScan, is_blank


class Stretch(Protocol):
    """What reading a stretch of the log gives: ``records`` records from ``start`` to ``end``, the last stored at ``last_time_ms``."""

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
    """What became of the stretch ``[begin, limit)`` of log offsets; None when nobody has read it."""

    begin: int
    limit: int
    stretch: S | None


class LogOrder(Generic[S]):
    """One walk through a log from ``start`` on; ``end`` is where the last record that counts ended, ``damaged`` what was skipped.

    With ``resync`` damage is skipped when later records are found, else the first thing that is no record ends the log.
    """

    def __init__(self, log: CommitLog, start: int, *, resync: bool, last_time: int = 0) -> None:
        self._log = log
        self._start = start
        self._resync = resync
        self.last_time = last_time
        self.end = start
        self.damaged: list[DamagedRange] = []

    def stretches(self, take: Callable[[], Answer[S] | None], read: Callable[[Segment, int, int], S]) -> Iterator[S]:
        """Yield what the log holds, in order.

        ``take`` gives the answers in log order, None after the last. ``read`` gets a segment and the range ``[begin, limit)`` of it to read
        here, a record being expected at ``begin``: for stretches that no answer has, or that begin elsewhere.
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
        """Return where the log goes on when no record that counts begins at ``log_offset`` of ``segment``; None at the log's end."""
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
