"""The copies of messages that consumers gave back: a bounded table in memory, which avoids searching the log.

::

    orders, log offset 700  --given back-->  parked, 900  --delivered-->  %RETRY%group, 1200
                                        (or %DLQ%group, which is the end)
    copies:      (%RETRY%group, 700, its unique key) -> 900          deliveries:     900 -> 1200

The table is a hint: the log decides whether there is a record at that log offset, and whether it is that copy. So the table may list
copies that were never written. A repeated request for a copy that it has forgotten makes a second one, as always with Apache's broker.
"""

from collections import OrderedDict
from collections.abc import Iterable

from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.topics import TopicTable
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from sprocketmq.protocol.properties import find_property
from sprocketmq.protocol.records import ReceivedMessage, Record
from sprocketmq.storage.store import MessageStore

# Copies that are remembered, the newest ones; about 500 bytes each.
MAX_COPIES = 50_000
# Records that a start reads to fill the table, about 15 us each.
MAX_READ_AT_START = 20_000


class CopyTable:
    """The newest copies, by their topic, and the log offset and unique key of the original (messages of a batch share an offset)."""

    def __init__(self) -> None:
        self._copies: OrderedDict[tuple[str, int, str], int] = OrderedDict()
        self._deliveries: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def note(self, topic: str, log_offset: int, uniq: str, copy: int) -> None:
        """Remember the log offset of a copy for a retry or dead-letter topic."""
        key = (topic, log_offset, uniq)
        self._copies[key] = copy
        self._copies.move_to_end(key)
        if len(self._copies) > MAX_COPIES:
            self._copies.popitem(last=False)

    def delivered(self, parked: int, log_offset: int) -> None:
        """Remember the log offset to which a parked copy was delivered."""
        self._deliveries[parked] = log_offset
        if len(self._deliveries) > MAX_COPIES:
            self._deliveries.popitem(last=False)

    def copy_of(self, topic: str, log_offset: int, uniq: str) -> int | None:
        """Return the log offset of the copy for ``topic``, None when it is not known."""
        return self._copies.get((topic, log_offset, uniq))

    def delivery_of(self, parked: int) -> int | None:
        """Return the log offset to which a parked copy was delivered, None when it is not known."""
        return self._deliveries.get(parked)


def record_of(store: MessageStore, log_offset: int | None, *, copied_from: int | None = None) -> ReceivedMessage | None:
    """Return the record at a log offset if it is a copy of the given one."""
    view = store.record_at(log_offset) if log_offset is not None else None
    if view is None:
        return None
    record = Record(view, 0, len(view))
    return record if copied_from is None or record.copied_from == copied_from else None


def remember(copies: CopyTable, store: MessageStore, topics: TopicTable, offsets: OffsetTable, delays: DelayService) -> None:
    """Fill the table from the newest entries of the queues that hold copies: parked ones, retries not read yet, dead letters."""
    found: list[tuple[int, str, int, str]] = []
    for topic, log_offset in _newest(store, _queues(store, topics, offsets, delays)):
        copy = record_of(store, log_offset)
        source = copy.copied_from if copy is not None else None
        if copy is None or source is None:
            continue
        properties = copy.raw_properties
        name = topic if topic != SCHEDULE_TOPIC else _text(find_property(properties, b"REAL_TOPIC"))
        uniq = _text(find_property(properties, b"UNIQ_KEY"))
        original, copied = source, log_offset
        if topic.startswith(RETRY_PREFIX):
            parked = record_of(store, source)
            before = parked.copied_from if parked is not None else None
            if before is None:
                continue
            copies.delivered(source, log_offset)
            original, copied = before, source
        elif not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        found.append((copied, name, original, uniq))
    for copied, name, original, uniq in sorted(found):
        copies.note(name, original, uniq, copied)


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


def _queues(store: MessageStore, topics: TopicTable, offsets: OffsetTable, delays: DelayService) -> Iterable[tuple[str, int, int, int]]:
    """Yield topic, queue id, first offset of interest and end of the queues that hold copies."""
    for number, (following, end) in delays.offsets().items():
        yield SCHEDULE_TOPIC, number - 1, following, end
    for topic in topics:
        name = topic.name
        if name.startswith(RETRY_PREFIX):
            group = name.removeprefix(RETRY_PREFIX)
            for queue_id in range(topic.read_queues):
                read = offsets.get(group, name, queue_id) or 0
                yield name, queue_id, max(read, store.min_offset(name, queue_id)), store.max_offset(name, queue_id)
        elif name.startswith(DLQ_PREFIX):
            yield name, 0, store.min_offset(name, 0), store.max_offset(name, 0)


def _newest(store: MessageStore, queues: Iterable[tuple[str, int, int, int]]) -> Iterable[tuple[str, int]]:
    """Yield topic and log offset of the newest records of queues, up to a number of which each queue has a fair share."""
    left = MAX_READ_AT_START
    waiting = sorted((end - begin, topic, queue_id, end) for topic, queue_id, begin, end in queues if end > begin)
    for number, (length, topic, queue_id, end) in enumerate(waiting):
        count = min(length, left // (len(waiting) - number))
        left -= count
        for log_offset, _, _ in store.units(topic, queue_id, end - count, count) if count else ():
            yield topic, log_offset
