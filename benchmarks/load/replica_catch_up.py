"""Measure how fast a new slave gets a log that is there already, beside a bare copy of the same files through a loopback socket.

A master is filled with messages of 1 KiB in batches of 100 to 8 queues. In each round the log's files are copied through a TCP connection
on the loopback interface into files, by a sender process and this one; then a slave with an empty store follows the master until it has
the whole log, and until its queues and key index have all of it. Both write to the page cache. Exits 1 when the slave reaches neither 300
MB/s nor half the rate of the copy, or when queues or index are ever more than 1,000 ms behind the log that it has.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.load.replication import BEHIND_GOAL_MS, Process, same_bytes
from benchmarks.load.sides import OurClient
from benchmarks.load.stores import give_back
from benchmarks.report import spread, write_result
from sprocketmq import sync

BODY_BYTES = 1024
QUEUES = 8
GOAL_MB_S = 300.0
GOAL_OF_COPY = 0.5
LIMIT_S = 600.0
_CHUNK = 1 << 20

_SENDER = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as conn:
    for path in sys.argv[2:]:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            sent = 0
            while sent < size:
                sent += os.sendfile(conn.fileno(), file.fileno(), sent, size - sent)
"""


def bare_copy(files: list[Path], target: Path) -> float:
    """Copy files through a loopback connection into ``target`` and return the MB/s."""
    target.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sender = subprocess.Popen([sys.executable, "-c", _SENDER, str(port), *map(str, files)])
        conn, _ = server.accept()
        began = time.monotonic()
        buffer = memoryview(bytearray(_CHUNK))
        total = 0
        with conn, (target / "copy").open("wb", buffering=0) as out:
            while count := conn.recv_into(buffer):
                out.write(buffer[:count])
                total += count
        elapsed = time.monotonic() - began
        sender.wait(30)
    expected = sum(file.stat().st_size for file in files)
    if total != expected:
        raise RuntimeError(f"{total} bytes of {expected} arrived")
    return total / elapsed / 1e6


def catch_up(master: Process, namesrv: str, end: int, store: Path) -> tuple[float, float, float]:
    """Start an empty slave; return the MB/s of the log, those until queues and index have it too, and the longest dispatch lag seen (ms)."""
    slave = Process("broker", "--namesrv", namesrv, "--port", "0", "--store", str(store), "--role", "SLAVE", "--broker-id", "1")
    try:
        with sync.AdminClient(namesrv=namesrv) as admin:
            began = copied = 0.0
            behind_ms = 0
            deadline = time.monotonic() + LIMIT_S
            while True:
                runtime = admin.broker_runtime(slave.facts["broker"])
                now = time.monotonic()
                at = int(runtime["commitLogMaxOffset"])
                if at and not began:
                    began, first = now, at
                behind_ms = max(behind_ms, int(runtime["dispatchBehindMs"]))
                if at >= end and not copied:
                    copied = now
                if copied and not int(runtime["dispatchBehindBytes"]):
                    return (end - first) / (copied - began) / 1e6, (end - first) / (now - began) / 1e6, behind_ms
                if now > deadline:
                    raise RuntimeError(f"the slave has {at} of {end} bytes after {LIMIT_S:g} s")
                time.sleep(0.02)
    finally:
        slave.stop()


def main() -> int:
    """Run the rounds and return the exit code."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.load.replica_catch_up", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--gib", type=float, default=4.0, help="size of the log (4)")
    p.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    p.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    options = p.parse_args()
    needed = int(options.gib * (1 << 30) * 3.5)
    with tempfile.TemporaryDirectory(prefix="sprocketmq-load-", dir=options.directory, ignore_cleanup_errors=True) as temporary:
        if (free := shutil.disk_usage(temporary).free) < needed:
            print(f"{temporary} has {free >> 30} GiB free; this run needs {needed >> 30} GiB", file=sys.stderr)
            return 2
        return 0 if run(options, Path(temporary)) else 1


def run(options: argparse.Namespace, directory: Path) -> bool:
    """Fill a master, run all rounds, write the result, and return whether the goal was reached."""
    namesrv = Process("namesrv", "--port", "0", "--store", str(directory / "namesrv"))
    address = namesrv.facts["namesrv"]
    master = Process(
        "broker", "--namesrv", address, "--port", "0", "--store", str(directory / "master"), "--role", "ASYNC_MASTER", "--ha-port", "0"
    )
    client = OurClient(address)
    try:
        client.call("create_topic", topic="LoadTest", queues=QUEUES, attributes={})
        client.call("fill", topic="LoadTest", body_bytes=BODY_BYTES, batch=100, count=int(options.gib * (1 << 30) / 1200))
        with sync.AdminClient(namesrv=address) as admin:
            end = int(admin.broker_runtime(master.facts["broker"])["commitLogMaxOffset"])
        log = directory / "master" / "commitlog"
        files = sorted(file for file in log.iterdir() if file.name.isdigit() and int(file.name) < end)
        rates: dict[str, list[float]] = {"copy": [], "log": [], "with_queues_and_index": [], "dispatch_behind_ms": []}
        equal = True
        for number in range(options.rounds):
            rates["copy"].append(bare_copy(files, directory / "copy"))
            shutil.rmtree(directory / "copy")
            store = directory / f"slave-{number}"
            for name, value in zip(
                ("log", "with_queues_and_index", "dispatch_behind_ms"), catch_up(master, address, end, store), strict=True
            ):
                rates[name].append(value)
            equal = equal and all(same_bytes(file, store / "commitlog" / file.name) for file in files)
            give_back((store / "commitlog").iterdir())
            shutil.rmtree(store)
            print(f"round {number + 1}  " + "   ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items()), flush=True)
    finally:
        client.stop()
        master.stop()
        namesrv.stop()
    rate, copy = statistics.median(rates["log"]), statistics.median(rates["copy"])
    behind_ms = max(rates["dispatch_behind_ms"])
    reached = equal and behind_ms <= BEHIND_GOAL_MS and (rate >= GOAL_MB_S or rate >= GOAL_OF_COPY * copy)
    result = {
        "log_bytes": end,
        "body_bytes": BODY_BYTES,
        "queues": QUEUES,
        "cores": os.cpu_count(),
        "mb_per_s": {name: spread(values, 0) for name, values in rates.items() if name != "dispatch_behind_ms"},
        "dispatch_behind_ms": spread(rates["dispatch_behind_ms"], 0),
        "of_the_copy": round(rate / copy, 3),
        "goal": {"mb_per_s": GOAL_MB_S, "or_of_the_copy": GOAL_OF_COPY, "dispatch_behind_ms": BEHIND_GOAL_MS},
        "logs_equal": equal,
        "reached": reached,
    }
    write_result("load-replica-catch-up", result)
    outcome = "reached" if reached else "MISSED"
    print(f"{rate:,.0f} MB/s, {rate / copy:.2f} of the copy's {copy:,.0f} MB/s, at most {behind_ms:,.0f} ms behind: {outcome}")
    return reached


if __name__ == "__main__":
    sys.exit(main())
