"""Derive queues and key index of one store from its log: our rebuild with one process and with two, and Apache's broker recovering.

The store has 2,000,000 messages of 1 KiB in 8 queues, each with a unique key and a tag, in the page cache. The three take turns. Counted
is the time until the last record is in its queue and its keys are in the index, as far as the system has them:

* ours from the call to there, the start of the second process included, Python's start and imports left out (``imports_s``); syncing and
  putting the new files in their places comes on top (``complete_s``);
* Apache's from the moment its recovery makes the first queue file, which leaves out the JVM's start and the reading of configuration
  (``jvm_s``). Its store has the mark of a killed broker, no queues, no index, no checkpoint.

Exits 1 when ours with two processes is not at least 2 times as fast as Apache's, and 1.6 times as fast as with one.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from tests.interop import apache
from tests.ports import LOOPBACK

from benchmarks.load.stores import drop_derived
from benchmarks.report import spread, write_result
from sprocketmq.protocol.batch import BatchEntry
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.store import MessageStore, StoreConfig

GOAL_APACHE = 2.0
GOAL_WORKERS = 1.6
QUEUES = 8
BATCH = 32
BODY_BYTES = 1024
TOPIC = "rebuilding"
TIMEOUT_S = 300.0
_UNIT = Struct(">qi")
_INDEX_END = Struct(">24xq")

# Our side in a process of its own, as `sprocketmq rebuild` is.
OURS = """
import time
started = time.perf_counter()
import json, sys
from pathlib import Path
from sprocketmq.storage.bulk import parsing
from sprocketmq.storage.index import index_arrays, slot_count
from sprocketmq.storage.queues import queue_table
from sprocketmq.storage.bulk.rebuild import rebuild
begin = time.perf_counter()
dispatched = 0.0
def progress(done, total):
    global dispatched
    dispatched = time.perf_counter()
report = rebuild(Path(sys.argv[1]), workers=int(sys.argv[2]), progress=progress)
end = time.perf_counter()
print(json.dumps({"records": report.records, "entries": report.index_entries, "imports_s": begin - started, "dispatched_s": dispatched - begin, "complete_s": end - begin}))
"""


def write_store(root: Path, count: int) -> tuple[int, int]:
    """Fill a store with messages; return the place of the last one in the log, and its queue."""
    host = pack_host("127.0.0.1", 10911)
    store = MessageStore(StoreConfig(root, message_index_enable=False))
    store.store_host = host
    store.open()
    bodies = [memoryview(os.urandom(BODY_BYTES)) for _ in range(BATCH)]
    queue = 0
    physicals: Sequence[int] = [0]
    for first in range(0, count, BATCH):
        names = [
            b"UNIQ_KEY\x017F00000100%022X\x02WAIT\x01true\x02TAGS\x01tag%d\x02" % (i, i % 3)
            for i in range(first, min(first + BATCH, count))
        ]
        entries = [BatchEntry(0, body, properties) for body, properties in zip(bodies, names, strict=False)]
        queue = first // BATCH % QUEUES
        _, physicals = store.stage_batch(TOPIC, queue, entries, sys_flag=0, born_timestamp_ms=1, born_host=host)
        store.commit()
    store.close()
    return physicals[-1], queue


def read_whole(root: Path) -> None:
    """Have the log in the page cache, for both sides alike."""
    for path in (root / "commitlog").iterdir():
        with path.open("rb") as file:
            while file.read(4 << 20):
                pass


def ours(root: Path, workers: int) -> dict[str, Any]:
    drop_derived(root)
    done = subprocess.run([sys.executable, "-c", OURS, str(root), str(workers)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


class Recovering(apache.JavaProcess):
    """Apache's broker as it starts on a store that was not closed in order."""

    def __init__(self, home: Path, store: Path, namesrv: str) -> None:
        port = apache.broker_port()
        settings = {
            "brokerClusterName": "Rebuild",
            "brokerName": "rebuild-a",
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            "namesrvAddr": namesrv,
            "brokerIP1": LOOPBACK,
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "timerWheelEnable": "false",
            "enableCompaction": "false",
        }
        home.mkdir(parents=True)
        config = home / "broker.conf"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        super().__init__("org.apache.rocketmq.broker.BrokerStartup", "-c", str(config), home=home, flags=apache.MEASURED_BROKER)


def last_unit(root: Path, queue: int) -> int:
    """Return the place the last unit of a queue points to so far, -1 without one."""
    with contextlib.suppress(OSError):
        files = sorted((root / "consumequeue" / TOPIC / str(queue)).iterdir())
        data = files[-1].read_bytes()
        low, high = 0, len(data) // 20
        while low < high:
            middle = (low + high) // 2
            if _UNIT.unpack_from(data, middle * 20)[1] > 0:
                low = middle + 1
            else:
                high = middle
        return int(_UNIT.unpack_from(data, (low - 1) * 20)[0]) if low else -1
    return -1


def index_end(root: Path) -> int:
    """Return the place of the last record in the newest index file, -1 without one."""
    with contextlib.suppress(OSError, IndexError):
        newest = max((root / "index").iterdir())
        with newest.open("rb") as file:
            return int(_INDEX_END.unpack(file.read(_INDEX_END.size))[0])
    return -1


def until(condition: Any, process: apache.JavaProcess, pause_s: float) -> float:
    """Return when a condition became true."""
    deadline = time.perf_counter() + TIMEOUT_S
    while not condition():
        if process.process.poll() is not None or time.perf_counter() > deadline:
            raise RuntimeError(f"Apache's broker did not get there:\n{process.tail()}")
        time.sleep(pause_s)
    return time.perf_counter()


def apaches(root: Path, home: Path, last: tuple[int, int]) -> dict[str, Any]:
    """Let Apache's broker recover the store, and end it when it has dispatched the last record."""
    drop_derived(root)
    (root / "abort").write_text("1")
    physical, queue = last
    before = {path.name: path.stat().st_size for path in (root / "commitlog").iterdir()}
    started = time.perf_counter()
    process = Recovering(home, root, "127.0.0.1:1")  # no nameserver is needed to recover
    try:
        recovering = until(lambda: any((root / "consumequeue").glob("*/*/*")), process, 0.002)
        until(lambda: index_end(root) >= physical, process, 0.02)
        dispatched = until(lambda: last_unit(root, queue) >= physical, process, 0.02)
    finally:
        process.kill()
        (root / "abort").unlink(missing_ok=True)
        for path in (root / "commitlog").iterdir():
            if path.name not in before:
                path.unlink()  # it prepares the next segment
    return {"jvm_s": recovering - started, "dispatched_s": dispatched - recovering}


@contextlib.contextmanager
def directory(parent: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sprocketmq-rebuild-", dir=parent) as name:
        yield Path(name)


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-apache", action="store_true", help="leave out the rival (no Java here)")
    options = parser.parse_args()
    count = options.messages
    if not options.without_apache:
        apache.require()
    rounds: dict[str, list[dict[str, Any]]] = {"one": [], "two": [], "apache": []}
    with directory() as top:
        root = top / "store"
        last = write_store(root, count)
        for number in range(options.rounds):
            read_whole(root)
            rounds["one"].append(ours(root, 1))
            rounds["two"].append(ours(root, 2))
            if not options.without_apache:
                rounds["apache"].append(apaches(root, top / f"apache-{number}", last))
        assert all(done["records"] == count and done["entries"] == 2 * count for done in rounds["one"] + rounds["two"])
    figures: dict[str, Any] = {"messages": count, "rounds": options.rounds}
    for name, done in rounds.items():
        if done:
            keys = [key for key in done[0] if key.endswith("_s")]
            figures[name] = {key: spread((each[key] for each in done), 3) for key in keys}
            figures[name]["messages_per_s"] = spread((count / each["dispatched_s"] for each in done), 0)
    two = figures["two"]["messages_per_s"]["median"]
    ratios = {"two_over_one": round(two / figures["one"]["messages_per_s"]["median"], 2)}
    missed = [] if ratios["two_over_one"] >= GOAL_WORKERS else ["two_over_one"]
    if "apache" in figures:
        ratios["two_over_apache"] = round(two / figures["apache"]["messages_per_s"]["median"], 2)
        missed += [] if ratios["two_over_apache"] >= GOAL_APACHE else ["two_over_apache"]
    goals = {"two_over_apache": GOAL_APACHE, "two_over_one": GOAL_WORKERS}
    write_result("load-rebuild", {"goals_at_least": goals, "missed": missed, "ratios": ratios, **figures})
    for name in rounds:
        if name in figures:
            rate, seconds = figures[name]["messages_per_s"], figures[name]["dispatched_s"]
            print(f"{name:8} {rate['median']:>10,.0f}/s   {rate['min']:,.0f} to {rate['max']:,.0f}   {seconds['median']:.2f} s")
    for name, ratio in ratios.items():
        print(f"{name:16} {ratio:5.2f}  (goal {goals[name]}{', MISSED' if name in missed else ''})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
