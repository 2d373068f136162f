"""The streaming queries of the demo.

`FlightQuery` joins flights with the weather and keeps delay statistics from batch to batch. `DayQuery` computes delays by airport and day
and writes each day, once the watermark has passed it, to a table and to a topic.

Each batch is written into a directory named by its number, which replaces what an interrupted attempt left there. Spark gives an
interrupted batch the same number and, from the offsets in the checkpoint, the same messages. So every message is in the tables exactly
once, however often a query is restarted. In a topic nothing can be replaced: messages sent again have the same ids.
"""

import json
import shutil
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sprocketmq.protocol.message import Message
from sprocketmq.spark.source.offsets import decode_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_BODY = (
    "seq BIGINT, flight STRING, day DATE, time_hour STRING, scheduled TIMESTAMP_LTZ, carrier STRING, tailnum STRING, origin STRING,"
    " dest STRING, dep_delay INT, arr_delay INT, air_time INT, distance INT"
)
KEYS = ("origin", "carrier", "day")
# Integers only: their sums do not depend on the order of addition, so they can be checked exactly.
_FROM_FLIGHTS = {
    "flights": "count(1)",
    "departed": "count(dep_delay)",
    "dep_delay_sum": "coalesce(sum(dep_delay), 0)",
    "dep_delay_max": "max(dep_delay)",
    "late_15": "count_if(dep_delay >= 15)",
    "arrived": "count(arr_delay)",
    "arr_delay_sum": "coalesce(sum(arr_delay), 0)",
    "wet_departed": "count_if(precip > 0 AND dep_delay IS NOT NULL)",
    "wet_dep_delay_sum": "coalesce(sum(dep_delay) FILTER (WHERE precip > 0), 0)",
}
STATISTICS = tuple(_FROM_FLIGHTS)


class FlightQuery:
    """Writes ``flights/batch=N`` with one row per message, and ``statistics/batch=N`` with all statistics up to batch N.

    ``start`` starts the query or continues from the checkpoint; ``rows`` counts the rows of the flights table.
    """

    def __init__(
        self, spark: "SparkSession", weather: "pa.Table", *, namesrv: str, topic: str, directory: Path, rows_per_batch: int
    ) -> None:
        self._spark = spark
        self._namesrv = namesrv
        self._topic = topic
        self._directory = directory
        self._rows_per_batch = rows_per_batch
        self._lock = threading.Lock()
        self._written: dict[int, int] = {}
        self._repeated: list[int] = []
        pq.write_table(weather, directory / "weather.parquet")

    @property
    def flights_path(self) -> Path:
        return self._directory / "flights"

    @property
    def statistics_path(self) -> Path:
        return self._directory / "statistics"

    @property
    def rows(self) -> int:
        """Rows in the flights table so far."""
        with self._lock:
            return sum(self._written.values())

    @property
    def taken(self) -> int:
        """Messages in all batches started so far, including the current one, according to the checkpoint."""
        log = self._directory / "checkpoint" / "offsets"
        begun = [int(file.name) for file in log.glob("[0-9]*")] if log.is_dir() else []
        if not begun:
            return 0
        newest = (log / str(max(begun))).read_text(encoding="utf-8").splitlines()[-1]
        return sum(decode_offsets(json.loads(newest)).values())

    @property
    def batches(self) -> int:
        """Batches written so far."""
        with self._lock:
            return len(self._written)

    @property
    def repeated(self) -> list[int]:
        """Numbers of batches that were written again after an interruption."""
        with self._lock:
            return list(self._repeated)

    def start(self) -> "StreamingQuery":
        """Start the query from its checkpoint, or from the beginning of the topic when there is none."""
        from pyspark.sql import functions as f

        source = (
            self._spark.readStream.format("rocketmq")
            .option("nameserver", self._namesrv)
            .option("subscribe", self._topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self._rows_per_batch))
            .option("columns", "body,tags,brokerName,queueId,queueOffset")
            .load()
        )
        event = f.from_json(f.col("body").cast("string"), _BODY, {"mode": "FAILFAST"})
        flights = source.select(event.alias("event"), "tags", "brokerName", "queueId", "queueOffset").select(
            "event.*", "tags", "brokerName", "queueId", "queueOffset"
        )
        weather = self._spark.read.parquet(str(self._directory / "weather.parquet"))
        joined = flights.join(f.broadcast(weather), ["origin", "time_hour"], "left")
        return (
            joined.writeStream.queryName("flights")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .foreachBatch(self._write)
            .start()
        )

    def _write(self, batch: "DataFrame", number: int) -> None:
        target = self.flights_path / f"batch={number:05d}"
        batch.write.mode("overwrite").parquet(str(target))
        self._keep_statistics(number, target)
        rows = sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet"))
        with self._lock:
            if number in self._written:
                self._repeated.append(number)
            self._written[number] = rows

    def _keep_statistics(self, number: int, flights: Path) -> None:
        """Write the statistics up to batch ``number``: those of the previous batch combined with this batch's flights."""
        from pyspark.sql import functions as f

        new = self._spark.read.parquet(str(flights)).groupBy(*KEYS).agg(*(f.expr(text).alias(name) for name, text in _FROM_FLIGHTS.items()))
        if number > 0:
            old = self._spark.read.schema(new.schema).parquet(str(self._statistics_of(number - 1)))
            add: dict[str, Any] = {name: f.max if name.endswith("_max") else f.sum for name in STATISTICS}
            new = old.unionByName(new).groupBy(*KEYS).agg(*(combine(name).alias(name) for name, combine in add.items()))
        new.coalesce(1).write.mode("overwrite").parquet(str(self._statistics_of(number)))
        # Keep the previous statistics: a repetition of this batch needs them again.
        if number > 1:
            shutil.rmtree(self._statistics_of(number - 2), ignore_errors=True)

    def _statistics_of(self, number: int) -> Path:
        return self.statistics_path / f"batch={number:05d}"


DAY_KEYS = ("origin", "day")
_OF_A_DAY = {
    "flights": "count(1)",
    "departed": "count(dep_delay)",
    "dep_delay_sum": "coalesce(sum(dep_delay), 0)",
    "dep_delay_max": "max(dep_delay)",
    "late_15": "count_if(dep_delay >= 15)",
}
DAY_COLUMNS = (*DAY_KEYS, *_OF_A_DAY)
# Flights are up to a week late, and while a backlog is read, one queue may be two weeks ahead of another.
WATERMARK = timedelta(days=31)


class DayQuery:
    """Writes ``days/batch=N`` with the days that batch N closed, and a message for each of them to a topic.

    It reads the flights and a clock topic that only advances the watermark: without new flights it closes the last days.
    """

    def __init__(
        self, spark: "SparkSession", *, namesrv: str, topic: str, clock_topic: str, results_topic: str, directory: Path, rows: int
    ) -> None:
        self._spark = spark
        self._namesrv = namesrv
        self._topics = f"{topic},{clock_topic}"
        self._results_topic = results_topic
        self._directory = directory
        self._rows_per_batch = rows
        self._lock = threading.Lock()
        self._begun: list[int] = []

    @property
    def batches(self) -> list[int]:
        """Numbers of the batches started so far; a repeated batch occurs twice."""
        with self._lock:
            return list(self._begun)

    def start(self) -> "StreamingQuery":
        """Start the query from its checkpoint, or from the beginning of the topics when there is none."""
        from pyspark.sql import functions as f

        source = (
            self._spark.readStream.format("rocketmq")
            .option("nameserver", self._namesrv)
            .option("subscribe", self._topics)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self._rows_per_batch))
            .option("columns", "body")
            .load()
        )
        flights = (
            source.select(f.from_json(f.col("body").cast("string"), _BODY, {"mode": "FAILFAST"}).alias("event"))
            .select("event.*")
            .withWatermark("scheduled", f"{WATERMARK.days} days")
        )
        # Clock messages have no airport and belong to a day that never closes. A filter would be moved before the watermark and drop them.
        days = flights.groupBy("origin", f.window("scheduled", "1 day")).agg(
            *(f.expr(text).alias(name) for name, text in _OF_A_DAY.items())
        )
        return (
            days.select("origin", f.to_date("window.start").alias("day"), *_OF_A_DAY)
            .writeStream.queryName("days")
            .outputMode("append")
            .option("checkpointLocation", str(self._directory / "checkpoint-days"))
            .foreachBatch(self._write)
            .start()
        )

    def _write(self, batch: "DataFrame", number: int) -> None:
        with self._lock:
            self._begun.append(number)
        target = self._directory / "days" / f"batch={number:05d}"
        batch.write.mode("overwrite").parquet(str(target))
        # Read the table back: using the batch again would compute it a second time.
        closed = self._spark.read.schema(batch.schema).parquet(str(target))
        messages = closed.selectExpr(
            "to_json(struct(*)) AS body", "origin AS tags", "concat(origin, '-', day) AS keys", "concat(origin, '-', day) AS dedupKey"
        )
        (
            messages.write.format("rocketmq")
            .mode("append")
            .option("nameserver", self._namesrv)
            .option("topic", self._results_topic)
            .option("dedupId", "deterministic")
            .save()
        )


def clock_message(topic: str, flights: "pa.Table") -> Message:
    """Return the message that ends the flights: its time is so late that the watermark passes every day."""
    last = max(flights["scheduled"].to_pylist())
    now = datetime.fromisoformat(last) + WATERMARK + timedelta(days=2)
    return Message(topic, json.dumps({"scheduled": now.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode())


def read_days(directory: Path) -> "pa.Table":
    """Return the days on disk, sorted by key, read without Spark."""
    import pyarrow as pa

    files = sorted((directory / "days").glob("batch=*/*.parquet"))
    tables = [pq.read_table(file, partitioning=None).select(DAY_COLUMNS) for file in files]
    if not tables:
        return pa.table({})
    return pa.concat_tables(tables).sort_by([(name, "ascending") for name in DAY_KEYS]).combine_chunks()


def read_flights(directory: Path) -> "pa.Table":
    """Return the flights table on disk with the number of each row's file, read without Spark."""
    import pyarrow as pa

    files = sorted((directory / "flights").glob("batch=*/*.parquet"))
    tables = []
    for number, file in enumerate(files):
        table = pq.read_table(file, partitioning=None)
        tables.append(table.append_column("file", pa.array([number] * table.num_rows, pa.int64())))
    return pa.concat_tables(tables).combine_chunks() if tables else pa.table({})


def read_statistics(directory: Path) -> "pa.Table":
    """Return the newest statistics on disk, sorted by key."""
    import pyarrow as pa

    newest = sorted((directory / "statistics").glob("batch=*"))
    if not newest:
        return pa.table({})
    table = ds.dataset(newest[-1], format="parquet").to_table().select([*KEYS, *STATISTICS])
    return table.sort_by([(name, "ascending") for name in KEYS]).combine_chunks()
