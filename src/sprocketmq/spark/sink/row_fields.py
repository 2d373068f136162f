"""The columns of a slice of rows, checked value by value: errors name the row within the task."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.errors import FatalError


class RowRefused(FatalError):
    """A row cannot be sent as a message. ``row`` is its number within the rows of the task, from 0."""

    def __init__(self, row: int, problem: str, partition: int | None = None) -> None:
        where = f"row {row}" if partition is None else f"row {row} of partition {partition}"
        super().__init__(f"{where} cannot be written to RocketMQ: {problem}")
        self.row = row
        self.problem = problem
        self.partition = partition

    def __reduce__(self) -> tuple[type["RowRefused"], tuple[int, str, int | None]]:
        return type(self), (self.row, self.problem, self.partition)


class RowFields:
    """The message columns of a slice of rows. ``numbers`` are the row numbers within the task, for errors."""

    def __init__(self, columns: Mapping[str, int], batch: pa.RecordBatch, numbers: Any) -> None:
        self._columns = columns
        self.batch = batch
        self.numbers = numbers

    def number(self, place: Any) -> int:
        """Return the row number within the task."""
        return int(self.numbers[int(place)])

    def has(self, name: str) -> bool:
        """Return whether the rows have this column, even if it is all null."""
        return name in self._columns

    def column(self, name: str) -> pa.Array | None:
        """Return a column, or None when it is absent or all null."""
        place = self._columns.get(name)
        if place is None:
            return None
        column = self.batch.column(place)
        return None if column.null_count == len(column) else column

    def required(self, name: str, hint: str) -> pa.Array:
        """Return a column. Raises RowRefused, with ``hint`` for what to do, when a row has null."""
        column = self.batch.column(self._columns[name])
        if column.null_count:
            nulls = column.is_null().to_numpy(zero_copy_only=False)
            raise RowRefused(self.number(np.argmax(nulls)), f"its {name} is null; {hint}")
        return column

    def present(self, *names: str) -> Any:
        """Return a mask of the rows in which one of the columns is neither null nor 0."""
        found: Any = np.zeros(len(self.numbers), bool)
        for name in names:
            column = self.column(name)
            if column is not None:
                valid = column.is_valid().to_numpy(zero_copy_only=False)
                if pa.types.is_integer(column.type):
                    valid &= column.fill_null(0).to_numpy() != 0
                found |= valid
        return found

    def integers(self, name: str, low: int, high: int) -> Any:
        """Return an integer column with 0 for null, or None. Raises RowRefused for a number below ``low`` or above ``high``."""
        column = self.column(name)
        if column is None:
            return None
        values = column.cast(pa.int64()).fill_null(0).to_numpy()
        wrong = (values < low) | (values > high)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise RowRefused(self.number(at), f"its {name} is {values[at]}, it must be from {low} to {high}")
        return values

    def milliseconds(self, name: str) -> Any:
        """Return times as milliseconds since 1970 with -1 for null, or None. Raises RowRefused for a time before 1970."""
        column = self.column(name)
        if column is None:
            return None
        if pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us")).cast(pa.int64())
            values = np.floor_divide(micros.fill_null(-1000).to_numpy(), 1000)
        else:
            values = column.cast(pa.int64()).fill_null(-1).to_numpy()
        wrong = (values < 0) & column.is_valid().to_numpy(zero_copy_only=False)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise RowRefused(self.number(at), f"its {name} is {values[at]} ms since 1970, it must be 0 or more")
        return values


def refuse_separators(texts: pa.Array, what: str, number: Callable[[Any], int]) -> None:
    """Raise RowRefused for the first text that contains one of the two property separators."""
    for separator in ("\x01", "\x02"):
        found = pc.match_substring(texts, separator).fill_null(False).to_numpy(zero_copy_only=False)
        if found.any():
            raise RowRefused(number(np.argmax(found)), f"{what} the character {separator!r}, which separates properties")


def refuse_split_words(lists: pa.ListArray, number: Callable[[Any], int]) -> None:
    """Raise RowRefused for the first key of an array that would be read as several: keys are stored separated by blanks."""
    words = lists.flatten()
    found = pc.match_substring_regex(words, r"[\s\p{Z}]").fill_null(False).to_numpy(zero_copy_only=False)
    if found.any():
        at = np.argmax(found)
        row = pc.list_parent_indices(lists)[at].as_py()
        raise RowRefused(number(row), f"its key {words[at].as_py()!r} has blanks, and a key is one word: replace them, or give more keys")
