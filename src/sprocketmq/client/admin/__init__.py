"""Administration over nameservers and brokers: topics, routes, consumer groups, offsets, single messages."""

from sprocketmq.client.admin.client import AdminClient
from sprocketmq.client.admin.groups import GroupProgress, QueueProgress

__all__ = ["AdminClient", "GroupProgress", "QueueProgress"]
