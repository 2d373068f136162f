"""Rows per second of landing a topic as Parquet: the reading tasks write (`land`), beside Spark's own Parquet writer on the same source.

All in one warm session, in turns: `land` with its defaults; `spark.read.format("rocketmq")` into `write.parquet` with Spark's defaults; the
same with Spark told not to try a dictionary of the bodies, the best it can do with such data. Messages are of 1 KiB, random, on
batch queues.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load.sides import serve
from benchmarks.report import spread, timed, write_result
from sprocketmq import AdminClient, Message, Producer
from sprocketmq.spark import session
from sprocketmq.spark.jobs.land import land, landed_files

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL_OF_SPARK = 2.0
GOAL_ROWS_PER_S = 300_000
TOPIC = "SparkLand"
BODY_BYTES = 1024
QUEUES = 8
CORES = 2
WARM_UP = 2


def fill(namesrv: str, messages: int) -> None:
    """Send the messages in batches of 100, the queues side by side; every body is another one."""

    async def send() -> None:
        noise = os.urandom(BODY_BYTES * 4096)
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES, attributes={"queue.type": "BatchCQ"})
        async with Producer("bench", namesrv=namesrv) as producer:

            async def lane(queue: Any, number: int) -> None:
                for first in range(0, messages // QUEUES, 100):
                    batch = []
                    for i in range(first, first + 100):
                        at = (i * 1009 + number * 131) % (len(noise) - BODY_BYTES)
                        batch.append(Message(TOPIC, noise[at : at + BODY_BYTES], "TagA", (f"key-{i}",), queue=queue))
                    await producer.send_batch(batch)

            await asyncio.gather(*(lane(queue, number) for number, queue in enumerate(await producer.queues(TOPIC))))

    asyncio.run(send())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--namesrv", help="a running cluster to use instead of one of our own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as directory:
        if options.namesrv:
            return run(options.namesrv, options.messages, options.rounds, Path(directory))
        with serve(Path(directory, "broker")) as (namesrv, _):
            return run(namesrv, options.messages, options.rounds, Path(directory))


def run(namesrv: str, messages: int, rounds: int, directory: Path) -> int:
    # In a process of its own: the memory of the messages and their results must not stay in the driver.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(fill, namesrv, messages).result()
    spark = session("spark-land", cores=CORES, memory="2g", conf={"spark.sql.warehouse.dir": f"{directory}/warehouse"})
    target = directory / "table"

    def direct() -> None:
        done = land(spark, TOPIC, target, nameserver=namesrv)
        if done.messages != messages:
            raise RuntimeError(f"{done.messages} rows landed, {messages} were sent")

    def by_spark(**writer_options: str) -> None:
        reader = spark.read.format("rocketmq").option("nameserver", namesrv).option("subscribe", TOPIC)
        reader.option("maxPartitions", str(CORES)).load().write.options(**writer_options).parquet(str(target))

    ways: dict[str, Callable[[], None]] = {
        "direct": direct,
        "spark": by_spark,
        "spark_no_dictionary": lambda: by_spark(**{"parquet.enable.dictionary": "false"}),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    sizes: dict[str, int] = {}
    try:
        for i in range(WARM_UP + rounds):
            for name, way in ways.items():
                rate = messages / timed(way)
                files = landed_files(target) if name == "direct" else target.glob("*.parquet")
                sizes[name] = sum(Path(file).stat().st_size for file in files)
                shutil.rmtree(target)
                if i >= WARM_UP:
                    rates[name].append(rate)
        version = spark.version
    finally:
        spark.stop()
    spreads = {name: spread(found, 0) for name, found in rates.items()}
    median = {name: found["median"] for name, found in spreads.items()}
    ratio = round(median["direct"] / median["spark"], 2)
    figures: dict[str, Any] = {
        "what": f"{messages} messages of {BODY_BYTES} random bytes to Parquet, default columns, local[{CORES}], warm session",
        "goal_rows_per_s": GOAL_ROWS_PER_S,
        "goal_of_spark": GOAL_OF_SPARK,
        "rows_per_s": spreads,
        "direct_of_spark": ratio,
        "direct_of_spark_no_dictionary": round(median["direct"] / median["spark_no_dictionary"], 2),
        "mib": {name: round(size / (1 << 20), 1) for name, size in sizes.items()},
        "spark": version,
    }
    path = write_result("spark-land", figures)
    for name, rate in median.items():
        print(f"{name:20} {rate:10,.0f} rows/s   {figures['mib'][name]:,.1f} MiB")
    print(f"direct is {ratio:.2f} of Spark's own writer (goal {GOAL_OF_SPARK:g}) -> {path}")
    return 0 if ratio >= GOAL_OF_SPARK else 1


if __name__ == "__main__":
    sys.exit(main())
