"""What following a master costs: appending its log raw and deriving queues and index from it. ``python -m benchmarks.micro.replica``.

The master's store has messages of 1 KiB with a unique key, a key and a tag in four plain queues, the same in 64 queues in turn, and inner
batches of 32. A bare copy of the log to reserved files stands beside the append. Figures are of processor time, the fastest round.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import write_result
from sprocketmq.protocol.batch import encode_batch, split_columns
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.replica.replica import Replica
from sprocketmq.storage.store import MessageStore, StoreConfig

LOG_BYTES = 256 << 20
SEGMENT_BYTES = 1 << 30
PIECE_BYTES = 1 << 20
BUDGET_BYTES = 1 << 20
ROUNDS = 3
IN_BATCH = 32
BODY = b"x" * 1024
SINGLES = 2000
HOST = pack_host("127.0.0.1", 10911)

# MB per second of processor time; of the append, the part of a bare copy.
GOALS = {"dispatch_plain_mb_s": 300.0, "append_to_copy": 0.4}


def properties(number: int) -> bytes:
    return b"UNIQ_KEY\x01C00002025F95%020X\x02KEYS\x01order-%08d\x02TAGS\x01TagA\x02WAIT\x01true\x02" % (number * 7919, number)


def new_store(root: Path) -> MessageStore:
    store = MessageStore(StoreConfig(root, commitlog_segment_bytes=SEGMENT_BYTES))
    store.open()
    return store


def fill(store: MessageStore, queues: int, log_bytes: int, *, inner: bool = False) -> None:
    if inner:
        store.declare_batch_topic("orders")
    number = 0
    while store.commitlog_max_offset < log_bytes:
        for queue in range(queues):
            items = [(0, BODY, properties(number + i)) for i in range(IN_BATCH if inner or queues < 10 else 1)]
            batch = encode_batch(items)
            number += len(items)
            if inner:
                stage = store.stage_inner_batch
                stage("orders", queue, batch, properties(number), count=len(items), tags_code=1, born_timestamp_ms=1, born_host=HOST)
            else:
                store.stage_batch("orders", queue, split_columns(batch), sys_flag=0, born_timestamp_ms=1, born_host=HOST)
        store.commit()


def cpu_s(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def pieces(master: MessageStore) -> list[memoryview]:
    found, log_offset = [], 0
    while data := master.raw(log_offset, PIECE_BYTES):
        found.append(data)
        log_offset += len(data)
    return found


def bare_copy(path: Path, data: list[memoryview]) -> float:
    file = REAL_FS.open(str(path), create=True)
    total = sum(map(len, data))
    file.truncate(total)

    def copy() -> None:
        file.fallocate(0, total)
        done = 0
        for piece in data:
            file.pwrite(piece, done)
            done += len(piece)

    took = cpu_s(copy)
    file.close()
    path.unlink()
    return took


def main() -> int:
    best: dict[str, float] = {}

    def note(name: str, value: float, *, less: bool = False) -> None:
        best[name] = round(min(best.get(name, value), value) if less else max(best.get(name, value), value), 2)

    root = Path(tempfile.mkdtemp(prefix="sprocketmq-bench-"))
    try:
        for kind, queues, inner in (("plain", 4, False), ("64_queues", 64, False), ("batches", 4, True)):
            master = new_store(root / "master")
            fill(master, queues, LOG_BYTES, inner=inner)
            data = pieces(master)
            total = sum(map(len, data)) / 1e6
            sum(piece[::4096].tobytes().count(b"x") for piece in data)  # the master's pages are mapped, as they were just written
            for _ in range(ROUNDS):
                note("copy_mb_s", total / bare_copy(root / "copy", data))
                appending, dispatching = follow(root / "replica", data, inner=inner)
                note(f"append_{kind}_mb_s", total / appending)
                note(f"dispatch_{kind}_mb_s", total / dispatching)
                shutil.rmtree(root / "replica")
            data.clear()
            master.close()
            shutil.rmtree(root / "master")
        best["append_to_copy"] = round(best["append_plain_mb_s"] / best["copy_mb_s"], 2)
        note_singles(root, note)
    finally:
        shutil.rmtree(root)
    missed = [name for name, goal in GOALS.items() if best[name] < goal]
    for name, value in best.items():
        print(f"{name:24s} {value:9.2f}" + (f"   (goal: {GOALS[name]})" if name in GOALS else ""))
    path = write_result("micro-replica", {"unit": "of processor time", "goals": GOALS, "missed": missed, "figures": best})
    print(f"written to {path}")
    return 1 if missed else 0


def follow(root: Path, data: list[memoryview], *, inner: bool) -> tuple[float, float]:
    """Return the seconds it takes to append all of a log, and to derive queues and index from it as it comes."""
    store = new_store(root)
    if inner:
        store.declare_batch_topic("orders")
    replica = store.follow()
    appending = dispatching = 0.0
    for piece in data:
        began = time.process_time()
        replica.append(replica.end, piece)
        appended = time.process_time()
        while replica.dispatch(BUDGET_BYTES):
            pass
        appending += appended - began
        dispatching += time.process_time() - appended
    assert replica.dispatched_end == replica.end
    store.close()
    return appending, dispatching


def note_singles(root: Path, note: Callable[..., None]) -> None:
    """Note the microseconds a record costs that arrives alone, or with some others."""
    master = new_store(root / "master")
    fill(master, 4, 8 << 20)
    size = int.from_bytes(master.raw(0, 4))
    for together in (1, 8):
        store = new_store(root / f"replica{together}")
        replica = store.follow()

        def run(replica: Replica = replica, together: int = together) -> None:
            for first in range(0, SINGLES, together):
                replica.append(replica.end, master.raw(first * size, together * size))
                replica.dispatch(BUDGET_BYTES)

        note(f"by_{together}_us", cpu_s(run) / SINGLES * 1e6, less=True)
        store.close()
    master.close()


if __name__ == "__main__":
    sys.exit(main())
