"""Inspecting a key index file: header, slots, entries, and the chain of one slot."""

from collections.abc import Iterator

from sprocketmq.protocol.layout import INDEX_ENTRY, INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES, INDEX_SLOT
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import Field, Item


def index_items(view: FileView, slots: int | None, *, first_entry: int = 1) -> Iterator[Item]:
    """Yield the header, the slots as one item, and the entries from ``first_entry`` on; entry 0 is never used.

    The fields ``slot`` and ``timestamp_ms`` of an entry are derived. Without a number of ``slots`` only the header is yielded.
    """
    if view.size < INDEX_HEADER_BYTES:
        yield Item("damaged", 0, 0, view.size, (), f"{view.size} bytes are too few for the header of {INDEX_HEADER_BYTES}")
        return
    begin_ms, end_ms, begin, end, used, count = INDEX_HEADER.unpack(view.read(0, INDEX_HEADER_BYTES))
    problem = ""
    capacity = (view.size - INDEX_HEADER_BYTES - 4 * (slots or 0)) // INDEX_ENTRY_BYTES
    if not 0 <= count <= capacity:
        problem = f"the next entry's number {count} is impossible, the file has room for {capacity}"
    elif slots is None and count > 1:
        problem = "no number of hash slots fits the file"
    yield Item(
        "header",
        0,
        0,
        INDEX_HEADER_BYTES,
        (
            Field("begin_timestamp_ms", 0, 8, begin_ms),
            Field("end_timestamp_ms", 8, 8, end_ms),
            Field("begin_physical_offset", 16, 8, begin),
            Field("end_physical_offset", 24, 8, end),
            Field("used_slots", 32, 4, used),
            Field("next_entry", 36, 4, count),
        ),
        problem,
    )
    if slots is None:
        return
    yield Item("slots", 0, INDEX_HEADER_BYTES, 4 * slots, (Field("slots", 0, 4 * slots, slots),))
    entries_pos = INDEX_HEADER_BYTES + 4 * slots
    for number in range(max(first_entry, 1), min(count, capacity)):
        file_pos = entries_pos + INDEX_ENTRY_BYTES * number
        data = view.read(file_pos, INDEX_ENTRY_BYTES)
        if len(data) < INDEX_ENTRY_BYTES:
            return
        key_hash, log_offset, seconds, previous = INDEX_ENTRY.unpack(data)
        found = (
            Field("key_hash", 0, 4, key_hash),
            Field("physical_offset", 4, 8, log_offset),
            Field("seconds", 12, 4, seconds),
            Field("previous", 16, 4, previous),
            Field("slot", 0, 0, key_hash % slots if key_hash >= 0 else None),
            Field("timestamp_ms", 0, 0, begin_ms + seconds * 1000),
        )
        problem = ""
        if key_hash < 0 or log_offset < 0 or seconds < 0:
            problem = f"hash {key_hash}, log offset {log_offset} or seconds {seconds} is negative"
        elif not 0 <= previous < number:
            problem = f"previous entry {previous} does not come before entry {number}"
        yield Item("entry", number, file_pos, INDEX_ENTRY_BYTES, found, problem)


def index_chain(view: FileView, slots: int, key_hash: int, *, limit: int = 1000) -> list[int]:
    """Return the entries that a lookup of ``key_hash`` reads, the newest first, up to an impossible link."""
    entries_pos = INDEX_HEADER_BYTES + 4 * slots
    (number,) = INDEX_SLOT.unpack(view.read(INDEX_HEADER_BYTES + 4 * (key_hash % slots), 4))
    chain: list[int] = []
    capacity = (view.size - entries_pos) // INDEX_ENTRY_BYTES
    while 0 < number < capacity and len(chain) < limit and (not chain or number < chain[-1]):
        chain.append(number)
        number = INDEX_ENTRY.unpack(view.read(entries_pos + INDEX_ENTRY_BYTES * number, INDEX_ENTRY_BYTES))[3]
    return chain
