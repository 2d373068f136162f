"""What 10,000 queues cost beside 8, and what a growing backlog costs: ``python -m benchmarks.load.scale``.

Two processes with a store each, one with 8 queues and one with 100 topics of 100, append batches of 32 KiB (32 messages of 1 KiB), going
round their queues, and flush as a broker does: the log twice a second, everything once a round. Their rounds alternate and the median of
their rates counts; the other process waits meanwhile. Memory and open files are those of the process after its rounds, and of a broker with
as many queues; a restart is a new process's ``open``, after a clean stop and after one that was no stop at all. Exits 1 when a figure misses
its goal.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.load.sides import serve
from benchmarks.report import spread, write_result
from sprocketmq import AdminClient, Message, Producer
from sprocketmq.protocol.batch import BatchEntry, encode_batch, split_batch
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.store import MessageStore, ReadStatus, StoreConfig

FEW = 8
MANY_TOPICS = 100
QUEUES_EACH = 100
IN_BATCH = 32
HOST = pack_host("127.0.0.1", 10911)
FLUSH_INTERVAL_S = 0.5

GOALS = {
    "append_ratio": (">=", 0.6),
    "rss_mb": ("<", 500.0),
    "open_files": ("<", 1024),
    "broker_rss_mb": ("<", 500.0),
    "broker_open_files": ("<", 1024),
    "restart_clean_s": ("<", 5.0),
    "restart_unclean_s": ("<", 5.0),
    # What it costs with the longest backlog, over what it costs with the shortest: noise allowed for, growth not.
    "append_growth": ("<", 1.5),
    "read_growth": ("<", 1.5),
    "time_lookup_growth": ("<", 2.0),
}


def batch_entries(body_bytes: int = 1024) -> list[BatchEntry]:
    """Return the messages of one batch as they come from a client: a unique key each, one tag."""
    body = os.urandom(body_bytes)
    keys = (f"UNIQ_KEY\x017F000001516DE40737036832F5A0{n:04X}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode() for n in range(IN_BATCH))
    return split_batch(encode_batch([(0, body, key) for key in keys]))


def queue_names(count: int) -> list[tuple[str, int]]:
    """Return that many queues, neighbours in different topics."""
    if count <= QUEUES_EACH:
        return [("scale", queue) for queue in range(count)]
    return [(f"scale-{topic:03d}", queue) for queue in range(QUEUES_EACH) for topic in range(count // QUEUES_EACH)]


def process_facts(process: int | str = "self") -> dict[str, float]:
    """Return resident memory in MB (all of it, and without mapped files) and the number of open files."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith(("VmRSS", "RssAnon"))}
    return {
        "rss_mb": kilobytes["VmRSS"] / 1000,
        "rss_anonymous_mb": kilobytes["RssAnon"] / 1000,
        "open_files": len(os.listdir(f"/proc/{process}/fd")),
    }


class Worker:
    """The process side: a store under load, told what to do line by line."""

    def __init__(self, root: Path, queues: int) -> None:
        self.queues = queue_names(queues)
        self.entries = batch_entries()
        self.store = MessageStore(StoreConfig(root))
        self.store.store_host = HOST
        self.next = 0

    def open(self) -> dict[str, Any]:
        began = time.perf_counter()
        report = self.store.open()
        return {"open_s": time.perf_counter() - began, "records": report.records, "clean": report.clean, "rebuilt": report.rebuilt}

    def append(self, batches: int) -> dict[str, Any]:
        """Append that many batches with a flushing thread beside; the rate counts the appends alone."""
        stop = threading.Event()
        flushed: list[float] = []

        def flush() -> None:
            thorough = True
            while True:
                began = time.perf_counter()
                self.store.flush(thorough=thorough)
                if thorough:
                    flushed.append(time.perf_counter() - began)
                thorough = False
                if stop.wait(FLUSH_INTERVAL_S):
                    return

        thread = threading.Thread(target=flush)
        thread.start()
        began = time.perf_counter()
        self._append(batches)
        elapsed = time.perf_counter() - began
        stop.set()
        thread.join()
        return {"batches_per_s": batches / elapsed, "thorough_flush_s": flushed[0]}

    def _append(self, batches: int) -> None:
        stage, commit, entries, queues, next_ = self.store.stage_batch, self.store.commit, self.entries, self.queues, self.next
        count = len(queues)
        for at in range(next_, next_ + batches):
            topic, queue_id = queues[at % count]
            stage(topic, queue_id, entries, sys_flag=0, born_timestamp_ms=1, born_host=HOST)
            commit()
        self.next = next_ + batches

    def backlog(self, batches: int, steps: int) -> dict[str, Any]:
        """Let the backlog grow in steps; return us per batch appended, per read of one message and per lookup by time after each."""
        store, chooser = self.store, random.Random(5)
        appended, reads, lookups, lengths = [], [], [], []
        for _ in range(steps):
            began = time.process_time()
            self._append(batches)
            appended.append((time.process_time() - began) / batches * 1e6)
            spots = []
            for _ in range(2000):
                topic, queue = chooser.choice(self.queues)
                low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
                spots.append((topic, queue, chooser.randrange(low, high)))
            times = [store.store_time(*spot) for spot in spots]
            reads.append(_fastest_us(lambda spots=spots: [store.read(*spot, max_count=1) for spot in spots], len(spots)))
            asked = [(spot[0], spot[1], at) for spot, at in zip(spots, times, strict=True)]
            lookups.append(_fastest_us(lambda asked=asked: [store.offset_by_time(*one) for one in asked], len(asked)))
            if not all(store.read(*spot, max_count=1).status is ReadStatus.FOUND for spot in spots):
                raise RuntimeError("a message that was appended is not found")
            lengths.append(self.next * IN_BATCH)
        return {"messages": lengths, "append_us": appended, "read_us": reads, "time_lookup_us": lookups}

    def run(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            op = command.pop("op")
            if op == "close":
                began = time.perf_counter()
                self.store.close()
                value: Any = {"close_s": time.perf_counter() - began}
            elif op == "facts":
                value = process_facts()
            elif op == "open":
                value = self.open()
            elif op == "append":
                value = self.append(**command)
            else:
                value = self.backlog(**command)
            print(json.dumps(value), flush=True)


def _fastest_us(action: Any, units: int) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        action()
        best = min(best, time.process_time() - began)
    return best / units * 1e6


class Child:
    """A worker's process as its parent sees it."""

    def __init__(self, root: Path, queues: int) -> None:
        command = [sys.executable, "-m", "benchmarks.load.scale", "--worker", str(root), str(queues)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Run one command and return its value."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self.process.wait(10)}")
        value: dict[str, Any] = json.loads(line)
        return value

    def end(self) -> None:
        """Kill the process: what is not on its way to the disk by then is the next start's to find."""
        self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def restart(root: Path, queues: int, *, clean: bool) -> dict[str, Any]:
    """Open the store in a new process and return what that took; then close it when ``clean``, else leave it as a killed broker does."""
    child = Child(root, queues)
    try:
        opened = child.call("open")
        opened |= {"after_open": child.call("facts")}
        if clean:
            opened |= child.call("close")
        else:
            child.call("append", batches=2 * queues if queues > FEW else 20_000)
    finally:
        child.end()
    return opened


async def fill_broker(namesrv: str, queues: list[tuple[str, int]]) -> None:
    """Create the topics at the only broker and send a batch to every queue, 32 batches at a time."""
    body = os.urandom(1024)
    async with AdminClient(namesrv=namesrv) as admin, Producer("scale", namesrv=namesrv) as producer:
        ((_, (broker,)),) = (await admin.cluster()).cluster_addr_table.items()
        for topic in sorted({topic for topic, _ in queues}):
            await admin.create_topic(topic, queues=QUEUES_EACH)
        for at in range(0, len(queues), 32):
            places = [MessageQueue(topic, broker, queue_id) for topic, queue_id in queues[at : at + 32]]
            batches = ([Message(place.topic, body, queue=place) for _ in range(8)] for place in places)
            await asyncio.gather(*(producer.send_batch(batch) for batch in batches))


def broker_facts(directory: Path, queues: int) -> dict[str, float]:
    """Return memory and open files of `sprocketmq serve` when every one of its queues has got a batch of 8 messages."""
    with serve(directory) as (namesrv, pid):
        asyncio.run(fill_broker(namesrv, queue_names(queues)))
        return process_facts(pid)


def measure(directory: Path, many: int, rounds: int, batches: int) -> dict[str, Any]:
    """Run everything and return the figures."""
    roots = {FEW: directory / "few", many: directory / "many"}
    children = {queues: Child(root, queues) for queues, root in roots.items()}
    rates: dict[int, list[float]] = {FEW: [], many: []}
    flushes: dict[int, list[float]] = {FEW: [], many: []}
    try:
        for queues, child in children.items():
            child.call("open")
            child.call("append", batches=max(queues, 4000))  # every queue is made before anything counts
        for number in range(rounds):
            for queues in (FEW, many) if number % 2 else (many, FEW):
                done = children[queues].call("append", batches=batches)
                rates[queues].append(done["batches_per_s"])
                flushes[queues].append(done["thorough_flush_s"])
        facts = children[many].call("facts")
        few_facts = children[FEW].call("facts")
        closed = children[many].call("close")
    finally:
        for child in children.values():
            child.end()
    shutil.rmtree(roots[FEW])
    after_clean = restart(roots[many], many, clean=False)
    after_kill = restart(roots[many], many, clean=True)
    if not after_clean["clean"] or after_kill["clean"]:
        raise RuntimeError(f"the restarts were not what they should be: {after_clean}, {after_kill}")
    shutil.rmtree(roots[many])
    grown = Child(directory / "grown", FEW)
    try:
        grown.call("open")
        grown.call("append", batches=2000)
        backlog = grown.call("backlog", batches=8000, steps=5)
    finally:
        grown.end()
    shutil.rmtree(directory / "grown")
    broker = broker_facts(directory / "broker", many)
    ratios = [high / low for high, low in zip(rates[many], rates[FEW], strict=True)]
    few, lots = spread(rates[FEW], 0), spread(rates[many], 0)
    return {
        "batches_per_s_with_8_queues": few,
        f"batches_per_s_with_{many}_queues": lots,
        "append_ratio": round(lots["median"] / few["median"], 3),
        "append_ratio_per_round": [round(ratio, 3) for ratio in ratios],
        "thorough_flush_s_with_8_queues": spread(flushes[FEW]),
        f"thorough_flush_s_with_{many}_queues": spread(flushes[many]),
        **{name: round(value, 1) for name, value in facts.items()},
        "rss_mb_with_8_queues": round(few_facts["rss_mb"], 1),
        "broker_rss_mb": round(broker["rss_mb"], 1),
        "broker_open_files": broker["open_files"],
        "close_s": round(closed["close_s"], 3),
        "restart_clean_s": round(after_clean["open_s"], 3),
        "restart_unclean_s": round(after_kill["open_s"], 3),
        "restart_unclean_records": after_kill["records"],
        "restart_unclean_rss_mb": round(after_kill["after_open"]["rss_mb"], 1),
        "restart_unclean_open_files": after_kill["after_open"]["open_files"],
        "backlog": {name: [round(value, 2) for value in values] for name, values in backlog.items()},
        "append_growth": round(min(backlog["append_us"][-2:]) / min(backlog["append_us"][:2]), 3),
        "read_growth": round(min(backlog["read_us"][-2:]) / min(backlog["read_us"][:2]), 3),
        "time_lookup_growth": round(min(backlog["time_lookup_us"][-2:]) / min(backlog["time_lookup_us"][:2]), 3),
    }


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load.scale", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=MANY_TOPICS * QUEUES_EACH, help="the many queues, a multiple of 100 (default 10,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds a side (default 5)")
    parser.add_argument("--batches", type=int, default=20_000, help="batches a round (default 20,000)")
    parser.add_argument("--directory", type=Path, default=None, help="where the stores go (default: the system's temporary directory)")
    parser.add_argument("--worker", nargs=2, metavar=("ROOT", "QUEUES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        Worker(Path(options.worker[0]), int(options.worker[1])).run()
        return 0
    directory = Path(tempfile.mkdtemp(prefix="sprocketmq-scale-", dir=options.directory))
    try:
        figures = measure(directory, options.queues, options.rounds, options.batches)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    missed = [name for name, (sign, goal) in GOALS.items() if not (figures[name] >= goal if sign == ">=" else figures[name] < goal)]
    for name, value in figures.items():
        shown = f"{value['median']} ({value['min']} to {value['max']})" if isinstance(value, dict) and "median" in value else str(value)
        goal_text = f"   (goal {GOALS[name][0]} {GOALS[name][1]}{', MISSED' if name in missed else ''})" if name in GOALS else ""
        print(f"{name:36s} {shown}{goal_text}")
    path = write_result(
        "load-scale", {"queues": options.queues, "goals": {n: f"{s} {g}" for n, (s, g) in GOALS.items()}, "missed": missed, **figures}
    )
    print(f"written to {path}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
