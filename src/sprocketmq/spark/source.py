"""The `rocketmq` format: topics as batch and streaming DataFrames."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sprocketmq.errors import RetriableError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.access import ClusterAccess, cluster_access
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.options import EARLIEST, LATEST, Place, ReadOptions, check_names, parse_columns, parse_options
from sprocketmq.spark.planning import Offsets, QueueRange, admit, decode_offsets, encode_offsets, plan_partitions, ranges_between
from sprocketmq.spark.reading import RETRY_PAUSE_S, DataLoss, QueueAway, RangeReader
from sprocketmq.spark.schema import spark_schema

log = logging.getLogger(__name__)


class RocketMQDataSource(DataSource):
    """Read RocketMQ topics: ``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")``.

    Register it once per session: ``spark.dataSource.register(sprocketmq.spark.RocketMQDataSource)``. Options and columns are described
    in docs/guide/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        # The first thing Spark asks, inside load(): a misspelt option is best refused here.
        check_names(self.options)
        return spark_schema(parse_columns(self.options))

    def reader(self, schema: Any) -> "BatchReader":
        return BatchReader(parse_options(self.options, streaming=False))

    def streamReader(self, schema: Any) -> "StreamReader":  # noqa: N802 - Spark's name
        return StreamReader(parse_options(self.options, streaming=True))


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark hands an empty partition to a reader that planned none.
    if not isinstance(partition, QueuePartition):
        return iter(())
    access = cluster_access(options.nameserver, options.group)
    reader = RangeReader(
        access.pull,
        options.columns,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_ms=options.pull_timeout_ms,
    )
    return reader.read(partition.value)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, both settled when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        access = cluster_access(options.nameserver, options.group)
        queues = access.queues(options.topics)
        earliest, latest = access.earliest(queues), access.latest(queues)
        start = starting_offsets(options, access, queues, earliest, latest)
        end = _offsets_at("endingOffsets", options.ending, earliest, latest)
        for queue in queues:
            if end[queue] > latest[queue]:
                raise OptionError("endingOffsets", f"{_name(queue)} ends at {latest[queue]}, offset {end[queue]} is past it")
            if start[queue] > end[queue]:
                raise OptionError("endingOffsets", f"{_name(queue)} would end at {end[queue]}, before its start at {start[queue]}")
        return [QueuePartition(part) for part in plan_partitions(ranges_between(start, end), options.max_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what arrives, batch by batch. All state that matters is in the offsets Spark keeps in its checkpoint."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        # Set for a query that reads what is there and ends: how far that is.
        self._target: Offsets | None = None

    def _access(self) -> ClusterAccess:
        return cluster_access(self._options.nameserver, self._options.group)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        access = self._access()
        queues = access.queues(self._options.topics)
        earliest, latest = access.earliest(queues), access.latest(queues)
        return encode_offsets(starting_offsets(self._options, access, queues, earliest, latest))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        access = self._access()
        self._target = access.latest(access.queues(self._options.topics))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = decode_offsets(start)
        deadline = time.monotonic() + self._options.pull_timeout_ms / 1000
        while True:
            try:
                latest = self._latest(begun)
                break
            except (RetriableError, TopicNotFound, QueueAway):
                # A broker that starts again should not end the query.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)
        return encode_offsets(admit(begun, latest, limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        access = self._access()
        return encode_offsets(access.latest(access.queues(self._options.topics)))

    def _latest(self, begun: Offsets) -> Offsets:
        """Return where each queue ends: of those the query reads already, and of new ones where they begin.

        A queue that appears takes part with no rows first; from then on its start is in the checkpoint like any other's.
        """
        access = self._access()
        options = self._options
        if self._target is not None:
            latest = {queue: end for queue, end in self._target.items() if queue in begun}
            new = [queue for queue in self._target if queue not in begun]
        else:
            try:
                queues = access.queues(options.topics)
            except TopicNotFound as e:
                if options.fail_on_data_loss:
                    raise
                log.warning("waiting for it (failOnDataLoss is false): %s", e)
                queues = []
            latest = access.latest(queue for queue in queues if queue in begun)
            new = [queue for queue in queues if queue not in begun]
        latest.update(access.earliest(new))
        for queue, offset in begun.items():
            if queue not in latest:
                if options.fail_on_data_loss and queue.topic in options.topics:
                    raise QueueAway(
                        queue,
                        offset,
                        offset + 1,
                        "it has gone from the route of its topic; if its broker is only down, restart the query later",
                    )
                latest[queue] = offset
            elif latest[queue] < offset:
                loss = DataLoss(queue, latest[queue], offset, f"the queue now ends at {latest[queue]}, before what was read already")
                if options.fail_on_data_loss:
                    raise loss
                log.warning("going on at its end (failOnDataLoss is false): %s", loss)
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = ranges_between(decode_offsets(start), decode_offsets(end))
        return [QueuePartition(part) for part in plan_partitions(ranges, self._options.max_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


def starting_offsets(
    options: ReadOptions,
    access: ClusterAccess,
    queues: Sequence[MessageQueue],
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
) -> Offsets:
    """Return where a new query begins in each queue.

    Given offsets must name every queue, and none that does not exist. One below what the broker still has raises DataLoss, or moves up
    when failOnDataLoss is false; one past the end raises OptionError.
    """
    if options.starting_timestamp_ms is not None:
        return access.at_time(queues, options.starting_timestamp_ms)
    start = _offsets_at("startingOffsets", options.starting, earliest, latest)
    for queue in queues:
        if start[queue] > latest[queue]:
            raise OptionError("startingOffsets", f"{_name(queue)} ends at {latest[queue]}, offset {start[queue]} is past it")
        if start[queue] < earliest[queue]:
            loss = DataLoss(queue, start[queue], earliest[queue], f"the queue now begins at {earliest[queue]}")
            if options.fail_on_data_loss:
                raise loss
            log.warning("starting at its beginning (failOnDataLoss is false): %s", loss)
            start[queue] = earliest[queue]
    return start


def _offsets_at(option: str, place: Place, earliest: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]) -> Offsets:
    if isinstance(place, int):
        return dict(earliest if place == EARLIEST else latest)
    for queue in place:
        if queue not in latest:
            raise OptionError(option, f"there is no {_name(queue)}; there are {', '.join(map(_name, sorted(latest)))}")
    offsets: Offsets = {}
    for queue in latest:
        if queue not in place:
            raise OptionError(option, f"{_name(queue)} is missing; give every queue an offset, -2 (earliest) or -1 (latest)")
        offset = place[queue]
        offsets[queue] = earliest[queue] if offset == EARLIEST else latest[queue] if offset == LATEST else offset
    return offsets


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"
