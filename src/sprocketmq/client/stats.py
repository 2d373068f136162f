"""The counters of clients, in a bounded amount of memory, and the snapshots that ``stats()`` returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Durations are counted by powers of two of microseconds, sizes by powers of two; the last bucket has everything above.
_BUCKETS = 63
# The number of error names that are counted separately; further ones count as OTHER.
_MAX_KINDS = 100
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations of ``count`` operations, in seconds.

    The percentiles are estimates from a histogram by powers of two: the true value is in the same power of two. With uvloop the durations
    of sends are whole milliseconds, as is the time of its loop.
    """

    count: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counters of a producer since it was created.

    ``messages`` with ``bytes`` of bodies, as they were sent (compressed, or encoded as a batch), are stored, by ``requests`` send requests.
    ``batches`` of these carried several messages; ``messages_per_request`` counts requests by size: the count at 8 is of requests with 8 to
    15 messages. Requests that the program encodes itself count as one message each.

    ``in_flight`` messages (a ``send_batch`` request counts as one) with ``in_flight_bytes`` of bodies are not answered yet. ``retries``
    counts tries after the first one of a request. ``failed`` requests ended with an error, which ``failures`` counts by its type;
    CancelledError is that of a sender that was cancelled. ``latency`` is the time from the first try to the answer of requests that were
    stored, all tries together.

    ``hook_failures`` counts calls of hooks that raised or returned something unusable, ``slow_hooks`` those that took over 0.1 s.
    ``oneway`` counts messages of ``send_oneway``, of which nobody knows whether they are stored; the other numbers leave them out.
    """

    group: str
    messages: int = 0
    bytes: int = 0
    requests: int = 0
    batches: int = 0
    messages_per_request: Mapping[int, int] = field(default_factory=dict)
    in_flight: int = 0
    in_flight_bytes: int = 0
    retries: int = 0
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    latency: Durations = field(default_factory=Durations)
    hook_failures: int = 0
    slow_hooks: int = 0
    oneway: int = 0


class DurationCounts:
    """Counts durations by size, and sums them."""

    __slots__ = ("counts", "longest_s", "total_s")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (_BUCKETS + 1)
        self.total_s: float = 0.0
        self.longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        seconds = max(0.0, seconds)
        self.counts[min(_BUCKETS, int(seconds * 1e6).bit_length())] += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def summary(self) -> Durations:
        """Return the durations so far."""
        count = sum(self.counts)
        if not count:
            return Durations()
        return Durations(count, self.total_s / count, self._below(0.5), self._below(0.9), self._below(0.99), self.longest_s)

    def _below(self, share: float) -> float:
        """Return the duration that about ``share`` of all do not exceed."""
        rank = share * sum(self.counts)
        for bits, count in enumerate(self.counts):
            if count and rank <= count:
                low = 1 << bits >> 1
                return min(self.longest_s, (low + low * rank / count) / 1e6)
            rank -= count
        return self.longest_s


class SizeCounts:
    """Counts sizes, which are 1 or more, by powers of two."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (_BUCKETS + 1)

    def add(self, size: int) -> None:
        """Count one size."""
        self.counts[min(_BUCKETS, size.bit_length() - 1)] += 1

    def histogram(self) -> dict[int, int]:
        """Return the counts by the least size of each bucket, without empty ones."""
        return {1 << bits: count for bits, count in enumerate(self.counts) if count}


class FailureCounts:
    """Counts errors by the name of their type."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.total: int = 0

    def add(self, error: BaseException) -> None:
        """Count one error."""
        self.total += 1
        name = type(error).__name__
        if name not in self.counts and len(self.counts) >= _MAX_KINDS:
            name = OTHER
        self.counts[name] = self.counts.get(name, 0) + 1


class ProducerCounts:
    """The counters of one producer; ``single`` are requests with one message. The outbox adds to the fields itself."""

    __slots__ = ("batched", "batches", "bytes", "failures", "latency", "oneway", "retries", "single", "sizes")

    def __init__(self) -> None:
        self.single: int = 0
        self.oneway: int = 0
        self.batches: int = 0
        self.batched: int = 0
        self.bytes: int = 0
        self.retries: int = 0
        self.sizes: SizeCounts = SizeCounts()
        self.failures: FailureCounts = FailureCounts()
        self.latency: DurationCounts = DurationCounts()

    @property
    def messages(self) -> int:
        """How many messages were stored."""
        return self.single + self.batched

    def batch(self, messages: int) -> None:
        """Count a batch that was stored."""
        if messages == 1:
            self.single += 1
        else:
            self.batches += 1
            self.batched += messages
            self.sizes.add(messages)

    def messages_per_request(self) -> dict[int, int]:
        """Return the number of requests by size."""
        return ({1: self.single} if self.single else {}) | self.sizes.histogram()

    def failed(self, error: BaseException, retries: int) -> None:
        """Count a request that has failed."""
        self.retries += retries
        self.failures.add(error)

    def snapshot(self, group: str, *, in_flight: int, in_flight_bytes: int, hook_failures: int, slow_hooks: int) -> ProducerStats:
        """Return the counters as they are now."""
        return ProducerStats(
            group,
            messages=self.messages,
            bytes=self.bytes,
            requests=self.single + self.batches,
            batches=self.batches,
            messages_per_request=self.messages_per_request(),
            in_flight=in_flight,
            in_flight_bytes=in_flight_bytes,
            retries=self.retries,
            failed=self.failures.total,
            failures=dict(self.failures.counts),
            latency=self.latency.summary(),
            hook_failures=hook_failures,
            slow_hooks=slow_hooks,
            oneway=self.oneway,
        )


class ConsumerCounts:
    """The counters of one consumer."""

    __slots__ = (
        "batches",
        "bytes",
        "dead_letters",
        "give_back_failures",
        "given_back",
        "handler_failures",
        "handler_time",
        "messages",
        "pull_failures",
        "pulls",
        "retried",
        "sizes",
        "timed_out",
    )

    def __init__(self) -> None:
        self.pulls: int = 0
        self.messages: int = 0
        self.bytes: int = 0
        self.pull_failures: FailureCounts = FailureCounts()
        self.batches: int = 0
        self.sizes: SizeCounts = SizeCounts()
        self.handler_time: DurationCounts = DurationCounts()
        self.handler_failures: FailureCounts = FailureCounts()
        self.retried: int = 0
        self.timed_out: int = 0
        self.given_back: int = 0
        self.give_back_failures: int = 0
        self.dead_letters: int = 0

    def pulled(self, messages: int, size: int) -> None:
        """Count a pull that was answered."""
        self.pulls += 1
        self.messages += messages
        self.bytes += size

    def handled(self, messages: int, seconds: float) -> None:
        """Count a batch that the program has finished."""
        self.batches += 1
        self.sizes.add(messages)
        self.handler_time.add(seconds)
