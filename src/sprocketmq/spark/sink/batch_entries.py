"""Batch entries in columns: what ``protocol/batch.py`` does for one message, for all rows of an Arrow batch at once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.arrow.arrays import data_and_bounds, fixed_width, joined
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD_BYTES, BATCH_ENTRY_OVERHEAD, INT16
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH
from sprocketmq.storage.layout_arrays import BATCH_ENTRY_HEAD_DTYPE, INT16_DTYPE


def encode_entries(flags: Any, bodies: pa.Array, body_lengths: Any, properties: pa.Array) -> tuple[memoryview, Any]:
    """Return the entries of all rows back to back, and their bounds. ``flags`` is None when all are 0.

    The length field of a property string that is too long holds the limit: the caller must not send such an entry.
    """
    count = len(bodies)
    lengths = pc.binary_length(properties).to_numpy().astype(np.int64)
    heads: Any = np.zeros(count, BATCH_ENTRY_HEAD_DTYPE)
    heads["size"] = BATCH_ENTRY_OVERHEAD + body_lengths + lengths
    heads["body_length"] = body_lengths
    if flags is not None:
        heads["flag"] = flags
    fields = np.minimum(lengths, MAX_PROPERTIES_LENGTH).astype(INT16_DTYPE)
    head_column = fixed_width(heads.tobytes(), count, BATCH_ENTRY_HEAD_BYTES)
    return data_and_bounds(joined([head_column, bodies, fixed_width(fields.tobytes(), count, INT16.size), properties], count))


def property_lengths(bounds: Any, body_lengths: Any) -> Any:
    """Return the lengths of the property strings of consecutive entries, given the bounds of the entries and their body lengths."""
    return np.diff(bounds) - body_lengths - BATCH_ENTRY_OVERHEAD


def body_of(data: memoryview, start: int, body_length: int) -> memoryview:
    """Return the body of the entry that begins at ``start``."""
    return data[start + BATCH_ENTRY_HEAD_BYTES : start + BATCH_ENTRY_HEAD_BYTES + body_length]


def properties_of(data: memoryview, start: int, body_length: int, end: int) -> str:
    """Return the property string of the entry ``[start, end)``."""
    return str(data[start + BATCH_ENTRY_OVERHEAD + body_length : end], "utf-8")
