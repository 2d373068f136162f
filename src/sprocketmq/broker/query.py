"""Queries for single messages: by key (12), by log offset (33), and the units of a queue (321).

An inner batch is stored as one record, but these answers are about single messages. They return the message as the record that it would
be on a plain topic: its own properties and queue offset, and the log offset of the batch.

The key index has the id and the keys of the batch, but not the ids of its messages, nor their keys if the producer did not merge them into
the batch's. Those are searched for in the topic's queues, within bounds and in slices between which the loop goes on: an id around the time
that it contains, a key or a tag from the newest message back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypedDict

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.cold_reads import MAX_RECORD_LOADS, ColdRecords, DiskReads
from sprocketmq.broker.inner_batches import is_whole, unpacked
from sprocketmq.broker.queue_offsets import MAX_LOADS
from sprocketmq.broker.topics import OVERLOAD, Topic, TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ProtocolError, RemoteProtocolError
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.batch import BatchEntry
from sprocketmq.protocol.bodies import ConsumeQueueUnits, QueueUnit
from sprocketmq.protocol.codes import (
    RequestCode,
    ResponseCode,
)
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import QueryConsumeQueue, QueryMessage, ViewMessage
from sprocketmq.protocol.ids import STORED_AFTER_MS, parse_uniq_key
from sprocketmq.protocol.properties import find_property
from sprocketmq.protocol.records import Record
from sprocketmq.security.policies import Action
from sprocketmq.security.requirements import GET, Allows, topic_context
from sprocketmq.storage.index.record_keys import keys_in
from sprocketmq.storage.queues.reading import ReadStatus
from sprocketmq.storage.store import ColdRead, MessageStore, NotInMemory

log = logging.getLogger(__name__)

# Limits of one answer: the reference's, and that for a unique key, which one message has, or a few that were sent again.
MAX_RECORDS = 64
MAX_UNIQUE_RECORDS = 32
# Beyond this many bytes older messages are left out of the answer; it always has one. The frame limit is 16 MiB.
MAX_ANSWER_BYTES = 15 << 20
# What one search may read (about 0.2 s of work in memory), and how much of it in one turn of the loop.
MAX_SEARCHED_BYTES = 256 << 20
SEARCH_SLICE_BYTES = 1 << 20
SEARCH_SLICE_MESSAGES = 1024
# Batches that are read from the disk ahead of a slice.
SEARCH_SLICE_BATCHES = 64
# Searches that may wait for their turn; further ones are answered with SYSTEM_BUSY.
MAX_SEARCHES = 64
# Bytes of log that a query may index on the loop first: less than 256 messages, or a millisecond.
MAX_INDEXED_INLINE_BYTES = 32 << 10
# Units shown by one answer to 321.
MAX_UNITS = 1024

# Tells clients that the messages of batches were compared, so that they need not do it.
BATCHES_SEARCHED = "batchesSearched"
NOTHING: Mapping[str, str] = MappingProxyType({})

_TAG = "T"
_UNIQUE = "U"
_NOT_FOUND = "can not find message, maybe time range not correct"


class QueryHandlers:
    """Answer queries for single messages. Matches are exact: other keys with the same hash are left out.

    What takes more than a moment runs in ``background``.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        clients: ClientRegistry,
        cold: ColdRecords,
        disk: DiskReads,
        *,
        background: Background,
        allows: Allows | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._allows = allows
        self._store = store
        self._topics = topics
        self._clients = clients
        self._cold = cold
        self._disk = disk
        self._background = background
        self._clock = clock
        self._searching = asyncio.Lock()  # one search at a time: more would only slow down everything else
        self._searches = 0

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
            RequestCode.QUERY_CONSUME_QUEUE: self.units,
        }

    # --- by key ---

    def query(self, conn: ServerConnection, command: Command) -> None:
        """Answer 12: the newest messages with a key, unique key or tag, in the order they were stored."""
        request = command.header(QueryMessage)
        indexed = self._store.index_lag[0] <= MAX_INDEXED_INLINE_BYTES or self._store.index_failure is not None
        if indexed and not self._store.has_old_messages:
            self._query(conn, command, request)
        else:
            command.body = b""
            self._background.spawn(self._query_later(conn, command, request), "an answer to a query")

    async def _query_later(self, conn: ServerConnection, command: Command, request: QueryMessage) -> None:
        """Answer 12 after another thread has indexed what waits for that, up to 16 MiB of log, and read what is on the disk."""
        if self._searches >= MAX_SEARCHES:
            self._refuse(conn, command)
            return
        self._searches += 1
        try:
            await asyncio.to_thread(self._prepare, request)
        finally:
            self._searches -= 1
        if not conn.closed:
            self._query(conn, command, request)

    def _prepare(self, request: QueryMessage) -> None:
        self._store.index_pending()
        if not self._store.has_old_messages:
            return
        try:
            self._store.load_for_query(request.topic, request.key, **_criteria(request))
        except (OSError, ValueError, IndexError) as e:  # the query itself tells what cannot be read, or files went meanwhile
            log.debug("reading ahead of a query: %s", e)

    @staticmethod
    def _refuse(conn: ServerConnection, command: Command) -> None:
        conn.respond(command, ResponseCode.SYSTEM_BUSY, remark=OVERLOAD)

    def _query(self, conn: ServerConnection, command: Command, request: QueryMessage) -> None:
        criteria = _criteria(request)
        count = criteria["max_count"]
        try:
            records = self._store.query(request.topic, request.key, **criteria)
        except OSError as e:
            log.warning("key index: %s", e)
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"the key index cannot be read: {e.strerror or e}")
            return
        topic = self._topics.get(request.topic)
        if topic is None or not topic.batch_queues or not count:
            self._answer(conn, command, [*records])
        else:
            command.body = b""
            self._background.spawn(self._query_batches(conn, command, request, topic, records, count), "an answer to a query")

    async def _query_batches(
        self, conn: ServerConnection, command: Command, request: QueryMessage, topic: Topic, records: list[memoryview], count: int
    ) -> None:
        """Answer 12 for a topic of batch queues: ``records`` may be batches, and not all keys of batches are in the index."""
        wanted = _Wanted(
            request.key,
            unique=bool(request.unique_key_query) or request.index_type == _UNIQUE,
            by_tag=request.index_type == _TAG and not request.unique_key_query,
            begin_ms=request.begin_timestamp_ms,
            end_ms=request.end_timestamp_ms,
            count=count,
        )
        if self._searches >= MAX_SEARCHES:
            self._refuse(conn, command)
            return
        self._searches += 1
        found: list[_Found] = []
        try:
            async with self._searching:
                if conn.closed:  # the client no longer waits for the answer
                    return
                for record in reversed(records):
                    if _last_log_offset(found, wanted.count) >= 0:
                        break
                    log_offset = Record(record, 0, len(record)).commitlog_offset
                    found.append(_Found(log_offset, self._matching(record, wanted) if is_whole(record) else [record]))
                    await asyncio.sleep(0)
                found += await self._search(topic, wanted, found)
        except (ProtocolError, OSError) as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"a batch of topic[{topic.name}] cannot be read: {e}")
            return
        finally:
            self._searches -= 1
        messages = [message for each in sorted(found, key=lambda each: each.log_offset) for message in each.messages]
        self._answer(conn, command, messages[-wanted.count :], {BATCHES_SEARCHED: "true"})

    def _matching(self, record: memoryview, wanted: "_Wanted") -> list[bytes | memoryview]:
        """Return the messages of a batch found by the index that match a query."""
        members = unpacked(record, wanted.fits)
        if not members and wanted.unique:
            # The id of the batch, which Apache's producers hand out for each of its messages: as such they are shown.
            members = unpacked(record, lambda _: True, named=wanted.key)
            wanted.count = max(wanted.count, len(members))
        return [*(members or unpacked(record, lambda _: True))]

    def _answer(
        self, conn: ServerConnection, command: Command, records: list[bytes | memoryview], more: Mapping[str, str] = NOTHING
    ) -> None:
        if not records:
            ext = {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0", **more}
            conn.respond(command, ResponseCode.QUERY_NOT_FOUND, ext=ext, remark=_NOT_FOUND)
            return
        first = len(records) - 1
        size = len(records[first])
        while first and size + len(records[first - 1]) <= MAX_ANSWER_BYTES:
            first -= 1
            size += len(records[first])
        time_ms, log_offset = self._store.indexed_until
        ext = {"indexLastUpdatePhyoffset": str(log_offset), "indexLastUpdateTimestamp": str(time_ms), **more}
        conn.respond(command, ResponseCode.SUCCESS, ext=ext, body=b"".join(records[first:]))

    # --- searches beyond the index ---

    async def _search(self, topic: Topic, wanted: "_Wanted", known: "list[_Found]") -> "list[_Found]":
        """Return matches that are not in the index; ``known`` are those that are, the newest first."""
        try:
            _, _, made_ms, _ = parse_uniq_key(wanted.key, now_ms=self._clock.time_ms())
        except RemoteProtocolError:
            made_ms = None  # another kind of key
        if made_ms is None or wanted.by_tag:
            return [] if wanted.unique and known else await self._search_back(topic, wanted, known)
        return [] if known else await self._search_around(made_ms, topic, wanted)

    async def _search_around(self, made_ms: int, topic: Topic, wanted: "_Wanted") -> "list[_Found]":
        """Search for an id around the time that it contains."""
        needle = wanted.key.encode()
        budget = MAX_SEARCHED_BYTES
        for start_ms, stop_ms in search_windows(made_ms):
            if stop_ms < wanted.begin_ms or start_ms > wanted.end_ms:
                continue
            for queue_id in range(topic.max_queue_id + 1):
                offset = await self._offset_at(topic.name, queue_id, start_ms)
                while budget > 0:
                    await self._load(topic.name, queue_id, offset, SEARCH_SLICE_BATCHES, None)
                    read = self._store.read(topic.name, queue_id, offset, max_count=1 << 30, max_bytes=SEARCH_SLICE_BYTES)
                    if read.status is not ReadStatus.FOUND or _stored_ms(read.buffers[0]) > stop_ms:
                        break
                    found: list[_Found] = []
                    for buffer in read.buffers:
                        budget -= len(buffer)
                        if needle in bytes(buffer):
                            found += _identified(buffer, wanted)
                    if found:
                        return found
                    offset = read.next_offset
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return []

    async def _search_back(self, topic: Topic, wanted: "_Wanted", known: "list[_Found]") -> "list[_Found]":
        """Search for a key or a tag from the newest batches back, in all queues evenly.

        Batches that have keys (or a tag) of their own are in the index. Each queue is left where enough newer messages are known.
        """
        store, name, needle = self._store, topic.name, wanted.key.encode()
        indexed = b"TAGS" if wanted.by_tag else b"KEYS"
        budget = MAX_SEARCHED_BYTES
        found: list[_Found] = []
        ends = {queue_id: store.max_offset(name, queue_id) for queue_id in range(topic.max_queue_id + 1)}
        while ends and budget > 0:
            floor = _last_log_offset([*known, *found], wanted.count)
            for queue_id, end in list(ends.items()):
                low = store.min_offset(name, queue_id)
                start = max(low, end - SEARCH_SLICE_MESSAGES)
                slice_bytes = 0
                await self._load(name, queue_id, start, SEARCH_SLICE_MESSAGES, end - start)
                for log_offset, size, _ in reversed(store.units(name, queue_id, start, end - start)):
                    record = store.record_at(log_offset)
                    if record is None:
                        continue
                    budget -= size
                    outer = Record(record, 0, len(record))
                    start = min(start, outer.queue_offset)
                    if log_offset < floor or outer.store_timestamp_ms < wanted.begin_ms:
                        start = low
                        break
                    if (
                        is_whole(record)
                        and outer.store_timestamp_ms <= wanted.end_ms
                        and not find_property(outer.raw_properties, indexed)
                        and needle in bytes(record)
                    ):
                        found.append(_Found(log_offset, [*unpacked(record, wanted.fits)]))
                    slice_bytes += size
                    if slice_bytes >= SEARCH_SLICE_BYTES:
                        start = outer.queue_offset
                        break
                if start > low and budget > 0:
                    ends[queue_id] = start
                else:
                    del ends[queue_id]
                await asyncio.sleep(0)
        return found

    async def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the offset of a time, without reading from the disk in the loop."""
        for _ in range(MAX_LOADS):
            try:
                return self._store.offset_by_time(topic, queue_id, time_ms, waits=False)
            except NotInMemory as e:
                await self._read(e.cold)
        return self._store.offset_by_time(topic, queue_id, time_ms)

    async def _load(self, topic: str, queue_id: int, offset: int, units: int, count: int | None) -> None:
        """Have the batches that are searched next read by another thread: first their units, then their records."""
        for _ in range(MAX_RECORD_LOADS):
            cold = self._store.find_cold(topic, queue_id, offset, units, count)
            if cold is None or not cold.waits:
                return
            await self._read(cold)

    async def _read(self, cold: ColdRead) -> None:
        try:
            await self._disk.read(cold)
        finally:
            cold.release()

    # --- by log offset ---

    def view(self, conn: ServerConnection, command: Command) -> None:
        """Answer 33: the record at a log offset; for a batch all its messages, which share the offset."""
        offset = command.header(ViewMessage).offset
        self._cold.when_in_memory(conn, command, offset, lambda: self._view(conn, command, offset))

    def _view(self, conn: ServerConnection, command: Command, offset: int) -> None:
        messages = self.messages_at(offset, lambda topic: self.may_see(conn, command, topic, GET))
        if messages:
            conn.respond(command, ResponseCode.SUCCESS, body=messages)
        else:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")

    def may_see(self, conn: ServerConnection, command: Command, topic: str, actions: frozenset[Action]) -> bool:
        """Return whether the user of a request may see a message of ``topic``, whatever topic the request names."""
        return self._allows is None or self._allows(conn, command, topic_context(topic, actions))

    def messages_at(self, log_offset: int, visible: Callable[[str], bool]) -> list[bytes | memoryview]:
        """Return the record at a log offset, or the messages of a batch there; nothing where no visible record begins.

        ``visible`` tells whether messages of a topic may be seen. Raises RemoteProtocolError for a malformed batch.
        """
        record = self._store.record_at(log_offset) if 0 <= log_offset < self._store.commitlog_visible_offset else None
        if record is None or not visible(Record(record, 0, len(record)).topic):
            return []
        return [*unpacked(record, lambda _: True)] if is_whole(record) else [record]

    # --- units of a queue ---

    def units(self, conn: ServerConnection, command: Command) -> None:
        """Answer 321: the units of a queue from an offset on, and the topic's subscription of a group, if one is given and online."""
        request = command.header(QueryConsumeQueue)
        name, queue_id = request.topic, request.queue_id
        topic = self._topics.get(name)
        store = self._store
        if topic is None or not 0 <= queue_id <= topic.max_queue_id:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"{queue_id}@{name} is not exist!")
            return
        low, high = store.min_offset(name, queue_id), store.max_offset(name, queue_id)
        if not low <= request.index < high:
            conn.respond(command, ResponseCode.SUCCESS, remark=f"Index {request.index} of {queue_id}@{name} is not exist!")
            return
        units = store.units(name, queue_id, request.index, max(0, min(request.count, MAX_UNITS)))
        body = ConsumeQueueUnits(low, high, [QueueUnit(*unit) for unit in units])
        if request.consumer_group:
            online = self._clients.consumers.get(request.consumer_group)
            subscription = online.subscriptions.get(name) if online is not None else None
            # The reference's text, also for a group that filters by tags only.
            body.filter_data = "null" if subscription is not None else f"{request.consumer_group}@{name} is not online!"
            body.subscription_data = subscription.data if subscription is not None else None
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())


class _Criteria(TypedDict):
    max_count: int
    begin_ms: int
    end_ms: int
    by_tag: bool


def _criteria(request: QueryMessage) -> _Criteria:
    """Return what a request for a key asks of the store."""
    unique = bool(request.unique_key_query)
    return {
        "max_count": MAX_UNIQUE_RECORDS if unique else max(0, min(request.max_num, MAX_RECORDS)),
        "begin_ms": request.begin_timestamp_ms,
        "end_ms": request.end_timestamp_ms,
        "by_tag": request.index_type == _TAG and not unique,
    }


@dataclass(slots=True)
class _Wanted:
    """A query (12) of a topic with batch queues."""

    key: str
    unique: bool
    by_tag: bool
    begin_ms: int
    end_ms: int
    count: int

    def fits(self, entry: BatchEntry) -> bool:
        """Return whether a message of a batch has the key, id or tag."""
        unique, words, tag = keys_in(entry.properties)
        return self.key == tag if self.by_tag else self.key == unique or self.key in words


class _Found(NamedTuple):
    """Messages of one record: its log offset, and they as records of their own, in order."""

    log_offset: int
    messages: list[bytes | memoryview]


def _last_log_offset(found: list[_Found], count: int) -> int:
    """Return the log offset of the last of the ``count`` newest messages, or of those that fill an answer; -1 when there are fewer."""
    size = 0
    for each in sorted(found, key=lambda each: each.log_offset, reverse=True):
        count -= len(each.messages)
        size += sum(map(len, each.messages))
        if count <= 0 or size >= MAX_ANSWER_BYTES:
            return each.log_offset
    return -1


def search_windows(made_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of time, in ms, in which a message may have been stored whose id says it was made at ``made_ms``.

    The likely ones come first. Last come the other time zones: an id counts from the month's begin in its maker's.
    """
    for start, stop in STORED_AFTER_MS:
        yield made_ms + start, made_ms + stop
    for half_hours in range(1, 53):
        for zone_ms in (half_hours * 1_800_000, -half_hours * 1_800_000):
            yield made_ms + zone_ms - 200, made_ms + zone_ms + 5_000


def _stored_ms(records: memoryview) -> int:
    return Record(records, 0, len(records)).store_timestamp_ms


def _identified(records: memoryview, wanted: _Wanted) -> list[_Found]:
    """Return the messages of the batches among ``records`` that have an id."""
    needle = wanted.key.encode()
    found: list[_Found] = []
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4], "big")
        record = records[at : at + size]
        at += size
        if is_whole(record) and wanted.begin_ms <= _stored_ms(record) <= wanted.end_ms and needle in bytes(record):
            members = unpacked(record, lambda entry: find_property(entry.properties, b"UNIQ_KEY") == needle)
            if members:
                found.append(_Found(Record(record, 0, size).commitlog_offset, [*members]))
    return found
