"""``sprocketmq bench batch``: the same messages sent in four ways, side by side."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sprocketmq import AdminClient, Batching, Message, Producer, SendResult
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, EXIT_SIGNAL, fail
from sprocketmq.cli.output import print_json, print_table
from sprocketmq.cli.stopping import on_stop_signals
from sprocketmq.errors import ConfigError, SprocketError, TopicNotFound
from sprocketmq.net.loops import new_event_loop

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

# Not counted: connections and files are opened meanwhile.
WARM_S = 0.5
REDRAW_S = 0.25
# A loop that submits lets the answers in now and then.
BURST = 64
# Of submitted messages every so many has its latency measured.
SAMPLE_EVERY = 8
MASTER_ID = 0


@dataclass(frozen=True)
class Options:
    """How to measure. Without ``namesrv`` a broker is started for it. Raises ConfigError for what does not go together."""

    namesrv: str | None
    seconds: float
    messages: int | None
    body_bytes: int
    in_flight: int
    batch: int
    queues: int
    plot: Path | None

    def __post_init__(self) -> None:
        if self.batch > self.in_flight:
            raise ConfigError(f"--batch {self.batch} does not fit into --in-flight {self.in_flight}: a batch would never leave")
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
    """What came of one way. Latencies are those of a message, or of a whole explicit batch; None is what could not be measured."""

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
    """Messages sent in one way until the time is over or there were enough; all are answered when ``run`` returns."""

    def __init__(self, producer: Producer, topic: str, way: Way, options: Options) -> None:
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
        """Return what came of it, with the bytes it took on the broker's disk and the CPU time the broker spent."""
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


class Broker:
    """Where the messages go, and what can be seen of it: all of a broker started here, only the length of its log of another."""

    def __init__(self, namesrv: str, store: Path | None, pids: Sequence[int]) -> None:
        self.namesrv = namesrv
        self._store = store
        self._pids = pids

    async def disk_bytes(self, admin: AdminClient) -> int | None:
        """Return what is on its disk: blocks of all files of the store, or the lengths of all masters' logs; None when it does not tell."""
        if self._store is not None:
            return _allocated(self._store)
        brokers = (await admin.cluster()).broker_addr_table.values()
        masters = [address for broker in brokers if (address := broker.broker_addrs.get(MASTER_ID)) is not None]
        lengths = [(await admin.broker_runtime(address)).get("commitLogMaxOffset") for address in masters]
        known = [int(length) for length in lengths if length is not None and length.isdigit()]
        return sum(known) if known and len(known) == len(lengths) else None

    def cpu_s(self) -> float | None:
        """Return the CPU seconds its processes used so far; None where the system or another machine keeps that to itself."""
        used = [_cpu_s(pid) for pid in self._pids]
        known = [one for one in used if one is not None]
        return sum(known) if known and len(known) == len(used) else None


def _allocated(directory: Path) -> int | None:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            blocks = getattr(path.stat(), "st_blocks", None)
            if blocks is None:
                return None
            total += 512 * blocks
    return total


def _cpu_s(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _broker(namesrv: str | None) -> Iterator[Broker]:
    """Find the broker to measure, or run one in a process of its own."""
    if namesrv is not None:
        yield Broker(namesrv, None, ())
        return
    from sprocketmq.embedded import LocalCluster

    with LocalCluster(in_process=False) as cluster:
        yield Broker(cluster.namesrv, cluster.store, cluster.pids)


class Board:
    """The table: redrawn while it is being measured on a terminal, printed at the end elsewhere."""

    COLUMNS = ("way", "messages/s", "x single", "p50 ms", "p99 ms", "p99.9 ms", "per request", "disk B/msg", "broker CPU us/msg")

    def __init__(self, *, as_json: bool) -> None:
        self._live: Live | None = None
        self._as_json = as_json
        self.done: list[Figures] = []

    def __enter__(self) -> Self:
        if not self._as_json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(self._table(None), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    async def follow(self, load: Load) -> None:
        """Redraw while ``load`` runs, until cancelled."""
        while True:
            self.show(load)
            await asyncio.sleep(REDRAW_S)

    def show(self, load: Load | None = None) -> None:
        """Redraw with what is done and the rate of what runs."""
        if self._live is not None:
            self._live.update(self._table(load), refresh=True)

    def finish(self) -> None:
        """Print the table where it was not drawn."""
        if self._live is None:
            print_table(self.COLUMNS, [self._row(WAYS[i], one) for i, one in enumerate(self.done)])

    def _row(self, way: Way, one: Figures) -> tuple[str, ...]:
        single = self.done[0].messages_per_s
        return (
            way.title,
            f"{one.messages_per_s:,.0f}",
            f"{one.messages_per_s / single:.1f}" if single else "-",
            f"{one.p50_ms:.2f}",
            f"{one.p99_ms:.2f}",
            f"{one.p999_ms:.2f}",
            f"{one.messages_per_request:,.0f}",
            "-" if one.disk_bytes_per_message is None else f"{one.disk_bytes_per_message:,.0f}",
            "-" if one.broker_cpu_us_per_message is None else f"{one.broker_cpu_us_per_message:.1f}",
        )

    def _table(self, load: Load | None) -> "Table":
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for i, column in enumerate(self.COLUMNS):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for i, way in enumerate(WAYS):
            if i < len(self.done):
                table.add_row(*self._row(way, self.done[i]))
            elif i == len(self.done) and load is not None:
                table.add_row(way.title, f"{load.rate:,.0f}", *[""] * (len(self.COLUMNS) - 2), style="bold cyan")
            else:
                table.add_row(way.title, style="dim")
        return table


def run(options: Options, *, as_json: bool) -> int:
    """Measure all ways, print them and draw the plot. Returns 1 when a send failed, 128 and the number of a signal that ended it."""
    with _broker(options.namesrv) as broker:
        with Board(as_json=as_json) as board, asyncio.Runner(loop_factory=new_event_loop) as runner:
            stopped_by = runner.run(_measure_until_stopped(broker, options, board))
        if stopped_by is not None:
            fail(f"stopped by {stopped_by.name}")
            return EXIT_SIGNAL + stopped_by
        if as_json:
            print_json(_facts(options) | {"ways": [asdict(one) for one in board.done]})
        else:
            board.finish()
    if options.plot is not None:
        options.plot.write_text(plot(board.done, options), encoding="utf-8")
        if not as_json:
            print(f"plot written to {options.plot}")
    failed = [one for one in board.done if one.errors]
    for one in failed:
        fail(f"{one.way}: {one.errors:,} sends failed, the first: {one.first_error}")
    return EXIT_FAILURE if failed else EXIT_OK


async def _measure_until_stopped(broker: Broker, options: Options, board: Board) -> signal.Signals | None:
    """Measure; return the signal that ended it early, with its topics deleted all the same."""
    measuring = asyncio.ensure_future(_measure(broker, options, board))
    came: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        came.append(number)
        measuring.cancel()

    with on_stop_signals(stop):
        await asyncio.wait([measuring])
    if measuring.cancelled():
        return came[0]
    measuring.result()
    return None


async def _measure(broker: Broker, options: Options, board: Board) -> None:
    async with AdminClient(namesrv=broker.namesrv) as admin:
        topics: list[str] = []
        try:
            for way in WAYS:
                topics.append(f"bench-{os.getpid()}-{way.name}")
                attributes = {"queue.type": "BatchCQ"} if way.batch_queues else {}
                await admin.create_topic(topics[-1], queues=options.queues, attributes=attributes)
                board.done.append(await _measure_way(way, topics[-1], broker, admin, options, board))
                board.show()
        finally:
            for topic in topics:
                with contextlib.suppress(TopicNotFound):
                    await admin.delete_topic(topic)


async def _measure_way(way: Way, topic: str, broker: Broker, admin: AdminClient, options: Options, board: Board) -> Figures:
    batching = Batching() if way.batching else None
    async with Producer("sprocketmq-bench", namesrv=broker.namesrv, batching=batching, max_in_flight=options.in_flight) as producer:
        await Load(producer, topic, way, options).run(min(WARM_S, options.seconds), options.messages)
        load = Load(producer, topic, way, options)
        disk, cpu = await broker.disk_bytes(admin), broker.cpu_s()
        following = asyncio.ensure_future(board.follow(load))
        try:
            await load.run(options.seconds, options.messages)
        finally:
            following.cancel()
        cpu_after, disk_after = broker.cpu_s(), await broker.disk_bytes(admin)
        return load.figures(
            None if disk is None or disk_after is None else disk_after - disk, None if cpu is None or cpu_after is None else cpu_after - cpu
        )


def _facts(options: Options) -> dict[str, Any]:
    return {
        "broker": options.namesrv or "embedded",
        "body_bytes": options.body_bytes,
        "in_flight": options.in_flight,
        "batch": options.batch,
        "queues": options.queues,
        "cores": os.cpu_count(),
    }


def plot(done: Sequence[Figures], options: Options) -> str:
    """Return the figures as an SVG document."""
    from sprocketmq.cli.barchart import Panel, draw

    titles = [way.title for way in WAYS]

    def rows(*names: str) -> list[tuple[str, list[float | None]]]:
        return [(title, [getattr(one, name) for name in names]) for title, one in zip(titles, done, strict=True)]

    where = f"broker at {options.namesrv}" if options.namesrv else "embedded broker in a process of its own"
    return draw(
        "Sending in batches",
        f"bodies of {options.body_bytes:,} bytes, {options.in_flight:,} messages in flight, {options.queues} queues, {os.cpu_count()} cores, {where}",
        [
            Panel("Messages per second", rows("messages_per_s"), "{:,.0f}".format),
            Panel("Latency, milliseconds", rows("p50_ms", "p99_ms", "p999_ms"), "{:.1f}".format, ("p50", "p99", "p99.9")),
            Panel("Bytes on disk per message", rows("disk_bytes_per_message"), "{:,.0f}".format),
            Panel("Broker CPU per message, microseconds", rows("broker_cpu_us_per_message"), "{:.1f}".format),
        ],
    )
