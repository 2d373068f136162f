"""The pull consumer: reads any queue at any offset, and keeps no state but what the caller commits."""

from collections.abc import Sequence
from functools import lru_cache
from types import TracebackType
from typing import Self

from sprocketmq.client.instance import Instance
from sprocketmq.client.offsets import Offsets
from sprocketmq.client.pulling import DEFAULT_MAX_BYTES, PullResult, pull_header, read_pull, subscription_tags
from sprocketmq.client.routes import MASTER_ID
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.bodies import SubscriptionData, build_subscription
from sprocketmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_topic

# Over what a pull may wait at the broker: brokers look at waiting pulls every 5 s only.
PULL_TIMEOUT_S = 10.0


class PullConsumer:
    """Read messages by queue and offset.

    It joins no group at the broker (nothing is registered, no queue is assigned): ``group`` only names the offsets of ``committed`` and
    ``commit``. ``namesrv`` as for Producer. Any number of tasks of one event loop may use it. Use ``async with``.
    """

    def __init__(self, group: str, *, namesrv: str | Sequence[str] | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.group = check_group(group)
        self._instance = Instance(namesrv, kind="PullConsumer", clock=clock)
        self._offsets = Offsets(self._instance)
        self._suggested: dict[MessageQueue, int] = {}

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        await self._instance.start()

    async def close(self) -> None:
        """Disconnect; what is under way fails. Harmless when closed already."""
        await self._instance.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted, as the nameserver has them now. Raises TopicNotFound when it is unknown."""
        self._instance.check()
        check_topic(topic)
        route = await self._instance.fetch_route(topic) or await self._instance.route(topic)
        return sorted(route.subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int | None = None,
        expression: str = "*",
        wait_ms: int = 0,
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> PullResult:
        """Return up to ``max_messages`` messages of about ``max_bytes`` (default 256 KiB) from ``offset`` on.

        The broker's own limits may be lower. ``expression`` is ``"*"`` or ``"tag || tag"``. When there is nothing yet, the broker waits up
        to ``wait_ms`` for a message (a stock one rounds short waits up to 5 s); ``timeout_s`` is what the answer may take beyond that.
        An offset out of range is no error: see PullStatus. Raises TopicNotFound, BrokerError, BrokerBusy, ConnectFailed, ConnectionLost,
        RequestTimeout; ConfigError for arguments that cannot be.
        """
        self._instance.check()
        if offset < 0 or max_messages < 1 or (max_bytes is not None and max_bytes < 1) or wait_ms < 0:
            raise ConfigError(f"cannot pull {max_messages} messages, {max_bytes} bytes at offset {offset} waiting {wait_ms} ms")
        subscription, tags = _subscription(queue.topic, expression)
        header = pull_header(
            self.group,
            queue,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes or DEFAULT_MAX_BYTES,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
            suspend_ms=wait_ms,
            subscription=subscription,
        )
        response, address = await self._instance.ask_broker(
            queue.topic,
            queue.broker_name,
            RequestCode.PULL_MESSAGE,
            ext=header,
            broker_id=self._suggested.get(queue, MASTER_ID),
            timeout_s=wait_ms / 1000 + timeout_s,
        )
        result = read_pull(response, address, queue, offset, tags)
        if result.suggested_broker_id != self._suggested.get(queue, MASTER_ID):
            self._suggested[queue] = result.suggested_broker_id
        return result

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message kept; 0 for an empty or unknown queue."""
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the next message will get."""
        return await self._offsets.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later; the end of the queue when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset committed for this group, None when there is none."""
        return await self._offsets.committed(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit ``offset`` (the next to read) for this group; returns when the broker has taken it."""
        await self._offsets.commit(self.group, queue, offset)


@lru_cache(maxsize=256)
def _subscription(topic: str, expression: str) -> tuple[SubscriptionData, frozenset[bytes] | None]:
    subscription = build_subscription(topic, expression, 0)
    return subscription, subscription_tags(subscription)
