"""Questions about queue offsets and consumer offsets, asked by consumers and the admin client (protocol, section 7.2.2)."""

from collections.abc import Iterable

from sprocketmq.client.arguments import LARGEST_OFFSET, check_number, check_queue
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import TopicStats
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import (
    OffsetResponse,
    QueryConsumerOffset,
    QueueRequest,
    SearchOffset,
    TimestampResponse,
    TopicRequest,
    UpdateConsumerOffset,
)
from sprocketmq.protocol.message import MessageQueue

END_OF_TIME_MS = 2**63 - 1
# How often a commit that an older one has overtaken is repeated.
SETTLE_TRIES = 3


class Offsets:
    """Offsets by way of one client's connections. All raise what ``Instance.ask_broker`` raises, BrokerError or BrokerBusy."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message kept; 0 for an empty or unknown queue."""
        return await self._of_queue(queue, RequestCode.GET_MIN_OFFSET)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the next message will get."""
        return await self._of_queue(queue, RequestCode.GET_MAX_OFFSET)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later; the end of the queue when there is none."""
        check_number("timestamp_ms", timestamp_ms, least=-LARGEST_OFFSET, most=LARGEST_OFFSET, whole=True)
        end = await self.max_offset(queue)
        if end == 0:
            return 0  # of a batch queue that never had a message, Apache's broker cannot answer the next question
        offset = await self._search(queue, timestamp_ms)
        if offset >= end or offset != await self._search(queue, END_OF_TIME_MS):
            return offset  # the end, or something is stored behind it
        # From its own time on a search finds the last batch of a queue: it may be too old, or not the first of its time.
        response, address = await self._ask(queue, RequestCode.GET_TOPIC_STATS_INFO, to_ext(TopicRequest(queue.topic)))
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)
        newest = TopicStats.decode(response.body).offset_table.get(queue)
        if newest is None or newest.last_update_timestamp > timestamp_ms:
            return offset
        if newest.last_update_timestamp < timestamp_ms:
            return end
        return await self._search(queue, timestamp_ms - 1)  # what was stored the millisecond before may come along

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return the wall-clock ms at which the oldest message was stored; -1 for an empty queue."""
        response, address = await self._ask(
            queue, RequestCode.GET_EARLIEST_MSG_STORETIME, to_ext(QueueRequest(queue.topic, queue.queue_id))
        )
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)
        return response.header(TimestampResponse).timestamp

    async def committed(self, group: str, queue: MessageQueue, *, zero_if_young: bool = False) -> int | None:
        """Return where ``group`` goes on in ``queue``, None when it never committed.

        With ``zero_if_young`` the broker answers 0 instead of nothing for a queue whose first message it still has in memory.
        """
        header = QueryConsumerOffset(group, queue.topic, queue.queue_id, None if zero_if_young else False)
        response, address = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, to_ext(header))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset_of(response, address, queue)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Have ``group`` go on at ``offset``; returns when the broker has taken it. A lower offset is taken too."""
        check_number("offset", offset, least=0, most=LARGEST_OFFSET, whole=True)
        check_queue(queue)
        header = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
        response, address = await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, to_ext(header))
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)

    async def _search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        ext = to_ext(SearchOffset(queue.topic, queue.queue_id, timestamp_ms))
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)

    async def _of_queue(self, queue: MessageQueue, code: RequestCode) -> int:
        check_queue(queue)
        return await self._offset(queue, code, to_ext(QueueRequest(queue.topic, queue.queue_id)))

    async def _offset(self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]) -> int:
        response, address = await self._ask(queue, code, ext)
        # Apache's broker says -1 of a batch queue that is empty.
        return max(0, _offset_of(response, address, queue))

    async def _ask(self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]) -> tuple[Command, str]:
        return await self._instance.ask_broker(queue.topic, queue.broker_name, code, ext=ext | {"bname": queue.broker_name})


class GroupOffsets:
    """Where a group that shares queues goes on: the brokers keep it, and tell whoever gets a queue next."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._offsets = Offsets(instance)
        self._group = group

    async def open(self) -> None:
        """Nothing is needed."""

    async def close(self) -> None:
        """Nothing is held."""

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool) -> int | None:
        """Return where to go on in ``queue``, None when that was never committed; see ``Offsets.committed``."""
        return await self._offsets.committed(self._group, queue, zero_if_young=zero_if_young)

    async def commit(self, pqs: Iterable[ProcessQueue]) -> None:
        """Commit what was consumed and return when the brokers have it. Raises the first broker's error; others are committed."""
        await all_of(self._commit(pq) for pq in pqs)

    async def settle(self, pqs: Iterable[ProcessQueue]) -> None:
        """Commit queues that are pulled no more, and see to it that this stays the last word. Raises as ``commit`` does."""
        await all_of(self._settle(pq) for pq in pqs)

    async def commit_behind(self, pqs: Iterable[ProcessQueue]) -> None:
        """Commit without waiting for answers; one that is lost is made up for by the next."""
        for pq in pqs:
            offset = pq.commit_offset
            if offset == pq.persisted:
                continue
            route = self._instance.routes.get(pq.queue.topic)
            address = route.address(pq.queue.broker_name) if route else None
            conn = self._instance.brokers.peek(address) if address else None
            if conn is not None:
                ext = to_ext(UpdateConsumerOffset(self._group, pq.queue.topic, pq.queue.queue_id, offset))
                conn.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)

    async def _commit(self, pq: ProcessQueue) -> None:
        offset = pq.commit_offset
        if offset != pq.persisted:
            await self._offsets.commit(self._group, pq.queue, offset)
            pq.persisted = offset

    async def _settle(self, pq: ProcessQueue) -> None:
        # The pull that was under way carries an older offset, and a broker with several threads may take that after ours.
        await self._commit(pq)
        for _ in range(SETTLE_TRIES):
            committed = await self._offsets.committed(self._group, pq.queue)
            if committed is None or committed >= pq.commit_offset:
                return
            await self._offsets.commit(self._group, pq.queue, pq.commit_offset)


def _offset_of(response: Command, address: str, queue: MessageQueue) -> int:
    if response.code != ResponseCode.SUCCESS:
        raise response_error(response, address, queue.topic)
    return response.header(OffsetResponse).offset
