"""Pull queue ranges from brokers and turn them into Arrow batches: what one Spark task does.

Pulls go on while Spark takes batches, as far as the memory set aside for them lets them. Every message of a range is accounted for: what
a broker no longer has is data loss and is reported as such, never skipped in silence.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from sprocketmq.client.consume.pull import ReadFrom
from sprocketmq.client.consume.pull_requests import PullResult, PullStatus, pull_subscription
from sprocketmq.errors import FatalError, RemoteProtocolError, RetriableError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.source.access import Filter, TopicGone
from sprocketmq.spark.source.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS, decode_rows
from sprocketmq.spark.source.planning import QueueRange
from sprocketmq.spark.source.pulled_rows import PulledRows

log = logging.getLogger(__name__)

# Between attempts while a broker is away; the whole wait is bounded by the read's time limit.
RETRY_PAUSE_S = 0.2
# How long a broker may hold a request for messages that should be there and are not yet.
HOLD_MS = 1000
DEFAULT_PREFETCH = 2

# How many pulls go at once where a broker gives few messages at a time; answers of more bytes than this are worth a turn of their own.
AT_ONCE = 16
SMALL_ANSWER_BYTES = 512 << 10
# After pulls at once were in vain one follows the other for 2, 4, 8 ... answers; so many good ones make up for everything.
MOST_DOUBLINGS = 8
FORGIVEN_AFTER = 64

InnerBatch = Literal["unwrap", "raw"]


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


class Answer(Protocol):
    """The answer to a pull: a Future, or what stands for one in the thread that answers come in."""

    def done(self) -> bool:
        """Tell whether there is a result or an error."""
        ...

    def result(self) -> PullResult:
        """Return the result or raise the error."""
        ...

    def add_done_callback(self, callback: "Callable[[Any], object]", /) -> None:
        """Have ``callback`` called with this answer when it is done, at once when it is."""
        ...


class Pull(Protocol):
    """What asks a broker for messages: ``ClusterAccess.pull``.

    Called in the thread in which answers come, by a callback of the answer before, it may return an answer that only this thread asks and
    whose ``result`` does not wait: a result is taken there once it is done. Called in any other thread it returns one like a Future, whose
    ``result`` waits.
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
    ) -> Answer: ...


class RangeReader:
    """Reads ranges one after the other.

    ``pull_messages`` and ``pull_bytes`` are what one pull asks for (the size of a batch unless given; brokers give less when they like).
    Pulls run ahead of Spark by ``prefetch`` times ``pull_bytes``; with 0 each waits until its messages are wanted. With that, a batch and
    its encoded form, memory is bounded whatever the range.

    ``filter`` is the broker's to apply; tags are compared once more here, as brokers know hashes only. ``inner_batch`` ``"raw"`` makes one
    row of each inner batch, which belongs to the range that has its first offset. With ``read_from`` other than master what a replica does
    not have is asked of the master, whose word alone counts for loss.

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
        ahead = _Ahead(
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
        """Yield the messages from ``start`` to ``end`` that were asked for."""
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
        """Check that ``rows`` are all messages from ``start`` to ``end`` in order; with a filter, that they are in order."""
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
                self._miss(part, expected, min(offset, end))
            expected = stop
        if expected < end:
            self._miss(part, expected, end)

    def _miss(self, part: QueueRange, start: int, end: int) -> None:
        if self._filter is None:
            self._lose(part.queue, start, end, "the broker left them out")

    def _start(self, part: QueueRange, offset: int, messages: int) -> Answer:
        return self._pull(part.queue, offset, messages, self._pull_bytes, 0, filter=self._filter, read_from=self._read_from)

    def _start_again(self, part: QueueRange, offset: int, hold_ms: int) -> Answer:
        messages = min(part.end - offset, self._pull_messages)
        return self._pull(part.queue, offset, messages, self._pull_bytes, hold_ms, filter=self._filter, read_from="master")

    def _settle(self, part: QueueRange, offset: int, under_way: Answer) -> tuple[bytes, int]:
        """Find out about a pull that brought nothing; return messages from ``offset`` on and the offset after them.

        There are none after data loss, and where none matches the filter.
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
                # A topic whose only broker is starting again has no route for a moment.
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
                # The range was planned from an offset this broker has announced: what is missing may still be on its way to a replica.
                hold_ms = HOLD_MS
            if asks_master:
                self._pause(RETRY_PAUSE_S)
            asks_master = True
            under_way = self._start_again(part, offset, hold_ms)

    def _lose(self, queue: MessageQueue, start: int, end: int, reason: str) -> None:
        if self._fail_on_data_loss:
            raise DataLoss(queue, start, end, reason)
        log.warning("going on without messages %d to %d of %s (failOnDataLoss is false): %s", start, end - 1, queue, reason)


class _Portion(NamedTuple):
    """What is decoded together: the records from ``start`` to ``stop``; or the answer that has none and that somebody must look into."""

    part: QueueRange
    start: int
    stop: int
    bodies: list[bytes]
    failed: Answer | None = None


class _Asked:
    """A pull that was begun: at ``offset`` of the range with number ``index``, for so many ``messages``."""

    __slots__ = ("answer", "index", "messages", "offset")

    def __init__(self, index: int, offset: int, messages: int) -> None:
        self.index = index
        self.offset = offset
        self.messages = messages
        self.answer: Answer | None = None  # when it came before that of an earlier pull


class _Ahead:
    """Pulls ranges one after the other, each pull begun when the one before is answered, while there is room for its answer.

    Answers come in the client's thread, ``take`` is called in the task's. Small answers of one range are handed over together, as soon as
    they have ``portion_rows`` messages or ``portion_bytes``. What is no plain answer is handed over as it is, and pulls go on from where
    ``go_on`` says. With ``skips`` it is a plain answer that nothing matched, and messages that were passed over do not count.

    A broker that gives few messages however many it is asked for (32 by default in the reference) is asked for several times as many
    at once, in pulls that begin where the same number each would end. An answer that ends elsewhere makes the others useless: they are
    dropped, and for some time, longer each time, one pull follows the other again.
    """

    def __init__(
        self,
        start: Callable[[QueueRange, int, int], Answer],
        ranges: Iterable[QueueRange],
        *,
        portion_rows: int,
        portion_bytes: int,
        messages: int,
        pull_bytes: int,
        prefetch: int,
        skips: bool,
    ) -> None:
        self._start = start
        self._portion_rows = portion_rows
        self._portion_bytes = portion_bytes
        self._messages = messages
        self._room = (prefetch - 1) * pull_bytes  # what may wait to be taken while one more is pulled
        self._skips = skips
        self._ranges = [part for part in ranges if len(part) > 0]
        self._lock = threading.Lock()
        self._portions: SimpleQueue[_Portion] = SimpleQueue()
        self._bodies: list[bytes] = []  # of the next portion
        self._bodies_from = 0
        self._bodies_size = 0
        self._waiting = 0  # bytes that are not taken yet
        self._wanted = False
        self._crowded = False
        self._halted = False
        self._flight: deque[_Asked] = deque()
        self._stride = 0  # messages that each of several pulls at once is expected to bring; 0: one pull at a time
        self._stride_bytes = 0
        self._singly = 0  # how many answers to wait for before several pulls at once are tried again
        self._misses = self._hits = 0
        # Where the next pull begins.
        self._index = 0
        self._offset = self._ranges[0].start if self._ranges else 0

    def take(self) -> _Portion | None:
        """Return the next portion, waiting for it; None after the last."""
        try:
            portion = self._portions.get_nowait()
        except Empty:
            with self._lock:
                self._wanted = self._portions.empty()
                if self._wanted and not self._flight and self._index == len(self._ranges):
                    return None
            self._run()
            portion = self._portions.get()
        with self._lock:
            self._waiting -= sum(map(len, portion.bodies))
            crowded = self._crowded
        if crowded:
            self._run()
        return portion

    def go_on(self, offset: int) -> None:
        """Pull from ``offset`` of the range whose answer was handed over."""
        with self._lock:
            self._index, self._offset = self._after(self._index, offset)
            self._halted = False
        self._run()

    def close(self) -> None:
        """Pull no more; answers that still come are dropped."""
        with self._lock:
            self._halted = True
            self._drop_flight()

    def _run(self) -> None:
        """Begin pulls until the next has to wait for an answer, or for room."""
        with self._lock:
            asked = self._next()
        if asked is not None:
            self._begin(asked)

    def _begin(self, asked: _Asked) -> None:
        """Begin a pull, and those after it until one has to wait."""
        following: _Asked | None = asked
        while following is not None:
            asked = following
            try:
                answer = self._start(self._ranges[asked.index], asked.offset, asked.messages)
            except BaseException as e:  # whoever takes it raises it
                failed: Future[PullResult] = Future()
                failed.set_exception(e)
                answer = failed
            if answer.done():
                following = self._collect(asked, answer)
            else:
                answer.add_done_callback(partial(self._arrived, asked))
                if len(self._flight) == AT_ONCE:
                    return  # who takes an answer goes on
                with self._lock:
                    following = self._next()

    def _next(self) -> _Asked | None:
        """Return the next pull, which counts as begun; None when it has to wait."""
        pulls = len(self._flight)
        stride = self._stride
        if pulls and (not stride or pulls >= AT_ONCE):
            return None
        index, offset = self._index, self._offset
        if self._halted or index == len(self._ranges):
            return None
        # Whoever waits for a portion gets it whole, however little room there is.
        self._crowded = self._waiting + pulls * self._stride_bytes > self._room and not self._wanted
        if self._crowded:
            return None
        end = self._ranges[index].end
        asked = _Asked(index, offset, min(end - offset, stride or self._messages))
        self._flight.append(asked)
        if stride:
            self._index, self._offset = self._after(index, offset + stride)
        return asked

    def _arrived(self, asked: _Asked, answer: Answer) -> None:
        following = self._collect(asked, answer)
        if following is not None:
            self._begin(following)

    def _collect(self, asked: _Asked, answer: Answer) -> _Asked | None:
        """Note an answer, take those that are there in the order of their offsets, and return the pull to begin now."""
        with self._lock:
            flight = self._flight
            if not flight or asked is not flight[0]:
                if asked not in flight:
                    return None
                asked.answer = answer
                return self._next()
            flight.popleft()
            self._answered(asked, answer)
            while flight and (early := flight[0].answer) is not None:
                # An answer may keep its callback, and so what was asked: nothing that was asked may keep its answer, and the messages.
                flight[0].answer = None
                self._answered(flight.popleft(), early)
            return self._next()

    def _answered(self, asked: _Asked, answer: Answer) -> None:
        offset = asked.offset
        part = self._ranges[asked.index]
        try:
            result: PullResult | None = answer.result()
        except BaseException:  # the task looks into it
            result = None
        body = result.body if result is not None else b""
        skipped = result is not None and self._skips and result.status is PullStatus.NO_MATCH
        if result is None or result.next_offset <= offset or not (body or skipped):
            self._hand_over(part, offset)
            self._halted = True
            self._drop_flight()
            self._index, self._offset = asked.index, offset
            self._put(_Portion(part, offset, offset, [], answer))
            return
        stop = min(result.next_offset, part.end)
        size = len(body)
        if size:
            if not self._bodies:
                self._bodies_from = offset
            self._bodies.append(body)
            self._bodies_size += size
            self._waiting += size
        enough = self._bodies_size >= self._portion_bytes or (stop - self._bodies_from >= self._portion_rows and not self._skips)
        if enough or stop == part.end:
            self._hand_over(part, stop)
        self._learn(asked, stop, size)

    def _drop_flight(self) -> None:
        for asked in self._flight:
            asked.answer = None
        self._flight.clear()

    def _hand_over(self, part: QueueRange, stop: int) -> None:
        bodies, self._bodies, self._bodies_size = self._bodies, [], 0
        if bodies or stop == part.end:  # an empty portion tells who waits that a range is over
            self._put(_Portion(part, self._bodies_from, stop, bodies))

    def _put(self, portion: _Portion) -> None:
        self._wanted = False
        self._portions.put(portion)

    def _learn(self, asked: _Asked, stop: int, size: int) -> None:
        """Settle where the next pull begins, and whether several go at once, after an answer of ``size`` bytes up to ``stop``."""
        follows = self._after(asked.index, stop)
        if self._stride:
            following = self._flight[0] if self._flight else None
            if ((following.index, following.offset) if following else (self._index, self._offset)) == follows:
                self._stride_bytes = size
                self._hits += 1
                if self._hits == FORGIVEN_AFTER:
                    self._misses = 0
                return
            self._drop_flight()
            self._misses += 1
            self._singly = 1 << min(self._misses, MOST_DOUBLINGS)
            self._stride = 0
        elif self._singly:
            self._singly -= 1
        elif not self._skips and size <= SMALL_ANSWER_BYTES and stop - asked.offset < asked.messages:
            self._stride, self._stride_bytes, self._hits = stop - asked.offset, size, 0
        self._index, self._offset = follows

    def _after(self, index: int, offset: int) -> tuple[int, int]:
        """Return where to go on after ``offset`` of a range, which may be its end."""
        if offset < self._ranges[index].end:
            return index, offset
        index += 1
        return index, self._ranges[index].start if index < len(self._ranges) else 0
