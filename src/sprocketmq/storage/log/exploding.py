"""Turning a batch into records: each message of a plain topic gets its own record.

This is the broker's hottest loop. A batch whose messages all have the same lengths, which is the common case, is processed in columns.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from isal.isal_zlib import crc32 as _crc32

from sprocketmq.protocol.batch import BatchColumns, BatchEntry
from sprocketmq.protocol.hashing import tags_code_raw
from sprocketmq.protocol.layout import INT16, MAGIC_V1, QUEUE_UNIT_LAYOUT, RECORD_LAYOUT
from sprocketmq.protocol.properties import find_property

if TYPE_CHECKING:
    from sprocketmq.storage.fs import Buffer

# The fields that all messages of a batch share are packed once: the 48 bytes from sys_flag to prepared_offset.
_SHARED = ("sys_flag", "born_time_ms", "born_host", "store_time_ms", "store_host", "reconsume_times", "prepared_offset")
_OWN = ("size", "magic", "crc", "queue_id", "flag", "queue_offset", "log_offset")
BATCH_SHARED = RECORD_LAYOUT.part(*_SHARED, start="sys_flag")
# The record head, with the shared fields passed as one byte string.
_HEAD = Struct(f"{RECORD_LAYOUT.format(*_OWN)}{BATCH_SHARED.size}si")
_UNIT_CODES = "".join(field.code for field in QUEUE_UNIT_LAYOUT.fields.values())
_pack_short = INT16.pack

# (all records, their property strings, their log offsets, log offset of the end, their queue units)
Exploded = tuple[bytes, list[bytes], list[int], int, bytes]


class Target(Protocol):
    """The queue a batch goes to: record bytes besides body and properties, and the topic field of its records."""

    overhead: int
    topic_field: bytes


def explode(
    queue: Target, entries: Iterable[BatchEntry] | BatchColumns, queue_id: int, queue_offset: int, log_offset: int, shared: bytes
) -> Exploded:
    """Return the records of a batch that begins at ``queue_offset`` and at ``log_offset``."""
    if isinstance(entries, BatchColumns):
        return _explode_columns(queue, entries, queue_id, queue_offset, log_offset, shared)
    parts: list[Buffer] = []
    add = parts.append
    strings: list[bytes] = []
    log_offsets: list[int] = []
    sizes: list[int] = []
    pack_head = _HEAD.pack
    crc = _crc32
    overhead = queue.overhead
    topic_field = queue.topic_field
    topic_and_length = b""
    known_length = -1
    for flag, body, properties in entries:
        n = len(body)
        p = len(properties)
        size = overhead + n + p
        add(pack_head(size, MAGIC_V1, crc(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, log_offset, shared, n))
        add(body)
        if p != known_length:
            known_length = p
            topic_and_length = topic_field + _pack_short(p)
        add(topic_and_length)
        add(properties)
        strings.append(properties)
        log_offsets.append(log_offset)
        sizes.append(size)
        log_offset += size
        queue_offset += 1
    return b"".join(parts), strings, log_offsets, log_offset, _units(log_offsets, sizes, strings)


def _explode_columns(queue: Target, columns: BatchColumns, queue_id: int, queue_offset: int, log_offset: int, shared: bytes) -> Exploded:
    flags, bodies, strings = columns
    count = len(bodies)
    n, p = len(bodies[0]), len(strings[0])
    size = queue.overhead + n + p
    end = log_offset + count * size
    log_offsets = list(range(log_offset, end, size))
    topic_and_length = queue.topic_field + _pack_short(p)
    crcs = [crc & 0x7FFFFFFF for crc in map(_crc32, bodies)]
    pack = _record_layout(len(topic_and_length), n, p).pack
    # Constant arguments repeat forever; map() stops at the end of the columns.
    records = map(
        pack,
        repeat(size),
        repeat(MAGIC_V1),
        crcs,
        repeat(queue_id),
        flags,
        range(queue_offset, queue_offset + count),
        log_offsets,
        repeat(shared),
        repeat(n),
        bodies,
        repeat(topic_and_length),
        strings,
    )
    return b"".join(records), list(strings), log_offsets, end, _units(log_offsets, [size] * count, strings)


def _units(log_offsets: list[int], sizes: list[int], strings: Sequence[bytes]) -> bytes:
    """Return the queue units of records."""
    count = len(log_offsets)
    fields = [0] * (3 * count)
    fields[0::3] = log_offsets
    fields[1::3] = sizes
    if b"TAGS\x01" in b"".join(strings):
        fields[2::3] = _tags_codes(strings)
    return _units_layout(count).pack(*fields)


def _tags_codes(strings: Iterable[bytes]) -> list[int]:
    """Return the tag code of each property string; most strings of a batch have the tag of the one before."""
    codes = []
    pair, code = b"\x02TAGS\x01\x02", 0
    for properties in strings:
        if properties.find(pair) >= 0:
            codes.append(code)
            continue
        # The tag differs from the last one, stands first in the string, or is missing.
        before, found, after = properties.partition(b"TAGS\x01")
        tag = None
        if found:
            inside = before and before[-1] != 2  # TAGS is part of another name or value
            tag = find_property(properties, b"TAGS") if inside else after.partition(b"\x02")[0]
        if tag:
            code = tags_code_raw(tag)
            pair = b"\x02TAGS\x01" + tag + b"\x02"
            codes.append(code)
        else:
            codes.append(0)
    return codes


@lru_cache(maxsize=256)
def _record_layout(topic_and_length: int, n: int, p: int) -> Struct:
    return Struct(f"{_HEAD.format}{n}s{topic_and_length}s{p}s")


@lru_cache(maxsize=256)
def _units_layout(count: int) -> Struct:
    """Return the layout of ``count`` queue units in a row."""
    return Struct(">" + _UNIT_CODES * count)
