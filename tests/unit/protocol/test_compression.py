"""Compression: others' frames are read, ours are read by others, and nothing grows past its cap."""

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag, decompress

ZLIB, LZ4, ZSTD = 0x301, 0x101, 0x201
every_kind = pytest.mark.parametrize("kind", CompressionType)


@given(
    st.binary(max_size=2000) | st.builds(lambda b, n: b * n, st.binary(min_size=1, max_size=8), st.integers(1, 5000)),
    st.sampled_from(CompressionType),
)
def test_content_comes_back_as_it_was(data, kind):
    packed = compress(data, kind)
    for source in (packed, memoryview(packed), bytearray(packed)):
        assert decompress(source, compression_flag(kind)) == data


@every_kind
def test_a_view_can_be_compressed(kind):
    assert decompress(compress(memoryview(b"abc"), kind), compression_flag(kind)) == b"abc"


def test_flags_say_compressed_and_how():
    assert {kind: compression_flag(kind) for kind in CompressionType} == {
        CompressionType.ZLIB: 769,
        CompressionType.ZSTD: 513,
        CompressionType.LZ4: 257,
    }


def test_no_kind_in_the_flag_means_zlib():
    assert decompress(compress(b"old client", CompressionType.ZLIB), 1) == b"old client"


@pytest.mark.parametrize(
    ("kind", "start"), [(CompressionType.ZLIB, "785e"), (CompressionType.LZ4, "04224d1860"), (CompressionType.ZSTD, "28b52ffd00")]
)
def test_our_frames_start_as_the_references_do(kind, start):
    assert compress(b"x" * 5_000_000, kind).hex().startswith(start)


@pytest.mark.parametrize("kind", [0, 4, 7])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(LocalProtocolError, match="unknown compression"):
        compress(b"x", kind)
    if kind:
        with pytest.raises(RemoteProtocolError, match=f"type {kind}"):
            decompress(b"x", kind << 8)


# --- frames other writers may make --------------------------------------------------------------------------------------

TEXT = bytes(range(256)) * 300


def zstd_streamed(piece: int, flush: int | None = None) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    parts = []
    for at in range(0, len(TEXT), piece):
        parts.append(stream.compress(TEXT[at : at + piece]))
        if flush is not None:
            parts.append(stream.flush(flush))
    return b"".join([*parts, stream.flush()])


FOREIGN = {
    "zlib level 1": (ZLIB, zlib.compress(TEXT, 1)),
    "zlib stored": (ZLIB, zlib.compress(TEXT, 0)),
    "lz4 linked blocks with checksums": (LZ4, lz4.frame.compress(TEXT, block_linked=True, content_checksum=True, block_checksum=True)),
    "lz4 small blocks and size": (LZ4, lz4.frame.compress(TEXT, block_size=lz4.frame.BLOCKSIZE_MAX64KB, store_size=True)),
    "zstd with size and checksum": (ZSTD, zstandard.ZstdCompressor(level=1, write_checksum=True).compress(TEXT)),
    "zstd level 19": (ZSTD, zstandard.ZstdCompressor(level=19, write_content_size=False).compress(TEXT)),
    "zstd streamed": (ZSTD, zstd_streamed(len(TEXT))),
    "zstd in many blocks": (ZSTD, zstd_streamed(999, zstandard.COMPRESSOBJ_FLUSH_BLOCK)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_any_valid_frame_is_accepted(name):
    flag, packed = FOREIGN[name]
    assert decompress(packed, flag) == TEXT


@pytest.mark.parametrize("name", FOREIGN)
def test_any_valid_frame_is_refused_cut_short(name):
    flag, packed = FOREIGN[name]
    step = max(1, len(packed) // 200)
    for end in {*range(0, len(packed), step), len(packed) - 1}:
        with pytest.raises(RemoteProtocolError):
            decompress(packed[:end], flag)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("tail", [b"\0", b"\n", b"x" * 50])
def test_any_valid_frame_is_refused_with_more_behind_it(name, tail):
    flag, packed = FOREIGN[name]
    with pytest.raises(RemoteProtocolError, match="after its end"):
        decompress(packed + tail, flag)


@every_kind
def test_a_second_frame_behind_the_first_is_refused(kind):
    packed = compress(b"one", kind)
    with pytest.raises(RemoteProtocolError, match="after its end"):
        decompress(packed + packed, compression_flag(kind))


@every_kind
def test_every_cut_of_an_empty_and_of_a_tiny_frame_is_refused(kind):
    for data in (b"", b"x"):
        packed = compress(data, kind)
        for end in range(len(packed)):
            with pytest.raises(RemoteProtocolError):
                decompress(packed[:end], compression_flag(kind))


@every_kind
def test_changed_bytes_are_refused_where_a_checksum_sees_them(kind):
    flag = compression_flag(kind)
    packed = {
        CompressionType.ZLIB: zlib.compress(TEXT),
        CompressionType.LZ4: lz4.frame.compress(TEXT, content_checksum=True),
        CompressionType.ZSTD: zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
    }[kind]
    damaged = bytearray(packed)
    damaged[-2] ^= 1
    with pytest.raises(RemoteProtocolError):
        decompress(damaged, flag)


@pytest.mark.parametrize("flag", [ZLIB, LZ4, ZSTD])
@pytest.mark.parametrize("data", [b"", b"x", b"plain text that was never compressed", bytes(100)])
def test_bytes_that_are_no_frame_are_refused(flag, data):
    with pytest.raises(RemoteProtocolError):
        decompress(data, flag)


def test_a_skippable_zstd_frame_is_refused():
    with pytest.raises(RemoteProtocolError, match="not a Zstandard frame"):
        decompress(b"\x50\x2a\x4d\x18\x04\0\0\0abcd", ZSTD)


# --- caps ---------------------------------------------------------------------------------------------------------------


@every_kind
def test_content_of_exactly_the_limit_is_accepted_and_one_byte_more_refused(kind):
    flag = compression_flag(kind)
    assert len(decompress(compress(bytes(50_000), kind), flag, max_bytes=50_000)) == 50_000
    with pytest.raises(RemoteProtocolError, match="50000"):
        decompress(compress(bytes(50_001), kind), flag, max_bytes=50_000)


@every_kind
def test_a_bomb_is_refused_at_the_default_limit(kind):
    bomb = compress(bytes(64 << 20), kind)
    assert len(bomb) < 500_000
    with pytest.raises(RemoteProtocolError, match=str(16 << 20)):
        decompress(bomb, compression_flag(kind))


def test_a_size_that_a_frame_claims_allocates_nothing():
    # Single-segment Zstandard frame that claims 2**62 bytes, and an LZ4 frame that does.
    claimed = (1 << 62).to_bytes(8, "little")
    with pytest.raises(RemoteProtocolError):
        decompress(b"\x28\xb5\x2f\xfd\xe0" + claimed + b"\x01\0\0", ZSTD)
    honest = lz4.frame.compress(b"x" * 100, store_size=True)
    with pytest.raises(RemoteProtocolError):
        decompress(honest[:6] + claimed + honest[14:], LZ4)
