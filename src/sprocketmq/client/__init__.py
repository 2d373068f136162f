"""Producers, consumers and administration over asyncio."""

from sprocketmq.client.admin import AdminClient
from sprocketmq.client.consume.pull import PullConsumer
from sprocketmq.client.consume.push import PushConsumer
from sprocketmq.client.send.producer import Producer

__all__ = ["AdminClient", "Producer", "PullConsumer", "PushConsumer"]
