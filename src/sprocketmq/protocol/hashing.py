"""The two checksums of RocketMQ: CRC-32 cut to 31 bits, and Java's string hash."""

from functools import lru_cache
from typing import TYPE_CHECKING

try:
    from zlib_ng.zlib_ng import crc32 as _fast_crc32
except ImportError:  # the distribution sprocketmq-client does not depend on it
    from zlib import crc32 as _fast_crc32

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

_SHORT_KEY = 64

# CRC-32 with all 32 bits.
full_crc32 = _fast_crc32


def crc32(data: "Buffer") -> int:
    """Return zlib's CRC-32 of ``data`` without its top bit, as body CRCs are stored (docs/internals/messages.md#hashes)."""
    return int(full_crc32(data)) & 0x7FFFFFFF


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: h = 31 h + c over UTF-16 units, as a signed 32-bit integer."""
    h = 0
    if text.isascii():
        for c in text.encode("ascii"):
            h = (h * 31 + c) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for i in range(0, len(units), 2):
            h = (h * 31 + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


# The keys of a producer often come back; the bounds keep a variety of them, and long ones, from growing memory.
@lru_cache(maxsize=4096)
def _short_key_hash(key: str) -> int:
    return abs(java_hash(key))


def hashed_queue(key: str, queues: int) -> int:
    """Return the queue number of a key by Java's SelectMessageQueueByHash: |hash % n|, where Java's % truncates toward zero."""
    return (_short_key_hash(key) if len(key) <= _SHORT_KEY else abs(java_hash(key))) % queues


# Tags are few and repeat on every message; the bound keeps hostile variety from growing memory.
@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return the queue slot's tag code: Java hash of the tag, 0 without one."""
    return java_hash(tag) if tag else 0


@lru_cache(maxsize=4096)
def tags_code_raw(tag: bytes) -> int:
    """Return the tag code of a tag given as the UTF-8 bytes of a property string; invalid UTF-8 hashes with replacement characters."""
    return java_hash(tag.decode("utf-8", "replace"))
