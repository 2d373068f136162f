"""Measure the latency of sends under a load that both sides can carry: ours against Apache's Java client and broker.

First each side's peak rate of awaited 1 KiB sends with 64 in flight. Then 70 % of the lower peak as an open loop: every send has its time,
whatever became of those before, and its latency counts from then on, so that nothing is left out while a side stands still (no
coordinated omission). Exits 1 when our 99th percentile is above theirs, 2 when the machine cannot run the comparison.
"""

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.load import rounds
from benchmarks.load.rounds import Comparison, Figures, Workload, verdict
from benchmarks.load.sides import Topic
from benchmarks.report import spread, write_result

SHARE = 0.7
PEAK_ROUNDS = 2
# Enough threads that a due send seldom waits for one.
THREADS = 256
PEAK = Workload("peak", "load_single", None, {"senders": 64})
OPEN = Workload("open", "load_open", 1.0)
COMPARISON = Comparison("load-latency", (PEAK, OPEN), (Topic("LoadTest", rounds.QUEUES),), disk_bytes=24 << 30)


def measure(comparison: Comparison, options: argparse.Namespace, directory: Path) -> bool:
    """Find the peaks, then run all rounds at their rate, writing the result file after each; return whether the goal was reached."""
    with rounds.running_sides(comparison, options, directory) as (sides, setting):
        rounds.first_warm(sides, (PEAK,), options)
        peaks: dict[str, list[float]] = {side.name: [] for side in sides}
        for _ in range(PEAK_ROUNDS):
            for side in sides:
                figures = rounds.settled_round(side, sides, PEAK, options)
                peaks[side.name].append(figures["messages_per_s"])
                print(f"peak     {rounds.line(PEAK, side, figures)}", flush=True)
        rate = options.rate or round(SHARE * min(map(statistics.median, peaks.values())))
        print(f"sending {rate:,} messages/s", flush=True)
        workload = replace(OPEN, arguments={"rate": rate, "senders": THREADS})
        rounds.first_warm(sides, (workload,), options)
        done: dict[str, list[Figures]] = {side.name: [] for side in sides}
        result: Figures = {}
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                figures = rounds.settled_round(side, sides, workload, options)
                done[side.name].append(figures)
                print(f"round {number + 1}  {rounds.line(workload, side, figures)}   p99.9 {figures['p999_ms']:7.2f} ms", flush=True)
            result = summary(done, peaks)
            write_result(comparison.name, {"setting": {**setting, "rate": rate, "share": SHARE, "threads": THREADS}, "workloads": result})
    return rounds.report({"p99 ours / theirs": result})


def summary(done: dict[str, list[Figures]], peaks: dict[str, list[float]]) -> Figures:
    """Return the percentiles of each side and, where both ran, the ratio of the medians of the 99th with the verdict."""
    result: Figures = {
        name: {
            "peak_messages_per_s": spread(peaks[name], 0),
            **{figure: spread(one[figure] for one in figures) for figure in ("p50_ms", "p99_ms", "p999_ms", "foreign_cpu")},
            "messages_per_s": spread((one["messages_per_s"] for one in figures), 0),
            "errors": sum(one["errors"] for one in figures),
        }
        for name, figures in done.items()
    }
    if len(result) == 2:
        result |= verdict(result["ours"]["p99_ms"]["median"] / result["theirs"]["p99_ms"]["median"], 1.0, at_most=True)
    return result


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = rounds.parser(COMPARISON, __doc__, first_warm=15.0, seconds=8.0)
    parser.add_argument("--rate", type=int, help="messages/s to send (70 %% of the lower side's peak)")
    return rounds.main(COMPARISON, parser.parse_args(), measure)


if __name__ == "__main__":
    sys.exit(main())
