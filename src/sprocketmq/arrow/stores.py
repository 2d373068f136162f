"""Read the files of stores as Arrow batches, without a broker."""

import os
from collections.abc import Generator, Sequence
from typing import Literal

import pyarrow as pa

from sprocketmq.arrow.batches import Batches, check_columns
from sprocketmq.arrow.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS
from sprocketmq.arrow.store.planning import check_paths, plan_store
from sprocketmq.arrow.store.reading import StoreReader
from sprocketmq.arrow.store.tables import CORRUPT, DEFAULT_SPLIT_BYTES, DEFAULT_UNIT_ROWS, TABLES, StoreOptions, store_arrow_schema
from sprocketmq.client.arguments import check_bools, check_number
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.names import check_topic

OnCorrupt = Literal["fail", "skip", "report"]
StoreTable = Literal["commitlog", "consumequeue", "batchcq", "index"]


def read_store(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    topics: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    table: StoreTable = "commitlog",
    on_corrupt: OnCorrupt = "fail",
    verify_crc: bool = False,
    from_log_offset: int | None = None,
    to_log_offset: int | None = None,
    broker_name: str | None = None,
    batch_rows: int | None = None,
) -> Batches:
    """Read the messages in the files of a store of SprocketMQ or Apache RocketMQ, in the order of its commit log.

    ``path`` is the directory of a store, its ``commitlog`` directory, a file of that, a pattern such as ``/backup/*/store``, or several of
    them. The store may be in use: what is there when the first batch is asked for is read. ``topics`` limits the read (none: all topics).
    ``columns`` and their types are those of format ``rocketmq-store`` of Spark, and so are the other tables. ``from_log_offset`` and
    ``to_log_offset`` limit the read to records that begin between them.

    Damage raises StoreDamaged; with ``on_corrupt="skip"`` it is left out and logged, with ``"report"`` it becomes a row whose column
    ``corrupt`` states file, offset, length and problem. ``verify_crc`` compares checksums of bodies, too. Raises ConfigError for arguments
    that cannot be and for a path without a store.

    Example::

        from sprocketmq import arrow

        table = arrow.read_store("mq", topics=["orders"], columns=["topic", "body"]).to_table()
        print(table.num_rows)
    """
    if table not in TABLES:
        raise ConfigError(f"there is no table {table!r}; the tables are {', '.join(TABLES)}")
    if on_corrupt not in ("fail", "skip", "report"):
        raise ConfigError(f"on_corrupt must be 'fail', 'skip' or 'report', not {on_corrupt!r}")
    if batch_rows is not None:
        check_number("batch_rows", batch_rows, least=1, whole=True)
    for name, offset in (("from_log_offset", from_log_offset), ("to_log_offset", to_log_offset)):
        if offset is not None:
            check_number(name, offset, least=0, whole=True)
    if from_log_offset is not None and to_log_offset is not None and from_log_offset > to_log_offset:
        raise ConfigError(f"nothing lies between them: from_log_offset is {from_log_offset}, to_log_offset {to_log_offset}")
    topics = (topics,) if isinstance(topics, str) else tuple(topics)
    for topic in topics:
        check_topic(topic)
    check_bools(verify_crc=verify_crc)
    if broker_name is not None and not isinstance(broker_name, str):
        raise ConfigError(f"broker_name must be text, not {broker_name!r}")
    known = TABLES[table]
    chosen = known.default if columns is None else check_columns(columns, known.columns)
    options = StoreOptions(
        paths=tuple(os.path.abspath(os.path.expanduser(one)) for one in _several(path)),  # noqa: PTH100, PTH111 - may be a pattern
        table=table,
        columns=(*chosen, CORRUPT) if on_corrupt == "report" else chosen,
        topics=topics,
        on_corrupt=on_corrupt,
        split_bytes=DEFAULT_SPLIT_BYTES,
        batch_rows=batch_rows or (DEFAULT_BATCH_ROWS if table == "commitlog" else DEFAULT_UNIT_ROWS),
        batch_bytes=DEFAULT_BATCH_BYTES,
        align="index",
        from_physical=from_log_offset,
        to_physical=to_log_offset,
        verify_crc=verify_crc,
        inner_batch="unwrap",
        broker_name=broker_name,
    )
    check_paths(options)
    return Batches(store_arrow_schema(options), _read(options))


def _several(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    given = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not given:
        raise ConfigError("give the directory of at least one store")
    return [os.fspath(one) for one in given]


def _read(options: StoreOptions) -> Generator[pa.RecordBatch, None, None]:
    reader = StoreReader(options)
    for pieces in plan_store(options):
        yield from reader.read(pieces)
