"""Reading parked messages: those that wait in the queue of a delay level or of timed messages."""

import logging

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.records import ReceivedMessage, Record
from sprocketmq.storage.store import MessageStore, ReadStatus

log = logging.getLogger(__name__)


def parked_message(store: MessageStore, topic: str, queue_id: int, offset: int, log_offset: int) -> ReceivedMessage | None:
    """Return the message at a queue offset, whose unit points to ``log_offset``; None when it is damaged or gone."""
    record = store.record_at(log_offset)
    if record is None or not _is_parked(record, topic, queue_id, offset):
        found = store.read(topic, queue_id, offset, max_count=1)  # the read repairs the unit
        record = found.buffers[0] if found.status is ReadStatus.FOUND else None
    if record is None or not _is_parked(record, topic, queue_id, offset):
        log.error("delayed message %d of %s, queue %d, is gone from the log", offset, topic, queue_id)
        return None
    message = Record(record, 0, len(record))
    try:
        message.verify_crc()  # its copy would get a checksum that matches the damage
    except RemoteProtocolError as e:
        log.warning("delayed message %d of %s, queue %d, is not delivered: %s", offset, topic, queue_id, e)
        return None
    return message


def _is_parked(record: memoryview, topic: str, queue_id: int, offset: int) -> bool:
    message = Record(record, 0, len(record))
    return message.queue_offset == offset and message.queue_id == queue_id and message.raw_topic == topic.encode()
