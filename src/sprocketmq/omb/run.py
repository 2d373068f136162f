"""A run: topics, workers, warm-up, backlog, the measured time, and the result."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sprocketmq.errors import FatalError, SprocketError
from sprocketmq.omb import result as results
from sprocketmq.omb.assignment import CONSUMERS, PRODUCERS, plans_of, topics_of
from sprocketmq.omb.cpu import cpu_s
from sprocketmq.omb.drivers import make_driver
from sprocketmq.omb.histogram import merged
from sprocketmq.omb.payloads import keys_of, payloads_of
from sprocketmq.omb.plan import Action, WorkerReport
from sprocketmq.omb.processes import WorkerProcess
from sprocketmq.omb.workload import Workload

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 120.0
# OMB's: how long consumers may take to get the first message of every topic.
PROBE_TIMEOUT_S = 120.0
# A drain ends when the backlog has not become smaller for so long.
STUCK_S = 60.0
# OMB calls a backlog drained at so many messages.
DRAINED = 1000
REPORT_S = 1.0
SHORT_RUN_S = 60.0


@dataclass(frozen=True)
class Settings:
    """How to run a workload. ``config`` is the driver's; ``server_pids`` are processes whose CPU time is counted as the servers'."""

    driver: str = "sprocketmq"
    config: Mapping[str, object] = field(default_factory=dict)
    producer_workers: int = 1
    consumer_workers: int = 1
    server_pids: Sequence[int] = ()
    directory: Path = Path()


@dataclass(frozen=True)
class Progress:
    """What happened in the last second; ``left_s`` is None while the end of the phase is not known."""

    phase: str
    left_s: float | None
    publish_rate: float
    consume_rate: float
    error_rate: float
    backlog: int
    publish_p50_ms: float
    publish_p99_ms: float
    end_to_end_p99_ms: float


class _Stopped(Exception):
    """``Run.stop`` was called."""


class Run:
    """One run of ``workload``. ``watch`` is called about once a second."""

    def __init__(self, workload: Workload, settings: Settings, watch: Callable[[Progress], None] = lambda _: None) -> None:
        self._workload = workload
        self._settings = settings
        self._watch = watch
        long = workload.measured_s >= SHORT_RUN_S or workload.consumer_backlog_size_gb > 0
        self._sample_s = results.SAMPLE_S if long else REPORT_S
        self._reports: list[WorkerReport] = []
        # Of each worker, the reports of the sample that is not complete: a day of reports would take gigabytes.
        self._pending: dict[str, list[WorkerReport]] = {}
        self._latest: dict[str, WorkerReport] = {}
        self._workers: list[WorkerProcess] = []
        self._changed = asyncio.Event()
        self._stopped = False
        self._phase = "setup"
        self._phase_end: float | None = None
        self._sent = self._received = 0
        self._shown = 0.0
        self._cpu_before: float | None = None
        self._cpu_after: float | None = None
        self.backlog_facts: dict[str, float] = {}

    # --- control ---

    def stop(self) -> None:
        """End the run early; what was measured becomes the result. A second call kills the workers."""
        if self._stopped:
            for worker in self._workers:
                worker.kill()
        self._stopped = True
        self._changed.set()

    async def run(self) -> results.Result | None:
        """Run the workload and return its result; None when it was stopped before anything was measured.

        Raises ConfigError for settings and payload files that cannot be, FatalError when a worker ends early or consumers get nothing, and
        what the driver raises when its servers do not answer. Workers are gone and topics deleted afterwards, in any case.
        """
        settings, workload = self._settings, self._workload
        driver = make_driver(settings.driver, settings.config)
        topics = topics_of(workload, f"{os.getpid()}-{time.time_ns() // 1_000_000 % 1_000_000_000}")
        plans = plans_of(
            workload,
            topics,
            driver=settings.driver,
            config=settings.config,
            payloads=payloads_of(workload, settings.directory),
            keys=keys_of(workload),
            producer_workers=settings.producer_workers,
            consumer_workers=settings.consumer_workers,
            report_s=REPORT_S,
        )
        self._workers = [WorkerProcess(plan, self._on_report) for plan in plans]
        await driver.start()
        try:
            await driver.create_topics(topics, workload.partitions_per_topic)
            with contextlib.suppress(_Stopped):
                await self._measure()
            self._phase_end = None
            self._end_of_measuring()
            self._tell_all(Action.STOP, "end")
            await asyncio.gather(*(worker.stop() for worker in self._workers))
            if not self._stopped:
                self._check()
        finally:
            for worker in self._workers:
                worker.kill()
                await worker.stop()
            try:
                await driver.delete_topics(topics)
            except SprocketError as e:  # of an error before it this may be a consequence
                log.warning("the topics omb-* of this run could not be deleted: %s", e)
            await driver.stop()
        return self._result(driver.name)

    async def _measure(self) -> None:
        workload = self._workload
        for worker in self._workers:
            await worker.start()
        await self._until(
            lambda: all(worker.ready for worker in self._workers),
            READY_TIMEOUT_S,
            "the workers are not connected: is the machine overloaded?",
        )
        await self._probe()
        self._begin("warm-up", workload.warm_up_s)
        self._tell(PRODUCERS, Action.LOAD, "warm-up")
        self._tell(CONSUMERS, Action.MARK, "warm-up")
        await self._wait(workload.warm_up_s)
        self._cpu_before = cpu_s(self._settings.server_pids)
        if workload.consumer_backlog_size_gb:
            await self._build_and_drain()
        self._begin("measure", workload.measured_s)
        self._tell_all(Action.MARK, "measure")
        await self._wait(workload.measured_s)

    async def _probe(self) -> None:
        """Send a message by each producer and wait until each group has it: then its members have their queues."""
        self._begin("probe", None)
        self._tell_all(Action.MARK, "probe")
        self._tell(PRODUCERS, Action.PROBE, "probe")
        wanted = sum(len(worker.plan.producers) for worker in self._workers) * self._copies
        await self._until(
            lambda: self._received >= wanted and self._sent * self._copies >= wanted,
            PROBE_TIMEOUT_S,
            lambda: f"consumers got {self._received:,} of the first {wanted:,} messages: look for errors in the broker's log",
        )

    async def _build_and_drain(self) -> None:
        """Pause the consumers until the backlog is there, then let them drain it. At the maximum rate producers rest meanwhile."""
        workload = self._workload
        began = time.perf_counter()
        self._begin("build", None)
        self._tell(CONSUMERS, Action.PAUSE, "build")
        self._tell(PRODUCERS, Action.MARK, "build")
        wanted = workload.backlog_messages
        await self._until(lambda: self._backlog >= wanted, None, "")
        drain_began = time.perf_counter()
        self.backlog_facts = {"buildSeconds": drain_began - began, "backlogMessages": self._backlog}
        self._begin("drain", None)
        resting = not workload.producer_rate
        self._tell(PRODUCERS, Action.HOLD if resting else Action.MARK, "drain")
        self._tell(CONSUMERS, Action.RESUME, "drain")
        received = self._received
        empty = max(0 if resting else DRAINED, int((1 - workload.backlog_drain_ratio) * wanted))
        lowest, lowest_at = self._backlog, time.perf_counter()

        def drained() -> bool:
            nonlocal lowest, lowest_at
            if self._backlog < lowest:
                lowest, lowest_at = self._backlog, time.perf_counter()
            elif time.perf_counter() - lowest_at > STUCK_S:
                raise FatalError(
                    f"consumers do not catch up: the backlog is {self._backlog:,} messages and has not become smaller for {STUCK_S:.0f} s;"
                    " lower producerRate, or set it to 0 to have producers rest meanwhile"
                )
            return self._backlog <= empty

        await self._until(drained, None, "")
        seconds = time.perf_counter() - drain_began
        self.backlog_facts |= {"drainSeconds": seconds, "drainRate": (self._received - received) / seconds}
        if resting:
            self._tell(PRODUCERS, Action.LOAD, "drain")

    # --- reports ---

    @property
    def _copies(self) -> int:
        return self._workload.subscriptions_per_topic if self._workload.consumer_per_subscription else 0

    @property
    def _backlog(self) -> int:
        return max(0, self._sent * self._copies - self._received)

    def _on_report(self, report: WorkerReport) -> None:
        if report.phase != "gone":
            self._keep(report)
            self._latest[report.worker] = report
            self._sent += report.sent
            self._received += report.received
        self._changed.set()
        now = time.perf_counter()
        if now - self._shown >= REPORT_S / 2:
            self._shown = now
            self._watch(self._progress(now))

    def _keep(self, report: WorkerReport) -> None:
        pending = self._pending.setdefault(report.worker, [])
        if pending and pending[0].phase != report.phase:
            self._close_sample(pending)
        pending.append(report)
        if len(pending) >= self._sample_s / REPORT_S:
            self._close_sample(pending)

    def _close_sample(self, pending: list[WorkerReport]) -> None:
        if pending:
            self._reports.append(results.combined(pending))
            pending.clear()

    def _progress(self, now: float) -> Progress:
        latest = [report for report in self._latest.values() if report.elapsed_s]
        publish, end_to_end = merged(report.publish for report in latest), merged(report.end_to_end for report in latest)
        return Progress(
            self._phase,
            None if self._phase_end is None else max(0.0, self._phase_end - now),
            sum(report.sent / report.elapsed_s for report in latest),
            sum(report.received / report.elapsed_s for report in latest),
            sum(report.send_errors / report.elapsed_s for report in latest),
            self._backlog,
            publish.quantile(50) / 1e3,
            publish.quantile(99) / 1e3,
            end_to_end.quantile(99) / 1e3,
        )

    # --- waiting ---

    def _begin(self, phase: str, seconds: float | None) -> None:
        self._phase = phase
        self._phase_end = None if seconds is None else time.perf_counter() + seconds

    def _tell(self, kind: str, action: Action, phase: str) -> None:
        for worker in self._workers:
            if worker.plan.worker.startswith(kind):
                worker.tell(action, phase)

    def _tell_all(self, action: Action, phase: str) -> None:
        self._tell("", action, phase)

    def _check(self) -> None:
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure
        if self._stopped:
            raise _Stopped

    async def _next_change(self, deadline: float | None) -> bool:
        """Wait for a report, a failure or ``stop``; return whether there is time left."""
        self._check()
        self._changed.clear()
        left = None if deadline is None else deadline - time.perf_counter()
        if left is not None and left <= 0:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._changed.wait()
        self._check()
        return True

    async def _wait(self, seconds: float) -> None:
        deadline = time.perf_counter() + seconds
        while await self._next_change(deadline):
            pass

    async def _until(self, reached: Callable[[], bool], timeout_s: float | None, otherwise: str | Callable[[], str]) -> None:
        deadline = None if timeout_s is None else time.perf_counter() + timeout_s
        while not reached():
            if not await self._next_change(deadline):
                text = otherwise if isinstance(otherwise, str) else otherwise()
                raise FatalError(f"{text} (waited for {timeout_s:.0f} s)")

    # --- the result ---

    def _end_of_measuring(self) -> None:
        self._cpu_after = cpu_s(self._settings.server_pids)

    def _result(self, driver_name: str) -> results.Result | None:
        for pending in self._pending.values():
            self._close_sample(pending)
        measured = [report for report in self._reports if report.phase in results.MEASURED_PHASES]
        if not any(report.elapsed_s for report in measured):
            return None
        by_worker: dict[str, list[WorkerReport]] = {}
        for report in measured:
            by_worker.setdefault(report.worker, []).append(report)
        before = [report for report in self._reports if report.phase not in (*results.MEASURED_PHASES, "end")]
        seconds = max(sum(report.elapsed_s for report in of_worker) for of_worker in by_worker.values())
        found = results.make(self._workload, driver_name, by_worker, before)
        found["sprocketmq"] = self._extra(measured, seconds)
        return found

    def _extra(self, measured: Sequence[WorkerReport], seconds: float) -> dict[str, Any]:
        """Return what OMB's results do not have."""
        sent, received = (sum(getattr(report, name) for report in measured) for name in ("sent", "received"))
        cpu = {kind: sum(report.cpu_s for report in measured if report.worker.startswith(kind)) for kind in (PRODUCERS, CONSUMERS)}
        servers = None if self._cpu_before is None or self._cpu_after is None else self._cpu_after - self._cpu_before
        errors = [report.first_error for report in measured if report.first_error]
        return {
            "seconds": seconds,
            "sampleSeconds": self._sample_s,
            "stoppedEarly": self._stopped,
            "messagesSent": sent,
            "messagesReceived": received,
            "sendErrors": sum(report.send_errors for report in measured),
            "firstError": errors[0] if errors else None,
            "publishMiBPerSecond": sum(report.sent_bytes for report in measured) / seconds / (1 << 20),
            "cpuUsPerMessage": {
                "producers": _each(cpu[PRODUCERS], sent),
                "consumers": _each(cpu[CONSUMERS], received),
                "servers": _each(servers, sent),
            },
            "backlog": self.backlog_facts or None,
            "mixed": self._workload.message_size_max is not None,
            "workers": {"producers": self._settings.producer_workers, "consumers": self._settings.consumer_workers},
            "driverConfig": {key: value for key, value in self._settings.config.items() if "secret" not in key.lower()},
            "cores": os.cpu_count(),
        }


def _each(cpu: float | None, messages: int) -> float | None:
    return None if cpu is None or not messages else round(cpu / messages * 1e6, 3)
