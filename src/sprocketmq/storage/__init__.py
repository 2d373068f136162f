"""The message store: commit log, queues, index and recovery."""
