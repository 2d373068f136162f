"""What test_connect.py runs as a client of Spark Connect, in a process of its own: ``python -m tests.spark.connect_job PLAN``.

PLAN is a JSON object: `nameserver`, `topic`, `copies` and `replayed` (topics to write to), and `home`, with a `store` in it. The session is one
of Spark Connect whose server is started beside it. Prints one JSON object with what was found.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.available import run_available

from sprocketmq.spark import RocketMQDataSource, ensure_java, explain
from sprocketmq.spark.jobs.audit import audit
from sprocketmq.spark.jobs.land import land, landed
from sprocketmq.spark.jobs.rebuild_index import rebuild_index
from sprocketmq.spark.jobs.replay import replay
from sprocketmq.spark.jobs.tasks import run_tasks, tasks_at_a_time
from sprocketmq.spark.notebook import batch_figures
from sprocketmq.spark.version_checks import spark_version


def double(item: int, note: Any) -> int:
    note(item)
    return 2 * item


def refuse(item: int, note: Any) -> int:
    raise ValueError(f"{item} is too much")


def wait_for_ever(item: int, note: Any) -> None:
    threading.Event().wait()


def refusal(work: Any) -> str | None:
    try:
        work()
    except Exception as e:
        return explain(e)
    return None


class Impatient(Exception):
    pass


def interrupted(spark: Any) -> bool:
    """Return whether a job whose tasks never end can be left."""

    def leave(done: int) -> None:
        raise Impatient

    try:
        run_tasks(spark, "wait", wait_for_ever, [1, 2], on_progress=leave)
    except Impatient:
        return True
    return False


def main(text: str) -> None:
    plan = json.loads(text)
    home = Path(plan["home"])
    ensure_java()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    if spark_version() >= (4, 1):  # 4.0 refuses a format that the server has found by itself
        spark.dataSource.register(RocketMQDataSource)
    place = {"nameserver": plan["nameserver"], "startingOffsets": "earliest"}
    result: dict[str, Any] = {"session": type(spark).__module__}

    def bodies(topic: str) -> list[str]:
        frame = spark.read.format("rocketmq").options(**place, subscribe=topic).load()
        return sorted(row.body for row in frame.selectExpr("cast(body AS string) AS body").collect())

    result["read"] = bodies(plan["topic"])
    rows = spark.read.format("rocketmq").options(**place, subscribe=plan["topic"]).load()
    rows.select("body", "keys", "tags").write.format("rocketmq").options(nameserver=plan["nameserver"], topic=plan["copies"]).mode(
        "append"
    ).save()
    result["written"] = bodies(plan["copies"])
    result["refused"] = refusal(
        lambda: spark.read.format("rocketmq").options(**place, subscribe=plan["topic"], colums="body").load().count()
    )

    stream = spark.readStream.format("rocketmq").options(**place, subscribe=plan["topic"], maxOffsetsPerTrigger="200").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True)
    batches = run_available(lambda: writer.start(str(home / "streamed")))
    result["batches"] = len(batches)
    result["watched"] = sum(batch_figures(progress).rows for progress in batches)
    result["streamed"] = sorted(bytes(row.body).decode() for row in spark.read.parquet(str(home / "streamed")).collect())

    result["at a time"] = tasks_at_a_time(spark)
    told: list[int] = []
    result["doubled"] = run_tasks(spark, "double", double, list(range(6)), on_progress=told.append)
    result["told"] = told[-1]
    result["failed"] = refusal(lambda: run_tasks(spark, "refuse", refuse, [13]))
    result["interrupted"] = interrupted(spark)

    for kind in ("direct", "spark"):
        summary = land(spark, plan["topic"], str(home / kind), nameserver=plan["nameserver"], writer=kind)
        result[f"landed {kind}"] = summary.messages
    result["landed rows"] = landed(spark, home / "direct").count()
    result["replayed"] = replay(spark, plan["topic"], to=plan["replayed"], nameserver=plan["nameserver"]).messages
    result["rebuilt"] = rebuild_index(spark, home / "store", split_bytes=20_000).units
    found = audit(spark, home / "store", split_bytes=20_000)
    result["audit"] = found.verdict
    result["queues"] = found.queues_frame(spark).count()
    print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
