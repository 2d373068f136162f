"""Reading the commit log for a verification: windows of several megabytes, whose records are checked as arrays. Loads numpy.

Independent of the parser that recovery uses, so that a mistake in one of them shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from sprocketmq.protocol.hashing import full_crc32
from sprocketmq.protocol.layout import FIXED_OVERHEAD, INT32, MAGIC_V1, MAGIC_V2, RECORD_LAYOUT
from sprocketmq.storage.inspect.record_items import PROPERTY_CRC_BYTES, property_crc
from sprocketmq.storage.layout_arrays import INT16_DTYPE, INT32_DTYPE, INT64_DTYPE, dtype_of, values_at
from sprocketmq.storage.log.recovery import sector_lost

WINDOW_BYTES = 8 << 20
# A record that is larger than a window is read whole, up to this size.
MAX_RECORD_BYTES = 256 << 20

_HEAD = dtype_of(RECORD_LAYOUT, "size", "magic", "crc", "queue_id", "queue_offset", "log_offset", "sys_flag")
_Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Consecutive valid records of the log as arrays of equal length; ``end`` is the log offset after the last."""

    end: int
    log_offsets: _Longs
    sizes: _Longs
    queue_ids: _Longs
    queue_offsets: _Longs
    sys_flags: _Longs
    times_ms: _Longs
    topics: list[bytes]
    properties: list[bytes]

    def __len__(self) -> int:
        return len(self.log_offsets)


def parse_window(data: bytes, log_offset: int) -> tuple[Window, int]:
    """Return the valid records at the beginning of ``data``, which begins at ``log_offset``, and how many bytes they take.

    They end at the first record that is not whole, or in which a length, the log offset, the CRC of the body or, when it has one, the
    property CRC is wrong.
    """
    positions = _walk(data)
    raw = np.frombuffer(data, np.uint8)
    # Zeros after the data, so that fields of the last record can be read before it is known to be whole.
    padded = np.concatenate((raw, np.zeros(64, np.uint8)))
    at = np.array(positions, np.int64)
    heads = values_at(padded, at, _HEAD)
    size = heads["size"].astype(np.int64)
    sys_flag = heads["sys_flag"].astype(np.int64)
    magic = heads["magic"]
    born = np.where(sys_flag & SYSFLAG_BORN_HOST_V6, 20, 8)
    store = np.where(sys_flag & SYSFLAG_STORE_HOST_V6, 20, 8)
    end = at + size
    body_pos = at + 72 + born + store
    good = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    good &= (heads["log_offset"] == at + log_offset) & (heads["queue_id"] >= 0) & (heads["queue_offset"] >= 0)
    limit = len(raw)
    body_length = _gather(padded, np.minimum(body_pos - 4, limit), INT32_DTYPE)
    topic_field = body_pos + body_length
    good &= (body_length >= 0) & (topic_field + 3 <= end)
    topic_field = np.where(good, topic_field, 0)
    version2 = magic == MAGIC_V2
    topic_length = np.where(version2, _gather(padded, topic_field, INT16_DTYPE), padded[topic_field])
    topic_pos = topic_field + 1 + version2
    props_pos = topic_pos + topic_length + 2
    good &= (topic_length > 0) & (props_pos <= end)
    props_length = _gather(padded, np.where(good, props_pos - 2, 0), INT16_DTYPE)
    good &= (props_length >= 0) & (props_pos + props_length == end)
    count = int(np.argmin(good)) if not good.all() else len(good)

    view = memoryview(data)
    begins, ends = body_pos[:count].tolist(), topic_field[:count].tolist()
    crc = np.fromiter((full_crc32(view[a:b]) for a, b in zip(begins, ends, strict=True)), np.int64, count) & 0x7FFFFFFF
    valid = (crc == heads["crc"][:count]) | (body_length[:count] == 0)
    if not valid.all():
        count = int(np.argmin(valid))
    topics = [data[a:b] for a, b in zip(topic_pos[:count].tolist(), (props_pos[:count] - 2).tolist(), strict=True)]
    properties = [data[a:b] for a, b in zip(props_pos[:count].tolist(), end[:count].tolist(), strict=True)]
    # A property CRC takes 20 bytes. Bytes 1 and 8 of them, '_' and '#', rule out nearly all other properties.
    tail = np.maximum(end[:count] - PROPERTY_CRC_BYTES, 0)
    for i in np.flatnonzero((padded[tail] == 0x5F) & (padded[tail + 7] == 0x23)).tolist():
        stated = property_crc(properties[i])
        if stated is not None and stated != full_crc32(view[positions[i] : int(end[i]) - PROPERTY_CRC_BYTES]) & 0x7FFFFFFF:
            count = i
            break
    for i, text in enumerate(properties[:count]):
        if b"\0" in text and sector_lost(text, log_offset + int(props_pos[i])):
            count = i
            break
    used = int(end[count - 1]) if count else 0
    chosen = slice(0, count)
    window = Window(
        log_offset + used,
        at[chosen] + log_offset,
        size[chosen],
        heads["queue_id"][chosen].astype(np.int64),
        heads["queue_offset"][chosen].astype(np.int64),
        sys_flag[chosen],
        _gather(padded, np.minimum(at + 48 + born, limit), INT64_DTYPE)[chosen],
        topics[:count],
        properties[:count],
    )
    return window, used


def _walk(data: bytes) -> list[int]:
    """Return the positions of whole records if every size is right."""
    positions: list[int] = []
    add = positions.append
    unpack = INT32.unpack_from
    total = len(data)
    at = 0
    while total - at >= FIXED_OVERHEAD:
        (size,) = unpack(data, at)
        if size < FIXED_OVERHEAD or size > total - at:
            break
        add(at)
        at += size
    return positions


def _gather(data: NDArray[np.uint8], at: _Longs, kind: "np.dtype[Any]") -> _Longs:
    """Return the big-endian integers at the given positions."""
    return values_at(data, at, kind).astype(np.int64)


def groups_of(keys: _Longs) -> Iterator[tuple[int, _Longs]]:
    """Yield each distinct key and the indices at which it occurs, in ascending order."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for group in np.split(order, borders):
        yield int(keys[group[0]]), group
