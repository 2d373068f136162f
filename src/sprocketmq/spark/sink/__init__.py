"""The sink ``rocketmq``: rows to messages, sending, rows that could not be sent."""
