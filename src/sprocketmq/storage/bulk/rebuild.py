"""Rebuilding derived files from the commit log: queues, batch queues, key index, checkpoint; in place or in another directory.

The new files are created beside the old ones and replace them when all are complete and on disk. An interrupted rebuild changes nothing
before that; after it, the next start derives what is missing. The commit log is only read. Stores written by Apache's
broker can be rebuilt, and that broker accepts the result: files keep the old sizes, and the checkpoint says that all is on disk.
"""

from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, SprocketError, StoreDamaged, StoreLocked, StoreNotWritable
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.layout import INT32
from sprocketmq.storage.bulk.pipeline import LogPipeline, workers_for
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.directory_checks import check_directory
from sprocketmq.storage.fs import REAL_FS, FileSystem, RealFileSystem, data_places
from sprocketmq.storage.lock import DirectoryLock
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import DamagedRange
from sprocketmq.storage.log.segments import check_row, segment_entries, segment_size_of
from sprocketmq.storage.snapshot import FILE_NAME as SNAPSHOT_NAME
from sprocketmq.storage.snapshot import QueueState, Snapshot

if TYPE_CHECKING:
    from sprocketmq.storage.index.index_state import IndexState
    from sprocketmq.storage.index.key_index import KeyIndex
    from sprocketmq.storage.queues.queue_table import QueueTable

QUEUES = "consumequeue"
BATCH_QUEUES = "batchconsumequeue"
INDEX = "index"
CHECKPOINT = "checkpoint"
DERIVED = (QUEUES, BATCH_QUEUES, INDEX, CHECKPOINT)
WORK_DIRECTORY = "rebuilding"
# The command line option for another target directory.
TARGET_OPTION = "--to"

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The plan of a rebuild: ``config.root`` is the directory of the new files, its file sizes are those of the old files."""

    source: str
    what: tuple[str, ...]
    config: StoreConfig
    batch_topics: frozenset[str]
    deleted: dict[str, int]

    @property
    def queues(self) -> bool:
        """Whether queues of any kind are wanted."""
        return QUEUES in self.what or BATCH_QUEUES in self.what

    @property
    def index(self) -> bool:
        """Whether the key index is wanted."""
        return INDEX in self.what

    def new_table(self, log: CommitLog, fs: FileSystem) -> "QueueTable":
        """Return an empty queue table for the new files."""
        from sprocketmq.storage.queues.queue_table import QueueTable

        table = QueueTable(fs, log, self.config)
        table.batch_topics = self.batch_topics
        table.deleted = dict(self.deleted)
        return table

    def new_index(self, log_begin: int, fs: FileSystem, clock: Clock) -> "KeyIndex":
        """Return an empty key index for the new files, for the log from ``log_begin`` on. Raises OSError."""
        from sprocketmq.storage.index.key_index import KeyIndex

        slots, entries = self.config.max_hash_slots, self.config.max_index_entries
        index = KeyIndex(fs, f"{self.config.root}/{INDEX}", hash_slots=slots, entries_per_file=entries, clock=clock)
        index.load(log_min=log_begin, log_end=log_begin, state=None)
        return index


@dataclass
class Made:
    """The files created: the states of all queues and of the index on disk, and counts for the log up to ``log_end``."""

    log_end: int = 0
    records: int = 0
    last_log_offset: int = 0
    last_ms: int = 0
    states: "tuple[QueueState, ...]" = ()
    index: "IndexState | None" = None
    index_entries: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    workers: int = 0
    lost_workers: int = 0


# Creates the new files of a plan from a log and syncs them to disk. Raises OSError, StoreNotWritable.
Maker = Callable[[Plan, CommitLog], Made]


@dataclass
class RebuildReport:
    """The result of a rebuild."""

    source: str
    target: str
    what: tuple[str, ...]
    log_begin: int = 0
    log_end: int = 0
    records: int = 0
    queues: int = 0
    kept_queues: int = 0  # of these, the queues whose messages have all left the log: only their last files show where they end
    index_entries: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    workers: int = 0
    lost_workers: int = 0
    elapsed_ms: float = 0.0


def rebuild(
    source: Path,
    target: Path | None = None,
    *,
    what: Collection[str] = DERIVED,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
    config: StoreConfig | None = None,
    maker: Maker | None = None,
    fs: FileSystem = REAL_FS,
    clock: Clock = SYSTEM_CLOCK,
) -> RebuildReport:
    """Rebuild the derived files ``what`` of the store ``source`` from its commit log, in place or under ``target``.

    In place it needs exclusive access (StoreLocked while a broker runs). With a ``target`` the source is only read, even while a broker
    runs on it; the result reflects the log at that moment. ``config`` gives file sizes if no old file determines them. ``workers``
    processes read the log, this one included (0: one per core, at most 4). ``progress`` gets approximate bytes read and their total. A
    ``maker`` creates the files instead of these processes.

    Raises ConfigError for unknown names and a target that has such files, StoreDamaged when there is no commit log or a file in its
    middle is missing, StoreNotSupported in place of what a broker would not open, StoreNotWritable when the disk refuses.
    """
    unknown = sorted(set(what) - set(DERIVED))
    if unknown or not what:
        raise ConfigError(f"derived files are {', '.join(DERIVED)}; not {', '.join(unknown) or 'none of them'}")
    report = RebuildReport(str(source), str(target or source), tuple(name for name in DERIVED if name in what))
    began = clock.monotonic()
    log = open_log(fs, str(source))
    lock: DirectoryLock | None = None
    try:
        if target is None:
            check_directory(fs, str(source))
            lock = lock_in_place(fs, str(source))
        else:
            check_target(target, report.what, fs)
        if maker is None:
            maker = _Here(fs, clock, workers_for(workers), progress)
        _Rebuild(fs, log, report, config or StoreConfig(source), in_place=target is None).run(maker)
    except OSError as e:
        raise StoreNotWritable(report.target, f"{e.filename or ''} {e.strerror or e}".strip(), option=TARGET_OPTION) from e
    finally:
        log.close()
        if lock is not None:
            lock.release()
    report.elapsed_ms = (clock.monotonic() - began) * 1000
    return report


def lock_in_place(fs: FileSystem, root: str) -> DirectoryLock:
    """Take the store at ``root`` for a rebuild in place. Raises StoreLocked while another process has it."""
    try:
        return DirectoryLock(fs, root)
    except StoreLocked as e:
        raise StoreLocked(e.path, e.pid, option=TARGET_OPTION) from None


def check_target(target: Path, what: Collection[str], fs: FileSystem = REAL_FS) -> None:
    """Raise ConfigError when a directory for new files has some of them already."""
    for name in what:
        if fs.exists(f"{target}/{name}"):
            raise ConfigError(f"{target} already has {name}: choose another directory for the new files")


def open_log(fs: FileSystem, root: str) -> CommitLog:
    """Open the segments of a store's log without the right to change them. Raises StoreDamaged when a file is missing, OSError."""
    directory = f"{root}/commitlog"
    found = [(start, entry) for start, entry in segment_entries(fs.list(directory)) if entry.size]
    if not found:
        raise StoreDamaged(directory, 0, "there is no commit log; is this the directory of a store?")
    size = segment_size_of(found) or 0
    log = CommitLog(fs, directory, size, preallocate=False)
    try:
        check_row(directory, found, size)
        for start, entry in found:
            log.segments.append(Segment(fs.open(f"{directory}/{entry.name}", read_only=True), start, entry.size))
    except (OSError, SprocketError):
        log.close()
        raise
    log.start_at(log.min_offset)
    return log


class _Here:
    """Makes the files in this process, which other processes help to read the log."""

    def __init__(self, fs: FileSystem, clock: Clock, workers: int, progress: Callable[[int, int], None] | None) -> None:
        self._fs = fs
        self._clock = clock
        self._workers = workers
        self._progress = progress

    def __call__(self, plan: Plan, log: CommitLog) -> Made:
        table = plan.new_table(log, self._fs)
        index = plan.new_index(log.min_offset, self._fs, self._clock) if plan.index else None
        pipeline = LogPipeline(
            log,
            log.min_offset,
            workers=self._workers,
            resync=True,
            batch_topics=plan.batch_topics,
            keys=index is not None,
            progress=self._progress,
        )
        made = Made(workers=self._workers)
        try:
            with closing(pipeline.chunks()) as chunks:
                for chunk in chunks:
                    made.records += chunk.records
                    made.last_log_offset, made.last_ms = chunk.last_log_offset, max(made.last_ms, chunk.last_time_ms)
                    if plan.queues:
                        for queue_chunk in chunk.queue_chunks:
                            table.take_chunk(queue_chunk)
                    if index is not None and chunk.keys is not None:
                        made.index_entries += len(chunk.keys.hashes)
                        index.add_entries(chunk.keys, chunk.end)
            made.log_end, made.damaged, made.lost_workers = pipeline.end, pipeline.damaged, pipeline.lost_workers
            if plan.queues:
                table.settle()
                made.states = table.sync()
            if index is not None:
                made.index = index.sync()
                if index.failure is not None:
                    raise StoreNotWritable(str(plan.config.root), index.failure, option=TARGET_OPTION)
            return made
        finally:
            table.pool.forget()
            if index is not None:
                index.close()


class _Rebuild:
    """One rebuild. New files are created in ``work``; in place they then replace the old ones."""

    def __init__(self, fs: FileSystem, log: CommitLog, report: RebuildReport, config: StoreConfig, *, in_place: bool) -> None:
        from sprocketmq.storage.queues.queue_table import QueueTable

        self._fs = fs
        self._log = log
        self._report = report
        self._in_place = in_place
        self._source = report.source
        self._work = f"{report.target}/{WORK_DIRECTORY}"
        self._config = replace(config, root=Path(self._source))
        self._old = QueueTable(fs, log, self._config)
        self._old.load(clean=not fs.exists(f"{self._source}/abort"))
        self._snapshot = Snapshot.load(fs, self._source)

    def run(self, maker: Maker) -> None:
        fs, report, plan = self._fs, self._report, self._plan()
        fs.remove_tree(self._work)
        fs.make_dirs(self._work)
        try:
            made = maker(plan, self._log)
            report.records, report.index_entries, report.damaged = made.records, made.index_entries, made.damaged
            report.log_begin, report.log_end = self._log.min_offset, made.log_end
            report.workers, report.lost_workers = made.workers, made.lost_workers
            if plan.queues:
                self._keep_expired(made)
            if CHECKPOINT in report.what:
                self._checkpoint(made).save(fs, f"{self._work}/{CHECKPOINT}")
            self._put_in_place(made)
        finally:
            self._old.pool.forget()
            with suppress(OSError):  # the next rebuild removes what is left
                fs.remove_tree(self._work)

    def _plan(self) -> Plan:
        sizes = self._old.file_bytes
        slots, entries = self._index_geometry()
        config = replace(
            self._config,
            root=Path(self._work),
            consumequeue_segment_bytes=sizes[QUEUES],
            batchqueue_segment_bytes=sizes[BATCH_QUEUES],
            max_hash_slots=slots,
            max_index_entries=entries,
        )
        deleted = self._snapshot.deleted if self._snapshot is not None else {}
        return Plan(self._source, self._report.what, config, self._old.batch_topics, dict(deleted))

    def _keep_expired(self, made: Made) -> None:
        """Add the queues that only the old files have to the new ones, and copy their states to the others."""
        fs, report, old = self._fs, self._report, self._old
        new = {(state.topic, state.queue_id) for state in made.states}
        for kind in (QUEUES, BATCH_QUEUES):
            fs.make_dirs(f"{self._work}/{kind}")
        for kind, topic, queue_id in old.on_disk:
            right_kind = (kind == BATCH_QUEUES) == (topic in old.batch_topics)
            if right_kind and (topic, queue_id) not in new and old.keep_expired(topic, queue_id):
                self._copy(f"{self._source}/{kind}/{topic}/{queue_id}", f"{self._work}/{kind}/{topic}/{queue_id}")
                if self._in_place:
                    made.states += (old.queues[topic, queue_id].sync(),)
                report.kept_queues += 1
        report.queues = len(new) + report.kept_queues

    def _index_geometry(self) -> tuple[int, int]:
        """Return hash slots and entries of an index file: from the snapshot or an old file, else as configured."""
        from sprocketmq.storage.file_view import FileView
        from sprocketmq.storage.index.index_state import IndexState
        from sprocketmq.storage.index.slot_count import shape_of

        state = IndexState.decode(self._snapshot.index) if self._snapshot is not None else None
        if state is not None:
            return state.hash_slots, state.entries_per_file
        directory = f"{self._source}/{INDEX}"
        for entry in self._fs.list(directory):
            if not entry.is_dir:
                with FileView(self._fs, f"{directory}/{entry.name}") as view:
                    shape = shape_of(view)
                if shape is not None:
                    return shape.hash_slots, shape.entries
        return self._config.max_hash_slots, self._config.max_index_entries

    def _checkpoint(self, made: Made) -> Checkpoint:
        """Return the old checkpoint with the fields of what was rebuilt; Apache's broker begins its recovery after it."""
        checkpoint = Checkpoint.load(self._fs, f"{self._source}/{CHECKPOINT}")
        checkpoint.commitlog_timestamp_ms = made.last_ms
        if {QUEUES, BATCH_QUEUES} <= set(self._report.what):
            checkpoint.queues_timestamp_ms = made.last_ms
            checkpoint.queues_physical_offset = made.last_log_offset
        if INDEX in self._report.what:
            checkpoint.index_timestamp_ms = made.last_ms
        checkpoint.confirm_offset = made.last_log_offset
        return checkpoint

    def _put_in_place(self, made: Made) -> None:
        """Replace the old files by the new ones, and the snapshot with them."""
        fs, root, what = self._fs, self._report.target, self._report.what
        note = self._in_place and set(what) != {CHECKPOINT}
        if note and self._snapshot is not None:
            # While files are exchanged the snapshot would be wrong; without it a start derives everything again.
            fs.unlink(f"{root}/{SNAPSHOT_NAME}")
            fs.fsync_dir(root)
        for name in what:
            new, path = f"{self._work}/{name}", f"{root}/{name}"
            if name != CHECKPOINT and fs.exists(path):
                if isinstance(fs, RealFileSystem) and fs.exchange(new, path):
                    continue  # atomic: one of the two always exists
                fs.rename(path, f"{self._work}/old-{name}")
            fs.rename(new, path)
        fs.fsync_dir(root)
        snapshot = self._new_snapshot(made)
        if note and snapshot is not None:
            snapshot.save(fs, root)

    def _new_snapshot(self, made: Made) -> Snapshot | None:
        old, index = self._snapshot, made.index
        if {QUEUES, BATCH_QUEUES} <= set(self._report.what):
            kept = old.index if old is not None else b""
            deleted = old.deleted if old is not None else {}
            return Snapshot(made.log_end, self._last_record(made), made.states, deleted, index.encode() if index is not None else kept)
        if old is None or index is None:
            return old
        return replace(old, index=index.encode())

    def _last_record(self, made: Made) -> tuple[int, int, int]:
        segment = self._log.find(made.last_log_offset)
        if not made.records or segment is None:
            return (0, 0, 0)
        file_pos = made.last_log_offset - segment.start
        size = INT32.unpack_from(segment.view, file_pos)[0]
        return made.last_log_offset, size, crc32(segment.view[file_pos : file_pos + size])

    def _copy(self, old: str, new: str) -> None:
        fs = self._fs
        fs.make_dirs(new)
        for entry in fs.list(old):
            if entry.is_dir:
                continue
            source = fs.open(f"{old}/{entry.name}", read_only=True)
            try:
                copy = fs.open(f"{new}/{entry.name}", create=True)
                try:
                    copy.truncate(entry.size)
                    for file_pos in data_places(source, 0, entry.size, _COPY_BYTES):
                        copy.pwrite(source.pread(_COPY_BYTES, file_pos), file_pos)
                    copy.fdatasync()
                finally:
                    copy.close()
            finally:
                source.close()
        fs.fsync_dir(new)
