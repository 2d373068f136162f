"""What finding messages by key costs: offering, indexing and asking. ``python -m benchmarks.micro.index``.

Messages come in batches of 32 with a unique key, one more key and a tag, so three entries each, into files of the usual size. Beside the
arrays stands a plain loop that does the same for one key after the other. Figures are processor time of the fastest round; one is a time
that passes: that of the longest offer while another thread brings the index to the disk, the median of the rounds.
"""

import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.report import write_result
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.index import index_arrays, key_hashing
from sprocketmq.storage.index.index_files import IndexFiles
from sprocketmq.storage.index.index_format import FileShape
from sprocketmq.storage.index.key_index import KeyIndex
from sprocketmq.storage.index.record_keys import key_string
from sprocketmq.storage.index.staging import StagedSend, plain_entries
from sprocketmq.storage.log.exploding import Strings

ROUNDS = 5
IN_BATCH = 32
MESSAGES = 4096 * 16
PLAIN_MESSAGES = 4096
RECORD_BYTES = 1200
QUESTIONS = 500
# Offers beside a sync: of small messages, so that 50,000 wait, and slowly enough that the sync ends before them.
OFFERS_BESIDE_SYNC = 4000
SMALL_RECORD_BYTES = 330
OFFER_INTERVAL_S = 0.0003

# Microseconds of processor time; of a message, and of a question.
GOALS = {"offer": 0.15, "index": 0.5, "find_key": 100.0, "find_tag": 1000.0}


def properties(number: int) -> bytes:
    return b"UNIQ_KEY\x01C00002025F95%020X\x02KEYS\x01order-%08d\x02TAGS\x01TagA\x02WAIT\x01true\x02" % (number * 7919, number)


def batches(first: int, count: int, record_bytes: int = RECORD_BYTES) -> list[StagedSend]:
    return [
        (
            "orders",
            Strings(b"".join(properties(n) for n in range(begin, begin + IN_BATCH)), len(properties(begin))),
            range(begin * record_bytes, (begin + IN_BATCH) * record_bytes, record_bytes),
            1_700_000_000_000 + begin,
        )
        for begin in range(first, first + count, IN_BATCH)
    ]


def cpu_us(action: Callable[[], object], units: int) -> float:
    began = time.process_time()
    action()
    return (time.process_time() - began) / units * 1e6


def main() -> int:
    assert all((index_arrays, key_hashing))  # loaded, as in a broker that has been at work
    root = Path(tempfile.mkdtemp(prefix="sprocketmq-bench-"))
    best: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        best[name] = round(min(best.get(name, value), value), 3)

    try:
        index = empty_index(root / "index")
        for round_ in range(ROUNDS):
            staged = batches(round_ * MESSAGES, MESSAGES)
            offers = [((send,), (round_ * MESSAGES + (i + 1) * IN_BATCH) * RECORD_BYTES) for i, send in enumerate(staged)]
            portions = [offers[at : at + 128] for at in range(0, len(offers), 128)]
            offering = indexing = 0.0
            for portion in portions:

                def offer(portion: list[tuple[tuple[StagedSend], int]] = portion) -> None:
                    for sends, end in portion[:-1]:
                        index.offer(sends, end)

                offering += cpu_us(offer, MESSAGES)
                index.offer(*portion[-1])
                indexing += cpu_us(index.process, MESSAGES)
            note("offer", offering)
            note("index", indexing)
            note("sync", cpu_us(index.sync, MESSAGES))
        total = ROUNDS * MESSAGES
        for _ in range(ROUNDS):
            step = total // QUESTIONS
            known = [f"order-{n * step:08d}" for n in range(QUESTIONS)]
            unknown = [f"none-{n}" for n in range(QUESTIONS)]
            note("find_key", cpu_us(partial(ask, index, known, 1), QUESTIONS))
            note("find_unknown", cpu_us(partial(ask, index, unknown, 0), QUESTIONS))
            note("find_tag", cpu_us(partial(ask, index, ["TagA"] * 10, 64, tag=True), 10))
        index.close()
        for round_ in range(ROUNDS):
            files = IndexFiles(REAL_FS, str(root / f"plain{round_}"), FileShape(5_000_000, 20_000_000), SYSTEM_CLOCK)
            staged = batches(0, PLAIN_MESSAGES)

            def add(files: IndexFiles = files, staged: list[StagedSend] = staged) -> None:
                files.add_plainly(*plain_entries(staged, files.newest_record))

            note("index_plain_loop", cpu_us(add, PLAIN_MESSAGES))
            files.close()
        best["longest_offer_beside_sync_ms"] = longest_offer_beside_sync(root / "beside")
    finally:
        shutil.rmtree(root)
    missed = [name for name, goal in GOALS.items() if best[name] > goal]
    for name, value in best.items():
        unit = "ms" if name.endswith("_ms") else "us a question" if name.startswith("find") else "us a message"
        print(f"{name:28s} {value:9.3f} {unit}" + (f"   (goal: {GOALS[name]} us)" if name in GOALS else ""))
    path = write_result("micro-index", {"unit": "processor microseconds", "goals": GOALS, "missed": missed, "figures": best})
    print(f"written to {path}")
    return 1 if missed else 0


def empty_index(directory: Path) -> KeyIndex:
    """Return an index without files, which will have the usual size."""
    index = KeyIndex(REAL_FS, str(directory), hash_slots=5_000_000, entries_per_file=20_000_000, clock=SYSTEM_CLOCK)
    index.load(log_min=0, log_end=0, state=None)
    return index


def longest_offer_beside_sync(directory: Path) -> float:
    """Return how many milliseconds the longest offer takes while another thread syncs the index: the median of some rounds."""
    index = empty_index(directory)
    longest = []
    for round_ in range(ROUNDS + 1):
        first = round_ * OFFERS_BESIDE_SYNC * IN_BATCH
        syncing = threading.Thread(target=index.sync)
        times_s = []
        for i, send in enumerate(batches(first, OFFERS_BESIDE_SYNC * IN_BATCH, SMALL_RECORD_BYTES)):
            if i == OFFERS_BESIDE_SYNC // 2:
                syncing.start()
            began = time.perf_counter()
            index.offer((send,), (first + (i + 1) * IN_BATCH) * SMALL_RECORD_BYTES)
            times_s.append(time.perf_counter() - began)
            time.sleep(OFFER_INTERVAL_S)
        syncing.join()
        longest.append(max(times_s) * 1000)
    index.close()
    return round(statistics.median(longest[1:]), 1)  # without the round that makes the file


def ask(index: KeyIndex, keys: Sequence[str], count: int, *, tag: bool = False) -> None:
    """Find ``count`` messages for each key."""
    for key in keys:
        found = sum(1 for _ in islice(index.candidates(key_string("orders", key, tag=tag)), count or 1))
        assert found == count, (key, found)


if __name__ == "__main__":
    sys.exit(main())
