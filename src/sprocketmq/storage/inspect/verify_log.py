"""Verifying the commit log: its segments in one row, its records one after the other, what is damaged and what is after its end.

Each window of valid records is handed to the checks of queues and index.
"""

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sprocketmq.protocol.layout import BLANK, FIXED_OVERHEAD, MAGIC_BLANK
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import Entry
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Findings
from sprocketmq.storage.inspect.record_items import dissect
from sprocketmq.storage.inspect.segment_items import next_record
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.log.segments import parse_segment_name, segment_name

if TYPE_CHECKING:
    from sprocketmq.storage.inspect.log_windows import Window
    from sprocketmq.storage.inspect.verify_index import IndexChecks
    from sprocketmq.storage.inspect.verify_queues import QueueChecks

Progress = Callable[[int, int], None]

_ZEROS = "there are zeros"
_MAX_LOG_OFFSET = (1 << 63) - 1
_BLANK_MAGIC = MAGIC_BLANK.to_bytes(4, "big", signed=True)


class LogCheck:
    """The check of one store's log. ``noted_end`` is where the snapshot says that the log ended, 0 without a snapshot.

    After ``read``: ``log_end`` is where the last record ends, ``records`` their number, ``last_ms`` the latest store time, and
    ``noted_end_met`` whether a record begins or ends at ``noted_end``.
    """

    def __init__(self, store: StoreDirectory, findings: Findings, *, in_use: bool, noted_end: int) -> None:
        self._store = store
        self._findings = findings
        self._in_use = in_use
        self._noted_end = noted_end
        self._previous_ms = 0  # the store time of the last record seen
        self.last_ms = 0
        self.log_end = store.segments[0][0] if store.segments else 0
        self.records = 0
        self.noted_end_met = False

    def check_names(self) -> list[tuple[int, Entry]]:
        """Check that the segments are consecutive files of equal length, and return them; none when nothing can be read."""
        store, add = self._store, self._findings.add
        size = store.segment_bytes
        segments = list(store.segments)
        if not segments:
            checkpoint = Checkpoint.load(store.fs, f"{store.root}/checkpoint")
            if checkpoint.commitlog_timestamp_ms or self._noted_end:
                what = "the commit log has no files, but other files know of messages"
                next_step = "put its files back (storePathCommitLog may have named another directory)"
                add(ERROR, "log missing", f"{store.root}/commitlog", None, what, next_step)
            return []
        if segments[-1][0] + size > _MAX_LOG_OFFSET:
            path = f"{store.root}/commitlog/{segments[-1][1].name}"
            add(ERROR, "log names", path, None, "no log is that long: the name is not a log offset")
            return []
        expected = segments[0][0]
        if size and expected % size:
            add(ERROR, "log names", self._segment(expected), None, f"its name is not a multiple of the {size:,} bytes that segments have")
        for start, entry in segments:
            if start != expected:
                what = f"the segment is missing, the next one there is {entry.name}: its messages are lost"
                next_step = "put the file back from a copy; the store does not open without it"
                add(ERROR, "log missing", self._segment(expected), None, what, next_step)
            if entry.size > size:
                add(ERROR, "log length", self._segment(start), size, f"the file has {entry.size:,} bytes where segments have {size:,}")
            elif entry.size < size:
                last = start == segments[-1][0]
                what = f"the file has {entry.size:,} bytes where segments have {size:,}"
                more = ": the next start lengthens it" if last else ": what was behind them is lost"
                severity = NOTE if last and self._in_use else WARNING if last else ERROR
                add(severity, "log length", self._segment(start), entry.size, what + more)
            expected = start + size
        return segments

    def _segment(self, start: int) -> str:
        return f"{self._store.root}/commitlog/{segment_name(start)}"

    def read(
        self,
        segments: list[tuple[int, Entry]],
        queues: "QueueChecks",
        index: "IndexChecks | None",
        progress: Progress | None,
    ) -> None:
        """Read the log front to back; ``progress`` gets bytes done and bytes in all."""
        # Unwritten ranges of zeros count neither as done nor as to be done.
        total = sum(entry.size for _, entry in segments)
        done = 0
        gap: tuple[str, int, str] | None = None  # a range without records whose end is not known yet: path, log offset, reason
        for start, entry in segments:
            path = self._segment(start)
            covered = start
            for begin, end, window, problem in self._windows(path, start):
                covered = end
                if window is None and problem == _ZEROS:
                    total -= end - begin
                else:
                    done += end - begin
                if progress is not None:
                    progress(done, total)
                if window is None:
                    gap = gap or (path, begin, problem)
                    continue
                if gap is not None and len(window):
                    self._report_damage(*gap, begin, queues)
                    gap = None
                self._take(window, path, start, queues, index)
            total -= start + entry.size - covered  # a BLANK, or bytes after the segment's length
        if progress is not None:
            progress(done, total)
        if gap is not None:
            self._report_tail(*gap, segments)

    def _windows(self, path: str, start: int) -> Iterator[tuple[int, int, "Window | None", str]]:
        """Yield ``(begin, end, records, "")`` for records and ``(begin, end, None, reason)`` for ranges without them, as log offsets."""
        # Late: it loads numpy, which takes 0.1 s.
        from sprocketmq.storage.inspect.log_windows import MAX_RECORD_BYTES, WINDOW_BYTES, parse_window

        store = self._store
        file = store.fs.open(path, read_only=True)
        try:
            with FileView(store.fs, path) as view:
                size = store.segment_bytes
                file_pos, want = 0, WINDOW_BYTES
                while file_pos < min(view.size, size):
                    window, used = parse_window(file.pread(min(want, size - file_pos), file_pos), start + file_pos)
                    if used:
                        yield start + file_pos, start + file_pos + used, window, ""
                        file_pos, want = file_pos + used, WINDOW_BYTES
                        continue
                    head = view.read(file_pos, 8)
                    if len(head) == 8 and head[4:] == _BLANK_MAGIC and BLANK.unpack(head)[0] == size - file_pos:
                        self.log_end = start + size
                        return
                    record = dissect(view, file_pos, start, size - file_pos, check_crc=want > WINDOW_BYTES)
                    if not record.problem and want < record.length <= MAX_RECORD_BYTES:
                        want = record.length
                        continue
                    reason = record.problem or f"the record has {record.length:,} bytes, more than any broker takes"
                    if not head.strip(b"\0"):
                        reason = _ZEROS if size - file_pos >= FIXED_OVERHEAD else "the segment ends without a BLANK"
                    elif head[4:] == _BLANK_MAGIC:
                        reason = f"a BLANK says {BLANK.unpack(head)[0]} bytes are left, there are {size - file_pos}"
                    elif not record.problem:
                        reason = dissect(view, file_pos, start, size - file_pos).problem or reason
                    begin, file_pos, want = file_pos, next_record(view, file_pos, start, size, since_ms=self._previous_ms), WINDOW_BYTES
                    yield start + begin, start + file_pos, None, reason
        finally:
            file.close()

    def _take(self, window: "Window", path: str, start: int, queues: "QueueChecks", index: "IndexChecks | None") -> None:
        times = window.times_ms
        back = times[1:] < times[:-1]
        if int(times[0]) < self._previous_ms or back.any():
            i = 0 if int(times[0]) < self._previous_ms else int(back.argmax()) + 1
            before = self._previous_ms if i == 0 else int(times[i - 1])
            log_offset = int(window.log_offsets[i])
            what = (
                f"the store time {times[i]} of the record at {log_offset} is before that of the one ahead of it, {before}: "
                "lookups by time may miss"
            )
            self._findings.add(WARNING, "store time", path, log_offset - start, what)
        self._previous_ms = int(times[-1])
        self.last_ms = max(self.last_ms, int(times.max()))
        self.log_end = window.end
        self.records += len(window)
        if not self.noted_end_met and window.log_offsets[0] <= self._noted_end <= window.end:
            self.noted_end_met = self._noted_end == window.end or bool((window.log_offsets == self._noted_end).any())
        queues.take(window, path, start)
        if index is not None:
            index.take(window)

    def _report_damage(self, path: str, begin: int, reason: str, end: int, queues: "QueueChecks") -> None:
        start = parse_segment_name(path.rpartition("/")[2]) or 0
        what = f"{end - begin:,} bytes of the log, from {begin} to {end}, hold no valid record: {reason}"
        show = f"sprocketmq inspect {shlex.quote(path)} --offset {begin} --hex"
        self._findings.add(ERROR, "log damaged", path, begin - start, what, f"{show} shows it; a start skips it, what was in it is lost")
        queues.damaged(begin, end)

    def _report_tail(self, path: str, begin: int, reason: str, segments: list[tuple[int, Entry]]) -> None:
        """Report what is after the last record, unless it is all zeros."""
        data = 0
        first = begin
        for start, _ in segments:
            segment = self._segment(start)
            if start + self._store.segment_bytes <= begin:
                continue
            with FileView(self._store.fs, segment) as view:
                found = view.data_from(max(begin - start, 0))
                if found < view.size:
                    first = first if data else start + found
                    data += view.size - found
        if not data:
            return
        file_pos = begin - (parse_segment_name(path.rpartition("/")[2]) or 0)
        show = f"sprocketmq inspect {shlex.quote(path)} --offset {begin}"
        if self._in_use:
            what = f"the log ends at {begin} in a record that is not whole ({reason}): the next start cuts it off"
            self._findings.add(NOTE, "torn end", path, file_pos, what, show)
        else:
            bytes_after = f"behind the log's end at {begin} are bytes other than zeros (from {first} on)"
            what = f"{bytes_after}: a damaged last record, or remnants ({reason})"
            self._findings.add(WARNING, "behind the end", path, file_pos, what, f"{show} --hex")
