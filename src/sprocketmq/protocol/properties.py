r"""The property string of a message: ``name 0x01 value 0x02`` pairs, in no particular order (docs/internals/messages.md#properties)."""

from collections.abc import Mapping

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
# How long a broker waits before the first check of a transaction, in seconds.
CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
# The original offset of a half message that Apache's broker stored again.
FIRST_HALF_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MSG_TYPE = "MSG_TYPE"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"

MAX_PROPERTIES_LENGTH = 32767
# Enough for any 32-bit number with leading zeros; Python refuses to convert thousands of digits.
_MAX_DIGITS = 100

RESERVED = frozenset(
    {
        *(KEYS, TAGS, WAIT, DELAY, UNIQ_KEY, RETRY_TOPIC, CLUSTER, MSG_REGION, TRACE_ON, INNER_NUM, INNER_BASE, POP_CK),
        *("INSTANCE_ID", PRODUCER_GROUP, TRAN_MSG, TRANSACTION_ID, CHECK_TIMES, CHECK_IMMUNITY),
        *(FIRST_HALF_OFFSET, "REAL_TOPIC", "REAL_QID", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
        *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "CORRELATION_ID"),
        *("REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "ARRIVE_TIME", "PUSH_REPLY_TIME", "DUP_INFO", "EXTEND_UNIQ_INFO", "TRANS_OFFSET"),
        *("TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "BUYER_ID", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"),
        *("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_ROLL_LABEL", "TIMER_DEL_UNIQKEY"),
        *("TIMER_DELAY_LEVEL", "POP_CK_OFFSET", "1ST_POP_TIME", "__CRC32#", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
    }
)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property string as UTF-8, every pair closed by 0x02; an empty mapping gives ``b""``.

    Pairs with an empty value are left out, as every reader would drop them. Raises LocalProtocolError for a separator inside a
    name or value, an empty name, text that is not valid UTF-8, or more than 32,767 bytes.
    """
    pieces = [f"{name}\x01{value}\x02" for name, value in properties.items() if value]
    text = "".join(pieces)
    if text.count("\x01") != len(pieces) or text.count("\x02") != len(pieces) or "" in properties:
        raise LocalProtocolError("a property name is empty, or a name or value holds one of the separators 0x01 and 0x02")
    try:
        data = text.encode()
    except UnicodeEncodeError as e:
        raise LocalProtocolError(f"a property cannot be written as UTF-8: {e.reason}") from None
    if len(data) > MAX_PROPERTIES_LENGTH:
        raise LocalProtocolError(f"the properties take {len(data)} bytes, the limit is {MAX_PROPERTIES_LENGTH}")
    return data


def decode_properties(data: bytes | memoryview) -> dict[str, str]:
    """Return the pairs of a property string.

    The last 0x02 may be missing; a piece without a name or without a value is dropped, as the reference does. Raises
    RemoteProtocolError when the bytes are not UTF-8.
    """
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as e:
        raise RemoteProtocolError(f"message properties are not UTF-8: {e.reason} at byte {e.start}") from None
    pairs = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            pairs[name] = value
    return pairs


def is_half(pairs: Mapping[str, str]) -> bool:
    """Return whether a message is half of a transaction: no consumer may see it before the transaction is committed."""
    return pairs.get(TRAN_MSG, "").lower() == "true"


def priority_of(pairs: Mapping[str, str]) -> int:
    """Return the priority of a message, -1 without one; a value that is not a 32-bit number counts as none, as in the reference."""
    text = pairs.get(PRIORITY, "")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or len(digits) > _MAX_DIGITS:
        return -1
    number = int(text)
    return number if -(2**31) <= number < 2**31 else -1


def find_property(data: bytes, name: bytes) -> bytes | None:
    """Return the raw value of one property without decoding the others, or None when it is absent or empty."""
    start = data.find(name + b"\x01")
    while start > 0 and data[start - 1] != 2:  # inside another name or value
        start = data.find(name + b"\x01", start + 1)
    if start < 0:
        return None
    start += len(name) + 1
    end = data.find(b"\x02", start)
    return (data[start:] if end < 0 else data[start:end]) or None
