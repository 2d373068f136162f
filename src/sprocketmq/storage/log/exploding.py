"""Turning a batch into records: each message of a plain topic gets its own record.

This is the broker's hottest loop. Batches are processed in columns; one whose messages all have the same lengths is packed in one call.
"""

from collections.abc import Sequence
from itertools import accumulate, repeat
from struct import Struct
from typing import Any, Protocol

from sprocketmq.protocol.batch import BLOCK_ROWS, BatchColumns, rows_of
from sprocketmq.protocol.hashing import full_crc32, tags_code_raw
from sprocketmq.protocol.layout import INT16, MAGIC_V1, QUEUE_UNIT_LAYOUT, RECORD_LAYOUT
from sprocketmq.protocol.properties import find_property

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


def explode(queue: Target, columns: BatchColumns, queue_id: int, queue_offset: int, log_offset: int, shared: bytes) -> Exploded:
    """Return the records of a batch of at least one message that begins at ``queue_offset`` and at ``log_offset``."""
    bodies, strings = columns.bodies, columns.properties
    count = len(bodies)
    if columns.lengths is not None:
        size = queue.overhead + sum(columns.lengths)
        sizes = [size] * count
        end = log_offset + count * size
        log_offsets = list(range(log_offset, end, size))
    else:
        overhead = queue.overhead
        sizes = [overhead + len(body) + len(properties) for body, properties in zip(bodies, strings, strict=True)]
        log_offsets = list(accumulate(sizes, initial=log_offset))
        end = log_offsets.pop()
    own = ([crc & 0x7FFFFFFF for crc in map(full_crc32, bodies)], columns.flags, range(queue_offset, queue_offset + count), log_offsets)
    if columns.lengths is not None:
        records = _equal_records(queue, columns, columns.lengths, sizes[0], queue_id, shared, own)
    else:
        records = _any_records(queue, columns, sizes, queue_id, shared, own)
    return records, list(strings), log_offsets, end, _units(log_offsets, sizes, strings)


# CRCs, flags, queue offsets and log offsets of the records.
_Own = tuple[list[int], Sequence[int], range, list[int]]


def _equal_records(
    queue: Target, columns: BatchColumns, lengths: tuple[int, int], size: int, queue_id: int, shared: bytes, own: _Own
) -> bytes:
    n, p = lengths
    topic_and_length = queue.topic_field + _pack_short(p)
    row = f"{_HEAD.format[1:]}{n}s{len(topic_and_length)}s{p}s"
    constant = [size, MAGIC_V1, 0, queue_id, 0, 0, 0, shared, n, b"", topic_and_length, b""]
    places = zip((2, 4, 5, 6, 9, 11), (*own, columns.bodies, columns.properties), strict=True)
    return _packed(row, len(columns.bodies), constant, list(places))


def _any_records(queue: Target, columns: BatchColumns, sizes: list[int], queue_id: int, shared: bytes, own: _Own) -> bytes:
    bodies, strings = columns.bodies, columns.properties
    crcs, flags, queue_offsets, log_offsets = own
    lengths = list(map(len, strings))
    ends_of_topic = {p: queue.topic_field + _pack_short(p) for p in set(lengths)}
    parts: list[Any] = [None] * (4 * len(bodies))
    # Constant arguments repeat forever; map() stops at the end of the columns.
    same = repeat(MAGIC_V1), repeat(queue_id), repeat(shared)
    parts[0::4] = map(_HEAD.pack, sizes, same[0], crcs, same[1], flags, queue_offsets, log_offsets, same[2], map(len, bodies))
    parts[1::4] = bodies
    parts[2::4] = map(ends_of_topic.__getitem__, lengths)
    parts[3::4] = strings
    return b"".join(parts)


def _packed(row: str, count: int, constant: list[Any], columns: list[tuple[int, Sequence[Any]]]) -> bytes:
    """Return rows packed in one call: ``constant`` are the fields of a row, ``columns`` those that differ, with their place in it."""
    width = len(constant)
    fields = constant * count
    for place, values in columns:
        fields[place::width] = values
    if count <= BLOCK_ROWS:
        return rows_of(row, count).pack(*fields)
    step = BLOCK_ROWS * width
    blocks = [fields[start : start + step] for start in range(0, len(fields), step)]
    return b"".join([rows_of(row, len(block) // width).pack(*block) for block in blocks])


def _units(log_offsets: list[int], sizes: list[int], strings: Sequence[bytes]) -> bytes:
    """Return the queue units of records."""
    columns: list[tuple[int, Sequence[int]]] = [(0, log_offsets), (1, sizes)]
    if b"TAGS\x01" in b"".join(strings):
        columns.append((2, _tags_codes(strings)))
    return _packed(_UNIT_CODES, len(log_offsets), [0, 0, 0], columns)


def _tags_codes(strings: Sequence[bytes]) -> list[int]:
    """Return the tag code of each property string."""
    tags = [properties.partition(b"\x02TAGS\x01")[2].partition(b"\x02")[0] for properties in strings]
    if b"" in tags:  # the property stands first in a string, or is missing
        tags = [tag or find_property(properties, b"TAGS") or b"" for tag, properties in zip(tags, strings, strict=True)]
    codes = {tag: tags_code_raw(tag) if tag else 0 for tag in set(tags)}
    return [codes[tag] for tag in tags]
