"""Looking up a key hash in one index file: the chain of its slot, or all entries where the chain is damaged or too long."""

from collections.abc import Iterator

from sprocketmq.protocol.layout import INDEX_ENTRY, INDEX_ENTRY_BYTES
from sprocketmq.storage.fs import File
from sprocketmq.storage.index.index_file import BLOCK_ENTRIES
from sprocketmq.storage.index.index_format import FileShape, IndexHeader

# A chain is followed entry by entry up to this length. A key whose slot is also that of a tag that half the messages have is then looked
# for in all entries, a block at a time; so is a key whose chain is damaged.
MAX_CHAIN_STEPS = 2048
_unpack_entry = INDEX_ENTRY.unpack


def entries_with_hash(file: File, shape: FileShape, header: IndexHeader, newest: int, hash_: int) -> Iterator[tuple[int, int]]:
    """Yield log offset and store time of the entries with this hash, the newest first; ``newest`` is the entry that the slot names.

    May raise OSError.
    """
    entries_pos = shape.entries_pos
    unseen_end = header.next_entry
    slot = hash_ % shape.hash_slots
    number = newest
    for _ in range(MAX_CHAIN_STEPS):
        if number == 0:
            return
        if not 0 < number < unseen_end:
            break
        found, log_offset, seconds, previous = _unpack_entry(file.pread(INDEX_ENTRY_BYTES, entries_pos + INDEX_ENTRY_BYTES * number))
        if found == hash_:
            yield log_offset, header.begin_ms + (seconds * 1000 if number > 1 else 0)
        elif found % shape.hash_slots != slot:
            break  # an entry of another slot, so the link to it is damaged
        unseen_end, number = number, previous
    from sprocketmq.storage.index import index_arrays

    for stop in range(unseen_end, 1, -BLOCK_ENTRIES):
        start = max(1, stop - BLOCK_ENTRIES)
        block = file.pread((stop - start) * INDEX_ENTRY_BYTES, shape.entry_pos(start))
        for i, log_offset, seconds in index_arrays.with_hash(block, hash_):
            yield log_offset, header.begin_ms + (seconds * 1000 if start + i > 1 else 0)
