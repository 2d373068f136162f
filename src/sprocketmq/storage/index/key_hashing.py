r"""The keys of many messages hashed at once: Java's string hash as a dot product, and property strings cut by their separators with numpy.

Import this module late: it brings numpy. What a message's keys are, one by one and in words, is in ``index.py``.

A string of n UTF-16 units u hashes to ``u[0] 31^(n-1) + ... + u[n-1]`` modulo 2^32, so all strings of one length are rows of a matrix
that is multiplied by one vector of powers; and the hash of ``prefix + value`` is ``hash(prefix) 31^len(value) + hash(value)``, so a
topic is hashed once.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.hashing import java_hash
from sprocketmq.storage.chunks import KeyEntries

_SEPARATOR = 1  # between a name and its value
_END = 2  # behind every value
_BLANK = 0x20  # between the words of KEYS
# Before the first name: a separator, and enough room to look back from the first value for the longest name.
_FRONT = b"\0" * 8 + b"\x02"

_WORD = re.compile(rb"[^ ]+")
# Property strings of one length are tried as a table from so many on; fewer cost less one by one.
_MIN_ALIKE = 64

# Text as bytes when all of it is ASCII, else as UTF-16 units.
_Units = NDArray[np.uint8] | NDArray[np.uint16]
_Fours = NDArray[np.uint32] | NDArray[np.uint64]


# A batch's arrays take some megabytes that are free again at its end. glibc would give them back to the system and fetch them anew for
# the next one, which takes as long as the work itself; having freed a block of this size (never touched, so it costs nothing) it keeps
# as much.
_KEPT_BYTES = 16 << 20
np.empty(_KEPT_BYTES, np.uint8)


def hash_keys(prefix: bytes, values: Sequence[bytes]) -> NDArray[np.int32]:
    """Return the key hash (0 to 2^31 - 1) of ``prefix + value`` for each value, all UTF-8; bytes that are not hash as U+FFFD."""
    units, ends = _joined(values)
    starts = np.empty_like(ends)
    if len(ends):
        starts[0] = len(_FRONT)
        starts[1:] = ends[:-1]
    seed = java_hash(prefix.decode("utf-8", "replace")) & 0xFFFFFFFF
    return _key_hashes(units, starts, ends - starts, np.full(len(ends), seed, np.uint32))


def entries_of(topic: bytes, properties: Sequence[bytes], physicals: NDArray[np.int64], times_ms: NDArray[np.int64]) -> KeyEntries:
    """Return the index entries of some records of one topic, from their property strings, places and store times.

    In the order of the records, and of each record its UNIQ_KEY, the words of its KEYS, its tag. Records of rolled back transactions
    have no entries; the caller leaves them out.
    """
    return entries_of_topics([topic], np.zeros(len(properties), np.int64), properties, physicals, times_ms)


def entries_of_topics(
    topics: Sequence[bytes],
    owners: NDArray[np.int64],
    properties: Sequence[bytes],
    physicals: NDArray[np.int64],
    times_ms: NDArray[np.int64],
    lengths: NDArray[np.int64] | None = None,
) -> KeyEntries:
    """Return the index entries of records of several topics: record i is of ``topics[owners[i]]``. Otherwise as ``entries_of``.

    ``lengths`` are those of the property strings, for callers that have them.
    """
    if lengths is None:
        lengths = np.fromiter(map(len, properties), np.int64, len(properties))
    texts = [topic.decode("utf-8", "replace") for topic in topics]
    plain = np.array([java_hash(text + "#") & 0xFFFFFFFF for text in texts], np.uint32)[owners]
    tagged = np.array([java_hash(text + "#T#") & 0xFFFFFFFF for text in texts], np.uint32)[owners]
    parts = list(_hashed(properties, lengths, plain, tagged))
    counts = np.zeros(len(properties), np.int64)
    for rows, each, _ in parts:
        counts[rows] = each
    if len(parts) == 1 and len(parts[0][0]) == len(properties):
        hashes = parts[0][2]  # in order already
    else:
        hashes = np.empty(int(counts.sum()), np.int32)
        begins = np.cumsum(counts) - counts
        for rows, each, some in parts:
            hashes[np.repeat(begins[rows] - (np.cumsum(each) - each), each) + np.arange(len(some))] = some
    return KeyEntries(hashes, np.repeat(physicals, counts), np.repeat(times_ms, counts))


# Some records by their numbers, how many keys each has, and the hashes of these keys.
_Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]


def _hashed(
    properties: Sequence[bytes], lengths: NDArray[np.int64], plain: NDArray[np.uint32], tagged: NDArray[np.uint32]
) -> Iterator[_Part]:
    """Yield the keys of all records that have any; ``plain`` and ``tagged`` are what the hashes of keys and tags begin with."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    left = []
    for group in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        rows = group
        if len(rows) >= _MIN_ALIKE and (length := int(lengths[rows[0]])):
            strings = properties if len(rows) == len(properties) else [properties[row] for row in rows.tolist()]
            table = np.frombuffer(b"".join(strings), np.uint8).reshape(len(rows), length)
            alike, hashes = _hash_alike(table, plain[rows], tagged[rows])
            yield rows[alike], np.full(len(alike), hashes.shape[1]), hashes.reshape(-1)
            rows = np.delete(rows, alike)
        left.append(rows)
    rows = np.sort(np.concatenate(left)) if left else order
    if len(rows):
        each, hashes = _hash_any([properties[row] for row in rows.tolist()], plain[rows], tagged[rows])
        yield rows, each, hashes


def _hash_alike(
    table: NDArray[np.uint8], plain: NDArray[np.uint32], tagged: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return which rows of property strings are laid out as the first one is, and a row with the key hashes of each of them.

    Most clients write all their messages in one way: the same names in the same order, ids and keys of the same length.
    """
    none = np.empty(0, np.int64), np.empty((0, 0), np.int32)
    first = table[0]
    text = first.tobytes()
    pieces = text.split(b"\x02")
    if not text.isascii() or pieces.pop():
        return none
    places: dict[bytes, tuple[int, int]] = {}
    fixed = np.ones(len(text), np.bool_)
    at = 0
    for piece in pieces:
        name, _, value = piece.partition(b"\x01")
        end = at + len(piece)
        if not value or name in places:
            return none
        places[name] = end - len(value), end
        fixed[end - len(value) : end] = False
        at = end + 1
    begin, end = places.get(b"KEYS", (0, 0))
    fixed[begin:end] = first[begin:end] == _BLANK
    words = [(begin + m.start(), begin + m.end()) for m in _WORD.finditer(text[begin:end])]
    rows = _fitting(table, first, fixed, begin, end)
    if len(rows) < len(table):
        table, plain, tagged = table[rows], plain[rows], tagged[rows]
    wanted = [(place, plain) for place in (places.get(b"UNIQ_KEY"), *words) if place] + [
        (place, tagged) for place in (places.get(b"TAGS"),) if place
    ]
    hashes = np.empty((len(rows), len(wanted)), np.int32)
    for column, ((begin, end), seeds) in enumerate(wanted):
        hashes[:, column] = _hash_rows(table[:, begin:end], seeds)
    return rows, hashes


def _fitting(table: NDArray[np.uint8], first: NDArray[np.uint8], fixed: NDArray[np.bool_], begin: int, end: int) -> NDArray[np.int64]:
    """Return which rows have the bytes of the first one wherever these are ``fixed``, elsewhere no separators and only ASCII.

    And no blanks in ``[begin, end)`` that are not fixed. One pass over all rows at once tells it when that is all of them.
    """
    count = len(table)
    whole = table.reshape(-1)
    mask = np.where(fixed, np.uint8(0xFF), np.uint8(0x80))
    unlike = whole[len(first) :] ^ whole[: -len(first)]  # each row and the one before
    unlike &= np.tile(mask, count - 1)
    if (
        not unlike.any()
        and np.count_nonzero(whole <= _END) == count * np.count_nonzero(first <= _END)
        and np.count_nonzero(table[:, begin:end] == _BLANK) == count * np.count_nonzero(first[begin:end] == _BLANK)
    ):
        return np.arange(count)
    wrong = (table ^ first) & mask != 0
    wrong |= (table <= _END) != (first <= _END)
    wrong[:, begin:end] |= (table[:, begin:end] == _BLANK) != (first[begin:end] == _BLANK)
    return np.flatnonzero(~wrong.any(axis=1))


def _hash_any(
    properties: Sequence[bytes], plain: NDArray[np.uint32], tagged: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return how many keys each record has, and their hashes, whatever the property strings look like."""
    units, ends = _joined(properties)
    if len(ends) and not (units[ends - 1] == _END).all():  # the last separator of a property string may be missing
        units, ends = _joined([p if not p or p.endswith(b"\x02") else p + b"\x02" for p in properties])
    marks = np.flatnonzero(units == _SEPARATOR)
    closes = np.flatnonzero(units == _END)[1:]
    if not (len(marks) == len(closes) and (marks < closes).all() and (closes[:-1] < marks[1:]).all()):
        closes = closes[np.searchsorted(closes, marks)]  # else every name has one value, and the i-th ends at the i-th 0x02
    fours = _fours(units)
    lasts = fours[marks - 4]
    unique = _values(units, ends, marks, closes, fours, lasts, b"UNIQ_KEY")
    words = _words(units, _values(units, ends, marks, closes, fours, lasts, b"KEYS"))
    tags = _values(units, ends, marks, closes, fours, lasts, b"TAGS")

    # Each record's entries stand together: the unique key first, the tag last, the words between.
    count = len(properties)
    ahead = np.bincount(unique[0], minlength=count)
    behind = ahead + np.bincount(words[0], minlength=count)
    per_record = behind + np.bincount(tags[0], minlength=count)
    base = np.cumsum(per_record) - per_record
    first_word = np.cumsum(behind - ahead) - (behind - ahead)
    places = np.concatenate(
        (
            base[unique[0]],
            (base + ahead - first_word)[words[0]] + np.arange(len(words[0])),
            (base + behind)[tags[0]],
        )
    )
    starts = np.empty(len(places), np.int64)
    lengths = np.empty(len(places), np.int64)
    seeds = np.repeat(plain, per_record)
    starts[places] = np.concatenate((unique[1], words[1], tags[1]))
    lengths[places] = np.concatenate((unique[2], words[2], tags[2]))
    seeds[(base + behind)[tags[0]]] = tagged[tags[0]]
    return per_record, _key_hashes(units, starts, lengths, seeds)


# Values in a row of units: to which record they belong, where each starts, how long it is.
_Values = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _joined(texts: Sequence[bytes]) -> tuple[_Units, NDArray[np.int64]]:
    """Return all texts in one row behind ``_FRONT``, as bytes or, when one is not ASCII, as UTF-16 units; and where each ends."""
    joined = b"".join((_FRONT, *texts))
    lengths: Iterable[int] = map(len, texts)
    if joined.isascii():
        units = np.frombuffer(joined, np.uint8)
    else:
        wide = [text.decode("utf-8", "replace").encode("utf-16-le") for text in texts]
        units = np.frombuffer(b"".join((_FRONT.decode().encode("utf-16-le"), *wide)), np.dtype("<u2"))
        lengths = (len(text) // 2 for text in wide)
    return units, np.cumsum(np.fromiter(lengths, np.int64, len(texts))) + len(_FRONT)


def _fours(units: _Units) -> _Fours:
    """Return every four neighbours as one number."""
    size = units.itemsize
    return np.ndarray((len(units) - 3,), np.uint32 if size == 1 else np.uint64, units, 0, (size,))


def _values(
    units: _Units,
    ends: NDArray[np.int64],
    marks: NDArray[np.int64],
    closes: NDArray[np.int64],
    fours: _Fours,
    lasts: _Fours,
    name: bytes,
) -> _Values:
    """Return the values of one property, whose name has four or eight characters.

    ``marks`` are the places of 0x01, ``closes`` where the values behind them end, ``lasts`` the last four characters before them.
    """
    chars = np.frombuffer(name, np.uint8)
    wanted = _fours(chars if units.itemsize == 1 else chars.astype(np.uint16))
    which = np.flatnonzero(lasts == wanted[-1])
    if len(name) == 8:
        which = which[fours[marks[which] - 8] == wanted[0]]
    which = which[units[marks[which] - len(name) - 1] == _END]
    starts = marks[which] + 1
    stops = closes[which]
    records = np.searchsorted(ends, starts, "right")
    lengths = stops - starts
    keep = lengths > 0
    if not keep.all():
        records, starts, lengths = records[keep], starts[keep], lengths[keep]
    if (records[1:] == records[:-1]).any():  # named twice: the last one counts
        keep = np.append(records[1:] != records[:-1], True)
        records, starts, lengths = records[keep], starts[keep], lengths[keep]
    return records, starts, lengths


def _words(units: _Units, values: _Values) -> _Values:
    """Cut values at their blanks; empty words are none."""
    records, starts, lengths = values
    if not len(starts):
        return values
    blanks = np.flatnonzero(units == _BLANK)
    owner = np.searchsorted(starts, blanks, "right") - 1
    inside = (owner >= 0) & (blanks < (starts + lengths)[owner])
    if not inside.any():
        return values
    blanks, owner = blanks[inside], owner[inside]
    begins = np.sort(np.concatenate((starts, blanks + 1)))
    stops = np.sort(np.concatenate((starts + lengths, blanks)))
    owner = np.sort(np.concatenate((np.arange(len(starts)), owner)))
    keep = stops > begins
    return records[owner[keep]], begins[keep], (stops - begins)[keep]


def _key_hashes(units: _Units, starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Return the key hash of each piece of ``units`` as if a text that hashes to its seed stood before it."""
    hashes = np.empty(len(starts), np.int32)
    if len(starts):
        longest = int(lengths.max())
        order = np.argsort(lengths.astype(np.uint16) if longest < 1 << 16 else lengths, kind="stable")  # 16 bits are sorted by radix
        ordered = lengths[order]
        borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for group in np.split(order, borders):
            length = int(lengths[group[0]])
            # Every window of this length, as rows that overlap; taking some of them copies only those.
            windows = np.ndarray((len(units) - length + 1, length), units.dtype, units, 0, (units.itemsize, units.itemsize))
            hashes[group] = _hash_rows(windows[starts[group]], seeds[group])
    return hashes


def _hash_rows(rows: _Units, seeds: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Return the key hash of each row of units as if a text that hashes to its seed stood before it."""
    powers = _powers(rows.shape[1])
    hashes: NDArray[np.uint32] = seeds * powers[0] + np.einsum("ij,j->i", rows.astype(np.uint32), powers[1:])
    # |h| is its two's complement when negative; -2^31 has none and becomes 0.
    return np.abs(hashes.view(np.int32)) & np.int32(0x7FFFFFFF)


@lru_cache(maxsize=256)
def _powers(count: int) -> NDArray[np.uint32]:
    """Return 31^count, ..., 31, 1 modulo 2^32."""
    powers = np.full(count + 1, 31, np.uint32)
    powers[0] = 1
    return np.ascontiguousarray(np.cumprod(powers, dtype=np.uint32)[::-1])
