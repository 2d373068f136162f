"""The OpenMessaging benchmark's workloads, run by worker processes over drivers for SprocketMQ, Apache RocketMQ and Kafka."""
