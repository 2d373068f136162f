"""Column ``properties`` of the rows to be written: name/value pairs in arrays, and the property strings made of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.arrow.arrays import data_and_bounds
from sprocketmq.spark.sink.row_fields import RowRefused, refuse_separators


class RowProperties:
    """The name/value pairs of a map column.

    ``names`` and ``values`` hold the pairs of all rows; ``bounds`` is the index of each row's first pair, with one more entry than rows.
    ``number`` maps an index to the row number within the task, for errors.
    """

    def __init__(self, column: pa.MapArray, number: Callable[[Any], int]) -> None:
        self._number = number
        offsets = column.offsets.to_numpy()
        if column.null_count:
            # Arrow may keep pairs in the buffers below a null row: leave them out.
            size = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
            self.bounds = np.concatenate([[0], np.cumsum(size)])
            index = np.repeat(offsets[:-1] - self.bounds[:-1], size) + np.arange(int(self.bounds[-1]))
            self.names, self.values = column.keys.take(pa.array(index)), column.items.take(pa.array(index))
        else:
            first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
            self.bounds = offsets.astype(np.int64) - first
            self.names, self.values = column.keys.slice(first, length), column.items.slice(first, length)
        self.names, self.values = self.names.cast(pa.string()), self.values.cast(pa.string())
        encoded = self.names.dictionary_encode()
        self.codes = encoded.indices.to_numpy()
        self.known: list[str] = encoded.dictionary.to_pylist()

    @property
    def row(self) -> Any:
        """The row of each pair."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    def take(self, order: pa.Array) -> "RowProperties":
        """Return the properties of the rows in another order."""
        rows = order.to_numpy()
        size = np.diff(self.bounds)[rows]
        other = object.__new__(RowProperties)
        other._number = self._number
        other.bounds = np.concatenate([[0], np.cumsum(size)])
        index = np.repeat(self.bounds[rows] - other.bounds[:-1], size) + np.arange(int(other.bounds[-1]))
        other.names, other.values = self.names.take(pa.array(index)), self.values.take(pa.array(index))
        other.codes, other.known = self.codes[index], self.known
        return other

    def values_of(self, name: str) -> pa.Array | None:
        """Return the values of one property, null for rows without it, or None when no row has it."""
        if name not in self.known:
            return None
        pair = np.flatnonzero(self.codes == self.known.index(name))
        index: Any = np.full(len(self.bounds) - 1, -1)
        index[self.row[pair]] = pair
        return self.values.take(pa.array(index, mask=index < 0))

    def strings(self, wanted: Callable[[str], bool]) -> pa.Array:
        """Return the property string of each row, without pairs that have no value or whose name is not ``wanted``."""
        keep = np.array([wanted(name) for name in self.known], bool)[self.codes] if len(self.codes) else np.zeros(0, bool)
        full = pc.not_equal(self.values, "").fill_null(False).to_numpy(zero_copy_only=False)
        keep &= full
        names, values, bounds, row = self.names, self.values, self.bounds, self.row
        if not keep.all():
            mask = pa.array(keep)
            names, values, row = names.filter(mask), values.filter(mask), row[keep]
            bounds = np.concatenate([[0], np.cumsum(keep)])[bounds]
        pairs = pc.binary_join_element_wise(names, "\x01", values, "\x02", "")
        data, cuts = data_and_bounds(pairs)
        raw = np.frombuffer(data, np.uint8)
        if np.count_nonzero(raw == 1) != len(pairs) or np.count_nonzero(raw == 2) != len(pairs):
            for column in (names, values):
                refuse_separators(column, "a name or value of its properties holds", lambda at: self._number(row[at]))
        empty = pc.equal(names, "").to_numpy(zero_copy_only=False)
        if empty.any():
            raise RowRefused(self._number(row[np.argmax(empty)]), "a name in its properties is empty")
        return pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(np.ascontiguousarray(cuts[bounds], np.int32)), pa.py_buffer(data)]
        )
