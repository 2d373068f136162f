"""The tables of a store with their columns, and what a read of them is told."""

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from sprocketmq.arrow.schema import COLUMNS, DEFAULT_COLUMNS, Column
from sprocketmq.errors import ConfigError

DEFAULT_SPLIT_BYTES = 128 << 20
# Rows of queue units and index entries are small.
DEFAULT_UNIT_ROWS = 32_768

_STRING = Column("STRING", pa.string())
_INT = Column("INT", pa.int32())
_BIGINT = Column("BIGINT", pa.int64())
_TIMESTAMP = COLUMNS["storeTimestamp"]
_UNIT = {"topic": _STRING, "queueId": _INT, "queueOffset": _BIGINT, "commitLogOffset": _BIGINT, "size": _INT, "tagsCode": _BIGINT}
_BATCH_UNIT = {**_UNIT, "batchBaseOffset": _BIGINT, "batchNum": _INT, "storeTimestamp": _TIMESTAMP}
_INDEX = {"keyHash": _INT, "commitLogOffset": _BIGINT, "timeDiff": _INT, "storeTimestamp": _TIMESTAMP, "slot": _INT, "file": _STRING}

# The column that onCorrupt=report adds: null in rows of intact data; in a row for a damaged stretch only it and `file` are set.
CORRUPT = "corrupt"
CORRUPT_TYPE = pa.struct([("file", pa.string()), ("offset", pa.int64()), ("length", pa.int64()), ("problem", pa.string())])
CORRUPT_COLUMN = Column("STRUCT<file: STRING, offset: BIGINT, length: BIGINT, problem: STRING>", CORRUPT_TYPE)


class Table(NamedTuple):
    """One of the tables of a store: all its columns, and those read by default."""

    columns: dict[str, Column]
    default: tuple[str, ...]


TABLES: dict[str, Table] = {
    "commitlog": Table({**COLUMNS, "file": _STRING}, DEFAULT_COLUMNS),
    "consumequeue": Table({**_UNIT, "file": _STRING}, tuple(_UNIT)),
    "batchcq": Table({**_BATCH_UNIT, "file": _STRING}, tuple(_BATCH_UNIT)),
    "index": Table(_INDEX, tuple(_INDEX)),
}


class ReadRefused(ConfigError):
    """A read of stores that cannot begin. ``argument`` is what is wrong: ``path``, ``table`` or ``topic``."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(problem)
        self.argument = argument
        self.problem = problem


class PathAbsent(ReadRefused):
    """There is nothing at a path."""

    def __init__(self, path: str) -> None:
        super().__init__("path", f"{path} does not exist")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of one read of stores. ``topics`` is empty for all topics. Log offsets are None where the read is not bounded."""

    paths: tuple[str, ...]
    table: str
    columns: tuple[str, ...]
    topics: tuple[str, ...]
    on_corrupt: str
    split_bytes: int
    batch_rows: int
    batch_bytes: int
    align: str
    from_physical: int | None
    to_physical: int | None
    verify_crc: bool
    inner_batch: str
    broker_name: str | None


def store_arrow_schema(options: StoreOptions) -> pa.Schema:
    """Return the Arrow schema of every yielded batch of a read."""
    return pa.schema([(name, column_of(options, name).arrow_type) for name in options.columns])


def column_of(options: StoreOptions, name: str) -> Column:
    """Return the column of one name."""
    return CORRUPT_COLUMN if name == CORRUPT else TABLES[options.table].columns[name]
