"""Operations of the key index on many entries at once. Loads numpy: see ``numpy_loading``.

Slots are a bytearray as in the file (i32, big-endian), blocks are entries as in the file.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sprocketmq.storage.index.index_format import MAX_SECONDS, PAGE_SLOTS, IndexHeader
from sprocketmq.storage.layout_arrays import INDEX_ENTRY_DTYPE, INT32_DTYPE

_PAGE_SHIFT = PAGE_SLOTS.bit_length() - 1


def known(log_offsets: NDArray[np.int64], newest_record: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Return how many of some entries are indexed already, and the newest record and its number of entries once the rest is, too.

    ``newest_record`` is the log offset of the newest indexed record and the number of its entries so far.
    """
    newest, count = newest_record
    begin, end = np.searchsorted(log_offsets, (newest, newest + 1))
    done = int(min(begin + count, end))
    if done == len(log_offsets):
        return done, newest_record
    last = int(log_offsets[-1])
    return done, (last, len(log_offsets) - int(np.searchsorted(log_offsets, last)))


def link(
    slots: bytearray,
    changed_pages: bytearray,
    header: IndexHeader,
    first_seconds: int,
    hashes: NDArray[np.int32],
    log_offsets: NDArray[np.int64],
    times_ms: NDArray[np.int64],
) -> tuple[bytes, int]:
    """Enter the next entries into the slots; return them as in the file, and how many slots they are the first to use.

    Pages of slots that changed are marked. ``first_seconds`` are those of the first entry.
    """
    begin_ms = header.begin_ms if header.next_entry > 1 else int(times_ms[0])
    entries = np.empty(len(hashes), INDEX_ENTRY_DTYPE)
    entries["key_hash"] = hashes
    entries["log_offset"] = log_offsets
    entries["seconds"] = np.clip((times_ms - begin_ms) // 1000, 0, MAX_SECONDS)
    entries["seconds"][0] = first_seconds
    slot_numbers, entries["previous"], used = _chain(slots, hashes, header.next_entry)
    np.frombuffer(changed_pages, np.uint8)[slot_numbers >> _PAGE_SHIFT] = 1
    return entries.tobytes(), used


def _chain(slots: bytearray, hashes: NDArray[np.int32], first: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Point each entry's slot to the entry; return the slots, the entry each pointed to before, and how many pointed to none.

    ``first`` is the number of the first entry.
    """
    table = np.frombuffer(slots, INT32_DTYPE)
    slot_numbers = (hashes % np.int32(len(table))).astype(np.int64)
    indices = np.arange(len(slot_numbers))
    # Sorted by slot, then by entry: an entry's previous one is its left neighbour if that has the same slot, else what the slot named.
    ordered = np.sort(slot_numbers << 32 | indices)
    sorted_slots = ordered >> 32
    sorted_indices = ordered & 0xFFFFFFFF
    heads = np.ones(len(slot_numbers), bool)
    heads[1:] = sorted_slots[1:] != sorted_slots[:-1]
    sorted_previous = np.empty(len(slot_numbers), np.int64)
    sorted_previous[1:] = sorted_indices[:-1] + first
    old = table[sorted_slots[heads]]
    sorted_previous[heads] = old
    previous = np.empty(len(slot_numbers), np.int64)
    previous[sorted_indices] = sorted_previous
    tails = np.ones(len(slot_numbers), bool)
    tails[:-1] = heads[1:]
    table[sorted_slots[tails]] = sorted_indices[tails] + first
    return slot_numbers, previous, int(np.count_nonzero(old == 0))


class Linked(NamedTuple):
    """Facts about a block of entries: the log offsets of its first and last entry, and how many slots it is the first to use."""

    first_log_offset: int
    last_log_offset: int
    used_slots: int


def relink(slots: bytearray, block: bytes, first: int) -> Linked | None:
    """Enter the entries of a block into the slots; None when they are not what ``link`` would have made, or not in log order."""
    entries = np.frombuffer(block, INDEX_ENTRY_DTYPE)
    hashes, log_offsets = entries["key_hash"].astype(np.int32), entries["log_offset"].astype(np.int64)
    if (hashes < 0).any() or (log_offsets[1:] < log_offsets[:-1]).any() or (entries["seconds"] < 0).any():
        return None
    _, previous, used = _chain(slots, hashes, first)
    if not np.array_equal(previous, entries["previous"]):
        return None
    return Linked(int(log_offsets[0]), int(log_offsets[-1]), used)


def fill_slots(slots: bytearray, block: bytes, first: int) -> None:
    """Point the slots to the entries of a block, without regard to the entries' links."""
    table = np.frombuffer(slots, INT32_DTYPE)
    hashes = np.frombuffer(block, INDEX_ENTRY_DTYPE)["key_hash"].astype(np.uint32) & np.uint32(0x7FFFFFFF)
    table[hashes % np.uint32(len(table))] = np.arange(first, first + len(hashes))  # of several in one slot the last one stays


def used_slots(slots: bytearray, next_entry: int) -> int:
    """Return how many slots are in use, -1 when one names an entry that is not below ``next_entry``."""
    table = np.frombuffer(slots, INT32_DTYPE)
    if int(table.max()) >= next_entry or int(table.min()) < 0:
        return -1
    return int(np.count_nonzero(table))


def with_hash(block: bytes, hash_: int) -> list[tuple[int, int, int]]:
    """Return index in the block, log offset and seconds of its entries that have a hash, the last first."""
    entries = np.frombuffer(block, INDEX_ENTRY_DTYPE)
    which = np.flatnonzero(entries["key_hash"] == hash_)[::-1]
    found = entries[which]
    return list(zip(which.tolist(), found["log_offset"].tolist(), found["seconds"].tolist(), strict=True))
