"""Measure produce and consume beside Apache Kafka 4.1 with confluent-kafka and aiokafka, in turns on one machine.

Partitions 8, bodies of 1 KiB or of mixed sizes (512 to 1,536 bytes), one client process and one broker on each side, at most 10,000
messages unanswered:

submit    a callback for each message: ours by AutoBatch at its defaults (10 ms, 32 KiB and more under load), confluent-kafka at its
          defaults and with batches of 32 KiB and of 1 MiB (10 ms), aiokafka (32 KiB, 10 ms)
awaited   256 tasks, each awaiting its messages: ours beside aiokafka
consume   from the first message with a new group, reading each body, from the page cache; the rate counts from the first batch on

Ours runs on topics with batch queues and on plain ones. Broker and client of the other side stand still meanwhile. Figures are medians of
rates and of CPU time for a message (user and kernel) of client and broker. Exits 1 when a ratio misses its goal, 2 when the machine
cannot run the comparison.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop import apache

from benchmarks import rivals
from benchmarks.load.rounds import verdict, wait_until_quiet
from benchmarks.load.stores import give_back_logs
from benchmarks.report import spread, write_result

PARTITIONS = 8
IN_FLIGHT = 10_000
# Batches of confluent-kafka besides its defaults (up to 1 MB, 5 ms), with a linger of 10 ms: what ours begins with, and large ones.
ALIKE_BYTES, TUNED_BYTES = 32 << 10, 1 << 20


@dataclass(frozen=True)
class Case:
    """One client doing one kind of work; ``queues`` is `batch` or `plain` for ours."""

    side: str
    op: str
    mixed: bool = False
    queues: str = ""
    batch_bytes: int = 0

    @property
    def name(self) -> str:
        marks = [self.queues, f"{self.batch_bytes >> 10}KiB" if self.batch_bytes else "", "mixed" if self.mixed else ""]
        return " ".join([self.op, self.side, *filter(None, marks)])

    @property
    def topic(self) -> str:
        """The topic it consumes from, or sends to."""
        return f"{self.op}-{self.queues or 'kafka'}-{'mixed' if self.mixed else 'uniform'}"


def ours(op: str, queues: str, *, mixed: bool = False) -> Case:
    return Case("ours", op, mixed, queues)


def confluent(op: str, *, mixed: bool = False, batch_bytes: int = 0) -> Case:
    return Case("confluent", op, mixed, batch_bytes=batch_bytes)


def aiokafka(op: str, *, mixed: bool = False) -> Case:
    return Case("aiokafka", op, mixed)


# Ours, the rival, and the ratio of rates to reach (None: a figure without a goal).
COMPARISONS: tuple[tuple[Case, Case, float | None], ...] = (
    (ours("submit", "batch"), confluent("submit"), 2.5),
    (ours("submit", "plain"), confluent("submit"), None),
    (ours("submit", "batch"), confluent("submit", batch_bytes=ALIKE_BYTES), 2.5),
    (ours("submit", "plain"), confluent("submit", batch_bytes=ALIKE_BYTES), None),
    (ours("submit", "batch"), confluent("submit", batch_bytes=TUNED_BYTES), 1.5),
    (ours("submit", "plain"), confluent("submit", batch_bytes=TUNED_BYTES), None),
    (ours("submit", "batch", mixed=True), confluent("submit", mixed=True, batch_bytes=TUNED_BYTES), None),
    (ours("submit", "plain", mixed=True), confluent("submit", mixed=True, batch_bytes=TUNED_BYTES), None),
    (ours("submit", "batch"), aiokafka("submit"), 5.0),
    (ours("awaited", "batch"), aiokafka("awaited"), 5.0),
    (ours("consume", "batch"), confluent("consume"), None),
    (ours("consume", "plain"), confluent("consume"), None),
    (ours("consume", "batch", mixed=True), confluent("consume", mixed=True), 1.3),
    (ours("consume", "plain", mixed=True), confluent("consume", mixed=True), 1.3),
    (ours("consume", "batch"), aiokafka("consume"), 5.0),
    (ours("consume", "batch", mixed=True), aiokafka("consume", mixed=True), None),
)


def cases(*, consuming: bool, side: str | None = None) -> list[Case]:
    """Return every case once, in the order of the comparisons."""
    found = dict.fromkeys(case for pair in COMPARISONS for case in pair[:2])
    return [case for case in found if (case.op == "consume") is consuming and side in (None, case.side)]


class Sides:
    """The two clusters of one directory."""

    def __init__(self, ours: rivals.Server, kafka: rivals.Server) -> None:
        self._servers = {"ours": ours, "kafka": kafka}

    def of(self, case: Case) -> rivals.Server:
        return self._servers["ours" if case.side == "ours" else "kafka"]

    @contextlib.contextmanager
    def only(self, case: Case) -> Iterator[rivals.Server]:
        """Yield the cluster of ``case`` while the other one stands still."""
        chosen = self.of(case)
        idle = [pid for server in self._servers.values() if server is not chosen for pid in server.pids]
        for pid in idle:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield chosen
        finally:
            for pid in idle:
                os.kill(pid, signal.SIGCONT)

    def drop_page_cache(self) -> None:
        """Have the system forget what was written, so that its memory is used again."""
        for server in self._servers.values():
            give_back_logs(server.store)


@contextlib.contextmanager
def temporary(directory: str | None) -> Iterator[Path]:
    """Yield a directory for stores."""
    with tempfile.TemporaryDirectory(prefix="sprocketmq-kafka-", dir=directory, ignore_cleanup_errors=True) as home:
        yield Path(home)


def measure(server: rivals.Server, case: Case, **arguments: Any) -> dict[str, Any]:
    """Run a client on ``server`` and return its figures. Raises RuntimeError when it fails."""
    work = {
        "op": case.op,
        "address": server.address,
        "topic": case.topic,
        "mixed": case.mixed,
        "batch_bytes": case.batch_bytes,
        "batch_queues": case.queues == "batch",
        "partitions": PARTITIONS,
        "in_flight": IN_FLIGHT,
    }
    command = [sys.executable, "-m", "benchmarks.load.kafka_clients", case.side, json.dumps(work | arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        cpu = {}
        figures: dict[str, Any] | None = None
        for line in process.stdout:
            if line.startswith("{"):
                figures = json.loads(line)
            else:
                cpu[line.strip()] = server.cpu_s()
    if process.returncode or figures is None:
        raise RuntimeError(f"{case.name} ended with {process.returncode}")
    if figures.get("errors"):
        raise RuntimeError(f"{case.name}: {figures['errors']} messages failed, the first with {figures['first_error']}")
    if cpu:
        figures["broker_us"] = (cpu["end"] - cpu["begin"]) / max(1, figures["messages"]) * 1e6
    return figures


def fill(sides: Sides, wanted: Sequence[Case], count: int) -> None:
    """Make the topics of ``wanted`` with ``count`` messages each."""
    made = set()
    for case in wanted:
        filler = Case("ours" if case.side == "ours" else "confluent", "fill", case.mixed, case.queues)
        if case.topic not in made:
            made.add(case.topic)
            measure(sides.of(case), filler, topic=case.topic, count=count)


def run_round(sides: Sides, wanted: Sequence[Case], done: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Run every case once."""
    for case in wanted:
        if case.op != "consume":
            sides.drop_page_cache()
        wait_until_quiet(options.settle)
        with sides.only(case) as server:
            figures = measure(server, case, warm_s=options.warm, measure_s=options.seconds, count=options.messages)
        done.setdefault(case.name, []).append(figures)
        rate, client, broker = figures["messages_per_s"], figures["client_us"], figures["broker_us"]
        print(f"{case.name:32} {rate:11,.0f} messages/s   client {client:5.2f} us   broker {broker:5.2f} us", flush=True)


def conclude(done: dict[str, list[dict[str, Any]]], setting: dict[str, Any], result: str) -> dict[str, dict[str, Any]]:
    """Write the result file, and return the ratios by name."""
    found = {
        name: {key: spread((one[key] for one in runs), 3) for key in ("messages_per_s", "client_us", "broker_us")}
        for name, runs in done.items()
    }
    ratios: dict[str, dict[str, Any]] = {}
    for mine, rival, goal in COMPARISONS:
        if mine.name in found and rival.name in found:
            ratio = found[mine.name]["messages_per_s"]["median"] / found[rival.name]["messages_per_s"]["median"]
            ratios[f"{mine.name} / {rival.name}"] = verdict(ratio, goal) if goal is not None else {"ratio": round(ratio, 3)}
    write_result(result, {"setting": setting, "figures": found, "workloads": ratios})
    return ratios


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load.kafka", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every figure (5)")
    parser.add_argument("--first-warm", type=float, default=20.0, help="seconds of load on Kafka's broker before the first round (20)")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of load before counting (1)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds counted (2)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in each topic that is consumed (1,000,000)")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds to wait at most for other load to end, before each figure (3)")
    parser.add_argument("--heap", default=rivals.HEAP, help=f"heap of Kafka's broker ({rivals.HEAP})")
    parser.add_argument("--work", choices=["produce", "consume"], help="only this, with a result file of its own")
    parser.add_argument("--directory", help="where the stores go (a temporary directory)")
    options = parser.parse_args()
    try:
        rivals.require(["kafka"], ["confluent_kafka", "aiokafka"])
    except apache.ApacheUnavailable as missing:
        print(f"cannot compare: {missing}", file=sys.stderr)
        return 2
    setting = {
        "rounds": options.rounds,
        "first_warm_s": options.first_warm,
        "warm_s": options.warm,
        "measure_s": options.seconds,
        "messages_consumed": options.messages,
        "partitions": PARTITIONS,
        "in_flight": IN_FLIGHT,
        "kafka": rivals.KAFKA_VERSION,
        "heap": options.heap,
    }
    with temporary(options.directory) as home, rivals.kafka(home, options.heap) as kafka:
        ratios = run(kafka, options, setting)
    for name, one in ratios.items():
        goal = f" (goal {one['goal']:g}): {'reached' if one['reached'] else 'MISSED'}" if "goal" in one else ""
        print(f"{name:60} ratio {one['ratio']:.2f}{goal}")
    return 0 if all(one.get("reached", True) for one in ratios.values()) else 1


def run(kafka: rivals.Server, options: argparse.Namespace, setting: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Run all rounds and return the ratios. Kafka's broker, which gets faster, runs all the time; ours is new for every round of sends."""
    done: dict[str, list[dict[str, Any]]] = {}
    ratios: dict[str, dict[str, Any]] = {}
    result = f"load-kafka-{options.work}" if options.work else "load-kafka"
    producing, consuming = cases(consuming=False), cases(consuming=True)
    first = confluent("submit", batch_bytes=TUNED_BYTES)
    if options.work != "consume":
        for number in range(options.rounds):
            with temporary(options.directory) as home, rivals.ours(home) as own:
                sides = Sides(own, kafka)
                fill(sides, producing, 0)
                if number == 0:
                    with sides.only(first):
                        measure(kafka, first, warm_s=options.first_warm, measure_s=0.1)
                run_round(sides, producing if number % 2 == 0 else producing[::-1], done, options)
            # Sends of a round are some 5 GB on each side.
            measure(kafka, Case("confluent", "drop"), topics=sorted({case.topic for case in producing if case.side != "ours"}))
            ratios = conclude(done, setting, result)
    if options.work != "produce":
        with temporary(options.directory) as home, rivals.ours(home) as own:
            sides = Sides(own, kafka)
            fill(sides, consuming, options.messages)
            for number in range(options.rounds):
                run_round(sides, consuming if number % 2 == 0 else consuming[::-1], done, options)
                ratios = conclude(done, setting, result)
    return ratios


if __name__ == "__main__":
    sys.exit(main())
