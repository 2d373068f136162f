"""Read topics as Arrow batches: from a start to the present, or on and on.

The client runs on an event loop in a thread of the read, so that the next pull is under way while a batch is used. At most one answer of
each queue is held.
"""

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeVar

import pyarrow as pa

from sprocketmq.arrow.batches import Batches, Ending, check_columns
from sprocketmq.arrow.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS, decode_rows
from sprocketmq.arrow.offsets import first_since
from sprocketmq.arrow.pulled_rows import PulledRows
from sprocketmq.arrow.schema import DEFAULT_COLUMNS, arrow_schema
from sprocketmq.client import AdminClient, PullConsumer
from sprocketmq.client.arguments import LARGEST_OFFSET, check_number
from sprocketmq.client.consume.pull_requests import PullResult, PullStatus, pull_subscription
from sprocketmq.client.credentials import CredentialsArgument
from sprocketmq.errors import ClientClosed, ConfigError, FatalError, RemoteProtocolError, RetriableError, TopicNotFound
from sprocketmq.net.loops import LoopThread
from sprocketmq.net.tasks import Background
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_topic

log = logging.getLogger(__name__)

DEFAULT_GROUP = "sprocketmq-arrow"
# How long a broker that does not answer is asked again before its error is raised, and the pause between two attempts.
PATIENCE_S = 30.0
RETRY_PAUSE_S = 0.2
# How long a broker may hold a pull of ``follow`` for the next message.
HOLD_MS = 5_000
# How often ``follow`` looks for new queues of the topic.
QUEUES_EVERY_S = 10.0

# Behind every offset.
NEVER = 2**63 - 1

Start = Literal["first", "last"] | float | datetime | Mapping[MessageQueue, int]

_R = TypeVar("_R")


class MessagesMissing(FatalError):
    """Messages that should be read are gone from the broker: expired, or their topic was created anew."""

    def __init__(self, queue: MessageQueue, start: int, end: int, reason: str) -> None:
        super().__init__(
            f"messages {start} to {end - 1} of queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r} cannot be"
            f" read: {reason}; missing='skip' reads on behind them"
        )
        self.queue = queue
        self.start = start
        self.end = end
        self.reason = reason


class TopicGone(TopicNotFound):
    """The topic was deleted while it was being read."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.args: tuple[object, ...] = (
            f"topic {topic!r} was deleted while it was being read: read it again when it has been created anew",
        )


def read_topic(
    topic: str,
    *,
    namesrv: str | Sequence[str] | None = None,
    start: Start = "first",
    end: Start = "last",
    tags: str = "*",
    columns: Sequence[str] = DEFAULT_COLUMNS,
    missing: Literal["fail", "skip"] = "fail",
    batch_rows: int = DEFAULT_BATCH_ROWS,
    group: str = DEFAULT_GROUP,
    credentials: CredentialsArgument | None = None,
    tls: bool | TlsConfig | None = None,
    secure: str | os.PathLike[str] | None = None,
) -> Batches:
    """Read the messages that a topic has now, queue after queue, each once.

    ``start`` and ``end`` are ``"first"`` or ``"last"`` message, a time (a datetime, or seconds since the epoch), or an offset for each
    queue to read; ``end`` itself is not read. ``tags`` is ``"*"`` or ``"a || b"``. ``columns`` are those of Spark's format ``rocketmq``
    (``sprocketmq.arrow.COLUMNS``), with the same types. A batch has at most ``batch_rows`` rows, all of one queue. Nothing is committed.

    Connections are made when the first batch is asked for; then TopicNotFound, NameserverUnavailable and all that a pull raises may be
    raised. A broker that does not answer is asked again for 30 seconds. Messages that are gone raise MessagesMissing, unless ``missing`` is
    ``"skip"``. Raises ConfigError and InvalidName for arguments that cannot be. ``namesrv``, ``credentials``, ``tls`` and ``secure`` as for
    PullConsumer.

    Example::

        from sprocketmq import arrow

        table = arrow.read_topic("orders", namesrv="127.0.0.1:9876", columns=["queueId", "queueOffset", "body"]).to_table()
        print(table.num_rows, table.schema.names)
    """
    plan = _plan(topic, columns, tags, missing, batch_rows, group)
    _check_point("start", start, topic)
    _check_point("end", end, topic)
    connection = {"namesrv": namesrv, "credentials": credentials, "tls": tls, "secure": secure}
    return Batches(arrow_schema(plan.columns), _read(plan, start, end, connection))


def follow(
    topic: str,
    *,
    namesrv: str | Sequence[str] | None = None,
    start: Start = "last",
    tags: str = "*",
    columns: Sequence[str] = DEFAULT_COLUMNS,
    missing: Literal["fail", "skip"] = "fail",
    batch_rows: int = DEFAULT_BATCH_ROWS,
    group: str = DEFAULT_GROUP,
    credentials: CredentialsArgument | None = None,
    tls: bool | TlsConfig | None = None,
    secure: str | os.PathLike[str] | None = None,
) -> Batches:
    """Read the messages of a topic as they are stored, from ``start`` on, until the caller stops.

    Each batch has messages of one queue, in order; queues are read side by side. Queues that the topic gets later are read from their
    first message. Raises TopicGone when the topic is deleted; else as ``read_topic``, which also explains the arguments.

    Example::

        from sprocketmq import arrow

        with arrow.follow("orders", namesrv="127.0.0.1:9876", start="first") as batches:
            for batch in batches:
                print(batch.num_rows)
                break  # it would wait for more
    """
    plan = _plan(topic, columns, tags, missing, batch_rows, group)
    _check_point("start", start, topic)
    connection = {"namesrv": namesrv, "credentials": credentials, "tls": tls, "secure": secure}
    ending = Ending()
    return Batches(arrow_schema(plan.columns), _follow(plan, start, connection, ending), ending)


class _Plan(NamedTuple):
    """What to read of a topic, and how. ``tags`` is empty for all messages."""

    topic: str
    columns: tuple[str, ...]
    tags: frozenset[str]
    expression: str
    skip_missing: bool
    batch_rows: int
    group: str


def _plan(topic: str, columns: Sequence[str], expression: str, missing: str, batch_rows: int, group: str) -> _Plan:
    """Return the checked arguments. Raises ConfigError and InvalidName."""
    if missing not in ("fail", "skip"):
        raise ConfigError(f"missing must be 'fail' or 'skip', not {missing!r}")
    check_number("batch_rows", batch_rows, least=1, whole=True)
    tags = frozenset(pull_subscription(check_topic(topic), expression, "TAG").tags_set)
    return _Plan(topic, check_columns(columns), tags, expression, missing == "skip", batch_rows, check_group(group))


def _check_point(name: str, point: object, topic: str) -> None:
    if isinstance(point, Mapping):
        if not point:
            raise ConfigError(f"{name} names no queue to read: give an offset for each, or 'first' or 'last'")
        for queue, offset in point.items():
            if not isinstance(queue, MessageQueue) or queue.topic != topic:
                raise ConfigError(f"{name} must give offsets for queues of topic {topic!r} (MessageQueue), not for {queue!r}")
            check_number(f"{name} at {queue}", offset, least=0, most=LARGEST_OFFSET, whole=True)
    number = not isinstance(point, bool) and (isinstance(point, int) or (isinstance(point, float) and math.isfinite(point)))
    if not number and not isinstance(point, datetime | Mapping) and point not in ("first", "last"):
        raise ConfigError(f"{name} must be 'first', 'last', a time or offsets, not {point!r}")
    if isinstance(point, datetime) and point.tzinfo is None:
        raise ConfigError(f"{name} must be a time with its zone: {point.isoformat()} may be any of 24 moments")


def _read(plan: _Plan, start: Start, end: Start, connection: Mapping[str, Any]) -> Generator[pa.RecordBatch, None, None]:
    with _Connection(plan, connection) as access:
        for queue, (first, stop) in access.run(partial(access.ranges, start, end)).items():
            yield from _read_queue(plan, access, queue, first, stop)


def _read_queue(plan: _Plan, access: "_Connection", queue: MessageQueue, offset: int, stop: int) -> Generator[pa.RecordBatch, None, None]:
    """Yield messages ``offset`` to ``stop`` of a queue; the next pull is under way while a batch is used."""
    pull = access.submit(partial(access.pull, queue, offset, stop)) if offset < stop else None
    try:
        while pull is not None:
            result = pull.result()
            at, offset = offset, min(result.next_offset, stop)
            if offset <= at:  # the topic was created anew, and its queue ends before this
                offset = stop
            pull = access.submit(partial(access.pull, queue, offset, stop)) if offset < stop else None
            yield from _decoded(plan, result, at, offset)
    finally:
        if pull is not None:
            pull.cancel()


def _follow(plan: _Plan, start: Start, connection: Mapping[str, Any], ending: Ending) -> Generator[pa.RecordBatch, None, None]:
    with _Connection(plan, connection) as access:
        access.run(partial(access.begin_following, start))
        ending.wake = access.stop_waiting
        while not ending.asked and (answer := access.run(access.next_answer)) is not None:
            result, at = answer
            yield from _decoded(plan, result, at, result.next_offset)


def _decoded(plan: _Plan, result: PullResult, start: int, end: int) -> Generator[pa.RecordBatch, None, None]:
    """Yield the messages of an answer from offset ``start`` to ``end``."""
    queue = result.queue
    if result.status is PullStatus.OFFSET_MOVED:
        _missing(plan, queue, start, end, f"the queue now begins at {result.min_offset} and ends at {result.max_offset}")
    if not result.body:
        return
    try:
        rows = PulledRows(result.body)
        rows.trim(start, end)
        if not plan.tags and len(rows) < end - start:
            _missing(plan, queue, start, end, f"the broker left {end - start - len(rows)} of them out")
        if plan.tags:
            rows.keep_tags(plan.tags)
        yield from decode_rows(rows, plan.columns, queue.broker_name, batch_rows=plan.batch_rows)
    except RemoteProtocolError as e:
        where = f"messages {start} to {end - 1} of queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"
        raise RemoteProtocolError(f"{where} cannot be decoded: {e}") from e


def _missing(plan: _Plan, queue: MessageQueue, start: int, end: int, reason: str) -> None:
    if not plan.skip_missing:
        raise MessagesMissing(queue, start, max(end, start + 1), reason)
    log.warning("reading on without messages %d to %d of %s: %s", start, end - 1, queue, reason)


class _Connection:
    """The client of one read, on an event loop in a thread of its own, which end with it."""

    def __init__(self, plan: _Plan, connection: Mapping[str, Any]) -> None:
        self._plan = plan
        self._consumer = PullConsumer(plan.group, **connection)
        self._admin = AdminClient(**connection)
        self._background = Background("Arrow reader")
        self._thread = LoopThread("sprocketmq-arrow")
        # Answers of ``follow`` that nobody has taken yet, with the offset that was asked for; and errors.
        self._answers: deque[tuple[PullResult, int] | BaseException] = deque()
        self._positions: dict[MessageQueue, int] = {}
        self._stopped = False

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self._consumer.start)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        try:
            if self._thread.alive:
                self._thread.run(self._close)
        finally:
            self._thread.stop()

    async def _close(self) -> None:
        await self._background.close()
        await self._consumer.close()
        await self._admin.close()

    def run(self, make: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
        """Run the coroutine that ``make`` returns on the loop, and return its result; an interrupt cancels it."""
        return self._thread.run(make)

    def submit(self, make: Callable[[], Coroutine[Any, Any, _R]]) -> Any:
        """Run the coroutine that ``make`` returns on the loop, and return its future."""
        return self._thread.submit(make)

    # --- offsets ---

    async def ranges(self, start: Start, end: Start) -> dict[MessageQueue, tuple[int, int]]:
        """Return the first offset of each queue, and the one after its last."""
        queues = await self._queues(start, end)
        return {queue: (await self._offset(queue, start, "start"), await self._offset(queue, end, "end")) for queue in queues}

    async def _queues(self, *points: Start) -> list[MessageQueue]:
        """Return the queues of the topic. Raises ConfigError when a point names another."""
        queues = await self._consumer.queues(self._plan.topic)
        for queue in (queue for point in points if isinstance(point, Mapping) for queue in point):
            if queue not in queues:
                raise ConfigError(f"topic {queue.topic!r} has no queue {queue.queue_id} on broker {queue.broker_name!r} now")
        return queues

    async def _offset(self, queue: MessageQueue, point: Start, name: str) -> int:
        if isinstance(point, Mapping):
            # A queue that is not named is not read.
            return int(point.get(queue, 0 if name == "end" else NEVER))
        if point == "first":
            return await self._consumer.min_offset(queue)
        latest = await self._consumer.max_offset(queue)
        if point == "last":
            return latest
        seconds = point.timestamp() if isinstance(point, datetime) else float(point)
        return await first_since(self._consumer, queue, round(seconds * 1000), latest)

    # --- pulls ---

    async def pull(self, queue: MessageQueue, offset: int, stop: int, hold_ms: int = 0) -> PullResult:
        """Pull until there are messages from ``offset`` on, or the offset is out of range, or messages were skipped by the filter.

        A broker that does not answer is asked again for some time. Raises TopicGone, and what a pull raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            pause = RETRY_PAUSE_S
            try:
                result = await self._consumer.pull(
                    queue,
                    offset,
                    max_messages=min(self._plan.batch_rows, stop - offset),
                    max_bytes=DEFAULT_BATCH_BYTES,
                    expression=self._plan.expression,
                    read_from="master",
                    wait_ms=hold_ms,
                )
            except TopicNotFound:
                if await self._is_gone(queue):
                    raise TopicGone(queue.topic) from None
                if loop.time() >= deadline:
                    raise
            except RetriableError:
                if loop.time() >= deadline:
                    raise
            else:
                if result.status is not PullStatus.NO_NEW_MESSAGE and result.next_offset != offset:
                    return result
                if hold_ms:
                    pause = 0.0 if result.status is PullStatus.NO_NEW_MESSAGE else RETRY_PAUSE_S
                    deadline = loop.time() + PATIENCE_S
                elif loop.time() >= deadline:
                    raise RetriableError(
                        f"broker {queue.broker_name} hands out no message {offset} of queue {queue.queue_id} of topic {queue.topic},"
                        f" which goes on to {result.max_offset}: {result.status.value}"
                    )
            await asyncio.sleep(pause)

    async def _is_gone(self, queue: MessageQueue) -> bool:
        """Return whether the queue's broker is registered without the topic. A broker always registers with all its topics."""
        try:
            await self._admin.start()
            try:
                there = await self._admin.queues(queue.topic)
            except TopicNotFound:
                there = []
            return queue not in there and queue.broker_name in (await self._admin.cluster()).broker_addr_table
        except RetriableError:
            return False

    # --- following ---

    async def begin_following(self, start: Start) -> None:
        """Begin to pull every queue from ``start`` on."""
        self._wake = asyncio.Event()
        for queue in await self._queues(start):
            self._positions[queue] = offset = await self._offset(queue, start, "start")
            if offset < NEVER:
                self._pull_on(queue, offset)
        self._background.every(QUEUES_EVERY_S, self._look_for_queues, "new queues")

    def _pull_on(self, queue: MessageQueue, offset: int) -> None:
        self._positions[queue] = offset
        self._background.spawn(self._answer(queue, offset), f"pull of {queue}", awaited=True)

    async def _answer(self, queue: MessageQueue, offset: int) -> None:
        try:
            self._answers.append((await self.pull(queue, offset, NEVER, HOLD_MS), offset))
        except asyncio.CancelledError:
            self._answers.append(ClientClosed(f"the pull of {queue} was cancelled by code that does not own it"))
            raise
        except Exception as e:  # noqa: BLE001 - raised by ``next_answer``
            self._answers.append(e)
        finally:
            self._wake.set()

    def stop_waiting(self) -> None:
        """Make ``next_answer`` return None; for other threads."""

        def stop() -> None:
            self._stopped = True
            self._wake.set()

        self._thread.call_soon(stop)

    async def next_answer(self) -> tuple[PullResult, int] | None:
        """Return the next answer of any queue, with the offset that was asked for, and pull that queue on; None after ``stop_waiting``.

        Raises what a pull raised.
        """
        while not self._answers:
            if self._stopped:
                return None
            self._wake.clear()
            await self._wake.wait()
        answer = self._answers.popleft()
        if isinstance(answer, BaseException):
            raise answer
        self._pull_on(answer[0].queue, answer[0].next_offset)
        return answer

    async def _look_for_queues(self) -> None:
        for queue in await self._consumer.queues(self._plan.topic):
            if queue not in self._positions:
                self._pull_on(queue, await self._consumer.min_offset(queue))
