"""Pull queue ranges from brokers and turn them into Arrow batches: what one Spark task does.

The next pull is on its way while the last one is decoded and Spark takes its batches. Every message of a range is accounted for: what
a broker no longer has is data loss and is reported as such, never skipped in silence.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import pyarrow as pa

from sprocketmq.client.pulling import PullResult
from sprocketmq.errors import FatalError, RemoteProtocolError, RetriableError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS, PulledRows
from sprocketmq.spark.planning import QueueRange

log = logging.getLogger(__name__)

# Between attempts while a broker is away; the whole wait is bounded by the read's time limit.
RETRY_PAUSE_S = 0.2


class DataLoss(FatalError):
    """Messages a query should read are gone from the broker: expired, or the topic was deleted or made anew."""

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
    """A queue that was read is not in the route of its topic: its broker is away, or it was taken from the topic."""


# (queue, offset, max messages, max bytes, how long the broker may hold the request in ms) -> answer
Pull = Callable[[MessageQueue, int, int, int, int], "Future[PullResult]"]


class RangeReader:
    """Reads ranges one after the other.

    ``fail_on_data_loss`` says whether messages that are gone raise DataLoss or a warning. ``timeout_ms`` bounds the wait for one pull,
    attempts and reconnections included; after it the error of the last attempt is raised, or DataLoss when the queue ends early.
    """

    def __init__(
        self,
        pull: Pull,
        columns: Sequence[str],
        *,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        fail_on_data_loss: bool = True,
        timeout_ms: int = 20_000,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pull = pull
        self._columns = columns
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_s = timeout_ms / 1000
        self._pause = pause
        self._monotonic = monotonic

    def read(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ``ranges`` in order, each exactly once. A batch holds messages of one queue only."""
        held: list[bytes] = []
        held_bytes = 0
        first = 0
        for part, offset, stop, body in self._pulls(ranges):
            if not len(body):
                # What is gone was reported; what was pulled before it stands.
                if held:
                    yield from self._decode(part, first, offset, b"".join(held))
                held, held_bytes = [], 0
                continue
            if not held:
                first = offset
            held.append(body)
            held_bytes += len(body)
            # Brokers may hand out few messages at a time (32 by default in the reference): small pulls are decoded together.
            if stop >= part.end or stop - first >= self._batch_rows or held_bytes >= self._batch_bytes:
                yield from self._decode(part, first, min(stop, part.end), held[0] if len(held) == 1 else b"".join(held))
                held, held_bytes = [], 0

    def _decode(self, part: QueueRange, start: int, end: int, data: bytes) -> Iterator[pa.RecordBatch]:
        rows = PulledRows(data)
        rows.trim(start, end)
        expected = start
        if len(rows) != end - start or not (rows.offsets == np.arange(start, end)).all():
            for offset in rows.offsets.tolist():
                if offset < expected:
                    raise RemoteProtocolError(
                        f"broker {part.queue.broker_name} returned message {offset} of queue {part.queue.queue_id} of topic"
                        f" {part.queue.topic} after message {expected - 1}"
                    )
                if offset > expected:
                    self._lose(part.queue, expected, offset, "the broker left them out")
                expected = offset + 1
            if expected < end:
                self._lose(part.queue, expected, end, "the broker left them out")
        yield from rows.batches(self._columns, part.queue.broker_name, batch_rows=self._batch_rows, batch_bytes=self._batch_bytes)

    def _pulls(self, ranges: Sequence[QueueRange]) -> Iterator[tuple[QueueRange, int, int, bytes]]:
        """Yield (range, first offset, offset after the last, records) of each pull, with the next pull already under way."""
        todo = iter([part for part in ranges if len(part) > 0])
        part = next(todo, None)
        if part is None:
            return
        offset = part.start
        under_way = self._start(part, offset)
        try:
            while part is not None:
                body, stop = self._settle(part, offset, under_way)
                done, begun = part, offset
                if stop >= part.end:
                    part = next(todo, None)
                    stop = done.end
                    offset = part.start if part is not None else 0
                else:
                    offset = stop
                if part is not None:
                    under_way = self._start(part, offset)
                yield done, begun, stop, body
        finally:
            under_way.cancel()

    def _start(self, part: QueueRange, offset: int, hold_ms: int = 0) -> "Future[PullResult]":
        return self._pull(part.queue, offset, min(part.end - offset, self._batch_rows), self._batch_bytes, hold_ms)

    def _settle(self, part: QueueRange, offset: int, under_way: "Future[PullResult]") -> tuple[bytes, int]:
        """Wait for the messages from ``offset`` on; return them and the offset after them. Nothing is returned only after data loss."""
        deadline = self._monotonic() + self._timeout_s
        while True:
            try:
                answer = under_way.result()
            except (RetriableError, TopicNotFound):
                # A topic whose only broker is starting again has no route for a moment.
                if self._monotonic() >= deadline:
                    raise
                self._pause(RETRY_PAUSE_S)
                under_way = self._start(part, offset)
                continue
            if len(answer.body):
                if answer.next_offset <= offset:
                    raise RemoteProtocolError(
                        f"broker {part.queue.broker_name} answered a pull of {part.queue.topic} queue {part.queue.queue_id} at {offset}"
                        f" with messages and next offset {answer.next_offset}"
                    )
                return answer.body, answer.next_offset
            if offset < answer.min_offset or answer.next_offset > offset:
                gone = min(max(answer.min_offset, answer.next_offset), part.end)
                self._lose(part.queue, offset, gone, f"the queue now begins at {answer.min_offset}")
                return b"", gone
            if self._monotonic() >= deadline:
                self._lose(part.queue, offset, part.end, f"the queue ends at {answer.max_offset}")
                return b"", part.end
            # The range was planned from an offset this broker has announced: what is missing may still be on its way to a replica.
            self._pause(RETRY_PAUSE_S)
            under_way = self._start(part, offset, 1000)

    def _lose(self, queue: MessageQueue, start: int, end: int, reason: str) -> None:
        if self._fail_on_data_loss:
            raise DataLoss(queue, start, end, reason)
        log.warning("going on without messages %d to %d of %s (failOnDataLoss is false): %s", start, end - 1, queue, reason)
