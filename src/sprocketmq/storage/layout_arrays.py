"""The layouts of ``protocol/layout.py`` as numpy dtypes, and reading values at many offsets of a buffer at once.

Import this module late: it brings numpy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.layout import BATCH_ENTRY_LAYOUT, BATCH_UNIT_LAYOUT, INDEX_ENTRY_LAYOUT, QUEUE_UNIT_LAYOUT, RECORD_LAYOUT, Layout

_FORMATS = {"h": ">i2", "i": ">i4", "I": ">u4", "q": ">i8"}


def dtype_of(layout: Layout, *names: str) -> "np.dtype[Any]":
    """Return the dtype of some fields of a layout, all without names. It ends after the last field; raw bytes become opaque items."""
    fields = [layout.fields[name] for name in names or layout.fields]
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [_FORMATS.get(field.code, f"V{field.size}") for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": max(field.offset + field.size for field in fields),
        }
    )


# The 88 bytes before the body of a record with two IPv4 hosts.
RECORD_HEAD_DTYPE = dtype_of(RECORD_LAYOUT)
BATCH_ENTRY_HEAD_DTYPE = dtype_of(BATCH_ENTRY_LAYOUT)
QUEUE_UNIT_DTYPE = dtype_of(QUEUE_UNIT_LAYOUT)
BATCH_UNIT_DTYPE = dtype_of(BATCH_UNIT_LAYOUT)
INDEX_ENTRY_DTYPE = dtype_of(INDEX_ENTRY_LAYOUT)
INT16_DTYPE = np.dtype(">i2")
INT32_DTYPE = np.dtype(">i4")
INT64_DTYPE = np.dtype(">i8")


def values_at(data: Any, offsets: Any, kind: Any) -> NDArray[Any]:
    """Return the value of type ``kind`` that begins at each of some byte offsets of a buffer, as stored.

    ``kind`` is a dtype or ``V`` and a number of bytes. All values must lie within the buffer. A structured dtype is read as opaque items
    and viewed, as numpy copies bytes faster than fields one by one.
    """
    dtype = np.dtype(kind)
    # An array of overlapping values, one for each byte they may begin at.
    item = dtype if dtype.names is None else np.dtype(f"V{dtype.itemsize}")
    every: Any = np.ndarray((max(len(data) - dtype.itemsize + 1, 0),), item, data, 0, (1,))
    found: NDArray[Any] = every[offsets]
    return found if item is dtype else found.view(dtype)
