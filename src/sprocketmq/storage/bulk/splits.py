"""A commit log cut into splits that are read apart from each other, maybe on other machines. Import it late: ``parts`` bring numpy.

A split is a stretch of one segment, many times what is parsed at once. Where its first record begins is a guess, and behind damage each of
its parts begins with a new one; ``stitching.py`` tells which of the parts count.
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
# Splits for each task that runs at a time: more of them even out what tasks take, fewer cost less to start.
_SPLITS_A_TASK = 4


class Split(NamedTuple):
    """The stretch ``[begin, limit)`` of log offsets in the segment file at ``path``, which has ``size`` bytes and begins at ``base``.

    So many bytes of it are parsed at once: ``part_bytes``.
    """

    path: str
    base: int
    size: int
    begin: int
    limit: int
    part_bytes: int = TASK_BYTES


def split_bytes_for(log_bytes: int, at_a_time: int) -> int:
    """Return how long splits should be when so many are read at a time; a multiple of what is parsed at once."""
    wanted = log_bytes // max(at_a_time * _SPLITS_A_TASK, 1)
    return min(max(wanted - wanted % TASK_BYTES, MIN_SPLIT_BYTES), MAX_SPLIT_BYTES)


def cut_splits(log: CommitLog, split_bytes: int) -> list[Split]:
    """Cut a log into splits of at most ``split_bytes``, leaving out what nothing was ever written to."""
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
    """Yield what the parts of a split hold, in order and without a gap between them. Raises OSError when its file cannot be read.

    ``batch_topics`` and ``keys`` are those of ``parse_chunk``.
    """
    from sprocketmq.storage.bulk.parsing import find_record, parse_chunk

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
