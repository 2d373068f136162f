"""The state of a consumer and what it has done: its queues, why one of them is not pulled, and its counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sprocketmq.client.hook_calls import HookCalls
from sprocketmq.client.stats import ConsumerCounts, Durations
from sprocketmq.protocol.message import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue that a consumer owns.

    Everything before ``commit_offset`` is consumed, and committed within 5 seconds. The next pull starts at ``next_offset``. Between them,
    ``cached_messages`` of ``cached_bytes`` wait here or are with handlers, ``in_flight`` of them with handlers. ``idle_s`` is how long no
    pull of the queue has been answered or pending, and ``why_idle`` is the reason; 0.0 and empty while all is well. ``last_error`` is the
    error of the last pull that failed.
    """

    queue: MessageQueue
    commit_offset: int
    next_offset: int
    cached_messages: int
    cached_bytes: int
    idle_s: float
    why_idle: str
    last_error: str
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer's ``group``, its queues (the retry topic's included), sorted, and the error that ended it, empty while it works.

    The rest counts since the consumer was made. ``pulls`` were answered, with ``messages`` in ``bytes`` of records (of calls of ``pull``
    the offsets count that they went over); ``pull_failures`` counts the others by the type of the error. ``in_flight`` messages are with
    handlers now. The program has ended with ``batches``; ``messages_per_batch`` counts them by size: the count at 8 is of batches of 8 to
    15 messages. ``handler_time`` is how long it had each, in handlers, loop bodies or between polls. ``handler_failures`` counts handler
    calls that raised, by the type of the error, and ``timed_out`` batches that took longer than ``consume_timeout_s``. ``retried`` messages
    failed and are delivered again: ``given_back`` of them were stored by a broker, ``give_back_failures`` is how often none did, and
    ``dead_letters`` an orderly consumer gave up.

    ``hook_failures`` counts calls of hooks that raised, ``slow_hooks`` those that took over 0.1 s.
    """

    group: str
    queues: tuple[QueueStats, ...]
    failure: str = ""
    pulls: int = 0
    messages: int = 0
    bytes: int = 0
    pull_failures: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0
    batches: int = 0
    messages_per_batch: Mapping[int, int] = field(default_factory=dict)
    handler_time: Durations = field(default_factory=Durations)
    handler_failures: Mapping[str, int] = field(default_factory=dict)
    timed_out: int = 0
    retried: int = 0
    given_back: int = 0
    give_back_failures: int = 0
    dead_letters: int = 0
    hook_failures: int = 0
    slow_hooks: int = 0


def consumer_stats(
    group: str, queues: Sequence[QueueStats], failure: object, counts: ConsumerCounts, hooks: HookCalls | None
) -> ConsumerStats:
    """Return a snapshot."""
    return ConsumerStats(
        group,
        tuple(queues),
        str(failure or ""),
        pulls=counts.pulls,
        messages=counts.messages,
        bytes=counts.bytes,
        pull_failures=dict(counts.pull_failures.counts),
        in_flight=sum(queue.in_flight for queue in queues),
        batches=counts.batches,
        messages_per_batch=counts.sizes.histogram(),
        handler_time=counts.handler_time.summary(),
        handler_failures=dict(counts.handler_failures.counts),
        timed_out=counts.timed_out,
        retried=counts.retried,
        given_back=counts.given_back,
        give_back_failures=counts.give_back_failures,
        dead_letters=counts.dead_letters,
        hook_failures=0 if hooks is None else hooks.failures,
        slow_hooks=0 if hooks is None else hooks.slow,
    )
