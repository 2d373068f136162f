"""Finding the number of hash slots of an index file, which no field states, from the file's content."""

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
    the log offset in the header's begin field is found.
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
    for slots in likely:
        if _slots_fit(view, slots, begin):
            return slots
    # Search for the log offset of the first entry; when that is 0, for that of the last entry.
    number, needle = (1, _LONG.pack(begin)) if begin else (next_entry - 1, _LONG.pack(end))
    file_pos = INDEX_HEADER_BYTES + 4
    tries = MAX_SLOT_TRIES
    while (begin or end) and file_pos < view.size:
        file_pos = max(file_pos, view.data_from(file_pos) - len(needle) + 1)  # the needle itself begins with zeros
        window = view.read(file_pos, WINDOW_BYTES)
        for i in occurrences(window, needle):
            entries_pos = file_pos + i - 4 - INDEX_ENTRY_BYTES * number
            if entries_pos > INDEX_HEADER_BYTES and entries_pos % 4 == 0 and (view.size - entries_pos) % INDEX_ENTRY_BYTES == 0:
                slots = (entries_pos - INDEX_HEADER_BYTES) // 4
                if _slots_fit(view, slots, begin):
                    return slots
                tries -= 1
                if not tries:
                    return None
        if len(window) <= len(needle):
            break
        file_pos += len(window) - len(needle) + 1
    return None


def _slots_fit(view: FileView, slots: int, begin: int) -> bool:
    """Tell whether entry 1 is where ``slots`` puts it: it has the log offset ``begin``, no previous entry, and its slot is in use."""
    entries_pos = INDEX_HEADER_BYTES + 4 * slots
    data = view.read(entries_pos + INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
    if len(data) < INDEX_ENTRY_BYTES:
        return False
    key_hash, log_offset, _, previous = INDEX_ENTRY.unpack(data)
    if log_offset != begin or previous or key_hash < 0:
        return False
    (newest,) = INDEX_SLOT.unpack(view.read(INDEX_HEADER_BYTES + 4 * (key_hash % slots), 4))
    return bool(0 < newest <= (view.size - entries_pos) // INDEX_ENTRY_BYTES)


def shape_of(view: FileView) -> FileShape | None:
    """Return the shape of an index file as its content tells it, None when it does not or the numbers are impossible."""
    slots = hash_slots_of(view)
    if not slots:
        return None
    shape = FileShape(slots, (view.size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES)
    return shape if shape.possible else None
