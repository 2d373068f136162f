"""What a read returns: record batches one after the other, for Python loops and for every library that reads Arrow streams."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from sprocketmq.arrow.schema import COLUMNS, check_known
from sprocketmq.errors import ConfigError, SprocketError


class Ending:
    """How ``Batches.close`` ends a read that another thread waits in: ``wake`` ends the wait, for reads that may wait for long."""

    def __init__(self) -> None:
        self.asked: bool = False
        self.wake: Callable[[], None] | None = None

    def ask(self) -> None:
        """Make the read end before its next batch."""
        self.asked = True
        if (wake := self.wake) is not None:
            with contextlib.suppress(SprocketError):  # it has ended just now
                wake()


class Batches:
    """Record batches of one ``schema``, read when they are asked for, each once. Nothing is opened before the first.

    Iterate over it, or give it to DuckDB, Polars, pandas or ``pyarrow.table``, which read it as an Arrow stream. Its connections, threads
    and files are gone after the last batch, after an error, and after ``close``: use ``with`` when a loop may end before the last batch.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch, None, None], ending: Ending | None = None) -> None:
        self.schema = schema
        self._batches = batches
        self._ending = ending or Ending()
        self._reading = threading.Lock()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._reading:
            batch = next(self._batches)
        if self._ending.asked:  # by another thread
            self.close()
            raise StopIteration
        return batch

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the remaining batches as pyarrow's own kind of stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def to_table(self) -> pa.Table:
        """Read all remaining batches into memory. Never returns for ``follow``."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def __arrow_c_schema__(self) -> Any:
        """Export the schema (the Arrow PyCapsule interface)."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the remaining batches (the Arrow PyCapsule interface)."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """End the read. May be called twice, and by another thread than the one that iterates: its loop ends then."""
        self._ending.ask()
        if self._reading.acquire(blocking=False):
            try:
                self._batches.close()
            finally:
                self._reading.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Batches({', '.join(self.schema.names)})"


def check_columns(columns: Sequence[str], known: Iterable[str] = COLUMNS) -> tuple[str, ...]:
    """Return the columns as a tuple. Raises ConfigError for one that does not exist or is named twice, and for none."""
    if isinstance(columns, str):
        raise ConfigError(f"columns must be a list of names, not the text {columns!r}: write [{columns!r}]")
    chosen, there = tuple(columns), list(known)
    check_known(chosen, there)
    if len(set(chosen)) < len(chosen) or not chosen:
        raise ConfigError("name at least one column, and each only once")
    return chosen
