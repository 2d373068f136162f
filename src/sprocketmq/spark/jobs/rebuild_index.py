"""Rebuild ConsumeQueues, BatchConsumeQueues and the key index of a store from its commit log, with Spark tasks on many machines.

::

    commit log    |   split 0   |   split 1   |   split 2   |  ...        1. tasks parse splits and write the result to a spool beside
                         |             |             |                       the store's files
    spool          [ chunks ]    [ chunks ]    [ chunks ]                 2. the driver orders the chunks and finds out which are valid,
                         |             |             |                       what is damage, and where the log ends
                   group 0 of queues, group 1, ..., index file 0, 1, ...  3. tasks write files beside the old ones and check them
                                       |                                     against the log
    store          consumequeue  batchconsumequeue  index  checkpoint     4. the driver puts them in the place of the old ones

Only small results are sent to the driver. The files equal those that ``sprocketmq rebuild`` makes of the same log byte for byte, except
for the names of index files, which are times.
"""

import os
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import ConfigError, FatalError
from sprocketmq.spark.jobs.progress import JobProgress, Report
from sprocketmq.spark.jobs.rebuild_tasks import (
    MARK,
    SPOOL,
    BuildTask,
    BuiltFiles,
    SpooledAnswer,
    WorkDirectory,
    build_files,
    piece_bytes,
    spool_split,
)
from sprocketmq.spark.jobs.tasks import StoreNotShared, results_or_raise, run_tasks, tasks_at_a_time
from sprocketmq.storage.bulk.rebuild import BATCH_QUEUES, DERIVED, INDEX, QUEUES, Made, Plan, check_target, lock_in_place, open_log, rebuild
from sprocketmq.storage.bulk.splits import cut_splits, split_bytes_for
from sprocketmq.storage.bulk.stitching import Answer, LogOrder
from sprocketmq.storage.directory_checks import check_directory
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import data_end
from sprocketmq.storage.store import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sprocketmq.storage.bulk.spool import SpooledChunk

__all__ = ["RebuildIndexSummary", "RebuildUnconfirmed", "StoreNotShared", "check_request", "rebuild_index"]

# Groups of queues, one task each: several for each concurrent task, so that all end at about the same time.
_GROUPS = range(8, 65)


@dataclass(frozen=True)
class RebuildIndexSummary:
    """The result of a rebuild. ``units`` are those in queues, each confirmed by its record; ``damaged`` are (file, begin, end).

    ``left_out`` counts records without a unit: of topics deleted since, with queue offsets that were given again later, or with impossible
    ones.
    """

    store: str
    target: str
    what: tuple[str, ...]
    log_begin: int
    log_end: int
    records: int
    queues: int
    kept_queues: int
    units: int
    left_out: int
    index_entries: int
    index_files: int
    damaged: tuple[tuple[str, int, int], ...]
    splits: int
    tasks_at_a_time: int
    elapsed_s: float

    def rows(self) -> list[tuple[str, str]]:
        """Return label and value for each line of the summary table."""
        log_bytes = self.log_end - self.log_begin
        rate = f"{self.records / self.elapsed_s:,.0f} messages/s, {log_bytes / self.elapsed_s / 1e6:,.0f} MB/s" if self.elapsed_s else ""
        rows = [
            ("made", f"{', '.join(self.what)} in {self.target}"),
            ("read", f"{self.records:,} records, {log_bytes:,} bytes of log in {self.splits:,} splits, {self.tasks_at_a_time} at a time"),
            ("queues", f"{self.queues:,} with {self.units:,} units, each confirmed by its record"),
            ("index", f"{self.index_entries:,} entries in {self.index_files:,} file{'' if self.index_files == 1 else 's'}"),
            ("took", f"{self.elapsed_s:.1f} s: {rate}"),
        ]
        if self.kept_queues:
            rows.append(("kept", f"{self.kept_queues:,} queues whose messages have all left the log"))
        if self.left_out:
            rows.append(("left out", f"{self.left_out:,} records of topics deleted since, or of offsets given out again"))
        rows += [("damaged, and its messages lost", f"{path}, log offsets {begin} to {end}") for path, begin, end in self.damaged]
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return asdict(self)


def rebuild_index(
    spark: "SparkSession",
    store: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    what: Collection[str] = DERIVED,
    split_bytes: int = 0,
    config: StoreConfig | None = None,
    progress: Report | None = None,
) -> RebuildIndexSummary:
    """Rebuild the derived files ``what`` of a store from its commit log with Spark tasks, in place or under ``to``.

    The store must be on a file system that driver and workers see at the same path. In place it must not be in use (StoreLocked); with
    ``to`` it is only read, also while a broker runs on it. New files are written beside the old ones, checked against the log, and then
    replace them: a run that ends early changes nothing, and after a crash during the replacement the next start derives the rest again.
    ``split_bytes`` is how much of the log a task reads (0: chosen by log size and session). ``config`` gives file sizes where no old file
    shows them.

    Raises NotAStoreFile, ConfigError, StoreDamaged, StoreNotSupported, StoreNotWritable as ``sprocketmq.storage.bulk.rebuild.rebuild``, and
    StoreNotShared when a worker does not see the store, StoreUnreadable when it cannot read it, RebuildUnconfirmed when the new files do
    not match the log.
    """
    root, target = check_request(store, to=to, what=what, split_bytes=split_bytes)
    maker = _SparkMaker(spark, split_bytes, progress)
    report = rebuild(Path(root), target, what=what, config=config, maker=maker)
    return RebuildIndexSummary(
        store=root,
        target=report.target,
        what=report.what,
        log_begin=report.log_begin,
        log_end=report.log_end,
        records=report.records,
        queues=report.queues,
        kept_queues=report.kept_queues,
        units=maker.units,
        left_out=maker.left_out,
        index_entries=report.index_entries,
        index_files=maker.index_files,
        damaged=tuple((found.path, found.start, found.end) for found in report.damaged),
        splits=maker.splits,
        tasks_at_a_time=report.workers,
        elapsed_s=report.elapsed_ms / 1000,
    )


def check_request(
    store: str | os.PathLike[str], *, to: str | os.PathLike[str] | None = None, what: Collection[str] = DERIVED, split_bytes: int = 0
) -> tuple[str, Path | None]:
    """Check the arguments before Spark starts; return the paths of the store and of the target (None for in place).

    Raises as ``rebuild_index``.
    """
    root = os.path.abspath(os.fspath(store))  # noqa: PTH100
    target = None if to is None else Path(os.path.abspath(os.fspath(to)))  # noqa: PTH100
    if target is not None and (target == Path(root) or Path(root) in target.parents):
        raise ConfigError(f"the target {target} lies in the store itself: name another directory, or none to rebuild in place")
    if split_bytes < 0:
        raise ConfigError(f"split_bytes must be positive, or 0 for a length that fits, not {split_bytes}")
    StoreDirectory(root)
    open_log(REAL_FS, root).close()
    if target is None:
        check_directory(REAL_FS, root)
        lock_in_place(REAL_FS, root).release()
    else:
        check_target(target, what)
    return root, target


class RebuildUnconfirmed(FatalError):
    """The new files do not match the log."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(
            f"what was made in {directory} does not fit the log, and nothing was changed: {reason}; run it again, and when it happens again"
            " look at the disk and at how the workers mount it"
        )
        self.directory = directory
        self.reason = reason


class _SparkMaker:
    """Builds the files of a plan with Spark tasks."""

    def __init__(self, spark: "SparkSession", split_bytes: int, progress: Report | None) -> None:
        self._spark = spark
        self._split_bytes = split_bytes
        self._progress = progress
        self.splits = self.units = self.left_out = self.index_files = 0

    def __call__(self, plan: Plan, log: CommitLog) -> Made:
        work = str(plan.config.root)
        at_a_time = tasks_at_a_time(self._spark)
        place = WorkDirectory(work, secrets.token_hex(16), min(max(2 * at_a_time, _GROUPS[0]), _GROUPS[-1]) if plan.queues else 1)
        REAL_FS.make_dirs(f"{work}/{SPOOL}")
        Path(f"{work}/{MARK}").write_text(place.mark, encoding="ascii")
        total = data_end(log) - log.min_offset
        splits = cut_splits(log, self._split_bytes or split_bytes_for(total, at_a_time))
        self.splits = len(splits)
        batch_topics = frozenset(topic.encode() for topic in plan.batch_topics)
        read = partial(spool_split, place=place, batch_topics=batch_topics, keys=plan.index)
        on_progress = (
            None if self._progress is None else lambda done: self._report_progress(min(done, total), total, "bytes", "reading the log")
        )
        answers = results_or_raise(run_tasks(self._spark, "read the commit log", read, splits, on_progress=on_progress), work, writing=True)
        order, chunks = self._in_order(log, place, [answer for some in answers for answer in some], batch_topics, keys=plan.index)
        made = Made(
            log_end=order.end,
            records=sum(chunk.records for chunk in chunks),
            last_log_offset=chunks[-1].last_log_offset if chunks else 0,
            last_ms=max((chunk.last_time_ms for chunk in chunks), default=0),
            index_entries=sum(chunk.entries for chunk in chunks),
            damaged=order.damaged,
            workers=at_a_time,
        )
        self._make_files(plan, log, place, chunks, made)
        REAL_FS.unlink(f"{work}/{MARK}")  # a task that starts only now does nothing
        return made

    def _report_progress(self, done: int, total: int, unit: str, detail: str) -> None:
        if self._progress is not None:
            self._progress(JobProgress(done, total, unit, detail))

    @staticmethod
    def _in_order(
        log: CommitLog, place: WorkDirectory, answers: list[SpooledAnswer], batch_topics: frozenset[bytes], *, keys: bool
    ) -> "tuple[LogOrder[SpooledChunk], list[SpooledChunk]]":
        """Return the valid chunks in order. The driver reads stretches that no task could judge, such as damage."""
        from sprocketmq.storage.bulk.parsing import parse_chunk
        from sprocketmq.storage.bulk.spool import Spool

        waiting = iter(answers)
        order: LogOrder[SpooledChunk] = LogOrder(log, log.min_offset, resync=True)
        spool = Spool(REAL_FS, f"{place.work}/{SPOOL}/driver", place.groups)

        def take() -> "Answer[SpooledChunk] | None":
            answer = next(waiting, None)
            return None if answer is None else Answer(*answer)

        def read(segment: Segment, begin: int, limit: int) -> "SpooledChunk":
            return spool.add(parse_chunk(segment.view, segment.start, begin, limit, batch_topics=batch_topics, keys=keys))

        try:
            return order, list(order.stretches(take, read))
        finally:
            spool.close()

    def _make_files(self, plan: Plan, log: CommitLog, place: WorkDirectory, chunks: "list[SpooledChunk]", made: Made) -> None:
        from sprocketmq.storage.bulk.spool import entry_pieces, group_pieces, last_entry
        from sprocketmq.storage.index.index_format import next_name
        from sprocketmq.storage.index.index_state import IndexState

        jobs = []
        if plan.index:
            REAL_FS.make_dirs(f"{plan.config.root}/{INDEX}")
            name = ""
            before = None
            for pieces in entry_pieces(chunks, plan.config.max_index_entries - 1):
                name = next_name(name, SYSTEM_CLOCK.time_ms())
                jobs.append(BuildTask(name, before, pieces))
                before = last_entry(REAL_FS, pieces[-1])
        self.index_files = len(jobs)
        if plan.queues:
            for kind in (QUEUES, BATCH_QUEUES):
                REAL_FS.make_dirs(f"{plan.config.root}/{kind}")
            jobs += [BuildTask("", None, pieces) for group in range(place.groups) if (pieces := group_pieces(chunks, group))]
        build = partial(build_files, place=place, plan=plan, log_begin=log.min_offset, segment_bytes=log.segment_bytes)
        total = sum(piece_bytes(piece) for job in jobs for piece in job.pieces)
        on_progress = (
            None if self._progress is None else lambda done: self._report_progress(min(done, total), total, "bytes", "making files")
        )
        built: list[BuiltFiles] = results_or_raise(
            run_tasks(self._spark, "make queues and index", build, jobs, on_progress=on_progress), place.work, writing=True
        )
        for one in built:
            if one.problem:
                raise RebuildUnconfirmed(one.directory, one.problem)
        for one in built:
            _gather(one.directory, place.work)
        files = tuple(one.file for one in built if one.file is not None)
        made.states = tuple(sorted((state for one in built for state in one.states), key=lambda state: (state.topic, state.queue_id)))
        self.units = sum(one.units for one in built)
        self.left_out = sum(one.left_out for one in built)
        for name in (QUEUES, BATCH_QUEUES, INDEX):
            if name in plan.what:
                REAL_FS.fsync_dir(f"{place.work}/{name}")
        if plan.index:
            made.index = IndexState(made.log_end, plan.config.max_hash_slots, plan.config.max_index_entries, files)


def _gather(directory: str, work: str) -> None:
    """Move the files of one task to the common directory."""
    fs = REAL_FS
    for entry in fs.list(f"{directory}/{INDEX}"):
        fs.rename(f"{directory}/{INDEX}/{entry.name}", f"{work}/{INDEX}/{entry.name}")
    for kind in (QUEUES, BATCH_QUEUES):
        for topic in fs.list(f"{directory}/{kind}"):
            fs.make_dirs(f"{work}/{kind}/{topic.name}")
            for queue in fs.list(f"{directory}/{kind}/{topic.name}"):
                fs.rename(f"{directory}/{kind}/{topic.name}/{queue.name}", f"{work}/{kind}/{topic.name}/{queue.name}")
            fs.fsync_dir(f"{work}/{kind}/{topic.name}")
