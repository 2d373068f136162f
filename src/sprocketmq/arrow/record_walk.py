"""Follow the size fields of stored records, and of the messages in an inner batch: the one sequential step of decoding."""

from typing import Any

import numpy as np

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.codes import SYSFLAG_COMPRESSED
from sprocketmq.protocol.compression import decompress
from sprocketmq.protocol.layout import BATCH_ENTRY_OVERHEAD, FIXED_OVERHEAD, INT32, RECORD_LAYOUT
from sprocketmq.storage.layout_arrays import values_at

Buffer = bytes | bytearray | memoryview

# A vectorised look ahead compares the sizes of at most MAX_RUN records, and pays off from MIN_RUN records of one size on.
MAX_RUN = 1024
MIN_RUN = 16

_INT = INT32.unpack_from


def record_positions(data: Buffer) -> Any:
    """Return the position of each record in a buffer of whole records. Raises RemoteProtocolError when the sizes do not fit the buffer.

    Records of one producer often have one size. After two equal sizes the next ones are compared in an array; the interval between such
    attempts doubles each time one finds fewer than MIN_RUN equal records.
    """
    total = len(data)
    array = np.frombuffer(data, np.uint8)
    runs: list[Any] = []
    positions: list[int] = []
    add = positions.append
    last = total - FIXED_OVERHEAD
    unpack = _INT
    pos = previous = until_attempt = 0
    interval = 1
    while pos <= last:
        (size,) = unpack(data, pos)
        if size < FIXED_OVERHEAD:
            raise RemoteProtocolError(f"record at byte {pos} has an impossible size {size}")
        if size == previous and until_attempt <= 0:
            expected = np.arange(pos, pos + min((total - pos) // size, MAX_RUN) * size, size)
            different = np.flatnonzero(values_at(array, expected, ">i4") != size)
            equal = int(different[0]) if len(different) else len(expected)
            if equal >= MIN_RUN:
                runs += [np.array(positions, np.int64), expected[:equal]]
                positions.clear()
                pos += equal * size
                interval = 1
                continue
            interval = until_attempt = min(2 * interval, MAX_RUN)
        add(pos)
        pos += size
        previous = size
        until_attempt -= 1
    if pos != total:
        raise RemoteProtocolError(f"the pulled buffer has {total} bytes but its records end at byte {pos}")
    return np.concatenate([*runs, np.array(positions, np.int64)])


def entry_positions(data: Buffer, start: int, end: int) -> Any:
    """Return the position of each message of the inner batch in bytes ``[start, end)``, following their sizes."""
    unpack = _INT
    found: list[int] = []
    pos = start
    last = end - BATCH_ENTRY_OVERHEAD
    while pos <= last:
        found.append(pos)
        (size,) = unpack(data, pos)
        if size < BATCH_ENTRY_OVERHEAD:
            raise RemoteProtocolError(f"inner message at byte {pos} has an impossible size {size}")
        pos += size
    if pos != end:
        raise RemoteProtocolError(f"an inner batch ends at byte {end} but its messages at byte {pos}")
    return np.array(found, np.int64)


def inflate_bodies(data: Buffer, pos: Any, size: Any, body: Any, length: Any, sys_flag: Any, which: Any) -> bytearray:
    """Return the records with the bodies of ``which`` decompressed and their sizes and flags adjusted."""
    view = memoryview(data)
    out = bytearray()
    pack = INT32.pack_into
    sys_flag_at = RECORD_LAYOUT.offset("sys_flag")
    parts = (pos.tolist(), size.tolist(), body.tolist(), length.tolist(), sys_flag.tolist(), which.tolist())
    for p, s, b, n, f, is_wanted in zip(*parts, strict=True):
        if not is_wanted:
            out += view[p : p + s]
            continue
        plain = decompress(view[b : b + n], f)
        at = len(out)
        out += view[p:b]
        pack(out, at, s - n + len(plain))
        pack(out, at + sys_flag_at, f & ~SYSFLAG_COMPRESSED)
        pack(out, at + (b - p) - INT32.size, len(plain))
        out += plain
        out += view[b + n : p + s]
    return out
