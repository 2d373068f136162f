"""What a read needs from the disk: another thread reads it first, so that the broker's loop does not wait.

The end of the log counts as cached, as it was written last, and so do the blocks before it as far as the page cache has all of them. Before
that, the page cache is asked: per block of the log, or, where records lie far apart, per run of records. Blocks that are cached as a whole,
and parts of queues whose records lie in such blocks, are remembered for two seconds, so that a consumer that continues reading rarely costs
a look-up. For one that continues where it needed runs before, runs are loaded further than it asked for, and remembered as well.

Blocks whose records are wanted are read around the page cache (``log/loaded_blocks.py``), queue files, single records, and what blocks lack
that are cached but for a few pages, through it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from sprocketmq.clock import Clock
from sprocketmq.protocol.layout import BATCH_UNIT, INT32, QUEUE_UNIT
from sprocketmq.storage.fs import cached_part, missing_parts, read_through, resident
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.loaded_blocks import BLOCK_BYTES, LoadedBlock, LoadedBlocks, block_numbers
from sprocketmq.storage.queues.batch_queue import BatchConsumeQueue
from sprocketmq.storage.queues.queue_table import Queue
from sprocketmq.storage.queues.reading import QueueReader

TAIL_BYTES = 64 << 20
FRESH_S = 2.0
# A read whose records lie within this much of the log is looked up by blocks, others by runs.
SPAN_BYTES = 128 << 20
# Records that are this close are read together with what lies between them.
GAP_BYTES = 256 << 10
# This many records, or more, that take at most this much of the log each are read by whole blocks, without checking each record.
DENSE_UNITS = 256
DENSE_BYTES = 64 << 10
# A read is limited to what is in memory if that is this many units, rather than wait for the rest.
NEAR_UNITS = 64
# The most that one read may need of the log, and the most that it loads when it needs whole blocks; its messages are limited to what lies
# within.
MAX_RUNS = 64
MAX_READ_BYTES = 32 << 20
MAX_BLOCKS_BYTES = 2 * BLOCK_BYTES
# A block of which the page cache lacks no more than this is made whole: the system has let go of a page here and there.
FEW_BYTES = BLOCK_BYTES // 8
# How much of the log is loaded, in runs, for a read that continues an earlier one and for those that will continue it.
AHEAD_BYTES = 2 << 20
# That many of the last reads in runs are known of a queue, and of so many queues. Each may have MAX_RUNS parts.
MAX_FOLLOWED = 8
MAX_FOLLOWED_QUEUES = 256
# Read for a single record whose size is not known.
RECORD_BYTES = 16 << 10
# The units of a queue are read ahead of the reads that need them.
QUEUE_AHEAD_BYTES = 256 << 10
# This many units are looked up at once, plain ones and those of batches, and the reads that follow find them remembered.
AHEAD_UNITS = 1024
AHEAD_BATCH_UNITS = 64
# The blocks at the end of the log that one read may look up. The next one continues.
MAX_BLOCKS_MORE = 64
_MAX_REMEMBERED = 4096

_Part = tuple[str, int, int]
_Record = tuple[int, int]


class ColdRead:
    """What a read lacks: parts of files, as path, begin and end, and blocks of the log. Nothing when it only has to be limited.

    ``max_units`` is the number of queue units from the read's offset on that will be in memory then. The blocks stay until ``release``.
    ``slight`` says that it is too little for its reader to count as one that reads from the disk. ``loaded`` says that ``load`` has ended,
    of this or of another that is ``part_of`` this one and has the same parts.
    """

    __slots__ = ("_blocks", "_owner", "_part_of", "loaded", "max_units", "parts", "slight")

    def __init__(
        self,
        parts: list[_Part],
        max_units: int,
        blocks: Sequence[LoadedBlock] = (),
        owner: LoadedBlocks | None = None,
        *,
        part_of: "ColdRead | None" = None,
        slight: bool = False,
    ) -> None:
        self.parts = parts
        self.max_units = max_units
        self._blocks = blocks
        self._owner = owner
        self._part_of = part_of or self
        self.slight = slight
        self.loaded: bool = False

    @property
    def waits(self) -> bool:
        """Whether anything has to be loaded."""
        return bool(self.parts or self._blocks)

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal for reads that lack the same."""
        return (*self.parts, *(id(block) for block in self._blocks))

    def load(self) -> None:
        """Read the parts into the page cache, and the blocks into their memory. Runs in any thread; a deleted file is left out."""
        for path, parts in groupby(self.parts, itemgetter(0)):
            read_through(path, [(begin, end) for _, begin, end in parts])
        for block in self._blocks:
            block.load()
        self._part_of.loaded = True

    def hold(self) -> None:
        """Keep the blocks until one more call of ``release``: a thread is going to load them."""
        if self._owner is not None:
            for block in self._blocks:
                self._owner.hold(block)

    def release(self) -> None:
        """Let the memory of the blocks be used for others. Called by the thread that owns the store."""
        if self._owner is not None:
            for block in self._blocks:
                self._owner.unpin(block)


class NotInMemory(Exception):
    """Something has to be read from the disk, as ``cold`` says: repeat the call when it has been loaded."""

    def __init__(self, cold: ColdRead) -> None:
        super().__init__()
        self.cold = cold


class _QueuePart(NamedTuple):
    """A part of a queue that counts as cached ``until`` (monotonic s): its first queue offset and the one after its last."""

    begin: int
    end: int
    until: float
    batches: bool


class _PartialBlock(NamedTuple):
    """A block that was not completely in the page cache, and until when that is assumed (monotonic s).

    ``lacking`` are the missing parts of one that is nearly complete, nothing of others.
    """

    until: float
    lacking: list[_Part]


class _Run(NamedTuple):
    """A read that has to be loaded in runs, and the part of its queue that is cached then."""

    read: ColdRead
    part: _QueuePart


class ColdFinder:
    """Finds out what a read by queue offset needs from the disk. Only for the thread that owns the store."""

    def __init__(self, log: CommitLog, blocks: LoadedBlocks, reader: QueueReader, clock: Clock) -> None:
        self._log = log
        self._loaded = blocks
        self._reader = reader
        self._clock = clock
        # Blocks of the log that were completely in the page cache, and until when that is assumed (monotonic s).
        self._fresh: dict[int, float] = {}
        # Blocks that were not, and until when that is assumed.
        self._partial: dict[int, _PartialBlock] = {}
        # Where the end of the log begins that is in the page cache as a whole, and until when that is assumed.
        self._recent_from = 0
        self._recent_until = 0.0
        # Parts of queues whose units and records were in the page cache.
        self._cached: dict[tuple[str, int], _QueuePart] = {}
        # The last reads of each queue that had to be loaded in runs: a consumer may have several pulls under way.
        self._runs: dict[tuple[str, int], deque[_Run]] = {}

    def find(self, topic: str, queue_id: int, offset: int, max_units: int, max_count: int | None = None) -> ColdRead | None:
        """Return what a read from ``offset`` on needs from the disk; None when it needs nothing.

        The read examines up to ``max_units`` queue units, and ends earlier when ``max_count`` messages do. Where the units themselves have
        to be read first, the result is only about them: ask again afterwards.
        """
        key = topic, queue_id
        if self._is_within(self._cached.get(key), offset, max_units, max_count):
            return None
        runs = self._runs.get(key, ())
        for run in runs:
            if self._is_within(run.part, offset, max_units, max_count):
                return None if run.read.loaded else ColdRead(run.read.parts, max_units, part_of=run.read)
        if not self.beyond_the_end:
            return None
        queue = self._reader.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible:
            return None
        if isinstance(queue, BatchConsumeQueue):
            if queue.min_unit == queue.end_unit:
                return None
            located = self._reader.look_up(queue, offset)
            if self._is_recent(BATCH_UNIT.unpack_from(located[1])[0]):
                return None
            first, end, ahead = queue.covering(offset, *located), queue.end_unit, AHEAD_BATCH_UNITS
            if max_count is not None:
                max_units = min(max_units, queue.find(min(offset + max_count, queue.visible) - 1) + 1 - first)
        else:
            first, end, ahead = offset, queue.visible, AHEAD_UNITS
        stop = min(first + max_units, end)
        if first >= stop:
            return None
        missing = self._missing_units(queue, first, stop, end)
        if missing:
            return ColdRead(missing, max_units, slight=True)
        units = queue.read_units(first, stop)
        if isinstance(queue, BatchConsumeQueue):
            layout = BATCH_UNIT
        else:
            layout = QUEUE_UNIT
            if self._is_recent(layout.unpack_from(units)[0]):
                self._reader.remember(queue, offset, units)
                return None
        start = layout.unpack_from(units)[0]
        log_offset, size = layout.unpack_from(units, len(units) - layout.size)[:2]
        if start < self._loaded.end:
            reach = self._reach(start, log_offset + size)
            if reach >= log_offset + size:
                return None
            near = bisect_right(range(stop - first), reach, key=lambda n: sum(layout.unpack_from(units, n * layout.size)[:2]))
            if near >= NEAR_UNITS:
                return ColdRead([], near)
        far = min(first + ahead, end)
        knows_far = far > stop and not self._missing_units(queue, first, far, end)
        if knows_far:
            far_offset, far_size = queue.unit(far - 1)[:2]
            if self._span_is_cached(start, far_offset + far_size):
                self._remember(queue, offset, far)
                return None
        if self._span_is_cached(start, log_offset + size):
            return None
        few = self._few_missing(start, log_offset + size)
        if few:
            return ColdRead(few, stop - first, slight=True)
        count = stop - first
        span = log_offset + size - start
        if count >= DENSE_UNITS and 0 < span <= count * DENSE_BYTES:
            if span > MAX_BLOCKS_BYTES:
                count = max(1, count * MAX_BLOCKS_BYTES // span)
                log_offset, size = layout.unpack_from(units, (count - 1) * layout.size)[:2]
                span = log_offset + size - start
            if 0 < span <= MAX_READ_BYTES:
                return self._find_blocks(start, log_offset + size, count)
        continues = any(run.part.begin < offset <= run.part.end for run in runs)
        if continues and knows_far:
            units = queue.read_units(first, far)
        records = [(log_offset, max(0, size)) for log_offset, size, *_ in layout.iter_unpack(units)]  # damaged units may name any
        wanted_units = stop - first
        if self._all_in_cached_blocks(records[:wanted_units]):
            return None
        parts, found_units = self._find_runs(records, wanted_units, check=not continues)
        if not parts and found_units >= wanted_units:
            self._remember(queue, offset, first + found_units)
            return None
        found = ColdRead(parts, found_units)
        if parts:
            if key not in self._runs and len(self._runs) >= MAX_FOLLOWED_QUEUES:
                self._runs.clear()
            self._runs.setdefault(key, deque(maxlen=MAX_FOLLOWED)).append(_Run(found, self._part(queue, offset, first + found_units)))
        return found

    def find_first_unit(self, topic: str, queue_id: int) -> ColdRead | None:
        """Return what has to be read from the disk to know where a queue's first message is; None for nothing, or without one."""
        queue = self._reader.queue(topic, queue_id)
        if not self.beyond_the_end or queue is None or queue.min_offset >= queue.visible:
            return None
        first = queue.min_unit if isinstance(queue, BatchConsumeQueue) else queue.min_offset
        missing = self._missing_units(queue, first, first + 1, first + 1)
        return ColdRead(missing, 1) if missing else None

    def find_record(self, log_offset: int) -> ColdRead | None:
        """Return what has to be read from the disk for the record at a log offset; None when it needs nothing, or none is there.

        Of a record longer than RECORD_BYTES that is only the beginning: ask again afterwards.
        """
        if not self.beyond_the_end or self._is_recent(log_offset):
            return None
        segment = self._log.locate(log_offset)
        if segment is None:
            return None
        begin = log_offset - segment.start
        end = min(begin + RECORD_BYTES, segment.size)
        if end - begin >= INT32.size and resident(segment.view, begin, begin + INT32.size):
            (size,) = INT32.unpack_from(segment.view, begin)
            end = min(begin + max(size, INT32.size), begin + MAX_READ_BYTES, segment.size)
            if resident(segment.view, begin, end):
                return None
        return ColdRead([(segment.file.path, begin, end)], 1)

    @property
    def beyond_the_end(self) -> bool:
        """Whether the log has more than its end that counts as cached."""
        return self._log.committed_end - self._log.min_offset > TAIL_BYTES

    def _is_within(self, part: _QueuePart | None, offset: int, max_units: int, max_count: int | None) -> bool:
        """Return whether a read needs nothing but a part of its queue, which still counts as cached."""
        if part is None:
            return False
        wanted = max_count if part.batches else max_units  # without ``max_count`` the units of batches may cover any number of offsets
        if wanted is None or offset < part.begin or offset + wanted > part.end:
            return False
        return self._clock.monotonic() < part.until

    def _is_recent(self, log_offset: int) -> bool:
        """Return whether everything from ``log_offset`` to the end of the log is in the page cache: no reader behind it needs the disk."""
        tail = self._log.committed_end - TAIL_BYTES
        if log_offset >= tail:
            return True
        now = self._clock.monotonic()
        if now >= self._recent_until:
            self._recent_from, self._recent_until = max(self._log.min_offset, tail), now + FRESH_S
        for _ in range(MAX_BLOCKS_MORE):
            if log_offset >= self._recent_from:
                return True
            begin, _ = self._block((self._recent_from - 1) // BLOCK_BYTES)
            if begin >= self._recent_from or not self._blocks_are_cached(begin, self._recent_from):
                return False
            self._recent_from = begin
        return False

    def _find_blocks(self, start: int, stop: int, units: int) -> ColdRead:
        """Return the blocks of the log from ``start`` to ``stop``: many records, of ``units`` units, lie close there."""
        parts: list[_Part] = []
        blocks: list[LoadedBlock] = []
        for number in block_numbers(start, stop):
            begin, end = self._block(number)
            if self._blocks_are_cached(begin, end):
                continue
            of_block = list(self._parts(begin, end))
            # A file system reads around the page cache under the lock of the file, for which a write to it would wait.
            closed = begin == number * BLOCK_BYTES and end - begin == BLOCK_BYTES and end <= self._log.segments[-1].start
            block = self._loaded.pin(number, of_block) if closed else None
            if block is None:
                parts += of_block
                self._partial.pop(number, None)
            else:
                blocks.append(block)
        found = ColdRead(parts, units, blocks, self._loaded)
        if parts or not all(block.loaded for block in blocks):
            return found
        found.release()
        return ColdRead([], units)

    def _block(self, number: int) -> tuple[int, int]:
        """Return where a block begins and ends in the log."""
        begin = number * BLOCK_BYTES
        return max(begin, self._log.min_offset), min(begin + BLOCK_BYTES, self._log.committed_end)

    def _reach(self, start: int, stop: int) -> int:
        """Return up to where the log is in memory from ``start`` on, in blocks that were loaded or in the page cache; ``stop`` at most."""
        if stop - start > SPAN_BYTES:
            return start
        for number in block_numbers(start, stop):
            if not self._loaded.has(number) and not self._blocks_are_cached(*self._block(number)):
                return max(start, number * BLOCK_BYTES)
        return stop

    def _span_is_cached(self, start: int, stop: int) -> bool:
        """Return whether the log is cached from ``start`` to ``stop``, and these are not far apart."""
        return 0 < stop - start <= SPAN_BYTES and self._blocks_are_cached(start, stop)

    def _remember(self, queue: Queue, offset: int, stop: int) -> None:
        """Remember that the queue is cached from ``offset`` to the last unit before ``stop``."""
        if len(self._cached) >= _MAX_REMEMBERED:
            self._cached.clear()
        self._cached[queue.topic, queue.queue_id] = self._part(queue, offset, stop)

    def _part(self, queue: Queue, offset: int, stop: int) -> _QueuePart:
        """Return what is to be remembered of a queue that is cached from ``offset`` to the last unit before ``stop``."""
        batches = isinstance(queue, BatchConsumeQueue)
        if isinstance(queue, BatchConsumeQueue):
            base, count = queue.unit(stop - 1)[4:6]
            stop = base + count
        return _QueuePart(offset, stop, self._clock.monotonic() + FRESH_S, batches)

    @staticmethod
    def _missing_units(queue: Queue, first: int, stop: int, end: int) -> list[_Part]:
        found = queue.file_part(first, stop)
        if found is None or cached_part(*found):
            return []
        file, begin, part_end = found
        ahead = min(begin + QUEUE_AHEAD_BYTES, begin + (end - first) * queue.unit_bytes)
        return [(file.path, begin, max(part_end, ahead))]

    def _blocks_are_cached(self, start: int, end: int) -> bool:
        now = self._clock.monotonic()
        fresh = self._fresh
        for block in block_numbers(start, end):
            if fresh.get(block, 0.0) > now:
                continue
            if (partial := self._partial.get(block)) is not None and partial.until > now:
                return False
            first, last = self._block(block)
            if not self._is_cached(first, last):
                if len(self._partial) >= _MAX_REMEMBERED:
                    self._partial.clear()
                self._partial[block] = _PartialBlock(now + FRESH_S, self._lacking(first, last))
                return False
            if len(fresh) >= _MAX_REMEMBERED:
                fresh.clear()
            fresh[block] = now + FRESH_S
        return True

    def _few_missing(self, start: int, stop: int) -> list[_Part]:
        """Return what the blocks from ``start`` to ``stop`` lack, if it is little in each of them, else nothing.

        They are looked up again after that, as the parts will have been loaded.
        """
        if not 0 < stop - start <= SPAN_BYTES:
            return []
        parts: list[_Part] = []
        numbers = list(block_numbers(start, stop))
        for number in numbers:
            if not self._loaded.has(number) and not self._blocks_are_cached(*self._block(number)):
                lacking = self._partial[number].lacking
                if not lacking:
                    return []
                parts += lacking
        for number in numbers:
            self._partial.pop(number, None)
        return parts

    def _lacking(self, begin: int, end: int) -> list[_Part]:
        """Return which parts of a block are not in the page cache; nothing unless they are few."""
        parts: list[_Part] = []
        while begin < end and (segment := self._log.locate(begin)) is not None:
            stop = min(end, segment.start + segment.size)
            first, last = begin - segment.start, min(stop, segment.written_end) - segment.start
            missing = missing_parts(segment.view, first, last, FEW_BYTES)
            if missing is None:
                return []
            parts += [(segment.file.path, *part) for part in missing]
            begin = stop
        return parts

    def _is_cached(self, begin: int, end: int) -> bool:
        while begin < end:
            segment = self._log.locate(begin)
            if segment is None:
                return True  # no longer in the log: the read will report it
            stop = min(end, segment.start + segment.size)
            if not resident(segment.view, begin - segment.start, min(stop, segment.written_end) - segment.start):
                return False
            begin = stop
        return True

    def _find_runs(self, records: Sequence[_Record], wanted: int, *, check: bool) -> tuple[list[_Part], int]:
        """Merge records that are close, and look up which are missing. Returns these parts, and up to which record they go.

        More than the first ``wanted`` are only included as long as all take AHEAD_BYTES at most. Without ``check`` all count as missing:
        reading what is cached costs another thread less than asking for each run costs the loop.
        """
        runs: list[list[int]] = []
        total = units = 0
        limit = MAX_READ_BYTES
        for log_offset, size in records:
            if units == wanted:
                limit = AHEAD_BYTES
            if runs and 0 <= log_offset - runs[-1][1] <= GAP_BYTES:
                more = log_offset + size - runs[-1][1]
                if total + more > limit:
                    break
                runs[-1][1] += more
                total += more
            else:
                if len(runs) == MAX_RUNS or (runs and total + size > limit):
                    break
                runs.append([log_offset, log_offset + size])
                total += size
            units += 1
        parts: list[_Part] = []
        for begin, end in runs:
            if not (check and self._is_cached(begin, end)):
                parts += self._parts(begin, end)
        return parts, units

    def _all_in_cached_blocks(self, records: Sequence[_Record]) -> bool:
        """Return whether each record lies in blocks that are cached as a whole: the queues of many topics share these blocks."""
        low, high = self._log.min_offset, self._log.committed_end
        blocks = {begin // BLOCK_BYTES for begin, _ in records} | {(begin + size - 1) // BLOCK_BYTES for begin, size in records}
        if len(blocks) > MAX_RUNS or min(blocks) < low // BLOCK_BYTES or max(blocks) > (high - 1) // BLOCK_BYTES:
            return False
        for block in blocks:
            if self._loaded.has(block):
                continue
            if not self._blocks_are_cached(*self._block(block)):
                return False
        return True

    def _parts(self, begin: int, end: int) -> Iterator[_Part]:
        while begin < end:
            segment = self._log.locate(begin)
            if segment is None:
                return
            stop = min(end, segment.start + segment.size)
            yield segment.file.path, begin - segment.start, stop - segment.start
            begin = stop
