"""The nameserver: route tables and the server around them."""

from sprocketmq.namesrv.server import NameServer, NameServerConfig

__all__ = ["NameServer", "NameServerConfig"]
