"""The `rocketmq` format: topics as batch and streaming DataFrames."""

from collections.abc import Sequence
from importlib.util import find_spec
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema

from sprocketmq.arrow.schema import arrow_schema, spark_schema
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.sink.data_sink import BatchSink, StreamSink
from sprocketmq.spark.source.batch_reader import BatchReader
from sprocketmq.spark.source.options import ReadOptions, parse_options
from sprocketmq.spark.source.topic_stream import TopicStream


class RocketMQDataSource(DataSource):
    """Read and write RocketMQ topics: ``spark.read``, ``readStream``, ``write`` and ``writeStream`` with ``format("rocketmq")``.

    Register it once per session: ``spark.dataSource.register(sprocketmq.spark.RocketMQDataSource)``. Options and columns are described
    in docs/guide/spark.md and docs/guide/spark-sink.md.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name, ``rocketmq``."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the columns that the option ``columns`` names. Raises OptionError for options that cannot be."""
        # Spark calls this first, inside load(): the best moment to refuse wrong options.
        return spark_schema(parse_options(self.options, streaming=None).columns)

    def reader(self, schema: Any) -> BatchReader:
        """Return what ``spark.read`` reads with."""
        options = parse_options(self.options, streaming=False)
        _check_schema(schema, options.columns)
        return BatchReader(options)

    def streamReader(self, schema: Any) -> TopicStream:  # noqa: N802 - Spark's name
        """Return what ``spark.readStream`` reads with."""
        options = parse_options(self.options, streaming=True)
        _check_schema(schema, options.columns)
        return _stream_reader(options)

    def writer(self, schema: Any, overwrite: bool) -> BatchSink:
        """Return what ``DataFrame.write`` sends with; it only appends."""
        return BatchSink(schema, self.options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamSink:  # noqa: N802 - Spark's name
        """Return what ``DataFrame.writeStream`` sends with; it only appends."""
        return StreamSink(schema, self.options, overwrite)


def _stream_reader(options: ReadOptions) -> TopicStream:
    """Return the reader for the version of Spark that runs."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        from sprocketmq.spark.source.stream_reader_before_42 import StreamReaderBefore42

        return StreamReaderBefore42(options)
    from sprocketmq.spark.source.stream_reader import StreamReader

    return StreamReader(options)


def as_arrow(schema: Any) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a source's batches for a schema of its own."""
    # Before Spark 4.2 the time zone is always UTC, and there is no parameter for it.
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **in_utc)


def _check_schema(schema: Any, columns: Sequence[str]) -> None:
    """Raise OptionError when a schema given by ``.schema(...)`` differs from that of the columns."""
    if not as_arrow(schema).equals(arrow_schema(columns)):
        raise OptionError(
            "columns",
            f"the schema given is {schema.simpleString()}, but the columns are {spark_schema(columns)}: leave .schema() out, and choose"
            " columns with this option",
        )
