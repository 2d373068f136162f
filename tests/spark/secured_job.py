"""What test_cluster.py runs on a cluster master at a secured cluster: ``python -m tests.spark.secured_job PLAN``.

PLAN is a JSON object: `master`, `nameserver`, `topic`, `prefix` (of environment variables) and `home`, which becomes the working directory:
the driver finds the files in it by their names alone, executors do not. Prints one JSON object with what was found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from sprocketmq.spark import explain, session


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
    place = {"nameserver": plan["nameserver"], "subscribe": plan["topic"], "startingOffsets": "earliest", "minPartitions": "4"}

    def bodies(**more: str) -> list[int]:
        frame = spark.read.format("rocketmq").options(**place, **more).load()
        return sorted(int(row.body) for row in frame.select("body").collect())

    def refusal(**more: str) -> str | None:
        try:
            bodies(**more)
        except Exception as e:
            return explain(e)
        return None

    result: dict[str, Any] = {"by environment": bodies(**{"credentials.env": plan["prefix"], "tls.ca.file": "ca.pem"})}
    result["by directory"] = bodies(secure=str(home))
    result["missing on executors"] = refusal(**{"credentials.file": "credentials.json", "tls.ca.file": "ca.pem"})
    spark.sparkContext.addFile(str(home / "shipped.json"))
    result["shipped"] = refusal(**{"credentials.file": "shipped.json", "tls.ca.file": "ca.pem"})
    print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
