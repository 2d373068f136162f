"""Declared, not started: a table that takes in a topic, and a view over it. Each run reads what is new since the last."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame

from sprocketmq.spark import session

spark = session()  # the one that runs the pipeline
NAMESERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


@dp.table
def orders() -> DataFrame:
    """Every order, once, as it was sent."""
    topic = spark.readStream.format("rocketmq").option("nameserver", NAMESERVER).option("subscribe", "orders")
    return topic.option("startingOffsets", "earliest").load().selectExpr("keys AS id", "tags AS country", "CAST(body AS STRING) AS item")


@dp.materialized_view
def orders_per_country() -> DataFrame:
    """How many there are from each country."""
    return spark.read.table("orders").groupBy("country").count()
