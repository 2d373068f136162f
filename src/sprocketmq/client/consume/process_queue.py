"""One assigned queue between its pulls and its commits, as plain state: no clock, no socket, no task."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage

MAX_DELAY_LEVEL = 18
# What ``retry`` may be told besides a level.
BROKER_DECIDES = 0
DEAD_LETTER = -1

# Not failed itself, but after one that did, in an ordered queue.
BEHIND = -2

_DONE = -3


# Called with a batch that its handler has acknowledged.
OnAck = Callable[["ReceivedBatch"], None]


class ReceivedBatch(list[ReceivedMessage]):
    """Messages of one queue, in order, handed out together.

    ``queue`` is where they are from; ``attempts`` how often they were handed out before in this process and failed (a message's
    ``reconsume_times`` counts all retries); ``timed_out`` turns true when the handler took longer than ``consume_timeout_s``: the messages
    were sent back then, and nothing that the handler does with the batch counts any more.

    ``retry`` and ``done`` may be called from any thread. The list is the handler's own: what it does to it changes nothing else.
    """

    __slots__ = ("_ack", "_marks", "_messages", "_number", "attempts", "queue", "size_bytes", "taken_at", "timed_out")

    def __init__(
        self, messages: list[ReceivedMessage], queue: MessageQueue, size_bytes: int, number: int, attempts: int, ack: OnAck
    ) -> None:
        super().__init__(messages)
        self.queue = queue
        self.size_bytes = size_bytes
        self.attempts = attempts
        self.timed_out = False
        self.taken_at = inf
        self._messages = messages
        self._number = number
        self._marks: dict[int, int] | None = None
        self._ack = ack

    def ack(self) -> None:
        """Count the batch as consumed now, but for messages given to ``retry``; needed only before leaving a ``batches()`` loop with
        ``break``. Harmless when repeated.
        """
        self._ack(self)

    def retry(self, message: ReceivedMessage, delay_level: int = BROKER_DECIDES) -> None:
        """Have this one message come again later; the others of the batch are not repeated for it.

        It is sent back when the batch ends. ``delay_level`` 0 lets the broker choose (10 s, then 30 s, 1 min and so on), 1 to 18 is an
        entry of the broker's table (1 s 5 s 10 s 30 s 1 min ... 2 h), -1 gives the message up: straight to the dead-letter topic. Of an
        orderly consumer, the message and all after it come again after ``suspend_s``. When repeated, the last call counts.

        Raises ConfigError for another level, or a message that is not of this batch.
        """
        if type(delay_level) is not int or not DEAD_LETTER <= delay_level <= MAX_DELAY_LEVEL:
            raise ConfigError(
                f"delay_level must be 0 (the broker decides), 1 to {MAX_DELAY_LEVEL}, or -1 (dead-letter topic), not {delay_level!r}"
            )
        self._mark(message, delay_level)

    def done(self, message: ReceivedMessage) -> None:
        """Count this message as consumed even when the handler raises or runs too long later. Raises ConfigError when it is not of this batch."""
        self._mark(message, _DONE)

    def _mark(self, message: ReceivedMessage, mark: int) -> None:
        if not any(member is message for member in self._messages):
            raise ConfigError("the message is not of this batch: give batch.retry() and batch.done() a message of the batch itself")
        if self._marks is None:
            self._marks = {}
        self._marks[id(message)] = mark

    def to_retry(self, *, failed: bool, orderly: bool = False) -> "list[tuple[ReceivedMessage, int]]":
        """Return the messages that are not consumed, each with its delay level.

        Of a handler that ``failed`` these are all but those it called done, else those given to ``retry``. When they are ``orderly``, the
        ones after a message to be retried come along as BEHIND.
        """
        marks = self._marks
        if marks is None:
            return [(message, BROKER_DECIDES) for message in self._messages] if failed else []
        found = []
        unmarked = BROKER_DECIDES if failed else _DONE
        for message in self._messages:
            mark = marks.get(id(message), unmarked)
            if mark == _DONE:
                continue
            found.append((message, mark))
            if orderly and not failed and mark != DEAD_LETTER:
                unmarked = BEHIND
        return found


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may be held before pulling pauses: messages, bytes, and the span from oldest to newest offset."""

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
    """Messages pulled but not consumed yet.

    ``take`` hands them out in order, as batches. A batch ends by ``finish``, which says what of it is not consumed: that stays here, and
    holds back ``commit_offset``, until ``consumed`` tells that it was sent back. ``give_back`` has a batch, or what is left of one, handed out
    again. ``commit_offset`` is the oldest message not consumed, so nothing after it can be lost by a crash; only ``seek`` moves it
    back. With ``serial`` one batch is out at a time, and nothing overtakes what is left of it.
    """

    __slots__ = (
        "_busy",
        "_chunks",
        "_number",
        "_on_ack",
        "_out",
        "_returned",
        "broker_is_ours",
        "dropped",
        "held_bytes",
        "held_messages",
        "limits",
        "locked_until",
        "next_offset",
        "paused",
        "persisted",
        "pulled_at",
        "queue",
        "serial",
        "taken_at",
    )

    def __init__(self, queue: MessageQueue, offset: int, limits: Limits, on_ack: OnAck, *, serial: bool = False) -> None:
        self.queue = queue
        self.next_offset = offset
        self.persisted = offset
        self.limits = limits
        # Monotonic seconds; an ordered queue may be handed out while its lock holds.
        self.locked_until = inf
        self.serial = serial
        self.dropped = False
        self.paused = False
        # Whether the queue's broker is SprocketMQ: that finds one message of an inner batch by its id, and takes what is given back twice
        # for once. Its answers tell.
        self.broker_is_ours = False
        # When this was pulled and handed out last (monotonic s), 0 when never.
        self.pulled_at = 0.0
        self.taken_at = 0.0
        self.held_messages = 0
        self.held_bytes = 0
        self._on_ack = on_ack
        self._chunks: deque[_Chunk] = deque()
        # Every batch handed out and not consumed whole, by number, in offset order: what is left of a batch keeps its number.
        self._out: dict[int, ReceivedBatch] = {}
        self._number = 0
        self._returned: deque[ReceivedBatch] = deque()
        self._busy: ReceivedBatch | None = None

    def put(self, messages: Sequence[ReceivedMessage], size_bytes: int, next_offset: int) -> None:
        """Take in what a pull brought (nothing, when no message matched) and go on at ``next_offset``."""
        self.next_offset = next_offset
        if messages:
            self._chunks.append(_Chunk(messages, size_bytes))
            self.held_messages += len(messages)
            self.held_bytes += size_bytes

    def take(self, count: int, now: float = 0.0) -> ReceivedBatch | None:
        """Return the next batch of up to ``count`` messages, a returned one as it was; None when there is none, or none may be taken ``now``."""
        if not self.ready or now >= self.locked_until:
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
        """Cut ``count`` messages from the front, of as many pulls as it takes."""
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
        return taken, size

    def _is_out(self, batch: ReceivedBatch) -> bool:
        return self._out.get(batch._number) is batch

    def finish(self, batch: ReceivedBatch, left: Sequence[ReceivedMessage] = ()) -> ReceivedBatch | None:
        """End what a handler does with ``batch``: all of it is consumed but ``left``, which is returned as a batch of its own.

        Returns None when nothing is left, or the batch had ended before (timed out, or the queue was moved by ``seek``).
        """
        if self._busy is batch:
            self._busy = None
        if not self._is_out(batch):
            return None
        number = batch._number
        if not left:
            self.held_messages -= len(batch._messages)
            self.held_bytes -= batch.size_bytes
            del self._out[number]
            return None
        rest = ReceivedBatch(list(left), self.queue, 0, number, batch.attempts + 1, self._on_ack)
        rest.size_bytes = batch.size_bytes * len(rest) // len(batch._messages)
        self.held_messages -= len(batch._messages) - len(rest)
        self.held_bytes -= batch.size_bytes - rest.size_bytes
        self._out[number] = rest
        return rest

    def consumed(self, rest: ReceivedBatch, messages: Iterable[ReceivedMessage]) -> None:
        """Take ``messages`` as consumed that ``finish`` left."""
        gone = {id(message) for message in messages}
        before, size_before = len(rest), rest.size_bytes
        rest[:] = rest._messages = [message for message in rest if id(message) not in gone]
        rest.size_bytes = size_before * len(rest) // before
        if self._is_out(rest):
            self.held_messages -= before - len(rest)
            self.held_bytes -= size_before - rest.size_bytes
            if not rest:
                del self._out[rest._number]

    def give_back(self, batch: ReceivedBatch) -> bool:
        """Have a batch handed out again before anything else; tells whether it was still out."""
        if self._busy is batch:
            self._busy = None
        if not self._is_out(batch) or any(returned is batch for returned in self._returned):
            return False
        batch.taken_at = inf
        self._returned.append(batch)
        return True

    def overdue(self, taken_before: float) -> list[ReceivedBatch]:
        """Return the batches that a handler took before ``taken_before`` and has not ended."""
        return [batch for batch in self._out.values() if batch.taken_at < taken_before]

    def seek(self, offset: int) -> None:
        """Forget everything held and go on at ``offset``; what handlers still do with batches of before has no effect."""
        self._chunks.clear()
        self._out.clear()
        self._returned.clear()
        self.held_messages = self.held_bytes = 0
        self.next_offset = offset
        self.persisted = -1  # the broker has to hear of it, whatever it knows

    @property
    def ready(self) -> bool:
        """Whether ``take`` has something now."""
        if self.paused or (self.serial and (self._busy is not None or len(self._out) > len(self._returned))):
            return False
        return bool(self._returned or self._chunks)

    @property
    def busy(self) -> bool:
        """Whether a handler has messages of this queue, when it is ``serial``."""
        return self._busy is not None

    @property
    def position(self) -> int:
        """The offset that ``take`` goes on with, but for returned batches."""
        if self._chunks:
            chunk = self._chunks[0]
            return chunk.messages[chunk.taken].queue_offset
        return self.next_offset

    @property
    def commit_offset(self) -> int:
        if self._out:
            return next(iter(self._out.values()))._messages[0].queue_offset
        return self.position

    @property
    def full(self) -> str:
        """What forbids the next pull: "paused", or a limit ("messages", "bytes", "span"); empty when nothing does."""
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
