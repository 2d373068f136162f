"""The batch body: byte layout, both ways, damage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import BLOCK_ROWS, MAX_BATCH_COUNT, encode_batch, scan_batch, split_batch, split_columns

entries = st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=60), st.binary(max_size=40))


@given(st.lists(entries, max_size=20))
def test_a_batch_splits_into_what_was_joined(messages):
    data = encode_batch(messages)
    assert len(data) == sum(22 + len(body) + len(properties) for _, body, properties in messages)
    for source in (data, memoryview(data), bytearray(data)):
        assert [(e.flag, bytes(e.body), e.properties) for e in split_batch(source)] == messages


def test_an_entry_has_its_fields_where_the_ruler_says():
    data = encode_batch([(7, b"body", b"TAGS\x01a\x02")])
    assert data == struct.pack(">iiiii", 22 + 4 + 7, 0, 0, 7, 4) + b"body" + b"\x00\x07TAGS\x01a\x02"


def test_an_empty_batch_has_no_entries():
    assert encode_batch([]) == b""
    assert split_batch(b"") == []


def test_entries_outlive_the_buffer_they_came_from():
    buffer = bytearray(encode_batch([(0, b"first", b"p")]))
    (entry,) = split_batch(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert (bytes(entry.body), entry.properties) == (b"first", b"p")


def test_magic_and_crc_of_an_entry_are_ignored():
    data = bytearray(encode_batch([(0, b"x", b"")]))
    struct.pack_into(">ii", data, 4, -1, 12345)
    assert len(split_batch(data)) == 1


def test_every_cut_is_refused():
    data = encode_batch([(0, b"one", b"p"), (0, b"two", b"")])
    borders = {0, 22 + 4, len(data)}
    for end in set(range(len(data))) - borders:
        with pytest.raises(RemoteProtocolError, match="batch entry"):
            split_batch(data[:end])


@pytest.mark.parametrize("size", [0, 1, 21, -1, 2**31 - 1, -(2**31), 25, 27])
def test_an_impossible_entry_size_is_refused(size):
    data = bytearray(encode_batch([(0, b"one", b"p")]))
    struct.pack_into(">i", data, 0, size)
    with pytest.raises(RemoteProtocolError, match="batch entry 0"):
        split_batch(data)


@pytest.mark.parametrize("length", [-1, 4, 5, 2**31 - 1, -(2**31)])
def test_an_impossible_body_length_is_refused(length):
    data = bytearray(encode_batch([(0, b"one", b"p")]))
    struct.pack_into(">i", data, 16, length)
    with pytest.raises(RemoteProtocolError, match="batch entry 0"):
        split_batch(data)


@pytest.mark.parametrize("length", [-1, 0, 2, 32767])
def test_an_impossible_property_length_is_refused(length):
    data = bytearray(encode_batch([(0, b"one", b"p")]))
    struct.pack_into(">h", data, 23, length)
    with pytest.raises(RemoteProtocolError, match="batch entry 0"):
        split_batch(data)


def test_the_second_entry_is_named_when_it_is_the_bad_one():
    with pytest.raises(RemoteProtocolError, match="batch entry 1"):
        split_batch(encode_batch([(0, b"one", b"p")]) + b"\0" * 22)


def test_more_entries_than_the_reference_can_count_are_refused():
    one = encode_batch([(0, b"", b"")])
    assert len(split_batch(one * MAX_BATCH_COUNT)) == MAX_BATCH_COUNT
    with pytest.raises(RemoteProtocolError, match="32767"):
        split_batch(one * (MAX_BATCH_COUNT + 1))


alike = st.builds(lambda entry, count: [entry] * count, entries, st.integers(2, 8))


@given(st.lists(entries, max_size=8) | alike, st.data())
def test_counting_and_splitting_agree_on_whatever_arrives(messages, data):
    body = bytearray(encode_batch(messages))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            at = data.draw(st.integers(0, len(body) - 1))
            body[at : at + 4] = data.draw(
                st.one_of(st.binary(max_size=4), st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]))
            )

    def outcome(count):
        try:
            return count()
        except RemoteProtocolError as e:
            return str(e)

    def rows():
        columns = split_columns(memoryview(body))
        return list(zip(columns.flags, columns.bodies, columns.properties, strict=True))

    assert outcome(lambda: scan_batch(memoryview(body))[0]) == outcome(lambda: len(split_batch(bytes(body))))
    assert outcome(rows) == outcome(lambda: split_batch(bytes(body)))


def test_columns_tell_the_lengths_that_all_messages_share():
    several = [(flag, bytes([flag]) * 3, b"TAGS\x01%d\x02" % flag) for flag in (1, 2, 3)]
    columns = split_columns(memoryview(encode_batch(several)))
    assert columns.lengths == (3, 7)
    assert list(zip(columns.flags, columns.bodies, columns.properties, strict=True)) == several
    for other in ([], several[:1], [*several, (0, b"longer", b"TAGS\x01a\x02")], [*several, (0, b"", b"TAGS\x01longer\x02")]):
        columns = split_columns(encode_batch(other))
        assert columns.lengths is None
        assert list(zip(columns.flags, columns.bodies, columns.properties, strict=True)) == other


def test_batches_of_more_messages_than_one_block_are_the_same():
    count = 2 * BLOCK_ROWS + 1
    several = [(flag, b"%05d" % flag, b"KEYS\x01%05d\x02" % flag) for flag in range(count)]
    encoded = encode_batch(several)
    columns = split_columns(encoded)
    assert columns.lengths == (5, 11)
    assert list(zip(columns.flags, columns.bodies, columns.properties, strict=True)) == several == split_batch(encoded)
    assert scan_batch(encoded) == (count, b"".join(properties for _, _, properties in several))


def test_more_entries_than_the_reference_can_count_are_not_counted():
    entry = encode_batch([(0, b"", b"")])
    assert scan_batch(entry * MAX_BATCH_COUNT)[0] == MAX_BATCH_COUNT
    with pytest.raises(RemoteProtocolError, match="32768 messages"):
        scan_batch(entry * (MAX_BATCH_COUNT + 1))
