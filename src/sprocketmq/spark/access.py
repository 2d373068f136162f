"""The one connection of a Python process to a RocketMQ cluster, shared by everything Spark runs in it."""

import atexit
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import decode_records
from sprocketmq.spark.planning import Offsets

if TYPE_CHECKING:
    from sprocketmq.spark.reading import Pulled
    from sprocketmq.sync import PullConsumer


class ClusterAccess:
    """Queues, offsets and pulls of one cluster. Every method but ``pull`` waits for its answers; requests go out together."""

    def __init__(self, consumer: "PullConsumer") -> None:
        self._consumer = consumer

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return the readable queues of ``topics``, in order. Raises TopicNotFound."""
        asked = [self._consumer.queues(topic) for topic in topics]
        return sorted(queue for answer in asked for queue in answer.result())

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._ask(self._consumer.min_offset, queues)

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._ask(self._consumer.max_offset, queues)

    def at_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> Offsets:
        """Return for each queue the offset of its first message stored at ``timestamp_ms`` or later, or its end.

        On a queue of inner batches a broker answers with the batch the message is in, or with the last batch when all messages are older.
        """
        found = {queue: self._consumer.offset_at(queue, timestamp_ms) for queue in queues}
        latest = self.latest(queues)
        offsets: Offsets = {}
        for queue, answer in found.items():
            offset = answer.result()
            if offset < latest[queue]:
                first = self.pull(queue, offset, 1, 1, 0).result()
                if len(first.body) and decode_records(first.body)[0].store_timestamp_ms < timestamp_ms:
                    offset = latest[queue]
            offsets[queue] = offset
        return offsets

    def pull(self, queue: MessageQueue, offset: int, max_messages: int, max_bytes: int, hold_ms: int) -> "Future[Pulled]":
        return self._consumer.pull(queue, offset, max_messages=max_messages, max_bytes=max_bytes, wait_ms=hold_ms)

    def _ask(self, what: Any, queues: Iterable[MessageQueue]) -> Offsets:
        asked = {queue: what(queue) for queue in queues}
        return {queue: answer.result() for queue, answer in asked.items()}


_open: dict[tuple[int, str, str], ClusterAccess] = {}
_lock = threading.Lock()


def cluster_access(nameserver: str, group: str) -> ClusterAccess:
    """Return this process's access to the cluster, made on first use.

    Spark's Python workers live on from task to task, so connections do too. A forked child makes its own.
    """
    from sprocketmq.sync import PullConsumer

    key = (os.getpid(), nameserver, group)
    with _lock:
        access = _open.get(key)
        if access is None:
            consumer = PullConsumer(group, namesrv=nameserver)
            consumer.start()
            atexit.register(consumer.close)
            access = _open[key] = ClusterAccess(consumer)
        return access
