"""The sample of traced messages: their ids decide, so that every client with the same share chooses the same ones.

The last byte of an id counts a producer's messages, and the part before it is shared by up to 256 messages of one millisecond: these are
traced together or not at all. So a request costs one comparison of its ids with those before, and the records of a batch are made at once,
which costs a fraction of making one in each of many batches.
"""

from collections.abc import Sequence

from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.ids import MessageIds

_SPREAD, _SPREAD_AGAIN, _MASK = 0x85EBCA6B, 0xC2B2AE35, 0xFFFFFFFF
_HEX2 = [f"{value:02X}" for value in range(256)]


class Sampler:
    """Chooses ``share`` of all messages, 0 to 1."""

    __slots__ = ("_below", "_chosen", "_prefix", "everything", "passed_over", "share")

    def __init__(self, share: float) -> None:
        self.share: float = share
        self.everything: bool = share >= 1
        # Messages are chosen the beginning of whose ids has a hash below this.
        self._below = round(share * (1 << 32))
        # The latest prefix, and whether its messages are chosen.
        self._prefix: str | None = None
        self._chosen = False
        # The latest prefix whose messages are not chosen.
        self.passed_over: str | None = None

    def chooses(self, msg_id: str) -> bool:
        """Return whether the message with this id is traced."""
        prefix = msg_id[:-2]
        return self._chosen if prefix == self._prefix else self._chooses_prefix(prefix)

    def choose(self, ids: Sequence[str]) -> list[tuple[int, str]]:
        """Return the messages that are traced, as pairs of index and id, in order."""
        if self.everything:
            return list(enumerate(ids))
        if not isinstance(ids, MessageIds):
            return [(index, msg_id) for index, msg_id in enumerate(ids) if self.chooses(msg_id)]
        chosen: list[tuple[int, str]] = []
        start = 0
        for prefix, low, count in ids.runs:
            if self._chosen if prefix == self._prefix else self._chooses_prefix(prefix):
                chosen += [(start + at, prefix + _HEX2[low + at]) for at in range(count)]
            start += count
        return chosen

    def _chooses_prefix(self, prefix: str) -> bool:
        # Checksums of texts that differ in few characters are not spread evenly: the last steps of MurmurHash3 mix them.
        mixed = crc32(prefix.encode(errors="replace"))
        mixed = (mixed ^ mixed >> 16) * _SPREAD & _MASK
        mixed = (mixed ^ mixed >> 13) * _SPREAD_AGAIN & _MASK
        self._prefix = prefix
        self._chosen = mixed ^ mixed >> 16 < self._below
        if not self._chosen:
            self.passed_over = prefix
        return self._chosen
