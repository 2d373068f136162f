"""Producers, consumers and administration over asyncio."""

from sprocketmq.client.admin import AdminClient
from sprocketmq.client.consumer_pull import PullConsumer
from sprocketmq.client.consumer_push import PushConsumer
from sprocketmq.client.producer import Producer

__all__ = ["AdminClient", "Producer", "PullConsumer", "PushConsumer"]
