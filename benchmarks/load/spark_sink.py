"""Rows per second of a Spark write into our broker, beside Spark's own write of the same rows to Parquet.

The rows come from a Parquet file with bodies of 1 KiB of random bytes, tags and keys. In one warm session, in turns: the sink into a plain
topic, the sink into a topic of batch queues, the sink with deterministic ids, Spark's own writer of Parquet (uncompressed and without
dictionaries), and `foreachPartition` with our producer and AutoBatch, the best that can be done a row at a time. A writer that only counts
shows what the way out of the JVM allows. Beside each rate stands the processor time of a row: of the JVM, of Spark's Python workers, and of
the broker. Exits 1 when a goal is missed.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from benchmarks.load.sides import serve
from benchmarks.load.stores import give_back
from benchmarks.processor import processor_s, us_a_row
from benchmarks.report import spread, timed, write_result
from sprocketmq import AdminClient, Message, sync
from sprocketmq.spark import session

GOAL_ROWS_PER_S = 120_000
GOAL_OF_PARQUET = 0.6
BODY_BYTES = 1024
QUEUES = 8
CORES = 2
WARM_UP = 3
PLAIN, BATCHES, RIVAL = "SparkSink", "SparkSinkBatches", "SparkSinkRival"
# The rival takes several times as long for a row.
RIVAL_SHARE = 4
# One run is enough for what runs little code of its own in the JVM.
WARM_AT_ONCE = ("deterministic_ids", "row_by_row")


class Counting(DataSource):
    """Takes rows and keeps none."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def make_rows(path: str, rows: int) -> None:
    """Write a Parquet file of as many row groups as there are tasks."""
    bodies = [os.urandom(BODY_BYTES) for _ in range(rows)]
    table = pa.table({"body": bodies, "tags": [f"tag{i % 4}" for i in range(rows)], "keys": [f"key-{i}" for i in range(rows)]})
    pq.write_table(table, path, row_group_size=-(-rows // CORES), use_dictionary=["tags"], compression="none")


def create_topics(namesrv: str) -> None:
    async def create() -> None:
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.create_topic(PLAIN, queues=QUEUES)
            await admin.create_topic(RIVAL, queues=QUEUES)
            await admin.create_topic(BATCHES, queues=QUEUES, attributes={"queue.type": "BatchCQ"})

    asyncio.run(create())


def stored(namesrv: str, topic: str) -> int:
    with sync.AdminClient(namesrv=namesrv) as admin:
        return sum(admin.max_offset(queue) for queue in admin.queues(topic))


def row_by_row(namesrv: str) -> Callable[[Iterable[Row]], None]:
    """Return a function for foreachPartition: a producer with AutoBatch, a message for each row."""

    def send(rows: Iterable[Row]) -> None:
        failed: list[BaseException] = []
        taken = 0
        with sync.Producer("bench", namesrv=namesrv, auto_batch=True) as producer:
            for row in rows:
                message = Message(RIVAL, bytes(row.body), row.tags, (row.keys,))
                producer.submit(message, lambda _, error: failed.append(error) if error else None)
                taken += 1
                if not taken % 2000:
                    producer.room()
            producer.flush()
        if failed:
            raise failed[0]

    return send


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-bytes", help="option batchBytes of the sink (its default)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as directory, serve(Path(directory)) as (namesrv, _):
        return run(namesrv, options.rows, options.rounds, Path(directory), options.batch_bytes)


def run(namesrv: str, rows: int, rounds: int, directory: Path, batch_bytes: str | None) -> int:
    path = str(directory / "rows.parquet")
    # In a process of its own: the memory of the rows must not stay in the driver.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(make_rows, path, rows).result()
    create_topics(namesrv)
    # One partition for each core.
    conf = {"spark.sql.warehouse.dir": f"{directory}/warehouse", "spark.sql.files.maxPartitionBytes": "4g"}
    spark = session("spark-sink", cores=CORES, memory="2g", conf=conf)
    try:
        spark.dataSource.register(Counting)
        frame = spark.read.parquet(path)

        def into(topic: str, **more: str) -> Callable[[], None]:
            given = {"nameserver": namesrv, "topic": topic, **more, **({"batchBytes": batch_bytes} if batch_bytes else {})}
            return lambda: frame.write.format("rocketmq").mode("append").options(**given).save()

        few: DataFrame = frame.sample(1 / RIVAL_SHARE, seed=1)
        few_rows = few.count()
        send = row_by_row(namesrv)
        parquet = frame.write.format("parquet").mode("overwrite").options(**{"compression": "none", "parquet.enable.dictionary": "false"})
        ways: dict[str, tuple[int, Callable[[], None]]] = {
            "plain": (rows, into(PLAIN)),
            "batch_queues": (rows, into(BATCHES)),
            "deterministic_ids": (rows, into(PLAIN, dedupId="deterministic")),
            "parquet": (rows, lambda: parquet.save(f"{directory}/written")),
            "counting": (rows, lambda: frame.write.format("counting").mode("append").save()),
            "row_by_row": (few_rows, lambda: few.foreachPartition(send)),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        spent: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for i in range(WARM_UP + rounds):
            for name, (amount, work) in ways.items():
                if name in WARM_AT_ONCE and 0 < i < WARM_UP:
                    continue
                before = processor_s()
                rate = amount / timed(work)
                if i >= WARM_UP:
                    rates[name].append(rate)
                    spent[name].append(us_a_row(before, processor_s(), amount))
                give_back((directory / "store" / "commitlog").iterdir())
                give_back((directory / "written").glob("*.parquet"))
        partitions = frame.rdd.getNumPartitions()
        version = spark.version
    finally:
        spark.stop()
    expected = {PLAIN: rows * (WARM_UP + 1 + 2 * rounds), BATCHES: rows * (WARM_UP + rounds), RIVAL: few_rows * (1 + rounds)}
    for topic, sent in expected.items():
        found = stored(namesrv, topic)
        if found != sent:
            print(f"topic {topic} holds {found} messages, {sent} were written")
            return 1
    medians = {name: spread(values, 0) for name, values in rates.items()}
    of_parquet = {name: round(medians[name]["median"] / medians["parquet"]["median"], 3) for name in ("plain", "batch_queues")}
    figures = {
        "what": f"batch write of {rows} rows with bodies of {BODY_BYTES} bytes, tag and key, from Parquet, local[{CORES}], warm session",
        "goal_rows_per_s": GOAL_ROWS_PER_S,
        "rows_per_s": medians["plain"],
        "batch_queues_rows_per_s": medians["batch_queues"],
        "deterministic_ids_rows_per_s": medians["deterministic_ids"],
        "counting_writer_rows_per_s": medians["counting"],
        "row_by_row_rows_per_s": medians["row_by_row"],
        "of_row_by_row": round(medians["plain"]["median"] / medians["row_by_row"]["median"], 2),
        "of_counting_writer": round(medians["plain"]["median"] / medians["counting"]["median"], 3),
        "parquet_rows_per_s": medians["parquet"],
        "goal_of_parquet": GOAL_OF_PARQUET,
        "of_parquet": of_parquet,
        "processor_us_a_row": {
            name: {kind: round(statistics.median(one[kind] for one in found), 2) for kind in found[0]} for name, found in spent.items()
        },
        "batch_bytes": batch_bytes or "default",
        "tasks": partitions,
        "spark": version,
    }
    file = write_result("spark-sink", figures)
    for name, one in medians.items():
        cpu = statistics.median(one["all"] for one in spent[name])
        print(f"{name:18} {one['median']:10,.0f} rows/s ({one['min']:,.0f} to {one['max']:,.0f})  processor time {cpu:.2f} us a row")
    print(f"of Parquet's writer: {of_parquet} (goal {GOAL_OF_PARQUET})\n-> {file}")
    return 0 if medians["plain"]["median"] >= GOAL_ROWS_PER_S and min(of_parquet.values()) >= GOAL_OF_PARQUET else 1


if __name__ == "__main__":
    sys.exit(main())
