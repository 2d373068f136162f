"""``sprocketmq consume``: the messages of a topic to standard output or a file."""

import asyncio
import base64
import contextlib
import math
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from sprocketmq import MessageQueue, PullConsumer, PushConsumer, ReceivedMessage
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, EXIT_SIGNAL, fail
from sprocketmq.cli.output import plural
from sprocketmq.cli.progress import MessageProgress
from sprocketmq.cli.stopping import on_stop_signals
from sprocketmq.cli.target import Target
from sprocketmq.client.outages import broker_label
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import ConfigError, RetriableError, SprocketError, TopicNotFound
from sprocketmq.net.loops import new_event_loop
from sprocketmq.protocol.bodies import build_subscription
from sprocketmq.protocol.names import check_group, check_topic
from sprocketmq.protocol.properties import RESERVED

# Later times, in milliseconds, do not fit the requests to brokers.
MAX_TIME_S = 2.0**43
VIEWER_GROUP = "sprocketmq-cli"
PULL_MESSAGES = 1024
PULL_BYTES = 1 << 20
WAIT_MS = 15_000
PULL_PAUSE_S = 1.0
REFUSALS = 5
# How often new queues of a topic are looked up.
ROUTE_REFRESH_S = 30.0

Sink = Callable[[Sequence[ReceivedMessage]], None]


@dataclass(frozen=True)
class ConsumeOptions:
    """What to read and when to stop. Raises ConfigError for invalid names, expressions and times."""

    topic: str
    start: str
    count: int | None
    timeout_s: float | None
    expression: str
    group: str | None
    output: Path | None
    raw: bool
    as_json: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        if self.trace and self.group is None:
            raise ConfigError("--trace traces what a consumer group gets: add --group GROUP")
        if self.raw and self.as_json:
            raise ConfigError("--raw and --json exclude each other: bodies are written unchanged, or as JSON")
        check_topic(self.topic)
        if self.group is not None:
            check_group(self.group)
        build_subscription(self.topic, self.expression, 0)
        start_of(self.start)


def start_of(text: str, option: str = "--from") -> Literal["first", "last"] | float:
    """Return ``"first"``, ``"last"`` or the epoch seconds of a start option. Raises ConfigError."""
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    return seconds_of(text, option, "first, last, ")


def seconds_of(text: str, option: str, also: str = "") -> float:
    """Return the epoch seconds of a time option: a number, or an ISO 8601 time (local unless it names a zone).

    Raises ConfigError, which names the values in ``also`` as allowed too.
    """
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError):
            seconds = math.nan
    if not 0 <= seconds < MAX_TIME_S:  # also true for NaN
        raise ConfigError(f"{option} takes {also}epoch seconds or a time such as 2024-05-01T12:00:00, not {text!r}")
    return seconds


def as_json_line(message: ReceivedMessage) -> bytes:
    """Return a message as one line of JSON; a body that is not UTF-8 text goes into ``body_base64``."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tag": message.tag,
        "keys": message.keys,
        "properties": {name: value for name, value in message.properties.items() if name not in RESERVED},
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "reconsume_times": message.reconsume_times,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    return msgspec.json.encode(fields) + b"\n"


def _as_line(message: ReceivedMessage) -> bytes:
    return message.body + b"\n"


def _as_body(message: ReceivedMessage) -> bytes:
    return message.body


class _Writer:
    """Writes and counts messages; ``done`` is set when there are enough."""

    def __init__(self, out: BinaryIO, options: ConsumeOptions, progress: MessageProgress, *, as_json: bool) -> None:
        self._out = out
        self._form = as_json_line if as_json else _as_body if options.raw else _as_line
        self._limit = options.count
        self._progress = progress
        self.written = 0
        self.retries = 0
        self.done = asyncio.Event()
        self.stopped_by: signal.Signals | None = None
        self.heard = asyncio.get_running_loop().time()

    @property
    def full(self) -> bool:
        """Whether ``count`` messages were written."""
        return self.written == self._limit

    def stop(self, number: signal.Signals) -> None:
        """Stop reading because of a signal."""
        self.stopped_by = number
        self.done.set()

    def write(self, messages: Sequence[ReceivedMessage]) -> None:
        """Write as many of ``messages`` as are still wanted."""
        if self._limit is not None:
            messages = messages[: self._limit - self.written]
        if not messages:
            return
        self._out.write(b"".join(map(self._form, messages)))
        self._out.flush()
        self.written += len(messages)
        self.retries += sum(1 for message in messages if message.reconsume_times)
        self.heard = asyncio.get_running_loop().time()
        self._progress.sent(len(messages))
        if self.full:
            self.done.set()


def run(target: Target, options: ConsumeOptions, *, as_json: bool) -> int:
    """Read until ``count``, ``timeout_s`` or a signal.

    Returns 1 when ``count`` was given and not reached, 128 plus the number of a signal that ended it.
    """
    with contextlib.ExitStack() as stack:
        out = sys.stdout.buffer if options.output is None else stack.enter_context(options.output.open("wb"))
        # The progress bar and the messages would overwrite each other on one terminal.
        quiet = options.output is None and sys.stdout.isatty()
        progress = MessageProgress(None, "reading")
        if not quiet:
            stack.enter_context(progress)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            writer = runner.run(_consume(target, options, out, progress, as_json=as_json))
    if options.output is not None:
        print(f"wrote {plural(writer.written, 'message')} to {options.output}")
    if writer.retries:
        fail(
            f"{writer.retries:,} of {plural(writer.written, 'message')} were delivered again after a failure;"
            " see reconsume_times in the output of --json"
        )
    if writer.stopped_by is not None and not writer.full:
        fail(f"stopped by {writer.stopped_by.name}")
        return EXIT_SIGNAL + writer.stopped_by
    if options.count is not None and writer.written < options.count:
        fail(f"only {plural(writer.written, 'message')} of {options.count:,} arrived")
        return EXIT_FAILURE
    return EXIT_OK


async def _consume(target: Target, options: ConsumeOptions, out: BinaryIO, progress: MessageProgress, *, as_json: bool) -> _Writer:
    writer = _Writer(out, options, progress, as_json=as_json)
    reading = asyncio.ensure_future(_as_member(target, options, writer) if options.group else _as_viewer(target, options, writer))
    ending = asyncio.ensure_future(_ended(writer, options.timeout_s))
    with on_stop_signals(writer.stop):
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            if writer.full and options.group:
                await asyncio.wait([reading])  # it commits and leaves the group
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)
    if not reading.cancelled():
        reading.result()
    return writer


async def _ended(writer: _Writer, timeout_s: float | None) -> None:
    """Return when enough messages were written, or none for ``timeout_s``."""
    loop = asyncio.get_running_loop()
    while True:
        left = None if timeout_s is None else writer.heard + timeout_s - loop.time()
        if left is not None and left <= 0:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(writer.done.wait(), left)
            return


async def _as_member(target: Target, options: ConsumeOptions, writer: _Writer) -> None:
    """Read as a member of a consumer group; written messages are committed."""
    # A batch is consumed as a whole: with a count, batches have one message, so that no more are consumed.
    batch_max = 256 if options.count is None else 1
    async with PushConsumer(
        options.group or VIEWER_GROUP,
        {options.topic: options.expression},
        **target.options,
        consume_from=start_of(options.start),
        batch_max=batch_max,
        trace=options.trace,
    ) as consumer:
        async for batch in consumer.batches():
            writer.write(batch)
            if writer.full:
                batch.ack()
                return


async def _as_viewer(target: Target, options: ConsumeOptions, writer: _Writer) -> None:
    """Read every queue from its start offset; no committed offset changes."""
    async with PullConsumer(VIEWER_GROUP, **target.options) as consumer, _first_error(), asyncio.TaskGroup() as tasks:
        start = start_of(options.start)
        known: set[MessageQueue] = set()
        answered: set[str] = set()
        queues = await consumer.queues(options.topic)
        while True:
            for queue in set(queues) - known:
                find = partial(_offset_of, consumer, queue, start)
                tasks.create_task(_follow(consumer, queue, find, options.expression, writer, answered))
                known.add(queue)
            await asyncio.sleep(ROUTE_REFRESH_S)
            if start == "last":  # all messages of a queue that appears later are new
                start = "first"
            # The outage is logged elsewhere; the lookup is repeated next time. While its only broker is away a topic has no route.
            with contextlib.suppress(RetriableError, TopicNotFound):
                queues = await consumer.queues(options.topic)


@contextlib.asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """Raise the first error itself instead of the group that a TaskGroup makes of it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _offset_of(consumer: PullConsumer, queue: MessageQueue, start: Literal["first", "last"] | float) -> int:
    if start == "first":
        return await consumer.min_offset(queue)
    if start == "last":
        return await consumer.max_offset(queue)
    return await consumer.offset_at(queue, int(start * 1000))


async def _follow(
    consumer: PullConsumer,
    queue: MessageQueue,
    find_offset: Callable[[], Awaitable[int]],
    expression: str,
    writer: _Writer,
    answered: set[str],
) -> None:
    """Write the messages of a queue from an offset on; a broker that is away is tried again.

    ``answered`` are the names of brokers that have answered a pull of any queue: one that has not is not waited for at the start.
    """
    who, broker, name = f"consume {queue.topic}", broker_label(queue), queue.broker_name
    lost = pulled = False
    refusals = 0
    offset: int | None = None
    while True:
        asked_at = SYSTEM_CLOCK.monotonic()
        try:
            if offset is None:
                offset = await find_offset()
            # The first pull does not wait for messages: whether the broker refuses to be read shows at once.
            wait_ms = WAIT_MS if pulled else 0
            result = await consumer.pull(
                queue, offset, max_messages=PULL_MESSAGES, max_bytes=PULL_BYTES, expression=expression, wait_ms=wait_ms
            )
        except SprocketError as e:
            if name not in answered and (offset is None or not isinstance(e, RetriableError)):
                raise
            if not isinstance(e, RetriableError):
                # A broker that is stopping may refuse requests; repeated refusals are final.
                refusals += 1
                if refusals >= REFUSALS:
                    raise
            lost = True
            consumer.outages.failed(broker, asked_at, who, e)
            await asyncio.sleep(PULL_PAUSE_S)
            continue
        pulled, refusals = True, 0
        answered.add(name)
        if lost:
            lost = False
            consumer.outages.answered(broker, who)
        writer.write(result.messages)
        offset = result.next_offset
