"""The work of a landing's tasks: write Arrow batches into Parquet files of a staging directory, without Spark."""

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sprocketmq.errors import FatalError
from sprocketmq.spark.jobs.land.table_writer import WrittenFile
from sprocketmq.spark.jobs.tasks import run_tasks

COMPRESSIONS = ("snappy", "zstd", "lz4", "gzip", "none")
# Columns that repeat few values get dictionary encoding. For bodies, ids and keys, which all differ, it would halve the speed.
_REPEATING = ("topic", "brokerName", "tags", "bornHost", "storeHost", "properties.key_value.key")
# Minimum and maximum of these are useless.
_WITHOUT_STATISTICS = frozenset({"body", "properties"})
_DAY_US = 86_400_000_000
# Open files of different partitions, each with a buffer and a descriptor; beyond this the least recently used is closed.
_MAX_OPEN = 16


class StagingNotShared(FatalError):
    """A worker does not see the staging directory of the driver."""

    def __init__(self, path: str, host: str) -> None:
        super().__init__(
            f"the worker on {host} does not see {path}: the table must lie on a file system that the driver and all workers share;"
            " for other storage use writer=spark"
        )
        self.path = path
        self.host = host


class WorkerCannotWrite(FatalError):
    """A worker could not write its files: no space, no permission, or a disk error."""

    def __init__(self, path: str, host: str, reason: str) -> None:
        super().__init__(
            f"the worker on {host} cannot write to {path}: {reason}; make room there or change its permissions, and run it again:"
            " nothing of the batch is in the table"
        )
        self.path = path
        self.host = host
        self.reason = reason


@dataclass(frozen=True)
class WriteSettings:
    """How files are written. A row group is written at ``row_group_bytes``; a file ends after ``file_bytes``."""

    partition_by: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # columns that are read only to compute the partition
    compression: str = "snappy"
    file_bytes: int = 256 << 20
    row_group_bytes: int = 32 << 20
    sync: bool = False


def partitions_of(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the partition directory and rows of each part of ``batch``, with rows in order.

    ``topic`` is percent-encoded as Hive's partition directories are; ``date`` is the UTC day of ``storeTimestamp``.
    """
    parts = [("", batch)]
    for name in partition_by:
        split = _by_topic if name == "topic" else _by_date
        parts = [(f"{at}/{name}={value}" if at else f"{name}={value}", rows) for at, part in parts for value, rows in split(part)]
    yield from parts


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    column = batch.column("topic")
    topics = column.unique().to_pylist()
    for topic in topics:
        yield quote(topic, safe=""), batch if len(topics) == 1 else batch.filter(pc.equal(column, topic))


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    days: Any = batch.column("storeTimestamp").cast(pa.int64()).to_numpy(zero_copy_only=False) // _DAY_US
    found = np.unique(days)
    for day in found.tolist():
        yield str(np.datetime64(day, "D")), batch if len(found) == 1 else batch.filter(pa.array(days == day))


@dataclass
class _OpenFile:
    """An open file. ``pending`` are the batches of the next row group."""

    name: str
    writer: Any = None
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0
    rows: int = 0


class FileWriter:
    """Writes batches into files of ``directory``, separate for each partition; ``written`` are the finished files."""

    def __init__(self, directory: Path, settings: WriteSettings) -> None:
        if not directory.is_dir():
            raise StagingNotShared(str(directory), socket.gethostname())
        self.written: list[WrittenFile] = []
        self._directory = directory
        self._settings = settings
        self._open: dict[str, _OpenFile] = {}  # by partition, least recently used first
        self._pending_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of ``batch`` to the files of their partitions."""
        for partition, rows in partitions_of(batch, self._settings.partition_by):
            self.write_to(partition, rows.drop_columns(list(self._settings.without)) if self._settings.without else rows)

    def write_to(self, partition: str, rows: pa.RecordBatch) -> None:
        """Write rows of one partition."""
        if not rows.num_rows:
            return
        file = self._open.pop(partition, None) or _OpenFile(f"{uuid.uuid4().hex}.parquet")
        self._open[partition] = file
        file.pending.append(rows)
        file.pending_bytes += rows.nbytes
        self._pending_bytes += rows.nbytes
        with self._writing():
            if self._pending_bytes >= self._settings.row_group_bytes:
                fullest = max(self._open, key=lambda name: self._open[name].pending_bytes)
                self._flush(self._open[fullest])
                if (self._directory / self._open[fullest].name).stat().st_size >= self._settings.file_bytes:
                    self._finish(fullest)
            elif len(self._open) > _MAX_OPEN:
                self._finish(next(iter(self._open)))

    def close(self) -> list[WrittenFile]:
        """Finish all files and return everything written."""
        with self._writing():
            for partition in list(self._open):
                self._finish(partition)
        return self.written

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise WorkerCannotWrite(str(self._directory), socket.gethostname(), e.strerror or str(e)) from e

    def _flush(self, file: _OpenFile) -> None:
        if not file.pending:
            return
        table = pa.Table.from_batches(file.pending)
        self._pending_bytes -= file.pending_bytes
        file.pending, file.pending_bytes = [], 0
        if file.writer is None:
            names = table.schema.names
            file.writer = pq.ParquetWriter(
                self._directory / file.name,
                table.schema,
                compression=self._settings.compression,
                use_dictionary=[name for name in _REPEATING if name.partition(".")[0] in names],
                write_statistics=[name for name in names if name not in _WITHOUT_STATISTICS],
            )
        file.writer.write_table(table, row_group_size=table.num_rows)
        file.rows += table.num_rows

    def _finish(self, partition: str) -> None:
        file = self._open.pop(partition)
        self._flush(file)
        file.writer.close()
        path = self._directory / file.name
        if self._settings.sync:
            with path.open("rb") as written:
                os.fsync(written.fileno())
        self.written.append(WrittenFile(file.name, partition, file.rows, path.stat().st_size))


def write_batches(batches: Iterable[pa.RecordBatch], directory: Path, settings: WriteSettings) -> list[WrittenFile]:
    """Write all of ``batches`` into new files of ``directory``. Raises StagingNotShared, WorkerCannotWrite."""
    writer = FileWriter(directory, settings)
    for batch in batches:
        writer.write(batch)
    return writer.close()


@dataclass(frozen=True)
class LandTask:
    """One task of a landing, picklable; ``reader`` is the source's reader."""

    reader: Any
    partition: Any
    directory: Path
    settings: WriteSettings

    def __call__(self) -> list[WrittenFile]:
        return write_batches(self.reader.read(self.partition), self.directory, self.settings)


@dataclass(frozen=True)
class MergeTask:
    """One task of a compaction: merges the files ``paths`` of one partition, in order, into few files."""

    paths: tuple[str, ...]
    partition: str
    directory: Path
    settings: WriteSettings

    def __call__(self) -> list[WrittenFile]:
        writer = FileWriter(self.directory, self.settings)
        for path in self.paths:
            with pq.ParquetFile(path) as file:
                # Row group by row group: their size in bytes is bounded, whatever the size of bodies.
                for i in range(file.num_row_groups):
                    for batch in file.read_row_group(i).to_batches():
                        writer.write_to(self.partition, batch)
        return writer.close()


Task = Callable[[], list[WrittenFile]]
# Runs tasks, each successfully at least once, and returns the files of one successful attempt at each, in order of tasks. The second
# argument is called with the rows written so far.
RunTasks = Callable[[Sequence[Task], Callable[[int], None]], list[WrittenFile]]


def on_spark(spark: Any, title: str) -> RunTasks:
    """Return a function that runs tasks as a Spark job, one Spark task each; ``title`` is the name of the job."""

    def run(tasks: Sequence[Task], on_progress: Callable[[int], None]) -> list[WrittenFile]:
        return [file for written in run_tasks(spark, title, _perform, tasks, on_progress=on_progress) for file in written]

    return run


def _perform(task: Task, note: Callable[[int], None]) -> list[WrittenFile]:
    written = task()
    note(sum(file.rows for file in written))
    return written
