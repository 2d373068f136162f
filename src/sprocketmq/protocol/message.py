"""Values users hold: messages to send, queues, results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import msgspec

from sprocketmq.errors import InvalidMessage

_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class Message:
    """A message to send.

    ``body`` is bytes (at least one); ``tag`` one word consumers filter on; ``keys`` words the message can be looked up by;
    ``properties`` text pairs of the user's own; ``queue`` the queue to send to, or None for any. ``flag`` is a free 32-bit number.
    Raises InvalidMessage when the body is not bytes-like; the other fields are checked when the message is sent.
    """

    __slots__ = ("body", "flag", "keys", "properties", "queue", "tag", "topic", "wait_store_ok")

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        *,
        queue: "MessageQueue | None" = None,
        flag: int = 0,
        wait_store_ok: bool = True,
    ) -> None:
        if not isinstance(body, bytes):
            if not isinstance(body, bytearray | memoryview):
                raise InvalidMessage(f"the body must be bytes, not {type(body).__name__}: encode text with .encode()")
            body = bytes(body)
        self.topic = topic
        self.body = body
        self.tag = tag
        self.keys = keys
        self.properties = properties
        self.queue = queue
        self.flag = flag
        self.wait_store_ok = wait_store_ok

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, tag={self.tag!r}, keys={list(self.keys)!r})"


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
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
