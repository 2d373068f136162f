"""The property string: pairs both ways, what readers drop, what writers refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, RESERVED, decode_properties, encode_properties, find_property

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)
pairs = st.dictionaries(words, words, max_size=8)


@given(pairs)
def test_pairs_decode_to_what_was_encoded(properties):
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    assert decode_properties(memoryview(data)) == properties
    assert not data or data.endswith(b"\x02")


@given(pairs)
def test_every_pair_is_found_without_decoding_the_others(properties):
    data = encode_properties(properties)
    for name, value in properties.items():
        assert find_property(data, name.encode()) == value.encode()


def test_a_pair_is_written_with_both_separators():
    assert encode_properties({"TAGS": "a", "KEYS": "k1 k2"}) == b"TAGS\x01a\x02KEYS\x01k1 k2\x02"
    assert encode_properties({}) == b""


def test_pairs_with_an_empty_value_are_left_out():
    assert encode_properties({"KEYS": "", "TAGS": "a"}) == b"TAGS\x01a\x02"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"TAGS\x01a", {"TAGS": "a"}),
        (b"TAGS\x01a\x02\x02\x02KEYS\x01k", {"TAGS": "a", "KEYS": "k"}),
        (b"KEYS\x01\x02TAGS\x01a\x02", {"TAGS": "a"}),
        (b"\x01value\x02TAGS\x01a\x02", {"TAGS": "a"}),
        (b"no separator\x02TAGS\x01a\x02", {"TAGS": "a"}),
        (b"A\x01b\x01c\x02", {"A": "b\x01c"}),
        (b"A\x011\x02A\x012\x02", {"A": "2"}),
    ],
)
def test_odd_strings_are_read_as_the_reference_reads_them(data, expected):
    assert decode_properties(data) == expected


@pytest.mark.parametrize("properties", [{"a\x01b": "c"}, {"a": "b\x02c"}, {"a\x02": "c"}, {"a": "\x01"}, {"": "x"}, {"": ""}])
def test_separators_and_empty_names_are_refused(properties):
    with pytest.raises(LocalProtocolError, match="separators"):
        encode_properties(properties)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(LocalProtocolError, match="UTF-8"):
        encode_properties({"a": "\ud800"})


def test_the_length_limit_counts_bytes_of_the_whole_string():
    assert len(encode_properties({"a": "x" * (MAX_PROPERTIES_LENGTH - 3)})) == MAX_PROPERTIES_LENGTH
    with pytest.raises(LocalProtocolError, match="32768 bytes"):
        encode_properties({"a": "x" * (MAX_PROPERTIES_LENGTH - 2)})
    with pytest.raises(LocalProtocolError, match="limit"):
        encode_properties({"a": "é" * 16383})


def test_bytes_that_are_not_utf8_are_refused():
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        decode_properties(b"a\x01\xff\x02")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (b"TAGS\x01a\x02", b"a"),
        (b"TAGS\x01a", b"a"),
        (b"TAGS\x01\x02", None),
        (b"MYTAGS\x01x\x02TAGS\x01a\x02", b"a"),
        (b"A\x01TAGS\x02TAGS\x01a\x02", b"a"),
        (b"MYTAGS\x01x\x02", None),
        (b"KEYS\x01k\x02TAGS\x01b c\x02WAIT\x01true\x02", b"b c"),
    ],
)
def test_a_name_is_found_only_as_a_whole(data, expected):
    assert find_property(data, b"TAGS") == expected


def test_standard_keys_are_reserved():
    assert {"TAGS", "KEYS", "WAIT", "UNIQ_KEY", "DELAY", "RETRY_TOPIC", "INNER_NUM", "__CRC32#"} <= RESERVED
