"""Run the demo: cluster, flights, query, restart, checks, report."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from sprocketmq import sync
from sprocketmq.client import AdminClient, Producer
from sprocketmq.client.send.batching import Batching
from sprocketmq.demo import report as reporting
from sprocketmq.demo.flights import load_flights, load_weather, messages_by_window
from sprocketmq.demo.outcome import Course, Outcome
from sprocketmq.demo.pipeline import DayQuery, FlightQuery, clock_message, read_days, read_flights, read_statistics
from sprocketmq.demo.verify import Acknowledged, verify, verify_days
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, FatalError
from sprocketmq.net.loops import new_event_loop
from sprocketmq.protocol.message import SendResult, SendStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

TOPIC = "flights"
CLOCK_TOPIC = "flights-clock"
DAYS_TOPIC = "delays-by-day"
WARM_UP_TOPIC = "flights-warm-up"
WARM_UP_FLIGHTS = 2000
QUEUES = 8
# Flights encoded into messages at a time, in time order.
WINDOW = 4096
# A batch holds flights of one airline for one queue. There are about 120 such pairs, so batches take a moment to fill.
BATCHING = Batching(max_bytes=64 * 1024, max_delay_ms=200)
MAX_IN_FLIGHT = 32_768
# The producer's loop processes answers after this many messages.
_BURST = 256
MAX_ROWS_PER_BATCH = 48_000
# Batches of a run at least, so that the query can be restarted between its first and last batch.
MIN_BATCHES = 7
# Without a new row for this long, the demo gives up and reports what is missing.
_STALLED_S = 60.0
_READY = re.compile(r"^ready namesrv=(\S+)", re.MULTILINE)
_MARKER = ".sprocketmq-demo"
_OWN = (
    "flights",
    "statistics",
    "days",
    "checkpoint",
    "checkpoint-days",
    "store",
    "warehouse",
    "weather.parquet",
    "delays.parquet",
    "delays.png",
    "report.json",
    "cluster.log",
    "spark.log",
)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """How the demo runs. ``limit`` plays only the first flights; ``cores`` limits Spark (None: all cores)."""

    output: Path
    limit: int | None = None
    keep: bool = False
    cores: int | None = None


class Steps:
    """The progress bars; silent when ``console`` is None."""

    def __init__(self, console: Console | None) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=36),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=console is None,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, text: str, total: int = 1) -> TaskID:
        return self._progress.add_task(text, total=total, note="")

    def at(self, step: TaskID, done: int, note: str = "") -> None:
        self._progress.update(step, completed=done, note=note)


def prepare_output(output: Path) -> Path:
    """Delete the files of an earlier run and return the directory. Raises ConfigError when it contains anything else."""
    if output.exists():
        if not output.is_dir():
            raise ConfigError(f"{output} is not a directory: choose another with --output")
        if any(output.iterdir()) and not (output / _MARKER).exists():
            raise ConfigError(f"{output} is not empty and was not written by this demo: choose another directory with --output")
        for name in _OWN:
            path = output / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    (output / _MARKER).touch()
    return output.resolve()


def run_demo(settings: DemoSettings, *, console: Console | None = None, before_checks: Callable[[Path], None] | None = None) -> Outcome:
    """Run the demo and return its outcome; ``before_checks`` is called with the output directory before the tables are checked.

    Raises ConfigError for an unusable output directory, NoJava when Spark cannot start, and what cluster and query raise.
    """
    begun = time.monotonic()
    output = prepare_output(settings.output)
    with contextlib.ExitStack() as stack:
        steps = stack.enter_context(Steps(console))
        cluster_step, flights_step, spark_step, warm_step = map(
            steps.add, ("start broker and nameserver", "load flights and weather", "start Spark", "warm Spark up")
        )
        cluster = stack.enter_context(LocalCluster(output / "store" if settings.keep else None, in_process=False))
        pool = stack.enter_context(ThreadPoolExecutor(2, thread_name_prefix="demo"))
        session = pool.submit(_start_spark, settings, output)
        stack.callback(_stop_spark, session)
        asyncio.run(_create_topics(cluster.namesrv))
        steps.at(cluster_step, 1, cluster.namesrv)
        flights, weather = load_flights(settings.limit), load_weather()
        total = flights.num_rows
        steps.at(flights_step, 1, f"{total:,} flights")
        spark = session.result()
        spark_start_s = time.monotonic() - begun
        steps.at(spark_step, 1, f"Spark {spark.version}")
        _warm_up(spark, cluster.namesrv, flights, weather, output / "warm-up")
        warm_up_s = time.monotonic() - begun - spark_start_s
        steps.at(warm_step, 1)

        rows_per_batch = min(MAX_ROWS_PER_BATCH, max(1, total // MIN_BATCHES))
        query = FlightQuery(spark, weather, namesrv=cluster.namesrv, topic=TOPIC, directory=output, rows_per_batch=rows_per_batch)
        play = _Play(cluster.namesrv, TOPIC, flights)
        watch = _Watch(query, play, steps, total)
        running = query.start()
        watch.until_waiting(running)
        playing = pool.submit(play.run)
        restart = watch.until_half(running, playing)
        running = query.start()
        watch.until_done(running, playing)
        table_s = time.monotonic() - play.begun
        by_day = _close_days(spark, cluster.namesrv, flights, output, rows_per_batch, steps)
        if before_checks is not None:
            before_checks(output)
        rows, statistics, days = read_flights(output), read_statistics(output), read_days(output)
        checks = [
            *verify(flights, weather, play.acknowledged, rows, statistics),
            *verify_days(flights, days, cluster.messages(DAYS_TOPIC)),
        ]
    if statistics.num_rows:
        pq.write_table(reporting.with_means(statistics), output / "delays.parquet")
        reporting.draw_png(statistics, watch.course, output / "delays.png")
    report = {
        "passed": all(check.passed for check in checks),
        "checks": [asdict(check) for check in checks],
        "flights": total,
        "produce": {
            "messages": play.sent,
            "seconds": round(play.seconds, 3),
            "messages_per_s": round(play.sent / play.seconds, 1),
            "queues": QUEUES,
            "batches": play.batches,
        },
        "table": {
            "rows": rows.num_rows,
            "seconds": round(table_s, 3),
            "rows_per_s": round(rows.num_rows / table_s, 1),
            "batches": query.batches,
            "taken_when_sent": watch.taken_when_sent,
            "rows_when_sent": watch.rows_when_sent,
        },
        "restart": {**restart, "repeated_batches": query.repeated},
        "days": {"closed": days.num_rows, **by_day},
        "spark_start_s": round(spark_start_s, 3),
        "warm_up_s": round(warm_up_s, 3),
        "warm_up_flights": min(WARM_UP_FLIGHTS, total),
        "elapsed_s": round(time.monotonic() - begun, 3),
        "by_origin": reporting.summary_by(statistics, "origin") if statistics.num_rows else [],
        "output": str(output),
    }
    (output / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return Outcome(checks, report, statistics)


# References to processes that keep running: a Popen object warns when it is deleted before its process ends.
_left_running: list["subprocess.Popen[bytes]"] = []


@dataclass(frozen=True, slots=True)
class KeptBroker:
    """A broker that keeps running after this process."""

    pid: int
    namesrv: str
    store: Path


def keep_running(output: Path) -> KeptBroker:
    """Start a broker on the store that a demo with ``keep`` left in ``output``, in a process that outlives this one.

    Raises FatalError with the output of the process when it is not ready within 30 s.
    """
    store, said = output.resolve() / "store", output / "cluster.log"
    command = [sys.executable, "-m", "sprocketmq", "serve", "--namesrv-port", "0", "--port", "0", "--store", str(store)]
    with said.open("wb") as log:
        # In a session of its own, so that Ctrl-C in this terminal does not reach it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    _left_running.append(process)
    deadline = time.monotonic() + 30
    while (ready := _READY.search(said.read_text(encoding="utf-8", errors="replace"))) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise FatalError(f"the cluster did not start again on {store}: {said.read_text(encoding='utf-8', errors='replace').strip()}")
        time.sleep(0.02)
    return KeptBroker(process.pid, ready[1], store)


class _Play:
    """Sends the flights one by one, batched by AutoBatch, and notes the acknowledgements."""

    def __init__(self, namesrv: str, topic: str, flights: pa.Table) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._flights = flights
        # Number, queue and offset of acknowledged messages that are not yet in ``acknowledged``.
        self.answers: list[tuple[int, int, int]] = []
        self.failure: BaseException | None = None
        self.acknowledged = Acknowledged(flights.num_rows)
        self.sent = 0
        self.batches = 0
        self.begun = time.monotonic()
        self.ended: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds from the first flight to the last acknowledgement, or until now."""
        return (self.ended or time.monotonic()) - self.begun

    def run(self) -> None:
        # Freeze loaded libraries: with hundreds of thousands of short-lived messages the collector would scan them again and again.
        gc.freeze()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        async with Producer("demo-producer", namesrv=self._namesrv, batching=BATCHING, max_in_flight=MAX_IN_FLIGHT) as producer:
            queues = await producer.queues(self._topic)
            self.begun = time.monotonic()
            for messages in messages_by_window(self._flights, queues, WINDOW):
                for count, (number, message) in enumerate(messages):
                    if producer.in_flight >= MAX_IN_FLIGHT:
                        await producer.room()
                    elif count % _BURST == 0:
                        await asyncio.sleep(0)
                    producer.submit(message, _SendOutcome(number, self))
                self._note()
            await producer.flush()
            self.ended = time.monotonic()
            self._note()
            self.batches = producer.batching_stats.batches

    def _note(self) -> None:
        """Record the acknowledgements. Raises the error of a failed flight."""
        if self.failure is not None:
            raise self.failure
        if self.answers:
            self.acknowledged.add(*zip(*self.answers, strict=True))
            self.sent += len(self.answers)
            self.answers.clear()


class _SendOutcome(msgspec.Struct, gc=False):  # thousands exist at a time: half the size of a partial, and not tracked by the collector
    """Callback that notes the result of the flight with this number."""

    number: int
    play: _Play

    def __call__(self, result: SendResult | None, error: BaseException | None) -> None:
        play = self.play
        if result is None:
            play.failure = play.failure or error
        elif result.status is not SendStatus.SEND_OK:
            play.failure = play.failure or FatalError(f"flight {self.number} was stored as {result.status.name}")
        else:
            play.answers.append((self.number, result.queue_id, result.queue_offset))


class _Watch:
    """Follows producer and query, updates the bars, and ends the wait when either fails or makes no progress."""

    def __init__(self, query: FlightQuery, play: _Play, steps: Steps, total: int) -> None:
        self._query = query
        self._play = play
        self._steps = steps
        self._total = total
        # State of the query at the last acknowledgement: messages in started batches, and rows in the table.
        self.taken_when_sent = 0
        self.rows_when_sent: int | None = None
        self.course = Course()
        self._sent_step = steps.add("send flights", total)
        self._table_step = steps.add("flights in the table", total)

    def until_waiting(self, running: "StreamingQuery") -> None:
        """Wait until the query has read the empty topic and waits for the first message."""
        begun = time.monotonic()
        while "Waiting" not in running.status["message"] and running.isActive and time.monotonic() - begun < _STALLED_S:
            time.sleep(0.02)

    def until_half(self, running: "StreamingQuery", playing: "Future[None]") -> dict[str, Any]:
        """Wait until half of the flights are in the table, stop the query and return its progress."""
        self._wait(running, playing, lambda: self._query.rows * 2 >= self._total)
        running.stop()
        self.course.stopped_s.append(time.monotonic() - self._play.begun)
        return {"rows_when_stopped": self._query.rows, "batches_when_stopped": self._query.batches}

    def until_done(self, running: "StreamingQuery", playing: "Future[None]") -> None:
        """Wait until the query has processed everything that was sent, and stop it."""
        self._wait(running, playing, playing.done)
        with ThreadPoolExecutor(1) as pool:
            through = pool.submit(running.processAllAvailable)
            try:
                self._wait(running, playing, through.done)
            finally:
                running.stop()  # also ends processAllAvailable

    def _wait(self, running: "StreamingQuery", playing: "Future[None]", done: Callable[[], bool]) -> None:
        moved, last = time.monotonic(), (-1, -1)
        while True:
            now = (self._play.sent, self._query.rows)
            if now != last:
                moved, last = time.monotonic(), now
                self._show()
            if playing.done():
                if (error := playing.exception()) is not None:
                    running.stop()
                    raise error
                if self.rows_when_sent is None:
                    self.rows_when_sent = now[1]
                    self.taken_when_sent = self._query.taken
            if done() or time.monotonic() - moved > _STALLED_S:
                return
            if not running.isActive:
                raise FatalError(f"the streaming query ended: {running.exception()}")
            time.sleep(0.05)

    def _show(self) -> None:
        play, query = self._play, self._query
        if play.sent:
            self.course.add(time.monotonic() - play.begun, play.sent, query.rows)
        self._steps.at(self._sent_step, play.sent, f"{play.sent / max(play.seconds, 0.001):,.0f}/s" if play.sent else "")
        self._steps.at(self._table_step, query.rows, f"batch {query.batches}" if query.batches else "")


async def _create_topics(namesrv: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        for topic in (TOPIC, WARM_UP_TOPIC):
            await admin.create_topic(topic, queues=QUEUES, attributes={"queue.type": "BatchCQ"})
        for topic in (CLOCK_TOPIC, DAYS_TOPIC):
            await admin.create_topic(topic, queues=1)


def _close_days(spark: "SparkSession", namesrv: str, flights: pa.Table, output: Path, rows_per_batch: int, steps: Steps) -> dict[str, Any]:
    """Run the day query over all flights with a restart from its checkpoint, and close the last days."""
    query = DayQuery(
        spark, namesrv=namesrv, topic=TOPIC, clock_topic=CLOCK_TOPIC, results_topic=DAYS_TOPIC, directory=output, rows=rows_per_batch
    )
    step = steps.add("close days behind the watermark", MIN_BATCHES)
    begun = time.monotonic()
    running = query.start()
    _until(running, lambda: len(query.batches) > MIN_BATCHES // 2)
    running.stop()
    stopped_after = len(query.batches)
    steps.at(step, stopped_after)
    running = query.start()
    try:
        running.processAllAvailable()
        steps.at(step, MIN_BATCHES - 1)
        with sync.Producer("demo-clock", namesrv=namesrv) as producer:
            producer.send(clock_message(CLOCK_TOPIC, flights))
        running.processAllAvailable()
    finally:
        running.stop()
    steps.at(step, MIN_BATCHES)
    numbers = query.batches
    return {
        "seconds": round(time.monotonic() - begun, 3),
        "batches": len(set(numbers)),
        "batches_when_stopped": stopped_after,
        "repeated_batches": sorted({number for number in numbers if numbers.count(number) > 1}),
    }


def _until(running: "StreamingQuery", done: Callable[[], bool]) -> None:
    """Wait until ``done``. Raises FatalError when the query ends first, or makes no progress for too long."""
    begun = time.monotonic()
    while not done():
        if not running.isActive:
            raise FatalError(f"the streaming query ended: {running.exception()}")
        if time.monotonic() - begun > _STALLED_S:
            running.stop()
            raise FatalError(f"the streaming query shows nothing for {_STALLED_S:.0f} s: {running.status['message']}")
        time.sleep(0.05)


def _warm_up(spark: "SparkSession", namesrv: str, flights: pa.Table, weather: pa.Table, directory: Path) -> None:
    """Run the query over a few flights of another topic, so that the JVM has loaded and compiled its code. They are not counted."""
    directory.mkdir()
    try:
        _Play(namesrv, WARM_UP_TOPIC, flights.slice(0, WARM_UP_FLIGHTS)).run()
        running = FlightQuery(
            spark, weather, namesrv=namesrv, topic=WARM_UP_TOPIC, directory=directory, rows_per_batch=WARM_UP_FLIGHTS // 2
        ).start()
        running.processAllAvailable()
        running.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _start_spark(settings: DemoSettings, output: Path) -> "SparkSession":
    from sprocketmq.spark import session

    # py4j logs a traceback when Ctrl-C ends a call; errors are raised anyway.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if sys.platform == "linux":
        # On Linux priorities are per thread, and the JVM inherits this one: with few cores, broker and producer go first.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 8)
    return session(
        "sprocketmq demo",
        cores=settings.cores,
        quick_start=True,
        log_file=output / "spark.log",
        conf={"spark.sql.warehouse.dir": str(output / "warehouse"), "spark.sql.session.timeZone": "UTC"},
    )


def _stop_spark(session: "Future[SparkSession]") -> None:
    # The error of a session that did not start has been raised already.
    if session.exception() is None:
        session.result().stop()
