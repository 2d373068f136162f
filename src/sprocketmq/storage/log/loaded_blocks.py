"""Blocks of the log that are read around the page cache, into memory of the broker that is used again and again.

::

    log     | block 0 | block 1 | block 2 | block 3 | ...       BLOCK_BYTES each, from log offset 0 on
                      |         |
                      v         v
                 +---------+---------+-- - - --+
    memory       | block 1 | block 2 |         |                MAX_BLOCKS of them; the one loaded longest ago is replaced
                 +---------+---------+-- - - --+

What a consumer far behind reads is seldom read again soon. Read through the page cache, it costs the kernel a page for every 4 KiB, and
takes pages from what is read again. A block that is wanted a second time, after its memory was taken for another one, is read through the
page cache all the same: more than one consumer reads it.

Another thread loads the blocks; everything else belongs to the thread that owns the log. Reads are copied from a block, as its memory is
used again once nothing pins it.
"""

import threading
from collections.abc import Iterator
from typing import NamedTuple

from sprocketmq.storage.fs import read_around_cache, reusable_memory
from sprocketmq.storage.log.commit_log import CommitLog, Segment

BLOCK_BYTES = 2 << 20
MAX_BLOCKS = 16
# The numbers of blocks that were loaded once: those of 32 GiB of log.
MAX_REMEMBERED = 16384


def block_numbers(begin: int, end: int) -> Iterator[int]:
    """Yield the numbers of the blocks that log offsets ``[begin, end)`` lie in."""
    yield from range(begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)


class LogPart(NamedTuple):
    """A part of the log in memory: ``view`` holds the bytes from log offset ``start`` on, of which ``size`` may be read."""

    start: int
    size: int
    view: memoryview


class LoadedBlock:
    """One block and its memory. ``loaded`` says that its bytes are there, ``pins`` how many reads need it to stay.

    ``refused`` says that it cannot be read around the page cache.
    """

    __slots__ = ("_lock", "_parts", "loaded", "memory", "number", "pins", "refused", "start", "view")

    def __init__(self, number: int, parts: list[tuple[str, int, int]], memory: memoryview) -> None:
        self.number = number
        self.start = number * BLOCK_BYTES
        self.memory = memory
        self.view = memory.toreadonly()
        self.loaded = self.refused = False
        self.pins = 0
        self._parts = parts
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the block, unless it is there; a file that was deleted or cannot be read is left alone. Runs in any thread."""
        with self._lock:
            if self.loaded or self.refused:
                return
            at = 0
            for path, begin, end in self._parts:
                try:
                    if not read_around_cache(path, begin, end, self.memory[at:]):
                        self.refused = True
                        return
                except OSError:
                    return
                at += end - begin
            self.loaded = True


class LoadedBlocks:
    """The loaded blocks of one log. ``end`` is the log offset where the last of them ends, 0 without any."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._cuts = log.cuts
        self._blocks: dict[int, LoadedBlock] = {}  # the one pinned longest ago first
        self._free: list[memoryview] = []
        self._memories = 0
        self._once: dict[int, None] = {}
        self._usable = True
        self._used = False
        self.end = 0

    def has(self, number: int) -> bool:
        """Return whether block ``number`` is loaded, and the log has not been cut since."""
        if self._cuts != self._log.cuts:
            self._forget()
        block = self._blocks.get(number)
        return block is not None and block.loaded

    def pin(self, number: int, parts: list[tuple[str, int, int]]) -> LoadedBlock | None:
        """Return block ``number``, which is in these parts of files and may have to be loaded; it stays until ``unpin``.

        None when it is to be read through the page cache: all memory is pinned, it was here before, or the file system wants it so.
        """
        if self._cuts != self._log.cuts:
            self._forget()
        block = self._blocks.pop(number, None)
        if block is not None and block.refused:
            self._usable = False
            if not block.pins:
                self._free.append(block.memory)
            block = None
        if block is None:
            if not self._usable or number in self._once:
                return None
            memory = self._take_memory()
            if memory is None:
                return None
            if len(self._once) >= MAX_REMEMBERED:
                del self._once[next(iter(self._once))]
            self._once[number] = None
            block = LoadedBlock(number, parts, memory)
            self.end = max(self.end, block.start + BLOCK_BYTES)
        self._blocks[number] = block
        self._used = True
        block.pins += 1
        return block

    def hold(self, block: LoadedBlock) -> None:
        """Keep a pinned block for one more ``unpin``."""
        block.pins += 1

    def unpin(self, block: LoadedBlock) -> None:
        """Let the memory of a block be taken for another one, once nothing else pins it."""
        block.pins -= 1
        if not block.pins and self._blocks.get(block.number) is not block:
            self._free.append(block.memory)

    def locate(self, log_offset: int, size: int) -> Segment | LogPart | None:
        """Return a part of the log that holds the record at ``log_offset``, which is not read from the disk if its blocks are loaded.

        It is the whole segment where no block is involved, or the record does not end in its segment; None outside the written log.
        """
        segment = self._log.locate(log_offset)
        if log_offset >= self.end or segment is None or size <= 0 or log_offset + size > segment.start + segment.size:
            return segment
        self._used = True
        end = log_offset + size
        first, *others = block_numbers(log_offset, end)
        if not others:
            if self.has(first):
                return LogPart(first * BLOCK_BYTES, BLOCK_BYTES, self._blocks[first].view)
            return LogPart(segment.start, min((first + 1) * BLOCK_BYTES - segment.start, segment.size), segment.view)
        pieces = []
        for number in (first, *others):
            start, view = segment.start, segment.view
            if self.has(number):
                start, view = number * BLOCK_BYTES, self._blocks[number].view
            begin = max(log_offset, number * BLOCK_BYTES)
            pieces.append(view[begin - start : min(end, (number + 1) * BLOCK_BYTES) - start])
        return LogPart(log_offset, size, memoryview(b"".join(pieces)))

    def give_back(self) -> None:
        """Give back the memory of all blocks that nothing pins, unless one was used since the last call."""
        used, self._used = self._used, False
        if used:
            return
        self._blocks = {number: block for number, block in self._blocks.items() if block.pins}
        self._memories = len(self._blocks)
        self._free.clear()
        if not self._blocks:
            self.end = 0

    def _take_memory(self) -> memoryview | None:
        if self._free:
            return self._free.pop()
        if self._memories < MAX_BLOCKS:
            self._memories += 1
            return reusable_memory(BLOCK_BYTES)
        for number, block in self._blocks.items():
            if not block.pins:
                del self._blocks[number]
                return block.memory
        return None

    def _forget(self) -> None:
        """Drop all blocks: the log was cut, and what follows may differ from what they hold."""
        self._cuts = self._log.cuts
        blocks, self._blocks, self.end = self._blocks, {}, 0
        self._once.clear()
        self._free += [block.memory for block in blocks.values() if not block.pins]
