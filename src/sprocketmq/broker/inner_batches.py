"""Messages of inner batches as the records that they would be on a plain topic, with their own properties and queue offsets."""

from collections.abc import Callable

from sprocketmq.protocol.batch import BatchEntry, split_batch
from sprocketmq.protocol.codes import (
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_COMPRESSION_MASK,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
)
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH
from sprocketmq.protocol.records import Record, encode_record

WHOLE = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
_NOT_OF_MEMBERS = WHOLE | SYSFLAG_COMPRESSED | SYSFLAG_COMPRESSION_MASK

Keep = Callable[[BatchEntry], bool]


class InnerBatch:
    """A batch taken apart: ``entries`` are its messages, ``first_offset`` is the queue offset of the first. It holds no view of the record.

    Raises RemoteProtocolError for a batch that cannot be taken apart.
    """

    __slots__ = ("_more", "_topic", "entries", "first_offset")

    def __init__(self, record: memoryview) -> None:
        outer = Record(record, 0, len(record))
        sys_flag = outer.sys_flag
        store_host_at = 76 if sys_flag & SYSFLAG_BORN_HOST_V6 else 64
        self.first_offset = outer.queue_offset
        self._topic = outer.topic.encode()
        self._more = {
            "queue_id": outer.queue_id,
            "physical_offset": outer.commitlog_offset,
            "born_timestamp_ms": outer.born_timestamp_ms,
            "born_host": bytes(record[48 : store_host_at - 8]),
            "store_timestamp_ms": outer.store_timestamp_ms,
            "store_host": bytes(record[store_host_at : store_host_at + (20 if sys_flag & SYSFLAG_STORE_HOST_V6 else 8)]),
            "sys_flag": sys_flag & ~_NOT_OF_MEMBERS,
        }
        self.entries = split_batch(outer.stored_body)

    def record(self, index: int, *, named: str = "") -> bytes:
        """Return a message as a record of its own, with ``named`` for its id if given."""
        entry = self.entries[index]
        return encode_record(
            topic=self._topic,
            body=entry.body,
            properties=_renamed(entry.properties, named) if named else entry.properties,
            queue_offset=self.first_offset + index,
            flag=entry.flag,
            **self._more,  # type: ignore[arg-type]
        )

    def records(self, first_offset: int) -> list[bytes]:
        """Return the messages from a queue offset on."""
        return [self.record(index) for index in range(max(first_offset - self.first_offset, 0), len(self.entries))]


def unpacked(record: memoryview, keep: Keep, *, named: str = "") -> list[bytes]:
    """Return messages of a batch as records of their own, those that ``keep`` is true for, with ``named`` under this id.

    Raises RemoteProtocolError for a batch that cannot be taken apart.
    """
    batch = InnerBatch(record)
    return [batch.record(index, named=named) for index, entry in enumerate(batch.entries) if keep(entry)]


def members_of(record: memoryview, *, first_offset: int) -> list[bytes]:
    """Return the messages of a batch from a queue offset inside it on, as records of their own; none when it begins there or is no batch.

    Raises RemoteProtocolError for a batch that cannot be taken apart.
    """
    if first_offset <= Record(record, 0, len(record)).queue_offset or not is_whole(record):
        return []
    return InnerBatch(record).records(first_offset)


def singles_of(record: memoryview, *, first_offset: int) -> list[bytes] | None:
    """Return the messages of a batch from a queue offset on, as records of their own; None for a record that is not a batch.

    Raises RemoteProtocolError for a batch that cannot be taken apart.
    """
    return InnerBatch(record).records(first_offset) if is_whole(record) else None


def is_whole(record: memoryview) -> bool:
    """Return whether a record is a batch."""
    return Record(record, 0, len(record)).sys_flag & WHOLE == WHOLE


def _renamed(properties: bytes, msg_id: str) -> bytes:
    """Return a property string with another id, or as it is where that has no room."""
    pieces = [piece for piece in properties.split(b"\x02") if piece and not piece.startswith(b"UNIQ_KEY\x01")]
    renamed = b"\x02".join([*pieces, f"UNIQ_KEY\x01{msg_id}".encode(), b""])
    return renamed if len(renamed) <= MAX_PROPERTIES_LENGTH else properties
