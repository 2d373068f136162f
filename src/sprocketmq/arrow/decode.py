"""Decode stored records into Arrow batches: from the buffer of a pull, or a stretch of a commit log file.

``pulled_rows`` locates the messages of the buffer, ``columns`` builds their columns, ``stored_properties`` splits property strings, and
``record_walk`` follows record sizes, which is the only step that must be sequential.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from sprocketmq.arrow.columns import ColumnBuilder
from sprocketmq.arrow.pulled_rows import PulledRows
from sprocketmq.arrow.schema import arrow_schema
from sprocketmq.protocol.compression import decompress

DEFAULT_BATCH_ROWS = 4000
DEFAULT_BATCH_BYTES = 4 << 20


def decode_rows(
    rows: PulledRows,
    columns: Sequence[str],
    broker_name: str | None,
    *,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of at most ``batch_rows`` rows and about ``batch_bytes`` of bodies; a batch has at least one row.

    ``broker_name`` None makes column brokerName null, for records of an unnamed broker. Raises RemoteProtocolError for bodies that cannot
    be decompressed.
    """
    schema = arrow_schema(columns)
    want_body = "body" in columns
    total = np.cumsum(rows.body_length + rows.props_length)
    low, count = 0, len(rows)
    while low < count:
        before = int(total[low - 1]) if low else 0
        high = min(low + batch_rows, max(low + 1, int(np.searchsorted(total, before + batch_bytes, "right"))))
        high = min(high, count)
        inflated: dict[int, bytes] = {}
        if want_body:
            high = _inflate(rows, low, high, batch_bytes, inflated)
        yield ColumnBuilder(rows, slice(low, high), broker_name, inflated).build(columns, schema)
        low = high


def _inflate(rows: PulledRows, low: int, high: int, limit: int, into: dict[int, bytes]) -> int:
    """Decompress the bodies of rows ``low`` to ``high`` until they take ``limit`` bytes; return the row after the last one done."""
    held = 0
    compressed = np.flatnonzero(rows.compressed[low:high]) + low
    for row in compressed.tolist():
        start = int(rows.body_pos[row])
        sys_flag = int(rows.sys_flags[row if rows.record is None else rows.record[row]])
        body = decompress(memoryview(rows.data)[start : start + int(rows.body_length[row])], sys_flag)
        into[row - low] = body
        held += len(body)
        if held >= limit:
            return int(row) + 1
    return high
