"""Registers ``format("rocketmq")`` in every Spark session whose Python has SprocketMQ: Spark imports packages named ``pyspark_*``."""

from sprocketmq.spark.formats import LazySource


class DefaultSource(LazySource):
    """The format `rocketmq`."""

    format_name = "rocketmq"
    module = "sprocketmq.spark.source.data_source"
    class_name = "RocketMQDataSource"
