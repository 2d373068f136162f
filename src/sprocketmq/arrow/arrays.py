"""Arrow arrays from bytes and offsets, and joins of columns: the helpers shared by the source's and the sink's columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The two ASCII hex digits of each byte value.
HEX_DIGITS = np.array([list(f"{i:02X}".encode()) for i in range(256)], np.uint8)


def as_binary(column: pa.Array) -> pa.Array:
    """Return a text or binary column as binary."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def fixed_width(data: bytes, count: int, width: int) -> pa.Array:
    """Return ``count`` values of ``width`` bytes, back to back in ``data``, as a binary array."""
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def data_and_bounds(column: pa.Array) -> tuple[memoryview, Any]:
    """Return the data of a binary or string array without nulls, and the bounds of its values in it."""
    _, bounds, data = column.buffers()
    cuts = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1] if len(column) else np.zeros(1, np.int32)
    return memoryview(data) if data is not None else memoryview(b""), cuts


def joined(parts: Sequence[Any], count: int) -> pa.Array:
    """Join the parts of each row; null parts are skipped, and parts of type bytes are the same in all rows."""
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return fixed_width(parts[0] * count, count, len(parts[0]))
    pieces = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else as_binary(part) for part in parts]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()), null_handling="skip")


def joined_words(lists: pa.ListArray) -> pa.Array:
    """Join the texts of each list with blanks. Nulls are skipped: Arrow alone would make the whole text null."""
    values = lists.flatten()
    if values.null_count:
        kept = values.is_valid().to_numpy(zero_copy_only=False)
        sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        counts = np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], np.cumsum(sizes)])]
        lists = pa.ListArray.from_arrays(pa.array(counts, pa.int32()), values.drop_null())
    return pc.binary_join(lists, " ")


def property_strings(name: str, values: pa.Array) -> pa.Array:
    """Return property ``name`` of each row in stored form (``name 0x01 value 0x02``), null where the value is null."""
    return pc.binary_join_element_wise(f"{name}\x01", values, "\x02", "", null_handling="emit_null")


def null_if_empty(texts: pa.Array) -> pa.Array:
    """Return the texts with null for empty ones."""
    empty = pc.equal(texts, "").fill_null(False).to_numpy(zero_copy_only=False)
    if not empty.any():
        return texts
    # `if_else` with a scalar before pyarrow 24 returns other bytes when the texts are part of a longer array.
    return texts.take(pa.array(np.arange(len(texts)), mask=empty))


def null_if_zero(numbers: pa.Array) -> pa.Array:
    """Return int64 numbers with null for 0."""
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(None, pa.int64()), numbers)


def grouping_order(groups: Sequence[Any], count: int) -> tuple[Any, Any]:
    """Return a stable order that puts rows with equal codes side by side, and the combined code of each row in that order.

    The order is None when rows are in such an order already; both are None when all rows have the same codes.
    """
    if not groups:
        return None, None
    code: Any = np.zeros(count, np.int64)
    for group in groups:
        code = code * (int(group.max()) + 1) + group
    if (code == code[0]).all():
        return None, None
    if (code[1:] >= code[:-1]).all():
        return None, code
    order = np.argsort(code, kind="stable")
    return order, code[order]
