"""Reading the messages of a queue that meet a condition."""

from collections.abc import Iterable, Iterator

from sprocketmq.broker.filters.sql92 import Condition
from sprocketmq.broker.inner_batches import singles_of
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.properties import decode_properties
from sprocketmq.protocol.records import Record
from sprocketmq.storage.store import DiskLimits, MessageStore, ReadResult, ReadStatus

# What one read may cost, in the unit of ``ReadResult.work``: about a millisecond. A message costs something for its properties, and for
# each word of the expression.
READ_WORK = 12_000
_MESSAGE_WORK = 40
_WORD_WORK = 2
_MIN_MESSAGES = 16
_MAX_BYTES = 4 << 20
# Above this number, pieces are joined: sending many small ones costs more than copying.
_MAX_PIECES = 64


def message_work(condition: Condition) -> int:
    """Return what one message costs."""
    return _MESSAGE_WORK + _WORD_WORK * condition.words


def messages_at_once(condition: Condition) -> int:
    """Return how many messages one read looks at."""
    return max(_MIN_MESSAGES, READ_WORK // message_work(condition))


def passes(condition: Condition, record: memoryview | bytes) -> bool:
    """Return whether a message meets a condition; one whose properties cannot be read does not."""
    try:
        return condition.matches(decode_properties(Record(record, 0, len(record)).raw_properties))
    except RemoteProtocolError:
        return False


def read_matching(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    condition: Condition,
    *,
    max_count: int,
    max_bytes: int,
    disk: DiskLimits | None,
    max_units: int | None,
) -> ReadResult:
    """Read as ``MessageStore.read`` does, messages that meet a condition only; those inside batches one by one.

    A batch of which all messages pass is returned whole, else those that pass as records of their own. ``next_offset`` lies after what was
    looked at.
    """
    result = store.read(
        topic,
        queue_id,
        offset,
        max_count=messages_at_once(condition),
        max_bytes=_MAX_BYTES,
        disk=disk,
        max_units=max_units,
    )
    if result.status is not ReadStatus.FOUND:
        return result
    pieces: list[memoryview] = []
    count = size = seen = 0
    following = result.next_offset
    for first, covered, record, parts in _records(result.buffers, offset):
        matching = [part for part in parts if passes(condition, part)]
        seen += len(parts)
        if not matching:
            continue
        taken = [record] if len(matching) == covered else [memoryview(part) for part in matching]
        added = sum(map(len, taken))
        if count and (count + len(matching) > max_count or size + added > max_bytes):
            following = first
            break
        pieces += taken
        count += len(matching)
        size += added
    work = result.work + seen * message_work(condition)
    status = ReadStatus.FOUND if count else ReadStatus.NO_MATCHED_MESSAGE
    buffers = pieces if len(pieces) <= _MAX_PIECES else [memoryview(b"".join(pieces))]
    return ReadResult(status, following, result.min_offset, result.max_offset, buffers, count, work, result.log_offset)


def _records(buffers: Iterable[memoryview], offset: int) -> Iterator[tuple[int, int, memoryview, list[memoryview] | list[bytes]]]:
    """Yield each record: its first queue offset from ``offset`` on, its number of messages, the record, and its messages from there on."""
    for buffer in buffers:
        at = 0
        while at < len(buffer):
            length = int.from_bytes(buffer[at : at + 4], "big")
            record = buffer[at : at + length]
            at += length
            first = Record(record, 0, length).queue_offset
            try:
                singles = singles_of(record, first_offset=offset)
            except RemoteProtocolError:  # whole to the consumer, who sees the damage
                singles = None
            if singles is None:
                yield first, 1, record, [record]
            else:
                begin = max(first, offset)
                yield begin, len(singles) + begin - first, record, singles
