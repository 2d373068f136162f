"""Show where a message's processor time goes, in client and broker, user and kernel: ``python -m benchmarks.profile`` or ``make profile``.

Runs works of ``benchmarks.load.cpu`` with a sampling profiler inside both processes, prints what each module takes of a message, and draws it
as ``results/profile.svg``. A signal comes every millisecond; the processor time of the main thread since the last one goes to the innermost
function of SprocketMQ that it interrupts. What uvloop does before it calls Python, reading the socket above all, shows as a sample at the
entry of the function it calls, and is counted as "event loop, sockets". Time of other threads is named after them.

The kernel tells the time of a thread exactly, but its split into user and kernel from samples of its own, smoothed over the process's life:
trust it for a process, less for a module.
"""

import argparse
import contextlib
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.load import cpu
from benchmarks.report import RESULTS, write_result

INTERVAL_S = 0.001
LOOP = "event loop, sockets"
# Modules that take less than this share of a process's time are shown together.
SMALL_SHARE = 0.02
_PACKAGE = f"{os.sep}sprocketmq{os.sep}"

Costs = dict[str, list[float]]


class Sampler:
    """Samples the main thread of this process. SIGUSR1 begins anew, SIGUSR2 writes what was sampled since, as JSON."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._costs: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._last = resource.getrusage(resource.RUSAGE_THREAD)
        self._threads: Costs = {}

    def start(self) -> None:
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._write)
        signal.signal(signal.SIGALRM, self._sample)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        last, self._last = self._last, resource.getrusage(resource.RUSAGE_THREAD)
        cost = self._costs[place_of(frame)]
        cost[0] += self._last.ru_utime - last.ru_utime
        cost[1] += self._last.ru_stime - last.ru_stime

    def _begin(self, _number: int, _frame: FrameType | None) -> None:
        self._costs.clear()
        self._last = resource.getrusage(resource.RUSAGE_THREAD)
        self._threads = other_threads()

    def _write(self, _number: int, _frame: FrameType | None) -> None:
        threads = {
            name: [now - was for now, was in zip(cost, self._threads.get(name, [0, 0]), strict=True)]
            for name, cost in other_threads().items()
        }
        partial = self._output.with_suffix(".part")
        partial.write_text(json.dumps({**self._costs, **threads}), encoding="utf-8")
        partial.rename(self._output)


def place_of(frame: FrameType | None) -> str:
    """Return module and function of the innermost frame of this package, or LOOP."""
    if frame is not None and frame.f_lineno == frame.f_code.co_firstlineno and (frame.f_back is None or not module_of(frame.f_back)):
        return LOOP
    while frame is not None:
        if module := module_of(frame):
            return LOOP if module.startswith("cli/") else f"{module}:{frame.f_code.co_name}"  # the command only runs the loop
        frame = frame.f_back
    return LOOP


def module_of(frame: FrameType) -> str:
    """Return the path of a frame's file inside the package; that of the load for the load itself, "" for other files."""
    path = frame.f_code.co_filename
    _, found, inside = path.rpartition(_PACKAGE)
    if found:
        return inside.removesuffix(".py")
    return "the benchmark" if path.endswith("cpu_client.py") and frame.f_code.co_name != "<module>" else ""


def other_threads() -> Costs:
    """Return user and kernel seconds of each thread but the main one, by name."""
    ticks = os.sysconf("SC_CLK_TCK")
    costs: Costs = {}
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.native_id is not None:
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                cost = costs.setdefault(f"thread {thread.name.rstrip('_0123456789')}", [0.0, 0.0])
                cost[0] += int(stat[11]) / ticks
                cost[1] += int(stat[12]) / ticks
    return costs


# --- running and drawing ---


def sampled(directory: Path, works: list[str], messages: int) -> dict[str, Any]:
    """Run works with samplers in client and broker and return microseconds a message by work, process, module and function."""
    found: dict[str, Any] = {}
    outputs = {name: directory / f"{name}.json" for name in ("client", "broker")}
    runners = {name: ("-m", "benchmarks.profile", "--sample", str(path)) for name, path in outputs.items()}
    with cpu.running("this", cpu.ROOT, directory, runners["broker"], runners["client"]) as tree:
        pids = {"client": tree.client.process.pid, "broker": tree.broker_pid}
        for name in works:
            title, _, form = name.partition(" ")
            work = next(one for one in cpu.WORKS if one.name == title)

            def begin() -> None:
                for pid in pids.values():
                    os.kill(pid, signal.SIGUSR1)

            def costs() -> dict[str, Costs]:
                for pid in pids.values():
                    os.kill(pid, signal.SIGUSR2)
                return {process: read_when_there(path) for process, path in outputs.items()}

            tree.measure(work, form, messages, begin)
            count = work.count(messages)
            found[name] = {
                process: {place: [second / count * 1e6 for second in cost] for place, cost in one.items()}
                for process, one in costs().items()
            }
    return found


def read_when_there(path: Path) -> Costs:
    """Wait for a sampler's file, read and remove it. Raises TimeoutError."""
    deadline = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no sampler wrote {path}: the process does not handle signals")
        time.sleep(0.01)
    costs: Costs = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return costs


def by_module(costs: Costs) -> list[tuple[str, float, float]]:
    """Return what each module costs, user and kernel, the dearest first; small ones together as the last."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for place, (user, kernel) in costs.items():
        one = sums[place.partition(":")[0]]
        one[0] += user
        one[1] += kernel
    total = sum(map(sum, sums.values()))
    small = [name for name, cost in sums.items() if sum(cost) < SMALL_SHARE * total]
    large = ((name, user, kernel) for name, (user, kernel) in sums.items() if name not in small)
    rows = sorted(large, key=lambda row: -row[1] - row[2])
    others = [sums[name] for name in small]
    return [*rows, ("others", sum(cost[0] for cost in others), sum(cost[1] for cost in others))]


WIDTH, MARGIN, LABEL_WIDTH, BAR_WIDTH, ROW_HEIGHT = 760, 16, 250, 380, 20


def draw(profiles: dict[str, Any]) -> str:
    """Return the profiles as an SVG: a panel for each work and process, a bar for each module, all on one scale."""
    panels = [(f"{work}, {process}", by_module(costs)) for work, sides in profiles.items() for process, costs in sides.items()]
    most = max(user + kernel for _, rows in panels for _, user, kernel in rows)
    body: list[str] = []
    top = MARGIN
    for title, rows in panels:
        total = [sum(user for _, user, _ in rows), sum(kernel for _, _, kernel in rows)]
        text = f"{title}: {sum(total):.2f} us a message, {total[0]:.2f} user and {total[1]:.2f} kernel"
        body.append(f'<text class="title" x="{MARGIN}" y="{top + 16}">{escape(text)}</text>')
        top += 28
        for name, user, kernel in rows:
            x = MARGIN + LABEL_WIDTH
            lengths = [round(BAR_WIDTH * part / most) for part in (user, kernel)]
            body += [
                f'<text x="{MARGIN}" y="{top + 12}">{escape(name)}</text>',
                f'<rect class="user" x="{x}" y="{top}" width="{lengths[0]}" height="14"/>',
                f'<rect class="kernel" x="{x + lengths[0]}" y="{top}" width="{lengths[1]}" height="14"/>',
                f'<text x="{x + sum(lengths) + 6}" y="{top + 12}">{user + kernel:.2f}</text>',
            ]
            top += ROW_HEIGHT
        top += MARGIN
    style = "text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .user { fill: #0969da } .kernel { fill: #bf8700 }"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="processor time by module">',
            f'<style>{style}</style><rect width="{WIDTH}" height="{top}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


def show(profiles: dict[str, Any], functions: int) -> None:
    """Print each profile: modules as bars, and the dearest functions."""
    for work, sides in profiles.items():
        for process, costs in sides.items():
            rows = by_module(costs)
            total = sum(user + kernel for _, user, kernel in rows)
            print(f"\n{work}, {process}: {total:.2f} us of processor time a message (# user, + kernel)")
            for name, user, kernel in rows:
                print(f"  {name:34} {user:6.2f} {kernel:6.2f}  {'#' * round(40 * user / total)}{'+' * round(40 * kernel / total)}")
            for place, (user, kernel) in sorted(costs.items(), key=lambda one: -sum(one[1]))[:functions]:
                print(f"      {place:50} {user:6.2f} {kernel:6.2f}")


def main() -> int:
    """Sample a program, or run and show the profiles; return the exit code."""
    if sys.argv[1:2] == ["--sample"]:
        _, _, output, _, module, *arguments = sys.argv  # --sample FILE -m MODULE ...
        Sampler(Path(output)).start()
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    p = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--messages", type=int, default=600_000, help="messages of a work; batches half, single sends a tenth (600,000)")
    p.add_argument("--functions", type=int, default=0, help="print so many of the dearest functions of each process as well (0)")
    names = [f"{work.name} {form}" for work in cpu.WORKS for form in cpu.FORMS]
    p.add_argument(
        "works", nargs="*", metavar="WORK", help=f"which works, all by default; consuming needs the work that sends: {', '.join(names)}"
    )
    options = p.parse_args()
    if unknown := [name for name in options.works if name not in names]:
        p.error(f"no such work: {', '.join(unknown)}")
    read = [f"{work.reads.name} {form}" for work in cpu.WORKS if work.reads for form in cpu.FORMS if f"{work.name} {form}" in options.works]
    if missing := [name for name in read if name not in options.works]:
        p.error(f"name {', '.join(missing)} as well, whose messages are to be consumed")
    with tempfile.TemporaryDirectory(prefix="sprocketmq-profile-", ignore_cleanup_errors=True) as temporary:
        profiles = sampled(Path(temporary), options.works or names, options.messages)
    show(profiles, options.functions)
    write_result("profile", {"us_a_message": profiles})
    (RESULTS / "profile.svg").write_text(draw(profiles), encoding="utf-8")
    print(f"\ndrawn: {RESULTS / 'profile.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
