"""Records made of a batch are those that its messages would have one by one, whether or not they have the same lengths."""

from itertools import accumulate
from typing import Any

import pytest
from tests.inside import queue_of

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import BLOCK_ROWS, BatchColumns, encode_batch, scan_batch, split_columns
from sprocketmq.protocol.hashing import tags_code_raw
from sprocketmq.protocol.layout import QUEUE_UNIT
from sprocketmq.protocol.properties import find_property
from sprocketmq.protocol.records import encode_record
from sprocketmq.storage.index.numpy_loading import load_arrays
from sprocketmq.storage.log.exploding import BATCH_SHARED, explode
from sprocketmq.storage.splitting import MIN_ROWS, scan, split

HOST = b"12345678"
SHARED = BATCH_SHARED.pack(0, 5, HOST, 6, HOST, 0, 0)


Messages = list[tuple[int, bytes, bytes]]
# Records, property strings, log offsets, log offset of the end, queue units.
Outcome = tuple[bytes, list[bytes], list[int], int, bytes]


def exploded(queue: Any, batch: Any, log_offset: int) -> Outcome:
    """Return what ``explode`` returns, with the property strings cut apart."""
    records, strings, log_offsets, end, units = explode(queue, batch, 3, 7, log_offset, SHARED)
    lengths = [strings.lengths] * len(log_offsets) if isinstance(strings.lengths, int) else strings.lengths
    ends = list(accumulate(lengths))
    assert not ends or ends[-1] == len(strings.text)
    texts = [strings.text[stop - length : stop] for stop, length in zip(ends, lengths, strict=True)]
    return bytes(records), texts, list(log_offsets), end, units


def one_by_one(messages: Messages, log_offset: int) -> Outcome:
    """Return the same, each record and unit encoded by itself."""
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
        [b"TAGS\x01a\x02K\x011\x02", b"TAGS\x01a\x02K\x012\x02"],
        [b"TAGS\x01a\x02TAGS\x01b\x02"] * 2,
        [b"TAGS\x01\x02TAGS\x01b\x02"] * 2,
        [b"TAGS\x01a", b"TAGS\x01b"],
        [b"K\x011\x02TAGS\x01a\x02L\x011\x02", b"K\x012\x02TAGS\x01a\x02L\x012\x02"],
        [b"K\x01abcd\x02TAGS\x01a\x02", b"TAGS\x01b\x02TAGS\x01a\x02"],
        [b"K\x01v\x02TAGS\x01a\x02TAGS\x01a\x02", b"K\x01v\x02L\x01v\x02M\x01v\x02N\x01v\x02"],
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
    assert exploded(queue, columns, 1000) == one_by_one(messages, 1000)


def test_a_batch_of_more_messages_than_one_block_becomes_their_records(bench: Any) -> None:
    bench.send(b"x")
    messages = [(0, b"%05d" % i, b"TAGS\x01%05d\x02" % (i % 7)) for i in range(2 * BLOCK_ROWS + 1)]
    columns = split_columns(encode_batch(messages))
    assert exploded(queue_of(bench.store, "orders", 0), columns, 1000) == one_by_one(messages, 1000)


ROWS = {
    "without tags": lambda i: b"KEYS\x01%05d\x02" % i,
    "one tag": lambda i: b"TAGS\x01tag\x02KEYS\x01%05d\x02" % i,
    "a tag each": lambda i: b"TAGS\x01%05d\x02" % (i % 7),
    "tags behind keys": lambda i: b"KEYS\x01%05d\x02TAGS\x01%d\x02" % (i, i % 3),
    "one tag behind keys": lambda i: b"KEYS\x01%05d\x02TAGS\x01a\x02WAIT\x01true\x02" % i,
    "one tag behind another": lambda i: b"TAGS\x01b\x02K\x01\x02TAGS\x01a\x02" if i % 2 else b"K\x01abcdefg\x02TAGS\x01a\x02",
    "no tag": lambda _: b"TAGS\x01\x02",
    "tags at several places": lambda i: b"TAGS\x01a\x02K\x01b\x02" if i % 2 else b"K\x01b\x02TAGS\x01a\x02",
    "no properties": lambda _: b"",
}


@pytest.mark.parametrize("count", [MIN_ROWS, BLOCK_ROWS + 17])
@pytest.mark.parametrize("body", [b"", b"body"])
@pytest.mark.parametrize("strings", ROWS)
def test_many_messages_alike_become_their_records_as_rows_of_an_array(bench: Any, strings: str, body: bytes, count: int) -> None:
    load_arrays()
    bench.send(b"x")
    queue = queue_of(bench.store, "orders", 0)
    messages = [(9, body and b"%05d" % i, ROWS[strings](i)) for i in range(count)]
    received = memoryview(bytearray(encode_batch(messages)))
    rows = split(received)
    assert not isinstance(rows, BatchColumns)
    assert scan(received) == scan_batch(received) == (count, rows.text) == (count, b"".join(text for _, _, text in messages))
    assert exploded(queue, rows, 1000) == one_by_one(messages, 1000)
    columns = rows.columns()
    assert list(zip(columns.flags, columns.bodies, columns.properties, strict=True)) == messages
    result = explode(queue, rows, 3, 7, 1000, SHARED)
    received[:] = bytes(len(received))  # the next read
    assert (bytes(result[0]), result[1].text) == (one_by_one(messages, 1000)[0], b"".join(text for _, _, text in messages))


@pytest.mark.parametrize("other", [(1, b"body", b"K\x01v\x02"), (0, b"bodyK", b"\x01v\x02"), (0, b"bodies", b"K\x01v\x02")])
def test_messages_of_other_flags_or_lengths_are_not_taken_for_rows(other: tuple[int, bytes, bytes]) -> None:
    load_arrays()
    messages = [(0, b"body", b"K\x01v\x02")] * MIN_ROWS
    assert not isinstance(split(encode_batch(messages)), BatchColumns)
    columns = split(encode_batch([*messages[1:], other]))
    assert isinstance(columns, BatchColumns)
    assert list(zip(columns.flags, columns.bodies, columns.properties, strict=True)) == [*messages[1:], other]
    assert scan(encode_batch([*messages[1:], other])) == (MIN_ROWS, columns.text)
    assert isinstance(split(encode_batch(messages[1:])), BatchColumns)


def test_a_damaged_batch_of_many_messages_is_refused() -> None:
    load_arrays()
    encoded = encode_batch([(0, b"body", b"K\x01v\x02")] * MIN_ROWS)
    with pytest.raises(RemoteProtocolError, match="impossible size"):
        split(encoded[:-1])
    # The property string of the last message, of four bytes, has a length field of five.
    with pytest.raises(RemoteProtocolError, match="impossible property length 5"):
        split(encoded[:-6] + b"\0\x05" + encoded[-4:])


@pytest.mark.parametrize("tag", ["", "TagA"])
def test_rows_are_stored_as_the_messages_they_are(bench: Any, tag: str) -> None:
    load_arrays()
    text = b"TAGS\x01%b\x02" % tag.encode() if tag else b""
    messages = [(0, b"%04d" % i, b"%bUNIQ_KEY\x01U%05d\x02" % (text, i)) for i in range(MIN_ROWS)]
    common = {"sys_flag": 0, "born_timestamp_ms": 1, "born_host": HOST}
    first, log_offsets = bench.store.stage_batch("orders", 0, split(encode_batch(messages)), **common)
    ipv6, _ = bench.store.stage_batch("orders", 0, split(encode_batch(messages)), **{**common, "sys_flag": 1 << 4, "born_host": bytes(20)})
    bench.store.commit()
    assert (first, ipv6, len(log_offsets)) == (0, MIN_ROWS, MIN_ROWS)
    found = bench.store.query("orders", "U00007", max_count=4, begin_ms=0, end_ms=1 << 60)
    assert len(found) == 2
