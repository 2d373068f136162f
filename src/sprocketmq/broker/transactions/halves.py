"""Half messages, and the marks of those whose transactions have ended, as Apache's broker stores both.

::

    send, TRAN_MSG=true, topic orders     RMQ_SYS_TRANS_HALF_TOPIC, offset 17      orders, queue 1
                                    --->  record: REAL_TOPIC=orders REAL_QID=1 --> record like it, its prepared offset: where the half is
                                                                                   RMQ_SYS_TRANS_OP_HALF_TOPIC
                                                                                   record: "17,"
"""

from collections.abc import Mapping

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.codes import SYSFLAG_TRANSACTION_COMMITTED, SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.names import HALF_TOPIC, OP_TOPIC
from sprocketmq.protocol.properties import (
    CHECK_IMMUNITY,
    CHECK_TIMES,
    FIRST_HALF_OFFSET,
    PRODUCER_GROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_ID,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)
from sprocketmq.protocol.records import ReceivedMessage, Record, encode_record, pack_host
from sprocketmq.storage.store import MessageStore

# Both topics have one queue.
QUEUE_ID = 0
_ENDED = "d"
_MAX_DIGITS = 18


def half_properties(pairs: dict[str, str], topic: str, queue_id: int, *, group: str) -> dict[str, str]:
    """Return the properties of a half message that ``group`` has sent to ``topic``."""
    rest = {name: value for name, value in pairs.items() if name not in (CHECK_TIMES, FIRST_HALF_OFFSET)}
    rest.setdefault(PRODUCER_GROUP, group)
    return {**rest, TRANSACTION_ID: pairs.get(UNIQ_KEY, ""), REAL_TOPIC: topic, REAL_QID: str(queue_id)}


def committed_properties(half: ReceivedMessage) -> dict[str, str]:
    """Return the properties of the message for consumers. Raises RemoteProtocolError for properties that cannot be read."""
    return {name: value for name, value in half.properties.items() if name not in (REAL_TOPIC, REAL_QID)}


def real_queue(pairs: Mapping[str, str]) -> int:
    """Return the queue that a half message was sent to."""
    text = pairs.get(REAL_QID, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0


def committed_flag(half: ReceivedMessage) -> int:
    """Return the system flag of the message for consumers."""
    return half.sys_flag & ~SYSFLAG_TRANSACTION_MASK | SYSFLAG_TRANSACTION_COMMITTED


def immunity_s(pairs: Mapping[str, str]) -> float:
    """Return the seconds for which a producer does not want to be asked about a half message; 0 when it sets none."""
    text = pairs.get(CHECK_IMMUNITY, "")
    return float(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0.0


def half_at(store: MessageStore, log_offset: int, queue_offset: int | None = None, topic: str = HALF_TOPIC) -> ReceivedMessage | None:
    """Return the half message at a log offset; None when there is none, or another one than that of ``queue_offset``.

    With ``topic`` DISCARDED_HALVES_TOPIC it is one that was given up on. Raises RemoteProtocolError when it is damaged.
    """
    view = store.record_at(log_offset) if log_offset >= 0 else None
    if view is None:
        return None
    half = Record(view, 0, len(view))
    if half.raw_topic != topic.encode() or (queue_offset is not None and half.queue_offset != queue_offset):
        return None
    half.verify_crc()
    return half


def check_body(half: ReceivedMessage, times: int) -> bytes:
    """Return the record to send to a producer with the ``times``-th check."""
    pairs = half.properties
    born_host, store_host = half.raw_hosts
    return encode_record(
        topic=pairs.get(REAL_TOPIC, "").encode(),
        body=half.stored_body,
        properties=encode_properties({**pairs, CHECK_TIMES: str(times), WAIT: "false"}),
        queue_id=real_queue(pairs),
        queue_offset=half.queue_offset,
        physical_offset=half.commitlog_offset,
        born_timestamp_ms=half.born_timestamp_ms,
        born_host=born_host,
        store_timestamp_ms=half.store_timestamp_ms,
        store_host=store_host,
        flag=half.flag,
        sys_flag=half.sys_flag,
        reconsume_times=half.reconsume_times,
    )


def stage_ended(store: MessageStore, queue_offset: int, now_ms: int) -> tuple[int, int]:
    """Stage the mark that the transaction of a half message has ended, and return its queue offset and log offset."""
    return store.stage_copy(
        OP_TOPIC,
        QUEUE_ID,
        b"%d," % queue_offset,
        encode_properties({TAGS: _ENDED}),
        copied_from=None,
        tags_code=tags_code(_ENDED),
        born_timestamp_ms=now_ms,
        born_host=store.store_host or pack_host("127.0.0.1", 0),
    )


def ended_offsets(store: MessageStore, log_offset: int) -> list[int]:
    """Return the queue offsets of the half messages that the mark at a log offset names; none when it cannot be read."""
    view = store.record_at(log_offset)
    if view is None:
        return []
    try:
        text = bytes(Record(view, 0, len(view)).stored_body)
    except RemoteProtocolError:
        return []
    return [int(number) for number in text.split(b",") if number.isdigit() and len(number) <= _MAX_DIGITS]
