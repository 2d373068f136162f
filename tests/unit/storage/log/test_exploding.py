"""Records made of a batch are those that its messages would have one by one, whether or not they have the same lengths."""

from typing import Any

import pytest
from tests.inside import queue_of

from sprocketmq.protocol.batch import BLOCK_ROWS, encode_batch, split_columns
from sprocketmq.protocol.hashing import tags_code_raw
from sprocketmq.protocol.layout import QUEUE_UNIT
from sprocketmq.protocol.properties import find_property
from sprocketmq.protocol.records import encode_record
from sprocketmq.storage.log.exploding import BATCH_SHARED, explode

HOST = b"12345678"
SHARED = BATCH_SHARED.pack(0, 5, HOST, 6, HOST, 0, 0)


def one_by_one(messages: list[tuple[int, bytes, bytes]], log_offset: int) -> tuple[bytes, list[bytes], list[int], int, bytes]:
    """Return what ``explode`` returns, each record and unit encoded by itself."""
    records, units, log_offsets = [], [], []
    for number, (flag, body, properties) in enumerate(messages):
        times = {"born_timestamp_ms": 5, "born_host": HOST, "store_timestamp_ms": 6, "store_host": HOST}
        places = {"queue_id": 3, "queue_offset": 7 + number, "physical_offset": log_offset}
        record = encode_record(topic=b"orders", body=body, properties=properties, flag=flag, **times, **places)
        tag = find_property(properties, b"TAGS")
        units.append(QUEUE_UNIT.pack(log_offset, len(record), tags_code_raw(tag) if tag else 0))
        records.append(record)
        log_offsets.append(log_offset)
        log_offset += len(record)
    return b"".join(records), [one[2] for one in messages], log_offsets, log_offset, b"".join(units)


@pytest.mark.parametrize(
    "strings",
    [
        [b"", b""],
        [b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"TAGS\x01b\x02"],
        [b"K\x01v\x02TAGS\x01a\x02"] * 3,
        [b"MYTAGS\x01a\x02", b"TAGS\x01\x02"],
    ],
)
@pytest.mark.parametrize("lengths", ["equal", "mixed"])
def test_a_batch_becomes_the_records_and_units_of_its_messages(bench: Any, strings: list[bytes], lengths: str) -> None:
    bench.send(b"x")
    queue = queue_of(bench.store, "orders", 0)
    padded = [properties.ljust(len(strings[0]), b" ") if lengths == "equal" else properties for properties in strings]
    messages = [(i, b"body %d" % i if lengths == "equal" else b"y" * i, properties) for i, properties in enumerate(padded)]
    columns = split_columns(memoryview(encode_batch(messages)))
    assert (columns.lengths is not None) == (lengths == "equal")
    assert explode(queue, columns, 3, 7, 1000, SHARED) == one_by_one(messages, 1000)


def test_a_batch_of_more_messages_than_one_block_becomes_their_records(bench: Any) -> None:
    bench.send(b"x")
    messages = [(0, b"%05d" % i, b"TAGS\x01%05d\x02" % (i % 7)) for i in range(2 * BLOCK_ROWS + 1)]
    columns = split_columns(encode_batch(messages))
    assert explode(queue_of(bench.store, "orders", 0), columns, 3, 7, 1000, SHARED) == one_by_one(messages, 1000)
