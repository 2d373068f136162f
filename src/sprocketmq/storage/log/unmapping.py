"""Removes pages of the mapped log from the memory of this process: what consumers have read would otherwise stay resident for ever."""

from collections.abc import Iterator

from sprocketmq.storage.log.commit_log import CommitLog

# The part that consumers without a lag read stays mapped.
MAPPED_TAIL_BYTES = 64 << 20
STEP_BYTES = 32 << 20


def unmap_in_steps(log: CommitLog) -> Iterator[None]:
    """Unmap the pages of all but the end of the log, in steps of half a millisecond. The page cache keeps them; reads map them again."""
    keep = log.committed_end - MAPPED_TAIL_BYTES
    for segment in list(log.segments):
        for begin in range(0, min(segment.size, keep - segment.start), STEP_BYTES):
            segment.unmap_pages(begin, min(begin + STEP_BYTES, segment.size))
            yield
