"""Measure the processor time of a message: client and broker, user and kernel, each in a process of its own on this machine.

AutoBatch to a plain topic and to batch queues (4,096 in flight), explicit batches of 100 (4 senders), single sends (64 in flight), and a new
push consumer that reads what AutoBatch or single sends sent. Each comes uniform (1 KiB bodies) and mixed (512 to 1,536 bytes, tags and keys).

``--baseline TREE`` runs client and broker of another checkout in turns with those of this one (ABBA), and prints ratios with verdicts.
Processor time says more than a rate on a machine with neighbours. Every round begins with new stores, and the page cache of a figure is given
back before the next one: in a virtual machine memory touched for the first time costs several times as much.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load.stores import give_back
from benchmarks.processor import cpu_s
from benchmarks.report import spread, write_result

ROOT = Path(__file__).parents[2]
QUEUES = 8
READY_TIMEOUT_S = 20.0
DISK_BYTES = 6 << 30
# The parts of a figure, in microseconds a message.
PARTS = ("client_user", "client_kernel", "broker_user", "broker_kernel")
SUMS = {"total": PARTS, "client": PARTS[:2], "broker": PARTS[2:]}
FORMS = ("uniform", "mixed")


@dataclass(frozen=True)
class Work:
    """One way to use client and broker; ``share`` of the messages of a figure, ``goal`` the ratio to the baseline's processor time.

    ``reads`` is the work whose messages are consumed, all of them.
    """

    name: str
    op: str
    goal: float
    share: float = 1.0
    batch_queues: bool = False
    size: int = 1
    senders: int = 1
    reads: "Work | None" = None

    def count(self, messages: int) -> int:
        """Return how many messages count when a figure has ``messages``; a consumer also reads those that warmed up."""
        if self.reads is not None:
            sent = self.reads.count(messages)
            return sent + round(sent * WARM_SHARE)
        return round(messages * self.share)


# Messages sent before anything counts: as a share of those that count.
WARM_SHARE = 0.05

_AUTO_PLAIN = Work("auto-plain", "submit", 0.75)
_AUTO_BATCHCQ = Work("auto-batchcq", "submit", 0.85, batch_queues=True)
_SINGLE = Work("single", "send", 1.0, share=0.4, senders=64)
WORKS = (
    _AUTO_PLAIN,
    Work("consume-plain", "consume", 1.0, reads=_AUTO_PLAIN),
    _AUTO_BATCHCQ,
    Work("consume-batchcq", "consume", 1.0, reads=_AUTO_BATCHCQ),
    Work("batch-100", "send", 1.0, share=0.5, size=100, senders=4),
    _SINGLE,
    Work("consume-single", "consume", 1.0, reads=_SINGLE),
)
# What one message may cost more than in the baseline before a ratio without a goal of its own counts as missed: noise.
TOLERANCE = 0.05


class ClientProcess:
    """The process of ``benchmarks.load.cpu_client`` with the clients of one tree."""

    def __init__(self, namesrv: str, environment: dict[str, str], runner: Sequence[str]) -> None:
        command = [sys.executable, *runner, "-m", "benchmarks.load.cpu_client", namesrv]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, op: str, **arguments: Any) -> Any:
        """Run one command and return its value. Raises RuntimeError with the client's error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client process ended with {self.process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        stop(self.process)


def stop(process: subprocess.Popen[str]) -> None:
    """Wait for a process that was told to end, and kill it when it does not."""
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


@dataclass(frozen=True)
class Tree:
    """Client and broker of one checkout, running."""

    name: str
    client: ClientProcess
    broker_pid: int
    store: Path

    def measure(
        self, work: Work, form: str, messages: int, begins: Callable[[], None] = lambda: None, *, queues: int = QUEUES
    ) -> dict[str, float]:
        """Run one work and return microseconds of processor time a message, by part; ``begins`` is called when what counts begins."""
        mixed = form == "mixed"
        topic = f"{(work.reads or work).name}-{form}"
        count = work.count(messages)
        options = {"topic": topic, "mixed": mixed, "size": work.size, "senders": work.senders}
        if work.reads is None:
            self.client.call("create", topic=topic, queues=queues, attributes={"queue.type": "BatchCQ"} if work.batch_queues else {})
            self.client.call(work.op, count=round(count * WARM_SHARE), **options)
        begins()
        before = cpu_of(self.broker_pid)
        client = self.client.call(work.op, count=count, **options)
        after = cpu_of(self.broker_pid)
        seconds = (*client, after[0] - before[0], after[1] - before[1])
        return {part: one / count * 1e6 for part, one in zip(PARTS, seconds, strict=True)}

    def drop_page_cache(self) -> None:
        """Have the system write out and forget the commit log, as far as it is not mapped."""
        give_back((self.store / "commitlog").iterdir())


def cpu_of(pid: int) -> tuple[float, float]:
    """Return the seconds of user and kernel time a process has used: the sum by its clock, to the nanosecond, the shares by its ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, kernel = int(fields[11]), int(fields[12])
    total = cpu_s(pid)
    share = user / max(1, user + kernel)
    return total * share, total * (1 - share)


@contextlib.contextmanager
def running(name: str, source: Path, directory: Path, runner: Sequence[str] = (), client_runner: Sequence[str] = ()) -> Iterator[Tree]:
    """Run nameserver, broker and client of a checkout; the runners are options of Python's that come before the module."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    store = directory / "store"
    command = [
        sys.executable,
        *runner,
        "-m",
        "sprocketmq",
        "serve",
        "--namesrv-port",
        "0",
        "--port",
        "0",
        "--store",
        str(store),
        "--set=os_page_cache_busy_timeout_ms=60000",
    ]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(READY_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), None)
        if ready is None:
            raise RuntimeError(f"`sprocketmq serve` of {source} ended with {process.wait(10)} before it was ready")
        watchdog.cancel()
        facts = dict(part.split("=", 1) for part in ready.split()[1:])
        with contextlib.closing(ClientProcess(facts["namesrv"], environment, client_runner)) as client:
            yield Tree(name, client, process.pid, store)
    finally:
        watchdog.cancel()
        process.terminate()
        stop(process)


Figures = dict[str, dict[str, list[dict[str, float]]]]


def one_round(trees: dict[str, Path], works: Sequence[Work], options: argparse.Namespace, directory: Path, done: Figures) -> None:
    """Measure every work in both forms with every tree, in the order given; adds to ``done`` by figure and tree."""
    with contextlib.ExitStack() as stack:
        sides = []
        for name, source in trees.items():
            (directory / name).mkdir()
            stack.callback(shutil.rmtree, directory / name, ignore_errors=True)
            sides.append(stack.enter_context(running(name, source, directory / name)))
        for form in FORMS:
            for work in works:
                for side in sides:
                    figure = side.measure(work, form, options.messages, queues=options.queues)
                    done.setdefault(f"{work.name} {form}", {}).setdefault(side.name, []).append(figure)
                    if not any(other.reads is work for other in works):
                        side.drop_page_cache()


def summary(figures: list[dict[str, float]]) -> dict[str, Any]:
    """Return the spread of each part, and of client, broker and both."""
    return {
        **{part: spread(one[part] for one in figures) for part in PARTS},
        **{name: spread(sum(one[part] for part in parts) for one in figures) for name, parts in SUMS.items()},
    }


def compare(done: Figures, *, unchanged: bool) -> dict[str, dict[str, Any]]:
    """Return what each figure costs in proportion to the baseline: total, client and broker, and whether the goal is reached.

    A ratio is the median of those of the rounds: the two sides of a round run one after the other, and the machine's speed changes from
    round to round more than what is compared. The goal is that of the work, or, with ``unchanged``, the baseline's cost for all.
    """
    goals = {work.name: work.goal if work.goal < 1 and not unchanged else 1 + TOLERANCE for work in WORKS}
    found = {}
    for name, sides in done.items():
        ratios = {}
        for sum_, parts in SUMS.items():
            rounds = zip(sides["this"], sides["baseline"], strict=True)
            ratios[sum_] = round(
                median(sum(ours[part] for part in parts) / sum(before[part] for part in parts) for ours, before in rounds), 3
            )
        goal = goals[name.split()[0]]
        found[name] = {**ratios, "goal": goal, "reached": ratios["total"] <= goal}
    return found


def main() -> int:
    """Run all rounds and return the exit code: 1 when a goal is missed, 2 when the machine cannot run the comparison."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.load.cpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--baseline", type=Path, metavar="TREE", help="another checkout, whose client and broker run in turns with these")
    p.add_argument(
        "--unchanged", action="store_true", help="only nothing has to be dearer than the baseline; writes load-cpu-unchanged.json"
    )
    p.add_argument("--rounds", type=int, default=7, help="rounds of each figure (7)")
    p.add_argument("--messages", type=int, default=150_000, help="messages of a figure; batches half, single sends 0.4 of it (150,000)")
    p.add_argument("--queues", type=int, default=QUEUES, help=f"queues of each topic ({QUEUES}); others write load-cpu-QUEUES-queues.json")
    p.add_argument(
        "--only", action="append", metavar="NAME", help="measure only works whose name has this in it; consuming needs the work that sends"
    )
    p.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    p.add_argument("--dry", action="store_true", help="print the figures only: write no JSON")
    options = p.parse_args()
    works = [work for work in WORKS if options.only is None or any(name in work.name for name in options.only)]
    if missing := [work.reads.name for work in works if work.reads is not None and work.reads not in works]:
        p.error(f"--only leaves out {', '.join(missing)}, whose messages are to be consumed")
    trees = {"this": ROOT, **({"baseline": options.baseline.resolve()} if options.baseline else {})}
    done: Figures = {}
    with tempfile.TemporaryDirectory(prefix="sprocketmq-load-", dir=options.directory, ignore_cleanup_errors=True) as temporary:
        if (free := shutil.disk_usage(temporary).free) < DISK_BYTES:
            print(f"{temporary} has {free >> 30} GiB free; the stores of this run may need {DISK_BYTES >> 30} GiB", file=sys.stderr)
            return 2
        for number in range(options.rounds + 1):
            order = trees if number % 2 else dict(reversed(trees.items()))
            kept: Figures = {} if number == 0 else done  # the first round touches memory that this machine has not used yet
            one_round(order, works, options, Path(temporary), kept)
            if number:
                line = {name: {side: f"{sum(all_[-1].values()):.2f}" for side, all_ in sides.items()} for name, sides in done.items()}
                print(f"round {number}  " + "  ".join(f"{name} {'/'.join(sides.values())}" for name, sides in line.items()), flush=True)
    result = {name: {side: summary(figures) for side, figures in sides.items()} for name, sides in done.items()}
    verdicts = compare(done, unchanged=options.unchanged) if options.baseline else {}
    print(f"\n{'us of processor time a message':41}{''.join(f'{part:>14}' for part in (*PARTS, 'total'))}")
    for name, sides in result.items():
        for side, parts in sides.items():
            medians = [parts[part]["median"] for part in (*PARTS, "total")]
            print(f"{name:24} {side:16}{''.join(f'{median:14.2f}' for median in medians)}")
    for name, one in verdicts.items():
        text = f"{one['total']:.3f} (client {one['client']:.3f}, broker {one['broker']:.3f}; goal {one['goal']:g})"
        print(f"{name:24} {text}: {'reached' if one['reached'] else 'MISSED'}")
    setting = {
        "rounds": options.rounds,
        "messages": options.messages,
        "queues": options.queues,
        "flush": "ASYNC_FLUSH",
        "baseline": bool(verdicts),
    }
    if not options.dry:
        name = "load-cpu" + ("-unchanged" if options.unchanged else "") + (f"-{options.queues}-queues" if options.queues != QUEUES else "")
        write_result(name, {"setting": setting, "figures": result, "verdicts": verdicts})
    return 0 if all(one["reached"] for one in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
