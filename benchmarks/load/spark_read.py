"""Rows per second of a Spark batch read from our broker, beside what the way into the JVM allows with no broker at all.

Both reads run in one warm session, in turns: the `rocketmq` source over a topic of 1 KiB messages, and a source whose tasks hand over one
Arrow batch of the same messages again and again. The rows go to Spark's "noop" sink, which reads every column and keeps nothing.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.load.sides import serve
from benchmarks.report import spread, write_result
from sprocketmq import AdminClient, Message, Producer
from sprocketmq.spark import local_session
from sprocketmq.spark.access import close_access, cluster_access
from sprocketmq.spark.planning import QueueRange
from sprocketmq.spark.reading import RangeReader
from sprocketmq.spark.schema import DEFAULT_COLUMNS, spark_schema

GOAL_ROWS_PER_S = 120_000
TOPIC = "SparkRead"
BODY_BYTES = 1024
QUEUES = 8
CORES = 2
WARM_UP = 5


class Ceiling(DataSource):
    """Hands over the batch in option `batch` (an Arrow file) until there were `rows` rows."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return spark_schema()

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader(self.options["batch"], int(self.options["rows"]))


class CeilingReader(DataSourceReader):
    def __init__(self, path: str, rows: int) -> None:
        self._path = path
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // CORES)] * CORES

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        left = partition.value
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def fill(namesrv: str, messages: int) -> None:
    """Send the messages in batches of 100, the queues side by side."""

    async def send() -> None:
        body = os.urandom(BODY_BYTES)
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with Producer("bench", namesrv=namesrv) as producer:

            async def lane(queue: Any) -> None:
                for first in range(0, messages // QUEUES, 100):
                    await producer.send_batch([Message(TOPIC, body, "TagA", (f"key-{first + i}",), queue=queue) for i in range(100)])

            await asyncio.gather(*map(lane, await producer.queues(TOPIC)))

    asyncio.run(send())


def one_batch(namesrv: str, path: str) -> int:
    """Write the first batch of a queue to an Arrow file and return its rows."""
    access = cluster_access(namesrv, "bench")
    queue = access.queues([TOPIC])[0]
    batch = next(RangeReader(access.pull, DEFAULT_COLUMNS).read([QueueRange(queue, 0, access.latest([queue])[queue])]))
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    close_access()
    return int(batch.num_rows)


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--namesrv", help="a running cluster to use instead of one of our own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as directory:
        if options.namesrv:
            return run(options.namesrv, options.messages, options.rounds, directory)
        with serve(Path(directory)) as (namesrv, _):
            return run(namesrv, options.messages, options.rounds, directory)


def run(namesrv: str, messages: int, rounds: int, directory: str) -> int:
    batch_path = f"{directory}/batch.arrow"
    # In a process of its own: the memory of 400,000 messages and their results must not stay in the driver.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(fill, namesrv, messages).result()
        batch_rows = pool.submit(one_batch, namesrv, batch_path).result()
    spark = local_session("spark-read", cores=CORES, memory="2g", conf={"spark.sql.warehouse.dir": f"{directory}/warehouse"})
    try:
        spark.dataSource.register(Ceiling)
        reader = spark.read.format("rocketmq").option("nameserver", namesrv).option("subscribe", TOPIC).option("maxPartitions", str(CORES))
        source = reader.load()
        ceiling = spark.read.format("ceiling").option("batch", batch_path).option("rows", str(messages)).load()
        found = source.count()
        if found != messages:
            print(f"the source returned {found} rows, {messages} were sent")
            return 1

        def drain(frame: DataFrame) -> None:
            frame.write.format("noop").mode("overwrite").save()

        source_rates: list[float] = []
        ceiling_rates: list[float] = []
        for i in range(WARM_UP + rounds):
            for frame, rates in ((source, source_rates), (ceiling, ceiling_rates)):
                rate = messages / timed(lambda frame=frame: drain(frame))  # type: ignore[misc]
                if i >= WARM_UP:
                    rates.append(rate)
        version = spark.version
    finally:
        spark.stop()
    figures = {
        "what": f"batch read of {messages} messages of {BODY_BYTES} bytes, default columns, local[{CORES}], warm session",
        "goal_rows_per_s": GOAL_ROWS_PER_S,
        "rows_per_s": spread(source_rates, 0),
        "ceiling_rows_per_s": spread(ceiling_rates, 0),
        "of_ceiling": round(sorted(source_rates)[rounds // 2] / sorted(ceiling_rates)[rounds // 2], 3),
        "batch_rows": batch_rows,
        "spark": version,
    }
    path = write_result("spark-read", figures)
    median = figures["rows_per_s"]["median"]
    print(f"source {median:,.0f} rows/s, ceiling {figures['ceiling_rows_per_s']['median']:,.0f} rows/s -> {path}")
    return 0 if median >= GOAL_ROWS_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
