"""`spark.read`: one read from the starting to the ending offsets."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.same_version import SameVersion
from sprocketmq.spark.source.offsets import name_queue, name_some, settle
from sprocketmq.spark.source.options import ReadOptions
from sprocketmq.spark.source.partitions import (
    QueuePartition,
    count_pieces,
    open_cluster,
    read_partition,
    sample_sizes,
    size_matters,
    start_of_longest,
)
from sprocketmq.spark.source.planning import MeanSizes, cut_ranges, ranges_between
from sprocketmq.spark.source.starting import queues_to_start_with, starting_offsets


class BatchReader(SameVersion, DataSourceReader):
    """Reads from the starting to the ending offsets, both resolved when the DataFrame is first used.

    Filter pushdown is not implemented: Spark 4.3 reuses the plan of one query for the next on the same DataFrame, with other filters.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        access = open_cluster(options)
        queues = queues_to_start_with(options, access)
        if options.pattern is not None and not queues:
            raise OptionError("subscribePattern", f"no topic matches {options.pattern!r}; there are {name_some(access.topics())}")
        earliest, latest = access.earliest(queues), access.latest(queues)
        start = starting_offsets(options, access, earliest, latest)
        end = settle(options.ending, access, earliest, latest)
        option = options.ending.option
        for queue in queues:
            if end[queue] > latest[queue]:
                raise OptionError(option, f"{name_queue(queue)} ends at {latest[queue]}, offset {end[queue]} is past it")
            if isinstance(options.ending.place, dict) and start[queue] > end[queue]:
                raise OptionError(option, f"{name_queue(queue)} would end at {end[queue]}, before its start at {start[queue]}")
        ranges = ranges_between(start, end)
        sizes = MeanSizes()
        if size_matters(options, ranges):
            sample_sizes(access, start_of_longest(ranges), sizes)
        return [QueuePartition(part) for part in cut_ranges(ranges, count_pieces(options, ranges, sizes))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)
