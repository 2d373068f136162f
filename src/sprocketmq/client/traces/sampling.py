"""Which messages are traced: their ids decide, so that every client with the same share chooses the same ones.

The last byte of an id counts a producer's messages, and all before it is shared by up to 256 neighbours. The checksum of the shared part
says where in these 256 the chosen ones begin, which follow each other: a message costs little more than comparing its id with that of the
message before, and chosen messages are together in a batch, which costs less than one in each of several.
"""

from collections.abc import Sequence

from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.ids import MessageIds

_HEX2 = [f"{value:02X}" for value in range(256)]


class Sampler:
    """Chooses ``share`` of all messages, 0 to 1.

    With a share below 1, ids that do not end with two upper-case hex digits are never chosen.
    """

    __slots__ = ("_ends", "_parts", "_prefix", "_values", "_whole", "everything", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self.everything = share >= 1
        # Of 256 values ``_whole`` are chosen, and one more for ``_parts`` of 65,536 prefixes.
        self._whole = int(share * 256)
        self._parts = round((share * 256 - self._whole) * 65536)
        # What was chosen with the latest prefix: values of the last byte in order, and as digits.
        self._prefix = ""
        self._values: list[int] = []
        self._ends: frozenset[str] = frozenset()

    def chooses(self, msg_id: str) -> bool:
        """Return whether the message with this id is traced."""
        if msg_id[:-2] != self._prefix:
            self._move_to(msg_id[:-2])
        return msg_id[-2:] in self._ends or self.everything

    def choose(self, ids: Sequence[str]) -> list[tuple[int, str]]:
        """Return the messages that are traced, as pairs of index and id, in order."""
        if self.everything:
            return list(enumerate(ids))
        if not isinstance(ids, MessageIds):
            return [(index, msg_id) for index, msg_id in enumerate(ids) if self.chooses(msg_id)]
        chosen: list[tuple[int, str]] = []
        start = 0
        for prefix, low, count in ids.runs:
            if prefix != self._prefix:
                self._move_to(prefix)
            chosen += [(start + value - low, prefix + _HEX2[value]) for value in self._values if low <= value < low + count]
            start += count
        return chosen

    def _move_to(self, prefix: str) -> None:
        checksum = crc32(prefix.encode(errors="replace"))
        first, amount = checksum & 0xFF, self._whole + ((checksum >> 8) & 0xFFFF < self._parts)
        self._prefix = prefix
        self._values = sorted([(first + place) & 0xFF for place in range(amount)])
        self._ends = frozenset([_HEX2[value] for value in self._values])
