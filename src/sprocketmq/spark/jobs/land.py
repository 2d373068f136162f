"""``land``: topics into a table, once or continuously, each message exactly once.

The tasks that read a topic write its Parquet files themselves (``land_write``): bodies never cross into the JVM, which is what makes it
several times faster than Spark's own writer. The driver makes each batch of files part of the table by one rename (``land_table``).
Other formats, and storage that is no file system, go through Spark's writer and a checkpoint.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sprocketmq.errors import ConfigError
from sprocketmq.spark.jobs.land_compact import compact, compact_table, no_report, plan_groups
from sprocketmq.spark.jobs.land_table import (
    PARTITIONS,
    Batch,
    NotALandingTable,
    Offsets,
    Step,
    TableMismatch,
    TableSpec,
    TableState,
    TableWriter,
    is_table,
    landed_files,
    no_step,
    read_table,
)
from sprocketmq.spark.jobs.land_write import COMPRESSIONS, LandTask, RunTasks, WriteSettings, on_spark
from sprocketmq.spark.jobs.progress import Progress, Report
from sprocketmq.spark.jobs.tasks import tasks_at_a_time
from sprocketmq.spark.offsets import decode_offsets
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.options import parse_options
from sprocketmq.spark.planning import ranges_between
from sprocketmq.spark.schema import DEFAULT_COLUMNS, spark_schema
from sprocketmq.spark.source import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FormatMissing", "LandSummary", "compact", "land", "landed", "landed_files", "read_table"]

DEFAULT_BATCH_MESSAGES = 1_000_000
CHECKPOINT = "_checkpoint"
# What a session needs for a format that Spark does not bring: Maven package and the settings its makers ask for.
_PACKAGES = {
    "delta": (
        "io.delta:delta-spark_2.13",
        "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and the catalog org.apache.spark.sql.delta.catalog.DeltaCatalog",
    ),
    "iceberg": (
        "org.apache.iceberg:iceberg-spark-runtime-X.Y_2.13",
        "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions and a catalog, spark.sql.catalog.NAME",
    ),
}
FORMATS = ("parquet", *_PACKAGES)
# Options that have an argument of their own: given twice, one of them would be ignored.
_TAKEN = {"nameserver": "nameserver", "subscribe": "topics", "columns": "columns", "maxoffsetspertrigger": "batch_messages"}


class FormatMissing(ConfigError):
    """The session lacks the package of a table format."""

    def __init__(self, format: str) -> None:  # noqa: A002 - Spark's word
        package, settings = _PACKAGES[format]
        super().__init__(
            f"this Spark session has no format {format!r}: start it with spark.jars.packages={package}:VERSION (one made for this Spark),"
            f" {settings}; or land as parquet"
        )
        self.format = format
        self.package = package


@dataclass(frozen=True)
class LandSummary:
    """What a landing did. ``files`` and ``bytes`` are None where Spark's writer wrote, ``messages_in_table`` too."""

    table: str
    format: str
    writer: str
    topics: tuple[str, ...]
    messages: int
    batches: int
    files: int | None
    bytes: int | None
    messages_in_table: int | None
    elapsed_s: float

    def rows(self) -> list[tuple[str, str]]:
        rate = f" ({self.messages / self.elapsed_s:,.0f}/s)" if self.messages and self.elapsed_s else ""
        rows = [
            ("table", self.table),
            ("format", f"{self.format}, written by {'the reading tasks' if self.writer == 'direct' else 'Spark'}"),
            ("topics", ", ".join(self.topics)),
            ("messages landed", f"{self.messages:,}{rate}"),
            ("batches", f"{self.batches:,}"),
        ]
        if self.files is not None and self.bytes is not None:
            rows.append(("files", f"{self.files:,}, {self.bytes / (1 << 20):,.1f} MiB"))
        if self.messages_in_table is not None:
            rows.append(("messages in table", f"{self.messages_in_table:,}"))
        return [*rows, ("time", f"{self.elapsed_s:.1f} s")]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def land(
    spark: "SparkSession",
    topics: str | Sequence[str],
    to: str | os.PathLike[str],
    *,
    nameserver: str,
    format: str = "parquet",  # noqa: A002 - Spark's word
    writer: str | None = None,
    columns: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    batch_messages: int = DEFAULT_BATCH_MESSAGES,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    compact_after: int | None = None,
    file_bytes: int = WriteSettings.file_bytes,
    compression: str = WriteSettings.compression,
    sync: bool = False,
    checkpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    progress: Report | None = None,
) -> LandSummary:
    """Land what ``topics`` hold into the table ``to``; the next call goes on where this one ended. Each message lands exactly once.

    ``every_s`` None reads what is there when it is called and returns; a number looks again so often, in seconds, until ``stop`` is set:
    the batch under way is finished then. A batch has at most ``batch_messages``.

    ``format`` is parquet, delta or iceberg (``to`` is a table name then). ``writer`` is "direct", the default for parquet in a directory that
    the driver and all workers share, or "spark", for everything else; that keeps its progress in ``checkpoint`` (``to/_checkpoint``).
    ``columns`` (default: those of the source, or of the table that is there) and ``partition_by`` (any of "topic" and "date", the UTC day of
    storeTimestamp) are settled by the first landing, as are the topics. ``options`` go to the source: ``startingOffsets`` (default
    here: earliest), ``filterExpression``, ``failOnDataLoss`` ...

    ``compact_after`` merges small files whenever so many batches have them; ``file_bytes`` is what files grow to, ``compression`` snappy, zstd,
    lz4, gzip or none. ``sync`` has each batch reach the disk before it counts: without, a machine that loses power may lose the last ones.

    Raises ConfigError (OptionError, FormatMissing, NotALandingTable, TableMismatch) before anything is read, TableBusy, TableNotWritable,
    and what the source and Spark raise; the table then has the batches before, and nothing of the one that failed.
    """
    wanted = Wanted(
        topics=_names(topics),
        to=os.fspath(to),
        nameserver=nameserver,
        format=_one_of("format", format.lower(), FORMATS),
        columns=None if columns is None else _names(columns),
        partition_by=None if partition_by is None else _names(partition_by),
        batch_messages=batch_messages,
        options=dict(options or {}),
    )
    wanted.check(every_s=every_s, compact_after=compact_after, file_bytes=file_bytes)
    _one_of("compression", compression, COMPRESSIONS)
    chosen = wanted.writer(writer)
    if chosen == "direct" and checkpoint is not None:
        raise ConfigError("checkpoint is for writer=spark; a direct landing keeps its progress in the table: leave it out")
    for name, given in (
        ("compact_after", compact_after is not None),
        ("sync", sync),
        ("file_bytes", file_bytes != WriteSettings.file_bytes),
    ):
        if chosen == "spark" and given:
            raise ConfigError(f"{name} is for writer=direct; Spark's writer cannot do it: leave it out")
    report = progress or no_report
    stop = stop or threading.Event()
    wanted = wanted.with_tasks(spark)
    if chosen == "spark":
        return land_by_spark(spark, wanted, every_s=every_s, stop=stop, compression=compression, checkpoint=checkpoint, report=report)
    settings = WriteSettings(compression=compression, file_bytes=file_bytes, sync=sync)
    return land_direct(
        wanted,
        on_spark(spark, f"landing {', '.join(wanted.topics)}"),
        settings,
        every_s=every_s,
        stop=stop,
        compact_after=compact_after,
        report=report,
    )


@dataclass(frozen=True)
class Wanted:
    """What a landing was asked for, and how that is said to the source."""

    topics: tuple[str, ...]
    to: str
    nameserver: str
    format: str
    columns: tuple[str, ...] | None
    partition_by: tuple[str, ...] | None
    batch_messages: int
    options: dict[str, str]

    def check(self, *, every_s: float | None, compact_after: int | None, file_bytes: int) -> None:
        """Raise ConfigError for what cannot be, OptionError for the source's options."""
        for name in self.options:
            if name.lower() in _TAKEN:
                raise ConfigError(f"option {name!r} has an argument of its own: {_TAKEN[name.lower()]}")
        if not self.topics:
            raise ConfigError("no topic to land: name at least one")
        for name in self.partition_by or ():
            _one_of("partition_by", name, PARTITIONS)
        if len(set(self.partition_by or ())) < len(self.partition_by or ()):
            raise ConfigError("partition_by names a partition twice")
        for name, value, least in (
            ("batch_messages", self.batch_messages, 1),
            ("every_s", every_s, 0.001),
            ("compact_after", compact_after, 2),
            ("file_bytes", file_bytes, 1 << 20),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}, and must be at least {least}")
        parse_options(self.source_options(self.columns or ()), streaming=True)

    def writer(self, asked: str | None) -> str:
        """Return "direct" or "spark". Raises ConfigError where direct landing was asked for and cannot be."""
        possible = self.format == "parquet" and "://" not in self.to
        if asked is None:
            return "direct" if possible else "spark"
        if _one_of("writer", asked, ("direct", "spark")) == "direct" and not possible:
            what = f"format {self.format}" if self.format != "parquet" else f"{self.to}, which is no directory of a file system"
            raise ConfigError(f"writer=direct cannot do {what}: use writer=spark")
        return asked

    def with_tasks(self, spark: "SparkSession") -> "Wanted":
        """Return this with as many tasks as the session runs at a time, unless options say otherwise."""
        if any(name.lower() == "maxpartitions" for name in self.options):
            return self
        return replace(self, options={"maxPartitions": str(tasks_at_a_time(spark)), **self.options})

    def source_options(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the options of the `rocketmq` format that read ``columns`` (none: the source's default)."""
        starts = any(name.lower().startswith("starting") for name in self.options)
        return {
            **({} if starts else {"startingOffsets": "earliest"}),
            **self.options,
            "nameserver": self.nameserver,
            "subscribe": ",".join(self.topics),
            "maxOffsetsPerTrigger": str(self.batch_messages),
            **({"columns": ",".join(columns)} if columns else {}),
        }


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return names that were given one by one, or in one text with commas between them."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else tuple(value)


def _one_of(name: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, and must be one of {', '.join(choices)}")
    return value


# --- direct -------------------------------------------------------------------------------------------------------------


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
    make_reader: Callable[[dict[str, str]], Any] = lambda options: StreamReader(parse_options(options, streaming=True)),
) -> LandSummary:
    """Do what ``land`` does with files the tasks write themselves. ``run`` runs tasks, ``make_reader`` makes the source's reader."""
    began = time.monotonic()
    stop = stop or threading.Event()
    with TableWriter(wanted.to, sync=settings.sync, step=step) as writer:
        state = writer.open()
        spec = settle(wanted, state)
        read = tuple(dict.fromkeys((*spec.columns, *("topic" if name == "topic" else "storeTimestamp" for name in spec.partition_by))))
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
    """The batches of one call, and what they add up to."""

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
        """Land what is there now, batch by batch; leave off between two when ``stop`` is set."""
        start = self.state.end
        reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        taken = total = 0
        while not stop.is_set():
            end = _as_json(reader.latestOffset(start, limit))
            if end == start:
                return
            if not total:
                total = _messages_between(start, reader.reportLatestOffset() or end)
                self._report(Progress(0, total, "messages"))
            # Also without rows a batch says where to go on: of a queue that appeared, or was made anew, or that a filter left nothing of.
            staging = self._writer.staging()
            tasks = [LandTask(reader, partition, staging, self._settings) for partition in reader.partitions(start, end)]
            files = self._run(tasks, partial(self._told, taken, total)) if tasks else []
            self.state = self._writer.commit(self.state, start, end, staging, files)
            self._count(self.state.batches[-1])
            self._compact()
            taken += _messages_between(start, end)
            total = max(taken, total)
            self._told(taken, total, 0)
            start = end

    def _told(self, taken: int, total: int, rows: int) -> None:
        self._report(Progress(taken + rows, max(taken + rows, total), "messages", f"{self.batches:,} batches"))

    def _count(self, batch: Batch) -> None:
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
    """Return what the table is: what ``found`` says, or what is wanted where there is none yet. Raises TableMismatch, OptionError."""
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
    """Return the columns that are in the files: a partition is in the directory's name alone."""
    return tuple(name for name in spec.columns if name not in spec.partition_by)


def _as_json(offsets: Mapping[str, Any]) -> Offsets:
    return dict(json.loads(json.dumps(offsets)))


def _messages_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    return sum(map(len, ranges_between(decode_offsets(start), decode_offsets(end))))


def landed(spark: "SparkSession", path: str | os.PathLike[str]) -> "DataFrame":
    """Return a landed table as it is committed now, each row once, whatever a writer or a compaction is doing.

    Besides its columns it has ``batch`` (the number of the landing) and the partitions, ``date`` as a date. A table nothing was landed to yet has no
    rows. A compaction after this call removes files: call it again for a query that began before. Raises NotALandingTable, TableDamaged.
    """
    state = read_table(path)
    partitions = {"topic": "topic STRING", "date": "date DATE"}
    ddl = ", ".join((spark_schema(file_columns(state.spec)), "batch INT", *(partitions[name] for name in state.spec.partition_by)))
    frames = []
    # All in one directory, but for a batch that a killed compaction has not moved yet.
    for parent in sorted({batch.directory.parent for batch in state.batches}):
        directories = [str(batch.directory) for batch in state.batches if batch.directory.parent == parent]
        frames.append(spark.read.schema(ddl).option("basePath", str(parent)).parquet(*directories))
    return reduce(lambda a, b: a.unionByName(b), frames) if frames else spark.createDataFrame([], ddl)


# --- by Spark -----------------------------------------------------------------------------------------------------------


def require_format(spark: "SparkSession", format: str) -> None:  # noqa: A002 - Spark's word
    """Raise FormatMissing when the session has no such format."""
    if format not in _PACKAGES:
        return
    try:
        spark.read.format(format).load("sprocketmq.no_such_table").schema  # noqa: B018 - asked for its error
    except Exception as e:
        # Any other error is the format's own: it is there.
        if "DATA_SOURCE_NOT_FOUND" in str(e):
            raise FormatMissing(format) from None


def land_by_spark(
    spark: "SparkSession",
    wanted: Wanted,
    *,
    every_s: float | None,
    stop: threading.Event,
    compression: str,
    checkpoint: str | None,
    report: Report,
) -> LandSummary:
    """Do what ``land`` does through a streaming query with Spark's writer."""
    from pyspark.sql import functions as f

    began = time.monotonic()
    require_format(spark, wanted.format)
    by_name = wanted.format == "iceberg" and "/" not in wanted.to
    if by_name and checkpoint is None:
        raise ConfigError(f"{wanted.to} is a table's name: say with checkpoint in which directory its progress is kept")
    checkpoint = checkpoint or f"{wanted.to.rstrip('/')}/{CHECKPOINT}"
    if not by_name and "://" not in wanted.to:
        check_target(wanted, checkpoint)
    partition_by = wanted.partition_by or ()
    columns = tuple(wanted.columns or DEFAULT_COLUMNS)
    read = tuple(dict.fromkeys((*columns, *("topic" if name == "topic" else "storeTimestamp" for name in partition_by))))
    frame = spark.readStream.format("rocketmq").options(**wanted.source_options(read)).load()
    if "date" in partition_by:
        frame = frame.withColumn("date", f.to_date(f.to_utc_timestamp("storeTimestamp", f.current_timezone())))
    frame = frame.select(*dict.fromkeys((*columns, *partition_by)))
    stream = (
        frame.writeStream.format(wanted.format)
        .option("checkpointLocation", checkpoint)
        .option("compression", compression)
        # Bodies are all different: a dictionary of them is tried in vain, at half the speed.
        .option("parquet.enable.dictionary#body", "false")
    )
    if partition_by:
        stream = stream.partitionBy(*partition_by)
        if wanted.format == "iceberg":
            # Else it takes rows sorted by partition only.
            stream = stream.option("fanout-enabled", "true")
    stream = (
        stream.trigger(availableNow=True) if every_s is None else stream.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    )
    query = stream.toTable(wanted.to) if by_name else stream.start(wanted.to)
    messages = batches = 0
    newest = -1
    try:
        ended = False
        while not ended:
            ended = query.awaitTermination(0.2)
            for one in query.recentProgress:
                if one["batchId"] > newest and one["numInputRows"]:
                    newest = one["batchId"]
                    messages += one["numInputRows"]
                    batches += 1
            report(Progress(messages, None, "messages", f"{batches:,} batches"))
            if stop.is_set() and not ended:
                query.stop()
    finally:
        if query.isActive:
            query.stop()
    return LandSummary(
        table=wanted.to,
        format=wanted.format,
        writer="spark",
        topics=wanted.topics,
        messages=messages,
        batches=batches,
        files=None,
        bytes=None,
        messages_in_table=None,
        elapsed_s=time.monotonic() - began,
    )


def check_target(wanted: Wanted, checkpoint: str) -> None:
    """Raise NotALandingTable for a directory that Spark would mix its files into."""
    root = Path(wanted.to).absolute()
    if is_table(root):
        raise NotALandingTable(root, "it was landed to with writer=direct; go on so")
    if root.exists() and not root.is_dir():
        raise NotALandingTable(root, "it is a file")
    # A Delta table takes rows from many writers.
    ours = Path(checkpoint).is_dir() or (wanted.format == "delta" and (root / "_delta_log").is_dir())
    if root.is_dir() and any(root.iterdir()) and not ours:
        raise NotALandingTable(root, f"it holds other things, and there is no checkpoint {checkpoint}")
