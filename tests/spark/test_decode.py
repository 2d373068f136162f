"""Pulled records become Arrow columns: against stores written by Apache RocketMQ, and against the codec of the protocol layer."""

import hashlib
import io
import json
import tarfile
from contextlib import suppress
from itertools import pairwise
from struct import pack_into, unpack_from

import pyarrow as pa
import pytest
from tests.recorded_stores import STORES

from sprocketmq.arrow.decode import decode_rows
from sprocketmq.arrow.pulled_rows import PulledRows
from sprocketmq.arrow.schema import COLUMNS, DEFAULT_COLUMNS, arrow_schema
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.protocol.layout import MAGIC_V1, MAGIC_V2
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import Record, decode_records, encode_record, pack_host

V4 = pack_host("192.0.2.7", 40123)
V6 = pack_host("2001:db8::5", 10911)


def recorded_queues(name):
    """Return {(topic, queue id): records in queue order} of a recorded store."""
    found = {}
    with tarfile.open(STORES / f"{name}.tar.gz") as archive:
        files = [m for m in archive.getmembers() if "/commitlog/" in m.name and m.isfile()]
        for member in sorted(files, key=lambda m: m.name):
            data, pos = archive.extractfile(member).read(), 0
            while pos + 8 <= len(data):
                size, magic = unpack_from(">ii", data, pos)
                if magic not in (MAGIC_V1, MAGIC_V2):
                    break
                message = Record(data, pos, size)
                found.setdefault((message.topic, message.queue_id), io.BytesIO()).write(data[pos : pos + size])
                pos += size
    return {queue: records.getvalue() for queue, records in found.items()}


def decoded(data, columns=tuple(COLUMNS), **limits):
    rows = [row for batch in decode_rows(PulledRows(data), columns, "broker-fx", **limits) for row in batch.to_pylist()]
    for row in rows:
        if "properties" in row:
            assert len(dict(row["properties"])) == len(row["properties"]), "a map must not hold a name twice"
            row["properties"] = dict(row["properties"])
    return rows


def record(offset=0, body=b"body", properties=None, raw=None, **fields):
    values = {
        "topic": b"Orders",
        "body": body,
        "properties": encode_properties(properties or {}) if raw is None else raw,
        "queue_id": 3,
        "queue_offset": offset,
        "physical_offset": 1000 + offset,
        "born_timestamp_ms": 1_700_000_000_123,
        "born_host": V4,
        "store_timestamp_ms": 1_700_000_000_456,
        "store_host": V4,
    }
    return encode_record(**{**values, **fields})


def milliseconds(moment):
    return round(moment.timestamp() * 1000)


@pytest.mark.parametrize("batch_rows", [4000, 7])
@pytest.mark.parametrize(
    ("store", "messages"), [("plain", 147), ("batchcq", 585), ("compressed", 25), ("delay-retry", 26), ("propcrc", 147)]
)
def test_every_message_of_a_recorded_store_reads_as_the_java_client_listed_it(store, messages, batch_rows):
    listing = json.loads((STORES / f"{store}.expected.json").read_text())
    seen = 0
    for (topic, queue_id), data in recorded_queues(store).items():
        wanted = listing["topics"][topic]["queues"][str(queue_id)]["messages"]
        rows = decoded(data, batch_rows=batch_rows)
        assert len(rows) == len(wanted)
        for row, want in zip(rows, wanted, strict=True):
            seen += 1
            same = ("topic", "queueId", "queueOffset", "msgId", "offsetMsgId", "commitLogOffset", "flag", "sysFlag", "properties")
            assert {name: row[name] for name in same} == {name: want[name] for name in same}
            assert row["reconsumeTimes"] == want["reconsumeTimes"]
            assert row["preparedTransactionOffset"] == want["preparedTransactionOffset"]
            assert (row["tags"] or None, row["keys"] or None) == (want["tags"] or None, want["keys"] or None)
            assert (hashlib.sha256(row["body"]).hexdigest(), len(row["body"])) == (want["bodySha256"], want["bodyLength"])
            assert milliseconds(row["bornTimestamp"]) == want["bornTimestamp"]
            assert milliseconds(row["storeTimestamp"]) == want["storeTimestamp"]
            assert ("/" + row["bornHost"], "/" + row["storeHost"]) == (want["bornHost"], want["storeHost"])
            # The listing writes 0 where a message of an inner batch has no record of its own; a column can say null.
            assert (row["storeSize"] or 0, row["bodyCRC"] or 0) == (want["storeSize"], want["bodyCRC"])
            assert (row["storeSize"] is None) == (row["batchNum"] is not None) == (row["offsetMsgId"] is None)
    assert seen == messages


def test_inner_batches_know_their_base_and_count():
    rows = decoded(recorded_queues("batchcq")["Bcq1", 0])
    bounds = sorted({(row["batchBaseOffset"], row["batchNum"]) for row in rows})
    assert [count for _, count in bounds] == [2, 5, 1, 17, 3, 40]
    assert all(base <= row["queueOffset"] < base + row["batchNum"] for row in rows for base in [row["batchBaseOffset"]])


@pytest.mark.parametrize(("start", "end"), [(0, 68), (1, 2), (3, 30), (67, 68), (8, 8), (100, 200)])
def test_an_inner_batch_is_cut_at_the_exact_offsets(start, end):
    data = recorded_queues("batchcq")["Bcq1", 0]
    whole = decoded(data)
    rows = PulledRows(data)
    rows.trim(start, end)
    part = [row for batch in decode_rows(rows, ("queueOffset", "msgId", "flag"), "b") for row in batch.to_pylist()]
    assert part == [{k: r[k] for k in ("queueOffset", "msgId", "flag")} for r in whole if start <= r["queueOffset"] < end]


def test_hosts_of_both_families_and_long_topics_mix_in_one_buffer():
    long = b"L" * 200
    records = [
        record(0),
        record(1, born_host=V6),
        record(2, store_host=V6, topic=long),
        record(3, born_host=V6, store_host=V6, reconsume_times=4, prepared_offset=77),
        record(4, topic=long, flag=-5),
    ]
    data = b"".join(records)
    rows = decoded(data)
    for row, message in zip(rows, decode_records(data), strict=True):
        assert row["topic"] == message.topic
        assert row["bornHost"] == message.born_host
        assert row["storeHost"] == message.store_host
        assert row["offsetMsgId"] == row["msgId"] == message.offset_msg_id
        assert (row["reconsumeTimes"], row["preparedTransactionOffset"]) == (message.reconsume_times, message.prepared_offset)
        assert (row["flag"], milliseconds(row["storeTimestamp"])) == (message.flag, message.store_timestamp_ms)
    assert rows[1]["bornHost"] == "[2001:db8::5]:10911"


def test_plain_records_and_inner_batches_mix_in_one_buffer():
    inner = encode_batch([(7, b"one", encode_properties({"KEYS": "k1"})), (8, b"two", b"")])
    data = record(5, b"before") + record(6, inner, {"UNIQ_KEY": "outer"}, sys_flag=192) + record(8, b"after", {"TAGS": "t"})
    rows = decoded(data)
    assert [(r["queueOffset"], r["body"], r["flag"], r["batchNum"]) for r in rows] == [
        (5, b"before", 0, None),
        (6, b"one", 7, 2),
        (7, b"two", 8, 2),
        (8, b"after", 0, None),
    ]
    assert [r["keys"] for r in rows] == [None, "k1", None, None]
    assert [r["tags"] for r in rows] == [None, None, None, "t"]
    assert rows[2]["msgId"] is None, "a message without an id inside a batch has no record an id could point at"


def test_a_compressed_inner_batch_is_inflated_before_it_is_unwrapped():
    inner = compress(encode_batch([(0, b"x" * 100, b""), (1, b"y", b"")]), CompressionType.ZSTD)
    data = record(0, b"plain") + record(1, inner, sys_flag=192 | compression_flag(CompressionType.ZSTD)) + record(3, b"end")
    assert [r["body"] for r in decoded(data)] == [b"plain", b"x" * 100, b"y", b"end"]


LENGTHS = {
    "alike": [9] * 3000,
    "never twice": [i % 7 for i in range(400)],
    "in runs": [*[9] * 40, *[8] * 3, *[9] * 15, *[10] * 17, 9, 8, *[9] * 1100, 3],
    "in pairs": [i // 2 % 5 for i in range(600)],
    "one": [4],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_chains_of_records_are_followed_however_their_sizes_change(lengths):
    bodies = [b"%0*d" % (n, i % 10 ** max(n, 1)) if n else b"" for i, n in enumerate(lengths)]
    records = [record(i, body) for i, body in enumerate(bodies)]
    rows = PulledRows(b"".join(records))
    assert rows.offsets.tolist() == list(range(len(lengths)))
    assert [body for batch in decode_rows(rows, ("body",), "b") for body in batch["body"].to_pylist()] == bodies
    starts = [0]
    for one in records:
        starts.append(starts[-1] + len(one))
    known = PulledRows(b"".join(records), positions=starts[:-1])
    assert known.offsets.tolist() == list(range(len(lengths)))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_inner_batches_are_followed_however_the_sizes_in_them_change(lengths):
    bodies = [b"%0*d" % (n, i % 10 ** max(n, 1)) if n else b"" for i, n in enumerate(lengths)]
    cuts = [0, 1, 2, 20, 57, 58, 90, len(bodies)]
    batches = [bodies[low:high] for low, high in pairwise(cuts) if low < len(bodies)]
    data, offset = b"", 0
    for batch in batches:
        data += record(offset, encode_batch([(0, body, b"") for body in batch]), sys_flag=192)
        offset += len(batch)
    rows = decoded(data, ("queueOffset", "body", "batchNum"))
    assert [(row["queueOffset"], row["body"]) for row in rows] == list(enumerate(bodies))
    assert [row["batchNum"] for row in rows] == [len(batch) for batch in batches for _ in batch]


def test_a_record_of_another_size_among_many_alike_is_damage_where_it_does_not_chain():
    data = bytearray(b"".join(record(i, b"body") for i in range(100)))
    size = len(data) // 100
    pack_into(">i", data, 60 * size, 50)
    with pytest.raises(RemoteProtocolError, match=rf"record at byte {60 * size} has an impossible size 50"):
        PulledRows(data)
    with pytest.raises(RemoteProtocolError, match="does not end where the next begins"):
        PulledRows(data, positions=range(0, len(data), size))
    with pytest.raises(RemoteProtocolError, match="shorter than the shortest there is"):
        PulledRows(data, positions=[0, 10, *range(size, len(data), size)])


def test_an_inner_batch_left_whole_is_one_row_with_everything_a_record_has():
    inner = encode_batch([(7, b"one", encode_properties({"KEYS": "k1"})), (8, b"two", b"")])
    data = record(5, b"before") + record(6, inner, {"UNIQ_KEY": "outer", "INNER_NUM": "2"}, sys_flag=192) + record(8, b"after")
    pulled = PulledRows(data, unwrap=False)
    assert (pulled.offsets.tolist(), pulled.counts.tolist()) == ([5, 6, 8], [1, 2, 1])
    rows = [row for batch in decode_rows(pulled, tuple(COLUMNS), "b") for row in batch.to_pylist()]
    names = ("queueOffset", "body", "batchBaseOffset", "batchNum", "msgId", "sysFlag")
    assert tuple(rows[1][name] for name in names) == (6, inner, 6, 2, "outer", 192)
    assert rows[1]["offsetMsgId"] is not None
    assert rows[1]["storeSize"] > len(inner)
    assert [row["batchNum"] for row in rows] == [None, 2, None]


@pytest.mark.parametrize("stated", [{}, {"INNER_NUM": "many"}, {"INNER_NUM": "-3"}, {"INNER_NUM": "99999999999"}])
def test_a_batch_that_does_not_say_its_count_counts_for_one(stated):
    rows = PulledRows(record(6, b"no batch at all", stated, sys_flag=192), unwrap=False)
    assert rows.counts.tolist() == [1]


def test_recorded_batches_read_the_same_whole_as_message_by_message():
    data = recorded_queues("batchcq")["Bcq1", 0]
    whole = [row for batch in decode_rows(PulledRows(data, unwrap=False), tuple(COLUMNS), "b") for row in batch.to_pylist()]
    apart = decoded(data)
    assert [(r["batchBaseOffset"], r["batchNum"]) for r in whole] == sorted({(r["batchBaseOffset"], r["batchNum"]) for r in apart})
    assert [r["queueOffset"] for r in whole] == [r["batchBaseOffset"] for r in whole]


def test_rows_of_other_tags_are_left_out_whatever_they_came_in():
    tags = [{"TAGS": "a"}, {"TAGS": "b"}, {}, {"KEYS": "a"}]
    inner = encode_batch([(0, b"%d" % i, encode_properties(tag)) for i, tag in enumerate(tags)])
    records = [record(i, b"%d" % i, tag) for i, tag in enumerate(tags)]
    rows = PulledRows(b"".join(records) + record(4, inner, sys_flag=192))
    rows.keep_tags({"a", "c"})
    assert rows.offsets.tolist() == [0, 4]
    rows.keep_tags({"c"})
    assert len(rows) == 0


@pytest.mark.parametrize("kind", list(CompressionType))
def test_compressed_bodies_are_inflated_between_plain_ones(kind):
    bodies = [b"a" * 5000, b"plain", b"b" * 300_000, b"", b"c" * 9]
    data = b"".join(
        record(i, compress(body, kind), sys_flag=compression_flag(kind)) if len(body) > 1000 else record(i, body)
        for i, body in enumerate(bodies)
    )
    rows = decoded(data)
    assert [r["body"] for r in rows] == bodies
    assert all(r["sysFlag"] & 1 == 0 for r in rows)


def test_bodies_that_inflate_to_much_are_spread_over_batches():
    packed = compress(bytes(1 << 20), CompressionType.ZLIB)
    data = b"".join(record(i, packed, sys_flag=compression_flag(CompressionType.ZLIB)) for i in range(10))
    sizes = [batch.num_rows for batch in decode_rows(PulledRows(data), ("body",), "b", batch_bytes=3 << 20)]
    assert sizes == [3, 3, 3, 1]


def test_a_compressed_body_is_left_alone_when_nobody_wants_it():
    data = record(0, b"not zlib at all", sys_flag=compression_flag(CompressionType.ZLIB))
    assert decoded(data, ("queueOffset",)) == [{"queueOffset": 0}]
    with pytest.raises(RemoteProtocolError):
        decoded(data, ("body",))


@pytest.mark.parametrize(
    ("raw", "pairs"),
    [
        (b"", {}),
        (b"A\x01b", {"A": "b"}),
        (b"A\x01\x02B\x01c\x02", {"B": "c"}),
        (b"\x01v\x02B\x01c\x02", {"B": "c"}),
        (b"A\x01b\x02A\x01c\x02", {"A": "c"}),
        (b"A\x01b\x01c\x02", {"A": "b\x01c"}),
        (b"junk\x02A\x01b\x02", {"A": "b"}),
        (b"A\x01\xff\x02", {"A": "\ufffd"}),
        ("ключ\x01значение\x02".encode(), {"ключ": "значение"}),
    ],
)
def test_odd_property_strings_read_as_the_reference_reads_them(raw, pairs):
    neighbours = {"TAGS": "n", "UNIQ_KEY": "0A"}
    data = record(0, properties=neighbours) + record(1, raw=raw) + record(2, properties=neighbours)
    rows = decoded(data, ("properties", "tags", "msgId"))
    assert [r["properties"] for r in rows] == [neighbours, pairs, neighbours]
    assert [r["tags"] for r in rows] == ["n", pairs.get("TAGS"), "n"]
    assert [r["msgId"] for r in rows][::2] == ["0A", "0A"]


def test_a_repeated_standard_property_gives_its_last_value_everywhere():
    rows = decoded(record(raw=b"TAGS\x01old\x02TAGS\x01new\x02KEYS\x01k\x02"), ("tags", "keys", "properties"))
    assert rows == [{"tags": "new", "keys": "k", "properties": {"TAGS": "new", "KEYS": "k"}}]


@pytest.mark.parametrize("columns", [tuple(COLUMNS), DEFAULT_COLUMNS, ("queueId", "queueOffset"), ("body", "topic"), ("batchNum", "msgId")])
def test_every_batch_has_the_one_schema_spark_was_promised(columns):
    inner = record(2, encode_batch([(0, b"i", b"")]), sys_flag=192)
    for data in (record(0), record(0) + inner, record(0, raw=b"odd") + record(1, compress(b"z", CompressionType.LZ4), sys_flag=257)):
        for batch in decode_rows(PulledRows(data), columns, "b", batch_rows=1):
            assert batch.schema.equals(arrow_schema(columns))
            batch.validate(full=True)


@pytest.mark.parametrize("born", [2**63 - 1, -(2**63), 0])
def test_a_born_time_no_timestamp_can_hold_is_moved_to_the_nearest(born):
    [batch] = decode_rows(PulledRows(record(born_timestamp_ms=born)), ("bornTimestamp",), "b")
    limit = (2**63 - 1) // 1000 * 1000
    assert batch.column(0).cast(pa.int64()).to_pylist() == [max(-limit, min(limit, born * 1000))]


def test_batches_respect_rows_and_bytes_but_always_move():
    data = b"".join(record(i, bytes(1000)) for i in range(10))
    assert [b.num_rows for b in decode_rows(PulledRows(data), ("body",), "b", batch_rows=4)] == [4, 4, 2]
    assert [b.num_rows for b in decode_rows(PulledRows(data), ("body",), "b", batch_bytes=2500)] == [2] * 5
    assert [b.num_rows for b in decode_rows(PulledRows(data), ("body",), "b", batch_bytes=1)] == [1] * 10
    assert list(decode_rows(PulledRows(b""), ("body",), "b")) == []


def test_a_batch_can_be_taken_from_any_buffer():
    data = record(0, b"first") + record(1, b"second")
    for kind in (bytes, bytearray, memoryview):
        assert [r["body"] for r in decoded(kind(data), ("body",))] == [b"first", b"second"]
    assert isinstance(next(decode_rows(PulledRows(data), ("body",), "b")), pa.RecordBatch)


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (0, ">i", 0),
        (0, ">i", -1),
        (0, ">i", 2**31 - 1),
        (0, ">i", 90),
        (4, ">i", -875286124),
        (84, ">i", -1),
        (84, ">i", 2**31 - 1),
        (84, ">i", 200),
        (92, ">B", 255),
        (99, ">h", -2),
        (99, ">h", 32767),
    ],
)
def test_a_damaged_record_is_refused(at, layout, value):
    data = bytearray(record(0, b"body", {"TAGS": "x"}) + record(1))
    pack_into(layout, data, at, value)
    with pytest.raises(RemoteProtocolError):
        decoded(data)


@pytest.mark.parametrize("cut", [1, 50, 90, 100])
def test_a_record_that_is_cut_short_is_refused(cut):
    data = record(0) + record(1)
    with pytest.raises(RemoteProtocolError):
        decoded(data[:-cut])


@pytest.mark.parametrize(
    ("at", "layout", "value"), [(0, ">i", 21), (0, ">i", 10_000), (16, ">i", -1), (16, ">i", 500), (23, ">h", -1), (23, ">h", 99)]
)
def test_a_damaged_inner_batch_is_refused(at, layout, value):
    inner = bytearray(encode_batch([(0, b"one", b"A\x01b\x02"), (0, b"two", b"")]))
    pack_into(layout, inner, at, value)
    with pytest.raises(RemoteProtocolError):
        decoded(record(0, bytes(inner), sys_flag=192))


def test_random_damage_gives_a_value_or_a_protocol_error():
    """Flip every byte of a buffer with all kinds of records, one at a time."""
    inner = encode_batch([(0, b"one", b"A\x01b\x02")])
    good = record(0, b"b", {"TAGS": "x"}) + record(1, inner, sys_flag=192) + record(2, born_host=V6, topic=b"T" * 130)
    for at in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(good)
            data[at] ^= flip
            with suppress(RemoteProtocolError):
                for batch in decode_rows(PulledRows(data), tuple(COLUMNS), "b"):
                    batch.validate(full=True)
