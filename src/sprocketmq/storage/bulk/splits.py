"""A commit log cut into splits that are parsed independently, possibly on other machines. Import it late: ``parts`` brings numpy.

A split is a range of one segment and is parsed in parts. The start of its first record is a guess, and after damage each part begins
with a new guess; ``stitching.py`` decides which parts are accepted.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sprocketmq.storage.bulk.pipeline import TASK_BYTES, cut_tasks
from sprocketmq.storage.bulk.stitching import Answer
from sprocketmq.storage.chunks import ParsedChunk
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.log.commit_log import CommitLog

MIN_SPLIT_BYTES = 16 << 20
MAX_SPLIT_BYTES = 256 << 20
# Splits per concurrent task: more of them balance the load better, fewer cost less to start.
_SPLITS_A_TASK = 4


class Split(NamedTuple):
    """The stretch ``[begin, limit)`` of log offsets in the segment file at ``path``, which has ``size`` bytes and begins at ``base``.

    ``part_bytes`` of it are parsed at a time.
    """

    path: str
    base: int
    size: int
    begin: int
    limit: int
    part_bytes: int = TASK_BYTES


def split_bytes_for(log_bytes: int, at_a_time: int) -> int:
    """Return the length of splits for ``at_a_time`` concurrent tasks, a multiple of TASK_BYTES."""
    wanted = log_bytes // max(at_a_time * _SPLITS_A_TASK, 1)
    return min(max(wanted - wanted % TASK_BYTES, MIN_SPLIT_BYTES), MAX_SPLIT_BYTES)


def cut_splits(log: CommitLog, split_bytes: int) -> list[Split]:
    """Cut a log into splits of at most ``split_bytes``, leaving out holes."""
    splits: list[Split] = []
    part_bytes = min(TASK_BYTES, split_bytes)
    for task in cut_tasks(log, log.min_offset, part_bytes):
        last = splits[-1] if splits else None
        if last is not None and last.path == task.path and last.limit == task.begin and task.limit - last.begin <= split_bytes:
            splits[-1] = last._replace(limit=task.limit)
        else:
            splits.append(Split(task.path, task.base, task.size, task.begin, task.limit, part_bytes))
    return splits


def parts(fs: FileSystem, split: Split, *, batch_topics: frozenset[bytes], keys: bool) -> Iterator[Answer[ParsedChunk]]:
    """Yield the parsed parts of a split, in order and without gaps. Raises OSError when its file cannot be read.

    ``batch_topics`` and ``keys`` are those of ``parse_chunk``.
    """
    from sprocketmq.storage.bulk.parsing import parse_chunk
    from sprocketmq.storage.bulk.record_search import find_record

    file = fs.open(split.path, read_only=True)
    try:
        view = file.map(split.size)
    finally:
        file.close()
    base = split.base
    file_pos, end = split.begin - base, split.limit - base
    known = file_pos == 0  # a segment begins with a record
    while file_pos < end:
        limit = min(file_pos - file_pos % split.part_bytes + split.part_bytes, end)
        start = file_pos if known else find_record(view, base, file_pos, limit)
        known = False
        while start >= 0 and not known:
            chunk = parse_chunk(view, base, start, limit, batch_topics=batch_topics, keys=keys)
            if not chunk.records:
                break
            start = chunk.end - base
            yield Answer(base + file_pos, chunk.end, chunk)
            file_pos = start
            known = file_pos >= limit
        if not known:
            yield Answer(base + file_pos, base + limit, None)
            file_pos = limit
