"""The `rocketmq` format: topics as batch and streaming DataFrames."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sprocketmq.errors import NameserverUnavailable, RetriableError, SprocketError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.sessions.worker_gc import settle_worker
from sprocketmq.spark.sink.data_sink import BatchSink, StreamSink
from sprocketmq.spark.source.access import ClusterAccess, FilterRefused, cluster_access
from sprocketmq.spark.source.offsets import (
    Offsets,
    check_same_topics,
    decode_offsets,
    decode_partitions,
    encode_offsets,
    name_queue,
    name_some,
    settle,
)
from sprocketmq.spark.source.options import ReadOptions, parse_options
from sprocketmq.spark.source.planning import (
    GUESSED_MESSAGE_BYTES,
    MeanSizes,
    QueueRange,
    admit,
    admit_bytes,
    count_partitions,
    cut_ranges,
    ranges_between,
)
from sprocketmq.spark.source.progress import ProgressReporter
from sprocketmq.spark.source.pulled_rows import PulledRows
from sprocketmq.spark.source.reading import RETRY_PAUSE_S, DataLoss, QueueAway, RangeReader
from sprocketmq.spark.source.schema import arrow_schema, spark_schema

log = logging.getLogger(__name__)

_R = TypeVar("_R")

# Interval at which a running query refreshes its queues: new, removed and truncated queues are seen this late.
ROUTE_REFRESH_S = 2.0
# A topic that is being deleted is empty for a moment first: wait so long, to report the deletion and not data loss.
LOSS_PATIENCE_S = 1.0
# Longer interval after no nameserver answered, as each attempt takes a while.
NAMESERVER_PAUSE_S = 10.0
# Spark asks an idle query a hundred times a second. After a check that found nothing new, the next one waits this many times as long as
# the check took, at most MAX_REST_S seconds, so that many queues do not flood the brokers.
IDLE_REST = 9
MAX_REST_S = 0.1
# The sample of waiting messages that estimates their size.
SAMPLE_MESSAGES = 32
SAMPLE_BYTES = 65_536


class RocketMQDataSource(DataSource):
    """Read and write RocketMQ topics: ``spark.read``, ``readStream``, ``write`` and ``writeStream`` with ``format("rocketmq")``.

    Register it once per session: ``spark.dataSource.register(sprocketmq.spark.RocketMQDataSource)``. Options and columns are described
    in docs/guide/spark.md and docs/guide/spark-sink.md.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        # Spark calls this first, inside load(): the best moment to refuse wrong options.
        return spark_schema(parse_options(self.options, streaming=None).columns)

    def reader(self, schema: Any) -> "BatchReader":
        options = parse_options(self.options, streaming=False)
        _check_schema(schema, options.columns)
        return BatchReader(options)

    def streamReader(self, schema: Any) -> "StreamReader":  # noqa: N802 - Spark's name
        options = parse_options(self.options, streaming=True)
        _check_schema(schema, options.columns)
        return StreamReader(options)

    def writer(self, schema: Any, overwrite: bool) -> BatchSink:
        return BatchSink(schema, self.options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamSink:  # noqa: N802 - Spark's name
        return StreamSink(schema, self.options, overwrite)


def _check_schema(schema: Any, columns: Sequence[str]) -> None:
    """Raise OptionError when a schema given by ``.schema(...)`` differs from that of the columns."""
    if not to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(columns)):
        raise OptionError(
            "columns",
            f"the schema given is {schema.simpleString()}, but the columns are {spark_schema(columns)}: leave .schema() out, and choose"
            " columns with this option",
        )


class QueuePartition(InputPartition):
    """The queue ranges that one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))


def _access(options: ReadOptions, *, patience_s: float = 0.0) -> ClusterAccess:
    return cluster_access(options.nameserver, options.group, options.client_options, security=options.security, patience_s=patience_s)


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark passes an empty partition when a reader planned none.
    if not isinstance(partition, QueuePartition):
        return iter(())
    settle_worker()
    reader = RangeReader(
        _access(options, patience_s=options.pull_timeout_ms / 1000).pull,
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


def find_queues(options: ReadOptions, access: ClusterAccess) -> tuple[list[MessageQueue], list[str]]:
    """Return the readable queues that the options select, and the topics selected by name that have no route.

    Topics selected by a pattern are never reported as missing.
    """
    topics = options.topics if options.pattern is None else tuple(filter(options.reads_topic, access.topics()))
    missing = []
    try:
        found = access.queues(topics)
    except TopicNotFound:
        found = []
        for topic in topics:
            try:
                found += access.queues([topic])
            except TopicNotFound:
                missing.append(topic)
    return sorted(filter(options.reads, found)), [] if options.pattern is not None else missing


def starting_offsets(
    options: ReadOptions, access: ClusterAccess, earliest: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]
) -> Offsets:
    """Return the first offset of a new query in each queue.

    An offset below the queue's first message raises DataLoss, or moves up with failOnDataLoss=false; one past the end raises OptionError.
    """
    bound = options.starting
    start = settle(bound, access, earliest, latest, error_without_match=options.error_without_match)
    for queue in sorted(start):
        if start[queue] > latest[queue]:
            raise OptionError(bound.option, f"{name_queue(queue)} ends at {latest[queue]}, offset {start[queue]} is past it")
        if start[queue] < earliest[queue]:
            loss = DataLoss(queue, start[queue], earliest[queue], f"the queue now begins at {earliest[queue]}")
            if options.fail_on_data_loss:
                raise loss
            log.warning("starting at the beginning of the queue (failOnDataLoss is false): %s", loss)
            start[queue] = earliest[queue]
    return start


def _queues_to_start_with(options: ReadOptions, access: ClusterAccess) -> list[MessageQueue]:
    """Return the queues of a new query. Raises TopicNotFound, and OptionError for assigned queues that do not exist."""
    queues, missing = find_queues(options, access)
    if missing:
        raise TopicNotFound(missing[0], options.nameserver)
    for queue in options.assign:
        if queue not in queues:
            there = sorted(found.queue_id for found in access.queues([queue.topic]) if found.broker_name == queue.broker_name)
            has = f"that broker has queues {', '.join(map(str, there))} of it" if there else "that broker has no queue of it"
            raise OptionError("assign", f"there is no {name_queue(queue)}; {has}")
    _check_filter(options, access, queues)
    return queues


def _check_filter(options: ReadOptions, access: ClusterAccess, queues: Sequence[MessageQueue]) -> None:
    """Have the brokers validate the filter before any task uses it. Raises OptionError."""
    try:
        access.check_filter(queues, options.filter)
    except FilterRefused as e:
        raise OptionError("filterExpression", str(e)) from None


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


def _first_of_most(ranges: Sequence[QueueRange]) -> Offsets:
    longest = max(ranges, key=len)
    return {longest.queue: longest.start}


def _size_matters(options: ReadOptions, ranges: Sequence[QueueRange]) -> bool:
    """Tell whether large messages would need more tasks than the number of rows alone."""
    rows = sum(map(len, ranges))
    return count_partitions(rows, options.max_partitions, row_bytes=inf) > count_partitions(rows, options.max_partitions)


def _count_pieces(options: ReadOptions, ranges: Sequence[QueueRange], sizes: MeanSizes) -> int:
    """Return the number of partitions to cut the ranges into."""
    rows = sum(map(len, ranges))
    return count_partitions(
        rows,
        options.max_partitions,
        least=options.min_partitions,
        max_rows=options.max_records_per_partition,
        row_bytes=sum(len(r) * sizes.of(r.queue) for r in ranges) / max(rows, 1) or GUESSED_MESSAGE_BYTES,
    )


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, both resolved when the DataFrame is first used.

    Filter pushdown is not implemented: Spark 4.3 reuses the plan of one query for the next on the same DataFrame, with other filters.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        access = _access(options)
        queues = _queues_to_start_with(options, access)
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
        if _size_matters(options, ranges):
            sample_sizes(access, _first_of_most(ranges), sizes)
        return [QueuePartition(part) for part in cut_ranges(ranges, _count_pieces(options, ranges, sizes))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages, micro-batch by micro-batch.

    A micro-batch depends only on the offsets in Spark's checkpoint. The state here is a cache that saves requests; a restarted query builds
    it again.
    """

    def __init__(
        self, options: ReadOptions, *, monotonic: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._options = options
        self._monotonic = monotonic
        self._pause = pause
        # Where a query with trigger(availableNow=True) ends.
        self._target: Offsets | None = None
        self._queues: list[MessageQueue] | None = None
        self._earliest: Offsets = {}
        self._refreshed_at = -inf
        self._refreshed = False
        self._latest: Offsets | None = None
        self._sizes = MeanSizes()
        self._sampled_at = -inf
        self._batch_at: float | None = None
        self._rest_until = 0.0
        self._committed: Offsets = {}
        self._warned: set[str] = set()
        self._progress = (
            None
            if options.progress_topic is None
            else ProgressReporter(options.nameserver, options.progress_topic, options.progress_name, options.security)
        )

    # --- methods that Spark calls ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        access = _access(self._options)
        queues = _queues_to_start_with(self._options, access)
        return encode_offsets(starting_offsets(self._options, access, access.earliest(queues), access.latest(queues)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark has no limit of several parts. Which one it passes back does not matter, only whether it is "no limit".
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable() if options.min_offsets_per_trigger is None else ReadMinRows(options.min_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._with_retries(lambda: _access(self._options).latest(self._find_queues()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = decode_offsets(start)
        self._check_topics(begun)
        self._commit(begun)
        asked = self._monotonic()
        if asked < self._rest_until:
            self._pause(self._rest_until - asked)
            asked = self._rest_until
        latest = self._with_retries(lambda: self._latest_offsets(begun))
        self._latest = latest
        if self._progress is not None:
            self._progress.note(begun, latest)
        end = self._end_of_batch(begun, latest, limit)
        now = self._monotonic()
        if end == begun:
            self._rest_until = now + min(IDLE_REST * (now - asked), MAX_REST_S)
            return start
        self._batch_at = now
        ranges = ranges_between(begun, end)
        if _size_matters(self._options, ranges) and now - self._sampled_at >= ROUTE_REFRESH_S:
            self._sample(_first_of_most(ranges))
        return encode_offsets(end, _count_pieces(self._options, ranges, self._sizes))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        # Spark calls this right after latestOffset.
        return None if self._latest is None else encode_offsets(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun = decode_offsets(start)
        self._check_topics(begun)
        ranges = ranges_between(begun, decode_offsets(end))
        pieces = decode_partitions(end) or _count_pieces(self._options, ranges, MeanSizes())
        return [QueuePartition(part) for part in cut_ranges(ranges, pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()

    # --- parts ---

    def _with_retries(self, ask: Callable[[], _R]) -> _R:
        """Return what ``ask`` returns. Retries, so that a restarting broker or an outdated route does not end the query."""
        began = self._monotonic()
        patience_s = self._options.pull_timeout_ms / 1000
        retried = False
        while True:
            self._refreshed = False
            try:
                return ask()
            except (RetriableError, TopicNotFound, DataLoss) as e:
                self._refreshed_at = -inf
                if not self._refreshed and not retried:
                    retried = True  # retry at once with fresh routes
                    continue
                is_lost = isinstance(e, DataLoss) and not isinstance(e, QueueAway)
                if self._monotonic() - began >= (min(LOSS_PATIENCE_S, patience_s) if is_lost else patience_s):
                    raise
                self._pause(RETRY_PAUSE_S)

    def _find_queues(self) -> list[MessageQueue]:
        """Return the queues of the topics, at most ROUTE_REFRESH_S old."""
        now = self._monotonic()
        if now - self._refreshed_at >= ROUTE_REFRESH_S:
            self._refreshed, self._refreshed_at = True, now
            access = _access(self._options)
            try:
                queues, missing = find_queues(self._options, access)
            except NameserverUnavailable as e:
                # Brokers work without their nameservers.
                if self._queues is None:
                    raise
                self._warn(f"going on with the queues known so far: {e}")
                self._refreshed_at = self._monotonic() + NAMESERVER_PAUSE_S
            else:
                if missing and self._options.fail_on_data_loss:
                    raise TopicNotFound(missing[0], self._options.nameserver)
                for topic in missing:
                    self._warn(f"waiting for topic {topic!r}, which has no route (failOnDataLoss is false)")
                if self._queues is None:
                    _check_filter(self._options, access, queues)
                self._earliest = access.earliest(queues)
                self._queues = queues
        return self._queues or []

    def _latest_offsets(self, begun: Offsets) -> Offsets:
        """Return the end of each queue that the query reads already, and the beginning of each new queue.

        A new queue contributes no rows at first; from then on its start is in the checkpoint like that of any other queue.
        """
        options = self._options
        queues = self._find_queues()
        if self._target is None:
            latest = _access(options).latest([queue for queue in queues if queue in begun])
            new = [queue for queue in queues if queue not in begun]
        else:
            latest = {queue: end for queue, end in self._target.items() if queue in begun}
            new = [queue for queue in self._target if queue not in begun and queue in self._earliest]
        latest.update((queue, self._earliest[queue]) for queue in new)
        for queue, offset in begun.items():
            if queue not in latest:
                if options.fail_on_data_loss and options.reads(queue):
                    why = "it has gone from the route of its topic; if its broker is only down, restart the query later"
                    raise QueueAway(queue, offset, offset + 1, why)
                latest[queue] = offset
            elif _access(options).offsets_from_slave(queue):
                latest[queue] = max(offset, latest[queue])  # a slave that lags behind catches up, or the master returns
            elif latest[queue] < offset:
                end = latest[queue]
                self._lose(
                    DataLoss(queue, end, offset, f"the queue now ends at {end}, before what was read already"), "going on at its end"
                )
            elif offset < (low := self._earliest.get(queue, offset)):
                self._lose(DataLoss(queue, offset, low, f"the queue now begins at {low}"), "going on at its beginning")
        return latest

    def _end_of_batch(self, begun: Offsets, latest: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next batch; its beginning when it should not start yet."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return latest  # Spark asks for everything in one batch, whatever the options say
        # Messages that are gone do not count against the limits.
        start = {queue: max(offset, min(self._earliest.get(queue, offset), latest[queue])) for queue, offset in begun.items()}
        least = options.min_offsets_per_trigger
        if least is not None and self._target is None and latest.keys() == begun.keys():
            now = self._monotonic()
            if self._batch_at is None:
                self._batch_at = now
            waiting = sum(max(0, latest[queue] - offset) for queue, offset in start.items())
            if waiting < least and now - self._batch_at < options.max_trigger_delay_ms / 1000:
                return begun
        end = latest
        if options.max_bytes_per_trigger is not None:
            self._sample({queue: offset for queue, offset in start.items() if offset < latest[queue]})
            end = admit_bytes(start, end, options.max_bytes_per_trigger, self._sizes.of)
        return admit(start, end, options.max_offsets_per_trigger)

    def _sample(self, places: Offsets) -> None:
        self._sampled_at = self._monotonic()
        sample_sizes(_access(self._options), places, self._sizes)

    def _commit(self, begun: Offsets) -> None:
        """Commit ``begun`` to the brokers. Everything before it is in the sink: Spark asks for the next batch only then."""
        if not self._options.commit_offsets:
            return
        new = {queue: offset for queue, offset in begun.items() if self._committed.get(queue) != offset}
        try:
            if new:
                _access(self._options).commit_offsets(self._options.group, new)
        except SprocketError as e:
            # The checkpoint is authoritative; lag tools see the old offsets until the next batch.
            self._warn(f"offsets of group {self._options.group!r} were not committed to the brokers: {e}")
        else:
            self._committed |= new

    def _check_topics(self, begun: Offsets) -> None:
        options = self._options
        left = check_same_topics(
            begun, [queue for queue in begun if not options.reads(queue)], options.what, strict=options.fail_on_data_loss
        )
        for queue in left:
            self._warn(f"{name_queue(queue)} is in the checkpoint but not read any more")

    def _lose(self, loss: DataLoss, instead: str) -> None:
        if self._options.fail_on_data_loss:
            raise loss
        self._warn(f"{instead} (failOnDataLoss is false): {loss}")

    def _warn(self, text: str) -> None:
        """Log a warning, once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)
