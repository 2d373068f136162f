"""A whole cluster for a test, a notebook or a small service: nameserver and brokers in a thread of this process, or in child processes.

::

    with LocalCluster() as mq:
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            producer.send(Message("orders", b"..."))
"""

from sprocketmq.embedded.cluster import LocalCluster
from sprocketmq.embedded.plan import ClusterFailed

__all__ = ["ClusterFailed", "LocalCluster"]
