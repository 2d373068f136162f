"""A streaming query from topics in a process of its own, to be killed: ``python -m tests.spark_faults.query PLAN``.

PLAN is a JSON object: `nameserver`, `topics`, `home` (the directory for table, checkpoint, attempts and log), `seed`, `copies` (the topic to
write to; null for a table of Parquet files), and `fail_one_in`: of so many partitions one kills its task in the middle of its first
attempt, or fails it; 0 for none.

The process prints "ready" when the query runs and ends when its standard input says so, or ends. Every attempt of a task writes a file
into HOME/attempts: a line with the ranges it was given, then one for each Arrow batch it handed to Spark.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.errors import StreamingQueryException

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark import session
from sprocketmq.spark.source.data_source import RocketMQDataSource

PLAN = "SPROCKETMQ_FAULT_PLAN"
TOO_BUSY = "Python worker failed to connect back"
COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "body")


class RecordingSource(RocketMQDataSource):
    """The `rocketmq` source, whose tasks write down what they read and fail when told to."""

    @classmethod
    def name(cls) -> str:
        return "recording"

    def streamReader(self, schema: Any) -> Any:
        reader = super().streamReader(schema)
        reader.__class__ = recording(type(reader))
        return reader


def recording(kind: Any) -> Any:
    """Return the reader of this version of Spark, whose tasks write down what they read."""

    class RecordingReader(kind):  # type: ignore[misc]
        def read(self, partition: Any) -> Iterator[Any]:
            return recorded(partition.value, super().read(partition))

    return RecordingReader


def recorded(ranges: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Pass on ``batches``, noting each; in the first attempt perhaps with an end before the end."""
    from pyspark import TaskContext

    plan = json.loads(os.environ[PLAN])
    context = TaskContext.get()
    place = f"{context.getLocalProperty('streaming.sql.batchId')}-{context.partitionId()}"
    lot = zlib.crc32(f"{plan['seed']} {place}".encode())
    fails = plan["fail_one_in"] and lot % plan["fail_one_in"] == 0 and context.attemptNumber() == 0
    with open(Path(plan["home"], "attempts", f"{place}-{uuid4().hex}"), "w", buffering=1) as notes:
        print(json.dumps([[*named(part.queue), part.start, part.end] for part in ranges]), file=notes)
        for number, batch in enumerate(batches):
            offsets = batch.column("queueOffset")
            queue = [batch.column(name)[0].as_py() for name in COLUMNS[:3]]
            print(json.dumps([*queue, offsets[0].as_py(), offsets[-1].as_py() + 1]), file=notes)
            yield batch
            if fails and number == lot // 7 % 3:
                if lot // 3 % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("a task that was to fail")


def named(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def main(text: str) -> int:
    os.environ[PLAN] = text
    plan = json.loads(text)
    home = Path(plan["home"])
    spark = session(
        "faults",
        master="local[2,4]",  # four attempts for each task, as on a cluster; a local master has one by default
        memory="512m",
        shuffle_partitions=1,
        quick_start=True,
        log_file=home / "spark.log",
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": str(home / "warehouse")},
    )
    spark.dataSource.register(RecordingSource)
    options = {
        "nameserver": plan["nameserver"],
        "subscribe": ",".join(plan["topics"]),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "10000",
        "columns": ",".join(COLUMNS),
        "batchRows": "100",
        "minPartitions": "2",
    }
    stream = spark.readStream.format("recording").options(**options).load()
    if plan["copies"] is not None:
        stream = stream.select("body")
    writer = stream.writeStream.option("checkpointLocation", str(home / "checkpoint")).trigger(processingTime="0 seconds")
    if plan["copies"] is None:
        writer = writer.format("parquet").option("path", str(home / "table"))
    else:
        writer = writer.format("rocketmq").options(nameserver=plan["nameserver"], topic=plan["copies"], dedupId="deterministic")
    query = writer.start()
    print("ready", flush=True)
    stop = threading.Event()

    def wait_for_the_word() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait_for_the_word, daemon=True).start()
    while not stop.is_set():
        try:
            if query.awaitTermination(0.1):
                return 1
        except StreamingQueryException as e:
            # Spark gives the Python process of a source ten seconds to start, too few on a machine that is busy with other things.
            if TOO_BUSY not in str(e):
                raise
            query = writer.start()
    query.stop()
    if plan["copies"] is None:
        # What Spark itself finds in the table, for whoever reads it without Spark.
        print(f"rows={spark.read.parquet(str(home / 'table')).count()}", flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
