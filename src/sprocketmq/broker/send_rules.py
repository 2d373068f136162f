"""The rules for sends: flags, properties, priorities, delays. A violation is refused with the reference's code and text."""

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.topics import Topic
from sprocketmq.errors import FatalError, RemoteProtocolError
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.codes import (
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
    SYSFLAG_TRANSACTION_MASK,
    SYSFLAG_TRANSACTION_PREPARED,
    ResponseCode,
)
from sprocketmq.protocol.properties import (
    CLUSTER,
    DELAY,
    INNER_BASE,
    INNER_NUM,
    LITE_TOPIC,
    MSG_REGION,
    MULTI_DISPATCH,
    POP_CK,
    PRIORITY,
    SHARDING_KEY,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRACE_ON,
    decode_properties,
    encode_properties,
    is_half,
    priority_of,
)

_HOST_BITS = SYSFLAG_BORN_HOST_V6 | SYSFLAG_STORE_HOST_V6
_BROKER_BITS = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
# When a message has several of these, the first one counts.
_TIMER_PROPERTIES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
MAX_TIMER_MS = 3 * 86_400_000
TOO_FAR = (
    "timer message illegal, the delay time should not be bigger than the max delay %dms;"
    " or if set del msg, the delay time should be bigger than the current time"
)
# Properties that ask for something this broker does not do.
NOT_DONE = {
    LITE_TOPIC: "this broker has no lite topics, send the message without the property __LITE_TOPIC",
    MULTI_DISPATCH: "this broker puts a message into one queue, send it without the property INNER_MULTI_DISPATCH",
}
NO_RECALL = "messages are recalled by request 370, send the message without the property TIMER_DEL_UNIQKEY"
NOT_HALF = "the system flag says that the message is part of a transaction: half of one has the flag 4 and the property TRAN_MSG=true"
HALF_BATCH = "a batch, or a message of one, cannot be half of a transaction: send the message by itself"
DELAYED_MEMBER = "message %d of the batch asks to be delivered later, which a batch cannot do: send it by itself"


class SendRefused(FatalError):
    """A send to be answered with an error code; nothing of it is stored."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class SendRules:
    """The rules of one broker for flags and properties of messages that are sent to it.

    ``added_names`` are the properties that it adds to each message; ``too_large`` is the remark for an oversized message; ``host`` is its
    address, which remarks name.
    """

    def __init__(self, config: BrokerConfig, delays: DelayService) -> None:
        self.added_names = {CLUSTER: config.cluster_name, MSG_REGION: config.region, TRACE_ON: "true"}
        self.host = config.host
        self.too_large = (
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {config.max_message_bytes}B, msg properties length limit 32KB."
        )
        # A message must not be deleted with the log before its delivery time.
        self._max_timer_ms = min(MAX_TIMER_MS, round(config.store.file_reserved_hours * 3_600_000))
        self._delays = delays

    def completed(self, properties: str) -> str:
        """Return the property string, closed, without the properties that only brokers set. Raises SendRefused."""
        # Properties that the broker adds are appended. A string that has one of them already is parsed. (Text is searched, which is five
        # times as fast as searching bytes.)
        if (
            "\x01\x02" in properties
            or "CLUSTER\x01" in properties
            or "MSG_REGION\x01" in properties
            or "TRACE_ON\x01" in properties
            or "POP_CK\x01" in properties
            or "INNER_" in properties
            or "LITE_TOPIC\x01" in properties
        ):
            return self._cleaned(properties)
        if properties and properties[-1] != "\x02":
            return properties + "\x02"
        return properties

    def _cleaned(self, properties: str) -> str:
        pairs = decode_properties(properties.encode())
        self._check_done(pairs)
        for name in (*self.added_names, POP_CK):
            pairs.pop(name, None)
        return encode_properties(pairs).decode()

    def check_outer(self, properties: str) -> None:
        """Raise SendRefused for a property on a batch's outer message that the broker sets itself or does not support."""
        if "INNER_" in properties or "LITE_TOPIC\x01" in properties:
            self._check_done(decode_properties(properties.encode()))

    def _check_done(self, pairs: dict[str, str]) -> None:
        if INNER_NUM in pairs or INNER_BASE in pairs:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self.too_large)
        for name, remark in NOT_DONE.items():
            if name in pairs:
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, remark)

    def checked_sys_flag(self, sys_flag: int, properties: str) -> int:
        """Return the system flag as it is stored. Raises SendRefused."""
        if state := sys_flag & SYSFLAG_TRANSACTION_MASK:
            if state != SYSFLAG_TRANSACTION_PREPARED or not is_half(decode_properties(properties.encode())):
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, NOT_HALF)
            sys_flag -= state
        if sys_flag & _BROKER_BITS:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self.too_large)
        return sys_flag & ~_HOST_BITS

    def placed(self, topic: Topic, queue_id: int, properties: str, times: int, *, batch: bool) -> tuple[int, str, bool]:
        """Return the queue of a message that may have a priority, its properties, and whether it is half of a transaction.

        As in the reference, a priority counts whatever the topic's message.type, overrides the requested queue, and is dropped
        from delayed messages and those with an ordering key; a batch stays in its queue.
        """
        pairs = decode_properties(properties.encode())
        half = is_half(pairs) and not (times > 0 and _number(pairs, DELAY) > 0)  # otherwise it is a committed message that is retried
        if half and batch:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, HALF_BATCH)
        priority = priority_of(pairs)
        if batch or priority < 0:
            return queue_id, properties, half
        if SHARDING_KEY in pairs or DELAY in pairs or any(name in pairs for name in _TIMER_PROPERTIES):
            del pairs[PRIORITY]
            return queue_id, encode_properties(pairs).decode(), half
        return min(priority, topic.write_queues - 1), properties, half

    def delay_asked(self, properties: str) -> tuple[int, int, str]:
        """Return the delay level and the delivery time (ms) a message asks for, 0 for none, and its properties. Raises SendRefused."""
        pairs = decode_properties(properties.encode())
        level = _number(pairs, DELAY)
        timed = [name for name in _TIMER_PROPERTIES if name in pairs]
        if level > 0:
            for name in timed:
                del pairs[name]
            return min(level, self._delays.max_level), 0, encode_properties(pairs).decode()
        if TIMER_DEL_UNIQKEY in pairs:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, NO_RECALL)
        if not timed:
            return 0, 0, properties
        now = self._delays.time.now_ms()
        asked = _number(pairs, timed[0])
        due = asked if timed[0] == TIMER_DELIVER_MS else now + asked * (1000 if timed[0] == TIMER_DELAY_SEC else 1)
        if due <= now:
            return 0, 0, properties
        if due > now + self._max_timer_ms:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, TOO_FAR % self._max_timer_ms)
        if self._delays.timers.full:
            raise SendRefused(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many messages wait for a time of their own, start flow control for a while"
            )
        return 0, due, properties

    def check_members(self, strings: bytes, body: bytes | memoryview) -> None:
        """Raise SendRefused for a batch with a message that must be sent by itself, or asks for what the broker does not do.

        ``strings`` are all its property strings.
        """
        if b"M" not in strings and b"L" not in strings and b"INNER_" not in strings:  # the usual case
            return
        if not any(name in strings for name in (b"TRAN_MSG\x01", b"DELAY\x01", b"TIMER_", b"LITE_TOPIC\x01", b"INNER_")):
            return
        for index, entry in enumerate(split_batch(body)):
            pairs = decode_properties(entry.properties)
            self._check_done(pairs)
            if is_half(pairs):
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, HALF_BATCH)
            level, due_ms, _ = self.delay_asked(entry.properties.decode())
            if level or due_ms:
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, DELAYED_MEMBER % index)


def _number(pairs: dict[str, str], name: str) -> int:
    text = pairs.get(name, "0")
    try:
        return int(text)
    except ValueError:
        raise RemoteProtocolError(f"property {name} is {text!r}, not a number") from None


def of_dead_letter(properties: str) -> str:
    """Return ``properties`` for a dead letter: without timer properties, and with delay level -1."""
    pairs = decode_properties(properties.encode())
    for name in _TIMER_PROPERTIES:
        pairs.pop(name, None)
    return encode_properties({**pairs, DELAY: "-1"}).decode()


def property_value(properties: str, key: str) -> str | None:
    """Return the value of one property, ``key`` being its name and 0x01; None when it is absent or empty."""
    start = properties.find(key)
    while start > 0 and properties[start - 1] != "\x02":  # inside another name or value
        start = properties.find(key, start + 1)
    if start < 0:
        return None
    start += len(key)
    end = properties.find("\x02", start)
    return (properties[start:] if end < 0 else properties[start:end]) or None
