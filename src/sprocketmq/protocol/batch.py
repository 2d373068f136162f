"""The batch body: inner messages back to back, without count or padding (docs/internals/messages.md#batch-body).

``layout.py`` draws an entry. Everything that encodes entries takes its heads and property lengths from here; rows of Spark are encoded in
columns by ``spark/sink/batch_entries.py``. Callers that send many messages keep the parts of an entry apart and join them once per batch:

    head | body | property field: the length of the property string, and the string
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, repeat
from struct import Struct
from typing import Any, NamedTuple

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD_BYTES, BATCH_ENTRY_LAYOUT, BATCH_ENTRY_OVERHEAD, INT16, INT32

# Rows that one Struct packs or unpacks; it takes about 32 bytes of memory for each of their fields. What is left of a batch is divided at a
# multiple of SMALL_BLOCK_ROWS, so that batches of any count need few Structs.
BLOCK_ROWS = 128
SMALL_BLOCK_ROWS = 16
# The 16-bit INNER_NUM of the reference is the tightest bound a batch meets on its way.
MAX_BATCH_COUNT = 32767

_SIZE_FLAG_LENGTH = BATCH_ENTRY_LAYOUT.part("size", "flag", "body_length")  # magic and crc, which readers ignore, are written as 0
_SIZE_LENGTH = BATCH_ENTRY_LAYOUT.part("size", "body_length")
_FLAG = BATCH_ENTRY_LAYOUT.part("flag")
# The bytes of an entry that hold its size and the length of its body.
_LENGTH_PLACES = tuple(BATCH_ENTRY_LAYOUT.offset(name) + i for name in ("size", "body_length") for i in range(4))

# ``entry_head(size, flag, body_length)`` returns the head of an entry, ``property_length(length)`` the length field of its properties.
# Both are methods of a Struct, not functions around one: they are called for every message. Both raise struct.error out of range.
entry_head = _SIZE_FLAG_LENGTH.pack
property_length = INT16.pack
_property_length_at = INT16.unpack_from
PROPERTY_LENGTH_BYTES = INT16.size


class BatchEntry(NamedTuple):
    """One inner message: its flag, and views of its body and its property string."""

    flag: int
    body: memoryview
    properties: bytes


class BatchColumns(NamedTuple):
    """The inner messages of a batch: their flags, bodies and property strings, and ``text``, these strings one after the other.

    ``lengths`` are those of a body and of a property string when all messages share them and the bodies are bytes; else None.
    """

    flags: Sequence[int]
    bodies: Sequence[bytes | memoryview]
    properties: Sequence[bytes]
    text: bytes
    lengths: tuple[int, int] | None = None


def encode_batch(messages: Iterable[tuple[int, bytes | memoryview, bytes]]) -> bytes:
    """Return the batch body of ``(flag, body, properties)`` tuples, in order."""
    parts: list[bytes | memoryview] = []
    for flag, body, properties in messages:
        n = len(body)
        p = len(properties)
        parts += (entry_head(BATCH_ENTRY_OVERHEAD + n + p, flag, n), body, property_length(p), properties)
    return b"".join(parts)


def entry_heads(bodies: Sequence[bytes], overhead: int) -> list[bytes]:
    """Return the heads of entries without flags that have ``overhead`` bytes each besides their bodies."""
    lengths = list(map(len, bodies))
    first = lengths[0]
    if lengths.count(first) == len(lengths):  # most batches have bodies of one length
        return [entry_head(overhead + first, 0, first)] * len(lengths)
    return [entry_head(overhead + n, 0, n) for n in lengths]


def flag_of(head: bytes) -> int:
    """Return the flag in the head of an entry."""
    flag: int = _FLAG.unpack_from(head)[0]
    return flag


def split_batch(data: bytes | memoryview) -> list[BatchEntry]:
    """Return the inner messages of a batch body; their bodies are views that stay valid as long as they are held.

    Raises RemoteProtocolError when a size is below 22 or runs past the end, when the lengths inside an entry do not add up to its
    size, or when there are more than 32,767 entries. An empty body gives an empty list.
    """
    flags, bodies, properties, *_ = _walked_columns(data)
    return list(map(tuple.__new__, repeat(BatchEntry), zip(flags, bodies, properties, strict=True)))


def split_columns(data: bytes | memoryview) -> BatchColumns:
    """Return the inner messages as columns; half the cost when they have the same lengths. Raises what ``split_batch`` raises."""
    return _equal_columns(data) or _walked_columns(data)


def _walked_columns(data: bytes | memoryview) -> BatchColumns:
    # Property strings are cut from one copy of the whole: slicing bytes costs a quarter of copying a view's slice.
    raw = data if type(data) is bytes else bytes(data)
    view = memoryview(raw)
    total = len(raw)
    flags: list[int] = []
    bodies: list[bytes | memoryview] = []
    strings: list[bytes] = []
    unpack_head = _SIZE_FLAG_LENGTH.unpack_from
    unpack_short = INT16.unpack_from
    pos = 0
    while total - pos >= BATCH_ENTRY_OVERHEAD:
        size, flag, n = unpack_head(raw, pos)
        end = pos + size
        props_at = pos + BATCH_ENTRY_OVERHEAD + n
        if n < 0 or props_at > end or end > total:
            raise RemoteProtocolError(f"batch entry {len(flags)} has an impossible size {size} or body length {n}")
        (p,) = unpack_short(raw, props_at - 2)
        if props_at + p != end:
            raise RemoteProtocolError(f"batch entry {len(flags)} has an impossible property length {p}")
        flags.append(flag)
        bodies.append(view[pos + BATCH_ENTRY_HEAD_BYTES : props_at - 2])
        strings.append(raw[props_at:end])
        pos = end
    if pos != total:
        raise RemoteProtocolError(
            f"batch entry {len(flags)} is cut short: {total - pos} bytes are left, an entry has at least {BATCH_ENTRY_OVERHEAD}"
        )
    if len(flags) > MAX_BATCH_COUNT:
        raise RemoteProtocolError(f"a batch has {len(flags)} messages, the limit is {MAX_BATCH_COUNT}")
    return BatchColumns(flags, bodies, strings, b"".join(strings))


def strings_of_rows(data: bytes | memoryview, size: int, start: int, length: int) -> Sequence[bytes]:
    """Return the ``length`` bytes from ``start`` on of each row of ``size`` bytes."""
    column: Sequence[bytes] = _columns(data, size, f"{start}x{length}s{size - start - length}x", 1)[0]
    return column


def _equal_columns(data: bytes | memoryview) -> BatchColumns | None:
    """Return the inner messages when there are several with the same lengths, else None."""
    lengths = likely_lengths(data, 0, len(data))
    if lengths is None:
        return None
    size, n, p = lengths
    sizes, flags, body_lengths, bodies, property_lengths, strings = _columns(data, size, _entry_format(n, p), 6)
    count = len(sizes)
    if sizes.count(size) != count or body_lengths.count(n) != count or property_lengths.count(p) != count:
        return None
    return BatchColumns(flags, bodies, strings, b"".join(strings), (n, p))


def _columns(data: bytes | memoryview, size: int, entry: str, width: int) -> list[Sequence[Any]]:
    """Return the ``width`` columns of entries of ``size`` bytes each, unpacked with the format of one."""
    blocks = blocks_of(len(data) // size)
    if len(blocks) == 1:
        values = rows_of(entry, blocks[0][1]).unpack(data)
        return [values[i::width] for i in range(width)]
    columns: list[list[Any]] = [[] for _ in range(width)]
    for start, stop in blocks:
        values = rows_of(entry, stop - start).unpack(data[start * size : stop * size])
        for i in range(width):
            columns[i] += values[i::width]
    return list(columns)


def common_lengths(data: bytes | memoryview, start: int = 0, stop: int | None = None) -> tuple[int, int, int] | None:
    """Return the lengths of an entry, its body and its properties, if all entries share them and there are several; else None.

    ``start`` and ``stop`` bound the entries in ``data``.
    """
    if type(data) is not bytes:
        data = data[start:stop]
        lengths = likely_lengths(data, 0, len(data))
        return lengths if lengths is not None and set(_lengths_of(*lengths[1:]).iter_unpack(data)) == {lengths} else None
    stop = len(data) if stop is None else stop
    lengths = likely_lengths(data, start, stop)
    if lengths is None:
        return None
    size, n, p = lengths
    if _property_length_at(data, start + BATCH_ENTRY_HEAD_BYTES + n)[0] != p:
        return None
    tail = BATCH_ENTRY_HEAD_BYTES + n
    return lengths if repeated(data, start, stop, size, (*_LENGTH_PLACES, tail, tail + 1)) else None


def entries_at(data: bytes, indexes: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ``(body length, start of the property string, end)`` of the entries with these indexes, in ascending order.

    For batch bodies that this process has encoded: nothing is checked. Costs as much as the entries before the last one.
    """
    unpack_size = INT32.unpack_from
    pos = at = 0
    for index in indexes:
        while at < index:
            pos += unpack_size(data, pos)[0]
            at += 1
        size, n = _SIZE_LENGTH.unpack_from(data, pos)
        yield n, pos + BATCH_ENTRY_OVERHEAD + n, pos + size


def repeated(data: bytes, start: int, stop: int, step: int, places: Iterable[int]) -> bool:
    """Return whether the bytes at ``places`` of each step are those of the first step. Several steps are compared at once."""
    count = (stop - start) // step
    for place in places:
        at = start + place
        if data[at:stop:step] != data[at : at + 1] * count:
            return False
    return True


def scan_batch(data: bytes | memoryview) -> tuple[int, bytes]:
    """Return how many inner messages a batch body has, and their property strings one after the other.

    Checks all of the body as ``split_batch`` does. Raises RemoteProtocolError.
    """
    lengths = likely_lengths(data, 0, len(data))
    if lengths is not None:
        size, n, p = lengths
        sizes, body_lengths, property_lengths, properties = _columns(data, size, _lengths_format(n, p), 4)
        count = len(sizes)
        if sizes.count(size) == body_lengths.count(n) == property_lengths.count(p) == count:
            return count, b"".join(properties)
    # Slicing bytes costs so much less than slicing a view that one copy pays.
    raw = data if type(data) is bytes else bytes(data)
    total = len(raw)
    strings: list[bytes] = []
    pos = 0
    unpack_head = _SIZE_LENGTH.unpack_from
    unpack_short = INT16.unpack_from
    while total - pos >= BATCH_ENTRY_OVERHEAD:
        size, n = unpack_head(raw, pos)
        props = BATCH_ENTRY_OVERHEAD + n
        if n < 0 or props > size or pos + size > total:
            raise RemoteProtocolError(f"batch entry {len(strings)} has an impossible size {size} or body length {n}")
        (p,) = unpack_short(raw, pos + props - 2)
        if props + p != size:
            raise RemoteProtocolError(f"batch entry {len(strings)} has an impossible property length {p}")
        strings.append(raw[pos + props : pos + size])
        pos += size
    if pos != total:
        raise RemoteProtocolError(
            f"batch entry {len(strings)} is cut short: {total - pos} bytes are left, an entry has at least {BATCH_ENTRY_OVERHEAD}"
        )
    if len(strings) > MAX_BATCH_COUNT:
        raise RemoteProtocolError(f"a batch has {len(strings)} messages, the limit is {MAX_BATCH_COUNT}")
    return len(strings), b"".join(strings)


def likely_lengths(data: bytes | memoryview, start: int, stop: int) -> tuple[int, int, int] | None:
    """Return the lengths of the first entry, its body and its properties, when there may be more with the same; else None."""
    total = stop - start
    if total < 2 * BATCH_ENTRY_OVERHEAD:
        return None
    size, n = _SIZE_LENGTH.unpack_from(data, start)
    p = size - n - BATCH_ENTRY_OVERHEAD
    if n < 0 or p < 0 or total % size or not 1 < total // size <= MAX_BATCH_COUNT:
        return None
    return size, n, p


@lru_cache(maxsize=256)
def _lengths_of(n: int, p: int) -> Struct:
    """Return the format of the three lengths in an entry with a body of ``n`` and properties of ``p`` bytes."""
    return Struct(f"{_SIZE_LENGTH.format}{n}xh{p}x")


def _entry_format(n: int, p: int) -> str:
    """Return the format of an entry with a body of ``n`` and properties of ``p`` bytes: size, flag, each of these after its length."""
    return f"{_SIZE_FLAG_LENGTH.format[1:]}{n}sh{p}s"


def _lengths_format(n: int, p: int) -> str:
    """Return the format of such an entry without flag and body."""
    return f"{_SIZE_LENGTH.format[1:]}{n}xh{p}s"


@lru_cache(maxsize=1024)
def blocks_of(count: int) -> list[tuple[int, int]]:
    """Return begin and end of the blocks that ``count`` rows are packed or unpacked in; up to BLOCK_ROWS // 2 rows are one block."""
    if count <= BLOCK_ROWS // 2:
        return [(0, count)]
    ends = [*range(0, count + 1, BLOCK_ROWS), count - count % SMALL_BLOCK_ROWS, count]
    return [(start, stop) for start, stop in pairwise(ends) if start < stop]


@lru_cache(maxsize=256)
def rows_of(entry: str, count: int) -> Struct:
    """Return the layout of ``count`` rows with the format ``entry``, at most BLOCK_ROWS: one call then packs or unpacks all of them."""
    return Struct(">" + entry * count)
