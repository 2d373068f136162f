"""Finding the number of hash slots of an index file, which no field states, from the file's content."""

from collections.abc import Iterator
from itertools import chain
from struct import Struct

from sprocketmq.protocol.layout import INDEX_ENTRY, INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES, INDEX_SLOT
from sprocketmq.storage.file_view import WINDOW_BYTES, FileView, occurrences
from sprocketmq.storage.index.index_format import FileShape

DEFAULT_HASH_SLOTS = 5_000_000
# Positions that are tried for the first entry of a file.
MAX_SLOT_TRIES = 10_000

_LONG = Struct(">q")


def hash_slots_of(view: FileView) -> int | None:
    """Return the number of hash slots of an index file, None when no number fits its content.

    The reference's default and its proportion of four entries to a slot are tried first, then every number that puts the first entry where
    the log offset in the header's begin field is found. A number that fits the first entry and the last is preferred to one that fits the
    first alone, as slots that are empty look like a first entry at log offset 0.
    """
    if view.size < INDEX_HEADER_BYTES + 4 + INDEX_ENTRY_BYTES:
        return None
    _, _, begin, end, _, next_entry = INDEX_HEADER.unpack(view.read(0, INDEX_HEADER_BYTES))
    table_bytes = view.size - INDEX_HEADER_BYTES
    likely = [
        n for n in (DEFAULT_HASH_SLOTS, table_bytes // 84) if 0 < 4 * n < table_bytes and (table_bytes - 4 * n) % INDEX_ENTRY_BYTES == 0
    ]
    if next_entry <= 1:
        return likely[0] if likely else None
    fitting = (n for n in chain(likely, _searched(view, begin, end, next_entry - 1)) if _first_entry_fits(view, n, begin))
    partly = None
    for slots in fitting:
        if _last_entry_fits(view, slots, next_entry - 1, end):
            return slots
        partly = partly or slots
    return partly


def _searched(view: FileView, begin: int, end: int, last: int) -> Iterator[int]:
    """Yield the numbers of slots that put the first entry's log offset, when that is 0 the last entry's, where it is found."""
    number, needle = (1, _LONG.pack(begin)) if begin else (last, _LONG.pack(end))
    file_pos = INDEX_HEADER_BYTES + 4
    tries = MAX_SLOT_TRIES
    while (begin or end) and file_pos < view.size:
        file_pos = max(file_pos, view.data_from(file_pos) - len(needle) + 1)  # the needle itself begins with zeros
        window = view.read(file_pos, WINDOW_BYTES)
        for i in occurrences(window, needle):
            entries_pos = file_pos + i - 4 - INDEX_ENTRY_BYTES * number
            if entries_pos > INDEX_HEADER_BYTES and entries_pos % 4 == 0 and (view.size - entries_pos) % INDEX_ENTRY_BYTES == 0:
                yield (entries_pos - INDEX_HEADER_BYTES) // 4
                tries -= 1
                if not tries:
                    return
        if len(window) <= len(needle):
            break
        file_pos += len(window) - len(needle) + 1


def _first_entry_fits(view: FileView, slots: int, begin: int) -> bool:
    """Return whether entry 1 fits ``slots``: it has the log offset ``begin`` and no previous entry, and its slot is in use."""
    entries_pos = INDEX_HEADER_BYTES + 4 * slots
    data = view.read(entries_pos + INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
    if len(data) < INDEX_ENTRY_BYTES:
        return False
    key_hash, log_offset, _, previous = INDEX_ENTRY.unpack(data)
    if log_offset != begin or previous or key_hash < 0:
        return False
    (newest,) = INDEX_SLOT.unpack(view.read(INDEX_HEADER_BYTES + 4 * (key_hash % slots), 4))
    return bool(0 < newest <= (view.size - entries_pos) // INDEX_ENTRY_BYTES)


def _last_entry_fits(view: FileView, slots: int, last: int, end: int) -> bool:
    """Return whether entry ``last`` fits ``slots``: it has the log offset ``end``, and its slot points to it."""
    data = view.read(INDEX_HEADER_BYTES + 4 * slots + INDEX_ENTRY_BYTES * last, INDEX_ENTRY_BYTES)
    if len(data) < INDEX_ENTRY_BYTES:
        return False
    key_hash, log_offset, _, _ = INDEX_ENTRY.unpack(data)
    if log_offset != end or key_hash < 0:
        return False
    return bool(INDEX_SLOT.unpack(view.read(INDEX_HEADER_BYTES + 4 * (key_hash % slots), 4)) == (last,))


def shape_of(view: FileView) -> FileShape | None:
    """Return the shape of an index file according to its content, None when that does not determine it or the numbers are impossible."""
    slots = hash_slots_of(view)
    if not slots:
        return None
    shape = FileShape(slots, (view.size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES)
    return shape if shape.possible else None
