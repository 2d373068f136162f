"""Splitting a batch into its messages in the form that costs least: columns, or once numpy is loaded rows of an array for many alike."""

from typing import TYPE_CHECKING

from sprocketmq.protocol.batch import BatchColumns, scan_batch, split_columns
from sprocketmq.protocol.layout import BATCH_ENTRY_OVERHEAD
from sprocketmq.storage.index.numpy_loading import arrays_loaded

if TYPE_CHECKING:
    from sprocketmq.storage.log.exploding import Rows

# Below this, the array operations, 0.5 to 1 us each, cost more than they save.
MIN_ROWS = 60


def split(data: bytes | memoryview) -> "BatchColumns | Rows":
    """Return the messages of a batch. Raises RemoteProtocolError as ``split_batch`` does. Rows are valid while ``data`` is unchanged."""
    return _rows(data) or split_columns(data)


def scan(data: bytes | memoryview) -> tuple[int, bytes]:
    """Return how many messages a batch has, and their property strings one after the other. Raises what ``split`` raises."""
    rows = _rows(data)
    return (rows.count, rows.text) if rows is not None else scan_batch(data)


def _rows(data: bytes | memoryview) -> "Rows | None":
    if len(data) < MIN_ROWS * BATCH_ENTRY_OVERHEAD or not arrays_loaded():
        return None
    from sprocketmq.storage.log.exploding_rows import rows_of_batch

    return rows_of_batch(data, MIN_ROWS)
