"""Message body compression: zlib, LZ4 frame and Zstandard, capped on the way out (docs/internals/messages.md#compression).

The libraries load when they are first used: most programs never meet more than one of them.
"""

import threading
import zlib
from enum import IntEnum
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sprocketmq.errors import LocalProtocolError, PartNotInstalled, RemoteProtocolError
from sprocketmq.protocol.codes import SYSFLAG_COMPRESSED

if TYPE_CHECKING:
    import zstandard

# One frame of the protocol: no valid client compresses a larger body.
MAX_DECOMPRESSED = 16 << 20

LEVEL = 5

_local = threading.local()

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_MAX_BLOCK = 128 * 1024
_ZSTD_MAX_WINDOW = 1 << 27  # the window that the format requires readers of "ultra" frames to accept


class CompressionType(IntEnum):
    """Compression as bits 8 to 10 of a sysFlag; 0 there means zlib (old clients)."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


# The packages that sprocketmq-client does not bring along.
_PACKAGES = {CompressionType.LZ4: "lz4", CompressionType.ZSTD: "zstandard"}


def compression_flag(kind: CompressionType) -> int:
    """Return the sysFlag bits that say "compressed with ``kind``"."""
    return SYSFLAG_COMPRESSED | kind << 8


def check_library(kind: CompressionType) -> None:
    """Raise PartNotInstalled when the library of ``kind`` is not installed; it is not loaded."""
    package = _PACKAGES.get(kind)
    if package and find_spec(package) is None:
        raise _not_installed(package)


def _not_installed(package: str) -> PartNotInstalled:
    return PartNotInstalled(f"the compression library {package}", f"pip install {package}")


def _library(name: str) -> Any:
    """Import a module of a compression library. Raises PartNotInstalled."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise _not_installed(name.partition(".")[0]) from None


def compress(data: bytes | memoryview, kind: CompressionType) -> bytes:
    """Return ``data`` compressed at level 5, framed as the reference's clients frame it.

    Raises LocalProtocolError for an unknown kind, PartNotInstalled without its library.
    """
    if kind == CompressionType.ZLIB:
        return zlib.compress(data, LEVEL)
    if kind == CompressionType.LZ4:
        lz4 = _library("lz4.frame")
        # Independent 4 MiB blocks, no content size, no checksums: FLG 0x60, BD 0x70.
        return bytes(lz4.compress(bytes(data), block_size=lz4.BLOCKSIZE_MAX4MB, block_linked=False, store_size=False))
    if kind == CompressionType.ZSTD:
        return _zstd_contexts()[0].compress(data)
    raise LocalProtocolError(f"unknown compression {kind!r}: use LZ4, ZSTD or ZLIB")


def decompress(data: bytes | memoryview, sys_flag: int, *, max_bytes: int = MAX_DECOMPRESSED) -> bytes:
    """Return the body that ``data`` was compressed from; the kind is in ``sys_flag``.

    Raises RemoteProtocolError for an unknown kind, damage, an end that is missing, bytes after the end, and content over
    ``max_bytes``: no more than about that much memory is used, whatever the data claims. PartNotInstalled without the kind's library.
    """
    kind = sys_flag >> 8 & 7
    try:
        if kind in (0, CompressionType.ZLIB):
            return _inflate(data, max_bytes)
        if kind == CompressionType.LZ4:
            return _unlz4(data, max_bytes)
        if kind == CompressionType.ZSTD:
            return _unzstd(data, max_bytes)
    except (zlib.error, RuntimeError, ValueError, EOFError, MemoryError) as e:
        raise RemoteProtocolError(f"compressed body does not decompress: {e}") from None
    raise RemoteProtocolError(f"body has the unknown compression type {kind}")


def _checked(content: bytes, ended: bool, rest: bytes | None, max_bytes: int) -> bytes:
    if len(content) > max_bytes:
        raise RemoteProtocolError(f"compressed body holds more than the limit of {max_bytes} bytes")
    if not ended:
        raise RemoteProtocolError("compressed body is cut short")
    if rest:
        raise RemoteProtocolError("compressed body has bytes after its end")
    return content


def _inflate(data: bytes | memoryview, max_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    content = stream.decompress(data, max_bytes + 1)
    return _checked(content, stream.eof, stream.unused_data, max_bytes)


def _unlz4(data: bytes | memoryview, max_bytes: int) -> bytes:
    lz4 = _library("lz4.frame")
    stream = lz4.LZ4FrameDecompressor()
    content = stream.decompress(bytes(data), max_length=max_bytes + 1)
    return _checked(content, stream.eof, stream.unused_data, max_bytes)


def _unzstd(data: bytes | memoryview, max_bytes: int) -> bytes:
    zstandard = _library("zstandard")
    frame = bytes(data)
    if frame[:4] != _ZSTD_MAGIC:
        raise RemoteProtocolError("compressed body is not a Zstandard frame")
    try:
        end, bound = _zstd_extent(frame, zstandard.frame_header_size(frame), has_checksum=bool(frame[4] & 4))
        _checked(b"", end <= len(frame), frame[end:], max_bytes)
        if zstandard.frame_content_size(frame) > max_bytes:
            raise RemoteProtocolError(f"compressed body holds more than the limit of {max_bytes} bytes")
        room = max(1, min(bound, max_bytes))  # 0 would mean unlimited
        return _zstd_contexts()[1].decompress(frame, max_output_size=room)
    except zstandard.ZstdError as e:
        raise RemoteProtocolError(f"compressed body does not decompress into {max_bytes} bytes: {e}") from None


def _zstd_contexts() -> "tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]":
    """Return this thread's two contexts: making one costs ten times what a small body does, and threads must not share them."""
    try:
        return _local.contexts  # type: ignore[no-any-return]
    except AttributeError:
        zstandard = _library("zstandard")
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=False)
        _local.contexts = compressor, zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        return _local.contexts  # type: ignore[no-any-return]


def _zstd_extent(frame: bytes, pos: int, *, has_checksum: bool) -> tuple[int, int]:
    """Return where a Zstandard frame ends (past ``len(frame)`` when it is cut short) and the most bytes its blocks can hold.

    ::

        0       4             h         h+3             a block header, little-endian: bit 0 last, bits 1-2 type (0 raw, 1 one
        +-------+-------------+---------+-------- ...   repeated byte, 2 compressed), bits 3-23 size; raw and compressed blocks
        | magic | head (h)    | block   | content       have that many bytes, a repeated byte has one. A checksum may follow
        +-------+-------------+---------+-------- ...   the last block.
    """
    bound = 0
    total = len(frame)
    last = 0
    while not last:
        if pos + 3 > total:
            return total + 1, bound
        head = frame[pos] | frame[pos + 1] << 8 | frame[pos + 2] << 16
        last = head & 1
        kind = head >> 1 & 3
        size = head >> 3
        pos += 3 + (1 if kind == 1 else size)
        bound += _ZSTD_MAX_BLOCK if kind == 2 else size
    return pos + 4 * has_checksum, bound
