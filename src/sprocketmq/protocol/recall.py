"""Recall handles, which identify messages that wait for their delivery time (docs/internals/delay.md#recall)."""

import base64
import binascii
from typing import NamedTuple, Self

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.names import MAX_INTERNAL_TOPIC_LENGTH

_VERSION = "v1"
# Two names, a time and an id of at most as many characters, in Base64.
_MAX_LENGTH = 4 * MAX_INTERNAL_TOPIC_LENGTH
_MAX_DIGITS = 18


class RecallHandle(NamedTuple):
    """A handle in the reference's form; ``time_ms`` is one more than the delivery time."""

    topic: str
    broker_name: str
    time_ms: int
    uniq_key: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a handle. Raises RemoteProtocolError for any other text."""
        try:
            decoded = base64.b64decode(text[: _MAX_LENGTH + 1].encode(), altchars=b"-_", validate=True).decode()
            version, topic, broker_name, time, uniq_key = decoded.split(" ")
        except (binascii.Error, ValueError):
            raise RemoteProtocolError("this is not a recall handle: give it back as the send returned it") from None
        in_time = time.isascii() and time.isdigit() and len(time) <= _MAX_DIGITS
        if version != _VERSION or not (in_time and topic and broker_name and uniq_key):
            raise RemoteProtocolError("this is not a recall handle of a known version")
        return cls(topic, broker_name, int(time), uniq_key)

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(f"{_VERSION} {self.topic} {self.broker_name} {self.time_ms} {self.uniq_key}".encode()).decode()


def handle_of(topic: str, broker_name: str, due_ms: int, uniq_key: str) -> str:
    """Return the handle of a message that is due at ``due_ms``; "" when its id cannot be encoded in one."""
    handle = str(RecallHandle(topic, broker_name, due_ms + 1, uniq_key))
    return handle if " " not in uniq_key and len(handle) <= _MAX_LENGTH else ""
