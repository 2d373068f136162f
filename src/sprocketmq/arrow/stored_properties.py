"""Property strings of many messages, split into name/value pairs in arrays.

The separators of all strings are located together: in well-formed strings (``name 0x01 value 0x02``) they alternate, so every piece
lies between two neighbouring separators. Malformed strings are split one by one, as the reference client splits them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sprocketmq.arrow.schema import MAP_TYPE
from sprocketmq.storage.layout_arrays import values_at


class StoredProperties:
    """The name/value pairs of many property strings.

    ``names`` and ``values`` hold the pairs of all rows; ``bounds`` is the index of each row's first pair, with one more entry than rows.
    ``common`` lists the names when every row has the same ones in the same order, as messages of one producer usually do. ``column`` then
    computes positions instead of searching for names.
    """

    __slots__ = ("bounds", "codes", "common", "known", "names", "row", "rows", "values")

    def __init__(self, strings: pa.Array) -> None:
        self.rows = len(strings)
        self.common: list[str] | None = None
        found = _split_pairs(strings)
        if found is None:
            self._set_pairs(*_split_pairs_leniently(strings))
            return
        self.common = found.common_names(self.rows)
        values = _pieces(found.text, found.assigns + 1, found.ends)
        if self.common is not None:
            self.names, self.values, self.bounds = _repeated(self.common, self.rows), values, found.bounds
            return
        self._set_pairs(_pieces(found.text, found.starts, found.assigns), values, found.bounds)
        if self._has_duplicates():
            self._set_pairs(*_split_pairs_leniently(strings))

    def _set_pairs(self, names: pa.Array, values: pa.Array, bounds: Any) -> None:
        self.names, self.values, self.bounds = names, values, bounds
        encoded = names.dictionary_encode()
        self.codes: Any = encoded.indices.to_numpy()
        self.known = encoded.dictionary
        self.row: Any = np.repeat(np.arange(self.rows), np.diff(bounds))

    def _has_duplicates(self) -> bool:
        """Return whether any row has a name twice, which a map column must not hold."""
        kinds = len(self.known)
        cells = self.row * kinds + self.codes
        if self.rows * kinds <= 16 * len(cells):
            return bool(len(cells)) and int(np.bincount(cells).max()) > 1
        return len(np.unique(cells)) != len(cells)

    def as_map(self) -> pa.Array:
        """Return the pairs as a map column."""
        return pa.MapArray.from_arrays(pa.array(self.bounds, pa.int32()), self.names, self.values, type=MAP_TYPE)

    def column(self, name: str) -> pa.Array:
        """Return the values of one property, null where a row has none."""
        if self.common is not None:
            if name not in self.common:
                return pa.nulls(self.rows, pa.string())
            return self.values.take(pa.array(np.arange(self.common.index(name), len(self.values), len(self.common))))
        code = self.known.index(pa.scalar(name)).as_py()
        if code < 0:
            return pa.nulls(self.rows, pa.string())
        pair = np.flatnonzero(self.codes == code)
        if len(pair) == self.rows:
            return self.values.take(pa.array(pair))
        index: Any = np.zeros(self.rows, np.int64)
        absent: Any = np.ones(self.rows, bool)
        rows = self.row[pair]
        index[rows] = pair
        absent[rows] = False
        return self.values.take(pa.array(index, mask=absent))


class _Split(NamedTuple):
    """Positions of the pairs within the joined text of all property strings.

    ``starts`` are the first bytes of names, ``assigns`` the separators after names, ``ends`` those after values; ``bounds`` as in
    StoredProperties.
    """

    text: Any
    starts: Any
    assigns: Any
    ends: Any
    bounds: Any

    def common_names(self, rows: int) -> list[str] | None:
        """Return the names when every row has the same ones in the same order and none twice, else None."""
        each = len(self.ends) // rows if rows else 0
        if not each or (self.bounds != np.arange(0, (rows + 1) * each, each)).any():
            return None
        lengths = (self.assigns - self.starts).reshape(rows, each)
        if (lengths != lengths[0]).any():
            return None
        names = []
        for i, length in enumerate(lengths[0].tolist()):
            found = values_at(self.text, self.starts[i::each], f"V{length}").view(np.uint8).reshape(rows, length)
            if (found != found[0]).any():
                return None
            start = int(self.starts[i])
            names.append(bytes(self.text[start : start + length]).decode())
        return names if len(set(names)) == each else None


def _split_pairs(strings: pa.Array) -> _Split | None:
    """Split property strings that consist of ``name 0x01 value 0x02`` only; return None when one of them does not.

    The separators of all such strings together alternate, and each string ends with 0x02.
    """
    _, bounds_buffer, data = strings.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int32)[: len(strings) + 1] if len(strings) else np.zeros(1, np.int32)
    text = np.frombuffer(data, np.uint8)[: bounds[-1]] if data is not None else np.empty(0, np.uint8)
    assigns = np.flatnonzero(text == 1)
    ends = np.flatnonzero(text == 2)
    filled = bounds[1:][np.diff(bounds) > 0]
    if len(assigns) != len(ends) or not (text[filled - 1] == 2).all():
        return None
    starts: Any = np.empty(len(ends), np.int64)
    if len(ends):
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
    if not ((starts < assigns) & (assigns + 1 < ends)).all() or not _is_utf8(text):
        return None
    return _Split(text, starts, assigns, ends, np.searchsorted(ends, bounds).astype(np.int32))


def _pieces(text: Any, starts: Any, ends: Any) -> pa.Array:
    """Return pieces of UTF-8 text, in order and not overlapping, as a compact string array."""
    cuts: Any = np.empty(2 * len(starts) + 1, np.int32)
    cuts[:-1:2], cuts[1::2], cuts[-1] = starts, ends, len(text)
    pieces = pa.Array.from_buffers(pa.string(), 2 * len(starts), [None, pa.py_buffer(cuts), pa.py_buffer(text)])
    return pieces.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def _repeated(names: Sequence[str], rows: int) -> pa.Array:
    """Return ``names`` repeated ``rows`` times as a string array."""
    encoded = [name.encode() for name in names]
    ends = np.cumsum([len(name) for name in encoded])
    cuts: Any = np.zeros(len(names) * rows + 1, np.int32)
    cuts[1:] = (np.arange(rows)[:, None] * ends[-1] + ends).ravel()
    return pa.Array.from_buffers(pa.string(), len(names) * rows, [None, pa.py_buffer(cuts), pa.py_buffer(b"".join(encoded) * rows)])


def _split_pairs_leniently(strings: pa.Array) -> tuple[pa.Array, pa.Array, Any]:
    """Split property strings one by one as the reference client does: pieces without name or value are dropped, a later pair wins."""
    names: list[str] = []
    values: list[str] = []
    bounds = [0]
    for raw in strings.to_pylist():
        pairs = {}
        for piece in raw.decode("utf-8", "replace").split("\x02"):
            name, _, value = piece.partition("\x01")
            if name and value:
                pairs[name] = value
        names += pairs
        values += pairs.values()
        bounds.append(len(names))
    return pa.array(names, pa.string()), pa.array(values, pa.string()), np.array(bounds, np.int32)


def _is_utf8(text: Any) -> bool:
    try:
        str(text.data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
