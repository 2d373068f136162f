"""One assigned queue between its pulls and its commits, as plain state: no clock, no socket, no task."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage


class ReceivedBatch(list[ReceivedMessage]):
    """Messages of one queue, in order, handed out together.

    ``queue`` is where they are from; ``attempts`` how often they were handed out before and failed, here and in this process.
    """

    __slots__ = ("_ack", "attempts", "queue", "size_bytes")

    def __init__(
        self, messages: list[ReceivedMessage], queue: MessageQueue, size_bytes: int, ack: "Callable[[ReceivedBatch], None]"
    ) -> None:
        super().__init__(messages)
        self.queue = queue
        self.size_bytes = size_bytes
        self.attempts = 0
        self._ack = ack

    def ack(self) -> None:
        """Count the batch as consumed now; needed only before leaving a ``batches()`` loop with ``break``. Harmless when repeated."""
        self._ack(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may be held before pulling pauses: messages, bytes, and the span from oldest to newest offset."""

    messages: int = 1000
    size_bytes: int = 100 << 20
    span: int = 2000


class _Chunk:
    __slots__ = ("messages", "size_bytes", "taken")

    def __init__(self, messages: list[ReceivedMessage], size_bytes: int) -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self.taken = 0


class ProcessQueue:
    """Messages pulled but not committed yet. ``ack`` is what its batches call when they are acknowledged.

    ``take`` hands them out in order; ``ack`` ends a batch, ``give_back`` puts it in front of everything else. ``commit_offset`` is the
    oldest message that is not acknowledged, so nothing after it can be lost by a crash; it never goes back.
    """

    __slots__ = (
        "_chunks",
        "_on_ack",
        "_out",
        "_returned",
        "dropped",
        "held_bytes",
        "held_messages",
        "limits",
        "next_offset",
        "persisted",
        "queue",
    )

    def __init__(self, queue: MessageQueue, offset: int, limits: Limits, ack: Callable[[ReceivedBatch], None]) -> None:
        self.queue = queue
        self.next_offset = offset
        self.persisted = offset
        self.limits = limits
        self.dropped = False
        self.held_messages = 0
        self.held_bytes = 0
        self._chunks: deque[_Chunk] = deque()
        self._on_ack = ack
        # Every batch handed out and not acknowledged, in offset order, as they are handed out in that order and keep their place.
        self._out: dict[int, ReceivedBatch] = {}
        self._returned: deque[ReceivedBatch] = deque()

    def put(self, messages: list[ReceivedMessage], size_bytes: int, next_offset: int) -> None:
        """Take in what a pull brought (nothing, when no message matched) and go on at ``next_offset``."""
        self.next_offset = next_offset
        if messages:
            self._chunks.append(_Chunk(messages, size_bytes))
            self.held_messages += len(messages)
            self.held_bytes += size_bytes

    def take(self, count: int) -> ReceivedBatch | None:
        """Return the next batch of up to ``count`` messages, a returned one as it was; None when there is none."""
        if self._returned:
            return self._returned.popleft()
        if not self._chunks:
            return None
        taken: list[ReceivedMessage] = []
        size = 0
        while self._chunks and len(taken) < count:
            chunk = self._chunks[0]
            rest = len(chunk.messages) - chunk.taken
            amount = min(rest, count - len(taken))
            taken += chunk.messages[chunk.taken : chunk.taken + amount]
            # Sizes are shared out evenly: what matters is that they come back to zero.
            share = chunk.size_bytes * amount // rest
            chunk.taken += amount
            chunk.size_bytes -= share
            size += share
            if amount == rest:
                self._chunks.popleft()
        batch = ReceivedBatch(taken, self.queue, size, self._on_ack)
        self._out[id(batch)] = batch
        return batch

    def ack(self, batch: ReceivedBatch) -> bool:
        """End a batch; tells whether it was still out."""
        if self._out.pop(id(batch), None) is None:
            return False
        self.held_messages -= len(batch)
        self.held_bytes -= batch.size_bytes
        return True

    def give_back(self, batch: ReceivedBatch) -> bool:
        """Have a batch handed out again before anything else; tells whether it was still out."""
        if id(batch) not in self._out or any(returned is batch for returned in self._returned):
            return False
        self._returned.append(batch)
        return True

    @property
    def ready(self) -> bool:
        """Whether ``take`` has something."""
        return bool(self._returned or self._chunks)

    @property
    def commit_offset(self) -> int:
        if self._out:
            return next(iter(self._out.values()))[0].queue_offset
        if self._chunks:
            chunk = self._chunks[0]
            return chunk.messages[chunk.taken].queue_offset
        return self.next_offset

    @property
    def full(self) -> str:
        """Which limit forbids the next pull (messages, bytes, span); empty when none does."""
        limits = self.limits
        if self.held_messages > limits.messages:
            return "messages"
        if self.held_bytes > limits.size_bytes:
            return "bytes"
        if self.held_messages and self.next_offset - self.commit_offset > limits.span:
            return "span"
        return ""
