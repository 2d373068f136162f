"""Makes ``format("rocketmq-store")`` known to every Spark session whose Python has SprocketMQ: Spark imports packages of this kind of name."""

from sprocketmq.spark.formats import default_source

DefaultSource = default_source("rocketmq-store", "sprocketmq.spark.store_source", "RocketMQStoreDataSource")
