"""What a micro-batch costs beside its rows: two tasks of 50 rows each, back to back, into Spark's "noop" sink.

In one warm session, in turns: the `rocketmq` source on a topic of two queues; the same with asynchronous progress tracking; on a topic with
64 more queues that stay empty; and, as the floor, a Python source that hands over ready batches with no broker behind it, both ways. A
figure is the median of 40 triggers, after 10 that do not count.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from benchmarks.load.sides import serve
from benchmarks.report import spread, write_result
from sprocketmq import AdminClient, Message, Producer
from sprocketmq.arrow.schema import DEFAULT_COLUMNS, arrow_schema, spark_schema
from sprocketmq.spark import session

GOALS = {"default_ms": 300.0, "asynchronous_ms": 150.0, "idle_ratio": 1.3}
TASKS = 2
ROWS = 100
WARM, COUNTED = 10, 40
# Spark keeps the figures of a query's last hundred triggers.
TRIGGERS = WARM + COUNTED
IDLE_QUEUES = 64
LIMIT_S = 240.0
TOPICS = {"Triggers": TASKS, "TriggersIdle": TASKS + IDLE_QUEUES}
ASYNCHRONOUS = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "1000"}
STAGES = ("latestOffset", "queryPlanning", "getBatch", "walCommit", "addBatch", "commitOffsets")


class Floor(DataSource):
    """As many rows and tasks with nothing to ask and nothing to pull."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        return spark_schema()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return FloorReader()


class FloorReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(ROWS)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(ROWS // TASKS)] * TASKS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = partition.value
        values = {"topic": ["floor"] * rows, "body": [b"x" * 1024] * rows}
        schema = arrow_schema(DEFAULT_COLUMNS)
        yield pa.RecordBatch.from_arrays(
            [pa.array(values.get(field.name, [None] * rows), field.type) for field in schema],
            schema=schema,
        )


def fill(namesrv: str) -> None:
    """Give the first two queues of every topic enough for one query; the rest stay empty."""

    async def send() -> None:
        async with AdminClient(namesrv=namesrv) as admin:
            for topic, queues in TOPICS.items():
                await admin.create_topic(topic, queues=queues)
        async with Producer("bench", namesrv=namesrv) as producer:
            for topic in TOPICS:
                for queue in (await producer.queues(topic))[:TASKS]:
                    for _ in range(2 * TRIGGERS):
                        await producer.send_batch([Message(topic, b"x" * 1024, queue=queue) for _ in range(ROWS // TASKS)])

    asyncio.run(send())


def triggers(
    spark: SparkSession, kind: str, options: Mapping[str, str], writing: Mapping[str, str], directory: Path
) -> list[dict[str, Any]]:
    """Run a query from the beginning and return what Spark tells of its counted triggers."""
    checkpoint = directory / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    stream = spark.readStream.format(kind).options(**options).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).options(**writing)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        deadline = time.monotonic() + LIMIT_S
        while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < TRIGGERS):
            if time.monotonic() > deadline:
                break
            time.sleep(0.25)
        done = [progress for progress in query.recentProgress if progress["numInputRows"]]
        failed = query.exception()
    finally:
        query.stop()
    counted = done[WARM:TRIGGERS]
    if failed is not None or len(counted) < COUNTED:
        raise RuntimeError(f"{kind} {dict(options)} made {len(done)} triggers: {failed or 'too slow'}")
    if any(progress["numInputRows"] != ROWS for progress in counted):
        raise RuntimeError(f"{kind} {dict(options)}: a trigger had other than {ROWS} rows")
    return counted


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind (2)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of the session, to see what it does")
    parser.add_argument("--only", help="only kinds whose name has this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as directory, serve(Path(directory)) as (namesrv, _):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(fill, namesrv).result()
        return run(namesrv, Path(directory), options)


def run(namesrv: str, directory: Path, options: argparse.Namespace) -> int:
    """Measure against a running broker."""
    reading = {
        topic: {
            "nameserver": namesrv,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(ROWS),
            "minPartitions": str(TASKS),
        }
        for topic in TOPICS
    }
    kinds: dict[str, tuple[str, Mapping[str, str], Mapping[str, str]]] = {
        "default": ("rocketmq", reading["Triggers"], {}),
        "asynchronous": ("rocketmq", reading["Triggers"], ASYNCHRONOUS),
        "default, idle queues": ("rocketmq", reading["TriggersIdle"], {}),
        "asynchronous, idle queues": ("rocketmq", reading["TriggersIdle"], ASYNCHRONOUS),
        "floor": ("floor", {}, {}),
        "floor, asynchronous": ("floor", {}, ASYNCHRONOUS),
    }
    kinds = {name: kind for name, kind in kinds.items() if options.only is None or options.only in name}
    conf = {"spark.sql.warehouse.dir": str(directory / "warehouse"), **dict(one.split("=", 1) for one in options.conf)}
    # A query that is stopped ends in the middle of a trigger, and Spark has much to say about that.
    spark = session("spark-triggers", master=f"local[{TASKS}]", log_file=directory / "spark.log", conf=conf)
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in kinds}
    try:
        spark.dataSource.register(Floor)
        version = spark.version
        for kind in list(kinds.values())[:2]:  # the JVM's own warming
            triggers(spark, *kind, directory)
        for _ in range(options.rounds):
            for name, kind in kinds.items():
                found[name].append(triggers(spark, *kind, directory))
                print(f"{name:28} {median_ms(found[name][-1], 'triggerExecution'):6.0f} ms", flush=True)
    finally:
        spark.stop()
    return report(found, version, options)


def median_ms(done: list[dict[str, Any]], stage: str) -> float:
    """Return the median of a stage, in ms."""
    return float(statistics.median(progress["durationMs"].get(stage, 0) for progress in done))


def report(found: Mapping[str, list[list[dict[str, Any]]]], version: str, options: argparse.Namespace) -> int:
    """Write and print all figures; return 1 when a goal was missed."""
    kinds: dict[str, dict[str, Any]] = {
        name: {
            "trigger_ms": spread((median_ms(done, "triggerExecution") for done in rounds), 0),
            "stages_ms": {stage: statistics.median(median_ms(done, stage) for done in rounds) for stage in STAGES},
        }
        for name, rounds in found.items()
    }
    if options.only is not None or options.conf:
        for name, one in kinds.items():
            print(name, one)
        return 0
    medians = {name: figures["trigger_ms"]["median"] for name, figures in kinds.items()}
    figures = {
        "default_ms": medians["default"],
        "asynchronous_ms": medians["asynchronous"],
        "idle_ratio": round(medians["default, idle queues"] / medians["default"], 3),
    }
    missed = [name for name, goal in GOALS.items() if figures[name] > goal]
    write_result(
        "spark-triggers",
        {
            "what": f"triggers of {ROWS} rows in {TASKS} tasks, noop sink, medians of {COUNTED}, median of {options.rounds} runs, warm session",
            "goals_at_most": GOALS,
            "missed": missed,
            **figures,
            "kinds": kinds,
            "spark": version,
        },
    )
    for name, one in kinds.items():
        print(f"{name:28} {one['trigger_ms']['median']:6.0f} ms   " + "  ".join(f"{k} {v:.0f}" for k, v in one["stages_ms"].items()))
    for name, goal in GOALS.items():
        print(f"{name:20} {figures[name]:8.2f}   at most {goal:g}{'  MISSED' if name in missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
