"""The result of parsing a range of the commit log for the derived files: arrays instead of one object per message.

Workers produce these (``pipeline.py``), the queues and the key index consume them. They are numpy arrays in native byte order.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class QueueChunk(NamedTuple):
    """Consecutive units of one queue, ready for its files: queue offsets ``[first_offset, next_offset)`` without a gap.

    ``units`` are 20-byte units, or for the topics whose queues are batch queues 46-byte ones, in log order.
    """

    topic: bytes
    queue_id: int
    first_offset: int
    next_offset: int
    first_log_offset: int
    units: bytes


class KeyEntries(NamedTuple):
    """What the key index stores of some records, in log order: key hashes (0 to 2^31 - 1), log offsets, store times in ms."""

    hashes: "NDArray[np.int32]"
    log_offsets: "NDArray[np.int64]"
    times_ms: "NDArray[np.int64]"


class ParsedChunk(NamedTuple):
    """The records between log offsets ``start`` and ``end``: queue units and, if requested, index keys.

    ``unqueued`` are topics with inner batches that were not said to have batch queues: these batches have no units.
    """

    start: int
    end: int
    records: int
    last_log_offset: int
    last_time_ms: int
    queue_chunks: list[QueueChunk]
    keys: KeyEntries | None
    unqueued: tuple[bytes, ...] = ()
