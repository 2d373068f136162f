"""The parts of files that a read needs from the disk: another thread reads them first, so that the broker's loop does not wait.

The end of the log counts as cached, as it was written last. Before it, the page cache is asked: per block of the log, or, where records lie
far apart, per run of records. Blocks that are cached as a whole, and parts of queues whose records lie in such blocks, are remembered for
two seconds, so that a consumer that continues reading rarely costs a look-up.
"""

from collections.abc import Iterator, Sequence

from sprocketmq.clock import Clock
from sprocketmq.protocol.layout import BATCH_UNIT, QUEUE_UNIT
from sprocketmq.storage.fs import cached_part, read_through, resident
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.queues.batch_queue import BatchConsumeQueue
from sprocketmq.storage.queues.queue_table import Queue
from sprocketmq.storage.queues.reading import QueueReader

TAIL_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20
FRESH_S = 2.0
# A read whose records lie within this much of the log is looked up by blocks, others by runs.
SPAN_BYTES = 128 << 20
# Records that are this close are read together with what lies between them.
GAP_BYTES = 256 << 10
# This many records, or more, that take at most this much of the log each are read by whole blocks, without checking each record.
DENSE_UNITS = 256
DENSE_BYTES = 64 << 10
# The most that one read may need of the log; its messages are limited to what lies within.
MAX_RUNS = 64
MAX_READ_BYTES = 32 << 20
# The units of a queue are read ahead of the reads that need them.
QUEUE_AHEAD_BYTES = 1 << 20
# This many units are looked up at once, plain ones and those of batches, and the reads that follow find them remembered.
AHEAD_UNITS = 1024
AHEAD_BATCH_UNITS = 64
_MAX_REMEMBERED = 4096

_Part = tuple[str, int, int]
_Record = tuple[int, int]


class ColdRead:
    """The parts of files that a read lacks, as path, begin and end; none when it only has to be limited.

    ``max_units`` is the number of queue units from the read's offset on that will be cached then.
    """

    __slots__ = ("max_units", "parts")

    def __init__(self, parts: list[_Part], max_units: int) -> None:
        self.parts = parts
        self.max_units = max_units

    def load(self) -> None:
        """Read the parts into the page cache. Runs in any thread; a file that was deleted meanwhile is left out."""
        for path, begin, end in self.parts:
            read_through(path, begin, end)


class ColdFinder:
    """Finds out what a read by queue offset needs from the disk. Only for the thread that owns the store."""

    def __init__(self, log: CommitLog, reader: QueueReader, clock: Clock) -> None:
        self._log = log
        self._reader = reader
        self._clock = clock
        # Blocks of the log that were completely in the page cache, and until when that is assumed (monotonic s).
        self._fresh: dict[int, float] = {}
        # Blocks that were not, and until when records in them are looked up one by one.
        self._partial: dict[int, float] = {}
        # Parts of queues whose units and records were in the page cache: first queue offset, the one after the last, until when that is
        # believed, and whether it is a batch queue.
        self._cached: dict[tuple[str, int], tuple[int, int, float, bool]] = {}

    def find(self, topic: str, queue_id: int, offset: int, max_units: int, max_count: int | None = None) -> ColdRead | None:
        """Return what a read from ``offset`` on needs from the disk; None when it needs nothing.

        The read examines up to ``max_units`` queue units, and ends earlier when ``max_count`` messages do. Where the units themselves have
        to be read first, the result is only about them: ask again afterwards.
        """
        known = self._cached.get((topic, queue_id))
        if known is not None:
            begin, end, until, batches = known
            wanted = max_count if batches else max_units  # without ``max_count`` the units of batches may cover any number of offsets
            if wanted is not None and begin <= offset and offset + wanted <= end and self._clock.monotonic() < until:
                return None
        log = self._log
        if log.committed_end - log.min_offset <= TAIL_BYTES:
            return None
        queue = self._reader.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible:
            return None
        if isinstance(queue, BatchConsumeQueue):
            first, end, ahead = queue.find(offset), queue.end_unit, AHEAD_BATCH_UNITS
            if max_count is not None:
                max_units = min(max_units, queue.find(min(offset + max_count, queue.visible) - 1) + 1 - first)
        else:
            first, end, ahead = offset, queue.visible, AHEAD_UNITS
        stop = min(first + max_units, end)
        if first >= stop:
            return None
        missing = self._missing_units(queue, first, stop, end)
        if missing:
            return ColdRead(missing, max_units)
        layout = BATCH_UNIT if isinstance(queue, BatchConsumeQueue) else QUEUE_UNIT
        units = queue.read_units(first, stop)
        start = layout.unpack_from(units)[0]
        if start >= log.committed_end - TAIL_BYTES:
            return None
        far = min(first + ahead, end)
        if far > stop and not self._missing_units(queue, first, far, end):
            log_offset, size = queue.unit(far - 1)[:2]
            if self._span_is_cached(start, log_offset + size):
                self._remember(queue, offset, far)
                return None
        log_offset, size = layout.unpack_from(units, len(units) - layout.size)[:2]
        if self._span_is_cached(start, log_offset + size):
            return None
        records = [(log_offset, max(0, size)) for log_offset, size, *_ in layout.iter_unpack(units)]  # damaged units may name any
        return self._find_blocks(records) or self._find_runs(records)

    def _find_blocks(self, records: Sequence[_Record]) -> ColdRead | None:
        """Return the blocks of the log from the first to the last of ``records``, if these are many and lie close."""
        start, stop = records[0][0], sum(records[-1])
        units = len(records)
        if units < DENSE_UNITS or not 0 < stop - start <= min(MAX_READ_BYTES, units * DENSE_BYTES):
            return None
        begin = max(start - start % BLOCK_BYTES, self._log.min_offset)
        end = min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, self._log.committed_end)
        return ColdRead(list(self._parts(begin, end)), units)

    def _span_is_cached(self, start: int, stop: int) -> bool:
        """Return whether the log is cached from ``start`` to ``stop``, and these are not far apart."""
        return 0 < stop - start <= SPAN_BYTES and self._blocks_are_cached(start, stop)

    def _remember(self, queue: Queue, offset: int, stop: int) -> None:
        """Remember that the queue is cached from ``offset`` to the last unit before ``stop``."""
        batches = isinstance(queue, BatchConsumeQueue)
        if isinstance(queue, BatchConsumeQueue):
            base, count = queue.unit(stop - 1)[4:6]
            stop = base + count
        if len(self._cached) >= _MAX_REMEMBERED:
            self._cached.clear()
        self._cached[queue.topic, queue.queue_id] = offset, stop, self._clock.monotonic() + FRESH_S, batches

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
        for block in range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1):
            if fresh.get(block, 0.0) > now:
                continue
            begin = block * BLOCK_BYTES
            if not self._is_cached(max(begin, self._log.min_offset), min(begin + BLOCK_BYTES, self._log.committed_end)):
                return False
            if len(fresh) >= _MAX_REMEMBERED:
                fresh.clear()
            fresh[block] = now + FRESH_S
        return True

    def _is_cached(self, begin: int, end: int) -> bool:
        while begin < end:
            segment = self._log.locate(begin)
            if segment is None:
                return True  # no longer in the log: the read will report it
            stop = min(end, segment.start + segment.size)
            if not resident(segment.view, begin - segment.start, stop - segment.start):
                return False
            begin = stop
        return True

    def _find_runs(self, records: Sequence[_Record]) -> ColdRead | None:
        """Check the records one by one, and merge those that are close."""
        if self._all_in_cached_blocks(records):
            return None
        runs: list[list[int]] = []
        total = units = 0
        for log_offset, size in records:
            if runs and 0 <= log_offset - runs[-1][1] <= GAP_BYTES:
                more = log_offset + size - runs[-1][1]
                if total + more > MAX_READ_BYTES:
                    break
                runs[-1][1] += more
                total += more
            else:
                if len(runs) == MAX_RUNS or (runs and total + size > MAX_READ_BYTES):
                    break
                runs.append([log_offset, log_offset + size])
                total += size
            units += 1
        parts: list[_Part] = []
        for begin, end in runs:
            if not self._is_cached(begin, end):
                parts += self._parts(begin, end)
        return ColdRead(parts, units) if parts or units < len(records) else None

    def _all_in_cached_blocks(self, records: Sequence[_Record]) -> bool:
        """Return whether each record lies in blocks that are cached as a whole: the queues of many topics share these blocks."""
        low, high, now = self._log.min_offset, self._log.committed_end, self._clock.monotonic()
        blocks = {begin // BLOCK_BYTES for begin, _ in records} | {(begin + size - 1) // BLOCK_BYTES for begin, size in records}
        if len(blocks) > MAX_RUNS or min(blocks) < low // BLOCK_BYTES or max(blocks) > (high - 1) // BLOCK_BYTES:
            return False
        for block in blocks:
            if self._partial.get(block, 0.0) > now:
                return False
            begin = block * BLOCK_BYTES
            if not self._blocks_are_cached(max(begin, low), min(begin + BLOCK_BYTES, high)):
                if len(self._partial) >= _MAX_REMEMBERED:
                    self._partial.clear()
                self._partial[block] = now + FRESH_S
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
