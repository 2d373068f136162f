"""Land with Spark's own writer: for other formats than Parquet, and for storage that is not a file system."""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sprocketmq.arrow.schema import DEFAULT_COLUMNS
from sprocketmq.errors import ConfigError
from sprocketmq.spark.jobs.land.plan import LandSummary, Wanted
from sprocketmq.spark.jobs.land.table import is_table
from sprocketmq.spark.jobs.land.table_errors import NotALandingTable
from sprocketmq.spark.jobs.progress import JobProgress, Report
from sprocketmq.spark.version_checks import spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT = "_checkpoint"
# What a session needs for formats that do not come with Spark: Maven package and settings.
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


def require_format(spark: "SparkSession", format: str) -> None:  # noqa: A002 - Spark's word
    """Raise FormatMissing when the session does not have the format."""
    if format not in _PACKAGES:
        return
    try:
        spark.read.format(format).load("sprocketmq.no_such_table").schema  # noqa: B018 - evaluated for its error
    except Exception as e:  # noqa: BLE001 - any other error comes from the format itself, so the session has it
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
    """Implement ``land`` with a streaming query and Spark's writer."""
    from pyspark.sql import functions as f

    began = time.monotonic()
    require_format(spark, wanted.format)
    by_name = is_name(wanted)
    checkpoint = check_target(wanted, checkpoint)
    partition_by = wanted.partition_by or ()
    columns = tuple(wanted.columns or DEFAULT_COLUMNS)
    source = wanted.source_options(wanted.read_columns(columns, partition_by))
    frame = spark.readStream.format("rocketmq").options(**source).load()
    if "date" in partition_by:
        frame = frame.withColumn("date", f.to_date(f.to_utc_timestamp("storeTimestamp", f.current_timezone())))
    frame = frame.select(*dict.fromkeys((*columns, *partition_by)))
    stream = (
        frame.writeStream.format(wanted.format)
        .option("checkpointLocation", checkpoint)
        .option("compression", compression)
        # Bodies are all different: dictionary encoding would only halve the speed.
        .option("parquet.enable.dictionary#body", "false")
    )
    if partition_by:
        stream = stream.partitionBy(*partition_by)
        if wanted.format == "iceberg":
            # Without it Iceberg requires rows sorted by partition.
            stream = stream.option("fanout-enabled", "true")
    stream = (
        stream.trigger(availableNow=True) if every_s is None else stream.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    )
    # Before Spark 4.2 a query of what is available now is one micro-batch.
    one_by_one = every_s is None and spark_version() < (4, 2)
    messages = batches = 0
    first = True
    while True:
        query = stream.toTable(wanted.to) if by_name else stream.start(wanted.to)
        before, newest = messages, -1
        try:
            ended = False
            while not ended:
                ended = query.awaitTermination(0.2)
                for one in query.recentProgress:
                    if one["batchId"] > newest and one.numInputRows:
                        newest = one["batchId"]
                        messages += one.numInputRows
                        batches += 1
                report(JobProgress(messages, None, "messages", f"{batches:,} batches"))
                if stop.is_set() and not ended:
                    query.stop()
        finally:
            if query.isActive:
                query.stop()
        # The first one may be what an earlier query left undone, which is as large as its limit was then.
        short = messages - before < (1 if first else wanted.batch_messages)
        first = False
        if stop.is_set() or not one_by_one or short:
            break
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


def is_name(wanted: Wanted) -> bool:
    """Return whether the target is the name of a catalog table."""
    return wanted.format == "iceberg" and "/" not in wanted.to


def check_target(wanted: Wanted, checkpoint: str | None) -> str:
    """Return the checkpoint directory. Raises ConfigError, and NotALandingTable for a directory with other contents."""
    if is_name(wanted):
        if checkpoint is None:
            raise ConfigError(f"{wanted.to} is a table's name: say with checkpoint in which directory its progress is kept")
        return checkpoint
    checkpoint = checkpoint or f"{wanted.to.rstrip('/')}/{CHECKPOINT}"
    if "://" in wanted.to:
        return checkpoint
    root = Path(wanted.to).absolute()
    if is_table(root):
        raise NotALandingTable(root, "it was landed to with writer=direct; go on so")
    if root.exists() and not root.is_dir():
        raise NotALandingTable(root, "it is a file")
    # A Delta table may have other writers.
    ours = Path(checkpoint).is_dir() or (wanted.format == "delta" and (root / "_delta_log").is_dir())
    if root.is_dir() and any(root.iterdir()) and not ours:
        raise NotALandingTable(root, f"it holds other things, and there is no checkpoint {checkpoint}")
    return checkpoint
