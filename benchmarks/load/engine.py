"""The storage engine beside its limits, in one process on the machine's disk: ``python -m benchmarks.load.engine``.

Appends stand beside a bare loop of ``pwrite`` and CRC of the same bytes, SYNC_FLUSH beside a bare ``fdatasync`` for every message. Rounds of
the two sides alternate, who goes first alternates too, and the medians count. Both sides write files that grow, and the page cache of what
a round wrote is given back before the next one, so that both use memory that was used before. Appends and lookups are counted in processor
time of all threads, which on a machine with neighbours says more than the clock on the wall; its rates stand beside. SYNC_FLUSH is timed
by the clock. Exits 1 when a figure misses its goal.
"""

import argparse
import asyncio
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.load.group_commit import GroupCommit
from benchmarks.load.stores import give_back
from benchmarks.report import spread, write_result
from sprocketmq.protocol.batch import encode_batch, split_columns
from sprocketmq.protocol.hashing import full_crc32, tags_code
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.fs import RealFile, RealFileSystem
from sprocketmq.storage.store import MessageStore, ReadStatus, StoreConfig

HOST = pack_host("127.0.0.1", 10911)
QUEUES = 8
BODY_BYTES = 1024
IN_BATCH = 32
WRITERS = 64
TAG = "TagA"
PROPERTIES = b"UNIQ_KEY\x017F000001516DE40737036832F5A0%04X\x02WAIT\x01true\x02TAGS\x01TagA\x02"
SINGLE_PROPERTIES = PROPERTIES % 1
CODE = tags_code(TAG)
LOOKUP_BATCHES = 1_000_000

# name of a figure in the summary -> (sign, goal). A plain topic's batch is taken apart into a record a message, which no goal speaks of.
GOALS: dict[str, tuple[str, float]] = {
    "append_batch_queue_ratio": (">=", 0.6),
    "singles_per_s": (">=", 150_000),
    "sync_flush_ratio": (">=", 8.0),
    "lookup_us": ("<", 30.0),
}


class SlowFile(RealFile):
    """A file on a disk that needs longer for every sync."""

    delay_s = 0.0

    def fdatasync(self) -> None:
        super().fdatasync()
        if self.delay_s:
            time.sleep(self.delay_s)


class SlowDisk(RealFileSystem):
    """The machine's files, with that much added to every ``fdatasync``."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_s = delay_ms / 1000

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SlowFile:
        flags = os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        file = SlowFile(path, os.open(path, flags, 0o644))
        file.delay_s = self.delay_s
        return file


def open_store(root: Path, **settings: Any) -> MessageStore:
    """Return an open store with default settings but for those given."""
    store = MessageStore(StoreConfig(root, **settings))
    store.store_host = HOST
    store.open()
    return store


class Rate(NamedTuple):
    """What a round did in a second: by the clock on the wall, and by processor time of all threads."""

    wall: float
    processor: float


class Stopwatch:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def rate(self, units: int) -> Rate:
        """Return the rate of so many units since the start."""
        return Rate(units / (time.perf_counter() - self._wall), units / (time.process_time() - self._processor))


Side = Callable[[Path], Rate]


def alternate(rounds: int, directory: Path, ours: Side, bare: Side) -> tuple[list[Rate], list[Rate]]:
    """Run both sides in turn, each in a directory of its own that goes afterwards; return their rates. One round of each counts for nothing."""
    rates: dict[Side, list[Rate]] = {ours: [], bare: []}
    for number in range(rounds + 1):
        for side in (ours, bare) if number % 2 else (bare, ours):
            root = directory / f"round-{number}"
            root.mkdir()
            rate = side(root)
            if number:
                rates[side].append(rate)
            shutil.rmtree(root)
    return rates[ours], rates[bare]


# --- appends ---


def batch_body() -> bytes:
    """Return a batch of 32 messages of 1 KiB as a client encodes it."""
    body = os.urandom(BODY_BYTES)
    return encode_batch([(0, body, PROPERTIES % n) for n in range(IN_BATCH)])


def append_figures(directory: Path, rounds: int, batches: int, *, inner: bool) -> dict[str, Any]:
    """Append batches one commit each; beside it the same number of the same bytes with ``pwrite``, and a CRC for each CRC the records have."""
    data = batch_body()
    entries = split_columns(data)
    outer = SINGLE_PROPERTIES
    piece = b""

    def ours(root: Path) -> Rate:
        nonlocal piece
        store = open_store(root / "store")
        stage_batch, commit = store.stage_batch, store.commit
        if inner:
            store.declare_batch_topic("orders")
        watch = Stopwatch()
        if inner:
            stage = store.stage_inner_batch
            for i in range(batches):
                stage("orders", i % QUEUES, data, outer, count=IN_BATCH, tags_code=CODE, born_timestamp_ms=1, born_host=HOST)
                commit()
        else:
            for i in range(batches):
                stage_batch("orders", i % QUEUES, entries, sys_flag=0, born_timestamp_ms=1, born_host=HOST)
                commit()
        rate = watch.rate(batches)
        piece = bytes(store.commitlog_max_offset // batches)
        store.abandon()
        give_back((root / "store/commitlog").iterdir())
        return rate

    def bare(root: Path) -> Rate:
        written = piece or bytes(len(data) + (150 if inner else 100 * IN_BATCH))
        checked = [data] if inner else list(map(bytes, entries.bodies))
        file = os.open(root / "bare", os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, 1 << 30)
        pwrite, at, size = os.pwrite, 0, len(written)
        watch = Stopwatch()
        for _ in range(batches):
            for part in checked:
                full_crc32(part)
            pwrite(file, written, at)
            at += size
        rate = watch.rate(batches)
        os.close(file)
        give_back([root / "bare"])
        return rate

    mine, limit = alternate(rounds, directory, ours, bare)
    ratios = [a.processor / b.processor for a, b in zip(mine, limit, strict=True)]
    return {
        "bytes_a_batch": len(piece),
        "ours_us": spread((1e6 / rate.processor for rate in mine), 1),
        "bare_us": spread((1e6 / rate.processor for rate in limit), 1),
        "ours_batches_per_s": spread((rate.wall for rate in mine), 0),
        "bare_batches_per_s": spread((rate.wall for rate in limit), 0),
        "ratio": round(statistics.median(rate.processor for rate in mine) / statistics.median(rate.processor for rate in limit), 3),
        "ratio_per_round": [round(ratio, 3) for ratio in ratios],
        "ratio_by_the_clock": round(statistics.median(rate.wall for rate in mine) / statistics.median(rate.wall for rate in limit), 3),
    }


def single_figures(directory: Path, rounds: int, messages: int) -> dict[str, Any]:
    """Append single messages, with a commit each and with one for each 64, as many as one socket readiness brings a busy broker."""
    body = os.urandom(BODY_BYTES)

    def side(together: int) -> Side:
        def run(root: Path) -> Rate:
            store = open_store(root / "store")
            stage, commit = store.stage_message, store.commit
            watch = Stopwatch()
            for i in range(0, messages, together):
                for _ in range(together):
                    stage("orders", i % QUEUES, body, SINGLE_PROPERTIES, tags_code=CODE, born_timestamp_ms=1, born_host=HOST)
                commit()
            rate = watch.rate(-(-messages // together) * together)
            store.abandon()
            give_back((root / "store/commitlog").iterdir())
            return rate

        return run

    each, by_64 = alternate(rounds, directory, side(1), side(64))
    return {
        "commit_per_64_per_s": spread((rate.processor for rate in by_64), 0),
        "commit_each_per_s": spread((rate.processor for rate in each), 0),
        "commit_per_64_by_the_clock": spread((rate.wall for rate in by_64), 0),
        "commit_each_by_the_clock": spread((rate.wall for rate in each), 0),
    }


# --- SYNC_FLUSH ---


def sync_figures(directory: Path, rounds: int, seconds: float, delay_ms: float) -> dict[str, Any]:
    """Append with 64 tasks that each wait for the disk, beside a loop that writes one message and waits for the disk."""
    disk = SlowDisk(delay_ms)
    body = os.urandom(BODY_BYTES)
    together: list[float] = []

    async def writers(store: MessageStore) -> Rate:
        commits = GroupCommit(store)
        commits.start()
        done = 0
        end = time.perf_counter() + seconds

        async def writer(queue: int) -> None:
            nonlocal done
            while time.perf_counter() < end:
                await commits.append("orders", queue, body, SINGLE_PROPERTIES, tags_code=CODE, born_timestamp_ms=1, born_host=HOST)
                done += 1

        watch = Stopwatch()
        await asyncio.gather(*(writer(number % QUEUES) for number in range(WRITERS)))
        rate = watch.rate(done)
        await commits.stop()
        together.append(done / max(commits.flushes, 1))
        return rate

    def ours(root: Path) -> Rate:
        store = MessageStore(StoreConfig(root / "store", flush_disk_type="SYNC_FLUSH"), fs=disk)
        store.store_host = HOST
        store.open()
        rate = asyncio.run(writers(store))
        store.close()
        return rate

    def bare(root: Path) -> Rate:
        file = disk.open(str(root / "bare"), create=True)
        file.truncate(1 << 30)
        file.fallocate(0, 16 << 20)
        piece = bytes(91 + len("orders") + len(body) + len(SINGLE_PROPERTIES))
        done = 0
        watch = Stopwatch()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            file.pwrite(piece, done * len(piece))
            file.fdatasync()
            done += 1
        rate = watch.rate(done)
        file.close()
        return rate

    mine, limit = alternate(rounds, directory, ours, bare)
    return {
        "added_ms": delay_ms,
        "ours_messages_per_s": spread((rate.wall for rate in mine), 0),
        "bare_messages_per_s": spread((rate.wall for rate in limit), 0),
        "messages_a_flush": spread(together, 1),
        "ratio": round(statistics.median(rate.wall for rate in mine) / statistics.median(rate.wall for rate in limit), 2),
        "ratio_per_round": [round(a.wall / b.wall, 2) for a, b in zip(mine, limit, strict=True)],
    }


# --- finding a batch ---


def lookup_figures(directory: Path, rounds: int, batches: int) -> dict[str, Any]:
    """Read one batch at random offsets of one batch queue, most of them inside a batch, and look up the offset of a time."""
    store = open_store(directory / "lookup")
    store.declare_batch_topic("orders")
    chooser = random.Random(1)
    item = encode_batch([(0, b"x", b"")])
    began = time.perf_counter()
    for number in range(batches):
        count = 1 + number % 20
        store.stage_inner_batch("orders", 0, item * count, b"", count=count, tags_code=0, born_timestamp_ms=1, born_host=HOST)
        if number % 100 == 99:
            store.commit()
    store.commit()
    built_s = time.perf_counter() - began
    store.flush(thorough=True)
    end = store.max_offset("orders", 0)
    reads: list[Rate] = []
    by_times: list[Rate] = []
    for number in range(rounds + 1):
        offsets = [chooser.randrange(end) for _ in range(20_000)]
        read = store.read
        watch = Stopwatch()
        found = [read("orders", 0, offset, max_count=1) for offset in offsets]
        reads.append(watch.rate(len(offsets)))
        if not all(
            r.status is ReadStatus.FOUND and r.next_offset - r.count <= o < r.next_offset for r, o in zip(found, offsets, strict=True)
        ):
            raise RuntimeError("a read did not find the batch that covers its offset")
        del found
        by_time = store.offset_by_time
        moment = store.store_time("orders", 0, end // 2)
        watch = Stopwatch()
        for _ in range(2000):
            by_time("orders", 0, moment)
        by_times.append(watch.rate(2000))
        if not number:
            reads, by_times = [], []
    store.abandon()
    shutil.rmtree(directory / "lookup")
    return {
        "batches": batches,
        "messages": end,
        "build_s": round(built_s, 1),
        "read_us": spread((1e6 / rate.processor for rate in reads), 2),
        "read_us_by_the_clock": spread((1e6 / rate.wall for rate in reads), 2),
        "by_time_us": spread((1e6 / rate.processor for rate in by_times), 2),
    }


def reached(value: float, sign: str, goal: float) -> bool:
    """Return whether a figure is on the right side of its goal."""
    return value >= goal if sign == ">=" else value < goal


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.engine", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="rounds a side (default 5)")
    parser.add_argument("--batches", type=int, default=6000, help="batches a round of appends (default 6000)")
    parser.add_argument("--messages", type=int, default=150_000, help="messages a round of single appends (default 150,000)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a SYNC_FLUSH round (default 1)")
    parser.add_argument("--lookup-batches", type=int, default=LOOKUP_BATCHES, help="batches of the queue to look up in (default 1,000,000)")
    parser.add_argument(
        "--only", choices=("append", "single", "sync", "lookup"), action="append", help="measure only this; may be repeated"
    )
    parser.add_argument("--directory", type=Path, default=None, help="where the stores go (default: the system's temporary directory)")
    options = parser.parse_args()
    only = options.only or ["append", "single", "sync", "lookup"]
    directory = Path(tempfile.mkdtemp(prefix="sprocketmq-engine-", dir=options.directory))
    details: dict[str, Any] = {}
    summary: dict[str, float] = {}
    try:
        if "append" in only:
            for name, inner in (("append_batch_queue", True), ("append_plain", False)):
                details[name] = append_figures(directory, options.rounds, options.batches, inner=inner)
                summary[f"{name}_ratio"] = details[name]["ratio"]
        if "single" in only:
            details["singles"] = single_figures(directory, options.rounds, options.messages)
            summary["singles_per_s"] = details["singles"]["commit_per_64_per_s"]["median"]
        if "sync" in only:
            for delay_ms in (0.0, 1.0, 5.0):
                details[f"sync_flush_{delay_ms:.0f}_ms"] = sync_figures(directory, options.rounds, options.seconds, delay_ms)
            summary["sync_flush_ratio"] = details["sync_flush_0_ms"]["ratio"]
        if "lookup" in only:
            details["lookup"] = lookup_figures(directory, options.rounds, options.lookup_batches)
            summary["lookup_us"] = details["lookup"]["read_us"]["median"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    missed = [name for name, (sign, goal) in GOALS.items() if name in summary and not reached(summary[name], sign, goal)]
    for name, figures in details.items():
        print(name)
        for what, value in figures.items():
            shown = f"{value['median']:,} ({value['min']:,} to {value['max']:,})" if isinstance(value, dict) else value
            print(f"    {what:24} {shown}")
    for name, value in summary.items():
        sign, goal = GOALS.get(name, ("", None))
        verdict = f"   goal {sign} {goal:,}{'   MISSED' if name in missed else ''}" if goal is not None else ""
        print(f"{name:28} {value:>12,}{verdict}")
    if not options.only:
        goals = {name: f"{sign} {goal}" for name, (sign, goal) in GOALS.items()}
        path = write_result("load-engine", {"goals": goals, "missed": missed, "summary": summary, **details})
        print(f"written to {path}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
