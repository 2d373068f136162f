"""The work of ``spark.readStream``, whatever the version of Spark: where a micro-batch ends, and what it consists of."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sprocketmq.errors import NameserverUnavailable, NoBroker, RetriableError, SprocketError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.same_version import SameVersion
from sprocketmq.spark.source.offsets import Offsets, check_same_topics, decode_offsets, decode_partitions, encode_offsets, name_queue
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
from sprocketmq.spark.source.planning import MeanSizes, admit, admit_bytes, cut_ranges, ranges_between
from sprocketmq.spark.source.progress import ProgressReporter
from sprocketmq.spark.source.reading import RETRY_PAUSE_S, DataLoss, QueueAway
from sprocketmq.spark.source.starting import check_filter, find_queues, queues_to_start_with, starting_offsets

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


class TopicStream(SameVersion, DataSourceStreamReader):
    """Reads new messages, micro-batch by micro-batch. Subclasses have the methods that versions of Spark differ in.

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
        access = open_cluster(self._options)
        queues = queues_to_start_with(self._options, access)
        return encode_offsets(starting_offsets(self._options, access, access.earliest(queues), access.latest(queues)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun = decode_offsets(start)
        self._check_topics(begun)
        ranges = ranges_between(begun, decode_offsets(end))
        pieces = decode_partitions(end) or count_pieces(self._options, ranges, MeanSizes())
        return [QueuePartition(part) for part in cut_ranges(ranges, pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()

    # --- what versions of Spark ask for in different ways ---

    def end_here(self) -> None:
        """Make the query end with the messages that exist now."""
        self._target = self._with_retries(lambda: open_cluster(self._options).latest(self._find_queues()))

    def next_offset(self, start: dict[str, Any], *, everything: bool = False) -> dict[str, Any]:
        """Return the end of the micro-batch that begins at ``start``, ``start`` itself when there is nothing new.

        ``everything`` ignores the options that limit a micro-batch.
        """
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
        end = latest if everything else self._end_of_batch(begun, latest)
        now = self._monotonic()
        if end == begun:
            self._rest_until = now + min(IDLE_REST * (now - asked), MAX_REST_S)
            return start
        self._batch_at = now
        ranges = ranges_between(begun, end)
        if size_matters(self._options, ranges) and now - self._sampled_at >= ROUTE_REFRESH_S:
            self._sample(start_of_longest(ranges))
        return encode_offsets(end, count_pieces(self._options, ranges, self._sizes))

    def seen_offset(self) -> dict[str, Any] | None:
        """Return the ends of the queues as the last ``next_offset`` found them, None before it."""
        return None if self._latest is None else encode_offsets(self._latest)

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
            access = open_cluster(self._options)
            try:
                queues, missing = find_queues(self._options, access)
            except (NameserverUnavailable, NoBroker) as e:
                # Brokers work without their nameservers, and one that was started again does not know them yet.
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
                    check_filter(self._options, access, queues)
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
            latest = open_cluster(options).latest([queue for queue in queues if queue in begun])
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
            elif open_cluster(options).offsets_from_slave(queue):
                latest[queue] = max(offset, latest[queue])  # a slave that lags behind catches up, or the master returns
            elif latest[queue] < offset:
                end = latest[queue]
                self._lose(
                    DataLoss(queue, end, offset, f"the queue now ends at {end}, before what was read already"), "going on at its end"
                )
            elif offset < (low := self._earliest.get(queue, offset)):
                self._lose(DataLoss(queue, offset, low, f"the queue now begins at {low}"), "going on at its beginning")
        return latest

    def _end_of_batch(self, begun: Offsets, latest: Offsets) -> Offsets:
        """Return the end of the next batch by the options that limit it; its beginning when it should not start yet."""
        options = self._options
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
        sample_sizes(open_cluster(self._options), places, self._sizes)

    def _commit(self, begun: Offsets) -> None:
        """Commit ``begun`` to the brokers. Everything before it is in the sink: Spark asks for the next batch only then."""
        if not self._options.commit_offsets:
            return
        new = {queue: offset for queue, offset in begun.items() if self._committed.get(queue) != offset}
        try:
            if new:
                open_cluster(self._options).commit_offsets(self._options.group, new)
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
