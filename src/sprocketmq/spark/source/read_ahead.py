"""Pull ahead of the task: while Spark takes batches, the next pulls are under way, within a memory limit."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from sprocketmq.client.consume.pull_requests import PullResult, PullStatus
from sprocketmq.spark.source.planning import QueueRange

# Pulls sent at once to brokers that return few messages at a time. Larger answers are worth a round trip of their own.
AT_ONCE = 16
SMALL_ANSWER_BYTES = 512 << 10
# After a miss, pulls go one at a time for 2, 4, 8 ... answers; after 64 hits the back-off is reset.
MAX_DOUBLINGS = 8
RESET_AFTER = 64
# After so many hits one pull asks for all it may: a broker returns less while messages are sent to it than when they are only read.
RELEARN_AFTER = 256


class PullFuture(Protocol):
    """The answer to a pull: a Future, or in the loop thread a lighter object with the same three methods."""

    def done(self) -> bool:
        """Return whether a result or an error is available."""
        ...

    def result(self) -> PullResult:
        """Return the result, or raise the error."""
        ...

    def add_done_callback(self, callback: "Callable[[Any], object]", /) -> None:
        """Call ``callback`` with this answer when it is done, at once when it is already."""
        ...


class Portion(NamedTuple):
    """Records of queue offsets ``[start, stop)`` that are decoded together, or in ``failed`` an answer without records to be settled."""

    part: QueueRange
    start: int
    stop: int
    bodies: list[bytes]
    failed: PullFuture | None = None


class _SentPull:
    """A pull that was sent: from queue ``offset`` of the range with number ``index``, for up to ``messages`` messages."""

    __slots__ = ("answer", "index", "messages", "offset")

    def __init__(self, index: int, offset: int, messages: int) -> None:
        self.index = index
        self.offset = offset
        self.messages = messages
        self.answer: PullFuture | None = None  # set when it arrives before the answer of an earlier pull


class PullAhead:
    """Pulls ranges one after the other. A pull is sent when the one before is answered and there is memory for its answer.

    Answers arrive in the client's thread, ``take`` is called in the task's. Small answers of one range are handed over together, at
    ``portion_rows`` messages or ``portion_bytes``. An answer without messages is handed over alone; the task settles it and says in
    ``go_on`` where to pull next. With ``skips`` (a filter) an answer without matching messages is normal and is not handed over.

    Some brokers return few messages however many are asked for (32 by default in the reference). They are sent several pulls at once, each
    beginning where the previous one should end if it brings as many messages as the last answer. An answer that ends elsewhere makes the
    later pulls useless: they are dropped, and pulls go one at a time for a while, which doubles with each miss. From time to time a single
    pull finds out whether the broker returns more by now.
    """

    def __init__(
        self,
        start: Callable[[QueueRange, int, int], PullFuture],
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
        self._room = (prefetch - 1) * pull_bytes  # bytes that may wait to be taken while one more answer is under way
        self._skips = skips
        self._ranges = [part for part in ranges if len(part) > 0]
        self._lock = threading.Lock()
        self._portions: SimpleQueue[Portion] = SimpleQueue()
        self._bodies: list[bytes] = []  # of the portion being gathered
        self._bodies_from = 0
        self._bodies_size = 0
        self._waiting = 0  # bytes not yet taken by the task
        self._wanted = False
        self._crowded = False
        self._halted = False
        self._flight: deque[_SentPull] = deque()
        self._stride = 0  # expected messages of each of several pulls at once; 0: one pull at a time
        self._stride_bytes = 0
        self._singly = 0  # answers to wait for before several pulls at once are tried again
        self._misses = self._hits = 0
        self._relearns = False  # the next pull is sent alone, when all that are under way are answered
        # Where the next pull begins.
        self._index = 0
        self._offset = self._ranges[0].start if self._ranges else 0

    def take(self) -> Portion | None:
        """Wait for the next portion and return it; None after the last."""
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
        """Resume pulling from queue ``offset`` of the range whose failed answer was handed over."""
        with self._lock:
            self._index, self._offset = self._after(self._index, offset)
            self._halted = False
        self._run()

    def close(self) -> None:
        """Stop pulling; answers that still arrive are dropped."""
        with self._lock:
            self._halted = True
            self._drop_flight()

    def _run(self) -> None:
        """Send pulls until the next one has to wait for an answer or for memory."""
        with self._lock:
            asked = self._next()
        if asked is not None:
            self._begin(asked)

    def _begin(self, asked: _SentPull) -> None:
        """Send a pull, and those after it until one has to wait."""
        following: _SentPull | None = asked
        while following is not None:
            asked = following
            try:
                answer = self._start(self._ranges[asked.index], asked.offset, asked.messages)
            except BaseException as e:  # noqa: BLE001 - raised in the task, which takes the answer
                failed: Future[PullResult] = Future()
                failed.set_exception(e)
                answer = failed
            if answer.done():
                following = self._collect(asked, answer)
            else:
                answer.add_done_callback(partial(self._arrived, asked))
                if len(self._flight) == AT_ONCE:
                    return  # the next answer sends more
                with self._lock:
                    following = self._next()

    def _next(self) -> _SentPull | None:
        """Return the next pull, which counts as sent, or None when it has to wait."""
        pulls = len(self._flight)
        stride = self._stride
        if pulls and (not stride or pulls >= AT_ONCE or self._relearns):
            return None
        index, offset = self._index, self._offset
        if self._halted or index == len(self._ranges):
            return None
        # A waiting task gets its portion completed, however little memory is left.
        self._crowded = self._waiting + pulls * self._stride_bytes > self._room and not self._wanted
        if self._crowded:
            return None
        end = self._ranges[index].end
        asked = _SentPull(index, offset, min(end - offset, stride or self._messages))
        self._flight.append(asked)
        if stride:
            self._index, self._offset = self._after(index, offset + stride)
        return asked

    def _arrived(self, asked: _SentPull, answer: PullFuture) -> None:
        following = self._collect(asked, answer)
        if following is not None:
            self._begin(following)

    def _collect(self, asked: _SentPull, answer: PullFuture) -> _SentPull | None:
        """Note an answer, process those that are due in offset order, and return the pull to send now."""
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
                # An answer may keep its callback alive, and so this object: drop its reference to the answer and its messages.
                flight[0].answer = None
                self._answered(flight.popleft(), early)
            return self._next()

    def _answered(self, asked: _SentPull, answer: PullFuture) -> None:
        offset = asked.offset
        part = self._ranges[asked.index]
        try:
            result: PullResult | None = answer.result()
        except BaseException:  # noqa: BLE001 - settled by the task
            result = None
        body = result.body if result is not None else b""
        skipped = result is not None and self._skips and result.status is PullStatus.NO_MATCH
        if result is None or result.next_offset <= offset or not (body or skipped):
            self._hand_over(part, offset)
            self._halted = True
            self._drop_flight()
            self._index, self._offset = asked.index, offset
            self._put(Portion(part, offset, offset, [], answer))
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
        if bodies or stop == part.end:  # an empty portion wakes a waiting task at the end of a range
            self._put(Portion(part, self._bodies_from, stop, bodies))

    def _put(self, portion: Portion) -> None:
        self._wanted = False
        self._portions.put(portion)

    def _learn(self, asked: _SentPull, stop: int, size: int) -> None:
        """Decide where the next pull begins and whether to send several at once, after an answer of ``size`` bytes up to ``stop``."""
        follows = self._after(asked.index, stop)
        if self._stride:
            following = self._flight[0] if self._flight else None
            if ((following.index, following.offset) if following else (self._index, self._offset)) == follows:
                self._stride_bytes = size
                self._hits += 1
                if self._hits == RESET_AFTER:
                    self._misses = 0
                self._relearns = self._relearns or self._hits == RELEARN_AFTER
                if self._relearns and not self._flight:
                    self._relearns = False
                    self._stride = 0
                return
            self._drop_flight()
            self._relearns = False
            self._misses += 1
            self._singly = 1 << min(self._misses, MAX_DOUBLINGS)
            self._stride = 0
        elif self._singly:
            self._singly -= 1
        elif not self._skips and size <= SMALL_ANSWER_BYTES and stop - asked.offset < asked.messages:
            self._stride, self._stride_bytes, self._hits = stop - asked.offset, size, 0
        self._index, self._offset = follows

    def _after(self, index: int, offset: int) -> tuple[int, int]:
        """Return the position after ``offset`` of a range: in the next range at its end."""
        if offset < self._ranges[index].end:
            return index, offset
        index += 1
        return index, self._ranges[index].start if index < len(self._ranges) else 0
