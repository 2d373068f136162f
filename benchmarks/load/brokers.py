"""Measure the processor time of a message with ``serve --brokers 1``, 2 and 3: what more brokers on one machine cost.

AutoBatch to one topic with queues on all brokers (4,096 in flight, 1 KiB bodies), then a new push consumer that reads what was sent; plain
queues and batch queues. The topic has 8 queues in all, divided among the brokers and rounded up. Processor time is that of all processes, user
and kernel: the client, the nameserver, each broker, and the process that supervises them. It says more than a rate on a machine with fewer
free cores than brokers. The numbers of brokers run in turns, each round with new stores; page cache is given back before and after.

Before anything counts, 20,000 messages for each broker are sent and consumed: what a process does once (imports, new files, code that the
interpreter has not run yet) takes about 0.1 s, and is no cost of a message.

Goal: with 2 and 3 brokers a message takes at most 1.10 times the processor time that it takes with one. Exits 1 when that is missed.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.cpu import READY_TIMEOUT_S, ROOT, ClientProcess, cpu_of, stop
from benchmarks.load.cpu_client import BODY_BYTES, IN_FLIGHT
from benchmarks.load.rounds import verdict
from benchmarks.load.stores import give_back
from benchmarks.report import spread, write_result

GOAL = 1.10
NUMBERS = (1, 2, 3)
QUEUES = 8
DISK_BYTES = 10 << 30
TOPICS: dict[str, dict[str, str]] = {"plain": {}, "batchcq": {"queue.type": "BatchCQ"}}
PARTS = ("client", "brokers_user", "brokers_kernel", "others")


@dataclass(frozen=True)
class Cluster:
    """The processes of one ``serve --brokers N``, and their client; ``other_pids`` are nameserver and supervisor (none of one broker)."""

    brokers: int
    client: ClientProcess
    broker_pids: list[int]
    other_pids: list[int]
    store: Path

    def measure(self, op: str, topic: str, messages: int) -> dict[str, float]:
        """Carry out a command of the client for ``messages``, and return microseconds of processor time a message, by part."""
        before = self._servers()
        client = self.client.call(op, topic=topic, count=messages, mixed=False)
        after = self._servers()
        seconds = (sum(client), *(end - begin for begin, end in zip(before, after, strict=True)))
        return {part: one / messages * 1e6 for part, one in zip(PARTS, seconds, strict=True)}

    def _servers(self) -> tuple[float, float, float]:
        brokers = [cpu_of(pid) for pid in self.broker_pids]
        return sum(user for user, _ in brokers), sum(kernel for _, kernel in brokers), sum(sum(cpu_of(pid)) for pid in self.other_pids)

    def drop_page_cache(self) -> None:
        """Have the system write out and forget the commit logs, as far as they are not mapped."""
        give_back(self.store.glob("**/commitlog/*"))


def children_of(pid: int) -> dict[int, list[str]]:
    """Return the words of the command line of each child of a process."""
    pids = [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text(encoding="ascii").split()]
    return {one: Path(f"/proc/{one}/cmdline").read_text(encoding="utf-8").split("\0") for one in pids}


@contextlib.contextmanager
def running(brokers: int, store: Path) -> Iterator[Cluster]:
    """Run ``serve --brokers N`` and a client. One broker runs in one process with its nameserver, as users have it."""
    options = ["--brokers", str(brokers), "--namesrv-port", "0", "--port", "0", "--store", str(store)]
    command = [sys.executable, "-m", "sprocketmq", "serve", *options, "--set=os_page_cache_busy_timeout_ms=60000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(READY_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready.startswith("ready "):
            raise RuntimeError(f"`sprocketmq serve --brokers {brokers}` ended with {process.wait(10)} before it was ready")
        watchdog.cancel()
        namesrv = dict(part.split("=", 1) for part in ready.split()[1:])["namesrv"]
        children = children_of(process.pid)
        pids = [pid for pid, words in children.items() if "broker" in words] or [process.pid]
        if len(pids) != brokers:
            raise RuntimeError(f"{brokers} brokers were asked for, and {len(pids)} processes of brokers run")
        others = [pid for pid in (process.pid, *children) if pid not in pids]
        with contextlib.closing(ClientProcess(namesrv, environment, ())) as client:
            yield Cluster(brokers, client, pids, others, store)
    finally:
        watchdog.cancel()
        process.terminate()
        stop(process)


Figures = dict[str, dict[int, list[dict[str, float]]]]


def one_round(numbers: Sequence[int], options: argparse.Namespace, directory: Path, done: Figures) -> None:
    """Measure sending and consuming with each number of brokers, all running at the same time; adds to ``done`` by figure and number."""
    with contextlib.ExitStack() as stack:
        clusters = []
        for number in numbers:
            store = directory / f"brokers-{number}"
            stack.callback(shutil.rmtree, store, ignore_errors=True)
            clusters.append(stack.enter_context(running(number, store)))
        for kind, attributes in TOPICS.items():
            topic = f"orders-{kind}"
            for cluster in clusters:
                queues = -(-options.queues // cluster.brokers)
                cluster.client.call("create", topic=topic, queues=queues, attributes=attributes, mixed=False)
                warm = options.warm * cluster.brokers
                for op in ("submit", "consume"):
                    cluster.measure(op, topic, warm)
                cluster.drop_page_cache()
                done.setdefault(f"send {kind}", {}).setdefault(cluster.brokers, []).append(
                    cluster.measure("submit", topic, options.messages)
                )
                read = cluster.measure("consume", topic, warm + options.messages)
                done.setdefault(f"consume {kind}", {}).setdefault(cluster.brokers, []).append(read)
                cluster.drop_page_cache()


def summary(figures: list[dict[str, float]]) -> dict[str, Any]:
    """Return the spread of each part and of their sum."""
    return {**{part: spread(one[part] for one in figures) for part in PARTS}, "total": spread(sum(one.values()) for one in figures)}


def main() -> int:
    """Run all rounds and return the exit code: 1 when the goal is missed, 2 when there is too little room for the stores."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.load.brokers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=5, help="rounds of each figure (5)")
    p.add_argument("--messages", type=int, default=500_000, help="messages of a figure (500,000)")
    p.add_argument(
        "--warm", type=int, default=20_000, help="messages for each broker that are sent and consumed first and do not count (20,000)"
    )
    p.add_argument("--queues", type=int, default=QUEUES, help=f"queues of the topic on all brokers ({QUEUES})")
    p.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    p.add_argument("--dry", action="store_true", help="print the figures only: write no JSON")
    options = p.parse_args()
    done: Figures = {}
    with tempfile.TemporaryDirectory(prefix="sprocketmq-load-", dir=options.directory, ignore_cleanup_errors=True) as temporary:
        if (free := shutil.disk_usage(temporary).free) < DISK_BYTES:
            print(f"{temporary} has {free >> 30} GiB free; the stores of this run may need {DISK_BYTES >> 30} GiB", file=sys.stderr)
            return 2
        for number in range(options.rounds + 1):
            kept: Figures = {} if number == 0 else done  # the first round touches memory that this machine has not used yet
            one_round(NUMBERS if number % 2 else NUMBERS[::-1], options, Path(temporary), kept)
            if number:
                line = {name: "/".join(f"{sum(sides[n][-1].values()):.2f}" for n in NUMBERS) for name, sides in done.items()}
                print(f"round {number}  " + "   ".join(f"{name} {values}" for name, values in line.items()), flush=True)
    result = {name: {str(n): summary(sides[n]) for n in NUMBERS} for name, sides in done.items()}
    verdicts: dict[str, dict[str, Any]] = {}
    print(f"\n{'us of processor time a message':32}{''.join(f'{part:>15}' for part in (*PARTS, 'total'))}")
    for name, sides in result.items():
        for n, parts in sides.items():
            row = f"{name:18} {n} brokers    " + "".join(f"{parts[part]['median']:15.3f}" for part in (*PARTS, "total"))
            if n != "1":
                one = verdicts.setdefault(name, {})[n] = verdict(
                    parts["total"]["median"] / sides["1"]["total"]["median"], GOAL, at_most=True
                )
                row += f"   {one['ratio']:.3f} of one broker's (goal {GOAL:.2f}): {'reached' if one['reached'] else 'MISSED'}"
            print(row)
    setting = {
        "rounds": options.rounds,
        "messages": options.messages,
        "queues": options.queues,
        "body_bytes": BODY_BYTES,
        "in_flight": IN_FLIGHT,
    }
    if not options.dry:
        write_result("load-brokers", {"setting": setting, "figures": result, "verdicts": verdicts})
    return 0 if all(one["reached"] for sides in verdicts.values() for one in sides.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
