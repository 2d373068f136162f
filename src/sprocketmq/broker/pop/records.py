"""Records as pops hand them out: single messages, also those of inner batches, and redelivered ones."""

from collections.abc import Iterator, Sequence

from sprocketmq.broker.inner_batches import WHOLE, InnerBatch
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import BatchEntry
from sprocketmq.protocol.hashing import tags_code_raw
from sprocketmq.protocol.layout import RECORD_LAYOUT
from sprocketmq.protocol.properties import FIRST_POP_TIME, POP_CK, encode_properties, find_property
from sprocketmq.protocol.records import Record, encode_record

_unpack_head = RECORD_LAYOUT.part("size", "queue_offset", "sys_flag").unpack_from
# Limits of the decoded batches that are kept: their number and bytes; a larger one is kept alone.
_MAX_KEPT = 64
_MAX_KEPT_BYTES = 8 << 20


class Batches:
    """A cache of decoded inner batches: a pop of 32 messages takes a part of one, and the next pop the next part.

    ``kept_bytes`` is the size of their records.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[InnerBatch, int]] = {}
        self.kept_bytes = 0

    def find(self, record: memoryview) -> InnerBatch:
        """Return a batch. Raises RemoteProtocolError for one that cannot be taken apart."""
        place = Record(record, 0, len(record)).commitlog_offset
        kept = self._kept.get(place)
        if kept is not None:
            return kept[0]
        batch, size = InnerBatch(record), len(record)
        while self._kept and (len(self._kept) >= _MAX_KEPT or self.kept_bytes + size > _MAX_KEPT_BYTES):
            self.kept_bytes -= self._kept.pop(next(iter(self._kept)))[1]
        self._kept[place] = batch, size
        self.kept_bytes += size
        return batch

    def messages_in(
        self, buffers: Sequence[memoryview], first_offset: int, tag_codes: frozenset[int] | None
    ) -> Iterator[tuple[int, memoryview | bytes]]:
        """Yield the messages of a read from a queue offset on, each with its own; those of batches as records of their own.

        A batch that cannot be taken apart is one message: its consumer sees the damage, and the queue goes on.
        """
        for buffer in buffers:
            at, end = 0, len(buffer)
            while at < end:
                size, queue_offset, sys_flag = _unpack_head(buffer, at)
                record = buffer[at : at + size]
                at += size
                if sys_flag & WHOLE != WHOLE:
                    yield queue_offset, record
                    continue
                try:
                    batch = self.find(record)
                except RemoteProtocolError:
                    yield queue_offset, record
                    continue
                for index in range(max(first_offset - queue_offset, 0), len(batch.entries)):
                    if tag_codes is None or _tag_code(batch.entries[index]) in tag_codes:
                        yield queue_offset + index, batch.record(index)

    def clear(self) -> None:
        """Forget all batches."""
        self._kept.clear()
        self.kept_bytes = 0


def _tag_code(entry: BatchEntry) -> int:
    tag = find_property(entry.properties, b"TAGS")
    return tags_code_raw(tag) if tag else 0


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
