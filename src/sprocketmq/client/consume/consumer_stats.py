"""The state of a consumer: its queues, and why one of them is not pulled."""

from dataclasses import dataclass

from sprocketmq.protocol.message import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue that a consumer owns.

    Everything before ``commit_offset`` is consumed, and committed within 5 seconds. The next pull starts at ``next_offset``. Between them,
    ``cached_messages`` of ``cached_bytes`` wait here or are with handlers. ``idle_s`` is how long no pull of the queue has been answered or
    pending, and ``why_idle`` is the reason; 0.0 and empty while all is well. ``last_error`` is the error of the last pull that failed.
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
    """A consumer's ``group``, its queues (the retry topic's included), sorted, and the error that ended it, empty while it works."""

    group: str
    queues: tuple[QueueStats, ...]
    failure: str = ""
