"""AutoBatch (RIP-27): which messages travel together, and when. Pure: no event loop, no sockets; time comes from a clock.

::

    add --> open --(full, due, end of turn, flush)--> ready --(take)--> flying --(done)--> gone
       +-> ALONE: the caller sends the message by itself
    lone (adaptive mode, nothing of the key is open or flying) -------> flying --(lone_done)--> gone

``held_bytes`` counts every message from ``add`` to ``done``, whatever becomes of its batch.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Generic, TypeVar

from sprocketmq.client.send.encoding import MAX_UNITED_BYTES, Common, Entry
from sprocketmq.clock import Clock
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.ids import MessageIds
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD as ENTRY_HEAD
from sprocketmq.protocol.message import NO_PROPERTIES, Message, MessageQueue

MAX_BATCH_BYTES = 2 << 20
MAX_DELAY_MS = 30_000

# What became of an added message: it stays in an open batch; there is something to do (``take``, ``next_due``, ``end_turn``); it is not
# taken, as it fits no batch or too much is held; it is not taken by the short form.
STAYS, ACT, ALONE, OTHERWISE = range(4)

# Messages may share a batch when these are equal: topic, tag, wait_store_ok, and the queue the caller chose.
BatchKey = tuple[str, str | None, bool, MessageQueue | None]

_SHORT = Struct(">h")

_M = TypeVar("_M")


@dataclass(frozen=True, slots=True)
class Batching:
    """How a producer gathers messages (AutoBatch, RIP-27).

    Messages of the same topic, tag and wait_store_ok (and queue, when they name one) travel together. A batch leaves when it has
    ``max_bytes`` of encoded messages (1 to 2 MiB; it never has more), or ``max_delay_ms`` (1 to 30,000) after its first message at the
    latest. Messages that are larger, or that come while batches of ``total_max_bytes`` are not answered yet, are sent by themselves; a batch
    of one travels as an ordinary message.

    By default a message always waits for company: right for many senders, while one that awaits each send in turn then sends a message
    every ``max_delay_ms``. With ``adaptive=True`` a message leaves at once while nothing of its kind is on its way; only under load messages
    gather, until the answer comes, the batch is full or the delay is over. Raises ConfigError for values out of bounds.
    """

    max_bytes: int = 32 * 1024
    max_delay_ms: int = 10
    total_max_bytes: int = 32 << 20
    adaptive: bool = False

    def __post_init__(self) -> None:
        _check("max_bytes", self.max_bytes, MAX_BATCH_BYTES)
        _check("max_delay_ms", self.max_delay_ms, MAX_DELAY_MS)
        _check("total_max_bytes", self.total_max_bytes, None)


def _check(name: str, value: object, most: int | None) -> None:
    if type(value) is not int or value < 1 or (most is not None and value > most):
        bounds = f"from 1 to {most:,}" if most is not None else "1 or more"
        raise ConfigError(f"batching: {name} must be a whole number, {bounds}, not {value!r}")


@dataclass(frozen=True, slots=True)
class BatchingStats:
    """What AutoBatch has done since the producer was made.

    ``batches`` have left with ``messages`` messages in all; ``direct`` messages went by themselves. ``histogram`` counts batches by size:
    the count at 8 is of batches of 8 to 15 messages; sizes that did not occur are left out. ``held_bytes`` are waiting or unanswered
    now. ``linger_ms_mean`` and ``linger_ms_max`` say how long batches waited, counted from their first message.
    """

    batches: int
    messages: int
    direct: int
    histogram: Mapping[int, int]
    held_bytes: int
    linger_ms_mean: float
    linger_ms_max: float


class Batch(Generic[_M]):
    """Messages of one key: their encoded entries, and whom to tell what became of them (``members``), in the order they came."""

    __slots__ = (
        "bodies",
        "front",
        "key",
        "limit",
        "members",
        "opened_at",
        "overhead",
        "queue",
        "rare",
        "size",
        "tag",
        "topic",
        "united",
        "united_bytes",
        "wait_store_ok",
    )

    def __init__(self, key: BatchKey) -> None:
        self.key = key
        self.topic, self.tag, self.wait_store_ok, self.queue = key
        # When it was opened, and what it then may grow to; before that, nothing can be in it.
        self.opened_at = 0.0
        self.limit = 0
        self.size = 0
        self.members: list[_M] = []
        self.bodies: list[bytes] = []
        # What the entries of messages without keys, properties and flag have in common: the bytes before their ids, and how many bytes
        # they have beside their bodies. Nothing until it is known.
        self.front = b""
        self.overhead = 0
        # Head and front of every other entry, by its place.
        self.rare: dict[int, tuple[bytes, bytes]] = {}
        # The keys of all messages, each once, in order; and the bytes that they and the tag take at most.
        self.united: dict[str, None] = {}
        self.united_bytes = len((key[1] or "").encode())

    @property
    def body_bytes(self) -> int:
        """The bytes of all bodies."""
        return sum(map(len, self.bodies)) if self.rare else self.size - self.overhead * len(self.bodies)

    def encode(self, uniq_keys: MessageIds) -> bytes:
        """Return the batch body, with one id for each message; ``size`` bytes."""
        bodies, overhead = self.bodies, self.overhead
        count = len(bodies)
        parts: list[bytes] = [b""] * (4 * count)
        lengths = list(map(len, bodies))
        first = lengths[0]
        if lengths.count(first) == count:  # most batches are of one kind
            parts[0::4] = [ENTRY_HEAD.pack(overhead + first, 0, 0, 0, first)] * count
        else:
            parts[0::4] = [ENTRY_HEAD.pack(overhead + n, 0, 0, 0, n) for n in lengths]
        parts[1::4] = bodies
        # What the ids of most batches begin with they have in common, so it joins what comes before them.
        fronts: list[bytes] = []
        ends: list[bytes] = []
        for beginning, these in uniq_keys.pieces():
            fronts += [self.front + beginning] * len(these)
            ends += these
        parts[2::4] = fronts
        parts[3::4] = ends
        for place, (head, front) in self.rare.items():
            parts[4 * place] = head
            parts[4 * place + 2] = front + fronts[place][len(self.front) :]
        return b"".join(parts)

    def only(self, uniq_key: str) -> tuple[int, bytes, str]:
        """Return flag, body and property string of the only message, with its id: alone it travels as an ordinary message."""
        head, front = self.rare.get(0, (b"", self.front))
        flag = ENTRY_HEAD.unpack(head)[3] if head else 0
        return flag, self.bodies[0], f"{front[2:].decode()}{uniq_key}\x02"


class Accumulator(Generic[_M]):
    """Gathers messages into batches by the rules of ``Batching``; the caller sends what ``take`` returns.

    ``max_message_bytes`` bounds batches as it bounds single messages.
    """

    def __init__(self, batching: Batching, clock: Clock, *, max_message_bytes: int) -> None:
        self._max_bytes = min(batching.max_bytes, max_message_bytes)
        self._delay_s = batching.max_delay_ms / 1000
        self._total = batching.total_max_bytes
        self.adaptive = batching.adaptive
        self._now = clock.monotonic
        # Open batches in the order they were opened, which is the order they are due.
        self.open: dict[BatchKey, Batch[_M]] = {}
        # The one of them that was joined last; or one like the last that has left, not open yet; or one that nothing joins.
        self._none: Batch[_M] = Batch(("", None, True, None))
        self._latest = self._none
        self._eager: list[Batch[_M]] = []
        self._ready: deque[Batch[_M]] = deque()
        self._flying: dict[BatchKey, int] = {}  # kept in adaptive mode only
        self.held_bytes = 0
        self._batches = self._messages = self._direct = 0
        self._sizes = [0] * 17
        self._linger_s = self._longest_s = 0.0

    def join(self, message: Message, member: _M) -> int:
        """Take a message that has nothing but a body and perhaps one key into a batch of its kind; return STAYS, ACT or OTHERWISE.

        The short form of ``add``, for nearly every message of a busy producer. What may be wrong with topic, tag and queue was looked at
        when the batch was opened, or the one before it. OTHERWISE means that nothing was taken and nothing has changed.
        """
        batch = self._latest
        if (
            message.topic is not batch.topic
            or message.tag is not batch.tag
            or message.queue is not batch.queue
            or message.wait_store_ok is not batch.wait_store_ok
        ):
            try:
                another = self.open.get((message.topic, message.tag, message.wait_store_ok, message.queue))
            except TypeError:  # something that no key can have
                return OTHERWISE
            if another is None:
                return OTHERWISE
            self._latest = batch = another
        body = message.body
        overhead = batch.overhead
        if (
            not overhead
            or not body
            or (message.properties is not NO_PROPERTIES and message.properties)
            or message.flag
            or message.delay_level
            or message.deliver_at_ms is not None
        ):
            return OTHERWISE
        size = overhead + len(body)
        keys = message.keys
        if keys:
            if type(keys) is str:
                key = keys
            elif (type(keys) is tuple or type(keys) is list) and len(keys) == 1:
                key = keys[0]
            else:
                return OTHERWISE
            # As nearly every key is: of all that separates words only the blank is printable.
            if type(key) is not str or not key or not key.isprintable() or " " in key:
                return OTHERWISE
            word = key.encode()
            united = len(word) + 1
            if batch.united_bytes + overhead + united > MAX_UNITED_BYTES:
                return OTHERWISE
            size += 5 + united  # KEYS, 0x01, the word, 0x02
        used = batch.size + size
        held = self.held_bytes + size
        if held > self._total:
            return OTHERWISE
        outcome = STAYS
        if used > batch.limit:
            kind = batch.key
            if batch.limit or size > self._max_bytes or kind in self.open or (self.adaptive and kind not in self._flying):
                return OTHERWISE  # full; or to be opened, but not like this
            self._open(batch)
            outcome = ACT
        if keys:
            n = len(body)
            front = b"%bKEYS\x01%b\x02%b" % (_SHORT.pack(size - n - 22), word, batch.front[2:])
            batch.rare[len(batch.bodies)] = ENTRY_HEAD.pack(size, 0, 0, 0, n), front
            batch.united[key] = None
            batch.united_bytes += united
        batch.bodies.append(body)
        batch.members.append(member)
        batch.size = used
        self.held_bytes = held
        if used + size > batch.limit:
            self._leave(batch)
            return ACT
        return outcome

    def put(self, batch: Batch[_M], entry: Entry, keys: Collection[str], member: _M) -> int:
        """Take a message that has more than a body, its ``entry``, into an open batch of its key; return STAYS, ACT or OTHERWISE.

        OTHERWISE means that nothing was taken and nothing has changed.
        """
        size, head, body, front, united = entry
        limit = self._max_bytes
        used = batch.size + size
        held = self.held_bytes + size
        if used > limit or held > self._total or (united and batch.united_bytes + united > MAX_UNITED_BYTES):
            return OTHERWISE
        bodies = batch.bodies
        batch.rare[len(bodies)] = head, front
        if united:
            for word in keys:
                batch.united[word] = None
            batch.united_bytes += united
        bodies.append(body)
        batch.members.append(member)
        batch.size = used
        self.held_bytes = held
        if used + size > limit:
            self._leave(batch)
            return ACT
        return STAYS

    def add(
        self, key: BatchKey, entry: Entry, member: _M, *, keys: Collection[str] = (), plain: bool = False, common: Common | None = None
    ) -> int:
        """Take a message, its ``entry`` being what ``MessageEncoder.entry`` returns; return STAYS, ACT or ALONE.

        ``plain`` says that it has neither keys nor properties nor flag; ``common`` is what messages of its kind without those would have
        (``MessageEncoder.common``), where the caller knows it. A batch that has no room for the message leaves first. A batch that
        would have no room for another like it leaves at once. When the answer is ALONE, nothing was taken, but the open batch of the key
        leaves, so that the messages of a key are sent in order.
        """
        size, _, body, front, united = entry
        limit = self._max_bytes
        batch = self.open.get(key)
        if size > limit or self.held_bytes + size > self._total or (united and united + len((key[1] or "").encode()) > MAX_UNITED_BYTES):
            self._direct += 1
            if batch is not None:
                self._leave(batch)
            return ALONE
        outcome = STAYS
        if batch is not None and (batch.size + size > limit or (united and batch.united_bytes + united > MAX_UNITED_BYTES)):
            self._leave(batch)
            batch = None
        if batch is None:
            batch = Batch(key)
            self._open(batch)
            if common is not None:
                batch.front, batch.overhead = common
            outcome = ACT
        if not plain:
            return max(outcome, self.put(batch, entry, keys, member))
        batch.front, batch.overhead = front, size - len(body)
        batch.bodies.append(body)
        batch.members.append(member)
        self.held_bytes += size
        batch.size = used = batch.size + size
        if used + size > limit:
            self._leave(batch)
            return ACT
        return outcome

    def alone(self, key: BatchKey) -> int:
        """Take note of a message that cannot be batched: the open batch of its key leaves, so that order is kept. Returns ALONE."""
        self._direct += 1
        batch = self.open.get(key)
        if batch is not None:
            self._leave(batch)
        return ALONE

    def take(self) -> Batch[_M] | None:
        """Return the next batch that is to be sent now, or None. Each must be given to ``done`` once."""
        return self._ready.popleft() if self._ready else None

    def next_due(self) -> float | None:
        """Return when (monotonic seconds) the oldest open batch has to leave; None when none is open."""
        for batch in self.open.values():
            return batch.opened_at + self._delay_s
        return None

    def expire(self) -> None:
        """Let every batch leave whose delay is over."""
        now = self._now()
        while (due := self.next_due()) is not None and due <= now:
            self._leave(next(iter(self.open.values())))

    @property
    def eager(self) -> bool:
        """Whether batches wait for the end of the turn only: ``end_turn`` should be called as soon as the caller has nothing to add."""
        return bool(self._eager)

    def end_turn(self) -> None:
        """Let those batches leave of whose key nothing is on its way (adaptive mode)."""
        eager, self._eager = self._eager, []
        for batch in eager:
            if self.open.get(batch.key) is batch:
                self._leave(batch)

    def flush(self) -> None:
        """Let every open batch leave."""
        for batch in list(self.open.values()):
            self._leave(batch)
        self._eager.clear()

    def done(self, batch: Batch[_M]) -> None:
        """Take note that a batch was answered or has failed. In adaptive mode what gathered meanwhile is due when it was the last."""
        self.held_bytes -= batch.size
        self._landed(batch.key)

    def lone(self, key: BatchKey, size: int) -> bool:
        """Take note of a message that is sent by itself at once, and return True; False when it has to be added.

        Only in adaptive mode, and while nothing of its key is open or on its way. Counts as a batch of one; ``lone_done`` ends it.
        """
        if not self.adaptive or key in self.open or key in self._flying or size > self._max_bytes or self.held_bytes + size > self._total:
            return False
        self._flying[key] = 1
        self.held_bytes += size
        self._count(1, 0.0)
        return True

    def lone_done(self, key: BatchKey, size: int) -> None:
        """Take note that a lone message was answered or has failed, as ``done`` does of a batch."""
        self.held_bytes -= size
        self._landed(key)

    def stats(self) -> BatchingStats:
        """Return the counters as they are now."""
        return BatchingStats(
            batches=self._batches,
            messages=self._messages,
            direct=self._direct,
            histogram={1 << bits: count for bits, count in enumerate(self._sizes) if count},
            held_bytes=self.held_bytes,
            linger_ms_mean=self._linger_s / self._batches * 1000 if self._batches else 0.0,
            linger_ms_max=self._longest_s * 1000,
        )

    def _open(self, batch: Batch[_M]) -> None:
        batch.opened_at = self._now()
        batch.limit = self._max_bytes
        self.open[batch.key] = batch
        if self.adaptive and batch.key not in self._flying:
            self._eager.append(batch)

    def _leave(self, batch: Batch[_M]) -> None:
        del self.open[batch.key]
        if batch is self._latest:
            self._latest = self._none
            if batch.overhead and batch.queue is None:  # a queue is looked for anew, as routes change
                following: Batch[_M] = Batch(batch.key)
                following.front, following.overhead = batch.front, batch.overhead
                self._latest = following
        if self.adaptive:
            self._flying[batch.key] = self._flying.get(batch.key, 0) + 1
        self._ready.append(batch)
        self._count(len(batch.members), self._now() - batch.opened_at)

    def _landed(self, key: BatchKey) -> None:
        if not self.adaptive:
            return
        self._flying[key] -= 1
        if not self._flying[key]:
            del self._flying[key]
            waiting = self.open.get(key)
            if waiting is not None:
                # Not before the end of the turn: who was answered just now may have more to send.
                self._eager.append(waiting)

    def _count(self, messages: int, lingered: float) -> None:
        self._batches += 1
        self._messages += messages
        self._sizes[messages.bit_length() - 1] += 1
        self._linger_s += lingered
        self._longest_s = max(self._longest_s, lingered)


def no_stats() -> BatchingStats:
    """Return the counters of a producer that does not gather messages."""
    return BatchingStats(0, 0, 0, {}, 0, 0.0, 0.0)
