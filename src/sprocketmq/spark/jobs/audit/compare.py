"""Compare the log with queue and index files: the work of an audit's tasks, in arrays and without Spark.

For each queue, a chain of records is reduced to ranges of queue offsets whose units are correct, and the few units that are not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.spark.jobs.audit.facts import Chain
from sprocketmq.spark.jobs.audit.index_files import AuditedIndexFile
from sprocketmq.spark.jobs.audit.key_comparison import IndexReader, KeyComparison
from sprocketmq.spark.jobs.audit.queue_comparison import QueueComparison, open_queue
from sprocketmq.storage.bulk.splits import Split
from sprocketmq.storage.bulk.stitching import Answer
from sprocketmq.storage.chunks import ParsedChunk, QueueChunk
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.inspect.queue_units import OpenFiles, QueueUnits
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, QUEUE_UNIT_DTYPE

_SCHEDULE = SCHEDULE_TOPIC.encode()


class AuditTarget(NamedTuple):
    """The derived files to audit, and how their store reads the log."""

    root: str
    batch_topics: frozenset[str]
    deleted: Mapping[str, int]
    index_files: tuple[AuditedIndexFile, ...]


def chains(answers: Iterable[Answer[ParsedChunk]], comparison: "Comparison") -> Iterator[Answer[Chain]]:
    """Compare chunks as they arrive and yield them as chains, without gaps between the answers."""
    begin = 0
    position = -1
    for answer in answers:
        chunk = answer.stretch
        if position >= 0 and (chunk is None or chunk.start != position):
            yield Answer(begin, position, comparison.finish())
            position = -1
        if chunk is None:
            yield Answer(answer.begin, answer.limit, None)
            continue
        if position < 0:
            begin = answer.begin
        comparison.take(chunk)
        position = chunk.end
    if position >= 0:
        yield Answer(begin, position, comparison.finish())


class Comparison:
    """Compares the chunks of one chain after the other with the files of a store. ``split`` is the source of the chunks."""

    def __init__(self, fs: FileSystem, target: AuditTarget, split: Split, *, keys: bool) -> None:
        self._fs = fs
        self._target = target
        self._files = OpenFiles(fs)
        self._checks: dict[tuple[bytes, int], QueueUnits] = {}
        self._view = memoryview(b"")
        self._split = split
        self._index = IndexReader(fs, target.index_files) if keys else None
        self._start = self._end = -1
        self._reset()

    def _reset(self) -> None:
        self._start = -1
        self._records = self._last_log_offset = self._last_ms = 0
        self._queues: dict[tuple[str, int], QueueComparison] = {}
        self._keys = KeyComparison()

    def take(self, chunk: ParsedChunk) -> None:
        """Compare the next chunk of the chain. Raises OSError."""
        if self._start < 0:
            self._start = chunk.start
        self._end = chunk.end
        self._records += chunk.records
        self._last_log_offset, self._last_ms = chunk.last_log_offset, chunk.last_time_ms
        for queue_chunk in chunk.queue_chunks:
            self._take_chunk(queue_chunk)
        if self._index is not None and chunk.keys is not None:
            self._keys.take(chunk, chunk.keys, self._index, self._split, self._log_view)

    def finish(self) -> Chain:
        """Return the chain so far and begin another."""
        queues = {key: log.facts() for key, log in self._queues.items()}
        keys = self._keys.facts() if self._index is not None else None
        chain = Chain(self._start, self._end, self._records, self._last_log_offset, self._last_ms, queues, keys)
        self._reset()
        return chain

    @staticmethod
    def nothing(position: int) -> Chain:
        """Return the empty chain at a log offset without a record."""
        return Chain(position, position, 0, 0, 0, {}, None)

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        if self._index is not None:
            self._index.close()

    def _log_view(self) -> memoryview:
        if not len(self._view):
            file = self._fs.open(self._split.path, read_only=True)
            try:
                self._view = file.map(self._split.size)
            finally:
                file.close()
        return self._view

    def _check(self, topic: bytes, name: str, queue_id: int) -> QueueUnits:
        check = self._checks.get((topic, queue_id))
        if check is None:
            check = self._checks[topic, queue_id] = open_queue(
                self._fs, self._target.root, name, queue_id, batch=name in self._target.batch_topics
            )
        return check

    def _take_chunk(self, chunk: QueueChunk) -> None:
        name = chunk.topic.decode("utf-8", "replace")
        check = self._check(chunk.topic, name, chunk.queue_id)
        units = np.frombuffer(chunk.units, BATCH_UNIT_DTYPE if check.batch else QUEUE_UNIT_DTYPE)
        first = chunk.first_offset
        deleted = self._target.deleted.get(name, 0)
        if deleted > chunk.first_log_offset:  # messages before their topic's deletion have no units
            skip = int(np.searchsorted(units["log_offset"].astype(np.int64), deleted))
            units = units[skip:]
            if not len(units):
                return
            first = int(units["queue_offset"][0]) if check.batch else first + skip
        log = self._queues.get((name, chunk.queue_id))
        if log is None:
            log = self._queues[name, chunk.queue_id] = QueueComparison()
        if check.batch:
            log.compare_batch(check, self._files, units, chunk.next_offset)
        else:
            log.compare_plain(check, self._files, first, units, codes=chunk.topic != _SCHEDULE)
