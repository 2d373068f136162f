"""Rounds of both sides in turn: what the comparisons with Apache RocketMQ share.

A round runs one workload on one side while the other side's processes stand still. Both sides are warm before the first round; who goes
first changes from round to round; every figure waits for a quiet machine, and is taken again when others used too much of it.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.interop import apache

from benchmarks.load.memory import provided_memory
from benchmarks.load.sides import Side, Topic, busy_cpu_s, create_topic, ours, theirs, wait_for_route
from benchmarks.report import spread, write_result

BODY_BYTES = 1024
QUEUES = 8
# The share of the machine's CPU time that others may take before a figure says more about them.
QUIET = 0.15
# A JVM keeps getting faster for this long; a Python process has nothing to compile, only files and connections to open.
OUR_FIRST_WARM_S = 3.0

W = TypeVar("W")
S = TypeVar("S")
Figures = dict[str, Any]
Rounds = dict[str, dict[str, list[Figures]]]


@dataclass(frozen=True)
class Workload:
    """One kind of load; ``goal`` is the ratio ours / theirs that has to be reached (None: a figure without a rival)."""

    name: str
    op: str
    goal: float | None
    arguments: dict[str, Any] = field(default_factory=dict)
    topic: str = "LoadTest"
    only: str | None = None

    def runs_on(self, side: Side) -> bool:
        return self.only is None or self.only == side.name


# Submitted messages through AutoBatch.
AUTO = Workload("auto-batchcq", "load_submit", None, {"senders": 2, "in_flight": 4096, "auto_batch": True})


@dataclass(frozen=True)
class Comparison:
    """A benchmark: its workloads, and what it needs.

    ``prepare`` is called with each side when its topics are there. ``conclude`` is called with the sides, all figures and the options
    after the last round, and returns further verdicts, each with ``goal``, ``ratio`` and ``reached``. ``writes`` says that the workloads
    only write: page caches are dropped and older messages deleted between them then. ``disk_bytes`` is the room a run needs.
    """

    name: str
    workloads: tuple[Workload, ...]
    topics: tuple[Topic, ...]
    disk_bytes: int
    writes: bool = True
    prepare: Callable[[Side], None] | None = None
    conclude: Callable[[Sequence[Side], Rounds, argparse.Namespace], Mapping[str, Figures]] | None = None
    setting: dict[str, Any] = field(default_factory=dict)
    apache_settings: dict[str, str] = field(default_factory=dict)


def one_round(side: Side, sides: Sequence[Side], workload: Workload, warm_s: float, measure_s: float) -> Figures:
    """Run one workload on one side while the others stand still, and return its figures.

    Added to what the client tells: the rate, and the share of the machine's CPU time that went to neither client nor broker, warm-up
    included. Raises RuntimeError when anything of ours failed, or all of theirs: Apache's broker refuses sends that had to wait for 200 ms,
    as overload brings them. Those count for nothing, and ``errors`` says how many there were.
    """
    arguments = {"namesrv": side.namesrv, "topic": workload.topic, "body_bytes": BODY_BYTES, "warm_s": warm_s, "measure_s": measure_s}
    with contextlib.ExitStack() as still:
        for other in sides:
            if other is not side:
                still.enter_context(other.paused(besides=side.pids))
        wait_for_route(side, workload.topic)
        began, own, busy = time.monotonic(), side.cpu_s(), busy_cpu_s()
        figures: Figures = side.client.call(workload.op, **{**arguments, **workload.arguments})
        foreign_s = (busy_cpu_s() - busy) - (side.cpu_s() - own)
        figures["foreign_cpu"] = max(0.0, foreign_s / (time.monotonic() - began) / (os.cpu_count() or 1))
    if (figures["errors"] and side.name == "ours") or not figures["messages"]:
        raise RuntimeError(f"{side.name} {workload.name}: {figures['errors']} failed, the first with {figures['first_error']}")
    figures["messages_per_s"] = figures["messages"] / figures["elapsed_s"]
    return figures


def settled_round(side: Side, sides: Sequence[Side], workload: Workload, options: argparse.Namespace, *, writes: bool = True) -> Figures:
    """Run one workload when the machine is quiet; again when it was not, keeping the run with the least foreign load.

    Runs are chosen by what else went on, never by their result.
    """
    runs = []
    for _ in range(1 + options.repeats):
        if writes:
            for one in sides:
                one.drop_page_cache()
                one.empty_old_files()
        wait_until_quiet(options.settle)
        with provided_memory(workload.op, options.warm + options.seconds) if options.provided_memory else contextlib.nullcontext():
            runs.append(one_round(side, sides, workload, options.warm, options.seconds))
        if runs[-1]["foreign_cpu"] <= QUIET:
            break
    return min(runs, key=lambda run: run["foreign_cpu"])


def wait_until_quiet(limit_s: float) -> None:
    """Wait until all cores together are less busy than QUIET for a second, at most ``limit_s`` seconds."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        busy = busy_cpu_s()
        time.sleep(1)
        if (busy_cpu_s() - busy) / (os.cpu_count() or 1) < QUIET:
            return


def turns(number: int, workloads: Iterable[W], sides: Sequence[S]) -> Iterator[tuple[W, S]]:
    """Yield each workload with each side, as round ``number`` takes them.

    Who goes first changes from round to round: the second finds a warmer, or more throttled, machine.
    """
    for workload in workloads:
        for side in sides if number % 2 == 0 else reversed(sides):
            yield workload, side


def first_warm(sides: Sequence[Side], workloads: Sequence[Workload], options: argparse.Namespace, *, writes: bool = True) -> None:
    """Give every side its first load of every workload, for as long as it takes to be warm."""
    for workload in workloads:
        for side in sides:
            if workload.runs_on(side):
                warm_s = min(OUR_FIRST_WARM_S, options.first_warm) if side.name == "ours" else options.first_warm
                began = time.monotonic()
                if writes:
                    side.empty_old_files()
                one_round(side, sides, workload, warm_s, 1.0)
                while time.monotonic() - began < warm_s:  # work of a fixed size may be done sooner
                    one_round(side, sides, workload, warm_s, 1.0)


def summary(workload: Workload, rounds: dict[str, list[Figures]]) -> Figures:
    """Return medians and spreads per side and, where both sides ran, the ratio of the median rates with the verdict."""
    sides: Figures = {}
    for name, done in rounds.items():
        if done:
            sides[name] = {
                "errors": sum(one["errors"] for one in done),
                "messages_per_s": spread((one["messages_per_s"] for one in done), 0),
            }
            for figure in ("p50_ms", "p99_ms", "first_message_s", "foreign_cpu"):
                if figure in done[0]:
                    sides[name][figure] = spread(one[figure] for one in done)
    result: Figures = {**sides} if workload.goal is None else {"goal": workload.goal, **sides}
    if len(sides) == 2 and workload.goal is not None:
        pairs = zip(rounds["ours"], rounds["theirs"], strict=False)
        result |= verdict(sides["ours"]["messages_per_s"]["median"] / sides["theirs"]["messages_per_s"]["median"], workload.goal)
        result["ratio_per_round"] = [round(mine["messages_per_s"] / other["messages_per_s"], 3) for mine, other in pairs]
    return result


def verdict(ratio: float, goal: float, *, at_most: bool = False) -> Figures:
    """Return a ratio with its goal, which it has to reach, or with ``at_most`` may not exceed."""
    rounded = round(ratio, 3)
    return {"goal": goal, "ratio": rounded, "reached": rounded <= goal if at_most else rounded >= goal}


def line(workload: Workload, side: Side, figures: Figures) -> str:
    """Return one figure as text."""
    text = f"{workload.name:18} {side.name:7} {figures['messages_per_s']:10,.0f} messages/s"
    if "p50_ms" in figures:
        text += f"   p50 {figures['p50_ms']:7.2f} ms   p99 {figures['p99_ms']:7.2f} ms"
    if figures["errors"]:
        text += f"   {figures['errors']:,} refused"
    return f"{text}   other load {figures['foreign_cpu']:4.0%}"


@contextlib.contextmanager
def running_sides(comparison: Comparison, options: argparse.Namespace, directory: Path) -> Any:
    """Run the sides that were asked for, with the topics made; yields them and the facts to write beside the figures."""
    with contextlib.ExitStack() as running:
        sides = []
        if options.only != "theirs":
            sides.append(running.enter_context(ours(directory / "ours", options.profile)))
        java = None
        if options.only != "ours":
            sides.append(running.enter_context(theirs(directory / "theirs", comparison.apache_settings)))
            java = sides[-1].client.call("ping")
        for side in sides:
            for topic in comparison.topics:
                create_topic(side, topic)
            if comparison.prepare is not None:
                comparison.prepare(side)
        yield (
            sides,
            {
                "rounds": options.rounds,
                "first_warm_s": {"ours": min(OUR_FIRST_WARM_S, options.first_warm), "theirs": options.first_warm},
                "warm_s": options.warm,
                "measure_s": options.seconds,
                "body_bytes": BODY_BYTES,
                "queues": QUEUES,
                "flush": "ASYNC_FLUSH",
                **comparison.setting,
                "apache_version": apache.VERSION,
                "apache_settings": comparison.apache_settings,
                "java": java,
                "jvm_flags": {"broker": apache.MEASURED_BROKER, "client": apache.MEASURED_CLIENT},
            },
        )


def measure(comparison: Comparison, options: argparse.Namespace, directory: Path) -> bool:
    """Run all rounds, writing the result file after each; return whether every goal was reached."""
    workloads = [w for w in comparison.workloads if options.workload in (None, w.name)]
    rounds: Rounds = {w.name: {"ours": [], "theirs": []} for w in workloads}
    file = "-".join([comparison.name, *(["provided"] if options.provided_memory else []), *([options.only] if options.only else [])])
    with running_sides(comparison, options, directory) as (sides, setting):
        first_warm(sides, workloads, options, writes=comparison.writes)
        result: Figures = {}
        for number in range(options.rounds):
            for workload, side in turns(number, workloads, sides):
                if workload.runs_on(side):
                    figures = settled_round(side, sides, workload, options, writes=comparison.writes)
                    rounds[workload.name][side.name].append(figures)
                    print(f"round {number + 1}  {line(workload, side, figures)}", flush=True)
            result = {w.name: summary(w, rounds[w.name]) for w in workloads}
            write_result(file, {"setting": setting, "workloads": result})
        if comparison.conclude is not None:
            result |= comparison.conclude(sides, rounds, options)
            write_result(file, {"setting": setting, "workloads": result})
    return report(result)


def report(result: Mapping[str, Figures]) -> bool:
    """Print every ratio with its goal, and medians where there is none; return whether every goal was reached."""
    for name, one in result.items():
        if "ratio" in one:
            print(f"{name:18} ratio {one['ratio']:.2f} (goal {one['goal']:g}): {'reached' if one['reached'] else 'MISSED'}")
        else:
            for side in ("ours", "theirs"):
                if side in one:
                    print(f"{name:18} {side} {statistics.median(one[side]['messages_per_s']['values']):,.0f} messages/s")
    return all(one.get("reached", True) for one in result.values())


def parser(
    comparison: Comparison, description: str | None, *, warm: float = 3.0, first_warm: float = 20.0, seconds: float = 4.0
) -> argparse.ArgumentParser:
    """Return the options that every comparison has; the keywords are defaults."""
    module = comparison.name.replace("load-", "benchmarks.load.")
    p = argparse.ArgumentParser(prog=f"python -m {module}", description=description, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rounds", type=int, default=5, help="rounds per side and workload (5)")
    p.add_argument("--warm", type=float, default=warm, help=f"seconds of load before counting ({warm:g})")
    p.add_argument(
        "--first-warm", type=float, default=first_warm, help=f"seconds of each load on their side before the first round ({first_warm:g})"
    )
    p.add_argument("--seconds", type=float, default=seconds, help=f"seconds counted ({seconds:g})")
    p.add_argument("--settle", type=float, default=10.0, help="seconds to wait at most for other load to end, before each figure (10)")
    p.add_argument("--repeats", type=int, default=2, help="repetitions of a figure taken under other load (2)")
    p.add_argument("--workload", choices=[w.name for w in comparison.workloads], help="only this one")
    p.add_argument("--only", choices=["ours", "theirs"], help="only this side; no ratio then")
    p.add_argument("--profile", metavar="FILE", help="write a cProfile of our client process (its figures do not count then)")
    p.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    p.set_defaults(provided_memory=False)
    return p


def offer_memory(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Give the comparison's parser the option that provides what sends are going to fill, and return it."""
    p.add_argument(
        "--provided-memory", action="store_true", help="touch the memory that will be written before each figure; writes NAME-provided.json"
    )
    return p


def require_apache(needed: bool) -> None:
    """End the program with exit code 2 when Apache's side is ``needed`` and this machine cannot run it."""
    if needed:
        try:
            apache.require()
        except apache.ApacheUnavailable as missing:
            print(f"cannot compare: {missing}", file=sys.stderr)
            raise SystemExit(2) from None


@contextlib.contextmanager
def store_directory(parent: Path | None, disk_bytes: int) -> Iterator[Path]:
    """Make a directory for stores, for as long as the block runs; end the program with exit code 2 when the disk has too little room."""
    with tempfile.TemporaryDirectory(prefix="sprocketmq-load-", dir=parent, ignore_cleanup_errors=True) as directory:
        free = shutil.disk_usage(directory).free
        if free < disk_bytes:
            print(f"{directory} has {free >> 30} GiB free; the stores of this run may need {disk_bytes >> 30} GiB", file=sys.stderr)
            raise SystemExit(2)
        yield Path(directory)


def report_verdicts(verdicts: Mapping[str, Figures], prefix: str = "") -> bool:
    """Print each ratio with its goal, and return whether all goals were reached."""
    for name, one in verdicts.items():
        print(f"{prefix}{name}: {one['ratio']:.3f} (goal {one['goal']:g}): {'reached' if one['reached'] else 'MISSED'}")
    return all(one["reached"] for one in verdicts.values())


def main(comparison: Comparison, options: argparse.Namespace, run: Callable[[Comparison, argparse.Namespace, Path], bool] = measure) -> int:
    """Run a comparison and return the exit code: 0 when every goal was reached, 1 when not. Exits with 2 when the machine cannot run it."""
    require_apache(options.only != "ours")
    with store_directory(options.directory, comparison.disk_bytes) as directory:
        return 0 if run(comparison, options, directory) else 1
