"""Property strings of the same layout as a table: a row for each string, and the hashes of tags and keys computed by columns.

This module brings numpy; import it late.
"""

import numpy as np
from numpy.typing import NDArray

# A layout with more words in its KEYS gets no table, as the columns are hashed one by one.
_MAX_TABLE_WORDS = 16


class KeySeeds:
    """The initial values of key hashes by topic: the hashes of ``TOPIC#`` and of ``TOPIC#T#``."""

    def __init__(self, plain: NDArray[np.uint32], tag: NDArray[np.uint32]) -> None:
        self.plain = plain
        self.tag = tag


class PropertyLayout:
    """Positions of names, separators and relevant values in a property string, which other strings may share."""

    def __init__(self, text: bytes) -> None:
        fixed = np.ones(len(text), np.bool_)
        spans: dict[bytes, tuple[int, int]] = {}
        pos = 0
        for piece in text.split(b"\x02"):
            name, mark, value = piece.partition(b"\x01")
            begin = pos + len(name) + 1
            pos += len(piece) + 1
            if mark:
                fixed[begin : begin + len(value)] = False
                # A string with a repeated name is left to the code for single records.
                spans[name] = (begin, begin + len(value)) if name not in spans else (0, -1)
        self.unique = spans.get(b"UNIQ_KEY", (0, 0))
        self.tag = spans.get(b"TAGS", (0, 0))
        begin, end = spans.get(b"KEYS", (0, 0))
        blanks = [i for i in range(begin, end) if text[i] == 0x20]
        fixed[blanks] = True
        self.words = [(a, b) for a, b in zip([begin, *(i + 1 for i in blanks)], [*blanks, end], strict=True) if b > a]
        self.regular = (0, -1) not in spans.values() and len(self.words) <= _MAX_TABLE_WORDS
        self._text = np.frombuffer(text, np.uint8)
        self._fixed = np.flatnonzero(fixed)
        self._free = np.flatnonzero(~fixed)
        read = [i for a, b in (self.unique, self.tag, *self.words) for i in range(a, b)]
        self._read = np.array(read, np.int64)
        self._words = np.array([i for a, b in self.words for i in range(a, b)], np.int64)

    def fitting(self, table: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which rows have the same names and separators at the same positions, and only ASCII in the values that are hashed."""
        if not self.regular:
            return np.zeros(len(table), np.bool_)
        fits: NDArray[np.bool_] = (table[:, self._fixed] == self._text[self._fixed]).all(axis=1)
        fits &= (table[:, self._free] != 2).all(axis=1)
        fits &= (table[:, self._read] < 0x80).all(axis=1)
        fits &= (table[:, self._words] != 0x20).all(axis=1)
        return fits

    def codes(self, columns: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the tag codes of rows given as columns."""
        codes: NDArray[np.int64] = _hash(columns, self.tag, np.zeros(columns.shape[1], np.uint32)).view(np.int32).astype(np.int64)
        return codes

    def key_hashes(self, columns: NDArray[np.uint32], seeds: KeySeeds, topic: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the key hashes of rows given as columns, one row each: UNIQ_KEY, the words of KEYS, the tag."""
        plain = seeds.plain[topic]
        hashes = [_hash(columns, span, plain) for span in (self.unique, *self.words) if span[1] > span[0]]
        if self.tag[1] > self.tag[0]:
            hashes.append(_hash(columns, self.tag, seeds.tag[topic]))
        table = np.empty((columns.shape[1], len(hashes)), np.int32)
        for i, column in enumerate(hashes):
            # The absolute value; -2^31 has none and becomes 0.
            table[:, i] = np.abs(column.view(np.int32)) & np.int32(0x7FFFFFFF)
        return table


def _hash(columns: NDArray[np.uint32], span: tuple[int, int], seed: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return Java's string hash over some columns, continued from ``seed``."""
    h = seed.copy()
    for column in columns[span[0] : span[1]]:
        h *= np.uint32(31)
        h += column
    return h
