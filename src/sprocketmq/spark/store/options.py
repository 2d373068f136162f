"""Options of the `rocketmq-store` format and the columns of its tables, checked before any file is opened."""

import json
import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from sprocketmq.arrow.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS
from sprocketmq.arrow.store.tables import CORRUPT, DEFAULT_SPLIT_BYTES, DEFAULT_UNIT_ROWS, TABLES, StoreOptions, column_of
from sprocketmq.spark.option_values import Values

FORMAT = "rocketmq-store"

_OF_THE_LOG = ("align", "fromPhysicalOffset", "toPhysicalOffset", "verifyCrc", "innerBatch", "brokerName", "batchBytes")
NAMES = ("path", "paths", "table", "topic", "columns", "onCorrupt", "splitBytes", "batchRows", *_OF_THE_LOG)


def parse_store_options(options: Mapping[str, str]) -> StoreOptions:
    """Return the checked options of a read; names are case-insensitive. Raises OptionError. No file is opened."""
    values = Values(options, NAMES, FORMAT)
    table = values.word("table", TABLES, "commitlog")
    for name in _OF_THE_LOG:
        if table != "commitlog" and values.given(name):
            raise values.error(name, f"it is for table commitlog only, and table is {table}; leave it out")
    if table == "index" and values.given("topic"):
        raise values.error("topic", "index files hold hashes of keys and no topics; leave it out, or read another table")
    start = values.integer("fromPhysicalOffset", None, 0, what="a position in the log, in bytes")
    stop = values.integer("toPhysicalOffset", None, 0, what="a position in the log, in bytes")
    if start is not None and stop is not None and stop < start:
        raise values.error("toPhysicalOffset", f"it is {stop}, before fromPhysicalOffset {start}")
    on_corrupt = values.word("onCorrupt", ("fail", "skip", "report"), "fail")
    return StoreOptions(
        paths=_paths(values),
        table=table,
        columns=_columns(values, table, report=on_corrupt == "report"),
        topics=values.items("topic", "the topic to read, or several separated by commas") if values.given("topic") else (),
        on_corrupt=on_corrupt,
        split_bytes=values.size("splitBytes", DEFAULT_SPLIT_BYTES, 1024),
        batch_rows=values.integer(
            "batchRows", DEFAULT_BATCH_ROWS if table == "commitlog" else DEFAULT_UNIT_ROWS, 1, what="rows of an Arrow batch"
        ),
        batch_bytes=values.size("batchBytes", DEFAULT_BATCH_BYTES, 1024, 256 << 20),
        align=values.word("align", ("index", "walk", "resync"), "index"),
        from_physical=start,
        to_physical=stop,
        verify_crc=values.boolean("verifyCrc", default=False),
        inner_batch=values.word("innerBatch", ("unwrap", "raw"), "unwrap"),
        broker_name=values.text("brokerName"),
    )


def store_spark_schema(options: StoreOptions) -> str:
    """Return the schema of a read as the DDL text Spark reads."""
    return ", ".join(f"{name} {column_of(options, name).sql_type}" for name in options.columns)


def _columns(values: Values, table: str, *, report: bool) -> tuple[str, ...]:
    known, default = TABLES[table]
    chosen = values.columns([*known, CORRUPT] if report else known, default)
    return (*chosen, CORRUPT) if report and CORRUPT not in chosen else chosen


def _paths(values: Values) -> tuple[str, ...]:
    # Spark passes load("a") as option path, and load(["a", "b"]) as option paths, a JSON array.
    if values.only_one_of("path", "paths") == "paths":
        given = values.json("paths")
        if not isinstance(given, list) or not given or not all(isinstance(path, str) and path.strip() for path in given):
            raise values.error("paths", f'{json.dumps(given)} is not a JSON array of paths such as ["/srv/mq-1", "/srv/mq-2"]')
        return tuple(_local(values, "paths", path.strip()) for path in given)
    return (_local(values, "path", values.required("path", "the directory of a store, or a pattern such as /backup/*/store")),)


def _local(values: Values, name: str, path: str) -> str:
    scheme, colon, _ = path.partition(":")
    if colon and scheme.lower() == "file":
        path = unquote(urlsplit(path).path)
    elif "://" in path:
        raise values.error(name, f"{path!r} is not a path of this machine: stores are read from local or mounted directories")
    # Workers may have a different working directory.
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
