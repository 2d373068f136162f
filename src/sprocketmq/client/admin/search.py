"""Messages by time and by offset: each search is limited, and its result names the limit that ended it."""

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sprocketmq.client.admin.messages import MessageQueries
from sprocketmq.client.arguments import check_number, check_queue
from sprocketmq.client.consume.pull_requests import PullResult, PullStatus
from sprocketmq.client.message_lookup import Lookup
from sprocketmq.errors import RetriableError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import TopicOffset, TopicStats
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import TopicRequest, ViewMessage
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage, decode_records

MAX_QUEUES_SEARCHED = 256
# Requests to all brokers together that one search has in flight.
REQUESTS_AT_ONCE = 8
# Messages per pull: the first pull of a queue, and the most.
FIRST_PULL, LARGEST_PULL = 16, 512
# A pull of this size returned fewer messages than it asked for: pulls end at about 1 MiB.
LARGE_PULL_BYTES = 512 << 10

Match = Callable[[ReceivedMessage], bool]
Cut = Literal["messages", "scanned", "bytes", "time", "queues"]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Messages found, the newest first, and how complete they are.

    ``in_range`` counts the messages between the first and last offset of the time range in each queue. ``scanned`` of them were read.
    ``cut`` names the limit that ended the search, None when everything in range was read. ``unreachable`` are the brokers that did not
    answer: their messages are missing.
    """

    messages: list[ReceivedMessage]
    in_range: int
    scanned: int
    cut: Cut | None
    unreachable: tuple[str, ...]


class MessageSearch(MessageQueries):
    """Messages by time range, and the messages that follow an offset."""

    async def search(
        self,
        topic: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        queue: MessageQueue | None = None,
        match: Match | None = None,
        max_count: int = 64,
        max_scanned: int = 10_000,
        max_bytes: int = 32 << 20,
        timeout_s: float = 10.0,
    ) -> SearchResult:
        """Return the newest ``max_count`` messages of ``topic`` (or of one ``queue``) stored in ``[begin_ms, end_ms]``.

        ``match`` chooses among them. The search reads from the newest message back and ends at ``max_scanned`` messages, ``max_bytes``
        or ``timeout_s``, whichever is first, and after MAX_QUEUES_SEARCHED queues. A broker that does not answer is skipped and named in
        the result. Raises TopicNotFound.
        """
        check_number("max_count", max_count, least=1, whole=True)
        check_number("timeout_s", timeout_s, over=0)
        work = _Search(self._lookup, begin_ms, end_ms, match, max_count, max_scanned, max_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                work.add_queues(await self._stretches(topic, begin_ms, end_ms, queue, work))
                await work.run()
        except TimeoutError:
            work.cut = "time"
        return work.result()

    async def messages_from(self, queue: MessageQueue, offset: int, *, max_count: int = 32) -> list[ReceivedMessage]:
        """Return up to ``max_count`` messages of ``queue`` from ``offset`` on, about 1 MiB at most; none at the end of the queue.

        Messages that were deleted already are skipped. Raises TopicNotFound.
        """
        check_number("max_count", max_count, least=1, whole=True)
        messages: list[ReceivedMessage] = []
        held_bytes = 0
        while len(messages) < max_count and held_bytes < LARGE_PULL_BYTES:
            result = await self._pull_at(queue, offset, max_count - len(messages))
            moved = result.status is PullStatus.OFFSET_MOVED
            if (result.status is not PullStatus.FOUND and not moved) or result.next_offset <= offset:
                break
            messages += result.messages  # a pull that begins inside a batch may end with it
            held_bytes += len(result.body)
            offset = result.next_offset
        return messages[:max_count]

    async def batch_at(self, queue: MessageQueue, offset: int) -> list[ReceivedMessage]:
        """Return all messages of the batch that holds the message at ``offset``, or that message alone; none when it is gone.

        Raises TopicNotFound.
        """
        pulled = (await self._pull_at(queue, offset, 1)).messages
        message = next((message for message in pulled if message.queue_offset == offset), None)
        address = (await self._route(queue.topic)).readers.get(queue.broker_name)
        if message is None or address is None:
            return []
        # The pull begins at the offset, which may be inside the batch; messages of one record share its log offset.
        ext = to_ext(ViewMessage(message.commitlog_offset))
        response = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, ext)
        found = decode_records(bytes(self._expect_success(response, address, queue.topic).body), broker_name=queue.broker_name)
        return found if any(each.queue_offset == offset for each in found) else [message]

    async def _pull_at(self, queue: MessageQueue, offset: int, max_count: int) -> PullResult:
        check_queue(queue)
        check_number("offset", offset, least=0, whole=True)
        await self._route(queue.topic)
        return await self._lookup.pull(queue, offset, max_messages=max_count)

    async def _stretches(
        self, topic: str, begin_ms: int, end_ms: int, queue: MessageQueue | None, work: "_Search"
    ) -> list[tuple[MessageQueue, int, int]]:
        """Return the offsets of the time range for each queue that may have messages in it."""
        readers = (await self._route(topic)).readers
        if queue is not None:
            check_queue(queue)
            readers = {name: address for name, address in readers.items() if name == queue.broker_name}
        tables = await all_of(self._offset_table(name, address, topic, work) for name, address in readers.items())
        offsets = {
            each: bounds
            for table in tables
            for each, bounds in table.items()
            if (queue is None or each == queue) and bounds.max_offset > bounds.min_offset and bounds.last_update_timestamp >= begin_ms
        }
        chosen = sorted(offsets, key=lambda each: (-offsets[each].last_update_timestamp, each))
        if len(chosen) > MAX_QUEUES_SEARCHED:
            work.cut = "queues"
        room = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def stretch(each: MessageQueue) -> tuple[MessageQueue, int, int] | None:
            bounds = offsets[each]
            async with room:
                try:
                    low = await self._offsets.offset_at(each, begin_ms) if begin_ms > 0 else max(0, bounds.min_offset)
                    newer = bounds.last_update_timestamp > end_ms
                    high = await self._offsets.offset_at(each, end_ms + 1) if newer else bounds.max_offset
                except RetriableError:
                    work.unreachable.add(each.broker_name)
                    return None
            return each, low, high

        found = await all_of(stretch(each) for each in chosen[:MAX_QUEUES_SEARCHED])
        return [one for one in found if one is not None]

    async def _offset_table(self, name: str, address: str, topic: str, work: "_Search") -> dict[MessageQueue, TopicOffset]:
        try:
            response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, to_ext(TopicRequest(topic)))
        except RetriableError:
            work.unreachable.add(name)
            return {}
        return TopicStats.decode(self._expect_success(response, address, topic).body).offset_table


class _Search:
    """One search: the queues are read from their ends back, and their newest messages merged by store time."""

    def __init__(
        self, lookup: Lookup, begin_ms: int, end_ms: int, match: Match | None, max_count: int, max_scanned: int, max_bytes: int
    ) -> None:
        self._lookup = lookup
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._match = match
        self._max_count = max_count
        self._max_scanned = max_scanned
        self._max_bytes = max_bytes
        self._queues: list[_QueueReader] = []
        self._found: list[ReceivedMessage] = []
        self._in_range = 0
        self._scanned = 0
        self._bytes = 0
        self.cut: Cut | None = None
        self.unreachable: set[str] = set()

    def add_queues(self, stretches: list[tuple[MessageQueue, int, int]]) -> None:
        self._queues = [_QueueReader(self, queue, low, high) for queue, low, high in stretches if low < high]
        self._in_range = sum(reader.high - reader.low for reader in self._queues)

    def result(self) -> SearchResult:
        return SearchResult(self._found, self._in_range, self._scanned, self.cut, tuple(sorted(self.unreachable)))

    @property
    def spent(self) -> Cut | None:
        """The name of the limit that has been reached, None for none."""
        if self._scanned >= self._max_scanned:
            return "scanned"
        return "bytes" if self._bytes >= self._max_bytes else None

    @property
    def room(self) -> int:
        """Messages that may still be read."""
        return self._max_scanned - self._scanned

    async def run(self) -> None:
        room = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def fill(reader: "_QueueReader") -> None:
            async with room:
                await reader.fill()

        await all_of(fill(reader) for reader in self._queues)
        newest = [(-reader.newest_ms, place) for place, reader in enumerate(self._queues) if reader.ready]
        heapq.heapify(newest)
        while newest:
            _, place = heapq.heappop(newest)
            reader = self._queues[place]
            message = reader.ready.pop()
            if self._match is None or self._match(message):
                self._found.append(message)
                if len(self._found) == self._max_count:
                    if any(each.ready or each.low < each.high for each in self._queues):
                        self.cut = "messages"
                    return
            await reader.fill()
            if reader.ready:
                heapq.heappush(newest, (-reader.newest_ms, place))
            elif reader.low < reader.high:
                return  # a limit is reached

    async def pull(self, queue: MessageQueue, offset: int, max_messages: int) -> PullResult:
        result = await self._lookup.pull(queue, offset, max_messages=max_messages)
        self._bytes += len(result.body)
        return result

    def admit(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Count messages that were read, and return those of the time range."""
        self._scanned += len(messages)
        return [message for message in messages if self._begin_ms <= message.store_timestamp_ms <= self._end_ms]


class _QueueReader:
    """Reads ``[low, high)`` of a queue in pulls, from its end back. ``ready`` holds the messages of the last pull, the newest last."""

    def __init__(self, search: _Search, queue: MessageQueue, low: int, high: int) -> None:
        self._search = search
        self._queue = queue
        self.low = low
        self.high = high
        self.ready: list[ReceivedMessage] = []
        self._amount = FIRST_PULL

    @property
    def newest_ms(self) -> int:
        return self.ready[-1].store_timestamp_ms

    async def fill(self) -> None:
        """Pull until there are messages of the time range, the queue has no more, or a limit is reached."""
        while not self.ready and self.low < self.high:
            if self._search.spent:
                self._search.cut = self._search.spent
                return
            try:
                self.ready = self._search.admit(await self._pull_back())
            except RetriableError:
                self._search.unreachable.add(self._queue.broker_name)
                self.high = self.low

    async def _pull_back(self) -> list[ReceivedMessage]:
        """Return the messages before ``high`` and move it to the first of them."""
        offset = start = max(self.low, self.high - min(self._amount, self._search.room))
        messages: list[ReceivedMessage] = []
        while offset < self.high:
            result = await self._search.pull(self._queue, offset, self.high - offset)
            ahead = result.next_offset - offset
            if result.status is not PullStatus.FOUND:
                if result.status is not PullStatus.OFFSET_MOVED or ahead <= 0:
                    break
                self.low = offset = start = min(result.next_offset, self.high)  # these messages have been deleted
                continue
            is_large = len(result.body) >= LARGE_PULL_BYTES
            if is_large and offset == start and 0 < ahead < (self.high - start) // 2 and not self._search.spent:
                # A pull holds few of these messages: begin nearer to the end, so that the newest come first.
                self._amount = ahead
                offset = start = self.high - ahead
                messages.clear()
                continue
            messages += [message for message in result.messages if message.queue_offset < self.high]
            if ahead <= 0:
                break
            if result.next_offset < self.high and self._search.spent:
                self._search.cut = self._search.spent
                break
            offset = result.next_offset
        else:
            self._amount = min(2 * self._amount, LARGEST_PULL)
        self.high = start
        return messages
