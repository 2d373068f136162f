"""The gRPC endpoint: RocketMQ's messaging API of version 2 in front of a cluster, SprocketMQ's or Apache's (docs/guide/grpc.md)."""
