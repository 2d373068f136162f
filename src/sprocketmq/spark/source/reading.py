"""Pull queue ranges from brokers and turn them into Arrow batches: the work of one Spark task.

Pulls run ahead while Spark takes batches (``read_ahead``), within a memory limit. Every message of a range is accounted for: messages that
a broker no longer has are reported as data loss, never skipped silently.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Protocol

import pyarrow as pa

from sprocketmq.arrow.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS, decode_rows
from sprocketmq.arrow.pulled_rows import PulledRows
from sprocketmq.client.consume.pull_requests import PullStatus, pull_subscription
from sprocketmq.client.consume.replica_choice import ReadFrom
from sprocketmq.errors import FatalError, RemoteProtocolError, RetriableError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.source.access import Filter, TopicGone
from sprocketmq.spark.source.planning import QueueRange
from sprocketmq.spark.source.read_ahead import PullAhead, PullFuture

log = logging.getLogger(__name__)

# Pause between attempts while a broker is away. The read's time limit bounds the whole wait.
RETRY_PAUSE_S = 0.2
# How long a broker may hold a pull for messages that should be there and are not yet.
HOLD_MS = 1000
DEFAULT_PREFETCH = 2

InnerBatch = Literal["unwrap", "raw"]


class DataLoss(FatalError):
    """Messages that a query should read are gone from the broker: expired, or their topic was deleted or created anew."""

    def __init__(self, queue: MessageQueue, start: int, end: int, reason: str) -> None:
        super().__init__(
            f"messages {start} to {end - 1} of queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r} cannot be"
            f" read: {reason}. Set option failOnDataLoss to false to go on without them, or start a new query"
        )
        self.queue = queue
        self.start = start
        self.end = end
        self.reason = reason


class QueueAway(DataLoss):
    """A queue is no longer in the route of its topic: its broker is away, or the topic has fewer queues."""


class PullFunction(Protocol):
    """Asks a broker for messages: ``ClusterAccess.pull``.

    Called in the loop thread, by the callback of an earlier answer, it may return an answer for this thread only, whose ``result`` does not
    wait. Called in any other thread it returns a Future, whose ``result`` waits.
    """

    def __call__(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        hold_ms: int,
        /,
        *,
        filter: Filter | None,  # noqa: A002 - the option's word
        read_from: ReadFrom,
    ) -> PullFuture: ...


class RangeReader:
    """Reads ranges one after the other.

    ``pull_messages`` and ``pull_bytes`` are what one pull asks for (default: the size of a batch; brokers may return less). Pulls run
    ahead of Spark by ``prefetch`` times ``pull_bytes``; with 0 a pull is sent only when its messages are wanted. So memory is bounded by
    that, one batch and its encoded form, for ranges of any length.

    ``filter`` is applied by the broker; tags are compared again here, as brokers compare only hashes. ``inner_batch="raw"`` makes one row
    of each inner batch, which belongs to the range that contains its first offset. With ``read_from`` other than master, messages that a
    replica lacks are asked of the master; only the master's answer counts as data loss.

    ``fail_on_data_loss`` raises DataLoss for missing messages, else a warning is logged. ``timeout_ms`` bounds the wait for one pull with
    all attempts and reconnections; then the error of the last attempt is raised, or DataLoss when the queue ends early.
    """

    def __init__(
        self,
        pull: PullFunction,
        columns: Sequence[str],
        *,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        pull_messages: int | None = None,
        pull_bytes: int | None = None,
        prefetch: int = DEFAULT_PREFETCH,
        filter: Filter | None = None,  # noqa: A002
        inner_batch: InnerBatch = "unwrap",
        read_from: ReadFrom = "master",
        fail_on_data_loss: bool = True,
        timeout_ms: int = 20_000,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pull = pull
        self._columns = columns
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._pull_messages = pull_messages or batch_rows
        self._pull_bytes = pull_bytes or batch_bytes
        self._prefetch = prefetch
        self._tags = frozenset(pull_subscription("T", filter[1], filter[0]).tags_set) if filter else frozenset()
        self._filter = filter if filter and (self._tags or filter[0] != "TAG") else None
        self._unwrap = inner_batch == "unwrap"
        self._read_from = read_from
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_s = timeout_ms / 1000
        self._pause = pause
        self._monotonic = monotonic

    def read(self, ranges: Iterable[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ``ranges`` in order, each exactly once. A batch holds messages of one queue only."""
        ahead = PullAhead(
            self._start,
            ranges,
            portion_rows=self._batch_rows,
            portion_bytes=self._batch_bytes,
            messages=self._pull_messages,
            pull_bytes=self._pull_bytes,
            prefetch=self._prefetch,
            skips=self._filter is not None,
        )
        try:
            while (portion := ahead.take()) is not None:
                part, start, stop, bodies, failed = portion
                if failed is not None:
                    body, stop = self._settle(part, start, failed)
                    ahead.go_on(stop)
                    bodies = [body] if body else []
                    del body
                if bodies:
                    data = bodies[0] if len(bodies) == 1 else b"".join(bodies)
                    del portion, bodies
                    decoded = self._decode(part, start, stop, data)
                    del data
                    yield from decoded
        finally:
            ahead.close()

    def _decode(self, part: QueueRange, start: int, end: int, data: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the messages from ``start`` to ``end`` that match the tags."""
        queue = part.queue
        try:
            rows = PulledRows(data, unwrap=self._unwrap)
            del data
            self._account(part, start, end, rows)
            rows.trim(start, end)
            if self._tags:
                rows.keep_tags(self._tags)
            yield from decode_rows(rows, self._columns, queue.broker_name, batch_rows=self._batch_rows, batch_bytes=self._batch_bytes)
        except RemoteProtocolError as e:
            where = f"messages {start} to {end - 1} of queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"
            hint = "" if not self._unwrap else "; with option innerBatch=raw batches are not looked into"
            raise RemoteProtocolError(f"{where} cannot be decoded: {e}{hint}") from e

    def _account(self, part: QueueRange, start: int, end: int, rows: PulledRows) -> None:
        """Check that ``rows`` are in order, and without a filter that they are all messages from ``start`` to ``end``."""
        offsets = rows.offsets
        after = offsets + (1 if rows.counts is None else rows.counts)
        if len(rows) and offsets[0] <= start and after[-1] >= end and (offsets[1:] == after[:-1]).all():
            return
        expected = start
        for offset, stop in zip(offsets.tolist(), after.tolist(), strict=True):
            if stop <= start:
                continue
            if offset < expected > start:
                raise RemoteProtocolError(f"message {offset} came after message {expected - 1}")
            if expected < offset and expected < end:
                self._missing(part, expected, min(offset, end))
            expected = stop
        if expected < end:
            self._missing(part, expected, end)

    def _missing(self, part: QueueRange, start: int, end: int) -> None:
        if self._filter is None:
            self._lose(part.queue, start, end, "the broker left them out")

    def _start(self, part: QueueRange, offset: int, messages: int) -> PullFuture:
        return self._pull(part.queue, offset, messages, self._pull_bytes, 0, filter=self._filter, read_from=self._read_from)

    def _start_again(self, part: QueueRange, offset: int, hold_ms: int) -> PullFuture:
        messages = min(part.end - offset, self._pull_messages)
        return self._pull(part.queue, offset, messages, self._pull_bytes, hold_ms, filter=self._filter, read_from="master")

    def _settle(self, part: QueueRange, offset: int, under_way: PullFuture) -> tuple[bytes, int]:
        """Repeat a pull that brought no messages until it does or the reason is known; return messages from ``offset`` and the next offset.

        The messages are empty after data loss, and when none matches the filter.
        """
        queue = part.queue
        deadline = self._monotonic() + self._timeout_s
        asks_master = self._read_from == "master"
        while True:
            hold_ms = 0
            try:
                answer = under_way.result()
            except TopicGone:
                self._lose(queue, offset, part.end, "its topic was deleted")
                return b"", part.end
            except (RetriableError, TopicNotFound):
                # A topic has no route for a moment while its only broker restarts.
                if self._monotonic() >= deadline:
                    raise
            else:
                if answer.body:
                    if answer.next_offset <= offset:
                        raise RemoteProtocolError(
                            f"broker {queue.broker_name} answered a pull of {queue.topic} queue {queue.queue_id} at {offset}"
                            f" with messages and next offset {answer.next_offset}"
                        )
                    return answer.body, min(answer.next_offset, part.end)
                skipped = answer.status is PullStatus.NO_MATCH and answer.next_offset > offset
                if skipped and self._filter is not None:
                    return b"", min(answer.next_offset, part.end)
                if answer.from_master:
                    if offset < answer.min_offset:
                        gone = min(max(answer.min_offset, answer.next_offset), part.end)
                        self._lose(queue, offset, gone, f"the queue now begins at {answer.min_offset}")
                        return b"", gone
                    if skipped:
                        gone = min(answer.next_offset, part.end)
                        self._lose(queue, offset, gone, "the broker left them out")
                        return b"", gone
                if self._monotonic() >= deadline:
                    if not answer.from_master:
                        raise RetriableError(
                            f"the master of broker {queue.broker_name} is away, and its replica has no message {offset} of queue"
                            f" {queue.queue_id} of topic {queue.topic} yet"
                        )
                    if offset < answer.max_offset:
                        raise RetriableError(
                            f"broker {queue.broker_name} hands out no message {offset} of queue {queue.queue_id} of topic {queue.topic},"
                            f" which goes on to {answer.max_offset}: {answer.status.value}"
                        )
                    self._lose(queue, offset, part.end, f"the queue ends at {answer.max_offset}")
                    return b"", part.end
                # The broker announced the end of this range when it was planned: a replica may not have the messages yet.
                hold_ms = HOLD_MS
            if asks_master:
                self._pause(RETRY_PAUSE_S)
            asks_master = True
            under_way = self._start_again(part, offset, hold_ms)

    def _lose(self, queue: MessageQueue, start: int, end: int, reason: str) -> None:
        if self._fail_on_data_loss:
            raise DataLoss(queue, start, end, reason)
        log.warning("going on without messages %d to %d of %s (failOnDataLoss is false): %s", start, end - 1, queue, reason)
