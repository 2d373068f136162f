"""Checksums that other implementations must agree with."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.protocol.hashing import crc32, java_hash, tags_code, tags_code_raw


@given(st.binary(max_size=500))
def test_the_crc_is_zlibs_without_its_top_bit(data):
    assert crc32(data) == crc32(memoryview(data)) == zlib.crc32(data) & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("TagA", 2598919), ("TagB", 2598920), ("polygenelubricants", -(2**31)), ("é", 233), ("😀", 1772899)],
)
def test_java_hashes_are_javas(text, expected):
    assert java_hash(text) == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_java_hash_is_a_signed_32_bit_number_over_utf16_units(text):
    expected = 0
    raw = text.encode("utf-16-be")
    for i in range(0, len(raw), 2):
        expected = (31 * expected + int.from_bytes(raw[i : i + 2], "big")) % 2**32
    assert java_hash(text) == (expected - 2**32 if expected >= 2**31 else expected)


def test_tag_codes_are_hashes_and_no_tag_is_zero():
    assert tags_code("TagA") == tags_code_raw(b"TagA") == 2598919
    assert tags_code(None) == tags_code("") == tags_code_raw(b"") == 0
    assert tags_code("é") == tags_code_raw("é".encode())


def test_a_tag_that_is_not_utf8_still_has_a_code():
    assert tags_code_raw(b"\xff") == java_hash("\ufffd")
