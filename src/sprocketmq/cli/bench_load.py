"""The load of ``sprocketmq bench batch``: messages sent in one way, and the figures that result."""

import asyncio
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sprocketmq import Message, Producer, SendResult
from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError, SprocketError

# After so many messages ``submit`` loops yield, so that responses are read.
BURST = 64
# Latency is measured for one of so many submitted messages.
SAMPLE_EVERY = 8


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. Without ``target`` a broker is started. Raises ConfigError for contradictory options."""

    target: Target | None
    seconds: float
    messages: int | None
    body_bytes: int
    in_flight: int
    batch: int
    queues: int
    plot: Path | None

    def __post_init__(self) -> None:
        if self.batch > self.in_flight:
            raise ConfigError(f"--batch {self.batch} does not fit into --in-flight {self.in_flight}: a batch would never be sent")
        if self.plot is not None and self.plot.suffix.lower() != ".svg":
            raise ConfigError(f"--plot writes SVG, which every browser shows: name the file {self.plot.with_suffix('.svg')}")


@dataclass(frozen=True)
class Way:
    """One way of sending."""

    name: str
    title: str
    batching: bool = False
    explicit: bool = False
    batch_queues: bool = False


WAYS = (
    Way("single", "single"),
    Way("batch", "explicit batch", explicit=True),
    Way("auto", "AutoBatch", batching=True),
    Way("auto-batchcq", "AutoBatch + BatchCQ", batching=True, batch_queues=True),
)


@dataclass(frozen=True)
class Figures:
    """The figures of one way. Latencies are per message, or per explicit batch; None means not measured."""

    way: str
    messages: int
    seconds: float
    messages_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    messages_per_request: float
    disk_bytes_per_message: float | None
    broker_cpu_us_per_message: float | None
    errors: int
    first_error: str | None


class Load:
    """Messages sent in one way for a time or up to a number; all are answered when ``run`` returns."""

    def __init__(self, producer: Producer, topic: str, way: Way, options: BenchOptions) -> None:
        self._producer = producer
        self._topic = topic
        self._way = way
        self._options = options
        self._body = b"x" * options.body_bytes
        self.began = time.perf_counter()
        self.elapsed_s = 0.0
        self.messages = 0
        self.requests = 0
        self.errors = 0
        self.first_error: str | None = None
        self.latencies = array("d")

    @property
    def rate(self) -> float:
        """Messages per second, so far."""
        return self.messages / (self.elapsed_s or time.perf_counter() - self.began or 1.0)

    async def run(self, seconds: float, messages: int | None) -> None:
        """Send for ``seconds`` or ``messages``, whichever is less."""
        self.began = time.perf_counter()
        end = self.began + seconds
        limit = messages if messages is not None else sys.maxsize
        await (self._batches(end, limit) if self._way.explicit else self._submits(end, limit))
        self.elapsed_s = time.perf_counter() - self.began

    async def _submits(self, end: float, limit: int) -> None:
        producer, most = self._producer, self._options.in_flight
        before = producer.batching_stats
        sent = 0
        while sent < limit and time.perf_counter() < end:
            for number in range(sent, min(sent + BURST, limit, sent + most - producer.in_flight)):
                message = Message(self._topic, self._body)
                producer.submit(message, self._answered if number % SAMPLE_EVERY else self._timed(time.perf_counter()))
                sent += 1
            if producer.in_flight < most:
                await asyncio.sleep(0)
            else:
                await producer.room()
        await producer.flush()
        after = producer.batching_stats
        self.requests = after.batches - before.batches + after.direct - before.direct if self._way.batching else sent

    def _answered(self, _: SendResult | None, error: BaseException | None) -> None:
        if error is None:
            self.messages += 1
        else:
            self._failed(error)

    def _timed(self, before: float) -> Callable[[SendResult | None, BaseException | None], None]:
        def done(result: SendResult | None, error: BaseException | None) -> None:
            self._answered(result, error)
            self.latencies.append(time.perf_counter() - before)

        return done

    async def _batches(self, end: float, limit: int) -> None:
        size = self._options.batch
        left = limit

        async def sender() -> None:
            nonlocal left
            while left > 0 and time.perf_counter() < end:
                count = min(size, left)
                left -= count
                before = time.perf_counter()
                try:
                    await self._producer.send_batch([Message(self._topic, self._body) for _ in range(count)])
                except SprocketError as e:
                    self._failed(e)
                else:
                    self.messages += count
                    self.requests += 1
                    self.latencies.append(time.perf_counter() - before)

        await asyncio.gather(*(sender() for _ in range(max(1, self._options.in_flight // size))))

    def _failed(self, error: BaseException) -> None:
        self.errors += 1
        self.first_error = self.first_error or str(error)

    def figures(self, disk_bytes: int | None, cpu_s: float | None) -> Figures:
        """Return the figures, given the growth of the broker's disk usage and its CPU time."""
        ordered = sorted(self.latencies)
        p50_ms, p99_ms, p999_ms = (round(_quantile(ordered, q) * 1000, 3) for q in (0.5, 0.99, 0.999))
        each = max(1, self.messages)
        return Figures(
            self._way.name,
            self.messages,
            round(self.elapsed_s, 3),
            round(self.messages / self.elapsed_s, 1),
            p50_ms,
            p99_ms,
            p999_ms,
            round(self.messages / max(1, self.requests), 1),
            None if disk_bytes is None else round(disk_bytes / each, 1),
            None if cpu_s is None else round(cpu_s / each * 1e6, 2),
            self.errors,
            self.first_error,
        )


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0
