"""Offsets of single queues: the first, the next, and those by store time (codes 29 to 32)."""

import logging
from collections.abc import Callable

from sprocketmq.broker.cold_reads import ColdReads, DiskReads
from sprocketmq.broker.store_times import StoreTimes
from sprocketmq.broker.topics import NO_LITE_TOPICS, Topic, TopicTable
from sprocketmq.broker.waiting_request import WaitingRequest
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import QueueRequest, SearchOffset
from sprocketmq.storage.store import MessageStore, NotInMemory

log = logging.getLogger(__name__)

# A search by time waits for the disk about twice for each message it looks at; after that many waits it reads from wherever they are.
MAX_LOADS = 64


class _TimeSearch(WaitingRequest):
    """A search for the offset of a time."""

    __slots__ = ("request",)

    def __init__(self, conn: ServerConnection, command: Command, request: SearchOffset) -> None:
        super().__init__(conn, command)
        self.request = request


class QueueOffsetHandlers:
    """Answers requests for the bounds of queues. A queue that the topic does not have counts as empty."""

    def __init__(self, store: MessageStore, topics: TopicTable, times: StoreTimes, disk: DiskReads) -> None:
        self._store = store
        self._topics = topics
        self._times = times
        self._cold: ColdReads[_TimeSearch] = ColdReads(disk, self._search)

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }

    def _known(self, topic: str, queue_id: int) -> Topic | None:
        known = self._topics.get(topic)
        return known if known is not None and 0 <= queue_id <= known.max_queue_id else None

    def max_offset(self, conn: ServerConnection, command: Command) -> None:
        """Answer 30: the offset the next message will have; 0 for an unknown queue."""
        request = command.header(QueueRequest)
        offset = self._store.max_offset(request.topic, request.queue_id) if self._known(request.topic, request.queue_id) else 0
        conn.respond(command, ResponseCode.SUCCESS, ext={"offset": str(max(0, offset))})

    def min_offset(self, conn: ServerConnection, command: Command) -> None:
        """Answer 31: the first offset that can be read; 0 for an unknown queue."""
        request = command.header(QueueRequest)
        offset = self._store.min_offset(request.topic, request.queue_id) if self._known(request.topic, request.queue_id) else 0
        conn.respond(command, ResponseCode.SUCCESS, ext={"offset": str(max(0, offset))})

    def search_offset(self, conn: ServerConnection, command: Command) -> None:
        """Answer 29: LOWER the first offset stored at or after a time, UPPER the last at or before it."""
        request = command.header(SearchOffset)
        if request.lite_topic:
            conn.respond(command, ResponseCode.INVALID_PARAMETER, remark=NO_LITE_TOPICS)
            return
        self._search(_TimeSearch(conn, command, request))

    def _search(self, search: _TimeSearch) -> None:
        if search.conn.closed:
            return
        request = search.request
        upper = (request.boundary_type or "").upper() == "UPPER"
        offset = 0
        try:
            if self._known(request.topic, request.queue_id):
                waits = search.loads >= MAX_LOADS
                offset = self._store.offset_by_time(request.topic, request.queue_id, request.timestamp_ms, upper=upper, waits=waits)
        except NotInMemory as e:
            if not self._cold.begin(search, e.cold):
                search.answer_busy()
        except Exception as e:
            if not search.loads:
                raise
            log.exception("the offset of a time in topic %s, queue %d, cannot be found", request.topic, request.queue_id)
            search.answer_error(e)
        else:
            search.conn.respond(search.command, ResponseCode.SUCCESS, ext={"offset": str(max(0, offset))}, since=search.since)

    def earliest_store_time(self, conn: ServerConnection, command: Command) -> None:
        """Answer 32: when a queue's first message was stored, -1 without one."""
        request = command.header(QueueRequest)
        topic, queue_id, store = request.topic, request.queue_id, self._store

        def answer() -> None:
            when = store.earliest_store_time(topic, queue_id) if self._known(topic, queue_id) else -1
            conn.respond(command, ResponseCode.SUCCESS, ext={"timestamp": str(when)})

        self._times.when_in_memory(conn, command, lambda: [(topic, queue_id, store.min_offset(topic, queue_id))], answer)


def first_since(store: MessageStore, topic: str, queue_id: int, time_ms: int, *, waits: bool) -> int:
    """Return the offset of the first message stored at or after a time, the end of the queue when there is none.

    Raises NotInMemory for a message that is not, unless it ``waits`` for the disk.
    """
    offset = store.offset_by_time(topic, queue_id, time_ms, waits=waits)
    if topic not in store.batch_topics:
        return offset
    # From the last batch's own time on, a search finds that batch, as with Apache's broker.
    if store.store_time(topic, queue_id, offset) < time_ms:
        return store.max_offset(topic, queue_id)
    before = store.offset_by_time(topic, queue_id, time_ms - 1, upper=True, waits=waits)
    if store.store_time(topic, queue_id, before) >= time_ms:
        return before
    return store.read(topic, queue_id, before, max_count=1, max_bytes=1).next_offset
