"""Columns of the `rocketmq` format in their order, with Spark and Arrow types."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from sprocketmq.errors import ConfigError


class Column(NamedTuple):
    """One column: its Spark SQL type, and the Arrow type that PySpark requires of yielded batches."""

    sql_type: str
    arrow_type: pa.DataType


# PySpark requires the first batch to equal `to_arrow_schema(schema, timezone="UTC")`: microseconds, and a map whose value field is
# named "value". A TIMESTAMP would be one without a time zone where `spark.sql.timestampType` says so.
_STRING = Column("STRING", pa.string())
_INT = Column("INT", pa.int32())
_BIGINT = Column("BIGINT", pa.int64())
_TIMESTAMP = Column("TIMESTAMP_LTZ", pa.timestamp("us", tz="UTC"))
MAP_TYPE = pa.map_(pa.string(), pa.field("value", pa.string()))

COLUMNS: dict[str, Column] = {
    "topic": _STRING,
    "brokerName": _STRING,
    "queueId": _INT,
    "queueOffset": _BIGINT,
    "body": Column("BINARY", pa.binary()),
    "tags": _STRING,
    "keys": _STRING,
    "properties": Column("MAP<STRING,STRING>", MAP_TYPE),
    "flag": _INT,
    "sysFlag": _INT,
    "bornTimestamp": _TIMESTAMP,
    "storeTimestamp": _TIMESTAMP,
    "bornHost": _STRING,
    "storeHost": _STRING,
    "msgId": _STRING,
    "offsetMsgId": _STRING,
    "commitLogOffset": _BIGINT,
    "storeSize": _INT,
    "bodyCRC": _INT,
    "reconsumeTimes": _INT,
    "preparedTransactionOffset": _BIGINT,
    "batchBaseOffset": _BIGINT,
    "batchNum": _INT,
}

DEFAULT_COLUMNS: tuple[str, ...] = tuple(COLUMNS)[:12]


def spark_schema(columns: Sequence[str] = DEFAULT_COLUMNS) -> str:
    """Return the schema of ``columns`` as the DDL text Spark reads."""
    return ", ".join(f"{name} {COLUMNS[name].sql_type}" for name in columns)


def check_known(columns: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for a column that does not exist."""
    for name in columns:
        if name not in known:
            raise ConfigError(f"there is no column {name!r}; the columns are {', '.join(known)}")


def arrow_schema(columns: Sequence[str] = DEFAULT_COLUMNS) -> pa.Schema:
    """Return the Arrow schema of every yielded batch of ``columns``. Raises ConfigError for one that does not exist."""
    check_known(columns, COLUMNS)
    return pa.schema([(name, COLUMNS[name].arrow_type) for name in columns])
