"""Partitions of the `rocketmq` format: how many a read is cut into, and how a task reads one."""

import logging
from collections.abc import Iterator, Sequence
from math import inf

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sprocketmq.arrow.pulled_rows import PulledRows
from sprocketmq.errors import SprocketError
from sprocketmq.spark.sessions.worker_gc import settle_worker
from sprocketmq.spark.source.access import ClusterAccess, cluster_access
from sprocketmq.spark.source.offsets import Offsets
from sprocketmq.spark.source.options import ReadOptions
from sprocketmq.spark.source.planning import GUESSED_MESSAGE_BYTES, MeanSizes, QueueRange, count_partitions
from sprocketmq.spark.source.reading import RangeReader

log = logging.getLogger(__name__)

# The sample of waiting messages that estimates their size.
SAMPLE_MESSAGES = 32
SAMPLE_BYTES = 65_536


class QueuePartition(InputPartition):
    """The queue ranges that one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))


def open_cluster(options: ReadOptions, *, patience_s: float = 0.0) -> ClusterAccess:
    """Return this process's access to the cluster that the options name, made on first use."""
    return cluster_access(options.nameserver, options.group, options.client_options, security=options.security, patience_s=patience_s)


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition's messages; the work of one task."""
    # Spark passes an empty partition when a reader planned none.
    if not isinstance(partition, QueuePartition):
        return iter(())
    settle_worker()
    reader = RangeReader(
        open_cluster(options, patience_s=options.pull_timeout_ms / 1000).pull,
        options.columns,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        pull_messages=options.pull_batch_size,
        pull_bytes=options.pull_batch_bytes,
        prefetch=options.prefetch,
        filter=options.filter,
        inner_batch=options.inner_batch,
        read_from=options.read_from,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_ms=options.pull_timeout_ms,
    )
    return reader.read(partition.value)


def sample_sizes(access: ClusterAccess, places: Offsets, sizes: MeanSizes) -> None:
    """Pull the first messages at each offset, to estimate the message size of each queue."""
    asked = [access.pull(queue, offset, SAMPLE_MESSAGES, SAMPLE_BYTES, 0) for queue, offset in places.items()]
    for queue, answer in zip(places, asked, strict=True):
        try:
            body = answer.result().body
            sizes.note(queue, len(body), len(PulledRows(body).offsets) if len(body) else 0)
        except SprocketError as e:
            # The read itself will meet the same error and retries.
            log.debug("no sample of %s: %s", queue, e)


def start_of_longest(ranges: Sequence[QueueRange]) -> Offsets:
    """Return where the longest range starts."""
    longest = max(ranges, key=len)
    return {longest.queue: longest.start}


def size_matters(options: ReadOptions, ranges: Sequence[QueueRange]) -> bool:
    """Return whether large messages would need more tasks than the number of rows alone."""
    rows = sum(map(len, ranges))
    return count_partitions(rows, options.max_partitions, row_bytes=inf) > count_partitions(rows, options.max_partitions)


def count_pieces(options: ReadOptions, ranges: Sequence[QueueRange], sizes: MeanSizes) -> int:
    """Return the number of partitions to cut the ranges into."""
    rows = sum(map(len, ranges))
    return count_partitions(
        rows,
        options.max_partitions,
        least=options.min_partitions,
        max_rows=options.max_records_per_partition,
        row_bytes=sum(len(r) * sizes.of(r.queue) for r in ranges) / max(rows, 1) or GUESSED_MESSAGE_BYTES,
    )
