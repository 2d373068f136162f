"""SprocketMQ: Apache RocketMQ's batch-processing model, native to Python.

Names load when they are first used, so that importing the package stays fast and brings no broker, Spark or terminal library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sprocketmq._version import __version__

if TYPE_CHECKING:
    from sprocketmq import errors, sync
    from sprocketmq.client import AdminClient, Producer, PullConsumer, PushConsumer
    from sprocketmq.client.admin import GroupProgress, MessageTrace, QueueProgress
    from sprocketmq.client.consume.consumer_stats import ConsumerStats, QueueStats
    from sprocketmq.client.consume.pull_requests import PullResult, PullStatus, Sql
    from sprocketmq.client.consume.received_batch import ReceivedBatch
    from sprocketmq.client.hooks import ClientHooks, GiveBackEvent, HandleEvent, PullEvent, SendEvent
    from sprocketmq.client.send.batching import Batching, BatchingStats
    from sprocketmq.client.send.transactions import Transaction, TransactionProducer
    from sprocketmq.client.stats import Durations, ProducerStats
    from sprocketmq.client.traces.config import TraceConfig, TraceStats
    from sprocketmq.errors import SprocketError
    from sprocketmq.net.tls import TlsConfig
    from sprocketmq.protocol.compression import CompressionType
    from sprocketmq.protocol.credentials import Credentials
    from sprocketmq.protocol.message import Message, MessageQueue, SendResult, SendStatus, TransactionOutcome
    from sprocketmq.protocol.names import Namespace
    from sprocketmq.protocol.records import ReceivedMessage

__all__ = [
    "AdminClient",
    "Batching",
    "BatchingStats",
    "ClientHooks",
    "CompressionType",
    "ConsumerStats",
    "Credentials",
    "Durations",
    "GiveBackEvent",
    "GroupProgress",
    "HandleEvent",
    "Message",
    "MessageQueue",
    "MessageTrace",
    "Namespace",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "PullEvent",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueProgress",
    "QueueStats",
    "ReceivedBatch",
    "ReceivedMessage",
    "SendEvent",
    "SendResult",
    "SendStatus",
    "SprocketError",
    "Sql",
    "TlsConfig",
    "TraceConfig",
    "TraceStats",
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "__version__",
    "errors",
    "sync",
]

_HOMES = {
    "AdminClient": "client.admin",
    "Batching": "client.send.batching",
    "BatchingStats": "client.send.batching",
    "ClientHooks": "client.hooks",
    "CompressionType": "protocol.compression",
    "ConsumerStats": "client.consume.consumer_stats",
    "Credentials": "protocol.credentials",
    "Durations": "client.stats",
    "GiveBackEvent": "client.hooks",
    "GroupProgress": "client.admin",
    "HandleEvent": "client.hooks",
    "Message": "protocol.message",
    "MessageQueue": "protocol.message",
    "MessageTrace": "client.admin",
    "Namespace": "protocol.names",
    "Producer": "client.send.producer",
    "ProducerStats": "client.stats",
    "PullConsumer": "client.consume.pull",
    "PullEvent": "client.hooks",
    "PullResult": "client.consume.pull_requests",
    "PullStatus": "client.consume.pull_requests",
    "PushConsumer": "client.consume.push",
    "QueueProgress": "client.admin",
    "QueueStats": "client.consume.consumer_stats",
    "ReceivedBatch": "client.consume.received_batch",
    "ReceivedMessage": "protocol.records",
    "SendEvent": "client.hooks",
    "SendResult": "protocol.message",
    "SendStatus": "protocol.message",
    "SprocketError": "errors",
    "Sql": "client.consume.pull_requests",
    "TlsConfig": "net.tls",
    "TraceConfig": "client.traces.config",
    "TraceStats": "client.traces.config",
    "Transaction": "client.send.transactions",
    "TransactionOutcome": "protocol.message",
    "TransactionProducer": "client.send.transactions",
}
_MODULES = ("errors", "sync")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"sprocketmq.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sprocketmq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"sprocketmq.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
