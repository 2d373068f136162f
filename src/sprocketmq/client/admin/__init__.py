"""Administration over nameservers and brokers: topics, routes, groups, offsets, messages and their traces, masters and slaves, users."""

from sprocketmq.client.admin.client import AdminClient
from sprocketmq.client.admin.groups import GroupProgress, QueueProgress
from sprocketmq.client.admin.replication import BrokerState
from sprocketmq.client.admin.traces import MessageTrace

__all__ = ["AdminClient", "BrokerState", "GroupProgress", "MessageTrace", "QueueProgress"]
