"""Registers ``format("rocketmq-store")`` in every Spark session whose Python has SprocketMQ: Spark imports packages named ``pyspark_*``."""

from sprocketmq.spark.formats import LazySource


class DefaultSource(LazySource):
    """The format `rocketmq-store`."""

    format_name = "rocketmq-store"
    module = "sprocketmq.spark.store.data_source"
    class_name = "RocketMQStoreDataSource"
