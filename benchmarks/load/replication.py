"""Measure what replication costs: our master and slave against our broker alone, and against Apache's master and slave.

1 KiB bodies, 8 batch queues, AutoBatch with its defaults, ASYNC_FLUSH; every broker is a process of its own on this machine. For each mode
(ASYNC_MASTER; SYNC_MASTER, where a send waits for the slave on both sides):

auto-batchcq  submitted messages through AutoBatch, 10,000 in flight, the producer's default
sync-64       awaited sends of single messages, 64 in flight (SYNC_MASTER only)
open-half     single messages at half the rate that the slower side reached in sync-64 (SYNC_MASTER only): the p99 of their latency. It counts
              longer: when the machine stands still for 40 ms, 1 % of what is sent in 2 s waits, whichever side it is

While auto-batchcq runs, our slave is asked ten times a second how far queues and key index are behind its log.

Goals: messages per CPU second of an asynchronous master 0.85 of an unreplicated broker's; rate of a synchronous one 0.6 of an unreplicated
broker's; both 1.3 of Apache's rate; p99 no worse than Apache's; queues and index of our slave at most 1,000 ms behind its log. A ratio is
the median of those of the rounds, as what a message costs depends on what else the machine does. After each mode every log of the slave is
compared with its master's. The result is written after each round. Exits 1 when a goal is missed or a log differs, 2 when the machine
cannot run the comparison.

The logs need memory for their pages, and in a virtual machine memory that the host has to provide first costs several times as much: as much
is touched before each figure and freed while it is taken, twice as much where a slave has a log, too. ``loopback_us_per_kib`` is what sending
alone costs, without any broker; ``limit`` is the ratio of an asynchronous master for which a slave costs that and nothing else.
"""

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.interop import apache

from benchmarks.load import rounds
from benchmarks.load.memory import provided_memory
from benchmarks.load.rounds import (
    BODY_BYTES,
    QUEUES,
    Figures,
    Workload,
    one_round,
    report_verdicts,
    require_apache,
    store_directory,
    turns,
    verdict,
    wait_until_quiet,
)
from benchmarks.load.sides import READY_TIMEOUT_S, OurClient, Side, Topic, create_topic
from benchmarks.load.stores import give_back
from benchmarks.processor import cpu_s
from benchmarks.report import spread, write_result
from sprocketmq import sync

TOPIC = Topic("LoadTest", QUEUES, batch_queues=True)
AUTO = replace(rounds.AUTO, arguments=rounds.AUTO.arguments | {"in_flight": 10_000})
SINGLE = Workload("sync-64", "load_single", None, {"senders": 64})
HALF = "open-half"
ALONE, OURS, THEIRS = "alone", "ours", "theirs"
MODES = ("ASYNC_MASTER", "SYNC_MASTER")
DISK_BYTES = 48 << 30
CATCH_UP_S = 60.0
# How far queues and key index of a slave may be behind its log, and how often it is asked.
BEHIND_GOAL_MS = 1000.0
BEHIND_EVERY_S = 0.1
LOOPBACK_BYTES = 512 << 20
# Two masters and two slaves of Apache's run one after the other, but beside our processes: half the heap of the other comparisons.
SLAVE_HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")


@dataclass(frozen=True)
class Pair(Side):
    """A side whose master and slave are known; ``slave`` is the slave's store, None for a broker alone.

    ``behind`` asks our slave for how many bytes and milliseconds queues and index are behind its log.
    """

    master_pid: int = 0
    slave_pid: int | None = None
    slave: Path | None = None
    behind: Callable[[], tuple[int, int]] | None = None

    def drop_page_cache(self) -> None:
        """Have the system write out and forget both logs."""
        super().drop_page_cache()
        if self.slave is not None:
            give_back((self.slave / "commitlog").iterdir())


class Process:
    """A ``sprocketmq`` command that prints one ready line."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "sprocketmq", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        assert self.process.stdout is not None
        watchdog = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if line.startswith("ready "):
                    self.facts = dict(part.split("=", 1) for part in line.split()[1:])
                    return
        finally:
            watchdog.cancel()
        raise RuntimeError(f"`sprocketmq {arguments[0]}` ended with {self.process.wait(10)} before it was ready")

    def stop(self) -> None:
        """End the process and wait for it."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def ours(directory: Path, mode: str | None) -> Iterator[Pair]:
    """Run our nameserver, master and slave (``mode`` None: a master without a slave) with our client."""
    name = ALONE if mode is None else OURS
    with contextlib.ExitStack() as running:

        def start(*arguments: str) -> Process:
            process = Process(*arguments)
            running.callback(process.stop)
            return process

        namesrv = start("namesrv", "--port", "0", "--store", str(directory / "namesrv"))
        at = ("--namesrv", namesrv.facts["namesrv"], "--port", "0")
        role = () if mode is None else ("--role", mode, "--ha-port", "0")
        master = start("broker", *at, "--store", str(directory / "master"), *role)
        pids = [namesrv.pid, master.pid]
        slave_pid = behind = None
        if mode is not None:
            slave = start("broker", *at, "--store", str(directory / "slave"), "--role", "SLAVE", "--broker-id", "1")
            slave_pid = slave.pid
            pids.append(slave_pid)
            admin = running.enter_context(sync.AdminClient(namesrv=namesrv.facts["namesrv"]))
            behind = partial(dispatch_lag, admin, slave.facts["broker"])
        client = OurClient(namesrv.facts["namesrv"])
        running.callback(client.stop)
        pids.append(client.process.pid)
        copy = None if mode is None else directory / "slave"
        yield Pair(name, namesrv.facts["namesrv"], client, tuple(pids), directory / "master", master.pid, slave_pid, copy, behind)


@contextlib.contextmanager
def theirs(directory: Path, mode: str) -> Iterator[Pair]:
    """Run Apache's nameserver, master and slave with its Java client; in SYNC_MASTER it waits for one slave (``inSyncReplicas`` 2)."""
    with contextlib.ExitStack() as running:
        namesrv = apache.ApacheNamesrv(directory / "namesrv")
        running.callback(namesrv.kill)
        settings = {"brokerRole": mode, "inSyncReplicas": "2"}
        master = apache.ApacheBroker(directory / "master", namesrv.address, settings=settings, flags=apache.MEASURED_BROKER, unhurried={})
        running.callback(master.kill)
        follower = {"brokerRole": "SLAVE", "brokerId": "1"}
        slave = apache.ApacheBroker(directory / "slave", namesrv.address, settings=follower, flags=SLAVE_HEAP, unhurried={})
        running.callback(slave.kill)
        client = running.enter_context(apache.JavaClient(directory / "client", flags=apache.MEASURED_CLIENT))
        pids = (namesrv.process.pid, master.process.pid, slave.process.pid, client.process.pid)
        yield Pair(THEIRS, namesrv.address, client, pids, master.store, master.process.pid, slave.process.pid, slave.store)


def dispatch_lag(admin: sync.AdminClient, broker: str) -> tuple[int, int]:
    """Return for how many bytes and milliseconds queues and key index of a broker are behind its log."""
    runtime = admin.broker_runtime(broker)
    return int(runtime["dispatchBehindBytes"]), int(runtime["dispatchBehindMs"])


@contextlib.contextmanager
def watched(behind: Callable[[], tuple[int, int]] | None) -> Iterator[Figures]:
    """Ask all the while how far a slave is behind its log; what is yielded has the largest figures at the end, nothing without a slave."""
    found: Figures = {}
    if behind is None:
        yield found
        return
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(BEHIND_EVERY_S):
            for name, value in zip(("behind_bytes", "behind_ms"), behind(), strict=True):
                found[name] = max(found.get(name, 0), value)
            found["behind_samples"] = found.get("behind_samples", 0) + 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()


def write_out(sides: Sequence[Pair], settle_s: float) -> None:
    """Have the system write out and forget all logs, and wait until the machine is quiet."""
    for side in sides:
        side.drop_page_cache()
    wait_until_quiet(settle_s)


def measured(side: Pair, sides: Sequence[Pair], workload: Workload, options: argparse.Namespace) -> Figures:
    """Run one workload on one side when the machine is quiet; adds the CPU time a message of master and slave to the figures."""
    seconds = options.half_seconds if workload.name == HALF else options.seconds
    pids = {"master": side.master_pid} | ({} if side.slave_pid is None else {"slave": side.slave_pid})
    taken: list[dict[str, float]] = []
    stop = threading.Event()

    def sample() -> None:
        for pause_s in (options.warm, seconds):
            stop.wait(pause_s)  # the client may be done a little earlier
            taken.append({name: cpu_s(pid) for name, pid in pids.items()})

    write_out(sides, options.settle)
    sampler = threading.Thread(target=sample)
    with provided_memory(workload.op, options.warm + seconds, logs=len(pids)):
        sampler.start()
        try:
            with watched(side.behind if workload is AUTO else None) as behind:
                figures = one_round(side, sides, workload, options.warm, seconds)
        finally:
            stop.set()
            sampler.join()
    figures.update(behind)
    for name in pids:
        figures[f"{name}_cpu_us"] = (taken[1][name] - taken[0][name]) / figures["messages"] * 1e6
    return figures


def loopback_us_per_kib() -> float:
    """Return the CPU time that sending a KiB to a process of this machine takes; without a broker."""
    program = (
        "import socket, sys\nbuffer = bytearray(4 << 20)\n"
        "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as sock:\n    while sock.recv_into(buffer):\n        pass"
    )
    data = memoryview(os.urandom(16 << 20))
    piece = 256 << 10
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = subprocess.Popen([sys.executable, "-c", program, str(server.getsockname()[1])])
        sock, _ = server.accept()
        with sock:
            began = time.thread_time()
            for begin in range(0, LOOPBACK_BYTES, piece):
                sock.sendall(data[begin % len(data) :][:piece])
            took = time.thread_time() - began
        receiver.wait(30)
    return took / (LOOPBACK_BYTES >> 10) * 1e6


def summary(done: dict[str, list[Figures]]) -> Figures:
    """Return medians and spreads of each side."""
    found: Figures = {}
    for name, figures in done.items():
        if figures:
            found[name] = {
                "errors": sum(one["errors"] for one in figures),
                "messages_per_s": spread((one["messages_per_s"] for one in figures), 0),
                **{
                    key: spread(one[key] for one in figures if key in one)
                    for key in ("p50_ms", "p99_ms", "master_cpu_us", "slave_cpu_us", "foreign_cpu")
                    if key in figures[0]
                },
                **{key: max(one[key] for one in figures) for key in ("behind_bytes", "behind_ms") if key in figures[0]},
            }
    return found


def ratio(done: dict[str, list[Figures]], side: str, other: str, key: str) -> float:
    """Return the median over the rounds of one side's figure divided by the other's."""
    rounds = zip(done[side], done[other], strict=False)
    return float(statistics.median(one[key] / another[key] for one, another in rounds))


def verdicts(mode: str, done: dict[str, dict[str, list[Figures]]], loopback_us: float) -> dict[str, Figures]:
    """Return the ratios of a mode with their goals."""
    auto, half = done["auto-batchcq"], done.get(HALF, {})
    found = {}
    if ALONE in auto and OURS in auto:
        if mode == "ASYNC_MASTER":
            limit = statistics.median(one["master_cpu_us"] / (one["master_cpu_us"] + loopback_us) for one in auto[ALONE])
            found["per CPU second of the master / alone"] = {
                **verdict(ratio(auto, ALONE, OURS, "master_cpu_us"), 0.85),
                "limit": round(limit, 3),
            }
        else:
            found["rate / alone"] = verdict(ratio(auto, OURS, ALONE, "messages_per_s"), 0.6)
    if OURS in auto and THEIRS in auto:
        found["rate / Apache"] = verdict(ratio(auto, OURS, THEIRS, "messages_per_s"), 1.3)
    if OURS in auto:
        found["slave behind its log, ms"] = verdict(max(one["behind_ms"] for one in auto[OURS]), BEHIND_GOAL_MS, at_most=True)
    if OURS in half and THEIRS in half:
        found["p99 / Apache"] = verdict(ratio(half, OURS, THEIRS, "p99_ms"), 1.0, at_most=True)
    return found


def logs_equal(pair: Pair) -> bool:
    """Wait until the slave has the master's log and return whether their bytes are equal, segment by segment."""
    assert pair.slave is not None
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        segments = sorted((pair.store / "commitlog").iterdir())
        unequal = [s.name for s in segments if s.name.isdigit() and not same_bytes(s, pair.slave / "commitlog" / s.name)]
        if not unequal or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if unequal:
        print(f"{pair.name}: the slave's log differs from its master's in {', '.join(unequal)}", flush=True)
    return not unequal


def same_bytes(one: Path, other: Path) -> bool:
    """Return whether two files begin with the same bytes as far as the shorter goes, with nothing but zeros behind."""
    if not other.exists():
        return not any_data(one)
    with one.open("rb") as first, other.open("rb") as second:
        while True:
            a, b = first.read(1 << 20), second.read(1 << 20)
            if a != b and a.rstrip(b"\0") != b.rstrip(b"\0"):
                return False
            if not a and not b:
                return True


def any_data(path: Path) -> bool:
    """Return whether a file has a byte other than zero: a segment may be made ahead of its first record."""
    with path.open("rb") as file:
        return any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(1 << 20), b""))


def measure(mode: str, options: argparse.Namespace, directory: Path, loopback_us: float, save: Callable[[Figures], None]) -> Figures:
    """Run all rounds of a mode; return its figures with verdicts, and whether the slaves' logs equal their masters'.

    ``loopback_us`` is what sending a KiB costs; ``save`` gets the figures so far after each round.
    """
    with contextlib.ExitStack() as running:
        sides = [running.enter_context(ours(directory / ALONE, None)), running.enter_context(ours(directory / OURS, mode))]
        if not options.only_ours:
            sides.append(running.enter_context(theirs(directory / THEIRS, mode)))
        for side in sides:
            create_topic(side, TOPIC)
        workloads = [AUTO, SINGLE] if mode == "SYNC_MASTER" else [AUTO]
        for workload in workloads:
            for side in sides:
                warm_s = options.first_warm if side.name == THEIRS else min(rounds.OUR_FIRST_WARM_S, options.first_warm)
                write_out(sides, options.settle)  # else the disk would still be busy with the side before
                one_round(side, sides, workload, warm_s, 1.0)
        done: dict[str, dict[str, list[Figures]]] = {}

        def turn(number: int, workload: Workload) -> None:
            concerned = [side for side in sides if workload is AUTO or side.name != ALONE]
            for _, side in turns(number, [workload], concerned):
                figures = measured(side, sides, workload, options)
                done.setdefault(workload.name, {}).setdefault(side.name, []).append(figures)
                cpu = "".join(
                    f"   {name} {figures[f'{name}_cpu_us']:.2f} us CPU" for name in ("master", "slave") if f"{name}_cpu_us" in figures
                )
                late = f"   slave behind {figures['behind_ms']:,} ms" if "behind_ms" in figures else ""
                print(f"{mode}  round {number + 1}  {rounds.line(workload, side, figures)}{cpu}{late}", flush=True)

        def so_far() -> Figures:
            return {**{name: summary(figures) for name, figures in done.items()}, "verdicts": verdicts(mode, done, loopback_us)}

        for number in range(options.rounds):
            for workload in workloads:
                turn(number, workload)
            save(so_far())
        if mode == "SYNC_MASTER":
            slower = min(statistics.median(one["messages_per_s"] for one in figures) for figures in done["sync-64"].values())
            half = Workload(HALF, "load_open", None, {"rate": slower / 2, "senders": 64})
            for number in range(options.rounds):
                turn(number, half)
                save(so_far())
        return {**so_far(), "logs_equal": all(logs_equal(side) for side in sides if side.slave is not None)}


def main() -> int:
    """Run the comparison and return the exit code."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.load.replication", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=3, help="rounds of each side and workload (3)")
    p.add_argument("--warm", type=float, default=1.0, help="seconds of load before counting (1)")
    p.add_argument("--first-warm", type=float, default=12.0, help="seconds of each load on Apache's side before the first round (12)")
    p.add_argument("--seconds", type=float, default=2.0, help="seconds counted (2)")
    p.add_argument("--half-seconds", type=float, default=8.0, help="seconds counted of open-half (8)")
    p.add_argument("--settle", type=float, default=3.0, help="seconds to wait at most for other load to end, before each figure (3)")
    p.add_argument("--mode", choices=MODES, help="only this mode")
    p.add_argument("--only-ours", action="store_true", help="without Apache's side; no ratios to it then")
    p.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    options = p.parse_args()
    require_apache(not options.only_ours)
    loopback_us = loopback_us_per_kib()
    setting: dict[str, Any] = {
        "rounds": options.rounds,
        "measure_s": options.seconds,
        "body_bytes": BODY_BYTES,
        "queues": QUEUES,
        "flush": "ASYNC_FLUSH",
        "apache_version": None if options.only_ours else apache.VERSION,
        "apache_in_sync_replicas": 2,
        "loopback_us_per_kib": round(loopback_us, 3),
    }
    reached = True
    modes: Figures = {}

    def save(mode: str, figures: Figures) -> None:
        modes[mode] = figures
        write_result("load-replication" + ("-ours" if options.only_ours else ""), {"setting": setting, "modes": modes})

    for mode in MODES if options.mode is None else (options.mode,):
        with store_directory(options.directory, DISK_BYTES) as directory:
            save(mode, measure(mode, options, directory, loopback_us, partial(save, mode)))
        reached &= report_verdicts(modes[mode]["verdicts"], f"{mode} ") and modes[mode]["logs_equal"]
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
