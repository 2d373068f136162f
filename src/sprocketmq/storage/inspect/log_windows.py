"""The commit log in windows of some megabytes whose records are checked as arrays: the reading part of a verification.

Written apart from the parser that recovery uses, so that a mistake in one of them shows. Import it late: it brings numpy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from isal.isal_zlib import crc32 as _crc32
from numpy.typing import NDArray

from sprocketmq.protocol.codes import SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from sprocketmq.protocol.layout import FIXED_OVERHEAD, INT32, MAGIC_V1, MAGIC_V2, RECORD_LAYOUT
from sprocketmq.storage.inspect.record_items import PROPERTY_CRC_BYTES, property_crc
from sprocketmq.storage.layout_arrays import INT16_DTYPE, INT32_DTYPE, INT64_DTYPE, dtype_of, values_at
from sprocketmq.storage.log.recovery import sector_lost

WINDOW_BYTES = 8 << 20
# A record that is larger than a window is read whole, up to this.
MAX_RECORD_BYTES = 256 << 20

_HEAD = dtype_of(RECORD_LAYOUT, "size", "magic", "crc", "queue_id", "queue_offset", "log_offset", "sys_flag")
_Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Consecutive whole records of the log, all of them valid, in arrays of equal length; ``end`` is the log position behind the last."""

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


def parse_window(data: bytes, physical: int) -> tuple[Window, int]:
    """Return the valid records at the beginning of ``data``, which lies at log position ``physical``, and how many bytes they take.

    They end at the first thing that is no whole record with every length, its own place, its body's CRC and (when it carries one) its
    property CRC right.
    """
    positions = _walk(data)
    raw = np.frombuffer(data, np.uint8)
    # A few zeros behind the data, so that fields of the last record can be gathered before it is known to be whole.
    padded = np.concatenate((raw, np.zeros(64, np.uint8)))
    at = np.array(positions, np.int64)
    heads = values_at(padded, at, _HEAD)
    size = heads["size"].astype(np.int64)
    sys_flag = heads["sys_flag"].astype(np.int64)
    magic = heads["magic"]
    born = np.where(sys_flag & SYSFLAG_BORN_HOST_V6, 20, 8)
    store = np.where(sys_flag & SYSFLAG_STORE_HOST_V6, 20, 8)
    end = at + size
    body_at = at + 72 + born + store
    good = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    good &= (heads["log_offset"] == at + physical) & (heads["queue_id"] >= 0) & (heads["queue_offset"] >= 0)
    limit = len(raw)
    body_length = _gather(padded, np.minimum(body_at - 4, limit), INT32_DTYPE)
    topic_field = body_at + body_length
    good &= (body_length >= 0) & (topic_field + 3 <= end)
    topic_field = np.where(good, topic_field, 0)
    version2 = magic == MAGIC_V2
    topic_length = np.where(version2, _gather(padded, topic_field, INT16_DTYPE), padded[topic_field])
    topic_at = topic_field + 1 + version2
    props_at = topic_at + topic_length + 2
    good &= (topic_length > 0) & (props_at <= end)
    props_length = _gather(padded, np.where(good, props_at - 2, 0), INT16_DTYPE)
    good &= (props_length >= 0) & (props_at + props_length == end)
    count = int(np.argmin(good)) if not good.all() else len(good)

    view = memoryview(data)
    begins, ends = body_at[:count].tolist(), topic_field[:count].tolist()
    crc = np.fromiter((_crc32(view[a:b]) for a, b in zip(begins, ends, strict=True)), np.int64, count) & 0x7FFFFFFF
    valid = (crc == heads["crc"][:count]) | (body_length[:count] == 0)
    if not valid.all():
        count = int(np.argmin(valid))
    topics = [data[a:b] for a, b in zip(topic_at[:count].tolist(), (props_at[:count] - 2).tolist(), strict=True)]
    properties = [data[a:b] for a, b in zip(props_at[:count].tolist(), end[:count].tolist(), strict=True)]
    # Bytes 1 and 8 of the 20 that a property CRC takes, '_' and '#', tell nearly all others apart.
    tail = np.maximum(end[:count] - PROPERTY_CRC_BYTES, 0)
    for i in np.flatnonzero((padded[tail] == 0x5F) & (padded[tail + 7] == 0x23)).tolist():
        stated = property_crc(properties[i])
        if stated is not None and stated != _crc32(view[positions[i] : int(end[i]) - PROPERTY_CRC_BYTES]) & 0x7FFFFFFF:
            count = i
            break
    for i, text in enumerate(properties[:count]):
        if b"\0" in text and sector_lost(text, physical + int(props_at[i])):
            count = i
            break
    used = int(end[count - 1]) if count else 0
    chosen = slice(0, count)
    window = Window(
        physical + used,
        at[chosen] + physical,
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
    """Return where records would begin if every size was true, as far as they are whole."""
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
    """Return the big-endian integers at the given places."""
    return values_at(data, at, kind).astype(np.int64)


def groups_of(keys: _Longs) -> Iterator[tuple[int, _Longs]]:
    """Yield each different key and the places where it stands, in order."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for group in np.split(order, borders):
        yield int(keys[group[0]]), group
