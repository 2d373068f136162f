"""Encoded rows, and the send requests that are cut from them without copying."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.sink.batch_entries import body_of, properties_of


@dataclass(slots=True)
class EncodedRows:
    """Rows as batch entries. ``bounds`` are the bounds of the entries in ``data``, ``lengths`` their body lengths.

    ``numbers`` are the row numbers within the task. ``source`` are the rows in the order of the entries, for rows refused later.
    """

    data: memoryview
    bounds: Any
    lengths: Any
    numbers: Any
    source: pa.RecordBatch
    wait_store_ok: bool
    flags: Any = None
    keys: pa.Array | None = None
    tags: pa.Array | None = None
    tag_codes: Any = None


@dataclass(slots=True)
class RowBatch:
    """The rows of one send request: entries ``[first, last)`` of ``rows``.

    ``single`` sends one message instead of a batch. ``queue`` is None for any queue, ``born_ms`` None for the time of the send.
    """

    rows: EncodedRows
    first: int
    last: int
    topic: str
    queue: MessageQueue | None
    single: bool
    born_ms: int | None = None

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def row(self) -> int:
        """The number of the first row within the task."""
        return int(self.rows.numbers[self.first])

    def body(self) -> memoryview:
        """Return the body of the request: the batch body, or that of the single message."""
        rows, at = self.rows, self.first
        if not self.single:
            return rows.data[rows.bounds[at] : rows.bounds[self.last]]
        return body_of(rows.data, int(rows.bounds[at]), int(rows.lengths[at]))

    def properties(self, new_id: Callable[[], str]) -> str:
        """Return the property string of the request: that of the single message, or the keys and tag of the batch with a new id."""
        rows, at = self.rows, self.first
        if self.single:
            return properties_of(rows.data, int(rows.bounds[at]), int(rows.lengths[at]), int(rows.bounds[at + 1]))
        text = ""
        if rows.keys is not None:
            merged_keys = pc.unique(rows.keys.slice(at, len(self)).drop_null()).to_pylist()
            text = f"KEYS\x01{' '.join(merged_keys)}\x02" if merged_keys else ""
        tags = rows.tags
        if tags is not None and bool((rows.tag_codes[at : self.last] == rows.tag_codes[at]).all()) and (tag := tags[at].as_py()):
            text += f"TAGS\x01{tag}\x02"
        return f"{text}WAIT\x01{'true' if rows.wait_store_ok else 'false'}\x02UNIQ_KEY\x01{new_id()}\x02"

    def flag(self) -> int:
        """Return the flag of a single message; the flags of a batch are in its entries."""
        return int(self.rows.flags[self.first]) if self.single and self.rows.flags is not None else 0

    def halves(self) -> tuple["RowBatch", "RowBatch"]:
        """Return the batch in two halves. A half of one row is a single message."""
        middle = (self.first + self.last) // 2
        return self._part(self.first, middle), self._part(middle, self.last)

    def _part(self, first: int, last: int) -> "RowBatch":
        return RowBatch(self.rows, first, last, self.topic, self.queue, last - first == 1, self.born_ms)
