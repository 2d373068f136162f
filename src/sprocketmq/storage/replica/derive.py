"""The queue units of records that have just arrived, without numpy: for a few records arrays would cost more than they save."""

from collections.abc import Sequence

from sprocketmq.protocol.layout import BATCH_UNIT, QUEUE_UNIT
from sprocketmq.storage.chunks import QueueChunk
from sprocketmq.storage.log.recovery import Scanned
from sprocketmq.storage.queues.batch_queue import COMPACTED
from sprocketmq.storage.queues.queue_table import QueueTable


def queue_chunks(records: Sequence[Scanned], table: QueueTable, batch_topics: frozenset[bytes]) -> list[QueueChunk]:
    """Return the units of records that have one, in log order: records of a queue that follow each other share a chunk."""
    chunks: list[QueueChunk] = []
    for record in records:
        if not table.has_unit(record):
            continue
        offset, count = record.queue_offset, record.count
        if record.topic in batch_topics:
            fields = (record.log_offset, record.size, record.tags_code, record.store_time_ms, offset, count, COMPACTED, 0)
            unit = BATCH_UNIT.pack(*fields)
        else:
            unit, count = QUEUE_UNIT.pack(record.log_offset, record.size, record.tags_code), 1
        last = chunks[-1] if chunks else None
        if last is not None and (last.topic, last.queue_id, last.next_offset) == (record.topic, record.queue_id, offset):
            chunks[-1] = last._replace(next_offset=offset + count, units=last.units + unit)
        else:
            chunks.append(QueueChunk(record.topic, record.queue_id, offset, offset + count, record.log_offset, unit))
    return chunks
