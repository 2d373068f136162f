"""Message ids for written rows: unique, or deterministic so that rows written twice have the same ids."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.arrow.arrays import HEX_DIGITS, data_and_bounds, fixed_width, joined

# A deterministic id holds ten bytes of a hash in place of address, process and salt, zero for the time (the start of the month), and two
# more bytes of the hash in place of the counter.
_ID_HASH_BYTES = 12


class RowIds:
    """Message ids of rows: new ones, or with ``scope`` ids that are the same each time the same rows are written.

    With a dedup key the id is a hash of the key alone. Without one it is a hash of ``scope`` (query, micro-batch and partition), of
    everything that is sent of the row, and of the number of equal rows before it. So the set of ids does not depend on the order of rows.
    """

    def __init__(self, take: Callable[[int], Sequence[str]], scope: str | None) -> None:
        self._take = take
        self._scope = scope
        self._seen = Occurrences()

    @property
    def deterministic(self) -> bool:
        """Whether ids follow from keys or content."""
        return self._scope is not None

    def new(self, count: int) -> pa.Array:
        """Return new unique ids."""
        texts = self._take(count)
        return fixed_width("".join(texts).encode(), count, len(texts[0]))

    def of_keys(self, keys: pa.Array) -> pa.Array:
        """Return ids that follow from the keys, which are not null. A key in the form of a message id is used as it is."""
        texts = keys.to_pylist()
        raw = [blake2b(key, digest_size=_ID_HASH_BYTES, person=b"sprocketmq-key").digest() for key in texts]
        made = _id_texts(np.frombuffer(b"".join(raw), np.uint8).reshape(-1, _ID_HASH_BYTES))
        are_ids = pc.match_substring_regex(keys, "^(?:[0-9A-F]{32}|[0-9A-F]{56})$")
        return pc.if_else(are_ids, keys, made)

    def of_content(self, *columns: pa.Array) -> pa.Array:
        """Return ids that follow from the values of ``columns`` (binary, without nulls, all of one length)."""
        count = len(columns[0])
        # The lengths come first so that different rows never join to the same bytes.
        lengths = np.column_stack([pc.binary_length(column).to_numpy() for column in columns]).astype(">i4")
        data, bounds = data_and_bounds(joined([fixed_width(lengths.tobytes(), count, 4 * len(columns)), *columns], count))
        cuts = bounds.tolist()
        start = blake2b((self._scope or "").encode(), digest_size=_ID_HASH_BYTES, person=b"sprocketmq-row")
        digests = []
        for low, high in pairwise(cuts):
            h = start.copy()
            h.update(data[low:high])
            digests.append(h.digest())
        raw = np.frombuffer(bytearray(b"".join(digests)), np.uint8).reshape(-1, _ID_HASH_BYTES)
        repeats = self._seen.number(np.ascontiguousarray(raw[:, :8]).view(np.uint64).ravel())
        for row in np.flatnonzero(repeats).tolist():
            again = blake2b(digests[row] + int(repeats[row]).to_bytes(8, "big"), digest_size=_ID_HASH_BYTES).digest()
            raw[row] = np.frombuffer(again, np.uint8)
        return _id_texts(raw)


class Occurrences:
    """Counts how often each number was seen before. Takes 8 bytes for a number, in sorted arrays that are merged when they double."""

    def __init__(self) -> None:
        self._levels: list[Any] = []

    def number(self, values: Any) -> Any:
        """Return for each value the number of equal ones before it, in this call and in earlier calls."""
        order = np.argsort(values, kind="stable")
        ranked = values[order]
        first = np.searchsorted(ranked, ranked, "left")
        before: Any = np.empty(len(values), np.int64)
        before[order] = np.arange(len(values)) - first
        for level in self._levels:
            before += np.searchsorted(level, values, "right") - np.searchsorted(level, values, "left")
        self._levels.append(ranked)
        while len(self._levels) > 1 and len(self._levels[-2]) <= 2 * len(self._levels[-1]):
            last = self._levels.pop()
            self._levels[-1] = np.sort(np.concatenate([self._levels[-1], last]), kind="stable")
        return before


def _id_texts(raw: Any) -> pa.Array:
    """Return hashes as message ids of 32 hex digits."""
    digits: Any = np.full((len(raw), 32), ord("0"), np.uint8)
    text = HEX_DIGITS[raw].reshape(len(raw), -1)
    digits[:, :20] = text[:, :20]
    digits[:, 28:] = text[:, 20:24]
    return fixed_width(digits.tobytes(), len(raw), 32)
