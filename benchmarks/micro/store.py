"""What the store costs a message of 1 KiB: append singly and in batches, read, open, recover. ``python -m benchmarks.micro.store``.

Every figure is processor time (user and system) of the fastest of several rounds on the machine's disk, page-cached; the bare ``pwrite``
and CRC of the same bytes stands beside the appends as their limit. The files are written twice before anything counts, as pages the
machine never used before cost several times as much.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import write_result
from sprocketmq.protocol.batch import encode_batch, split_columns
from sprocketmq.protocol.hashing import crc32, tags_code
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.store import MessageStore, ReadStatus, StoreConfig

ROUNDS = 3
QUEUES = 8
MESSAGES = 20_000
IN_BATCH = 100

BODY = os.urandom(1024)
PROPERTIES = b"UNIQ_KEY\x01C00002025F9530946E09679C8AA40012\x02TAGS\x01TagA\x02WAIT\x01true\x02"
TAG = tags_code("TagA")
HOST = pack_host("127.0.0.1", 10911)
RECORD_BYTES = 91 + len("single") + len(BODY) + len(PROPERTIES)

# Microseconds of processor time a message may cost.
GOALS = {"stage_message": 4.0, "stage_batch": 2.0}


def microseconds(action: Callable[[], object], units: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        action()
        best = min(best, time.process_time() - began)
    return round(best / units * 1e6, 3)


def open_store(root: Path) -> MessageStore:
    store = MessageStore(StoreConfig(root))
    store.store_host = HOST
    store.open()
    return store


def stage_one(store: MessageStore, queue: int) -> None:
    store.stage_message("single", queue, BODY, PROPERTIES, tags_code=TAG, born_timestamp_ms=1, born_host=HOST)


def bare_writes(root: Path, pieces: list[bytes], count: int) -> Callable[[], None]:
    """The floor: CRC and ``pwrite`` of as many bytes, nothing else, over a file that is there already."""

    def run() -> None:
        fd = os.open(root / "bare", os.O_RDWR | os.O_CREAT)
        at = 0
        for _ in range(count):
            for piece in pieces:
                crc32(piece)
                os.pwrite(fd, piece, at)
                at += len(piece)
        os.close(fd)

    run()
    return run


def append_figures(root: Path, store: MessageStore) -> dict[str, Any]:
    def each() -> None:
        for i in range(MESSAGES):
            stage_one(store, i % QUEUES)
            store.commit()

    def by_64() -> None:
        for i in range(MESSAGES):
            stage_one(store, i % QUEUES)
            if i % 64 == 63:
                store.commit()
        store.commit()

    def staged() -> None:
        for i in range(0, MESSAGES, 64):
            for _ in range(64):
                stage_one(store, i % QUEUES)
            store.discard()

    entries = split_columns(encode_batch([(0, BODY, PROPERTIES)] * IN_BATCH))
    assert entries is not None

    def batches(finish: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            for i in range(MESSAGES // IN_BATCH):
                store.stage_batch("batches", i % QUEUES, entries, sys_flag=0, born_timestamp_ms=1, born_host=HOST)
                finish()

        return run

    each()
    batches(store.commit)()
    return {
        "stage_message": microseconds(staged, MESSAGES // 64 * 64),
        "stage_message_commit_per_64": microseconds(by_64, MESSAGES),
        "stage_message_commit_each": microseconds(each, MESSAGES),
        "bare_pwrite_and_crc_each": microseconds(bare_writes(root, [bytes(RECORD_BYTES)], MESSAGES), MESSAGES),
        "stage_batch": microseconds(batches(store.discard), MESSAGES),
        "stage_batch_commit": microseconds(batches(store.commit), MESSAGES),
        "bare_pwrite_and_crc_per_100": microseconds(bare_writes(root, [bytes(RECORD_BYTES * IN_BATCH)], MESSAGES // IN_BATCH), MESSAGES),
    }


def read_figures(store: MessageStore) -> dict[str, Any]:
    def drain(topic: str, count: int, tags: frozenset[int] | None = None) -> Callable[[], int]:
        def run() -> int:
            total = 0
            for queue in range(QUEUES):
                offset = 0
                while True:
                    result = store.read(topic, queue, offset, max_count=count, max_bytes=4 << 20, tag_codes=tags)
                    if result.status is not ReadStatus.FOUND:
                        break
                    total += result.count
                    offset = result.next_offset
            return total

        return run

    figures = {}
    for name, topic, count, tags in (
        ("read_4000_of_batches", "batches", 4000, None),
        ("read_4000_of_singles", "single", 4000, None),
        ("read_32_of_batches", "batches", 32, None),
        ("read_32_of_singles", "single", 32, None),
        ("read_4000_by_tag", "batches", 4000, frozenset({TAG})),
    ):
        action = drain(topic, count, tags)
        figures[name] = microseconds(action, action())
    return figures


def start_figures(root: Path) -> dict[str, Any]:
    store = open_store(root)
    total = sum(store.max_offset(topic, queue) for topic in store.topics_on_disk() for queue in range(QUEUES))
    stored = store.commitlog_max_offset
    store.close()
    clean = []
    for _ in range(5):
        again = MessageStore(StoreConfig(root))
        clean.append(again.open().elapsed_ms)
        again.close()

    def rebuild() -> None:
        (root / "dispatched").unlink(missing_ok=True)
        again = MessageStore(StoreConfig(root))
        again.open()
        again.abandon()

    rebuilt = microseconds(rebuild, total)
    with tempfile.TemporaryDirectory() as other:
        fresh = MessageStore(StoreConfig(Path(other) / "store"))
        fresh_ms = fresh.open().elapsed_ms
        fresh.close()
    return {
        "open_empty_ms": round(fresh_ms, 2),
        "open_clean_ms": round(min(clean), 2),
        "open_clean_store_gib": round(stored / (1 << 30), 2),
        "rebuild_per_message": rebuilt,
        "rebuild_s_per_gib": round(rebuilt * total / 1e6 / (stored / (1 << 30)), 2),
    }


def main() -> int:
    root = Path(tempfile.mkdtemp(prefix="sprocketmq-bench-"))
    try:
        store = open_store(root / "store")
        figures = append_figures(root, store) | read_figures(store)
        store.close()
        figures |= start_figures(root / "store")
    finally:
        shutil.rmtree(root)
    missed = [name for name, goal in GOALS.items() if figures[name] > goal]
    for name, value in figures.items():
        unit = "ms" if name.endswith("_ms") else "" if "gib" in name else "us a message"
        goal = f"   (goal: {GOALS[name]} us)" if name in GOALS else ""
        print(f"{name:32s} {value:9.3f} {unit}{goal}")
    path = write_result(
        "micro-store", {"unit": "processor microseconds per 1 KiB message", "goals": GOALS, "missed": missed, "figures": figures}
    )
    print(f"written to {path}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
