"""An overview of a store: what is in its directory, and where its log and its queues begin and end."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct

from sprocketmq.errors import StoreDamaged, StoreNotSupported
from sprocketmq.protocol.layout import BATCH_UNIT, FILLER_SIZE, QUEUE_UNIT
from sprocketmq.storage.directory_checks import check_directory
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.foreign_timers import check_timer_log
from sprocketmq.storage.inspect.record_items import dissect
from sprocketmq.storage.inspect.segment_items import log_items
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.log.segments import segment_entries
from sprocketmq.storage.snapshot import FILE_NAME as DISPATCHED


@dataclass(frozen=True)
class QueueSummary:
    """One queue according to its files; a running broker may have more. Times are store times in ms, 0 when unknown."""

    topic: str
    queue_id: int
    kind: str
    min_offset: int
    max_offset: int
    files: int
    bytes: int
    first_time_ms: int
    last_time_ms: int


@dataclass(frozen=True)
class Overview:
    """The content of a store's directory. ``log_end`` is where the last record ends; ``files`` are the small files with their sizes.

    ``log_end_known`` is False when the log continues after ``log_end``.
    """

    root: str
    written_by: str
    state: str
    log_start: int
    log_end: int
    log_end_known: bool
    segments: int
    segment_bytes: int
    log_bytes: int
    queues: tuple[QueueSummary, ...]
    index_files: int
    index_bytes: int
    files: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


def overview_of(store: StoreDirectory) -> Overview:
    """Return an overview of a store, from the names of its files, the ends of its queues, and the log after the last unit."""
    return _Summary(store).overview()


class _Summary:
    """The making of one overview. The segment that was read last stays open."""

    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self._log: FileView | None = None
        self._log_start = 0

    def overview(self) -> Overview:
        store = self._store
        try:
            queues = [self._plain(*queue) for queue in store.queues("consumequeue")]
            queues += [self._batch(*queue) for queue in store.queues("batchconsumequeue")]
            end, known = self._log_end([q[1] for q in queues])
        finally:
            if self._log is not None:
                self._log.close()
        data = store.small(DISPATCHED)
        abort = store.small("abort", 64)
        pid = f" (process {abort.decode('ascii', 'replace')})" if abort else ""
        index = store.index_files()
        small = [(e.name, e.size) for e in store.entries.values() if not e.is_dir]
        small += [(f"config/{e.name}", e.size) for e in store.files_in("config") if not e.is_dir]
        return Overview(
            root=store.root,
            written_by="SprocketMQ" if data is not None else "Apache RocketMQ, or SprocketMQ before its first flush",
            state="stopped in order" if abort is None else f"in use, or its broker was killed{pid}",
            log_start=store.segments[0][0] if store.segments else 0,
            log_end=end,
            log_end_known=known,
            segments=len(store.segments),
            segment_bytes=store.segment_bytes,
            log_bytes=sum(e.size for _, e in store.segments),
            queues=tuple(q[0] for q in queues),
            index_files=len(index),
            index_bytes=sum(e.size for e in index),
            files=tuple(small),
            notes=tuple(_foreign_notes(store)),
        )

    def _plain(self, topic: str, queue_id: int, directory: str) -> tuple[QueueSummary, int]:
        files = segment_entries(self._store.fs.list(directory))
        unit = QUEUE_UNIT.size
        end = log_end = first = last = 0
        low = None
        log_min = self._store.segments[0][0] if self._store.segments else 0
        for start, entry in reversed(files):
            with FileView(self._store.fs, f"{directory}/{entry.name}") as view:
                valid = _leading(view, QUEUE_UNIT, view.size // unit, lambda found: found[1] > 0)
                if valid and not end:
                    end = start // unit + valid
                    last, size, _ = QUEUE_UNIT.unpack(view.read((valid - 1) * unit, unit))
                    log_end = last + size if size != FILLER_SIZE else 0
                if not valid:
                    continue
                gone = _leading(view, QUEUE_UNIT, valid, lambda found: found[0] < log_min or found[1] == FILLER_SIZE)
                if gone < valid:
                    low = start // unit + gone
                    first = QUEUE_UNIT.unpack(view.read(gone * unit, unit))[0]
                if gone:
                    break
        bottom = end if low is None else low
        times = (self._time(first), self._time(last)) if bottom < end else (0, 0)
        summary = QueueSummary(topic, queue_id, "SimpleCQ", bottom, end, len(files), sum(e.size for _, e in files), *times)
        return summary, log_end

    def _batch(self, topic: str, queue_id: int, directory: str) -> tuple[QueueSummary, int]:
        files = segment_entries(self._store.fs.list(directory))
        unit = BATCH_UNIT.size
        low = high = first_ms = last_ms = log_end = 0
        found = False
        log_min = self._store.segments[0][0] if self._store.segments else 0
        for _, entry in files:
            with FileView(self._store.fs, f"{directory}/{entry.name}") as view:
                valid = _leading(view, BATCH_UNIT, view.size // unit, lambda found: found[1] > 0)
                if not valid:
                    continue
                gone = _leading(view, BATCH_UNIT, valid, lambda found: found[0] < log_min)
                last = BATCH_UNIT.unpack(view.read((valid - 1) * unit, unit))
                high, last_ms, log_end = last[4] + last[5], last[3], last[0] + last[1]
                if gone < valid and not found:
                    found = True
                    first = BATCH_UNIT.unpack(view.read(gone * unit, unit))
                    low, first_ms = first[4], first[3]
        total = sum(e.size for _, e in files)
        return QueueSummary(topic, queue_id, "BatchCQ", low if found else high, high, len(files), total, first_ms, last_ms), log_end

    def _time(self, log_offset: int) -> int:
        """Return the store time of the record at a log offset, 0 when no record is there."""
        view = self._segment(log_offset)
        if view is None:
            return 0
        record = dissect(view, log_offset - self._log_start, self._log_start, view.size, check_crc=False)
        return record.get("store_timestamp_ms") or 0 if not record.problem else 0

    def _segment(self, log_offset: int) -> FileView | None:
        found = self._store.segment_at(log_offset)
        if found is None:
            return None
        if self._log is None or self._log_start != found[0]:
            if self._log is not None:
                self._log.close()
            self._log = FileView(self._store.fs, f"{self._store.root}/commitlog/{found[1].name}")
            self._log_start = found[0]
        return self._log

    def _log_end(self, candidates: list[int]) -> tuple[int, bool]:
        """Return the end of the log's records and whether it is known: at most 64 MiB are read after the last unit."""
        segments = self._store.segments
        low = segments[0][0] if segments else 0
        high = segments[-1][0] + self._store.segment_bytes if segments else 0
        end = max((c for c in candidates if low <= c < high), default=low)
        stop = end + (64 << 20)
        before = -1
        while before < end and (view := self._segment(end)) is not None:
            before = end
            for item in log_items(view, self._log_start, segment_bytes=self._store.segment_bytes, start=end - self._log_start):
                if item.kind == "blank":
                    end = self._log_start + self._store.segment_bytes
                elif item.kind == "record":
                    end = item.number + item.length
                if item.kind in ("unwritten", "damaged"):
                    return end, True
                if end >= stop:
                    return end, False
        return end, True


def _leading(view: FileView, layout: Struct, count: int, test: Callable[[tuple[int, ...]], bool]) -> int:
    """Return how many of the first ``count`` units of a file satisfy ``test``, which must hold for leading units only."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if test(layout.unpack(view.read(middle * layout.size, layout.size))):
            low = middle + 1
        else:
            high = middle
    return low


def _foreign_notes(store: StoreDirectory) -> Iterator[str]:
    with contextlib.suppress(OSError):
        try:
            check_directory(store.fs, store.root)
            check_timer_log(store.fs, store.root)
        except (StoreDamaged, StoreNotSupported) as e:
            yield f"a broker does not open it: {e}"
    for name, what in (
        ("consumequeue_ext", "filter data of Apache's broker (enableConsumeQueueExt)"),
        ("timerwheel", "a timer wheel of Apache's broker (timerWheelEnable)"),
        ("timerlog", "a timer log of Apache's broker (timerWheelEnable)"),
        ("compaction", "compacted topics of Apache's broker"),
        ("rocksdbstore", "a RocksDB database of Apache's broker"),
        ("damaged", "segments that a recovery put aside because no record was in them"),
    ):
        if name in store.entries and (not store.entries[name].is_dir or store.files_in(name)):
            yield f"{name}: {what}"
