"""Records as pops hand them out: single messages, also of inner batches, and such that are delivered again."""

from collections.abc import Iterator, Sequence

from sprocketmq.broker.inner_batches import singles_of
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.properties import FIRST_POP_TIME, POP_CK, encode_properties
from sprocketmq.protocol.records import Record, encode_record


def records_in(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yield the records of a read."""
    for buffer in buffers:
        at = 0
        while at < len(buffer):
            size = int.from_bytes(buffer[at : at + 4], "big")
            yield buffer[at : at + size]
            at += size


def messages_in(
    buffers: Sequence[memoryview], first_offset: int, tag_codes: frozenset[int] | None
) -> Iterator[tuple[int, memoryview | bytes]]:
    """Yield the messages of a read from a queue offset on, each with its own; those of batches as records of their own.

    A batch that cannot be taken apart is one message: its consumer sees the damage, and the queue goes on.
    """
    for record in records_in(buffers):
        try:
            singles = singles_of(record, first_offset=first_offset)
        except RemoteProtocolError:
            singles = None
        if singles is None:
            yield Record(record, 0, len(record)).queue_offset, record
            continue
        for single in singles:
            message = Record(single, 0, len(single))
            if tag_codes is None or tags_code(message.tag) in tag_codes:
                yield message.queue_offset, single


def delivered_again(record: memoryview | bytes, handle: str, first_popped_ms: int, times: int) -> bytes:
    """Return the record of a message that is delivered for the ``times``-th time, with its receipt handle."""
    message = Record(record, 0, len(record))
    born_host, store_host = message.raw_hosts
    pairs = {**message.properties, POP_CK: handle}
    pairs.setdefault(FIRST_POP_TIME, str(first_popped_ms))
    return encode_record(
        topic=message.raw_topic,
        body=message.stored_body,
        properties=encode_properties(pairs),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.commitlog_offset,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=born_host,
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=store_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times + times - 1,
        prepared_offset=message.prepared_offset,
    )
