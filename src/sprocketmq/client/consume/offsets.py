"""Requests about queue offsets and committed offsets, for consumers and the admin client (docs/internals/requests.md#queue-offsets)."""

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from sprocketmq.client.arguments import LARGEST_OFFSET, check_number, check_queue
from sprocketmq.client.instance import REQUEST_TIMEOUT_S, Instance, response_error
from sprocketmq.protocol.bodies import TopicStats
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import (
    OffsetResponse,
    QueryConsumerOffset,
    QueueRequest,
    SearchOffset,
    TopicRequest,
    UpdateConsumerOffset,
)
from sprocketmq.protocol.message import MessageQueue

if TYPE_CHECKING:
    from sprocketmq.net.client import Connection

_encode_json = msgspec.json.encode

END_OF_TIME_MS = 2**63 - 1
_QUERY_CONSUMER_OFFSET = int(RequestCode.QUERY_CONSUMER_OFFSET)
_GET_MAX_OFFSET = int(RequestCode.GET_MAX_OFFSET)


class OffsetRequests:
    """Offset requests over one client's connections. All raise what ``Instance.ask_broker`` raises, BrokerError or BrokerBusy."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        # Queues about which a slave gave the last answer: the master may have more messages at both ends.
        self.from_slaves: set[MessageQueue] = set()

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
            return 0  # Apache's broker fails on a time search in a batch queue that never had a message
        offset = await self._search(queue, timestamp_ms)
        if offset >= end or offset != await self._search(queue, END_OF_TIME_MS):
            return offset  # the end of the queue, unless more has been stored meanwhile
        # A search for a time at or after the last batch's finds that batch, which may be older, or not the first of its millisecond.
        response, address = await self._ask(queue, RequestCode.GET_TOPIC_STATS_INFO, to_ext(TopicRequest(queue.topic)))
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)
        newest = TopicStats.decode(response.body).offset_table.get(queue)
        if newest is None or newest.last_update_timestamp > timestamp_ms:
            return offset
        if newest.last_update_timestamp < timestamp_ms:
            return end
        return await self._search(queue, timestamp_ms - 1)  # may include messages of the millisecond before

    async def committed(self, group: str, queue: MessageQueue, *, zero_if_young: bool = False) -> int | None:
        """Return the committed offset of ``group`` in ``queue``, None when it never committed.

        With ``zero_if_young`` the broker answers 0 instead of nothing for a queue whose first message is still in its memory.
        """
        header = QueryConsumerOffset(group, queue.topic, queue.queue_id, None if zero_if_young else False)
        response, address = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, to_ext(header))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset_of(response, address, queue)

    async def committed_of(self, group: str, queues: Iterable[MessageQueue], *, zero_if_young: bool) -> dict[MessageQueue, int | None]:
        """Return what ``committed`` returns, for those of ``queues`` whose masters are connected and answer; the others are left out.

        All requests leave together, without a task for each: a member may take over thousands of queues.
        """
        more = b"" if zero_if_young else b',"setZeroIfNotFound":"false"'
        answers = await self._ask_masters(queues, _QUERY_CONSUMER_OFFSET, lambda topic: queue_header(group, topic), more)
        found: dict[MessageQueue, int | None] = {}
        for queue, answer in answers.items():
            if answer.code == ResponseCode.SUCCESS:
                found[queue] = answer.header(OffsetResponse).offset
            elif answer.code == ResponseCode.QUERY_NOT_FOUND:
                found[queue] = None
        self.from_slaves.difference_update(found)
        return found

    async def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return what ``max_offset`` returns, as ``committed_of`` does."""
        answers = await self._ask_masters(queues, _GET_MAX_OFFSET, _topic_header)
        found = {
            queue: max(0, answer.header(OffsetResponse).offset) for queue, answer in answers.items() if answer.code == ResponseCode.SUCCESS
        }
        self.from_slaves.difference_update(found)
        return found

    async def _ask_masters(
        self, queues: Iterable[MessageQueue], code: int, before: Callable[[str], bytes], more: bytes = b""
    ) -> dict[MessageQueue, Command]:
        """Ask connected masters about ``queues`` and return their answers. ``before(topic)`` is the header up to a queue's number."""
        asked: dict[MessageQueue, asyncio.Future[Command]] = {}
        topic = broker_name = ""
        start = end = b""
        conn: Connection | None = None
        for queue in queues:
            if queue.topic != topic or queue.broker_name != broker_name:
                topic, broker_name = queue.topic, queue.broker_name
                route = self._instance.routes.get(topic)
                address = None if route is None else route.masters.get(broker_name)
                conn = self._instance.brokers.peek(address) if address is not None else None
                start, end = before(topic), b'"%b,"bname":%b}' % (more, _encode_json(broker_name))
            if conn is not None:
                asked[queue] = conn.request(code, ext=b"%b%d%b" % (start, queue.queue_id, end), timeout_s=REQUEST_TIMEOUT_S)
        if not asked:
            return {}
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        return {queue: answer for queue, answer in zip(asked, answers, strict=True) if isinstance(answer, Command)}

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> str:
        """Commit ``offset`` for ``group`` and return the address of the broker that has it. A lower offset than before is accepted."""
        check_number("offset", offset, least=0, most=LARGEST_OFFSET, whole=True)
        check_queue(queue)
        header = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
        response, address = await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, to_ext(header))
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)
        return address

    async def _search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        ext = to_ext(SearchOffset(queue.topic, queue.queue_id, timestamp_ms))
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)

    async def _of_queue(self, queue: MessageQueue, code: RequestCode) -> int:
        check_queue(queue)
        return await self._offset(queue, code, to_ext(QueueRequest(queue.topic, queue.queue_id)))

    async def _offset(self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]) -> int:
        response, address = await self._ask(queue, code, ext)
        # Apache's broker answers -1 for an empty batch queue.
        return max(0, _offset_of(response, address, queue))

    async def _ask(self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]) -> tuple[Command, str]:
        response, address = await self._instance.ask_broker(queue.topic, queue.broker_name, code, ext=ext | {"bname": queue.broker_name})
        route = self._instance.routes.get(queue.topic)
        if route is None or route.masters.get(queue.broker_name) == address:
            self.from_slaves.discard(queue)
        else:
            self.from_slaves.add(queue)
        return response, address


@lru_cache(maxsize=1024)
def queue_header(group: str, topic: str) -> bytes:
    """Return the header of a request about the committed offset of a queue as JSON text, up to the queue's number.

    A member of thousands of queues makes one for each: filling in text takes a fifth of the time of ``to_ext``.
    """
    return b'{"consumerGroup":%b,"topic":%b,"queueId":"' % (_encode_json(group), _encode_json(topic))


@lru_cache(maxsize=1024)
def _topic_header(topic: str) -> bytes:
    return b'{"topic":%b,"queueId":"' % _encode_json(topic)


def _offset_of(response: Command, address: str, queue: MessageQueue) -> int:
    if response.code != ResponseCode.SUCCESS:
        raise response_error(response, address, queue.topic)
    return response.header(OffsetResponse).offset
