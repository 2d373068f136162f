"""The lag of online groups on the topics they subscribe to, as RIP-46 defines it.

::

    queue   0 ... consumed ... | committed ... being handled ... | pulled ... not fetched yet ... | max
                               |<----------- inflight ---------->|<----------- ready ------------>|
                               |<----------------------------- lag ------------------------------>|

A queue without a committed offset counts as nothing, and so does one that was never pulled for ``ready``. Every message counts, also those
that the group's tags do not match. Retry topics are left out, as in the reference.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import NamedTuple

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.topics import Topic, TopicTable
from sprocketmq.clock import Clock
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.names import RETRY_PREFIX
from sprocketmq.storage.store import MessageStore

# Queues of one step: less than half a millisecond of work.
QUEUES_PER_STEP = 100
# Messages of one page whose time is read from the disk, in another thread. Beyond that, latencies leave out queues whose messages are not
# in the page cache.
MAX_COLD_READS = 200


class Lag(NamedTuple):
    """The lag of one group on one topic.

    ``latency_ms`` is the age of the oldest message that it has not consumed, ``queueing_ms`` of the oldest one that it has not received.
    """

    group: str
    topic: str
    messages: int
    inflight: int
    ready: int
    latency_ms: int
    queueing_ms: int


class Lags:
    """Works out the lags of all online groups, in steps."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, clients: ClientRegistry, offsets: OffsetTable, threads: Executor, clock: Clock
    ) -> None:
        self._store = store
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._threads = threads
        self._clock = clock
        self._cold = 0
        self._queues = 0

    async def all(self) -> AsyncIterator[Lag]:
        """Yield the lag of each group on each topic of its subscription."""
        self._cold = 0
        wanted = [(group.name, topic) for group in self._clients.consumers.values() for topic in group.subscriptions]
        for group, name in wanted:
            topic = None if name.startswith(RETRY_PREFIX) else self._topics.get(name)
            if topic is not None:
                yield await self._of(group, topic)

    async def _of(self, group: str, topic: Topic) -> Lag:
        store, offsets, name = self._store, self._offsets, topic.name
        lag = inflight = ready = 0
        oldest: int | None = None
        oldest_ready: int | None = None
        for queue_id in range(topic.write_queues):
            self._queues += 1
            if self._queues % QUEUES_PER_STEP == 0:
                await asyncio.sleep(0)
            end = store.max_offset(name, queue_id)
            committed, pulled = offsets.get(group, name, queue_id), offsets.pulled(group, name, queue_id)
            if committed is not None and committed < end:
                lag += end - committed
                oldest = _earlier(oldest, await self._time(name, queue_id, committed))
            if committed is not None and pulled is not None:
                inflight += max(0, pulled - committed)
            if pulled is not None and pulled < end:
                ready += end - pulled
                oldest_ready = _earlier(oldest_ready, await self._time(name, queue_id, pulled))
        now = self._clock.time_ms()
        ages = [max(0, now - since) if since is not None else 0 for since in (oldest, oldest_ready)]
        return Lag(group, name, lag, inflight, ready, *ages)

    async def _time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return when a message was stored, or the oldest one that is still there; None when that is not known."""
        try:
            return await self._read_time(topic, queue_id, max(offset, self._store.min_offset(topic, queue_id)))
        except (SprocketError, OSError):  # an unreadable queue must not hide the other figures
            return None

    async def _read_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        for _ in ("its unit", "its record"):
            cold = self._store.find_cold(topic, queue_id, offset, 1, 1)
            if cold is None or not cold.waits:
                break
            if self._cold >= MAX_COLD_READS:
                return None
            self._cold += 1
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, cold.load)
            finally:
                cold.release()
        time_ms = self._store.store_time(topic, queue_id, offset)
        return time_ms if time_ms >= 0 else None


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
