"""Turning a batch into records when all its messages have the same flag and lengths: entries and records are rows of two arrays.

Bodies are copied from one to the other by numpy. Imports numpy: see ``index/numpy_loading``.
"""

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.batch import BatchColumns, likely_lengths, split_columns, strings_of_rows
from sprocketmq.protocol.hashing import full_crc32
from sprocketmq.protocol.layout import (
    BATCH_ENTRY_HEAD_BYTES,
    BATCH_ENTRY_LAYOUT,
    BATCH_ENTRY_OVERHEAD,
    INT16,
    INT32,
    MAGIC_V1,
    RECORD_HEAD_BYTES,
)
from sprocketmq.storage.layout_arrays import QUEUE_UNIT_DTYPE, RECORD_HEAD_DTYPE
from sprocketmq.storage.log.exploding import Exploded, Strings, Target, code_of, first_tag, pack_queue_flag, pack_size_magic, tags_codes

_unpack_flag = BATCH_ENTRY_LAYOUT.part("flag").unpack_from


def rows_of_batch(data: bytes | memoryview, fewest: int) -> "BatchRows | None":
    """Return the messages of a batch, or None when they are fewer, or have other heads and property lengths than the first."""
    lengths = likely_lengths(data, 0, len(data))
    if lengths is None:
        return None
    size, n, p = lengths
    count = len(data) // size
    if count < fewest:
        return None
    rows = np.frombuffer(data, np.uint8).reshape(count, size)
    heads = rows[:, :BATCH_ENTRY_HEAD_BYTES].tobytes()
    property_at = BATCH_ENTRY_HEAD_BYTES + n
    if (
        heads != heads[:BATCH_ENTRY_HEAD_BYTES] * count
        or rows[:, property_at : property_at + INT16.size].tobytes() != INT16.pack(p) * count
    ):
        return None
    return BatchRows(data, rows, n, p)


class BatchRows:
    """The ``count`` messages of a batch that all have bodies of ``n`` and property strings of ``p`` bytes, and the same flag.

    ``text`` are the property strings one after the other.
    """

    __slots__ = ("_data", "_n", "_p", "_rows", "count", "text")

    def __init__(self, data: bytes | memoryview, rows: NDArray[np.uint8], n: int, p: int) -> None:
        self._data = data
        self._rows = rows
        self._n = n
        self._p = p
        self.count = len(rows)
        self.text: bytes = rows[:, BATCH_ENTRY_OVERHEAD + n :].tobytes()

    def columns(self) -> BatchColumns:
        """Return the same messages as columns."""
        return split_columns(self._data)

    def explode(self, queue: Target, queue_id: int, queue_offset: int, log_offset: int, shared: bytes) -> Exploded:
        """Return the records of the batch; see ``exploding.explode``."""
        n, p, entries, topic = self._n, self._p, self._rows, queue.topic_field
        count = self.count
        size = queue.overhead + n + p
        body_end = RECORD_HEAD_BYTES + n
        topic_end = body_end + len(topic)
        (flag,) = _unpack_flag(self._data)
        head = b"".join((pack_size_magic(size, MAGIC_V1), bytes(4), pack_queue_flag(queue_id, flag), bytes(16), shared, INT32.pack(n)))
        records = np.empty((count, size), np.uint8)
        records[:, :RECORD_HEAD_BYTES] = np.frombuffer(head, np.uint8)
        records[:, RECORD_HEAD_BYTES:body_end] = entries[:, BATCH_ENTRY_HEAD_BYTES : BATCH_ENTRY_HEAD_BYTES + n]
        records[:, body_end:topic_end] = np.frombuffer(topic, np.uint8)
        records[:, topic_end:] = entries[:, BATCH_ENTRY_HEAD_BYTES + n :]  # the length of the property string, and the string
        heads = np.ndarray((count,), RECORD_HEAD_DTYPE, records, 0, (size,))
        end = log_offset + count * size
        bodies = strings_of_rows(self._data, entries.shape[1], BATCH_ENTRY_HEAD_BYTES, n)
        heads["crc"] = np.fromiter(map(full_crc32, bodies), np.uint32, count) & 0x7FFFFFFF
        heads["queue_offset"] = np.arange(queue_offset, queue_offset + count)
        units = np.empty(count, QUEUE_UNIT_DTYPE)
        heads["log_offset"] = units["log_offset"] = np.arange(log_offset, end, size)
        units["size"] = size
        units["tags_code"] = self._tags_codes()
        return records.reshape(-1).data, Strings(self.text, p), range(log_offset, end, size), end, units.tobytes()

    def _tags_codes(self) -> int | list[int]:
        text, p = self.text, self._p
        if b"TAGS\x01" not in text:
            return 0
        first = text[:p]
        field = first_tag(first)
        if field:
            start = first.index(field) + self._rows.shape[1] - p
            same = self._rows[:, start : start + len(field)].tobytes() == field * self.count
            # With one tag in each, none stands before the one that is compared.
            if same and (field.startswith(b"TAGS") or text.count(b"TAGS\x01") == self.count):
                return code_of(field)
        return tags_codes(text, [text[at : at + p] for at in range(0, len(text), p)])
