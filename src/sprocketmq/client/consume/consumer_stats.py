"""What a consumer says about itself: its queues, and why one of them is not pulled."""

from dataclasses import dataclass

from sprocketmq.protocol.message import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue that a consumer holds.

    Everything before ``commit_offset`` is consumed, and committed within 5 seconds; ``next_offset`` is where the next pull begins; between
    them ``cached_messages`` of ``cached_bytes`` wait here or are with handlers. ``idle_s`` is how long the queue has neither been pulled nor
    waited at its broker for a message, and ``why_idle`` says what keeps it from that; 0.0 and empty while all is well. ``last_error`` is what
    the last pull that failed ended with.
    """

    queue: MessageQueue
    commit_offset: int
    next_offset: int
    cached_messages: int
    cached_bytes: int
    idle_s: float
    why_idle: str
    last_error: str


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer's ``group``, its queues (retries included), sorted, and the error that ended the consumer, empty while it works."""

    group: str
    queues: tuple[QueueStats, ...]
    failure: str = ""
