"""Makes ``format("rocketmq")`` known to every Spark session whose Python has SprocketMQ: Spark imports packages of this kind of name."""

from sprocketmq.spark.formats import default_source

DefaultSource = default_source("rocketmq", "sprocketmq.spark.source", "RocketMQDataSource")
