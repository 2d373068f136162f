"""The one connection of a Python process to a RocketMQ cluster, shared by everything Spark runs in it."""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from sprocketmq.client import PullConsumer
from sprocketmq.client.pulling import PullResult
from sprocketmq.net.loops import new_event_loop
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.planning import Offsets

_R = TypeVar("_R")


class ClusterAccess:
    """Queues, offsets and pulls of one cluster, for blocking code.

    The client runs on an event loop in a thread of its own, so that a pull goes on while the calling thread decodes. Every method but
    ``pull`` waits for its answers; the requests of one call go out together. Raises what the client raises.
    """

    def __init__(self, nameserver: str, group: str) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sprocketmq-spark", daemon=True)
        self._thread.start()
        self._consumer = PullConsumer(group, namesrv=nameserver)
        try:
            self._submit(self._consumer.start()).result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect and end the thread. Harmless when closed already."""
        if self._loop.is_closed():
            return
        self._submit(self._consumer.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return the readable queues of ``topics``, in order. Raises TopicNotFound."""
        return sorted(queue for found in self._all(self._consumer.queues, topics) for queue in found)

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        """Return the offset of the first message of each queue."""
        asked = list(queues)
        return dict(zip(asked, self._all(self._consumer.min_offset, asked), strict=True))

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        """Return the offset each queue's next message will get."""
        asked = list(queues)
        return dict(zip(asked, self._all(self._consumer.max_offset, asked), strict=True))

    def at_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> Offsets:
        """Return for each queue the offset of its first message stored at ``timestamp_ms`` or later, or its end."""
        latest = self.latest(queues)

        async def first_since(queue: MessageQueue) -> int:
            offset = await self._consumer.offset_at(queue, timestamp_ms)
            if offset < latest[queue]:
                # On a queue of inner batches a broker answers with the last batch when all messages are older.
                found = await self._consumer.pull(queue, offset, max_messages=1)
                if found.messages and found.messages[0].store_timestamp_ms < timestamp_ms:
                    return latest[queue]
            return offset

        return dict(zip(queues, self._all(first_since, queues), strict=True))

    def pull(self, queue: MessageQueue, offset: int, max_messages: int, max_bytes: int, hold_ms: int) -> "Future[PullResult]":
        """Ask for messages; the future of the answer is cancelled harmlessly at any time."""
        return self._submit(self._consumer.pull(queue, offset, max_messages=max_messages, max_bytes=max_bytes, wait_ms=hold_ms))

    def _submit(self, work: Coroutine[Any, Any, _R]) -> "Future[_R]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _all(self, ask: Callable[[Any], Awaitable[_R]], about: Iterable[Any]) -> list[_R]:
        async def together() -> list[_R]:
            return await asyncio.gather(*map(ask, about))

        return self._submit(together()).result()


_open: dict[tuple[int, str, str], ClusterAccess] = {}
_lock = threading.Lock()


def cluster_access(nameserver: str, group: str) -> ClusterAccess:
    """Return this process's access to the cluster, made on first use.

    Spark's Python workers live on from task to task, so connections do too. A forked child makes its own.
    """
    key = (os.getpid(), nameserver, group)
    with _lock:
        access = _open.get(key)
        if access is None:
            access = _open[key] = ClusterAccess(nameserver, group)
            atexit.register(close_access)
        return access


def close_access() -> None:
    """Close what ``cluster_access`` opened in this process."""
    with _lock:
        for key in [key for key in _open if key[0] == os.getpid()]:
            _open.pop(key).close()
