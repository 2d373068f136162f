"""Compact a landed table: merge small files into large ones while others read it."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sprocketmq.spark.jobs.land.plan import one_of
from sprocketmq.spark.jobs.land.table import LandedBatch, TableState, read_table
from sprocketmq.spark.jobs.land.table_errors import NotALandingTable
from sprocketmq.spark.jobs.land.table_writer import TableWriter
from sprocketmq.spark.jobs.land.write import COMPRESSIONS, MergeTask, RunTasks, WriteSettings, on_spark
from sprocketmq.spark.jobs.progress import JobProgress, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def no_report(progress: JobProgress) -> None:
    """Ignore progress: the default report."""


# Size of a merge in files of full size: what one swap replaces, and the extra disk space it needs.
GROUP_FILES = 4


@dataclass(frozen=True)
class CompactSummary:
    """The result of a compaction; the figures are of the whole table, before and after."""

    table: str
    messages: int
    batches_before: int
    batches: int
    files_before: int
    files: int
    bytes_before: int
    bytes: int
    elapsed_s: float

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("table", self.table),
            ("messages", f"{self.messages:,}"),
            ("batches", f"{self.batches_before:,} -> {self.batches:,}"),
            ("files", f"{self.files_before:,} -> {self.files:,}"),
            ("MiB", f"{self.bytes_before / (1 << 20):,.1f} -> {self.bytes / (1 << 20):,.1f}"),
            ("time", f"{self.elapsed_s:.1f} s"),
        ]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_groups(batches: Sequence[LandedBatch], file_bytes: int) -> list[list[LandedBatch]]:
    """Return groups of neighbouring batches to merge: batches whose files are on average smaller than half of ``file_bytes``.

    A group has at most about ``GROUP_FILES * file_bytes``. A single batch is merged only if it has several files of one partition.
    """
    groups: list[list[LandedBatch]] = []
    group: list[LandedBatch] = []

    def end_group() -> None:
        if len(group) > 1 or (group and len(group[0].files) > len(_by_partition(group))):
            groups.append(list(group))
        group.clear()

    for batch in batches:
        small = batch.bytes < file_bytes / 2 * max(1, len(batch.files))
        if not small or sum(member.bytes for member in group) + batch.bytes > GROUP_FILES * file_bytes:
            end_group()
        if small:
            group.append(batch)
    end_group()
    return groups


def plan_merges(group: Sequence[LandedBatch], file_bytes: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return (partition, paths) for each task: files of one partition in order, together about ``file_bytes``."""
    tasks = []
    for partition, files in _by_partition(group).items():
        paths: list[str] = []
        held = 0
        for path, size in files:
            if paths and held + size > file_bytes:
                tasks.append((partition, tuple(paths)))
                paths, held = [], 0
            paths.append(path)
            held += size
        tasks.append((partition, tuple(paths)))
    return tasks


def _by_partition(group: Sequence[LandedBatch]) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for batch in group:
        for file, path in zip(batch.files, batch.paths(), strict=True):
            found.setdefault(file.path.rpartition("/")[0], []).append((path, file.bytes))
    return found


class _GroupProgress:
    """Reports the rows of one group as progress of the whole compaction."""

    def __init__(self, report: Report, before: int, total: int, detail: str) -> None:
        self._report = report
        self._before = before
        self._total = total
        self._detail = detail

    def __call__(self, rows: int) -> None:
        self._report(JobProgress(self._before + rows, self._total, "messages", self._detail))


def compact_table(writer: TableWriter, state: TableState, run: RunTasks, settings: WriteSettings, report: Report = no_report) -> TableState:
    """Merge the groups of ``plan_groups``, each with its own swap, and return the resulting table."""
    groups = plan_groups(state.batches, settings.file_bytes)
    total = sum(batch.rows for group in groups for batch in group)
    done = 0
    for group in groups:
        on_progress = _GroupProgress(report, done, total, f"merging batches {group[0].first} to {group[-1].number}")
        staging = writer.staging()
        merges = plan_merges(group, settings.file_bytes)
        written = run([MergeTask(paths, partition, staging, settings) for partition, paths in merges], on_progress) if merges else []
        state = writer.swap_in(state, group, staging, written)
        done += sum(batch.rows for batch in group)
    report(JobProgress(done, total, "messages"))
    return state


def check_request(path: str | os.PathLike[str], compression: str) -> None:
    """Check the arguments before Spark starts. Raises NotALandingTable, TableDamaged, ConfigError."""
    one_of("compression", compression, COMPRESSIONS)
    read_table(path)


def compact(
    spark: "SparkSession",
    path: str | os.PathLike[str],
    *,
    file_bytes: int = WriteSettings.file_bytes,
    compression: str = WriteSettings.compression,
    sync: bool = False,
    progress: Report | None = None,
) -> CompactSummary:
    """Merge the small files of a landed table into files of about ``file_bytes``, batch by batch into fewer batches.

    Landings keep their offsets, but cannot run at the same time. ``landed_files`` and ``landed`` return each row once at any moment; a
    reader that lists the directory itself must not do so in the milliseconds of a swap. A compaction that is killed leaves the table as it
    was, or is finished by the next writer. Raises NotALandingTable, TableBusy, TableNotWritable, TableDamaged.
    """
    began = time.monotonic()
    check_request(path, compression)
    with TableWriter(path, sync=sync) as writer:
        before = writer.open()
        if before is None:
            raise NotALandingTable(writer.root, "nothing was landed to it yet")
        settings = WriteSettings(compression=compression, file_bytes=file_bytes, sync=sync)
        after = compact_table(writer, before, on_spark(spark, f"compacting {writer.root}"), settings, progress or no_report)
    return CompactSummary(
        table=str(after.path),
        messages=after.rows,
        batches_before=len(before.batches),
        batches=len(after.batches),
        files_before=sum(len(batch.files) for batch in before.batches),
        files=sum(len(batch.files) for batch in after.batches),
        bytes_before=sum(batch.bytes for batch in before.batches),
        bytes=sum(batch.bytes for batch in after.batches),
        elapsed_s=time.monotonic() - began,
    )
