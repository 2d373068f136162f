"""What test_cluster.py runs on a cluster master, in a process of its own, as one process has one JVM: ``python -m tests.spark.cluster_job PLAN``.

PLAN is a JSON object: `master`, `nameserver`, `topics`, `copies` (the topic to write to) `home`, with a `store` in it, and `whole`: whether
to stream, and to make a store anew, too. Prints one JSON object with what was found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from tests.spark_faults.query import TOO_BUSY

from sprocketmq.spark import session
from sprocketmq.spark.jobs.audit import audit
from sprocketmq.spark.jobs.land import land, landed
from sprocketmq.spark.jobs.rebuild_index import rebuild_index


def tasks_by_executor(spark: Any) -> dict[str, int]:
    """Return how many tasks each executor has run."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    found = [executors.apply(i) for i in range(executors.size())]
    return {one.id(): one.totalTasks() for one in found if one.id() != "driver"}


def main(text: str) -> None:
    plan = json.loads(text)
    home = Path(plan["home"])
    spark = session(
        "cluster",
        master=plan["master"],
        memory="512m",
        shuffle_partitions=2,
        quick_start=True,
        log_file=home / "spark.log",
        conf={
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            # Tasks begin when both executors are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
        },
    )
    place = {"nameserver": plan["nameserver"], "startingOffsets": "earliest", "minPartitions": "4"}
    result: dict[str, Any] = {}

    rows = spark.read.format("rocketmq").options(**place, subscribe=",".join(plan["topics"])).load()
    result["read"] = sorted([r.topic, r.queueId, r.queueOffset, bytes(r.body).decode()] for r in rows.collect())
    result["tasks"] = tasks_by_executor(spark)

    copies = rows.selectExpr("body", "keys", "tags", "'{}' AS topic".format(plan["copies"]))
    copies.write.format("rocketmq").option("nameserver", plan["nameserver"]).mode("append").save()
    print("copied", flush=True)

    if plan["whole"]:
        result |= stream_copies(spark, place, plan["copies"], home)
        rebuilt = rebuild_index(spark, home / "store", split_bytes=20_000)
        result["rebuilt units"] = rebuilt.units
        result["audit"] = audit(spark, home / "store", split_bytes=20_000).verdict

    summary = land(spark, plan["topics"], str(home / "landed"), nameserver=plan["nameserver"])
    result["landed"] = summary.as_dict()
    result["landed rows"] = landed(spark, home / "landed").count()
    print(json.dumps(result), flush=True)
    spark.stop()


def stream_copies(spark: Any, place: dict[str, str], topic: str, home: Path) -> dict[str, Any]:
    """Read the topic of the copies as a stream; return its bodies and how many micro-batches had rows."""
    table, checkpoint = str(home / "table"), str(home / "checkpoint")
    stream = spark.readStream.format("rocketmq").options(**place, subscribe=topic, maxOffsetsPerTrigger="300").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    while True:
        query = writer.start(table)
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as e:
            if TOO_BUSY not in str(e):
                raise
    streamed = sorted(bytes(row.body).decode() for row in spark.read.parquet(table).collect())
    return {"streamed": streamed, "batches": sum(progress["numInputRows"] > 0 for progress in query.recentProgress)}


if __name__ == "__main__":
    main(sys.argv[1])
