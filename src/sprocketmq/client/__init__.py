"""Producers, consumers and administration over asyncio."""

from sprocketmq.client.admin import AdminClient
from sprocketmq.client.consume.pull import PullConsumer
from sprocketmq.client.consume.push import PushConsumer
from sprocketmq.client.send.producer import Producer
from sprocketmq.client.send.transactions import Transaction, TransactionProducer

__all__ = ["AdminClient", "Producer", "PullConsumer", "PushConsumer", "Transaction", "TransactionProducer"]
