"""Acknowledgements of POP consumers, many at once (200151)."""

import base64
import binascii

import msgspec

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.ranges import Int32, Int64

# Limits of one request: entries, and offsets of all of them.
MAX_ENTRIES = 1_000
MAX_OFFSETS = 1 << 16

_SHORT_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "startOffset": "so",
    "queueId": "q",
    "popTime": "pt",
    "bitSet": "b",
    "retry": "r",
    "reviveQueueId": "rq",
    "invisibleTime": "it",
}


class AckEntry(msgspec.Struct):
    """The messages of one pop that are done: bit i of ``bits``, which is Base64, stands for offset ``start`` + i."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    start: Int64 = msgspec.field(name="so")
    queue_id: Int32 = msgspec.field(name="q")
    popped_ms: Int64 = msgspec.field(name="pt")
    bits: str = msgspec.field(name="b")
    revive_queue_id: Int32 = msgspec.field(name="rq", default=0)

    def offsets(self) -> list[int]:
        """Return the offsets. Raises RemoteProtocolError for bits that cannot be read."""
        try:
            bits = base64.b64decode(self.bits, validate=True)
        except (binascii.Error, ValueError):
            raise RemoteProtocolError("the bit set of an acknowledgement is not Base64") from None
        return [self.start + 8 * i + bit for i, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]


def decode_acks(body: bytes | memoryview) -> list[AckEntry]:
    """Return the entries of a body, which has short names or long ones. Raises RemoteProtocolError for another one."""
    try:
        acks = [{_SHORT_NAMES.get(name, name): value for name, value in ack.items()} for ack in msgspec.json.decode(body)["acks"]]
        entries = msgspec.convert(acks, list[AckEntry])
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as e:
        raise RemoteProtocolError(f"the body is not a list of acknowledgements: {e}") from None
    if len(entries) > MAX_ENTRIES or sum(len(entry.bits) for entry in entries) * 6 > MAX_OFFSETS + 16 * MAX_ENTRIES:
        raise RemoteProtocolError(f"a request acknowledges at most {MAX_ENTRIES} pops and {MAX_OFFSETS} offsets: send several")
    return entries
