"""A batch of messages for a handler, with the handler's verdicts on single messages."""

from collections.abc import Callable
from math import inf

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage

MAX_DELAY_LEVEL = 18
# Values of ``delay_level`` that are not levels.
BROKER_DECIDES = 0
DEAD_LETTER = -1
# The message did not fail, but follows a failed one of an ordered queue.
BEHIND = -2

_DONE = -3

# Called with a batch that its handler has acknowledged.
OnAck = Callable[["ReceivedBatch"], None]


class ReceivedBatch(list[ReceivedMessage]):
    """Messages of one queue, in order, handed out together.

    ``queue`` is their queue. ``attempts`` counts how often they were handed out before in this process and failed (a message's
    ``reconsume_times`` counts all retries). ``timed_out`` becomes true when the handler takes longer than ``consume_timeout_s``: the
    messages have been sent back, and what the handler does with the batch afterwards has no effect.

    ``retry`` and ``done`` may be called from any thread. The list belongs to the handler: changing it changes nothing else.
    """

    # ``delivered``, ``number``, ``on_ack``, ``acknowledged`` and ``counted`` are the consumer's: the messages as handed out, the batch's
    # number in its queue, whether ``ack`` was called, and whether statistics have the batch.
    __slots__ = (
        "_marks",
        "acknowledged",
        "attempts",
        "counted",
        "delivered",
        "number",
        "on_ack",
        "queue",
        "size_bytes",
        "taken_at",
        "timed_out",
    )

    def __init__(
        self, messages: list[ReceivedMessage], queue: MessageQueue, size_bytes: int, number: int, attempts: int, on_ack: OnAck
    ) -> None:
        super().__init__(messages)
        self.queue: MessageQueue = queue
        self.size_bytes: int = size_bytes
        self.attempts: int = attempts
        self.acknowledged: bool = False
        self.counted: bool = False
        self.timed_out: bool = False
        self.taken_at: float = inf
        self.delivered: list[ReceivedMessage] = messages
        self.number: int = number
        self.on_ack: OnAck = on_ack
        self._marks: dict[int, int] | None = None

    def ack(self) -> None:
        """Count the batch as consumed now, except for messages given to ``retry``.

        Only needed before leaving a ``batches()`` loop with ``break``. Calling it again has no effect.
        """
        self.acknowledged = True
        self.on_ack(self)

    def retry(self, message: ReceivedMessage, delay_level: int = BROKER_DECIDES) -> None:
        """Request that this message is delivered again later; the other messages of the batch are not affected.

        It is sent back when the batch ends. ``delay_level`` 0 lets the broker choose (10 s, then 30 s, 1 min and so on), 1 to 18 selects an
        entry of the broker's table (1 s 5 s 10 s 30 s 1 min ... 2 h), -1 moves the message to the dead-letter topic. In an orderly
        consumer the message and all that follow it are handed out again after ``suspend_s``. The last call for a message wins.

        Raises ConfigError for any other level, or a message that is not part of this batch.
        """
        if type(delay_level) is not int or not DEAD_LETTER <= delay_level <= MAX_DELAY_LEVEL:
            raise ConfigError(
                f"delay_level must be 0 (the broker decides), 1 to {MAX_DELAY_LEVEL}, or -1 (dead-letter topic), not {delay_level!r}"
            )
        self._mark(message, delay_level)

    def done(self, message: ReceivedMessage) -> None:
        """Count this message as consumed even if the handler raises or times out later.

        Raises ConfigError for a message that is not part of this batch.
        """
        self._mark(message, _DONE)

    def _mark(self, message: ReceivedMessage, mark: int) -> None:
        if not any(member is message for member in self.delivered):
            raise ConfigError("the message is not part of this batch: pass batch.retry() and batch.done() one of the batch's own messages")
        if self._marks is None:
            self._marks = {}
        self._marks[id(message)] = mark

    def retried(self, *, failed: bool = False) -> list[ReceivedMessage]:
        """Return the messages that are to be delivered again; all that were not marked done, after a handler that ``failed``."""
        return [message for message, _ in self.to_retry(failed=failed)]

    def to_retry(self, *, failed: bool, orderly: bool = False) -> "list[tuple[ReceivedMessage, int]]":
        """Return the messages that are not consumed, each with its delay level.

        After a handler that ``failed`` these are all except those marked done, otherwise those given to ``retry``. With ``orderly``, the
        messages that follow one to be retried are included as BEHIND.
        """
        marks = self._marks
        if marks is None:
            return [(message, BROKER_DECIDES) for message in self.delivered] if failed else []
        found = []
        unmarked = BROKER_DECIDES if failed else _DONE
        for message in self.delivered:
            mark = marks.get(id(message), unmarked)
            if mark == _DONE:
                continue
            found.append((message, mark))
            if orderly and not failed and mark != DEAD_LETTER:
                unmarked = BEHIND
        return found
