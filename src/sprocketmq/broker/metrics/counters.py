"""The counters of a broker: plain objects that the hot paths add to.

::

    BrokerCounters            one per broker
      .topics  TopicCounters    one per topic that got or gave a message, also in ``Topic.counters``
                 .by_type         PutCounters by message type: normal, fifo, delay, transaction
                 .groups          GroupCounters by group name

All of them only grow: a rate is the difference of two values over the time between them. A request looks its object up once; a batch adds
its number of messages in one step. An inner batch counts its members, never itself. Counters of a topic end with the topic: the broker
holds them by weak references only.
"""

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.compression import decompress
from sprocketmq.protocol.names import is_system_topic

# Message types as the labels of metrics name them.
NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"

# Upper bounds of histograms; a last bucket counts what is larger. Sizes of messages are those of RIP-46, in bytes.
MESSAGE_SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
BATCH_MESSAGES_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCH_BYTES_BOUNDS = tuple(1 << exponent for exponent in range(8, 24, 2))
# Seconds, as in RIP-46.
DELAY_BOUNDS = (60, 600, 3600, 43200, 86400, 259200)
# Milliseconds, 5 s to a day: those of RIP-46, which counts seconds under a name that says milliseconds.
FINISH_BOUNDS = (5_000, 60_000, 600_000, 3_600_000, 43_200_000, 86_400_000)
# Seconds. They include those of request 28's putMessageDistributeTime.
WAIT_BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0)

# More pairs of topic and group than this share one GroupCounters, ``BrokerCounters.other_groups``.
MAX_GROUP_COUNTERS = 50_000
OTHER = "other"
# The group that the delivery of delayed messages is counted for, as in the reference.
DELIVERY_GROUP = "SCHEDULE_CONSUMER"


class Histogram:
    """Counts of values by size: ``counts[i]`` is how many were over ``bounds[i - 1]`` and at most ``bounds[i]``."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add_all(self, values: Sequence[float]) -> None:
        """Count ``values``, of which there is at least one."""
        first = values[0]
        if values.count(first) == len(values):  # usual: messages sent together have the same size
            self.add(first, len(values))
            return
        self.total += sum(values)
        least, most = bisect_left(self.bounds, min(values)), bisect_left(self.bounds, max(values))
        if least == most:
            self.counts[least] += len(values)
        else:
            for value in values:
                self.counts[bisect_left(self.bounds, value)] += 1

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self.counts)

    def quantile(self, part: float) -> float:
        """Return the bound below which ``part`` (0 to 1) of the values lie, the last bound for larger ones; 0 without values."""
        wanted = part * self.count
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if wanted and seen >= wanted:
                return bound
        return self.bounds[-1] if wanted else 0.0


class CompressedBodies:
    """Compressed bodies of sends. What compression saved is known for one in ``ONE_IN`` of them, and estimated for the others."""

    ONE_IN = 64
    # Larger bodies are not looked into: taking them apart would hold up the loop.
    MAX_BYTES = 64 << 10
    MAX_CONTENT_BYTES = 1 << 20

    __slots__ = ("_compressed", "_content", "bodies", "bytes")

    def __init__(self) -> None:
        self.bodies = self.bytes = 0
        self._compressed = self._content = 0  # of those that were looked into

    def add(self, body: bytes | memoryview, sys_flag: int) -> None:
        """Count one body."""
        size = len(body)
        if self.bodies % self.ONE_IN == 0 and size <= self.MAX_BYTES:
            with contextlib.suppress(RemoteProtocolError):
                self._content += len(decompress(body, sys_flag, max_bytes=self.MAX_CONTENT_BYTES))
                self._compressed += size
        self.bodies += 1
        self.bytes += size

    @property
    def saved_bytes(self) -> float:
        """How much smaller compression made all bodies so far, about."""
        return max(0.0, self.bytes * (self._content / self._compressed - 1)) if self._compressed else 0.0


class PutCounters:
    """What was stored of one topic and message type.

    ``bytes`` counts whole records, ``time_s`` what the requests waited for their commits.
    """

    __slots__ = ("bytes", "messages", "requests", "sizes", "time_s")

    def __init__(self) -> None:
        self.messages = self.bytes = self.requests = 0
        self.time_s = 0.0
        self.sizes = Histogram(MESSAGE_SIZE_BOUNDS)  # mean record size of each request

    def add(self, messages: int, size: int, sizes: list[int], waited_s: float) -> None:
        """Count requests of one commit: their messages and bytes, the mean record size of each, and how long each waited."""
        self.messages += messages
        self.bytes += size
        if len(sizes) == 1:
            self.requests += 1
            self.time_s += waited_s
            self.sizes.add(sizes[0])
        else:
            self.requests += len(sizes)
            self.time_s += waited_s * len(sizes)
            self.sizes.add_all(sizes)


class GroupCounters:
    """What a group got of a topic and gave back of it. A request counts when it found messages; ``bytes`` are those of the answers.

    ``pop_checkpoints`` and ``pop_acks`` count what the journal of pops noted: pops of a queue and changes of invisible times, and
    acknowledged messages; ``pop_again`` messages that were popped again, as nobody had acknowledged them in time.
    """

    __slots__ = (
        *("__weakref__", "dead_letters", "get_bytes", "get_messages", "get_requests", "group"),
        *("pop_acks", "pop_again", "pop_checkpoints", "sent_back", "topic"),
    )

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self.get_messages = self.get_bytes = self.get_requests = 0
        self.sent_back = self.dead_letters = 0
        self.pop_checkpoints = self.pop_acks = self.pop_again = 0


class TopicCounters:
    """What was stored of one topic, by message type, and what its groups got of it.

    ``delays`` are those that its messages asked for; ``timed_in`` and ``timed_out`` count messages for a certain time as they were sent and
    as they were delivered. ``commits`` and ``rollbacks`` count its transactions that have ended, ``finish`` how long those took that were
    committed.
    """

    __slots__ = (
        *("__weakref__", "by_type", "commits", "delays", "finish", "groups", "is_system"),
        *("name", "rollbacks", "timed_in", "timed_out"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_system = is_system_topic(name)
        self.by_type: dict[str, PutCounters] = {}
        self.groups: dict[str, GroupCounters] = {}
        self.delays: Histogram | None = None
        self.timed_in = self.timed_out = 0
        self.commits = self.rollbacks = 0
        self.finish: Histogram | None = None

    def note_delay(self, seconds: float, *, timed: bool) -> None:
        """Count a message that asked for a delay, by level or for a certain time (``timed``)."""
        if self.delays is None:
            self.delays = Histogram(DELAY_BOUNDS)
        self.delays.add(max(0.0, seconds))
        self.timed_in += timed

    def note_commit(self, milliseconds: float) -> None:
        """Count a transaction that was committed so long after its message was made."""
        self.commits += 1
        if self.finish is None:
            self.finish = Histogram(FINISH_BOUNDS)
        self.finish.add(max(0, milliseconds))  # made by the producer's clock

    def of_type(self, message_type: str) -> PutCounters:
        """Return the counters of a message type, made if need be."""
        counters = self.by_type.get(message_type)
        if counters is None:
            counters = self.by_type[message_type] = PutCounters()
        return counters

    @property
    def put_messages(self) -> int:
        """Messages stored, members of batches included."""
        return sum(counters.messages for counters in self.by_type.values())

    @property
    def put_bytes(self) -> int:
        """Bytes of the records stored."""
        return sum(counters.bytes for counters in self.by_type.values())

    @property
    def put_requests(self) -> int:
        """Sends stored; a batch is one."""
        return sum(counters.requests for counters in self.by_type.values())

    @property
    def put_time_s(self) -> float:
        """What the sends waited for their commits, together."""
        return sum(counters.time_s for counters in self.by_type.values())


class CountedTopic(Protocol):
    """A topic as the counters know it: its name, and the place for its counters."""

    name: str
    counters: TopicCounters | None


class BrokerCounters:
    """The counters of one broker.

    ``put_messages``, ``put_requests`` and ``put_bytes`` (bytes of bodies) count what was stored, messages that the broker itself stored
    among it; ``get_found`` and ``get_missed`` pulls answered with and without messages, ``get_messages`` and ``get_bytes`` what they
    carried. ``commit`` has what each send waited for its commit, ``flush`` what it waited for disk and replicas after that.
    ``batches`` and ``inner_batches`` have the messages per batch that was stored as one record each, and as one record. ``replies``
    counts replies to requests by what became of them.
    """

    __slots__ = (
        "batch_bytes",
        "batches",
        "commit",
        "compressed",
        "connections_closed",
        "connections_opened",
        "flush",
        "get_bytes",
        "get_found",
        "get_messages",
        "get_missed",
        "groups",
        "inner_batches",
        "max_commit_s",
        "now",
        "other_groups",
        "put_bytes",
        "put_failed",
        "put_messages",
        "put_requests",
        "replies",
        "started_ms",
        "topics",
    )

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.now = clock.monotonic
        self.started_ms = clock.time_ms()
        self.put_messages = self.put_bytes = self.put_requests = self.put_failed = 0
        self.get_found = self.get_missed = self.get_messages = self.get_bytes = 0
        self.connections_opened = self.connections_closed = 0
        self.replies: Counter[str] = Counter()
        self.max_commit_s = 0.0
        self.commit = Histogram(WAIT_BOUNDS)
        self.flush = Histogram(WAIT_BOUNDS)
        self.batches = Histogram(BATCH_MESSAGES_BOUNDS)
        self.inner_batches = Histogram(BATCH_MESSAGES_BOUNDS)
        self.compressed = CompressedBodies()
        self.batch_bytes = Histogram(BATCH_BYTES_BOUNDS)
        self.topics: WeakSet[TopicCounters] = WeakSet()
        self.groups: WeakSet[GroupCounters] = WeakSet()
        self.other_groups = GroupCounters(OTHER, OTHER)

    def note_batch(self, batches: Histogram, count: int, size: int) -> None:
        """Count a batch of ``count`` messages and ``size`` bytes in ``batches`` or ``inner_batches``."""
        batches.counts[bisect_left(BATCH_MESSAGES_BOUNDS, count)] += 1
        batches.total += count
        sizes = self.batch_bytes
        sizes.counts[bisect_left(BATCH_BYTES_BOUNDS, size)] += 1
        sizes.total += size

    def of_topic(self, topic: CountedTopic) -> TopicCounters:
        """Return the counters of a topic, made if need be."""
        counters = topic.counters
        if counters is None:
            counters = topic.counters = TopicCounters(topic.name)
            self.topics.add(counters)
        return counters

    def of_type(self, topic: CountedTopic, message_type: str) -> PutCounters:
        """Return the counters of a topic's messages of one type, made if need be."""
        known = topic.counters
        put = known.by_type.get(message_type) if known is not None else None
        return put if put is not None else self.of_topic(topic).of_type(message_type)

    def of_group(self, topic: CountedTopic, group: str) -> GroupCounters:
        """Return the counters of a group that reads a topic, made if need be; those of all others when there are too many."""
        groups = (topic.counters or self.of_topic(topic)).groups
        counters = groups.get(group)
        if counters is None:
            if len(self.groups) >= MAX_GROUP_COUNTERS:
                return self.other_groups
            counters = groups[group] = GroupCounters(topic.name, group)
            self.groups.add(counters)
        return counters
