"""Load from a client process on a broker process, ours beside Apache RocketMQ's in one run."""
