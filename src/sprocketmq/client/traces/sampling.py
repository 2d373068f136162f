"""Which messages are traced: their ids decide, so that every client with the same share chooses the same ones.

The last byte of an id counts a producer's messages, and all before it is shared by up to 256 neighbours. The checksum of the shared part
says which of the 256 values are chosen; so the ids of a batch are not looked at one by one.
"""

from collections.abc import Sequence

from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.ids import MessageIds

# Spreads the values that are chosen together: multiplying by an odd number is a permutation of the bytes.
_SPREAD = 167
_PLACE = [(_SPREAD * value) & 0xFF for value in range(256)]
_VALUE_AT = [_PLACE.index(place) for place in range(256)]


class Sampler:
    """Chooses ``share`` of all messages, 0 to 1."""

    __slots__ = ("_everything", "_parts", "_whole")

    def __init__(self, share: float) -> None:
        self._everything = share >= 1
        # Of 256 values ``_whole`` are chosen, and one more for ``_parts`` of 65,536 prefixes.
        self._whole = int(share * 256)
        self._parts = round((share * 256 - self._whole) * 65536)

    def chooses(self, msg_id: str) -> bool:
        """Return whether the message with this id is traced."""
        if self._everything:
            return True
        first, amount = self._range(msg_id[:-2])
        try:
            value = int(msg_id[-2:], 16) & 0xFF
        except ValueError:  # not made by these rules
            value = crc32(msg_id.encode(errors="replace")) & 0xFF
        return (_PLACE[value] - first) & 0xFF < amount

    def choose(self, ids: Sequence[str]) -> list[tuple[int, str]]:
        """Return the messages that are traced, as pairs of index and id, in order."""
        if self._everything:
            return list(enumerate(ids))
        if not isinstance(ids, MessageIds):
            return [(index, msg_id) for index, msg_id in enumerate(ids) if self.chooses(msg_id)]
        chosen: list[tuple[int, str]] = []
        start = 0
        for prefix, low, count in ids.runs:
            first, amount = self._range(prefix)
            if amount:
                values = sorted(_VALUE_AT[(first + place) & 0xFF] for place in range(amount))
                chosen += [(start + value - low, f"{prefix}{value:02X}") for value in values if low <= value < low + count]
            start += count
        return chosen

    def _range(self, prefix: str) -> tuple[int, int]:
        """Return which places are chosen with this prefix: the first one, and how many."""
        checksum = crc32(prefix.encode(errors="replace"))
        return checksum & 0xFF, self._whole + ((checksum >> 8) & 0xFFFF < self._parts)
