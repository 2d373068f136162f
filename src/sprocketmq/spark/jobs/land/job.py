"""``land``: write topics into a table, once or continuously, each message exactly once.

The tasks that read a topic write its Parquet files themselves (``write.py``). Bodies never enter the JVM, so this is several times faster
than Spark's own writer. The driver adds each batch of files to the table by one rename (``direct.py``, ``table_writer.py``). Other formats,
and storage that is not a file system, use Spark's writer and a checkpoint (``by_spark.py``).
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from sprocketmq.arrow.schema import spark_schema
from sprocketmq.client.arguments import check_bools, check_number
from sprocketmq.errors import ConfigError
from sprocketmq.spark.jobs.land.by_spark import FormatMissing, check_target, land_by_spark
from sprocketmq.spark.jobs.land.compaction import compact, no_report
from sprocketmq.spark.jobs.land.direct import file_columns, land_direct, settle
from sprocketmq.spark.jobs.land.plan import LandSummary, Wanted, at_least, names, one_of
from sprocketmq.spark.jobs.land.table import check_place, is_table, landed_files, read_table, read_whole_table
from sprocketmq.spark.jobs.land.write import COMPRESSIONS, WriteSettings, on_spark
from sprocketmq.spark.jobs.progress import Report
from sprocketmq.spark.security import Secure, with_security
from sprocketmq.spark.source.partitions import open_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FormatMissing", "LandPlan", "LandSummary", "compact", "land", "landed", "landed_files", "plan_landing", "read_table"]

DEFAULT_BATCH_MESSAGES = 1_000_000

_P = ParamSpec("_P")


@dataclass(frozen=True)
class LandPlan:
    """A landing whose arguments and target have been checked."""

    wanted: Wanted
    writer: str
    settings: WriteSettings
    every_s: float | None
    compact_after: int | None
    checkpoint: str | None
    stop: threading.Event | None = None
    progress: Report | None = None

    def check_topics(self) -> None:
        """Check without Spark that the topics exist. Raises TopicNotFound, and what asking a nameserver raises."""
        open_cluster(self.wanted.read_options(())).queues(self.wanted.topics)

    def run(self, spark: "SparkSession", *, stop: threading.Event | None = None, progress: Report | None = None) -> LandSummary:
        """Run the landing; ``stop`` and ``progress`` take the place of those it was planned with. Raises what ``land`` raises."""
        report = progress or self.progress or no_report
        stop = stop or self.stop or threading.Event()
        wanted = self.wanted.with_tasks(spark)
        if self.writer == "spark":
            return land_by_spark(
                spark,
                wanted,
                every_s=self.every_s,
                stop=stop,
                compression=self.settings.compression,
                checkpoint=self.checkpoint,
                report=report,
            )
        return land_direct(
            wanted,
            on_spark(spark, f"landing {', '.join(wanted.topics)}"),
            self.settings,
            every_s=self.every_s,
            stop=stop,
            compact_after=self.compact_after,
            report=report,
        )


def plan_landing(
    topics: str | Sequence[str],
    to: str | os.PathLike[str],
    *,
    nameserver: str,
    secure: Secure | None = None,
    format: str = "parquet",  # noqa: A002 - Spark's word
    writer: str | None = None,
    columns: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    batch_messages: int = DEFAULT_BATCH_MESSAGES,
    every_s: float | None = None,
    compact_after: int | None = None,
    file_bytes: int = WriteSettings.file_bytes,
    compression: str = WriteSettings.compression,
    sync: bool = False,
    checkpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    progress: Report | None = None,
) -> LandPlan:
    """Check the arguments and the target of ``land`` without Spark and without a broker. Raises what ``land`` raises for them."""
    check_bools(sync=sync)
    check_number("file_bytes", file_bytes, whole=True)
    if compact_after is not None:
        check_number("compact_after", compact_after, whole=True)
    wanted = Wanted(
        topics=names(topics),
        to=os.fspath(to),
        nameserver=nameserver,
        format=str(format).lower(),
        columns=None if columns is None else names(columns),
        partition_by=None if partition_by is None else names(partition_by),
        batch_messages=batch_messages,
        options=with_security(options or {}, secure),
    )
    wanted.check()
    at_least("every_s", every_s, 0.001)
    at_least("compact_after", compact_after, 2)
    at_least("file_bytes", file_bytes, 1 << 20)
    one_of("compression", compression, COMPRESSIONS)
    settings = WriteSettings(compression=compression, file_bytes=file_bytes, sync=sync)
    chosen = wanted.writer(writer)
    if chosen == "direct":
        if checkpoint is not None:
            raise ConfigError("checkpoint is for writer=spark; a direct landing keeps its progress in the table: leave it out")
        check_place(wanted.to)
        settle(wanted, read_table(wanted.to) if is_table(wanted.to) else None)
    else:
        only_direct = {"compact_after": compact_after is not None, "sync": sync, "file_bytes": file_bytes != WriteSettings.file_bytes}
        for name, given in only_direct.items():
            if given:
                raise ConfigError(f"{name} is for writer=direct; Spark's writer cannot do it: leave it out")
        checkpoint = check_target(wanted, checkpoint)
    return LandPlan(wanted, chosen, settings, every_s, compact_after, checkpoint, stop, progress)


def _takes_arguments_of(
    plan: Callable[_P, LandPlan],
) -> Callable[[Callable[..., LandSummary]], Callable[Concatenate["SparkSession", _P], LandSummary]]:
    """Give ``land`` the arguments of ``plan`` after its session, for type checkers and ``help``."""

    def decorate(land: Callable[..., LandSummary]) -> Callable[Concatenate["SparkSession", _P], LandSummary]:
        own, planned = signature(land), signature(plan)
        parameters = [own.parameters["spark"], *planned.parameters.values()]
        land.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return land

    return decorate


@_takes_arguments_of(plan_landing)
def land(spark: "SparkSession", *arguments: Any, **options: Any) -> LandSummary:
    """Land the messages of ``topics`` into the table ``to``, each exactly once. The next call continues where this one ended.

    With ``every_s`` None it lands the messages available at the time of the call and returns. A number makes it check again every so many
    seconds until ``stop`` is set, and finish the current batch then. A batch has at most ``batch_messages``.

    ``format`` is parquet, delta or iceberg (``to`` is then a table name). ``writer`` is "direct", the default for parquet in a directory
    shared by the driver and all workers, or "spark" for everything else, with its progress in ``checkpoint`` (default ``to/_checkpoint``).
    The first landing fixes the topics, ``columns`` (default: those of the source) and ``partition_by`` (any of "topic" and "date", the UTC
    day of storeTimestamp). ``options`` go to the source: ``startingOffsets`` (default here: earliest), ``filterExpression``,
    ``failOnDataLoss`` ... ``secure`` is a directory with credentials and trusted certificate that the driver and all workers have, or a
    mapping with options such as ``credentials.file``.

    ``compact_after`` merges small files whenever that many batches have them; ``file_bytes`` is the size files grow to; ``compression`` is
    snappy, zstd, lz4, gzip or none. ``sync`` flushes each batch to the disk before it counts; without it a power failure may lose the last
    batches.

    Raises ConfigError (OptionError, FormatMissing, NotALandingTable, TableMismatch) before anything is read, TableBusy, TableNotWritable,
    and the errors of the source and Spark; the table then has the earlier batches, and nothing of the failed one.
    """
    return plan_landing(*arguments, **options).run(spark)


def landed(spark: "SparkSession", path: str | os.PathLike[str]) -> "DataFrame":
    """Return the committed state of a landed table, each row once, also while a writer or a compaction runs.

    Besides its columns it has ``batch`` (the number of the landing) and the partitions, ``date`` as a date. A table without landings has no
    rows. A compaction after this call removes files that the frame refers to: call ``landed`` again then. Raises NotALandingTable,
    TableDamaged.
    """
    state = read_whole_table(path)
    partitions = {"topic": "topic STRING", "date": "date DATE"}
    ddl = ", ".join((spark_schema(file_columns(state.spec)), "batch INT", *(partitions[name] for name in state.spec.partition_by)))
    frames = []
    # All are in one directory, except a batch that a killed compaction has not moved yet.
    filled = [batch for batch in state.batches if batch.files]
    for parent in sorted({batch.directory.parent for batch in filled}):
        directories = [str(batch.directory) for batch in filled if batch.directory.parent == parent]
        frames.append(spark.read.schema(ddl).option("basePath", str(parent)).parquet(*directories))
    return reduce(lambda a, b: a.unionByName(b), frames) if frames else spark.createDataFrame([], ddl)
