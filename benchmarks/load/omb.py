"""Run workloads of the OpenMessaging benchmark with ours, Apache RocketMQ and Kafka in turns on this machine, and print them as a table.

Each run is `sprocketmq bench omb` with one process of producers and one of consumers. The servers of one system run at a time, and run
through all workloads of a round, or until one fails; who goes first changes from round to round. Both RocketMQs have topics with batch
queues unless told otherwise, and AutoBatch with its defaults; confluent-kafka has its defaults. No client has more than 10,000 messages
unanswered.

Rates, latencies and CPU time for a message (user and kernel) of producers, consumers and servers are medians of all rounds. Exits 1 when
ours with 10,000 partitions misses its goals beside ours with 16, 2 when the machine cannot run the comparison.
"""

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop import apache

from benchmarks import rivals
from benchmarks.load.rounds import verdict, wait_until_quiet
from benchmarks.load.stores import give_back_logs
from benchmarks.report import spread, write_result

FEW, MANY = "1-topic-16-partitions-1kb", "100-topics-100-partitions-1kb"
SYSTEMS = ("sprocketmq", "apache", "kafka")
IN_FLIGHT = 10_000
# A run connects 100 clients and makes 10,000 queues before it begins.
SETUP_TIMEOUT_S = 300.0
# With 10,000 partitions, of the rate with 16; and at most so many times its p99.
RATE_KEPT = 0.95
P99_GROWS = 3.0

LATENCIES = {
    "publish_p50_ms": "aggregatedPublishLatency50pct",
    "publish_p99_ms": "aggregatedPublishLatency99pct",
    "end_to_end_p50_ms": "aggregatedEndToEndLatency50pct",
    "end_to_end_p99_ms": "aggregatedEndToEndLatency99pct",
}
FIGURES = ("sent_per_s", "received_per_s", *LATENCIES, "producers_us", "consumers_us", "servers_us")
TITLES = (
    "sent/s",
    "received/s",
    "publish p50 ms",
    "p99",
    "end to end p50 ms",
    "p99",
    "CPU us a message: producers",
    "consumers",
    "servers",
)

Figures = dict[str, float]
Done = dict[str, dict[str, list[Figures]]]


def settings(server: rivals.Server, queues: str) -> dict[str, str]:
    """Return the driver's settings."""
    if server.name == "kafka":
        return {"bootstrap.servers": server.address, "producer.queue.buffering.max.messages": str(IN_FLIGHT)}
    common = {"namesrv": server.address, "maxInFlight": str(IN_FLIGHT), "batchQueues": str(queues == "batch").lower()}
    return common | ({"jars": str(apache.jars()), "javaOptions": "-Xms1g -Xmx1g"} if server.name == "apache" else {})


def run(server: rivals.Server, workload: str, output: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run one workload and return its result. Raises RuntimeError when there is none; sends that were refused are in its `sendErrors`."""
    command = [sys.executable, "-m", "sprocketmq", "bench", "omb", workload, "--driver", server.name, "--output", str(output)]
    command += ["--duration", f"{options.seconds:g}s", "--warm-up", f"{options.warm:g}s"]
    for pid in server.pids:
        command += ["--server-pid", str(pid)]
    for name, value in settings(server, options.queues).items():
        command += ["--option", f"{name}={value}"]
    timeout_s = options.seconds + options.warm + SETUP_TIMEOUT_S
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if not output.exists():
        raise RuntimeError(f"{workload} on {server.name} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    result: dict[str, Any] = json.loads(output.read_bytes())
    return result


def figures_of(result: Mapping[str, Any]) -> Figures:
    """Return the figures of one result."""
    extra = result["sprocketmq"]
    cpu = extra["cpuUsPerMessage"]
    return {
        "sent_per_s": extra["messagesSent"] / extra["seconds"],
        "received_per_s": extra["messagesReceived"] / extra["seconds"],
        **{name: result[field] for name, field in LATENCIES.items()},
        **{f"{kind}_us": cpu[kind] or 0.0 for kind in ("producers", "consumers", "servers")},
        "send_errors": extra["sendErrors"],
    }


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""
    return {name: statistics.median(one[name] for one in runs) for name in runs[0]}


def table(done: Done) -> str:
    """Return the medians as a table in Markdown."""
    lines = [f"| workload | system | {' | '.join(TITLES)} |", f"|---|---|{'---:|' * len(TITLES)}"]
    for workload, systems in done.items():
        for system, runs in systems.items():
            middle = medians(runs)
            cells = [f"{middle[name]:,.0f}" if name.endswith("per_s") else f"{middle[name]:,.2f}" for name in FIGURES]
            lines.append(f"| `{workload}` | {system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts(done: Done) -> dict[str, dict[str, Any]]:
    """Return what ours keeps with 10,000 partitions, beside the goals, and the same of the rivals without goals."""
    found: dict[str, dict[str, Any]] = {}
    for system in done.get(FEW, {}):
        if system not in done.get(MANY, {}):
            continue
        few, many = medians(done[FEW][system]), medians(done[MANY][system])
        for name, goal, at_most in (
            ("sent_per_s", RATE_KEPT, False),
            ("received_per_s", RATE_KEPT, False),
            ("publish_p99_ms", P99_GROWS, True),
        ):
            ratio = many[name] / few[name] if few[name] else 0.0
            one = verdict(ratio, goal, at_most=at_most) if system == "sprocketmq" else {"ratio": round(ratio, 3)}
            found[f"{system} {name}, 10,000 / 16 partitions"] = one
    return found


def write(done: Done, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Write the result file, and return the verdicts."""
    found = verdicts(done)
    setting = {
        "rounds": options.rounds,
        "warm_s": options.warm,
        "measure_s": options.seconds,
        "queues": options.queues,
        "in_flight": IN_FLIGHT,
        "heap": options.heap,
        "apache_version": apache.VERSION,
        "kafka_version": rivals.KAFKA_VERSION,
    }
    figures = {
        workload: {system: {name: spread(one[name] for one in runs) for name in runs[0]} for system, runs in systems.items()}
        for workload, systems in done.items()
    }
    write_result("load-omb", {"setting": setting, "figures": figures, "workloads": found})
    return found


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load.omb", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workloads", default=f"{FEW},{MANY}", help="names or files, separated by commas (16 and 10,000 partitions)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"which, separated by commas ({','.join(SYSTEMS)})")
    parser.add_argument("--queues", choices=["batch", "plain"], default="batch", help="the queues of RocketMQ's topics (batch)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each workload on each system (3)")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of load before counting (10)")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds counted (6)")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds to wait at most for other load to end, before each run (3)")
    parser.add_argument("--heap", default=rivals.HEAP, help=f"heap of the rivals' brokers ({rivals.HEAP})")
    parser.add_argument("--directory", help="where the stores go (a temporary directory); some 15 GB at a time")
    options = parser.parse_args()
    systems, workloads = options.systems.split(","), options.workloads.split(",")
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(f"--systems: {', '.join(sorted(unknown))} is none of {', '.join(SYSTEMS)}")
    try:
        rivals.require(systems, ["hdrh", *(["confluent_kafka"] if "kafka" in systems else [])])
    except apache.ApacheUnavailable as missing:
        print(f"cannot compare: {missing}", file=sys.stderr)
        return 2
    # Kafka's broker keeps the files of 10,000 partitions open.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    done: Done = {workload: {} for workload in workloads}
    found: dict[str, dict[str, Any]] = {}
    failed = False
    for number in range(options.rounds):
        for system in systems if number % 2 == 0 else reversed(systems):
            with contextlib.ExitStack() as stack:
                home = Path(
                    stack.enter_context(
                        tempfile.TemporaryDirectory(prefix="sprocketmq-omb-", dir=options.directory, ignore_cleanup_errors=True)
                    )
                )
                server = stack.enter_context(rivals.started(system, home, options.heap))
                for workload in workloads:
                    give_back_logs(server.store)  # so that this memory is used again
                    wait_until_quiet(options.settle)
                    try:
                        figures = figures_of(run(server, workload, home / f"{Path(workload).stem}.json", options))
                    except RuntimeError as failure:
                        failed = True
                        print(failure, file=sys.stderr, flush=True)
                        break
                    done[workload].setdefault(system, []).append(figures)
                    print(
                        f"round {number + 1}  {workload:32} {system:11} " + "  ".join(f"{name} {figures[name]:,.6g}" for name in figures),
                        flush=True,
                    )
        found = write(done, options)
    print(table(done))
    for name, one in found.items():
        goal = f" (goal {one['goal']:g}): {'reached' if one['reached'] else 'MISSED'}" if "goal" in one else ""
        print(f"{name}: {one['ratio']:.2f}{goal}")
    return 1 if failed or not all(one.get("reached", True) for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
