"""Conversion between messages of the API and stored messages."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Mapping

from sprocketmq.errors import InvalidName
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_send_topic, is_system_topic
from sprocketmq.protocol.properties import (
    DELAY,
    KEYS,
    MAX_PROPERTIES_LENGTH,
    PRIORITY,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
    UNIQ_KEY,
    priority_of,
)
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.proxy.codes import DIGEST_MD5, ENCODING_GZIP, ENCODING_IDENTITY, Code, MessageType, Refused
from sprocketmq.proxy.receipts import Receipt
from sprocketmq.proxy.schema import Digest, Message, Proto, Resource, SystemProperties, ms_of, seconds_of, timestamp

MAX_BODY_BYTES = 4 << 20
MAX_USER_PROPERTIES = 128
MAX_USER_PROPERTIES_BYTES = 16 << 10
MAX_MESSAGE_GROUP_BYTES = 64
MAX_RECOVERY_S = 3600

PRODUCER_GROUP = "PGROUP"
CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"
TRACE_CONTEXT = "TRACE_CONTEXT"
BORN_HOST = "BORN_HOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
ORIGIN_GROUP = "ORIGIN_GROUP"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
# Property names that are fields of their own in the API, or internal to brokers.
NOT_FOR_USERS = RESERVED | {SHARDING_KEY, PRIORITY, TRACE_CONTEXT, BORN_HOST, BORN_TIMESTAMP, ORIGIN_GROUP}

NO_NAMESPACES = "this endpoint has no namespaces; leave the client's setting for them empty"

TYPE_ATTRIBUTE = "message.type"
# The types that topics of the type MIXED accept, as reported to clients.
MIXED = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)

_JUMP = 2862933555777941757
_MASK = (1 << 64) - 1


def name_of(resource: Proto, refused_with: Code) -> str:
    """Return the name of a topic or group. Raises Refused for a name with a namespace, which brokers do not have."""
    if resource.resource_namespace:
        raise Refused(refused_with, f"{resource.name!r} is asked for in namespace {resource.resource_namespace!r}: {NO_NAMESPACES}")
    return str(resource.name)


def topic_of(resource: Proto) -> str:
    """Return the topic that a request names. Raises Refused."""
    name = name_of(resource, Code.ILLEGAL_TOPIC)
    try:
        check_send_topic(name)
    except InvalidName as e:
        raise Refused(Code.ILLEGAL_TOPIC, str(e)) from None
    if is_system_topic(name):
        raise Refused(Code.ILLEGAL_TOPIC, f"{name!r} is a system topic: brokers alone use it")
    return name


def types_of(attributes: Mapping[str, str]) -> tuple[MessageType, ...]:
    """Return the types of messages that a topic with these attributes accepts."""
    name = attributes.get(TYPE_ATTRIBUTE, "NORMAL").upper()
    if name == "MIXED":
        return MIXED
    return (MessageType[name],) if name in MessageType.__members__ else (MessageType.NORMAL,)


def properties_of(message: Proto, topic: str) -> dict[str, str]:
    """Return the properties that a message to be sent is stored with. Raises Refused."""
    system = message.system_properties
    if not system.message_id.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message has no message_id")
    if len(message.user_properties) > MAX_USER_PROPERTIES:
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"a message has at most {MAX_USER_PROPERTIES} user properties")
    size = 0
    for name, value in message.user_properties.items():
        if name in NOT_FOR_USERS:
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property name {name!r} is reserved: choose another")
        if not name or _unprintable(name) or _unprintable(value):
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r}: neither name nor value may have control characters")
        size += len(name.encode()) + len(value.encode())
    if size > MAX_USER_PROPERTIES_BYTES:
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"user properties take {size} bytes; the limit is {MAX_USER_PROPERTIES_BYTES}")
    found: dict[str, str] = {**message.user_properties, UNIQ_KEY: system.message_id}
    if system.HasField("tag"):
        if not system.tag.strip() or "|" in system.tag or _unprintable(system.tag):
            raise Refused(Code.ILLEGAL_MESSAGE_TAG, f"the tag {system.tag!r} is blank, or has '|' or control characters")
        found[TAGS] = system.tag
    if system.keys:
        for key in system.keys:
            if not key.strip() or _unprintable(key):
                raise Refused(Code.ILLEGAL_MESSAGE_KEY, f"the key {key!r} is blank or has control characters")
        found[KEYS] = " ".join(system.keys)
    if system.HasField("message_group"):
        group = system.message_group
        if not group.strip() or _unprintable(group) or len(group.encode()) >= MAX_MESSAGE_GROUP_BYTES:
            raise Refused(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"a message group has 1 to {MAX_MESSAGE_GROUP_BYTES - 1} bytes without control characters, not {group!r}",
            )
        found[SHARDING_KEY] = group
    if system.HasField("priority"):
        found[PRIORITY] = str(system.priority)
    if system.HasField("delivery_timestamp"):
        found[TIMER_DELIVER_MS] = str(ms_of(system.delivery_timestamp))
    if system.message_type == MessageType.TRANSACTION:
        found[TRAN_MSG] = "true"
        found[PRODUCER_GROUP] = topic
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = seconds_of(system.orphaned_transaction_recovery_duration)
            if not 0 <= seconds <= MAX_RECOVERY_S:
                raise Refused(Code.BAD_REQUEST, f"a transaction is checked after 0 to {MAX_RECOVERY_S} s, not {seconds:g}")
            if seconds >= 1:
                found[CHECK_IMMUNITY] = str(int(seconds))
    if system.HasField("trace_context"):
        found[TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        found[BORN_HOST] = system.born_host
    if system.HasField("born_timestamp"):
        found[BORN_TIMESTAMP] = str(ms_of(system.born_timestamp))
    total = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in found.items())
    if total > MAX_PROPERTIES_LENGTH:
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"all properties take {total} bytes; the limit is {MAX_PROPERTIES_LENGTH}")
    return found


def body_of(message: Proto) -> bytes:
    """Return the uncompressed body of a message to be sent. Raises Refused."""
    body = bytes(message.body)
    if message.system_properties.body_encoding == ENCODING_GZIP:
        body = _inflated(body)
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > MAX_BODY_BYTES:
        raise Refused(Code.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes; the limit is {MAX_BODY_BYTES}")
    return body


def _inflated(data: bytes) -> bytes:
    """Return the content of a body in gzip format, or zlib's as older clients write it; at most a byte more than allowed."""
    try:
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as file:
                return file.read(MAX_BODY_BYTES + 1)
        return zlib.decompressobj().decompress(data, MAX_BODY_BYTES + 1)
    except (OSError, EOFError, zlib.error) as e:
        raise Refused(Code.MESSAGE_CORRUPTED, f"the body is said to be compressed, and does not decompress: {e}") from None


def type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message with these properties."""
    if properties.get(TRAN_MSG, "").lower() == "true":
        return MessageType.TRANSACTION
    if TIMER_DELIVER_MS in properties or TIMER_OUT_MS in properties or DELAY in properties:
        return MessageType.DELAY
    if SHARDING_KEY in properties:
        return MessageType.FIFO
    if priority_of(properties) >= 0:
        return MessageType.PRIORITY
    return MessageType.NORMAL


def check_type(topic: str, kind: MessageType, allowed: tuple[MessageType, ...]) -> None:
    """Refuse a message of a type that its topic does not accept."""
    if kind not in allowed:
        names = ", ".join(each.name for each in allowed)
        raise Refused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {topic!r} takes messages of type {names}, and this one is {kind.name}: use a topic with {TYPE_ATTRIBUTE}={kind.name}",
        )


def queue_of_group(message_group: str, queues: list[MessageQueue] | tuple[MessageQueue, ...]) -> MessageQueue:
    """Return the queue of a message group: a jump consistent hash of Java's string hash, as Apache's endpoint chooses it.

    The hash is by Lamping and Veach: "A Fast, Minimal Memory, Consistent Hash Algorithm".
    """
    state, candidate = java_hash(message_group) & _MASK, 0
    while True:
        state = (_JUMP * state + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= len(queues):
            return queues[candidate]
        candidate = following


def delivered(message: ReceivedMessage, topic: str, receipt: Receipt, invisible_ms: int, deliveries_before: int | None) -> Proto:
    """Return a message of ``topic`` in the form for consumers. ``deliveries_before`` is the broker's count for pops in order."""
    pairs = message.properties
    body = message.body
    system = SystemProperties(
        keys=message.keys,
        message_id=message.msg_id,
        body_digest=Digest(type=DIGEST_MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=ENCODING_IDENTITY,
        message_type=type_of(pairs),
        born_timestamp=timestamp(_born(pairs, message.born_timestamp_ms)),
        born_host=pairs.get(BORN_HOST) or message.born_host,
        store_timestamp=timestamp(message.store_timestamp_ms),
        store_host=message.store_host,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        receipt_handle=str(receipt),
        delivery_attempt=(message.reconsume_times if deliveries_before is None else deliveries_before) + 1,
    )
    system.invisible_duration.seconds, system.invisible_duration.nanos = invisible_ms // 1000, invisible_ms % 1000 * 1_000_000
    if message.tag is not None:
        system.tag = message.tag
    if SHARDING_KEY in pairs:
        system.message_group = pairs[SHARDING_KEY]
    if (due := pairs.get(TIMER_DELIVER_MS, "")).isdecimal():
        system.delivery_timestamp.CopyFrom(timestamp(int(due)))
    if TRACE_CONTEXT in pairs:
        system.trace_context = pairs[TRACE_CONTEXT]
    if (priority := priority_of(pairs)) >= 0:
        system.priority = priority
    if DLQ_ORIGIN_TOPIC in pairs:
        system.dead_letter_queue.topic = pairs[DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = pairs.get(DLQ_ORIGIN_MESSAGE_ID, "")
    user = {name: value for name, value in pairs.items() if name not in NOT_FOR_USERS}
    return Message(topic=Resource(name=topic), user_properties=user, system_properties=system, body=body)


def _born(pairs: Mapping[str, str], stored_ms: int) -> int:
    text = pairs.get(BORN_TIMESTAMP, "")
    return int(text) if text.isdecimal() and len(text) < 16 else stored_ms


def _unprintable(text: str) -> bool:
    return any(c < " " or c == "\x7f" for c in text)
