"""Stored records: byte layout, both versions, both host families, damage."""

import contextlib
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.layout import MAGIC_BLANK
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import (
    ReceivedMessage,
    Record,
    decode_records,
    encode_record,
    locate_records,
    pack_host,
    unpack_host,
    walk_records,
)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
ports = st.integers(0, 65535)
hosts = st.builds(pack_host, st.ip_addresses().map(str), ports)
topics = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).map(str.encode)
property_maps = st.dictionaries(st.text("abcdéZ", min_size=1, max_size=8), st.text("xyz ü", min_size=1, max_size=8), max_size=5)

V4 = pack_host("127.0.0.1", 10911)
V6 = pack_host("fd00::2", 10911)
PLAIN: dict[str, object] = {
    "topic": b"T",
    "body": b"hello",
    "properties": b"TAGS\x01a\x02",
    "queue_id": 3,
    "queue_offset": 42,
    "physical_offset": 4096,
    "born_timestamp_ms": 1_700_000_000_000,
    "born_host": V4,
    "store_timestamp_ms": 1_700_000_000_001,
    "store_host": V4,
}


def record(**changes: object) -> bytes:
    return encode_record(**{**PLAIN, **changes})  # type: ignore[arg-type]


def message(raw: bytes) -> ReceivedMessage:
    (found,) = decode_records(raw, broker_name="broker-a")
    return found


@given(topics, st.binary(max_size=200), property_maps, int32, int64, int64, int64, hosts, int64, hosts, int32, int32, int64)
def test_a_record_decodes_to_what_was_encoded(
    topic, body, properties, queue_id, queue_offset, physical, born_ms, born_host, store_ms, store_host, flag, reconsume, prepared
):
    raw = encode_record(
        topic=topic,
        body=body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical,
        born_timestamp_ms=born_ms,
        born_host=born_host,
        store_timestamp_ms=store_ms,
        store_host=store_host,
        flag=flag,
        reconsume_times=reconsume,
        prepared_offset=prepared,
    )
    found = message(raw)
    assert struct.unpack_from(">i", raw)[0] == len(raw) == found.store_size
    assert (found.topic.encode(), found.body, bytes(found.stored_body), found.properties) == (topic, body, body, properties)
    assert (found.queue_id, found.queue_offset, found.commitlog_offset, found.flag) == (queue_id, queue_offset, physical, flag)
    assert (found.born_timestamp_ms, found.store_timestamp_ms) == (born_ms, store_ms)
    assert (found.reconsume_times, found.prepared_offset) == (reconsume, prepared)
    assert found.body_crc == crc32(body)
    assert found.sys_flag == 16 * (len(born_host) == 20) + 32 * (len(store_host) == 20)
    for text, packed in ((found.born_host, born_host), (found.store_host, store_host)):
        ip, _, port = text.rpartition(":")
        assert pack_host(ip.strip("[]"), int(port)) == packed
    found.verify_crc()


def test_a_record_has_its_fields_where_the_ruler_says():
    raw = record(flag=7, sys_flag=1 << 10, reconsume_times=2, prepared_offset=9)
    head = struct.unpack_from(">iIiiiqqiq8sq8siqi", raw)
    assert head == (
        *(len(raw), 0xDAA320A7, crc32(b"hello"), 3, 7, 42, 4096, 1024, 1_700_000_000_000, V4, 1_700_000_000_001, V4),
        *(2, 9, 5),
    )
    assert raw[88:] == b"hello" + b"\x01T" + b"\x00\x07TAGS\x01a\x02"
    assert len(raw) == 91 + 5 + 1 + 7


@pytest.mark.parametrize(("born", "store", "size"), [(V4, V4, 91), (V6, V4, 103), (V4, V6, 103), (V6, V6, 115)])
def test_each_ipv6_host_takes_twelve_bytes_more(born, store, size):
    raw = record(born_host=born, store_host=store, topic=b"", body=b"", properties=b"")
    assert len(raw) == size


def test_host_bits_of_the_caller_are_replaced():
    assert message(record(sys_flag=0x30)).sys_flag == 0
    assert message(record(sys_flag=0, store_host=V6)).sys_flag == 0x20


@pytest.mark.parametrize(
    ("length", "magic", "head"), [(127, 0xDAA320A7, b"\x7f"), (128, 0xDAA320AB, b"\x00\x80"), (255, 0xDAA320AB, b"\x00\xff")]
)
def test_a_topic_over_127_bytes_makes_a_record_of_the_second_version(length, magic, head):
    raw = record(topic=b"t" * length, body=b"")
    assert struct.unpack_from(">I", raw, 4)[0] == magic
    assert raw[88 : 88 + len(head) + 1] == head + b"t"
    assert message(raw).topic == "t" * length
    assert message(raw).properties == {"TAGS": "a"}


def test_properties_over_their_limit_are_refused():
    assert message(record(properties=b"x" * 32767)).raw_properties == b"x" * 32767
    with pytest.raises(LocalProtocolError, match="32767"):
        record(properties=b"x" * 32768)


def test_standard_properties_have_attributes():
    found = message(record(properties=b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID\x02"))
    assert (found.tag, found.keys, found.msg_id) == ("a", ["k1", "k2"], "ID")
    assert found.offset_msg_id == "7F00000100002A9F0000000000001000"
    bare = message(record(properties=b""))
    assert (bare.tag, bare.keys, bare.msg_id) == (None, [], bare.offset_msg_id)
    assert repr(found) == "ReceivedMessage('T', queue 3 offset 42, msg_id='ID')"


@pytest.mark.parametrize("kind", CompressionType)
def test_compressed_bodies_inflate_when_they_are_touched(kind):
    packed = compress(b"x" * 5000, kind)
    found = message(record(body=packed, sys_flag=compression_flag(kind)))
    assert found.body == b"x" * 5000
    assert bytes(found.stored_body) == packed
    found.verify_crc()


def test_a_compressed_body_that_does_not_inflate_is_refused():
    found = message(record(body=b"no zlib", sys_flag=1))
    with pytest.raises(RemoteProtocolError, match="decompress"):
        _ = found.body


# --- inner batches ------------------------------------------------------------------------------------------------------


def inner_batch() -> bytes:
    body = encode_batch([(1, b"one", b"TAGS\x01a\x02"), (2, b"", b""), (3, b"three", b"KEYS\x01k\x02")])
    return record(body=body, sys_flag=192, properties=b"INNER_NUM\x013\x02", reconsume_times=5)


@pytest.mark.parametrize("size", [2, 8192, 8193, 1 << 20])
def test_a_body_is_the_same_each_time_and_a_large_one_is_cut_out_once(size):
    body = bytes([size % 251]) * size
    for found in (message(record(body=body)), decode_records(record(body=encode_batch([(0, body, b"")]), sys_flag=192))[0]):
        assert found.body == found.body == found.stored_body == body
        assert (found.body is found.body) == (size > 8192)


def test_an_inner_batch_becomes_its_messages():
    found = decode_records(record() + inner_batch() + record(queue_offset=45), broker_name="broker-a", verify_crc=True)
    assert [m.queue_offset for m in found] == [42, 42, 43, 44, 45]
    assert [m.body for m in found[1:4]] == [b"one", b"", b"three"]
    assert [m.flag for m in found[1:4]] == [1, 2, 3]
    assert [m.properties for m in found[1:4]] == [{"TAGS": "a"}, {}, {"KEYS": "k"}]
    assert {(m.topic, m.queue_id, m.born_host, m.broker_name, m.reconsume_times) for m in found[1:4]} == {
        ("T", 3, "127.0.0.1:10911", "broker-a", 0)
    }


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=3), st.binary(max_size=3)), min_size=1, max_size=9), st.integers(1, 9))
def test_an_inner_batch_becomes_its_messages_whatever_their_lengths(entries, times):
    for batch in (entries, entries[:1] * times):
        found = decode_records(record() + record(body=encode_batch(batch), sys_flag=192))[1:]
        assert [(m.flag, m.body, m.raw_properties, m.queue_offset) for m in found] == [(*one, 42 + i) for i, one in enumerate(batch)]


FIELDS = (
    *(
        "topic",
        "body",
        "queue_id",
        "queue_offset",
        "flag",
        "properties",
        "tag",
        "keys",
        "msg_id",
        "offset_msg_id",
        "raw_properties",
        "stored_body",
    ),
    *("store_size", "body_crc", "commitlog_offset", "sys_flag", "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host"),
    *("reconsume_times", "prepared_offset", "broker_name", "is_inner"),
)


def like_records(count: int) -> list[bytes]:
    return [
        record(
            queue_offset=i, physical_offset=i * 104, body=b"%05d" % i, flag=i, properties=b"TAGS\x01%d\x02" % (i % 10), prepared_offset=i
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [2, 31, 32, 33, 65])
def test_records_of_the_same_lengths_are_what_each_is_alone(count):
    each = like_records(count)
    data = b"".join(each)
    for start, found in enumerate(decode_records(data, broker_name="b")):
        alone = Record(data, start * len(each[0]), len(each[0]), "b")
        assert [getattr(found, name) for name in FIELDS] == [getattr(alone, name) for name in FIELDS]
        assert found.has_tag({b"3"}) == alone.has_tag({b"3"})
        found.verify_crc()


PROPERTY_STRINGS = [
    b"",
    b"TAGS\x01a\x02",
    b"WAIT\x01true\x02TAGS\x01b\x02UNIQ_KEY\x01K1\x02",
    b"KEYS\x01k TAGS\x02TAGS\x01a",
    b"TAGS\x01\x02UNIQ_KEY\x01K2",
    b"UNIQ_KEY\x01K3\x02MYTAGS\x01a\x02",
]


def unlike_records(count: int) -> list[bytes]:
    """Records whose bodies and properties have several lengths, some with long topics, one with a large body."""
    return [
        record(
            queue_offset=i,
            physical_offset=i * 104,
            topic=b"T" * (200 if i % 11 > 7 else 1),
            body=b"%d" % i * (i % 7 if i != 5 else 9000),
            flag=i,
            properties=PROPERTY_STRINGS[i % 6],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_records_of_several_lengths_are_what_each_is_alone(count):
    each = unlike_records(count)
    for raw, found in zip(each, decode_records(b"".join(each), broker_name="b"), strict=True):
        alone = Record(raw, 0, len(raw), "b")
        assert [getattr(found, name) for name in FIELDS] == [getattr(alone, name) for name in FIELDS]
        assert (found.unique_key, found.has_tag({b"a"})) == (alone.unique_key, alone.has_tag({b"a"}))
        found.verify_crc()


def test_messages_of_a_batch_with_several_lengths_are_what_each_is_alone():
    raw = record(
        body=encode_batch([(i, b"%d" % i * (i % 7 if i != 5 else 9000), PROPERTY_STRINGS[i % 6]) for i in range(40)]), sys_flag=192
    )
    found = decode_records(raw, broker_name="b")
    for one, alone in zip(found, Record(raw, 0, len(raw), "b").inner_messages(), strict=True):
        assert [getattr(one, name) for name in FIELDS] == [getattr(alone, name) for name in FIELDS]
        assert (one.unique_key, one.has_tag({b"a"})) == (alone.unique_key, alone.has_tag({b"a"}))


@pytest.mark.parametrize("tags", [{b"a"}, {b"b", b"3"}, {b"a", b"b"}, {b"nobody's"}])
def test_tags_choose_the_same_messages_before_they_are_created_and_after(tags):
    alike = b"".join(record(queue_offset=i, properties=b"WAIT\x01true\x02TAGS\x01a\x02") for i in range(5))
    for data in (b"", mixed(), alike, b"".join(like_records(40)), b"".join(unlike_records(40)), inner_batch()):
        expected = [(m.queue_offset, m.body) for m in decode_records(data) if m.has_tag(tags)]
        assert [(m.queue_offset, m.body) for m in locate_records(data).with_tags(tags)] == expected


@pytest.mark.parametrize("place", [*range(8), *range(36, 40), *range(84, 88)])
def test_a_record_that_differs_in_one_byte_of_its_head_is_not_taken_for_its_neighbours(place):
    raw = bytearray(b"".join(like_records(3)))
    raw[len(raw) // 3 + place] ^= 1
    alone = bytes(raw[len(raw) // 3 : 2 * len(raw) // 3])
    try:
        expected = Record(alone, 0, walk_records(alone)[0][1]).body
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            _ = [m.body for m in decode_records(bytes(raw))]
    else:
        assert decode_records(bytes(raw))[1].body == expected


def mixed() -> bytes:
    return record() + inner_batch() + record(body=encode_batch([(i, b"%d" % i, b"") for i in range(5)]), sys_flag=192) + record()


@pytest.mark.parametrize("data", [b"", mixed(), b"".join(like_records(40))], ids=["nothing", "mixed", "alike"])
def test_located_messages_are_a_sequence(data):
    whole = [(m.queue_offset, m.body) for m in decode_records(data)]
    found = locate_records(data)
    assert len(found) == len(whole)
    assert [(m.queue_offset, m.body) for m in found] == whole
    for start in range(-3, len(whole) + 2):
        for stop in range(-3, len(whole) + 2, 3):
            assert [(m.queue_offset, m.body) for m in found[start:stop]] == whole[start:stop]
    assert [m.body for m in found[::-2]] == [body for _, body in whole[::-2]]
    for index in range(-len(whole), len(whole)):
        assert (found[index].queue_offset, found[index].body) == whole[index]
    for index in (len(whole), -len(whole) - 1):
        with pytest.raises(IndexError):
            _ = found[index]


def test_a_damaged_inner_batch_is_refused():
    with pytest.raises(RemoteProtocolError, match="batch entry"):
        decode_records(record(body=b"\0" * 10, sys_flag=192))


@pytest.mark.parametrize(
    "entry",
    [
        struct.pack(">iiiii", 0, 0, 0, 0, 1) + b"x\0\0",
        struct.pack(">iiiii", -5, 0, 0, 0, 1) + b"x\0\0",
        struct.pack(">iiiii", 999, 0, 0, 0, 1) + b"x\0\0",
        struct.pack(">iiiii", 23, 0, 0, 0, -1) + b"x\0\0",
        struct.pack(">iiiii", 23, 0, 0, 0, 2**31 - 1) + b"x\0\0",
        struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x\0\1",
        struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x\0\0" + b"cut",
        (struct.pack(">iiiii", 25, 0, 0, 0, 1) + b"x\0\1pp") * 3,
    ],
    ids=["size 0", "negative", "past the end", "negative body", "body past the end", "properties past the end", "cut short", "all alike"],
)
def test_an_inner_batch_that_makes_no_sense_is_refused_or_comes_whole(entry):
    damaged = record(body=entry, sys_flag=192)
    with pytest.raises(RemoteProtocolError, match="batch entry"):
        decode_records(record() + damaged)
    whole: list[ReceivedMessage] = []
    found = decode_records(record() + damaged + inner_batch(), whole=whole)
    assert [m.body for m in found] == [b"hello", entry, b"one", b"", b"three"]
    assert whole == [found[1]]
    assert not whole[0].is_inner


def test_an_inner_batch_of_more_than_32767_messages_is_refused():
    entry = encode_batch([(0, b"x", b"")])
    assert len(decode_records(record(body=entry * 32767, sys_flag=192))) == 32767
    with pytest.raises(RemoteProtocolError, match="32768"):
        decode_records(record(body=entry * 32768, sys_flag=192))


@given(property_maps, st.sampled_from([None, "a", "b", "ä"]), st.booleans(), st.booleans())
def test_a_tag_is_found_wherever_it_stands(properties, tag, last, ended):
    pairs = {**properties, "XTAGS": "b"}
    tags = {} if tag is None else {"TAGS": tag}
    raw = encode_properties({**pairs, **tags} if last else {**tags, **pairs})
    raw = raw if ended else raw.removesuffix(b"\x02")
    inner = record(body=encode_batch([(0, b"", raw)]), sys_flag=192)
    for found in (message(record(properties=raw)), message(inner), Record(record(properties=raw), 0, len(record(properties=raw)))):
        assert found.has_tag({b"a", "ä".encode()}) == (tag in ("a", "ä"))
        assert found.tag == tag


# --- damage -------------------------------------------------------------------------------------------------------------


def test_records_are_walked_one_after_the_other():
    first, second = record(), record(body=b"longer body")
    assert walk_records(first + second) == [(0, len(first)), (len(first), len(second))]
    assert walk_records(b"") == []
    assert decode_records(b"") == []


@pytest.mark.parametrize("magic", [MAGIC_BLANK, 0, -1])
def test_another_magic_number_is_refused(magic):
    raw = bytearray(record())
    struct.pack_into(">i", raw, 4, magic)
    with pytest.raises(RemoteProtocolError, match="magic"):
        walk_records(bytes(raw))


@pytest.mark.parametrize("size", [0, 90, -1, 2**31 - 1, 105])
def test_an_impossible_size_is_refused(size):
    raw = bytearray(record())
    struct.pack_into(">i", raw, 0, size)
    with pytest.raises(RemoteProtocolError, match=r"size|cut short"):
        walk_records(bytes(raw))


def test_a_cut_tail_is_refused():
    raw = record()
    for end in (*range(1, len(raw)), len(raw) + 50):
        with pytest.raises(RemoteProtocolError):
            walk_records((raw + raw)[:end])


def test_a_changed_body_fails_its_crc():
    raw = bytearray(record())
    raw[88] ^= 1
    assert decode_records(bytes(raw))[0].body == b"iello"
    with pytest.raises(RemoteProtocolError, match="CRC"):
        decode_records(bytes(raw), verify_crc=True)


@pytest.mark.parametrize(
    ("at", "layout", "value"), [(84, ">i", -1), (84, ">i", 6000), (84, ">i", 2**31 - 1), (93, ">B", 200), (95, ">h", -1), (95, ">h", 9)]
)
def test_lengths_that_do_not_fit_the_record_are_refused(at, layout, value):
    raw = bytearray(record())
    struct.pack_into(layout, raw, at, value)
    found = Record(bytes(raw), 0, len(raw))
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        _ = found.properties


def test_a_neighbour_is_never_read_into():
    # A body length that ends inside the next record must not give that record's bytes.
    raw = bytearray(record() + record(body=b"secret"))
    struct.pack_into(">i", raw, 84, 60)
    found = decode_records(bytes(raw))[0]
    with pytest.raises(RemoteProtocolError):
        _ = found.body


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        _ = message(record(topic=b"\xff")).topic
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        _ = message(record(properties=b"\xff\x01a\x02")).properties


def test_a_pulled_buffer_may_be_any_kind_of_bytes():
    raw = record() + record(queue_offset=43)
    for data in (raw, memoryview(raw), memoryview(bytearray(raw))):
        assert [(m.queue_offset, m.body, m.topic) for m in decode_records(data)] == [(42, b"hello", "T"), (43, b"hello", "T")]


# --- hosts --------------------------------------------------------------------------------------------------------------


@given(st.ip_addresses(), ports)
def test_a_host_unpacks_to_what_was_packed(ip, port):
    packed = pack_host(str(ip), port)
    assert len(packed) == {4: 8, 6: 20}[ip.version]
    text, found = unpack_host(packed)
    assert (ip_address(text), found) == (ip_address(int(ip)) if ip.version == 4 else type(ip)(int(ip)), port)


def test_an_ipv6_zone_is_left_out():
    assert pack_host("fe80::1%eth0", 1) == pack_host("fe80::1", 1)


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "1.2.3.4.5", "::g"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(LocalProtocolError, match="not an IP address"):
        pack_host(text, 1)


@pytest.mark.parametrize("size", [0, 4, 7, 9, 16, 21])
def test_a_host_of_another_length_is_refused(size):
    with pytest.raises(RemoteProtocolError, match="8 or 20"):
        unpack_host(bytes(size))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_records_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        decode_records(data)
