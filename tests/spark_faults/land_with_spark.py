"""The process of ``test_tables.py``: land a topic with Spark's writer into a Delta or an Iceberg table, for ever or what is there.

Its argument is a JSON object; at the end of what is there it prints the bodies of the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sprocketmq.spark import session
from sprocketmq.spark.jobs.land import land

# Spark has these itself.
EXCLUDED = ("org.slf4j:slf4j-api", *(f"org.apache.logging.log4j:log4j-{part}" for part in ("api", "core", "slf4j2-impl")))


def main(text: str) -> None:
    plan = json.loads(text)
    home = Path(plan["home"])
    of_format = {
        "delta": {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
        "iceberg": {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(home / "lake"),
        },
    }[plan["format"]]
    spark = session(
        "tables",
        cores=2,
        memory="1g",
        quick_start=True,
        log_file=home / "spark.log",
        conf={
            "spark.jars.packages": plan["package"],
            "spark.jars.excludes": ",".join(EXCLUDED),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            **of_format,
        },
    )
    target = "lake.raw.orders" if plan["format"] == "iceberg" else str(home / "table")
    land(
        spark,
        plan["topic"],
        target,
        nameserver=plan["nameserver"],
        format=plan["format"],
        columns=["body"],
        batch_messages=200_000 if plan["to the end"] else 2_000,
        every_s=None if plan["to the end"] else 0.05,
        checkpoint=str(home / "checkpoint"),
        writer="spark",
    )
    table = spark.table(target) if plan["format"] == "iceberg" else spark.read.format("delta").load(target)
    print(json.dumps([bytes(row.body).decode() for row in table.orderBy("body").collect()]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
