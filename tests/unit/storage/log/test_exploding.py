"""Records made of a batch are the same whether it is taken message by message or in columns."""

from typing import Any

import pytest
from tests.inside import queue_of

from sprocketmq.protocol.batch import encode_batch, split_batch, split_columns
from sprocketmq.storage.log.exploding import BATCH_SHARED, explode

SHARED = BATCH_SHARED.pack(0, 5, b"12345678", 6, b"12345678", 0, 0)


@pytest.mark.parametrize(
    "strings",
    [
        [b"", b""],
        [b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"TAGS\x01b\x02"],
        [b"K\x01v\x02TAGS\x01a\x02"] * 3,
        [b"MYTAGS\x01a\x02", b"TAGS\x01\x02"],
    ],
)
def test_columns_make_the_same_records_and_units_as_rows(bench: Any, strings: list[bytes]) -> None:
    bench.send(b"x")
    queue = queue_of(bench.store, "orders", 0)
    encoded = encode_batch([(i, b"body %d" % i, properties.ljust(len(strings[0]), b" ")) for i, properties in enumerate(strings)])
    columns = split_columns(memoryview(encoded))
    assert columns is not None
    assert explode(queue, columns, 3, 7, 1000, SHARED) == explode(queue, split_batch(encoded), 3, 7, 1000, SHARED)
