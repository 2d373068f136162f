"""The array parser and the record-by-record one must agree on every log, whole or mutated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from sprocketmq.protocol.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_INNER_BATCH, SYSFLAG_STORE_HOST_V6
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.layout import QUEUE_UNIT
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.storage.bulk.parsing import parse_chunk
from sprocketmq.storage.bulk.record_search import find_record
from sprocketmq.storage.chunks import ParsedChunk
from sprocketmq.storage.index.key_hashing import entries_of_topics
from sprocketmq.storage.log.recovery import Scanned, parse_record, parse_records

V4 = pack_host("192.0.2.7", 40001)
V6 = pack_host("2001:db8::7", 40001)
LONG_TOPIC = b"%RETRY%" + b"g" * 130

PLAIN = b"UNIQ_KEY\x01%032X\x02TAGS\x01%s\x02KEYS\x01%s\x02"
TEXTS = st.sampled_from([b"", b"a", b"TagA", b"\xc3\xa4\xe4\xb8\xad", b"k1 k2", b" k  l ", b"\xf0\x9f\x98\x80 z", b"order-000123"])
PROPERTIES = st.one_of(
    st.just(b""),
    st.builds(lambda n, tag, key: PLAIN % (n, tag, key), st.integers(0, 9), TEXTS, TEXTS),
    st.builds(lambda tag: b"TAGS\x01" + tag, TEXTS),
    st.builds(lambda key: b"MYTAGS\x01x\x02KEYS\x01" + key + b"\x02", TEXTS),
    st.builds(lambda n, base: b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (n, base), st.integers(-1, 40000), st.integers(-1, 99)),
    st.builds(lambda level: b"DELAY\x01%d\x02REAL_TOPIC\x01x\x02" % level, st.integers(-1, 30)),
    st.binary(max_size=24).map(lambda b: b.replace(b"TAGS", b"tags")),
)
FLAGS = st.sampled_from([0, 0, 0, 0, 4, 8, 12, 1, SYSFLAG_INNER_BATCH, SYSFLAG_INNER_BATCH | 0x40 | 8])


@st.composite
def records(draw: st.DrawFn) -> dict[str, object]:
    return {
        "topic": draw(st.sampled_from([b"orders", b"orders", b"batchy", b"b", SCHEDULE_TOPIC.encode(), LONG_TOPIC])),
        "body": b"x" * draw(st.sampled_from([0, 1, 5, 5, 5, 300])),
        "properties": draw(PROPERTIES),
        "queue_id": draw(st.integers(0, 2)),
        "gap": draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1])),
        "sys_flag": draw(FLAGS),
        "hosts": draw(st.sampled_from([(V4, V4), (V4, V4), (V4, V4), (V6, V4), (V4, V6), (V6, V6)])),
        "repeat": draw(st.sampled_from([1, 1, 2, 15, 40])),
    }


def build(plan: list[dict[str, object]], base: int = 0) -> bytes:
    parts: list[bytes] = []
    at = base
    offsets: dict[tuple[object, object], int] = {}
    for entry in plan:
        for _ in range(entry["repeat"]):  # type: ignore[call-overload]
            queue = entry["topic"], entry["queue_id"]
            offset = max(offsets.get(queue, 0) + entry["gap"], 0)  # type: ignore[operator]
            born, stored = entry["hosts"]  # type: ignore[misc]
            flags = (SYSFLAG_BORN_HOST_V6 if len(born) == 20 else 0) | (SYSFLAG_STORE_HOST_V6 if len(stored) == 20 else 0)
            record = encode_record(
                topic=entry["topic"],  # type: ignore[arg-type]
                body=entry["body"],  # type: ignore[arg-type]
                properties=entry["properties"],  # type: ignore[arg-type]
                queue_id=entry["queue_id"],  # type: ignore[arg-type]
                queue_offset=offset,
                physical_offset=at,
                born_timestamp_ms=5,
                born_host=born,
                store_timestamp_ms=1_000_000 + at,
                store_host=stored,
                sys_flag=entry["sys_flag"] | flags,  # type: ignore[operator]
            )
            parts.append(record)
            at += len(record)
            offsets[queue] = offset + 1
    return b"".join(parts)


def expected_units(scanned: list[Scanned], batch_topics: frozenset[bytes]) -> dict[tuple[bytes, int], list[tuple[int, bytes]]]:
    """Return by queue what each record with a unit brings: its first queue offset and its unit."""
    units: dict[tuple[bytes, int], list[tuple[int, bytes]]] = {}
    for topic, queue_id, offset, physical, size, code, sys_flag, time_ms, count, _ in map(astuple, scanned):
        if sys_flag & 12 not in {0, 8} or (sys_flag & SYSFLAG_INNER_BATCH and topic not in batch_topics):
            continue
        unit = QUEUE_UNIT.pack(physical, size, code)
        if topic in batch_topics:
            unit += b"".join((n.to_bytes(length, "big") for n, length in ((time_ms, 8), (offset, 8), (count, 2))))
            unit += b"\xff" * 4 + b"\0" * 4
        units.setdefault((topic, queue_id), []).append((offset, unit))
    return units


def units_of(chunk: ParsedChunk, batch_topics: frozenset[bytes]) -> dict[tuple[bytes, int], list[tuple[int, bytes]]]:
    found: dict[tuple[bytes, int], list[tuple[int, bytes]]] = {}
    for run in chunk.queue_chunks:
        size = 46 if run.topic in batch_topics else 20
        offset = run.first_offset
        assert run.first_log_offset == int.from_bytes(run.units[:8], "big")
        for i in range(0, len(run.units), size):
            unit = run.units[i : i + size]
            found.setdefault((run.topic, run.queue_id), []).append((offset, unit))
            offset += int.from_bytes(unit[36:38], "big") if size == 46 else 1
        assert offset == run.next_offset
    return found


def check(data: bytes, base: int, begin: int, limit: int, batch_topics: frozenset[bytes] = frozenset()) -> ParsedChunk:
    """Parse ``data`` both ways from ``begin`` on, compare, and return the chunk."""
    scanned, _, _ = parse_records(memoryview(data)[begin:], base + begin, len(data) - begin, check_crc=True)
    scanned = [s for s in scanned if s.log_offset - base < limit]
    chunk = parse_chunk(memoryview(data), base, begin, limit, batch_topics=batch_topics)
    assert chunk.records == len(scanned)
    assert chunk.start == base + begin
    assert chunk.end == (scanned[-1].log_offset + scanned[-1].size if scanned else base + begin)
    if scanned:
        assert (chunk.last_log_offset, chunk.last_time_ms) == (scanned[-1].log_offset, scanned[-1].store_time_ms)
    assert units_of(chunk, batch_topics) == expected_units(scanned, batch_topics)
    hashes, physicals, times = [], [], []
    for topic, _, _, physical, _, _, sys_flag, time_ms, _, properties in map(astuple, scanned):
        if sys_flag & 12 != 12:
            found = entries_of_topics([topic], np.array([0]), [properties], np.array([physical]), np.array([time_ms]))
            hashes += found.hashes.tolist()
            physicals += found.log_offsets.tolist()
            times += found.times_ms.tolist()
    keys = chunk.keys
    assert (keys.hashes.tolist() if keys else []) == hashes
    assert (keys.log_offsets.tolist() if keys else []) == physicals
    assert (keys.times_ms.tolist() if keys else []) == times
    return chunk


@settings(max_examples=80, deadline=None)
@given(plan=st.lists(records(), min_size=1, max_size=8), batch=st.booleans(), cut=st.integers(0, 100))
def test_a_whole_log_gives_the_same_records_units_and_keys(plan: list[dict[str, object]], batch: bool, cut: int) -> None:
    data = build(plan, base=1 << 40)
    topics = frozenset([b"batchy", LONG_TOPIC]) if batch else frozenset()
    check(data, 1 << 40, 0, max(len(data) * cut // 100, 1), topics)


@settings(max_examples=100, deadline=None)
@given(
    plan=st.lists(records(), min_size=1, max_size=5),
    places=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4),
    tail=st.integers(0, 200),
)
def test_a_mutated_log_ends_at_the_same_record(plan: list[dict[str, object]], places: list[tuple[int, int]], tail: int) -> None:
    data = bytearray(build(plan))
    for place, value in places:
        data[place % len(data)] = value
    del data[len(data) - min(tail, len(data) - 1) :]
    check(bytes(data), 0, 0, len(data))


@settings(max_examples=40, deadline=None)
@given(plan=st.lists(records(), min_size=1, max_size=4), places=st.lists(st.tuples(st.integers(0, 87), st.integers(0, 255)), max_size=3))
def test_a_mutated_head_ends_the_log_at_the_same_record(plan: list[dict[str, object]], places: list[tuple[int, int]]) -> None:
    data = bytearray(build(plan))
    size = int.from_bytes(data[:4], "big")
    for place, value in places:
        data[place + size if size + 88 < len(data) else place] = value
    check(bytes(data), 0, 0, len(data))


@pytest.mark.parametrize(
    "field", [(0, 4), (12, 4), (20, 8), (28, 8), (36, 4), (84, 4)], ids=["size", "queue", "offset", "place", "flag", "body"]
)
@pytest.mark.parametrize("value", [0, 1, 90, 91, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_extreme_values_of_a_field_are_judged_alike(field: tuple[int, int], value: int) -> None:
    plan = {"topic": b"orders", "body": b"12345", "properties": b"TAGS\x01a\x02", "queue_id": 0, "gap": 0, "sys_flag": 0, "hosts": (V4, V4)}
    data = bytearray(build([{**plan, "repeat": 20}]))
    third = 2 * int.from_bytes(data[:4], "big")
    place, width = field
    data[third + place : third + place + width] = (value << (8 * (width - 4))).to_bytes(width, "big")
    check(bytes(data), 0, 0, len(data))


def test_properties_of_32768_bytes_are_none_as_their_length_is_negative() -> None:
    properties = b"K\x01" + b"v" * 32764 + b"\x02"
    plan = {
        "topic": b"orders",
        "body": b"",
        "properties": properties,
        "queue_id": 0,
        "gap": 0,
        "sys_flag": 0,
        "hosts": (V4, V4),
        "repeat": 1,
    }
    data = bytearray(build([plan]))
    assert check(bytes(data), 0, 0, len(data)).records == 1
    data[:4] = (len(data) + 1).to_bytes(4, "big")
    data[95 : 95 + 2] = (32768).to_bytes(2, "big")
    data += b"v"
    assert check(bytes(data), 0, 0, len(data)).records == 0
    assert parse_record(memoryview(data), 0, 0, check_crc=True) is None


def test_parked_messages_carry_their_delivery_time() -> None:
    properties = b"DELAY\x013\x02TAGS\x01a\x02"
    plan = {
        "topic": SCHEDULE_TOPIC.encode(),
        "body": b"x",
        "properties": properties,
        "queue_id": 2,
        "gap": 0,
        "sys_flag": 0,
        "hosts": (V4, V4),
    }
    data = build([{**plan, "repeat": 20}])
    [run] = check(data, 0, 0, len(data)).queue_chunks
    assert QUEUE_UNIT.unpack_from(run.units)[2] == 1_000_000 + 10_000


def test_one_layout_with_many_tags_is_read_by_columns() -> None:
    data = bytearray()
    for i in range(200):
        plan = {
            "topic": b"t%d" % (i % 40),
            "body": b"b" * (i % 3),
            "properties": PLAIN % (i, b"T%03d" % i, b"key%03d w%02d" % (i, i % 100)),
            "queue_id": i % 4,
            "gap": 0,
            "sys_flag": 12 if i % 50 == 0 else 0,
            "hosts": (V4, V4),
            "repeat": 1,
        }
        data += build([plan], base=len(data))
    chunk = check(bytes(data), 0, 0, len(data))
    codes = {unit[2] for run in chunk.queue_chunks for unit in QUEUE_UNIT.iter_unpack(run.units)}
    assert codes == {java_hash(f"T{i:03d}") for i in range(200) if i % 50}


def test_the_first_record_of_a_stretch_is_found_wherever_it_begins() -> None:
    plan = {"topic": b"orders", "body": b"12345" * 20, "properties": b"", "queue_id": 0, "gap": 0, "sys_flag": 0, "hosts": (V4, V4)}
    data = build([{**plan, "repeat": 400}], base=4096)
    size = int.from_bytes(data[:4], "big")
    view = memoryview(data)
    for begin in (0, 1, 3, 4, 5, size - 1, size, 65530 - 65530 % size - 3, 65536 - 8, 65537, 70000):
        expected = -(-begin // size) * size
        assert find_record(view, 4096, begin, len(data)) == (expected if expected < len(data) else -1)
    assert find_record(view, 4096, 1, size) == -1
    assert find_record(view, 4096, 1, size + 1) == size
    assert find_record(view, 4097, 0, len(data)) == -1
