"""Turning a batch into records: each message of a plain topic gets its own record.

This is the broker's hottest loop. Batches are processed in columns; one whose messages all have the same lengths is packed in few calls.
Many such messages become the rows of an array (``exploding_rows``) once numpy is loaded.
"""

from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import contains
from struct import Struct
from typing import Any, NamedTuple, Protocol

from sprocketmq.protocol.batch import BatchColumns, blocks_of, rows_of
from sprocketmq.protocol.hashing import full_crc32, tags_code_raw
from sprocketmq.protocol.layout import INT16, INT32, MAGIC_V1, QUEUE_UNIT_BYTES, QUEUE_UNIT_LAYOUT, RECORD_LAYOUT
from sprocketmq.storage.fs import Buffer

# The fields that all messages of a batch share are packed once: the 48 bytes from sys_flag to prepared_offset.
_SHARED = ("sys_flag", "born_time_ms", "born_host", "store_time_ms", "store_host", "reconsume_times", "prepared_offset")
_OWN = ("size", "magic", "crc", "queue_id", "flag", "queue_offset", "log_offset")
BATCH_SHARED = RECORD_LAYOUT.part(*_SHARED, start="sys_flag")
# The record head, with the shared fields passed as one byte string.
_HEAD = Struct(f"{RECORD_LAYOUT.format(*_OWN)}{BATCH_SHARED.size}si")
_UNIT_CODES = "".join(field.code for field in QUEUE_UNIT_LAYOUT.fields.values())
# Constant fields that follow each other are packed once, too: the fewer fields a row has, the faster it is packed.
pack_size_magic = RECORD_LAYOUT.part("size", "magic").pack
pack_queue_flag = RECORD_LAYOUT.part("queue_id", "flag", start="queue_id").pack
pack_unit_end = QUEUE_UNIT_LAYOUT.part("size", "tags_code", start="size").pack
_UNIT_OF_EQUALS = f"q{QUEUE_UNIT_BYTES - 8}s"
_END = 2  # after every property
_pack_short = INT16.pack
_pack_int = INT32.pack


class Strings(NamedTuple):
    """The property strings of a batch, one after the other, and their lengths; one number when they have the same."""

    text: bytes
    lengths: int | list[int]


# (all records, their property strings, their log offsets, log offset of the end, their queue units)
Exploded = tuple[Buffer, Strings, Sequence[int], int, bytes]


class Target(Protocol):
    """The queue a batch goes to: record bytes besides body and properties, and the topic field of its records."""

    overhead: int
    topic_field: bytes


class Rows(Protocol):
    """A batch whose ``count`` messages are the rows of an array. ``text`` are their property strings one after the other."""

    count: int
    text: bytes

    def columns(self) -> BatchColumns:
        """Return the same messages as columns."""
        ...

    def explode(self, queue: Target, queue_id: int, queue_offset: int, log_offset: int, shared: bytes) -> Exploded:
        """Return the records of the batch."""
        ...


def explode(queue: Target, batch: BatchColumns | Rows, queue_id: int, queue_offset: int, log_offset: int, shared: bytes) -> Exploded:
    """Return the records of a batch of at least one message that begins at ``queue_offset`` and at ``log_offset``."""
    if not isinstance(batch, BatchColumns):
        return batch.explode(queue, queue_id, queue_offset, log_offset, shared)
    columns = batch
    bodies, strings = columns.bodies, columns.properties
    count = len(bodies)
    property_lengths: int | list[int]
    if columns.lengths is not None:
        property_lengths = columns.lengths[1]
        size = queue.overhead + sum(columns.lengths)
        sizes = [size] * count
        end = log_offset + count * size
        log_offsets = list(range(log_offset, end, size))
    else:
        overhead = queue.overhead
        property_lengths = list(map(len, strings))
        sizes = [overhead + len(body) + p for body, p in zip(bodies, property_lengths, strict=True)]
        log_offsets = list(accumulate(sizes, initial=log_offset))
        end = log_offsets.pop()
    own = ([crc & 0x7FFFFFFF for crc in map(full_crc32, bodies)], columns.flags, range(queue_offset, queue_offset + count), log_offsets)
    codes = tags_codes(columns.text, strings)
    if type(property_lengths) is int:
        records = _equal_records(queue, columns, property_lengths, sizes[0], queue_id, shared, own)
    else:
        records = _any_records(queue, columns, property_lengths, sizes, queue_id, shared, own)  # type: ignore[arg-type]
    units = _units(log_offsets, sizes, codes, equal=columns.lengths is not None)
    if columns.lengths is not None:  # a range takes no memory until the key index has it
        return records, Strings(columns.text, property_lengths), range(log_offset, end, sizes[0]), end, units
    return records, Strings(columns.text, property_lengths), log_offsets, end, units


# CRCs, flags, queue offsets and log offsets of the records.
_Own = tuple[list[int], Sequence[int], range, list[int]]


def _equal_records(queue: Target, columns: BatchColumns, p: int, size: int, queue_id: int, shared: bytes, own: _Own) -> bytes:
    crcs, flags, queue_offsets, log_offsets = own
    count = len(crcs)
    n = len(columns.bodies[0])
    topic_and_length = queue.topic_field + _pack_short(p)
    shared_and_length = shared + _pack_int(n)
    row = f"8si8sqq{len(shared_and_length)}s{n}s{len(topic_and_length)}s{p}s"
    queue_flag = pack_queue_flag(queue_id, flags[0])
    constant = [pack_size_magic(size, MAGIC_V1), 0, queue_flag, 0, 0, shared_and_length, b"", topic_and_length, b""]
    places: list[tuple[int, Sequence[Any]]] = [
        (1, crcs),
        (3, queue_offsets),
        (4, log_offsets),
        (6, columns.bodies),
        (8, columns.properties),
    ]
    if flags.count(flags[0]) != count:
        places.append((2, [pack_queue_flag(queue_id, flag) for flag in flags]))
    return _packed(row, count, constant, places)


def _any_records(
    queue: Target, columns: BatchColumns, lengths: list[int], sizes: list[int], queue_id: int, shared: bytes, own: _Own
) -> bytes:
    bodies, strings = columns.bodies, columns.properties
    crcs, flags, queue_offsets, log_offsets = own
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
    """Return rows packed in few calls: ``constant`` are the fields of a row, ``columns`` those that differ, with their place in it."""
    width = len(constant)
    fields = constant * count
    for place, values in columns:
        fields[place::width] = values
    blocks = blocks_of(count)
    if len(blocks) == 1:
        return rows_of(row, count).pack(*fields)
    return b"".join([rows_of(row, stop - start).pack(*fields[start * width : stop * width]) for start, stop in blocks])


def _units(log_offsets: list[int], sizes: list[int], codes: int | list[int], *, equal: bool) -> bytes:
    """Return the queue units of records; ``codes`` is the tag code of all of them, or that of each."""
    count = len(log_offsets)
    if equal and type(codes) is int:
        return _packed(_UNIT_OF_EQUALS, count, [0, pack_unit_end(sizes[0], codes)], [(0, log_offsets)])
    columns: list[tuple[int, Sequence[int]]] = [(0, log_offsets), (1, sizes)]
    if type(codes) is int:
        return _packed(_UNIT_CODES, count, [0, 0, codes], columns)
    return _packed(_UNIT_CODES, count, [0, 0, 0], [*columns, (2, codes)])  # type: ignore[list-item]


def tags_codes(text: bytes, strings: Sequence[bytes]) -> int | list[int]:
    """Return the tag code of all property strings when they share it, else that of each; ``text`` are the strings joined."""
    if b"TAGS\x01" not in text:
        return 0
    field = first_tag(strings[0])
    if field and (
        all(map(bytes.startswith, strings, repeat(field)))
        if field[0] != _END
        else text.count(b"TAGS\x01") == len(strings) and all(map(contains, strings, repeat(field)))
    ):
        return code_of(field)
    tags = [
        (properties[5:] if properties[:5] == b"TAGS\x01" else properties.partition(b"\x02TAGS\x01")[2]).partition(b"\x02")[0]
        for properties in strings
    ]
    codes = {tag: tags_code_raw(tag) if tag else 0 for tag in set(tags)}
    return [codes[tag] for tag in tags]


def first_tag(properties: bytes) -> bytes:
    """Return name and value of the first tag of a property string, between its 0x02 (none before it at the start of the string)."""
    start = 0 if properties[:5] == b"TAGS\x01" else properties.find(b"\x02TAGS\x01")
    return properties[start : properties.find(b"\x02", start + 1) + 1] if start >= 0 else b""


def code_of(field: bytes) -> int:
    """Return the tag code of a field that ``first_tag`` returned."""
    tag = field[field.index(b"\x01") + 1 : -1]
    return tags_code_raw(tag) if tag else 0
