"""The broker: takes, keeps and hands out messages."""

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.server import Broker

__all__ = ["Broker", "BrokerConfig"]
