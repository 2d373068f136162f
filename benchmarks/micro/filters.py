"""What SQL92 conditions cost a broker: us to compile one, to evaluate it, and a message of a queue that is read through one.

``python -m benchmarks.micro.filters``. The queue has messages with three properties, of which one in a hundred passes; beside it the same
queue is read whole, and by a tag that no message has.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.report import processor_us, spread, write_result
from sprocketmq.broker.filters.reading import read_matching
from sprocketmq.broker.filters.sql92 import compile_sql
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.storage.store import MessageStore, StoreConfig

MESSAGES = 20_000
ROUNDS = 7
CONDITIONS = {
    "one comparison": "price = 0",
    "five comparisons": "price < 1 AND (region = 'eu' OR region IN ('us', 'uk')) AND NOT (kind CONTAINS 'test') AND kind IS NOT NULL",
    "ninety comparisons": "price < 1 AND (" + " OR ".join(f"region = 'r{n}'" for n in range(88)) + " OR region = 'eu')",
}


def fill(store: MessageStore) -> None:
    for number in range(MESSAGES):
        pairs = {"price": str(number % 100), "region": "eu", "kind": "order", "UNIQ_KEY": "7F000001516DE40737036832F5A00002"}
        properties = encode_properties(pairs)
        store.stage_message("t", 0, b"x" * 200, properties, tags_code=7, born_timestamp_ms=0, born_host=bytes(8))
        if number % 100 == 99:
            store.commit()


def read_through(store: MessageStore, text: str) -> int:
    offset = found = 0
    condition = compile_sql(text)
    while offset < MESSAGES:
        result = read_matching(store, "t", 0, offset, condition, max_count=32, max_bytes=1 << 18, disk=None, max_units=None)
        offset, found = result.next_offset, found + result.count
    return found


def read_all(store: MessageStore, tag_codes: frozenset[int] | None) -> None:
    offset = 0
    while offset < MESSAGES:
        offset = store.read("t", 0, offset, max_count=32, tag_codes=tag_codes).next_offset


def main() -> int:
    """Measure, print and write the figures."""
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as root:
        store = MessageStore(StoreConfig(root=Path(root), commitlog_segment_bytes=1 << 26, preallocate=False))
        store.open()
        try:
            fill(store)
            figures["us a message, read whole"] = processor_us(lambda: read_all(store, None), MESSAGES, ROUNDS)
            figures["us a message, by a tag"] = processor_us(lambda: read_all(store, frozenset({8})), MESSAGES, ROUNDS)
            for name, text in CONDITIONS.items():
                assert read_through(store, text) == MESSAGES // 100
                figures[f"us a message, {name}"] = processor_us(lambda text=text: read_through(store, text), MESSAGES, ROUNDS)  # type: ignore[misc]
        finally:
            store.close()
    pairs = {"price": "0", "region": "eu", "kind": "order"}
    for name, text in CONDITIONS.items():
        condition = compile_sql(text)
        figures[f"us to evaluate {name}"] = processor_us(lambda c=condition: [c.matches(pairs) for _ in range(5_000)], 5_000, ROUNDS)  # type: ignore[misc]
        compiled = [f"{text} OR {n} = 1" for n in range(200)]
        figures[f"us to compile {name}"] = processor_us(lambda texts=compiled: [compile_sql.__wrapped__(t) for t in texts], 200, ROUNDS)  # type: ignore[misc]
    for name, found in figures.items():
        print(f"{name:45} {statistics.median(found):8.2f}")
    write_result("micro-filters", {name: spread(found) for name, found in figures.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
