"""Administration over nameservers and brokers: topics, routes, consumer groups, offsets, single messages, masters and slaves, users."""

from sprocketmq.client.admin.client import AdminClient
from sprocketmq.client.admin.groups import GroupProgress, QueueProgress
from sprocketmq.client.admin.replication import BrokerState

__all__ = ["AdminClient", "BrokerState", "GroupProgress", "QueueProgress"]
