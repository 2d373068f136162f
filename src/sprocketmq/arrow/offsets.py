"""Queue offsets by time."""

from sprocketmq.client import PullConsumer
from sprocketmq.protocol.message import MessageQueue


async def first_since(consumer: PullConsumer, queue: MessageQueue, timestamp_ms: int, latest: int) -> int:
    """Return the offset of the first message stored at ``timestamp_ms`` or later, or ``latest``, the end of the queue."""
    offset = await consumer.offset_at(queue, timestamp_ms)
    if offset < latest:
        # For a batch queue whose messages are all older a broker returns the last batch.
        found = await consumer.pull(queue, offset, max_messages=1)
        if found.messages and found.messages[0].store_timestamp_ms < timestamp_ms:
            return latest
    return offset
