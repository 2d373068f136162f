"""Value types of the public API: messages to send, queues, results."""

from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from sprocketmq.errors import ConfigError, InvalidMessage, NotAMessage
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, SHARDING_KEY

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_MAX_I32, _MAX_I64 = 2**31 - 1, 2**63 - 1
# With its name and two separators it takes all the room for properties.
MAX_ORDERING_KEY_BYTES = MAX_PROPERTIES_LENGTH - len(SHARDING_KEY) - 2
# The number of characters of a value that errors quote.
_QUOTED = 200


class _Positional(msgspec.Struct, eq=False, gc=False):
    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = NO_PROPERTIES


# A struct: a class with a constructor in Python takes twice as long to create, and adds load to the garbage collector.
class Message(_Positional, kw_only=True, eq=False, gc=False):
    """A message to send.

    ``body`` is bytes (at least one); ``tag`` one word consumers filter on; ``keys`` words the message can be looked up by;
    ``properties`` text pairs of the user's own; ``queue`` the queue to send to, or None for any. ``flag`` is a free 32-bit number.

    ``delay_level`` makes the broker hold the message back: 1 to 18 by its table (1 s 5 s 10 s 30 s 1 m to 10 m in minutes, 20 m 30 m
    1 h 2 h, unless configured otherwise), 0 means not at all; a broker takes a level beyond its table for its last. ``deliver_at_ms``
    is a wall-clock time in milliseconds since the epoch instead of a level; one that has passed means at once.

    ``ordering_key`` sends all messages with the same key to one queue, which keeps their order. The queue is the one that Java's
    SelectMessageQueueByHash chooses for the key, and changes with the number of queues; consumers find the key in property
    ``__SHARDINGKEY``.

    Raises InvalidMessage when the body is not bytes-like, or a delay or the ordering key cannot be; the other fields are checked when the
    message is sent.
    """

    delay_level: int = 0
    deliver_at_ms: int | None = None
    queue: "MessageQueue | None" = None
    flag: int = 0
    wait_store_ok: bool = True
    ordering_key: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            topic: str,
            body: bytes | bytearray | memoryview,
            tag: str | None = None,
            keys: Sequence[str] = (),
            properties: Mapping[str, str] = NO_PROPERTIES,
            *,
            delay_level: int = 0,
            deliver_at_ms: int | None = None,
            queue: "MessageQueue | None" = None,
            flag: int = 0,
            wait_store_ok: bool = True,
            ordering_key: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        body: object = self.body
        if type(body) is not bytes and not isinstance(body, bytes):
            if not isinstance(body, bytearray | memoryview):
                raise InvalidMessage(f"the body must be bytes, not {type(body).__name__}: encode text with .encode()")
            self.body: bytes = bytes(body)
        if self.delay_level != 0 or self.deliver_at_ms is not None:
            _check_delay(self.delay_level, self.deliver_at_ms)
        if self.ordering_key is not None:
            check_ordering_key(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without properties of its own a message shares a mapping proxy, which neither pickle nor copy.deepcopy takes.
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return _remade, (type(self), {name: value for name, value in fields.items() if value is not NO_PROPERTIES})

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, tag={self.tag!r}, keys={self.keys!r})"


def _remade(kind: type[Message], fields: dict[str, Any]) -> Message:
    return kind(**fields)


def _check_delay(level: object, deliver_at_ms: object) -> None:
    if type(level) is not int or not 0 <= level <= _MAX_I32:
        raise InvalidMessage(f"delay level {level!r} cannot be: give 1 to 18 (levels of the broker's table), or 0 for no delay")
    if deliver_at_ms is not None:
        if type(deliver_at_ms) is not int or not 0 <= deliver_at_ms <= _MAX_I64:
            raise InvalidMessage(f"deliver_at_ms must be whole milliseconds since the epoch, not {deliver_at_ms!r}")
        if level:
            raise InvalidMessage(f"delay level {level} and deliver_at_ms {deliver_at_ms} exclude each other: give one of them")


def check_ordering_key(message: Message, index: int | None = None) -> None:
    """Raise InvalidMessage when a message's ordering key cannot be stored, or when the message also names a queue."""
    key: object = message.ordering_key
    if type(key) is not str:
        raise InvalidMessage(f"the ordering key must be text, not {type(key).__name__}: {key!r}"[:_QUOTED], index=index)
    if not key:
        raise InvalidMessage("the ordering key is empty: give a key, or None for a message without order", index=index)
    if "\x01" in key or "\x02" in key:
        raise InvalidMessage(f"the ordering key {key[:_QUOTED]!r} has a separator of properties in it, 0x01 or 0x02", index=index)
    try:
        size = len(key.encode())
    except UnicodeEncodeError as e:
        raise InvalidMessage(f"the ordering key must be valid text: {e.reason}", index=index) from None
    if size > MAX_ORDERING_KEY_BYTES:
        raise InvalidMessage(f"the ordering key takes {size} bytes, the limit is {MAX_ORDERING_KEY_BYTES}", index=index)
    if message.queue is not None:
        raise InvalidMessage("the ordering key and queue exclude each other: give one of them, as the key chooses the queue", index=index)
    if message.properties and SHARDING_KEY in message.properties:
        raise InvalidMessage(f"the ordering key and the property {SHARDING_KEY} exclude each other: give ordering_key alone", index=index)


def not_a_message(value: object, index: int | None = None) -> NotAMessage:
    """Return the error for something that was to be sent and is not a Message; ``index`` is its place in a batch."""
    if hasattr(value, "topic") and hasattr(value, "body"):
        advice = "to send on what was received, make a Message of its topic, body, tag and keys"
    else:
        advice = "give a Message('topic', b'body')"
    return NotAMessage(f"it is not a Message but {type(value).__name__}: {advice}", index=index)


def unsendable(value: object, error: BaseException) -> BaseException:
    """Return what to raise when sending ``value`` ended in ``error``: that it is not a Message, if that is why."""
    told = isinstance(error, AttributeError | TypeError | ConfigError)
    return not_a_message(value) if told and not isinstance(value, Message) else error


# A struct, as it is part of the key of every gathered message: one made by dataclass takes its hash in Python.
class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic on one broker; ordered by topic, broker, number, as the rebalance rules want."""

    topic: str
    broker_name: str
    queue_id: int


class SendStatus(Enum):
    """The durability of a stored message; everything but SEND_OK means stored, but with less durability than asked for."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class TransactionOutcome(IntEnum):
    """The outcome of a transaction according to its producer; after UNKNOWN the broker checks again."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12

    __str__ = Enum.__str__  # not its number


class Receipt(msgspec.Struct, eq=False):
    """A broker's answer to one send request, from which the results of its messages are made.

    ``msg_ids`` are the ids the client gave them, in order; ``offset_msg_ids`` the broker's: one of each message with commas between, or one
    for all, which then are one record. ``queue_offset`` is the first message's; those of the others follow.
    """

    status: SendStatus
    msg_ids: Sequence[str]
    offset_msg_ids: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    recall_handle: str = ""
    _each: list[str] | None = None

    def offset_msg_id(self, place: int) -> str:
        """Return the broker's id of one message."""
        if self._each is None:
            ids = self.offset_msg_ids.split(",")
            self._each = ids if len(ids) == len(self.msg_ids) else [self.offset_msg_ids] * len(self.msg_ids)
        return self._each[place]


# A busy producer creates one for each message, and few are looked at: two fields are filled, the rest is computed on access.
class SendResult(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where a message was stored. Made by ``SendResult.of``; two are equal when all their fields are."""

    _receipt: Receipt
    _place: int

    @classmethod
    def of(
        cls, status: SendStatus, msg_id: str, offset_msg_id: str, topic: str, broker_name: str, queue_id: int, queue_offset: int
    ) -> "SendResult":
        """Return a result like that of a message that was sent by itself; for tests of programs that use results."""
        return cls(Receipt(status, (msg_id,), offset_msg_id, topic, broker_name, queue_id, queue_offset), 0)

    @property
    def status(self) -> SendStatus:
        """The durability with which the message is stored."""
        return self._receipt.status

    @property
    def msg_id(self) -> str:
        """The id the client gave the message (UNIQ_KEY), by which it can be queried."""
        return self._receipt.msg_ids[self._place]

    @property
    def offset_msg_id(self) -> str:
        """The broker's id, which says where the message's record is; messages that are stored as one record share it."""
        return self._receipt.offset_msg_id(self._place)

    @property
    def topic(self) -> str:
        """The message's topic."""
        return self._receipt.topic

    @property
    def broker_name(self) -> str:
        """The broker that has stored it."""
        return self._receipt.broker_name

    @property
    def queue_id(self) -> int:
        """The queue of the topic, on that broker."""
        return self._receipt.queue_id

    @property
    def queue_offset(self) -> int:
        """The message's place in the queue, its own also inside a batch."""
        return self._receipt.queue_offset + self._place

    @property
    def recall_handle(self) -> str:
        """The handle by which a message that waits for ``deliver_at_ms`` can be recalled (``Producer.recall``); "" for other messages."""
        return self._receipt.recall_handle

    def as_dict(self) -> dict[str, str | int]:
        """Return all fields by name, as JSON values; ``status`` as its name, such as ``"SEND_OK"``."""
        values: dict[str, Any] = dict(zip(_RESULT, self._values(), strict=True))
        handle = {"recall_handle": self.recall_handle} if self.recall_handle else {}
        return values | {"status": self.status.name} | handle

    def _values(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in _RESULT])

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, SendResult) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = zip(_RESULT, self._values(), strict=True)
        return f"SendResult({', '.join(f'{name}={value!r}' for name, value in fields)})"


# The fields of a result, in the order of its ``repr``.
_RESULT = ("status", "msg_id", "offset_msg_id", "topic", "broker_name", "queue_id", "queue_offset")
