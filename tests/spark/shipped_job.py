"""What test_cluster.py submits with the package as a zip or an archive, to machines that have nothing else of it: no import of tests works here.

Its argument is a JSON object: `nameserver`, `topic`, `copies` (the topic to write to), `home`. Prints one JSON object with what was found.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def place_of(_: int) -> str:
    import sprocketmq

    return str(sprocketmq.__file__)


def main(text: str) -> None:
    from sprocketmq.spark.jobs.land import land, landed

    plan = json.loads(text)
    spark = SparkSession.builder.appName("shipped").getOrCreate()
    place = {"nameserver": plan["nameserver"], "startingOffsets": "earliest"}
    result = {"executors": spark.sparkContext.parallelize([0, 1], 2).map(place_of).collect()}

    rows = spark.read.format("rocketmq").options(**place, subscribe=plan["topic"], minPartitions="2").load()
    result["read"] = sorted(bytes(row.body).decode() for row in rows.select("body").collect())
    rows.select("body").write.format("rocketmq").options(nameserver=plan["nameserver"], topic=plan["copies"]).mode("append").save()

    stream = spark.readStream.format("rocketmq").options(**place, subscribe=plan["topic"]).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", plan["home"] + "/checkpoint")
    writer.trigger(availableNow=True).start(plan["home"] + "/streamed").awaitTermination()
    result["streamed"] = spark.read.parquet(plan["home"] + "/streamed").count()

    land(spark, plan["topic"], plan["home"] + "/landed", nameserver=plan["nameserver"])
    result["landed"] = landed(spark, plan["home"] + "/landed").count()
    print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
