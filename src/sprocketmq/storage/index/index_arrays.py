"""What the key index does with many entries at once. Import this module late: it brings numpy.

Slots are a bytearray as in the file (i32, most significant byte first), blocks are entries as in the file.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sprocketmq.storage.index.key_index import Header

ENTRY = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
_SLOT = np.dtype(">i4")
_PAGE_SHIFT = 10  # 1024 slots a page, as in index.py
_LATEST_SECONDS = 0x7FFFFFFF


def known(physicals: NDArray[np.int64], newest: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Return how many of some entries are indexed already, and what the newest record and the number of its entries are with the rest.

    ``newest`` is the newest indexed record and the number of its entries so far.
    """
    place, count = newest
    begin, end = np.searchsorted(physicals, (place, place + 1))
    done = int(min(begin + count, end))
    if done == len(physicals):
        return done, newest
    last = int(physicals[-1])
    return done, (last, len(physicals) - int(np.searchsorted(physicals, last)))


def link(
    slots: bytearray,
    pages: bytearray,
    header: "Header",
    first_seconds: int,
    hashes: NDArray[np.int32],
    physicals: NDArray[np.int64],
    times_ms: NDArray[np.int64],
) -> tuple[bytes, int]:
    """Put the next entries into the slots; return them as in the file, and how many slots they are the first of.

    Pages of slots that changed are marked. ``first_seconds`` are those of the first entry.
    """
    begin_ms = header.begin_ms if header.next > 1 else int(times_ms[0])
    entries = np.empty(len(hashes), ENTRY)
    entries["hash"] = hashes
    entries["physical"] = physicals
    entries["seconds"] = np.clip((times_ms - begin_ms) // 1000, 0, _LATEST_SECONDS)
    entries["seconds"][0] = first_seconds
    at, entries["before"], used = _chain(slots, hashes, header.next)
    np.frombuffer(pages, np.uint8)[at >> _PAGE_SHIFT] = 1
    return entries.tobytes(), used


def _chain(slots: bytearray, hashes: NDArray[np.int32], first: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Let each entry's slot name the entry; return the slots, the entry each named before, and how many named none."""
    table = np.frombuffer(slots, _SLOT)
    at = (hashes % np.int32(len(table))).astype(np.int64)
    numbers = np.arange(len(at))
    # Sorted by slot and then by number: neighbours of one slot follow each other, others follow what the slot had before.
    ordered = np.sort(at << 32 | numbers)
    sorted_at = ordered >> 32
    sorted_numbers = ordered & 0xFFFFFFFF
    heads = np.ones(len(at), bool)
    heads[1:] = sorted_at[1:] != sorted_at[:-1]
    sorted_before = np.empty(len(at), np.int64)
    sorted_before[1:] = sorted_numbers[:-1] + first
    old = table[sorted_at[heads]]
    sorted_before[heads] = old
    before = np.empty(len(at), np.int64)
    before[sorted_numbers] = sorted_before
    tails = np.ones(len(at), bool)
    tails[:-1] = heads[1:]
    table[sorted_at[tails]] = sorted_numbers[tails] + first
    return at, before, int(np.count_nonzero(old == 0))


class Linked(NamedTuple):
    """What a block of entries turned out to hold: the places of its first and last, and how many slots it is the first of."""

    first_physical: int
    last_physical: int
    used: int


def relink(slots: bytearray, block: bytes, first: int) -> Linked | None:
    """Put the entries of a block into the slots; None when they are not what ``link`` would have made, or not in the order of the log."""
    entries = np.frombuffer(block, ENTRY)
    hashes, physicals = entries["hash"].astype(np.int32), entries["physical"].astype(np.int64)
    if (hashes < 0).any() or (physicals[1:] < physicals[:-1]).any() or (entries["seconds"] < 0).any():
        return None
    _, before, used = _chain(slots, hashes, first)
    if not np.array_equal(before, entries["before"]):
        return None
    return Linked(int(physicals[0]), int(physicals[-1]), used)


def place(slots: bytearray, block: bytes, first: int) -> None:
    """Let the slots name the entries of a block, whatever these say about their chains."""
    table = np.frombuffer(slots, _SLOT)
    hashes = np.frombuffer(block, ENTRY)["hash"].astype(np.uint32) & np.uint32(0x7FFFFFFF)
    table[hashes % np.uint32(len(table))] = np.arange(first, first + len(hashes))  # of several in one slot the last one stays


def used_slots(slots: bytearray, count: int) -> int:
    """Return how many slots are in use, -1 when one names an entry that is not below ``count``."""
    table = np.frombuffer(slots, _SLOT)
    if int(table.max()) >= count or int(table.min()) < 0:
        return -1
    return int(np.count_nonzero(table))


def with_hash(block: bytes, hash_: int) -> list[tuple[int, int, int]]:
    """Return index in the block, place and seconds of its entries that have a hash, the last first."""
    entries = np.frombuffer(block, ENTRY)
    which = np.flatnonzero(entries["hash"] == hash_)[::-1]
    found = entries[which]
    return list(zip(which.tolist(), found["physical"].tolist(), found["seconds"].tolist(), strict=True))
