"""Land directly: the reading tasks write Parquet files, and each micro-batch becomes part of the table by one rename."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sprocketmq.arrow.schema import DEFAULT_COLUMNS
from sprocketmq.spark.jobs.land.compaction import compact_table, no_report, plan_groups
from sprocketmq.spark.jobs.land.plan import LandSummary, Wanted
from sprocketmq.spark.jobs.land.table import LandedBatch, Offsets, TableSpec, TableState
from sprocketmq.spark.jobs.land.table_errors import TableMismatch
from sprocketmq.spark.jobs.land.table_writer import Step, TableWriter, no_step
from sprocketmq.spark.jobs.land.write import LandTask, RunTasks, WriteSettings
from sprocketmq.spark.jobs.progress import JobProgress, Report
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.source.offsets import decode_offsets
from sprocketmq.spark.source.options import parse_options
from sprocketmq.spark.source.planning import ranges_between
from sprocketmq.spark.source.topic_stream import TopicStream


def land_direct(
    wanted: Wanted,
    run: RunTasks,
    settings: WriteSettings,
    *,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    compact_after: int | None = None,
    report: Report = no_report,
    step: Step = no_step,
    make_reader: Callable[[dict[str, str]], Any] = lambda options: TopicStream(parse_options(options, streaming=True)),
) -> LandSummary:
    """Implement ``land`` with files written by the tasks. ``run`` runs tasks, ``make_reader`` creates the source's reader."""
    began = time.monotonic()
    stop = stop or threading.Event()
    with TableWriter(wanted.to, sync=settings.sync, step=step) as writer:
        state = writer.open()
        spec = settle(wanted, state)
        read = wanted.read_columns(spec.columns, spec.partition_by)
        kept = file_columns(spec)
        settings = replace(settings, partition_by=spec.partition_by, without=tuple(name for name in read if name not in kept))
        source = wanted.source_options(read)
        if state is None:
            state = writer.create(replace(spec, start=_as_json(make_reader(source).initialOffset())))
        landing = _Landing(writer, state, run, settings, report, compact_after)
        while True:
            cycle = time.monotonic()
            landing.take_available(make_reader(source), stop)
            if every_s is None or stop.wait(max(0.0, every_s - (time.monotonic() - cycle))):
                break
    return LandSummary(
        table=str(writer.root),
        format="parquet",
        writer="direct",
        topics=spec.topics,
        messages=landing.messages,
        batches=landing.batches,
        files=landing.files,
        bytes=landing.bytes,
        messages_in_table=landing.state.rows,
        elapsed_s=time.monotonic() - began,
    )


class _Landing:
    """The batches of one call and their totals."""

    def __init__(
        self, writer: TableWriter, state: TableState, run: RunTasks, settings: WriteSettings, report: Report, compact_after: int | None
    ) -> None:
        self.state = state
        self.messages = self.batches = self.files = self.bytes = 0
        self._writer = writer
        self._run = run
        self._settings = settings
        self._report = report
        self._compact_after = compact_after

    def take_available(self, reader: Any, stop: threading.Event) -> None:
        """Land the messages available now, batch by batch; stop between batches when ``stop`` is set."""
        start = self.state.end
        reader.end_here()
        taken = total = 0
        while not stop.is_set():
            end = _as_json(reader.next_offset(start))
            if end == start:
                return
            if not total:
                total = _messages_between(start, reader.seen_offset() or end)
                self._report(JobProgress(0, total, "messages"))
            # A batch without rows also advances the offsets: after a new or recreated queue, or when the filter matched nothing.
            staging = self._writer.staging()
            tasks = [LandTask(reader, partition, staging, self._settings) for partition in reader.partitions(start, end)]
            files = self._run(tasks, partial(self._report_progress, taken, total)) if tasks else []
            self.state = self._writer.commit(self.state, start, end, staging, files)
            self._count(self.state.batches[-1])
            self._compact()
            taken += _messages_between(start, end)
            total = max(taken, total)
            self._report_progress(taken, total, 0)
            start = end

    def _report_progress(self, taken: int, total: int, rows: int) -> None:
        self._report(JobProgress(taken + rows, max(taken + rows, total), "messages", f"{self.batches:,} batches"))

    def _count(self, batch: LandedBatch) -> None:
        self.messages += batch.rows
        self.batches += 1
        self.files += len(batch.files)
        self.bytes += batch.bytes

    def _compact(self) -> None:
        if self._compact_after is None:
            return
        if sum(map(len, plan_groups(self.state.batches, self._settings.file_bytes))) >= self._compact_after:
            self.state = compact_table(self._writer, self.state, self._run, self._settings)


def settle(wanted: Wanted, found: TableState | None) -> TableSpec:
    """Return the spec of the table: that of ``found``, or the wanted one for a new table. Raises TableMismatch, OptionError."""
    columns = None if wanted.columns is None else parse_options(wanted.source_options(wanted.columns), streaming=True).columns
    if found is None:
        spec = TableSpec(wanted.topics, columns or DEFAULT_COLUMNS, wanted.partition_by or (), {})
        if not file_columns(spec):
            raise OptionError("columns", f"nothing is left for the files: {', '.join(spec.columns)} is a partition; name further columns")
        return spec
    spec = found.spec
    if sorted(wanted.topics) != sorted(spec.topics):
        raise TableMismatch(found.path, "the topics", spec.topics, wanted.topics)
    if columns is not None and columns != spec.columns:
        raise TableMismatch(found.path, "the columns", spec.columns, columns)
    if wanted.partition_by is not None and wanted.partition_by != spec.partition_by:
        raise TableMismatch(found.path, "the partitions", spec.partition_by, wanted.partition_by)
    return spec


def file_columns(spec: TableSpec) -> tuple[str, ...]:
    """Return the columns in the files: partitions are only in directory names."""
    return tuple(name for name in spec.columns if name not in spec.partition_by)


def _as_json(offsets: Mapping[str, Any]) -> Offsets:
    return dict(json.loads(json.dumps(offsets)))


def _messages_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    return sum(map(len, ranges_between(decode_offsets(start), decode_offsets(end))))
