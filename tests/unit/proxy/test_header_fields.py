"""Header fields on the wire: decoded as ``hpack`` does it."""

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.proxy.frames import decoded

from sprocketmq.proxy.header_fields import TABLE_BYTES, FieldDecoder, literal_fields

NAMES = st.sampled_from([":path", ":method", "te", "x-mq-client-id", "x-mq-request-id", "n" * 200])
FIELDS = st.lists(st.tuples(NAMES, st.sampled_from(["", "POST", "trailers", "v" * 900]) | st.text(max_size=40)), max_size=12)
LIMIT = 32 << 10


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.none() | st.integers(0, TABLE_BYTES), st.integers(0, 2)), max_size=8))
def test_blocks_of_a_connection(blocks):
    """Fields that are named by number, added to the table and thrown out of it, with and without Huffman's code, in any order."""
    encoder, decoder, other = hpack.Encoder(), FieldDecoder(LIMIT), hpack.Decoder(LIMIT)
    for fields, huffman, table_bytes, never in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        sensitive = [hpack.NeverIndexedHeaderTuple(*field) if i % 3 < never else field for i, field in enumerate(fields)]
        block = encoder.encode(sensitive, huffman=huffman)
        assert decoder.decode(block) == fields == [tuple(field) for field in other.decode(block)]


@given(st.binary(max_size=80))
@example(b"\xff\xff\xff\xff\xff\x7f")
@example(b"\x3f\xe1\x1f")
def test_any_bytes_are_decoded_as_hpack_does_it_or_refused(block):
    try:
        expected = hpack.Decoder(LIMIT).decode(block, raw=True)
    except hpack.HPACKError:
        expected = None
    try:
        found = FieldDecoder(LIMIT).decode(block)
    except hpack.HPACKError:
        found = None
    else:
        assert found == [(name.decode("utf-8", "replace"), value.decode("utf-8", "replace")) for name, value in expected or ()]
    assert found is None or expected is not None


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (b"\x80", "no field 0"),
        (b"\xfe", "not there"),
        (b"\x40\x05abc", "cut short"),
        (b"\x40\x01a", "cut short"),
        (b"\x7f", "cut short"),
        (b"\x82\x20", "after the first field"),
        (b"\x3f\xe2\x1f", "a table of 4097 bytes"),
        (b"\xff\x80\x80\x80\x80\x80\x01", "too large"),
        (b"\x00\x01a\x81\x00", "(?i)huffman"),
    ],
)
def test_blocks_that_are_none(block, problem):
    with pytest.raises(hpack.HPACKError, match=problem):
        FieldDecoder(LIMIT).decode(block)


def test_fields_are_bounded_however_short_their_block_is():
    decoder = FieldDecoder(1000)
    block = b"\x40" + b"\x04name" + b"\x7f\xa1\x02" + b"x" * 416
    assert decoder.decode(block) == [("name", "x" * 416)]
    assert len(decoder.decode(b"\xbe\xbe")) == 2
    with pytest.raises(hpack.OversizedHeaderListError):
        decoder.decode(b"\xbe\xbe\xbe")


@given(st.text(max_size=400), st.text(alphabet="abc-", min_size=1, max_size=200))
def test_literal_fields_of_any_length(value, name):
    assert decoded(literal_fields((name, value))) == {name: value}
