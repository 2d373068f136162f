"""Values users hold: messages to send, queues, results."""

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from sprocketmq.errors import InvalidMessage

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_MAX_I32, _MAX_I64 = 2**31 - 1, 2**63 - 1


class _Positional(msgspec.Struct, eq=False, gc=False):
    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = NO_PROPERTIES


# A struct, as a class with a constructor in Python takes twice as long to make; and no load on the collector.
class Message(_Positional, kw_only=True, eq=False, gc=False):
    """A message to send.

    ``body`` is bytes (at least one); ``tag`` one word consumers filter on; ``keys`` words the message can be looked up by;
    ``properties`` text pairs of the user's own; ``queue`` the queue to send to, or None for any. ``flag`` is a free 32-bit number.

    ``delay_level`` has the broker hold the message back: 1 to 18 by its table (1 s 5 s 10 s 30 s 1 m to 10 m in minutes, 20 m 30 m
    1 h 2 h, unless configured otherwise), 0 means not at all; a broker takes a level beyond its table for its last. ``deliver_at_ms``
    is a wall-clock time in milliseconds since the epoch instead of a level; one that has passed means at once.

    Raises InvalidMessage when the body is not bytes-like, or a delay cannot be; the other fields are checked when the message is sent.
    """

    delay_level: int = 0
    deliver_at_ms: int | None = None
    queue: "MessageQueue | None" = None
    flag: int = 0
    wait_store_ok: bool = True

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
        ) -> None: ...

    def __post_init__(self) -> None:
        body: object = self.body
        if type(body) is not bytes and not isinstance(body, bytes):
            if not isinstance(body, bytearray | memoryview):
                raise InvalidMessage(f"the body must be bytes, not {type(body).__name__}: encode text with .encode()")
            self.body = bytes(body)
        if self.delay_level != 0 or self.deliver_at_ms is not None:
            _check_delay(self.delay_level, self.deliver_at_ms)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, tag={self.tag!r}, keys={self.keys!r})"


def _check_delay(level: object, deliver_at_ms: object) -> None:
    if type(level) is not int or not 0 <= level <= _MAX_I32:
        raise InvalidMessage(f"delay level {level!r} cannot be: give 1 to 18 (levels of the broker's table), or 0 for no delay")
    if deliver_at_ms is not None:
        if type(deliver_at_ms) is not int or not 0 <= deliver_at_ms <= _MAX_I64:
            raise InvalidMessage(f"deliver_at_ms must be whole milliseconds since the epoch, not {deliver_at_ms!r}")
        if level:
            raise InvalidMessage(f"delay level {level} and deliver_at_ms {deliver_at_ms} exclude each other: give one of them")


# A struct, as it is part of the key of every gathered message: one made by dataclass takes its hash in Python.
class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic on one broker; ordered by topic, broker, number, as the rebalance rules want."""

    topic: str
    broker_name: str
    queue_id: int


class SendStatus(Enum):
    """How a stored message was stored; everything but SEND_OK means stored, but not as safely as the broker was asked to."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True, gc=False):  # a fifth of a frozen dataclass's cost to make, and no load on the collector
    """Where a message was stored. ``queue_offset`` is the message's own, also inside a batch."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
