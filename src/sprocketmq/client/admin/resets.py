"""Administration of committed offsets: the offsets a group would be moved to, and moving it there."""

from collections.abc import Mapping

from sprocketmq.client.admin.topics import TopicAdmin
from sprocketmq.client.arguments import check_number, check_queue
from sprocketmq.client.routes import Route
from sprocketmq.errors import ConfigError, NoMaster
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import ResetOffset
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group


class OffsetResets(TopicAdmin):
    """Offsets of consumer groups that an administrator sets."""

    async def reset_offsets(self, group: str, topic: str, to: str | float, *, queue: MessageQueue | None = None) -> dict[MessageQueue, int]:
        """Move ``group`` to other offsets of ``topic`` and return these by queue; running members follow.

        ``to`` and ``queue`` as for ``reset_targets``. Use ``reset_offset`` for an offset. Raises TopicNotFound, ConfigError.
        """
        check_group(group)
        offsets = await self.reset_targets(topic, to, queue=queue)
        await self.reset_to(group, offsets)
        return offsets

    async def reset_targets(self, topic: str, to: str | float, *, queue: MessageQueue | None = None) -> dict[MessageQueue, int]:
        """Return the offsets of ``topic`` that a group would be moved to, by queue, and change nothing.

        ``to`` is ``"first"`` (the oldest message), ``"last"`` (after the newest) or a time in epoch seconds (the first message stored then
        or later). ``queue`` limits it to one queue. Raises TopicNotFound, ConfigError.
        """
        if to not in ("first", "last") and (isinstance(to, str) or not 0 <= to < 1 << 53):
            raise ConfigError(f"offsets are reset to 'first', 'last' or a time in epoch seconds, not {to!r}")
        route = await self._route(topic)
        queues = sorted(route.subscribe_queues) if queue is None else [queue]
        for each in queues:
            _master_of(route, each)

        async def target(each: MessageQueue) -> int:
            if to == "first":
                return await self._offsets.min_offset(each)
            if to == "last":
                return await self._offsets.max_offset(each)
            return await self._offsets.offset_at(each, round(float(to) * 1000))

        return dict(zip(queues, await all_of(map(target, queues)), strict=True))

    async def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Move ``group`` to ``offset`` of one queue; running members follow. BrokerError for an offset beyond the queue's end."""
        await self.reset_to(group, {queue: offset})

    async def reset_to(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Move ``group`` to an offset of each queue; running members follow. BrokerError for an offset beyond the queue's end."""
        check_group(group)
        if not isinstance(offsets, Mapping):
            raise ConfigError(f"offsets must be a mapping of queues to offsets, not {offsets!r}")
        for queue, offset in offsets.items():
            check_queue(queue)
            check_number("offset", offset, least=0, whole=True)
        routes = {topic: await self._route(topic) for topic in sorted({queue.topic for queue in offsets})}
        addresses = [_master_of(routes[queue.topic], queue) for queue in offsets]
        # One request per queue: given a time, Apache's broker fails on empty batch queues, and takes the last batch of older ones.
        await all_of(self._reset(group, *each, address) for each, address in zip(offsets.items(), addresses, strict=True))

    async def _reset(self, group: str, queue: MessageQueue, offset: int, address: str) -> None:
        header = ResetOffset(queue.topic, group, 0, is_force=True, queue_id=queue.queue_id, offset=offset)
        response = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, to_ext(header))
        self._expect_success(response, address, queue.topic)


def _master_of(route: Route, queue: MessageQueue) -> str:
    if queue not in route.subscribe_queues:
        raise ConfigError(f"topic {queue.topic!r} has no queue {queue.queue_id} on a broker {queue.broker_name!r}")
    address = route.masters.get(queue.broker_name)
    if address is None:
        raise NoMaster([queue.broker_name])
    return address
