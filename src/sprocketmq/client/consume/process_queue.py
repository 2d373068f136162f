"""The messages of one assigned queue between pull and commit, as plain state: no clock, no socket, no task."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from sprocketmq.client.consume.received_batch import OnAck, ReceivedBatch
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How much of a queue may be cached before pulling pauses: messages, bytes, and the span from oldest to newest offset."""

    messages: int = 1000
    size_bytes: int = 100 << 20
    span: int = 2000


class _Chunk:
    __slots__ = ("messages", "size_bytes", "taken")

    def __init__(self, messages: Sequence[ReceivedMessage], size_bytes: int) -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self.taken = 0


class ProcessQueue:
    """Messages that were pulled and are not consumed yet.

    ``take`` hands them out in order, as batches. ``finish`` ends a batch and names its messages that are not consumed: these stay here and
    hold back ``commit_offset`` until ``consumed`` reports that they were sent back. ``give_back`` hands a batch, or the rest of one, out
    again. ``commit_offset`` is the oldest message not consumed, so a crash loses nothing after it; only ``seek`` moves it back. With
    ``serial`` one batch is out at a time, and no later message overtakes the rest of it.
    """

    __slots__ = (
        "_busy",
        "_chunks",
        "_number",
        "_on_ack",
        "_out",
        "_returned",
        "began_at",
        "broker_is_ours",
        "dropped",
        "held_bytes",
        "held_messages",
        "limits",
        "next_offset",
        "paused",
        "persisted",
        "persisted_at",
        "pulled_at",
        "queue",
        "serial",
        "taken_at",
    )

    def __init__(self, queue: MessageQueue, offset: int, limits: CacheLimits, on_ack: OnAck, *, serial: bool = False) -> None:
        self.queue: MessageQueue = queue
        self.next_offset: int = offset
        # The offset at which pulling began; -1 after a seek.
        self.began_at: int = offset
        # The commit offset that a broker has, and its address if it was committed here: the master needs what a slave took for it.
        self.persisted: int = offset
        self.persisted_at: str | None = None
        self.limits: CacheLimits = limits
        self.serial: bool = serial
        self.dropped: bool = False
        self.paused: bool = False
        # Whether the queue's broker is SprocketMQ, as its answers say: it finds one message of an inner batch by its id, and stores a
        # message that is given back twice only once.
        self.broker_is_ours: bool = False
        # When the queue was last pulled, and last handed out (monotonic s); 0 for never.
        self.pulled_at: float = 0.0
        self.taken_at: float = 0.0
        self.held_messages: int = 0
        self.held_bytes: int = 0
        self._on_ack = on_ack
        self._chunks: deque[_Chunk] = deque()
        # Batches that were handed out and are not consumed completely, by number, in offset order. The rest of a batch keeps its number.
        self._out: dict[int, ReceivedBatch] = {}
        self._number = 0
        self._returned: deque[ReceivedBatch] = deque()
        self._busy: ReceivedBatch | None = None

    def put(self, messages: Sequence[ReceivedMessage], size_bytes: int, next_offset: int) -> None:
        """Add the messages of one pull (none, when no message matched); the next pull starts at ``next_offset``."""
        self.next_offset = next_offset
        if messages:
            self._chunks.append(_Chunk(messages, size_bytes))
            self.held_messages += len(messages)
            self.held_bytes += size_bytes

    def take(self, count: int, now: float = 0.0) -> ReceivedBatch | None:
        """Return a returned batch, or the next one of up to ``count`` messages; None when there is none. ``now`` is monotonic s."""
        if not self.ready:
            return None
        batch = self._returned.popleft() if self._returned else self._next(count)
        batch.taken_at = self.taken_at = now
        if self.serial:
            self._busy = batch
        return batch

    def _next(self, count: int) -> ReceivedBatch:
        chunk = self._chunks[0]
        rest = len(chunk.messages) - chunk.taken
        if rest <= count and not chunk.taken and (rest == count or len(self._chunks) == 1):
            self._chunks.popleft()
            taken, size = list(chunk.messages), chunk.size_bytes
        else:
            taken, size = self._gather(count)
        self._number += 1
        batch = self._out[self._number] = ReceivedBatch(taken, self.queue, size, self._number, 0, self._on_ack)
        return batch

    def _gather(self, count: int) -> tuple[list[ReceivedMessage], int]:
        """Cut ``count`` messages from the front, across pulls where necessary."""
        taken: list[ReceivedMessage] = []
        size = 0
        while self._chunks and len(taken) < count:
            chunk = self._chunks[0]
            rest = len(chunk.messages) - chunk.taken
            amount = min(rest, count - len(taken))
            taken += chunk.messages[chunk.taken : chunk.taken + amount]
            # Each message counts the same share of its pull's bytes; the shares add up to the whole.
            share = chunk.size_bytes * amount // rest
            chunk.taken += amount
            chunk.size_bytes -= share
            size += share
            if amount == rest:
                self._chunks.popleft()
        return taken, size

    def _is_out(self, batch: ReceivedBatch) -> bool:
        return self._out.get(batch.number) is batch

    def finish(self, batch: ReceivedBatch, left: Sequence[ReceivedMessage] = ()) -> ReceivedBatch | None:
        """End ``batch``: all of it is consumed except ``left``, which is returned as a batch of its own.

        Returns None when nothing is left, or when the batch had ended before (timed out, or invalidated by ``seek``).
        """
        if self._busy is batch:
            self._busy = None
        if not self._is_out(batch):
            return None
        number = batch.number
        if not left:
            self.held_messages -= len(batch.delivered)
            self.held_bytes -= batch.size_bytes
            del self._out[number]
            return None
        rest = ReceivedBatch(list(left), self.queue, 0, number, batch.attempts + 1, self._on_ack)
        rest.size_bytes = batch.size_bytes * len(rest) // len(batch.delivered)
        self.held_messages -= len(batch.delivered) - len(rest)
        self.held_bytes -= batch.size_bytes - rest.size_bytes
        self._out[number] = rest
        return rest

    def consumed(self, rest: ReceivedBatch, messages: Iterable[ReceivedMessage]) -> None:
        """Count ``messages`` as consumed that ``finish`` had left."""
        gone = {id(message) for message in messages}
        before, size_before = len(rest), rest.size_bytes
        rest[:] = rest.delivered = [message for message in rest if id(message) not in gone]
        rest.size_bytes = size_before * len(rest) // before
        if self._is_out(rest):
            self.held_messages -= before - len(rest)
            self.held_bytes -= size_before - rest.size_bytes
            if not rest:
                del self._out[rest.number]

    def give_back(self, batch: ReceivedBatch) -> bool:
        """Hand a batch out again before anything else. Returns whether it was still out."""
        if self._busy is batch:
            self._busy = None
        if not self._is_out(batch) or any(returned is batch for returned in self._returned):
            return False
        batch.taken_at = inf
        self._returned.append(batch)
        return True

    def overdue(self, taken_before: float) -> list[ReceivedBatch]:
        """Return the batches that were taken before ``taken_before`` (monotonic s) and have not ended."""
        return [batch for batch in self._out.values() if batch.taken_at < taken_before]

    def seek(self, offset: int) -> None:
        """Drop everything cached and continue at ``offset``. Batches that are still out no longer count."""
        self._chunks.clear()
        self._out.clear()
        self._returned.clear()
        self.held_messages = 0
        self.held_bytes = 0
        self.next_offset = offset
        self.began_at = -1  # commit the new offset regardless of the broker's
        self.persisted = -1

    def forget(self) -> None:
        """Drop the messages that no handler was given, as if not pulled: they would stay in memory with a closed consumer."""
        self.next_offset = self.position
        self.held_messages -= sum(len(chunk.messages) - chunk.taken for chunk in self._chunks)
        self.held_bytes -= sum(chunk.size_bytes for chunk in self._chunks)
        self._chunks.clear()

    @property
    def ready(self) -> bool:
        """Whether ``take`` would return a batch."""
        if self.paused or (self.serial and (self._busy is not None or len(self._out) > len(self._returned))):
            return False
        return bool(self._returned or self._chunks)

    @property
    def in_flight(self) -> int:
        """The number of messages that handlers have."""
        return sum(len(batch.delivered) for batch in self._out.values()) - sum(len(batch.delivered) for batch in self._returned)

    @property
    def busy(self) -> bool:
        """Whether a handler holds a batch of this queue; only for a ``serial`` queue."""
        return self._busy is not None

    @property
    def position(self) -> int:
        """The offset of the next message that ``take`` hands out, returned batches aside."""
        if self._chunks:
            chunk = self._chunks[0]
            return chunk.messages[chunk.taken].queue_offset
        return self.next_offset

    @property
    def commit_offset(self) -> int:
        if self._out:
            return next(iter(self._out.values())).delivered[0].queue_offset
        return self.position

    @property
    def full(self) -> str:
        """Why the next pull has to wait: "paused", or the limit reached ("messages", "bytes", "span"); empty when it need not."""
        if self.paused:
            return "paused"
        limits = self.limits
        if self.held_messages > limits.messages:
            return "messages"
        if self.held_bytes > limits.size_bytes:
            return "bytes"
        if self.held_messages and self.next_offset - self.commit_offset > limits.span:
            return "span"
        return ""
