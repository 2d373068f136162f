"""Rows per second of Spark batch reads: from our broker, from Apache's beside its Java push consumer, and what the way into the JVM allows.

A read is a whole Spark job, planning included, of messages of 1 KiB of random bytes with a tag and a key. Everything runs in turns in one
warm session on the same cores as the brokers: the `rocketmq` source over a plain topic and one of batch queues (batches of 32), on our broker
and on Apache's, each with its defaults; Spark's own scan of the same rows in Parquet (uncompressed and without dictionaries, which is fastest
for such bodies); Apache's push consumer over the same topics of Apache's broker, touching every body; and a source whose tasks hand over one
Arrow batch of the same messages again and again, with no broker at all. The rows go to Spark's "noop" sink, which reads every column and
keeps nothing. What is not measured stands still meanwhile. With ``--mixed`` bodies have 512 to 1,536 bytes. With ``--cold`` nothing is in
the page cache when a read begins, neither of the brokers' stores nor of the Parquet files.

Beside each rate stands the processor time of a row: of the JVM, of Spark's Python workers, and of the brokers. Exits 1 when a goal is missed,
2 when Apache's side cannot run here (our figures are written all the same).
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from tests.interop import apache

from benchmarks.load.sides import Side, Topic, create_topic, ours, theirs
from benchmarks.load.stores import give_back
from benchmarks.processor import processor_s, us_a_row
from benchmarks.report import spread, write_result
from sprocketmq import Message, Producer
from sprocketmq.arrow.schema import DEFAULT_COLUMNS, spark_schema
from sprocketmq.spark import session
from sprocketmq.spark.source.access import close_access, cluster_access
from sprocketmq.spark.source.planning import QueueRange
from sprocketmq.spark.source.reading import RangeReader

QUEUES = 8
TOPICS = (Topic("SparkReadPlain", QUEUES), Topic("SparkReadBatchCQ", QUEUES, batch_queues=True))
KINDS = {"plain": "SparkReadPlain", "batchcq": "SparkReadBatchCQ"}
# Rows per second from our broker; from Apache's, of what its Java push consumer takes from the same topic.
GOALS = {"ours-plain": 150_000, "ours-batchcq": 200_000}
JAVA_GOAL = 1.0
PARQUET_GOAL = 0.85
BODY_BYTES = 1024
MIXED_BYTES = (512, 1536)
BODIES = 4096
BATCH = 32
CORES = 2
CONSUME = {"batch_max": 256, "pull_bytes": 2 << 20, "max_cached": 2048, "timeout_s": 60.0}

Run = Callable[[], float]
Figures = dict[str, list[dict[str, float]]]


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


def fill(namesrv: str, messages: int, mixed: bool) -> None:
    """Send the messages of every topic in batches, the queues side by side."""

    async def send() -> None:
        sizes = random.Random(1)
        bodies = [os.urandom(sizes.randint(*MIXED_BYTES) if mixed else BODY_BYTES) for _ in range(BODIES)]
        async with Producer("bench", namesrv=namesrv) as producer:

            async def lane(queue: Any) -> None:
                for first in range(0, messages // QUEUES, BATCH):
                    keys = range(first, min(first + BATCH, messages // QUEUES))
                    await producer.send_batch([Message(queue.topic, bodies[i % BODIES], "TagA", (f"key-{i}",), queue=queue) for i in keys])

            for topic in TOPICS:
                await asyncio.gather(*map(lane, await producer.queues(topic.name)))

    asyncio.run(send())


def one_batch(namesrv: str, path: str) -> int:
    """Write the first batch of a queue to an Arrow file and return its rows."""
    access = cluster_access(namesrv, "bench")
    queue = access.queues([TOPICS[0].name])[0]
    batch = next(RangeReader(access.pull, DEFAULT_COLUMNS).read([QueueRange(queue, 0, access.latest([queue])[queue])]))
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    close_access()
    return int(batch.num_rows)


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``work`` in a process of its own: the memory of all messages and their results must not stay in the driver."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


@contextlib.contextmanager
def still(sides: Sequence[Side], spark: SparkSession | None) -> Iterator[None]:
    """Stop the processes of ``sides`` and Spark's JVM while the block runs."""
    with contextlib.ExitStack() as paused:
        for side in sides:
            paused.enter_context(side.paused())
        if spark is not None:
            jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
            os.kill(jvm, signal.SIGSTOP)
            paused.callback(os.kill, jvm, signal.SIGCONT)
        yield


def spark_runs(spark: SparkSession, sides: Mapping[str, Side], messages: int, batch_path: str, directory: str) -> dict[str, Run]:
    """Return what measures one read of each kind, as rows per second. Writes the rows of our plain topic to Parquet in ``directory``."""

    def read(frame: Any, others: list[Side]) -> Run:
        def run() -> float:
            with still(others, None):
                began = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                return messages / (time.perf_counter() - began)

        return run

    found = {}
    for name, side in sides.items():
        others = [other for other in sides.values() if other is not side]
        for kind, topic in KINDS.items():
            reader = spark.read.format("rocketmq").option("nameserver", side.namesrv).option("subscribe", topic)
            frame = reader.option("maxPartitions", str(CORES)).load()
            if (rows := frame.count()) != messages:
                raise RuntimeError(f"the source returned {rows} rows of {topic} from {name}, {messages} were sent")
            found[f"{name}-{kind}"] = read(frame, others)
            if "parquet" not in found:
                frame.write.option("compression", "none").option("parquet.enable.dictionary", "false").parquet(f"{directory}/parquet")
                found["parquet"] = read(spark.read.parquet(f"{directory}/parquet"), list(sides.values()))
    ceiling = spark.read.format("ceiling").option("batch", batch_path).option("rows", str(messages)).load()
    found["ceiling"] = read(ceiling, list(sides.values()))
    return found


def java_runs(spark: SparkSession, sides: Mapping[str, Side], messages: int) -> dict[str, Run]:
    """Return what measures Apache's push consumer at its own broker, as messages per second."""
    side = sides["apache"]
    others = [other for other in sides.values() if other is not side]

    def consume(topic: str) -> Run:
        def run() -> float:
            with still(others, spark):
                figures = side.client.call("load_consume", namesrv=side.namesrv, topic=topic, count=messages, **CONSUME)
            if figures["errors"]:
                raise RuntimeError(f"Apache's push consumer of {topic}: {figures['first_error']}")
            return float(figures["messages"] / figures["elapsed_s"])

        return run

    return {f"java-{kind}": consume(topic) for kind, topic in KINDS.items()}


def measure(sides: Mapping[str, Side], options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run every kind in turns and return the figures."""
    batch_path = f"{directory}/batch.arrow"
    for side in sides.values():
        for topic in TOPICS:
            create_topic(side, topic)
        in_a_process(fill, side.namesrv, options.messages, options.mixed)
    batch_rows = in_a_process(one_batch, sides["ours"].namesrv, batch_path)
    spark = session("spark-read", cores=CORES, memory="2g", conf={"spark.sql.warehouse.dir": f"{directory}/warehouse"})
    try:
        spark.dataSource.register(Ceiling)
        runs = spark_runs(spark, sides, options.messages, batch_path, directory)
        if "apache" in sides:
            runs |= java_runs(spark, sides, options.messages)
        runs = {name: run for name, run in runs.items() if options.only in name}
        figures: Figures = {name: [] for name in runs}
        for number in range(options.warm + options.rounds):
            # Who goes first changes from round to round: Spark's JVM takes a moment to be itself again after it stood still.
            turn = number % len(runs)
            for name, run in [*runs.items()][turn:] + [*runs.items()][:turn]:
                if options.cold:
                    give_back(path for path in Path(directory).rglob("*") if path.is_file())
                before = processor_s()
                rate = run()
                if number >= options.warm:
                    figures[name].append({"rows_per_s": rate, **us_a_row(before, processor_s(), options.messages)})
            rates = "  ".join(f"{name} {found[-1]['rows_per_s']:,.0f}" for name, found in figures.items() if found)
            print(f"round {number + 1 - options.warm}  {rates}", flush=True)
        version = spark.version
    finally:
        spark.stop()
    return {
        "batch_rows": batch_rows,
        "spark": version,
        "rows_per_s": {name: spread((one["rows_per_s"] for one in found), 0) for name, found in figures.items()},
        "processor_us_a_row": {
            name: {kind: round(statistics.median(one[kind] for one in found), 2) for kind in found[0] if kind != "rows_per_s"}
            for name, found in figures.items()
        },
    }


def verdicts(rows_per_s: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each goal what was reached of it."""
    medians = {name: statistics.median(one["values"]) for name, one in rows_per_s.items()}
    found = {name: {"goal": goal, "reached": medians[name] >= goal} for name, goal in GOALS.items() if name in medians}
    for kind in KINDS:
        if (mine := medians.get(f"ours-{kind}")) and (parquet := medians.get("parquet")):
            ratio = round(mine / parquet, 3)
            found[f"ours-{kind}-of-parquet"] = {"goal": PARQUET_GOAL, "of_parquet_scan": ratio, "reached": ratio >= PARQUET_GOAL}
        mine, java = medians.get(f"apache-{kind}"), medians.get(f"java-{kind}")
        if mine and java:
            ratio = round(mine / java, 3)
            found[f"apache-{kind}"] = {"goal": JAVA_GOAL, "of_java_push_consumer": ratio, "reached": ratio >= JAVA_GOAL}
    return found


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in each topic (1,000,000)")
    parser.add_argument("--mixed", action="store_true", help="bodies of 512 to 1,536 bytes instead of 1,024")
    parser.add_argument("--cold", action="store_true", help="drop all files from the page cache before each read")
    parser.add_argument("--warm", type=int, default=3, help="rounds before counting (3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds counted (5)")
    parser.add_argument("--no-apache", action="store_true", help="our broker and the ceiling only")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only kinds with this in their name (ours, apache, java, parquet, plain, batchcq)"
    )
    options = parser.parse_args()
    missing = ""
    if not options.no_apache:
        try:
            apache.require()
        except apache.ApacheUnavailable as e:
            missing = str(e)
    with contextlib.ExitStack() as running:
        directory = running.enter_context(tempfile.TemporaryDirectory(prefix="sprocketmq-bench-", ignore_cleanup_errors=True))
        sides = {"ours": running.enter_context(ours(Path(directory) / "ours"))}
        if not missing and not options.no_apache:
            sides["apache"] = running.enter_context(theirs(Path(directory) / "theirs", {}))
        figures = measure(sides, options, directory)
    results = verdicts(figures["rows_per_s"])
    setting = {
        "what": f"batch reads of {options.messages} messages, default columns, local[{CORES}], warm session",
        "body_bytes": MIXED_BYTES if options.mixed else BODY_BYTES,
        "page_cache": not options.cold,
        "queues": QUEUES,
        "fill_batch": BATCH,
        "apache_version": apache.VERSION,
        "java_push_consumer": CONSUME,
    }
    name = "-".join(["spark-read", *(["mixed"] if options.mixed else []), *(["cold"] if options.cold else [])])
    path = write_result(name, {"setting": setting, **figures, "goals": results})
    for name, one in figures["rows_per_s"].items():
        spent = figures["processor_us_a_row"][name]
        print(f"{name:16} {one['median']:10,.0f} rows/s  processor time {spent['all']:.2f} us a row  {results.get(name, '')}")
    for name in (f"ours-{kind}-of-parquet" for kind in KINDS):
        print(f"{name:24} {results.get(name, '')}")
    print(f"-> {path}")
    if missing:
        print(f"cannot compare with Apache's client: {missing}", file=sys.stderr)
        return 2
    return 0 if all(one["reached"] for one in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
