"""The `rocketmq-store` format: the files of a store as batch DataFrames, without a broker."""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from sprocketmq.arrow.store.pieces import Piece
from sprocketmq.arrow.store.reading import StoreReader
from sprocketmq.arrow.store.tables import StoreOptions
from sprocketmq.errors import ConfigError
from sprocketmq.spark.same_version import SameVersion
from sprocketmq.spark.sessions.worker_gc import settle_worker
from sprocketmq.spark.store.options import parse_store_options, store_spark_schema
from sprocketmq.spark.store.starting import check_paths, plan_store


class RocketMQStoreDataSource(DataSource):
    """Read the files of stores of SprocketMQ or Apache RocketMQ: ``spark.read.format("rocketmq-store").load(directory)``.

    Register it once per session: ``spark.dataSource.register(sprocketmq.spark.RocketMQStoreDataSource)``. Tables, columns and options
    are described in docs/guide/spark-stores.md.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name, ``rocketmq-store``."""
        return "rocketmq-store"

    def schema(self) -> str:
        """Return the columns of the table that the options name. Raises OptionError for options or paths that cannot be."""
        # Spark calls this first, inside load(): the best moment to refuse a misspelt option or path.
        options = parse_store_options(self.options)
        check_paths(options)
        return store_spark_schema(options)

    def reader(self, schema: Any) -> "StoreBatchReader":  # noqa: ARG002 - Spark's signature
        """Return what ``spark.read`` reads with."""
        return StoreBatchReader(parse_store_options(self.options))

    def streamReader(self, schema: Any) -> NoReturn:  # noqa: ARG002, N802 - Spark's signature
        """Raise ConfigError: a store has no streams."""
        raise ConfigError(
            "the rocketmq-store format has no streams: read a store with spark.read, and a broker's topics as a stream with format rocketmq"
        )

    def writer(self, schema: Any, overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """Raise ConfigError: stores are only read."""
        raise ConfigError("the rocketmq-store format only reads: write to a broker's topics with format rocketmq")

    def streamWriter(self, schema: Any, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
        """Raise ConfigError: stores are only read."""
        self.writer(schema, overwrite)


class StorePartition(InputPartition):
    """The pieces that one task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(tuple(pieces))


class StoreBatchReader(SameVersion, DataSourceReader):
    """Reads the data that the files hold when the query is planned."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [StorePartition(pieces) for pieces in plan_store(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle_worker()
        # Spark passes an empty partition when a reader planned none.
        return StoreReader(self._options).read(partition.value or ())
