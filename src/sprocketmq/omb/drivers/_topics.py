"""What both drivers of RocketMQ clusters do with our admin client: connect, and make and remove topics."""

from collections.abc import Mapping, Sequence
from typing import Any

from sprocketmq import AdminClient
from sprocketmq.errors import ConfigError, TopicNotFound


class TopicDriver:
    """The topics of a driver. ``options`` are those of the admin client."""

    def __init__(self, namesrv: str, options: Mapping[str, Any], *, batch_queues: bool) -> None:
        self._namesrv = namesrv
        self._options = options
        self._batch_queues = batch_queues
        self._admin: AdminClient | None = None

    async def start(self) -> None:
        """Connect to the nameserver, and check that it knows a broker."""
        self._admin = AdminClient(**self._options)
        await self._admin.start()
        if not (await self._admin.cluster()).broker_addr_table:
            raise ConfigError(f"the nameserver {self._namesrv} knows no broker: start one, then measure again")

    async def create_topics(self, topics: Sequence[str], partitions: int) -> None:
        """Create topics with ``partitions`` queues in all, spread over the masters."""
        assert self._admin is not None
        masters = max(1, len((await self._admin.cluster()).broker_addr_table))
        attributes = {"queue.type": "BatchCQ"} if self._batch_queues else {}
        for topic in topics:
            await self._admin.create_topic(topic, queues=max(1, -(-partitions // masters)), attributes=attributes)

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete topics; missing ones are skipped."""
        assert self._admin is not None
        for topic in topics:
            try:
                await self._admin.delete_topic(topic)
            except TopicNotFound:
                continue

    async def stop(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            await self._admin.close()
