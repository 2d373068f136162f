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

_WHOLE = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
_NOT_OF_MEMBERS = _WHOLE | SYSFLAG_COMPRESSED | SYSFLAG_COMPRESSION_MASK

Keep = Callable[[BatchEntry], bool]


def unpacked(record: memoryview, keep: Keep, *, named: str = "") -> list[bytes]:
    """Return messages of a batch as records of their own, those that ``keep`` is true for, with ``named`` under this id.

    Raises RemoteProtocolError for a batch that cannot be taken apart.
    """
    outer = Record(record, 0, len(record))
    sys_flag = outer.sys_flag
    store_host_at = 76 if sys_flag & SYSFLAG_BORN_HOST_V6 else 64
    born_host = bytes(record[48 : store_host_at - 8])
    store_host = bytes(record[store_host_at : store_host_at + (20 if sys_flag & SYSFLAG_STORE_HOST_V6 else 8)])
    topic = outer.topic.encode()
    base = outer.queue_offset
    return [
        encode_record(
            topic=topic,
            body=entry.body,
            properties=_renamed(entry.properties, named) if named else entry.properties,
            queue_id=outer.queue_id,
            queue_offset=base + i,
            physical_offset=outer.commitlog_offset,
            born_timestamp_ms=outer.born_timestamp_ms,
            born_host=born_host,
            store_timestamp_ms=outer.store_timestamp_ms,
            store_host=store_host,
            flag=entry.flag,
            sys_flag=sys_flag & ~_NOT_OF_MEMBERS,
        )
        for i, entry in enumerate(split_batch(outer.stored_body))
        if keep(entry)
    ]


def members_of(record: memoryview, *, first_offset: int) -> list[bytes]:
    """Return the messages of a batch from a queue offset inside it on, as records of their own; none when it begins there or is no batch.

    Raises RemoteProtocolError for a batch that cannot be taken apart.
    """
    skipped = first_offset - Record(record, 0, len(record)).queue_offset
    return unpacked(record, lambda _: True)[skipped:] if skipped > 0 and is_whole(record) else []


def singles_of(record: memoryview, *, first_offset: int) -> list[bytes] | None:
    """Return the messages of a batch from a queue offset on, as records of their own; None for a record that is no batch.

    Raises RemoteProtocolError for a batch that cannot be taken apart.
    """
    if not is_whole(record):
        return None
    return unpacked(record, lambda _: True)[max(first_offset - Record(record, 0, len(record)).queue_offset, 0) :]


def is_whole(record: memoryview) -> bool:
    """Tell whether a record is a batch."""
    return Record(record, 0, len(record)).sys_flag & _WHOLE == _WHOLE


def _renamed(properties: bytes, msg_id: str) -> bytes:
    """Return a property string with another id, or as it is where that has no room."""
    pieces = [piece for piece in properties.split(b"\x02") if piece and not piece.startswith(b"UNIQ_KEY\x01")]
    renamed = b"\x02".join([*pieces, f"UNIQ_KEY\x01{msg_id}".encode(), b""])
    return renamed if len(renamed) <= MAX_PROPERTIES_LENGTH else properties
