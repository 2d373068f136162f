r"""The keys of many messages hashed at once: property strings split with numpy, Java's string hash computed as a dot product.

Loads numpy: see ``numpy_loading``. The rules for keys, and the same for one message, are in ``record_keys``.

A string of n UTF-16 units u hashes to ``u[0] 31^(n-1) + ... + u[n-1]`` modulo 2^32, so strings of the same length are the rows of a
matrix that is multiplied by one vector of powers. The hash of ``prefix + value`` is ``hash(prefix) 31^len(value) + hash(value)``, so a
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
_END = 2  # after every value
_SPACE = 0x20  # between the words of KEYS
# Precedes the first name: a terminator, and room to look back from the first value for the longest name.
_PREFIX = b"\0" * 8 + b"\x02"

_WORD = re.compile(rb"[^ ]+")
# At least this many property strings of the same length are tried as a table; fewer cost less one by one.
_MIN_ALIKE = 64

# Text as bytes when all of it is ASCII, else as UTF-16 units.
_Units = NDArray[np.uint8] | NDArray[np.uint16]
_Fours = NDArray[np.uint32] | NDArray[np.uint64]


# The arrays of a batch take several megabytes, which are freed at its end. glibc would unmap them and map new ones for the next batch,
# which takes as long as the hashing itself. Freeing one block of this size (never touched, so it costs nothing) raises glibc's dynamic
# M_MMAP_THRESHOLD, so that it keeps them.
_KEPT_BYTES = 16 << 20
np.empty(_KEPT_BYTES, np.uint8)


def entries_of_topics(
    topics: Sequence[bytes],
    owners: NDArray[np.int64],
    properties: Sequence[bytes],
    log_offsets: NDArray[np.int64],
    times_ms: NDArray[np.int64],
) -> KeyEntries:
    """Return the index entries of records of several topics, from their property strings, log offsets and store times.

    Record i is of ``topics[owners[i]]``. Entries are in the order of the records, and of each record its UNIQ_KEY, the words of its KEYS,
    its tag. Records of rolled back transactions have no entries; the caller leaves them out.
    """
    lengths = np.fromiter(map(len, properties), np.int64, len(properties))
    return entries_of_text(topics, owners, b"".join(properties), lengths, log_offsets, times_ms)


def entries_of_text(
    topics: Sequence[bytes],
    owners: NDArray[np.int64],
    text: bytes,
    lengths: NDArray[np.int64],
    log_offsets: NDArray[np.int64],
    times_ms: NDArray[np.int64],
) -> KeyEntries:
    """Return what ``entries_of_topics`` returns, from property strings one after the other in ``text`` and their lengths."""
    names = [topic.decode("utf-8", "replace") for topic in topics]
    plain = np.array([java_hash(name + "#") & 0xFFFFFFFF for name in names], np.uint32)[owners]
    tagged = np.array([java_hash(name + "#T#") & 0xFFFFFFFF for name in names], np.uint32)[owners]
    parts = list(_hashed(text, lengths, plain, tagged))
    if len(parts) == 1 and len(parts[0][0]) == len(lengths):
        _, counts, hashes = parts[0]  # already in order
    else:
        counts = np.zeros(len(lengths), np.int64)
        for rows, each, _ in parts:
            counts[rows] = each
        hashes = np.empty(int(counts.sum()), np.int32)
        begins = np.cumsum(counts) - counts
        for rows, each, some in parts:
            hashes[np.repeat(begins[rows] - (np.cumsum(each) - each), each) + np.arange(len(some))] = some
    if len(hashes) == len(counts) and (counts == 1).all():  # only unique keys
        return KeyEntries(hashes, log_offsets, times_ms)
    return KeyEntries(hashes, np.repeat(log_offsets, counts), np.repeat(times_ms, counts))


# The indices of some records, the number of keys of each, and the hashes of these keys.
_Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]


def _hashed(text: bytes, lengths: NDArray[np.int64], plain: NDArray[np.uint32], tagged: NDArray[np.uint32]) -> Iterator[_Part]:
    """Yield the key hashes of all records; ``plain`` and ``tagged`` are each record's hash of ``TOPIC#`` and ``TOPIC#T#``."""
    units = np.frombuffer(text, np.uint8)
    starts = np.cumsum(lengths) - lengths
    if len(lengths) and (lengths == lengths[0]).all():
        groups = [np.arange(len(lengths))]
    else:
        order = np.argsort(lengths, kind="stable")
        ordered = lengths[order]
        groups = np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
    left = []
    for group in groups:
        rows = group
        if len(rows) >= _MIN_ALIKE and (length := int(lengths[rows[0]])):
            if len(groups) == 1:
                table = units.reshape(len(rows), length)
            else:
                table = np.ndarray((len(units) - length + 1, length), np.uint8, units, 0, (1, 1))[starts[rows]]
            alike, hashes = _hash_alike(table, plain[rows], tagged[rows])
            yield rows[alike], np.full(len(alike), hashes.shape[1]), hashes.reshape(-1)
            rows = np.delete(rows, alike) if len(alike) < len(rows) else rows[:0]
        left.append(rows)
    rows = np.sort(np.concatenate(left)) if left else np.empty(0, np.int64)
    if len(rows):
        begins, ends = starts[rows], starts[rows] + lengths[rows]
        strings = [text[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        each, hashes = _hash_any(strings, plain[rows], tagged[rows])
        yield rows, each, hashes


def _hash_alike(
    table: NDArray[np.uint8], plain: NDArray[np.uint32], tagged: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return which rows of property strings have the layout of the first one, and the key hashes of each of them as a row.

    Most clients write all their messages with the same names in the same order, and ids and keys of the same length.
    """
    none = np.empty(0, np.int64), np.empty((0, 0), np.int32)
    first = table[0]
    text = first.tobytes()
    pieces = text.split(b"\x02")
    if not text.isascii() or pieces.pop():
        return none
    spans: dict[bytes, tuple[int, int]] = {}
    fixed = np.ones(len(text), np.bool_)
    at = 0
    for piece in pieces:
        name, _, value = piece.partition(b"\x01")
        end = at + len(piece)
        if not value or name in spans:
            return none
        spans[name] = end - len(value), end
        fixed[end - len(value) : end] = False
        at = end + 1
    begin, end = spans.get(b"KEYS", (0, 0))
    fixed[begin:end] = first[begin:end] == _SPACE
    words = [(begin + m.start(), begin + m.end()) for m in _WORD.finditer(text[begin:end])]
    rows = _fitting(table, first, fixed, begin, end)
    if len(rows) < len(table):
        table, plain, tagged = table[rows], plain[rows], tagged[rows]
    wanted = [(span, plain) for span in (spans.get(b"UNIQ_KEY"), *words) if span] + [
        (span, tagged) for span in (spans.get(b"TAGS"),) if span
    ]
    hashes = np.empty((len(rows), len(wanted)), np.int32)
    for column, ((begin, end), seeds) in enumerate(wanted):
        hashes[:, column] = _hash_rows(table[:, begin:end], seeds)
    return rows, hashes


def _fitting(table: NDArray[np.uint8], first: NDArray[np.uint8], fixed: NDArray[np.bool_], begin: int, end: int) -> NDArray[np.int64]:
    """Return which rows equal the first one wherever it is ``fixed`` and elsewhere have only ASCII and no separators.

    In ``[begin, end)`` spaces are only allowed where they are fixed. When all rows fit, one pass over all of them at once finds that out.
    """
    count = len(table)
    whole = table.reshape(-1)
    mask = np.where(fixed, np.uint8(0xFF), np.uint8(0x80))
    unlike = whole[len(first) :] ^ whole[: -len(first)]  # each row against the one before
    unlike &= np.tile(mask, count - 1)
    if (
        not unlike.any()
        and np.count_nonzero(whole <= _END) == count * np.count_nonzero(first <= _END)
        and np.count_nonzero(table[:, begin:end] == _SPACE) == count * np.count_nonzero(first[begin:end] == _SPACE)
    ):
        return np.arange(count)
    wrong = (table ^ first) & mask != 0
    wrong |= (table <= _END) != (first <= _END)
    wrong[:, begin:end] |= (table[:, begin:end] == _SPACE) != (first[begin:end] == _SPACE)
    return np.flatnonzero(~wrong.any(axis=1))


def _hash_any(
    properties: Sequence[bytes], plain: NDArray[np.uint32], tagged: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return how many keys each record has, and their hashes, for property strings of any layout."""
    units, ends = _joined(properties)
    if len(ends) and not (units[ends - 1] == _END).all():  # the last separator of a property string may be missing
        units, ends = _joined([p if not p or p.endswith(b"\x02") else p + b"\x02" for p in properties])
    marks = np.flatnonzero(units == _SEPARATOR)
    closes = np.flatnonzero(units == _END)[1:]
    if not (len(marks) == len(closes) and (marks < closes).all() and (closes[:-1] < marks[1:]).all()):
        closes = closes[np.searchsorted(closes, marks)]  # otherwise every name has one value, and the i-th ends at the i-th 0x02
    fours = _fours(units)
    lasts = fours[marks - 4]
    unique = _values(units, ends, marks, closes, fours, lasts, b"UNIQ_KEY")
    words = _words(units, _values(units, ends, marks, closes, fours, lasts, b"KEYS"))
    tags = _values(units, ends, marks, closes, fours, lasts, b"TAGS")

    # The entries of a record are consecutive: the unique key first, then the words, then the tag.
    count = len(properties)
    before_words = np.bincount(unique[0], minlength=count)
    before_tag = before_words + np.bincount(words[0], minlength=count)
    per_record = before_tag + np.bincount(tags[0], minlength=count)
    base = np.cumsum(per_record) - per_record
    first_word = np.cumsum(before_tag - before_words) - (before_tag - before_words)
    order = np.concatenate(
        (
            base[unique[0]],
            (base + before_words - first_word)[words[0]] + np.arange(len(words[0])),
            (base + before_tag)[tags[0]],
        )
    )
    starts = np.empty(len(order), np.int64)
    lengths = np.empty(len(order), np.int64)
    seeds = np.repeat(plain, per_record)
    starts[order] = np.concatenate((unique[1], words[1], tags[1]))
    lengths[order] = np.concatenate((unique[2], words[2], tags[2]))
    seeds[(base + before_tag)[tags[0]]] = tagged[tags[0]]
    return per_record, _key_hashes(units, starts, lengths, seeds)


# Values in an array of units: the record of each, where it starts, its length.
_Values = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _joined(texts: Sequence[bytes]) -> tuple[_Units, NDArray[np.int64]]:
    """Return ``_PREFIX`` and all texts joined, as bytes or, when one is not ASCII, as UTF-16 units; and where each ends."""
    joined = b"".join((_PREFIX, *texts))
    lengths: Iterable[int] = map(len, texts)
    if joined.isascii():
        units = np.frombuffer(joined, np.uint8)
    else:
        wide = [text.decode("utf-8", "replace").encode("utf-16-le") for text in texts]
        units = np.frombuffer(b"".join((_PREFIX.decode().encode("utf-16-le"), *wide)), np.dtype("<u2"))
        lengths = (len(text) // 2 for text in wide)
    return units, np.cumsum(np.fromiter(lengths, np.int64, len(texts))) + len(_PREFIX)


def _fours(units: _Units) -> _Fours:
    """Return each four consecutive units as one number."""
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

    ``marks`` are the indices of 0x01, ``closes`` the ends of the values that follow, ``lasts`` the four units before each mark.
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
    if (records[1:] == records[:-1]).any():  # a name that occurs twice: the last value counts
        keep = np.append(records[1:] != records[:-1], True)
        records, starts, lengths = records[keep], starts[keep], lengths[keep]
    return records, starts, lengths


def _words(units: _Units, values: _Values) -> _Values:
    """Split values at their spaces, without empty words."""
    records, starts, lengths = values
    if not len(starts):
        return values
    spaces = np.flatnonzero(units == _SPACE)
    owner = np.searchsorted(starts, spaces, "right") - 1
    inside = (owner >= 0) & (spaces < (starts + lengths)[owner])
    if not inside.any():
        return values
    spaces, owner = spaces[inside], owner[inside]
    begins = np.sort(np.concatenate((starts, spaces + 1)))
    stops = np.sort(np.concatenate((starts + lengths, spaces)))
    owner = np.sort(np.concatenate((np.arange(len(starts)), owner)))
    keep = stops > begins
    return records[owner[keep]], begins[keep], (stops - begins)[keep]


def _key_hashes(units: _Units, starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Return the key hash of each slice of ``units`` as if a text with the hash ``seeds[i]`` preceded it."""
    hashes = np.empty(len(starts), np.int32)
    if len(starts):
        longest = int(lengths.max())
        order = np.argsort(lengths.astype(np.uint16) if longest < 1 << 16 else lengths, kind="stable")  # a radix sort for 16 bits
        ordered = lengths[order]
        borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for group in np.split(order, borders):
            length = int(lengths[group[0]])
            # Every window of this length as overlapping rows; selecting some of them copies only those.
            windows = np.ndarray((len(units) - length + 1, length), units.dtype, units, 0, (units.itemsize, units.itemsize))
            hashes[group] = _hash_rows(windows[starts[group]], seeds[group])
    return hashes


def _hash_rows(rows: _Units, seeds: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Return the key hash of each row of units as if a text with the hash ``seeds[i]`` preceded it."""
    powers = _powers(rows.shape[1])
    hashes: NDArray[np.uint32] = seeds * powers[0] + np.einsum("ij,j->i", rows.astype(np.uint32), powers[1:])
    # The absolute value; that of -2^31 does not fit and becomes 0.
    return np.abs(hashes.view(np.int32)) & np.int32(0x7FFFFFFF)


@lru_cache(maxsize=256)
def _powers(count: int) -> NDArray[np.uint32]:
    """Return 31^count, ..., 31, 1 modulo 2^32."""
    powers = np.full(count + 1, 31, np.uint32)
    powers[0] = 1
    return np.ascontiguousarray(np.cumprod(powers, dtype=np.uint32)[::-1])
