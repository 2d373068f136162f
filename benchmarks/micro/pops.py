"""What pops cost a broker: us a message to take 32 of them, acknowledge them, and keep both in the journal.

``python -m benchmarks.micro.pops``. Messages of 1 KiB in one queue of a plain topic, in inner batches of 32, and in inner batches of 3,000.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from benchmarks.report import spread, write_result
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.pop.journal import Journal
from sprocketmq.broker.pop.popping import Popping
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.store import MessageStore, StoreConfig

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = 24_000
ROUNDS = 7
POPPED = 32
BODY = b"x" * 1024
PROPERTIES = b"UNIQ_KEY\x017F000001516DE40737036832F5A00002\x02"


def fill(store: MessageStore, topic: str, batch: int) -> None:
    """Store the messages, alone or in batches of ``batch``."""
    if batch > 1:
        store.declare_batch_topic(topic)
    for number in range(0, MESSAGES, batch):
        if batch == 1:
            store.stage_message(topic, 0, BODY, PROPERTIES, tags_code=0, born_timestamp_ms=0, born_host=bytes(8))
        else:
            members = encode_batch([(0, BODY, PROPERTIES)] * batch)
            store.stage_inner_batch(topic, 0, members, PROPERTIES, count=batch, tags_code=0, born_timestamp_ms=0, born_host=bytes(8))
        if number % 200 < batch:
            store.commit()
    store.commit()


def pop_all(store: MessageStore, root: Path, topic: str) -> float:
    """Pop and acknowledge everything with a new group, and return the us of processor time of a message."""
    written: list[Callable[[], None]] = []
    journal = Journal(f"{root}/{time.monotonic_ns()}.journal", REAL_FS, soon=written.append)
    popping = Popping("broker-a", store, OffsetTable(), journal, max_bytes=lambda: 1 << 20, clock=SYSTEM_CLOCK)
    place = SimpleNamespace(name=topic, read_queues=1, batch_queues=topic in store.batch_topics, config=SimpleNamespace(attributes={}))
    asks = {
        "max_count": POPPED,
        "init_mode": 0,
        "order": False,
        "invisible_ms": 60_000,
        "tag_codes": None,
        "condition": None,
        "attempt_id": "",
        "loads": 0,
        "visits": None,
    }
    waiter = SimpleNamespace(group=SimpleNamespace(group_name="g"), topic=place, queue_id=0, **asks)
    taken = 0
    began = time.process_time()
    while taken < MESSAGES:
        found = popping.pop(waiter)  # type: ignore[arg-type]
        assert found is not None
        offsets = found.offsets.rpartition(" ")[2].split(",")
        taken += popping.acknowledge("g", topic, 0, list(map(int, offsets)), found.popped_ms, orderly=False)
        journal.write()
    elapsed = time.process_time() - began
    journal.close()
    return elapsed / MESSAGES * 1e6


def main() -> int:
    """Measure, print and write the figures."""
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        store = MessageStore(StoreConfig(root=root / "store", commitlog_segment_bytes=1 << 26, preallocate=False))
        store.open()
        try:
            for name, batch in (("alone", 1), ("in batches of 32", 32), ("in batches of 3,000", 3_000)):
                fill(store, f"t{batch}", batch)
                figures[f"us a message, {name}"] = [pop_all(store, root, f"t{batch}") for _ in range(ROUNDS)]
        finally:
            store.close()
    for name, found in figures.items():
        print(f"{name:40} {statistics.median(found):8.2f}")
    write_result("micro-pops", {name: spread(found) for name, found in figures.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
