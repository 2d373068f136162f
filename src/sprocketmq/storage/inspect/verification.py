"""Checking every invariant of a store across all of its files, without changing one.

The log is read once, front to back; each window of its records is laid beside the queues and the key index. What these hold besides, what
the small files say, and what lies around is looked at when the log's end is known. Memory stays bounded: windows of the log, some
ranges a queue, one number a hash slot.

A broker may be running, or the files may be a copy taken while one was: then (``abort`` is there) a torn end of the log, queues that
are behind, and small files that are ahead are notes, not problems.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any

from sprocketmq.errors import StoreDamaged, StoreNotSupported
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.records import FIXED_OVERHEAD, MAGIC_BLANK
from sprocketmq.storage.checkpoint import FILE_BYTES as CHECKPOINT_BYTES
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.directory_checks import check_directory
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import REAL_FS, Entry, FileSystem
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Finding, Findings
from sprocketmq.storage.inspect.inspection import dissect, next_record
from sprocketmq.storage.inspect.overview import StoreDirectory
from sprocketmq.storage.log.segments import parse_segment_name, segment_name
from sprocketmq.storage.snapshot import FILE_NAME as DISPATCHED
from sprocketmq.storage.snapshot import Snapshot

if TYPE_CHECKING:
    from sprocketmq.storage.inspect.log_windows import Window
    from sprocketmq.storage.inspect.verify_index import IndexChecks
    from sprocketmq.storage.inspect.verify_queues import QueueChecks

Progress = Callable[[int, int], None]

_TWO_INTS = Struct(">ii")
_ZEROS = "there are zeros"


@dataclass
class VerifyReport:
    """What was found, the worst first. ``ok`` tells whether there is nothing but notes."""

    root: str
    findings: list[Finding] = field(default_factory=list)
    errors: int = 0
    warnings: int = 0
    notes: int = 0
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    queues: int = 0
    index_entries: int = 0
    log_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.errors and not self.warnings


def verify(root: str, *, fs: FileSystem = REAL_FS, progress: Progress | None = None, index: bool = True) -> VerifyReport:
    """Check a whole store and return what was found; ``progress`` gets bytes of the log done and in all.

    Without ``index`` the key index is left out. Raises NotAStoreFile when there is no store, OSError when something cannot be read.
    """
    return _Verification(StoreDirectory(root, fs), progress, index=index).run()


class _Verification:
    def __init__(self, store: StoreDirectory, progress: Progress | None, *, index: bool) -> None:
        self._store = store
        self._progress = progress
        self._with_index = index
        self._findings = Findings()
        # Apache's broker leaves an empty abort.bak behind; only abort itself says that a broker runs, or was killed.
        self._in_use = "abort" in store.entries
        self._report = VerifyReport(store.root)
        self._previous_ms = 0  # the store time of the record ahead
        self._last_ms = 0  # the latest of all
        self._last_physical = -1
        self._log_end = store.segments[0][0] if store.segments else 0
        self._refused = self._check_kind()
        self._snapshot = self._load_snapshot()
        self._boundary_met = False

    def _check_kind(self) -> str:
        """Report what keeps a broker from opening the store, and return the path that is at fault."""
        try:
            check_directory(self._store.fs, self._store.root)
        except StoreNotSupported as e:
            self._findings.add(ERROR, "not supported", e.path, None, e.reason, e.next_step)
            return e.path
        except (StoreDamaged, OSError):
            pass  # a log that is gone is found below, with more about it
        return ""

    def run(self) -> VerifyReport:
        from sprocketmq.storage.inspect.verify_index import IndexChecks
        from sprocketmq.storage.inspect.verify_queues import QueueChecks

        began = time.monotonic()
        store, report = self._store, self._report
        topics = store.config("topics.json").get("topicConfigTable")
        configured = {str(name): value for name, value in topics.items()} if isinstance(topics, dict) else None
        batch_topics = {e.name for e in store.files_in("batchconsumequeue") if e.is_dir} | {
            name for name, value in (configured or {}).items() if _queue_type(value) == "BatchCQ"
        }
        segments = self._check_names()
        deleted = self._snapshot.deleted if self._snapshot is not None else {}
        queues = QueueChecks(store, self._findings, batch_topics=frozenset(batch_topics), deleted=deleted, in_use=self._in_use)
        index = IndexChecks(store, self._findings, in_use=self._in_use) if self._with_index else None
        try:
            self._read_log(segments, queues, index)
            log_min = segments[0][0] if segments else 0
            if not self._refused.startswith(f"{store.root}/consumequeue"):  # else they are in a database
                queues.finish(log_min, self._log_end, frozenset(configured) if configured is not None else None)
            if index is not None:
                index.finish(self._log_end)
                report.index_entries = index.entries
            self._check_snapshot(queues)
            self._check_checkpoint()
            self._check_topics(configured)
            self._check_offsets(queues)
            self._check_leftovers()
            report.queues = sum(1 for queue in queues if queue.files)
        finally:
            queues.close()
            if index is not None:
                index.close()
        report.findings = self._findings.sorted()
        report.errors, report.warnings, report.notes = (self._findings.total(s) for s in (ERROR, WARNING, NOTE))
        report.log_start = log_min
        report.log_end = self._log_end
        report.log_bytes = max(self._log_end - log_min, 0)
        report.elapsed_s = time.monotonic() - began
        return report

    # --- the log ---

    def _check_names(self) -> list[tuple[int, Entry]]:
        """Check that the segments are one row of equally long files, and return them."""
        store, add = self._store, self._findings.add
        size = store.segment_bytes
        segments = list(store.segments)
        if not segments:
            checkpoint = Checkpoint.load(store.fs, f"{store.root}/checkpoint")
            if checkpoint.commitlog_timestamp_ms or (self._snapshot and self._snapshot.position):
                what = "the commit log has no files, but other files know of messages"
                add(
                    ERROR,
                    "log missing",
                    f"{store.root}/commitlog",
                    None,
                    what,
                    "put its files back (storePathCommitLog may have named another place)",
                )
            return []
        if segments[-1][0] + size > _MAX_POSITION:
            path = f"{store.root}/commitlog/{segments[-1][1].name}"
            add(ERROR, "log names", path, None, "no log is that long: the name is not a position in one")
            return []
        expected = segments[0][0]
        if size and expected % size:
            add(ERROR, "log names", self._segment(expected), None, f"its name is no multiple of the {size:,} bytes that segments have")
        for start, entry in segments:
            if start != expected:
                what = f"the segment is missing, the next one there is {entry.name}: its messages are lost"
                add(
                    ERROR,
                    "log missing",
                    self._segment(expected),
                    None,
                    what,
                    "put the file back from a copy; the store does not open without it",
                )
            if entry.size > size:
                add(ERROR, "log length", self._segment(start), size, f"the file has {entry.size:,} bytes where segments have {size:,}")
            elif entry.size < size:
                last = start == segments[-1][0]
                what = f"the file has {entry.size:,} bytes where segments have {size:,}"
                more = ": the next start lengthens it" if last else ": what was behind them is lost"
                add(
                    NOTE if last and self._in_use else WARNING if last else ERROR,
                    "log length",
                    self._segment(start),
                    entry.size,
                    what + more,
                )
            expected = start + size
        return segments

    def _segment(self, start: int) -> str:
        return f"{self._store.root}/commitlog/{segment_name(start)}"

    def _read_log(self, segments: list[tuple[int, Entry]], queues: "QueueChecks", index: "IndexChecks | None") -> None:
        # Stretches of zeros, which nothing was written to, are passed over: they count neither as done nor as to be done.
        total = sum(entry.size for _, entry in segments)
        done = 0
        gap: tuple[str, int, str] | None = None  # a stretch without records whose end is not known yet: path, log position, reason
        for start, entry in segments:
            path = self._segment(start)
            covered = start
            for at, end, window, problem in self._windows(path, start):
                covered = end
                if window is None and problem == _ZEROS:
                    total -= end - at
                else:
                    done += end - at
                if self._progress is not None:
                    self._progress(done, total)
                if window is None:
                    gap = gap or (path, at, problem)
                    continue
                if gap is not None and len(window):
                    self._report_damage(*gap, at, queues)
                    gap = None
                self._take(window, path, start, queues, index)
            total -= start + entry.size - covered  # a BLANK, or what is beyond a segment's length
        if self._progress is not None:
            self._progress(done, total)
        if gap is not None:
            self._report_tail(*gap, segments)

    def _windows(self, path: str, start: int) -> Iterator[tuple[int, int, "Window | None", str]]:
        """Yield ``(position, end, records, "")`` of a segment, and ``(position, end, None, reason)`` for what is no record."""
        from sprocketmq.storage.inspect.log_windows import MAX_RECORD_BYTES, WINDOW_BYTES, parse_window

        store = self._store
        file = store.fs.open(path, read_only=True)
        try:
            with FileView(store.fs, path) as view:
                size = store.segment_bytes
                at, want = 0, WINDOW_BYTES
                while at < min(view.size, size):
                    window, used = parse_window(file.pread(min(want, size - at), at), start + at)
                    if used:
                        yield start + at, start + at + used, window, ""
                        at, want = at + used, WINDOW_BYTES
                        continue
                    head = view.read(at, 8)
                    if len(head) == 8 and head[4:] == _BLANK_MAGIC and _TWO_INTS.unpack(head)[0] == size - at:
                        self._log_end = start + size
                        return
                    record = dissect(view, at, start, size - at, check_crc=want > WINDOW_BYTES)
                    if not record.problem and want < record.length <= MAX_RECORD_BYTES:
                        want = record.length
                        continue
                    reason = record.problem or f"the record has {record.length:,} bytes, more than any broker takes"
                    if not head.strip(b"\0"):
                        reason = _ZEROS if size - at >= FIXED_OVERHEAD else "the segment ends without a BLANK"
                    elif head[4:] == _BLANK_MAGIC:
                        reason = f"a BLANK says {_TWO_INTS.unpack(head)[0]} bytes are left, there are {size - at}"
                    elif not record.problem:
                        reason = dissect(view, at, start, size - at).problem or reason
                    begin, at, want = at, next_record(view, at, start, size, since_ms=self._previous_ms), WINDOW_BYTES
                    yield start + begin, start + at, None, reason
        finally:
            file.close()

    def _take(self, window: "Window", path: str, start: int, queues: "QueueChecks", index: "IndexChecks | None") -> None:
        times = window.times_ms
        back = times[1:] < times[:-1]
        if int(times[0]) < self._previous_ms or back.any():
            at = 0 if int(times[0]) < self._previous_ms else int(back.argmax()) + 1
            before = self._previous_ms if at == 0 else int(times[at - 1])
            physical = int(window.physicals[at])
            what = f"the store time {times[at]} of the record at {physical} is before that of the one ahead of it, {before}: lookups by time may miss"
            self._findings.add(WARNING, "store time", path, physical - start, what)
        self._previous_ms = int(times[-1])
        self._last_ms = max(self._last_ms, int(times.max()))
        self._last_physical = int(window.physicals[-1])
        self._log_end = window.end
        self._report.records += len(window)
        snapshot = self._snapshot
        if snapshot is not None and not self._boundary_met and window.physicals[0] <= snapshot.position <= window.end:
            self._boundary_met = snapshot.position == window.end or bool((window.physicals == snapshot.position).any())
        queues.take(window, path, start)
        if index is not None:
            index.take(window)

    def _report_damage(self, path: str, begin: int, reason: str, end: int, queues: "QueueChecks") -> None:
        start = parse_segment_name(path.rpartition("/")[2]) or 0
        what = f"{end - begin:,} bytes of the log, from {begin} to {end}, hold no valid record: {reason}"
        show = f"sprocketmq inspect {path} --offset {begin} --hex"
        self._findings.add(ERROR, "log damaged", path, begin - start, what, f"{show} shows it; a start skips it, what was in it is lost")
        queues.damaged(begin, end)

    def _report_tail(self, path: str, begin: int, reason: str, segments: list[tuple[int, Entry]]) -> None:
        """Say what lies behind the last record, when it is not just zeros."""
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
        at = begin - (parse_segment_name(path.rpartition("/")[2]) or 0)
        if self._in_use:
            what = f"the log ends at {begin} in a record that is not whole ({reason}): the next start cuts it off"
            self._findings.add(NOTE, "torn end", path, at, what, f"sprocketmq inspect {path} --offset {begin}")
        else:
            what = f"behind the log's end at {begin} are bytes other than zeros (from {first} on): a damaged last record, or remnants ({reason})"
            self._findings.add(WARNING, "behind the end", path, at, what, f"sprocketmq inspect {path} --offset {begin} --hex")

    # --- small files ---

    def _load_snapshot(self) -> Snapshot | None:
        data = self._store.small(DISPATCHED)
        if data is None:
            return None
        path = f"{self._store.root}/{DISPATCHED}"
        snapshot = Snapshot.decode(data)
        if snapshot is None and self._refused != path:
            what = "the file is damaged: the next start reads the whole log"
            self._findings.add(WARNING, "snapshot", path, 0, what, self._repair())
        return snapshot

    def _repair(self, what: str = "") -> str:
        return f"sprocketmq rebuild {self._store.root}" + (f" --only {what}" if what else "")

    def _check_snapshot(self, queues: "QueueChecks") -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        path = f"{self._store.root}/{DISPATCHED}"
        severity = NOTE if self._in_use else ERROR
        if snapshot.position > self._log_end:
            what = f"it knows the log up to {snapshot.position}, but the log ends at {self._log_end}"
            self._findings.add(
                severity, "snapshot ahead", path, 8, what, "" if self._in_use else "what is missing at the log's end is lost"
            )
            return
        if snapshot.position and snapshot.position >= self._report.log_start and self._report.records and not self._boundary_met:
            boundary = snapshot.position % max(self._store.segment_bytes, 1) == 0
            if not boundary and snapshot.position > (self._store.segments[0][0] if self._store.segments else 0):
                what = f"its position {snapshot.position} is not where a record begins: the next start reads the whole log"
                self._findings.add(WARNING, "snapshot", path, 8, what, self._repair())
        for state in snapshot.queues:
            queue = queues.get(state.topic, state.queue_id)
            if state.next > state.min_offset and (queue is None or (queue.next is not None and state.next > queue.next)):
                end = 0 if queue is None else queue.next
                what = f"it has queue {state.topic}/{state.queue_id} up to offset {state.next}, the log up to {end}"
                self._findings.add(severity, "snapshot ahead", path, None, what, self._repair())

    def _check_checkpoint(self) -> None:
        path = f"{self._store.root}/checkpoint"
        data = self._store.small("checkpoint", 1 << 20)
        if data is None:
            return
        if len(data) < 48:
            what = f"the file has {len(data)} bytes, a checkpoint has {CHECKPOINT_BYTES}: it counts as missing"
            self._findings.add(WARNING, "checkpoint", path, None, what, self._repair("checkpoint"))
            return
        values = Struct(">6q").unpack_from(data)
        severity = NOTE if self._in_use else WARNING
        if min(values) < 0:
            self._findings.add(
                WARNING, "checkpoint", path, None, "a field is negative: the file counts as missing", self._repair("checkpoint")
            )
            return
        limits = (
            *(("the log's store time", 0, self._last_ms), ("the queues' store time", 8, self._last_ms)),
            *(("the index's store time", 16, self._last_ms), ("the confirmed place", 32, self._log_end)),
            ("the queues' place", 40, self._log_end),
        )
        for name, at, limit in limits:
            if values[at // 8] > limit and self._report.records:
                what = f"{name} {values[at // 8]} is ahead of the log's {limit}"
                self._findings.add(severity, "checkpoint ahead", path, at, what, "" if self._in_use else self._repair("checkpoint"))

    def _check_topics(self, configured: dict[str, Any] | None) -> None:
        """Compare topics.json with the directories of queues: Apache's broker refuses to start when they do not agree on a topic's kind."""
        path = f"{self._store.root}/config/topics.json"
        if configured is None:
            if any(e.name.startswith("topics.json") for e in self._store.files_in("config")):
                self._findings.add(ERROR, "topics", path, 0, "neither it nor its .bak can be read", f"sprocketmq inspect {path}")
            return
        for kind, wanted in (("consumequeue", "SimpleCQ"), ("batchconsumequeue", "BatchCQ")):
            for entry in self._store.files_in(kind):
                if not entry.is_dir:
                    continue
                directory = f"{self._store.root}/{kind}/{entry.name}"
                topic = configured.get(entry.name)
                if topic is None:
                    what = f"topic {entry.name!r} has queues, but topics.json does not have it"
                    self._findings.add(WARNING, "unknown topic", directory, None, what, "create the topic again, or remove the directory")
                elif _queue_type(topic) != wanted:
                    what = f"topics.json says {_queue_type(topic)} for topic {entry.name!r}, these are queues of the kind {wanted}"
                    self._findings.add(ERROR, "queue kind", directory, None, what, self._repair("consumequeue,batchconsumequeue"))

    def _check_offsets(self, queues: "QueueChecks") -> None:
        """Compare what consumer groups and the delay service have done with what queues have."""
        path = f"{self._store.root}/config/consumerOffset.json"
        table = self._store.config("consumerOffset.json").get("offsetTable")
        for key, offsets in table.items() if isinstance(table, dict) else ():
            topic, _, group = str(key).partition("@")
            self._compare_offsets(path, f"group {group!r}", queues, ((topic, queue, offset) for queue, offset in _pairs(offsets)))
        path = f"{self._store.root}/config/delayOffset.json"
        levels = self._store.config("delayOffset.json").get("offsetTable")
        parked = ((SCHEDULE_TOPIC, level - 1, offset) for level, offset in _pairs(levels))
        self._compare_offsets(path, "delayed delivery", queues, parked)

    def _compare_offsets(self, path: str, who: str, queues: "QueueChecks", offsets: Iterator[tuple[str, int, int]]) -> None:
        for topic, queue_id, offset in offsets:
            if offset <= 0:
                if offset < 0:
                    self._findings.add(
                        WARNING, "offset", path, None, f"{who} is at offset {offset} of {topic}/{queue_id}, which is impossible"
                    )
                continue
            queue = queues.get(topic, queue_id)
            end = queue.next if queue is not None else None
            if queue is not None and end is None:
                continue  # all its messages have expired; its files say where it ends, and they were looked at
            if end is None or offset > end:
                has = "has no message in the log" if end is None else f"ends at {end}"
                expired = end is None and self._store.segments and self._store.segments[0][0] > 0
                what = f"{who} is at offset {offset} of queue {topic}/{queue_id}, which {has}"
                self._findings.add(
                    NOTE if self._in_use or expired else WARNING, "offset ahead", path, None, what, "reset the group's offset"
                )

    def _check_leftovers(self) -> None:
        store, add = self._store, self._findings.add
        for entry in store.entries.values():
            if entry.name.endswith(".tmp") and not entry.is_dir:
                add(NOTE, "leftover", f"{store.root}/{entry.name}", None, "the rest of an interrupted save; it can be removed")
        for entry in store.files_in("config"):
            if entry.name.endswith(".tmp") and not entry.is_dir:
                add(NOTE, "leftover", f"{store.root}/config/{entry.name}", None, "the rest of an interrupted save; it can be removed")
        if store.files_in("rebuilding"):
            add(NOTE, "leftover", f"{store.root}/rebuilding", None, "the rest of an interrupted rebuild; it can be removed")
        if any(entry.name.endswith(".sst") for entry in store.files_in("rocksdbstore")):
            what = "a database of Apache's broker with data in it (transactions, timers): only that broker reads it"
            add(NOTE, "rocksdb", f"{store.root}/rocksdbstore", None, what)
        for entry in store.files_in("commitlog"):
            if parse_segment_name(entry.name) is None or entry.is_dir:
                add(NOTE, "leftover", f"{store.root}/commitlog/{entry.name}", None, "no segment has such a name")
        if store.files_in("damaged"):
            what = "segments that a recovery put aside because no record was in them; remove them when you do not need them"
            add(NOTE, "put aside", f"{store.root}/damaged", None, what, f"sprocketmq inspect {store.root}/damaged/FILE")
        if self._in_use:
            abort = store.small("abort", 64) or b""
            who = abort.decode("ascii", "replace").strip() or "unknown"
            add(
                NOTE,
                "in use",
                f"{store.root}/abort",
                None,
                f"a broker (process {who}) uses the store, was killed, or did when it was copied",
            )


_MAX_POSITION = (1 << 63) - 1
_BLANK_MAGIC = MAGIC_BLANK.to_bytes(4, "big", signed=True)


def _queue_type(topic: Any) -> str:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    kind = attributes.get("queue.type") if isinstance(attributes, dict) else None
    return "BatchCQ" if kind == "BatchCQ" else "SimpleCQ"


def _pairs(table: Any) -> Iterator[tuple[int, int]]:
    """Yield the integer pairs of a map whose keys may be quoted; anything else in it is passed over."""
    for key, value in table.items() if isinstance(table, dict) else ():
        text = str(key)
        if text.isascii() and text.isdigit() and len(text) < 10 and type(value) is int:
            yield int(text), value
