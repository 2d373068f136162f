"""What test_cluster.py runs on a cluster master at a secured cluster: ``python -m tests.spark.secured_job PLAN``.

PLAN is a JSON object: `master`, `nameserver`, `topic`, `copies` (the topic to write to), `prefix` (of environment variables) and `home`, which
becomes the working directory: the driver finds the files in it by their names alone, executors do not. Prints one JSON object with what was found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from tests.spark.cluster_job import stream_copies

from sprocketmq.spark import explain, session
from sprocketmq.spark.jobs.land import land, landed


def main(text: str) -> None:
    plan = json.loads(text)
    home = Path(plan["home"])
    os.chdir(home)
    spark = session(
        "secured",
        master=plan["master"],
        memory="512m",
        shuffle_partitions=2,
        quick_start=True,
        log_file=home / "spark.log",
        conf={
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.task.maxFailures": "1",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.files": str(home / "ca.pem"),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": str(home / "events"),
        },
    )
    place = {"nameserver": plan["nameserver"], "startingOffsets": "earliest", "minPartitions": "4"}

    def rows(**more: str) -> DataFrame:
        return spark.read.format("rocketmq").options(**place, subscribe=plan["topic"], **more).load()

    def bodies(**more: str) -> list[int]:
        frame = rows(**more)
        return sorted(int(row.body) for row in frame.select("body").collect())

    def refusal(**more: str) -> str | None:
        try:
            bodies(**more)
        except Exception as e:
            return explain(e)
        return None

    login = {"credentials.env": plan["prefix"], "tls.ca.file": "ca.pem"}
    result: dict[str, Any] = {"by environment": bodies(**login)}
    rows(**login).select("body").write.format("rocketmq").options(nameserver=plan["nameserver"], topic=plan["copies"], **login).mode(
        "append"
    ).save()
    result |= stream_copies(spark, place | login, plan["copies"], home)
    land(spark, plan["topic"], home / "landed", nameserver=plan["nameserver"], secure=login)
    result["landed"] = sorted(int(row.body) for row in landed(spark, home / "landed").collect())
    result["by directory"] = bodies(secure=str(home))
    result["missing on executors"] = refusal(**{"credentials.file": "credentials.json", "tls.ca.file": "ca.pem"})
    spark.sparkContext.addFile(str(home / "shipped.json"))
    result["shipped"] = refusal(**{"credentials.file": "shipped.json", "tls.ca.file": "ca.pem"})
    print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
