"""One batch of AutoBatch: its messages, and how they are encoded when it leaves."""

from typing import Generic, TypeVar

from sprocketmq.protocol.batch import PROPERTY_LENGTH_BYTES, entry_head, entry_heads, flag_of, property_length
from sprocketmq.protocol.ids import MessageIds
from sprocketmq.protocol.layout import BATCH_ENTRY_OVERHEAD
from sprocketmq.protocol.message import MessageQueue

# Messages may share a batch when these are equal: topic, tag, wait_store_ok, and the queue the caller chose.
BatchKey = tuple[str, str | None, bool, MessageQueue | None]

_M = TypeVar("_M")


class Batch(Generic[_M]):
    """Messages of one key in order of arrival: their encoded entries, and ``members``, the waiters for their outcomes."""

    __slots__ = (
        "bodies",
        "fronts",
        "key",
        "limit",
        "members",
        "merged_keys",
        "merged_keys_bytes",
        "opened_at",
        "overhead",
        "prefix",
        "queue",
        "size",
        "special",
        "tag",
        "topic",
        "wait_store_ok",
    )

    def __init__(self, key: BatchKey) -> None:
        self.key: BatchKey = key
        self.topic: str
        self.tag: str | None
        self.wait_store_ok: bool
        self.queue: MessageQueue | None
        self.topic, self.tag, self.wait_store_ok, self.queue = key
        # When it was opened (monotonic s), and how many bytes it may grow to; both 0 while it is not open.
        self.opened_at: float = 0.0
        self.limit: int = 0
        self.size: int = 0
        self.members: list[_M] = []
        self.bodies: list[bytes] = []
        # For entries without keys, properties and flag: the bytes between body and id, and the bytes of an entry besides its body. Empty
        # and 0 until the first such message.
        self.prefix: bytes = b""
        self.overhead: int = 0
        # Properties and keys of entries that have some, which stand before the prefix's property string, by index.
        self.fronts: dict[int, bytes] = {}
        # Head and prefix of each other entry, by index.
        self.special: dict[int, tuple[bytes, bytes]] = {}
        # The keys of all messages, each once, in order; and the most bytes that they and the tag can take.
        self.merged_keys: dict[str, None] = {}
        self.merged_keys_bytes: int = len((key[1] or "").encode())

    @property
    def body_bytes(self) -> int:
        """The bytes of all bodies."""
        if self.fronts or self.special:
            return sum(map(len, self.bodies))
        return self.size - self.overhead * len(self.bodies)

    def encode(self, uniq_keys: MessageIds) -> bytes:
        """Return the batch body, with one id for each message; ``size`` bytes."""
        bodies, prefix, fronts = self.bodies, self.prefix, self.fronts
        count = len(bodies)
        # Most ids of a batch share a prefix, which is joined to the bytes before it.
        beginnings: list[bytes] = []
        ends: list[bytes] = []
        behind_front = prefix[PROPERTY_LENGTH_BYTES:] if fronts else prefix
        for beginning, these in uniq_keys.pieces():
            beginnings += [behind_front + beginning] * len(these)
            ends += these
        # The parts of an entry: head, body, with fronts a property length and a front, then the rest of the property string.
        width = 6 if fronts else 4
        parts: list[bytes] = [b""] * (width * count)
        parts[1::width] = bodies
        parts[width - 2 :: width] = beginnings
        parts[width - 1 :: width] = ends
        if fronts:
            each = [*fronts.values()] if len(fronts) == count else [fronts.get(index, b"") for index in range(count)]
            lengths = [*map(len, each)]
            overhead, alone = self.overhead, self.overhead - BATCH_ENTRY_OVERHEAD
            parts[0::6] = [entry_head(overhead + n + more, 0, n) for n, more in zip(map(len, bodies), lengths, strict=True)]
            length_fields = {more: property_length(alone + more) for more in set(lengths)}
            parts[2::6] = [length_fields[more] for more in lengths]
            parts[3::6] = each
        else:
            parts[0::4] = entry_heads(bodies, self.overhead)
        for index, (head, front) in self.special.items():
            at = width * index
            parts[at], parts[at + 2], parts[at + 3] = head, b"", b""
            parts[at + width - 2] = front + beginnings[index][len(behind_front) :]
            parts[at + width - 1] = ends[index]
        return b"".join(parts)

    def only(self, uniq_key: str) -> tuple[int, bytes, str]:
        """Return flag, body and property string, with its id, of the only message of a batch."""
        head, prefix = self.special.get(0, (b"", self.prefix))
        flag = flag_of(head) if head else 0
        text = self.fronts.get(0, b"") + prefix[PROPERTY_LENGTH_BYTES:]
        return flag, self.bodies[0], f"{text.decode()}{uniq_key}\x02"

    def clear(self) -> None:
        """Drop the messages: the request has them now."""
        self.bodies.clear()
        self.fronts.clear()
        self.special.clear()
