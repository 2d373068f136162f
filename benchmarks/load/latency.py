"""Measure latencies: our client and broker, Apache's Java client on our broker, and the Java client on Apache's broker, in turns.

* ``open``: sends at 70 % of the lower side's peak of awaited sends with 64 in flight, as an open loop: each send has its time, whatever
  became of those before, and its latency counts from then on, so that nothing is left out while a side stands still (no coordinated
  omission).
* ``lone``: one sender that awaits each send.
* ``delivery``: messages sent at 1,000 a second by a timetable, from when each was due until the push consumer's loop body or listener
  gets it. Producer and consumer share a process.

Each has a form with bodies of 512 to 1,536 bytes, a tag and a key (``-mixed``). Exits 1 when a percentile misses its goal, 2 when the
machine cannot run the comparison.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.load import rounds
from benchmarks.load.rounds import Comparison, Figures, Workload, verdict
from benchmarks.load.sides import Side, Topic, java_on
from benchmarks.report import spread, write_result

SHARE = 0.7
PEAK_ROUNDS = 2
# Enough threads that a due send seldom waits for one.
THREADS = 256
DELIVERED_PER_S = 1000
DELIVERY_THREADS = 32

PEAK = Workload("peak", "load_single", None, {"senders": 64})
OPEN = Workload("open", "load_open", 1.0, {"senders": THREADS})
LONE = Workload("lone", "load_single", 0.8, {"senders": 1, "warm_s": 0.5, "measure_s": 2.0})
# A Java consumer that was stopped for 30 s pulls again after 3 s, which the warm-up covers.
DELIVERY = Workload(
    "delivery",
    "load_delivery",
    1.0,
    {"rate": DELIVERED_PER_S, "senders": DELIVERY_THREADS, "warm_s": 3.5, "measure_s": 3.0},
    topic="Delivered",
)
WORKLOADS = (OPEN, LONE, DELIVERY)
# What the goal of a workload is about.
PERCENTILES = {OPEN.name: "p99_ms", LONE.name: "p50_ms", DELIVERY.name: "p99_ms"}
TOPICS = (Topic("LoadTest", rounds.QUEUES), Topic("Delivered", rounds.QUEUES))
COMPARISON = Comparison("load-latency", WORKLOADS, TOPICS, disk_bytes=16 << 30)


def forms(workload: Workload) -> tuple[Workload, Workload]:
    """Return a workload with bodies of 1 KiB, and with mixed bodies, tags and keys."""
    return workload, replace(workload, name=f"{workload.name}-mixed", arguments={**workload.arguments, "mixed": True})


def measure(comparison: Comparison, options: argparse.Namespace, directory: Path) -> bool:
    """Run all rounds of each workload, writing the result file after each workload; return whether every goal was reached."""
    result: dict[str, Figures] = {}
    with rounds.running_sides(comparison, options, directory) as (pair, setting), contextlib.ExitStack() as stack:
        setting |= {"share": SHARE, "threads": THREADS, "delivered_per_s": DELIVERED_PER_S}
        sides = list(pair)
        for workload in WORKLOADS:
            if options.workload not in (None, workload.name):
                continue
            chosen = workload
            if workload is OPEN:
                setting["rate"] = rate = options.rate or common_rate(sides, options)
                chosen = replace(workload, arguments={**workload.arguments, "rate": rate})
            elif options.only is None and len(sides) == 2:
                sides.insert(1, stack.enter_context(java_on(sides[0], directory / "java")))
            for name, figures in run(chosen, sides, options).items():
                result |= summary(name, figures, PERCENTILES[workload.name], workload.goal or 1.0)
            write_result(comparison.name, {"setting": setting, "workloads": result})
    return rounds.report(result)


def common_rate(sides: Sequence[Side], options: argparse.Namespace) -> int:
    """Return the rate that both sides can carry: 70 % of the lower peak."""
    rounds.first_warm(sides, (PEAK,), options)
    peaks: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(PEAK_ROUNDS):
        for side in sides:
            figures = rounds.settled_round(side, sides, PEAK, options)
            peaks[side.name].append(figures["messages_per_s"])
            print(f"peak     {rounds.line(PEAK, side, figures)}", flush=True)
    rate = round(SHARE * min(map(statistics.median, peaks.values())))
    print(f"sending {rate:,} messages/s", flush=True)
    return rate


def run(workload: Workload, sides: Sequence[Side], options: argparse.Namespace) -> dict[str, dict[str, list[Figures]]]:
    """Warm the sides up, run both forms of a workload in rounds, and return the figures by form and side."""
    rounds.first_warm(sides, (workload,), options)
    done: dict[str, dict[str, list[Figures]]] = {}
    for number in range(options.rounds):
        for form in forms(workload):
            of_form = done.setdefault(form.name, {side.name: [] for side in sides})
            for side in sides if number % 2 == 0 else reversed(sides):
                figures = rounds.settled_round(side, sides, form, options)
                of_form[side.name].append(figures)
                print(f"round {number + 1}  {rounds.line(form, side, figures)}   p99.9 {figures['p999_ms']:7.2f} ms", flush=True)
    return done


def summary(name: str, done: Mapping[str, list[Figures]], percentile: str, goal: float) -> dict[str, Figures]:
    """Return the percentiles of each side and the ratio of the medians of one of them, ours to theirs and to Java's on our broker."""
    sides: Figures = {
        side: {
            **{figure: spread(one[figure] for one in figures) for figure in ("p50_ms", "p99_ms", "p999_ms", "foreign_cpu")},
            "messages_per_s": spread((one["messages_per_s"] for one in figures), 0),
            "errors": sum(one["errors"] for one in figures),
        }
        for side, figures in done.items()
    }
    medians = {side: figures[percentile]["median"] for side, figures in sides.items()}
    result = {name: {"percentile": percentile, **sides}}
    if "ours" in medians and "theirs" in medians:
        result[name] |= verdict(medians["ours"] / medians["theirs"], goal, at_most=True)
    if "ours" in medians and "java" in medians:
        result[f"{name}, our broker"] = {"percentile": percentile, **verdict(medians["ours"] / medians["java"], goal, at_most=True)}
    return result


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = rounds.parser(COMPARISON, __doc__, warm=2.0, first_warm=8.0, seconds=3.5)
    parser.add_argument("--rate", type=int, help="messages/s to send in the open loop (70 %% of the lower side's peak)")
    return rounds.main(COMPARISON, parser.parse_args(), measure)


if __name__ == "__main__":
    sys.exit(main())
