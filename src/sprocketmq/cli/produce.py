"""``sprocketmq produce``: lines, JSON lines or one whole file from standard input into a topic.

AutoBatch makes batches of them. A topic that does not exist yet is left to the brokers, which give it plain queues, unless batch queues are
asked for: those store each batch as one record.
"""

import asyncio
import base64
import binascii
import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sprocketmq import AdminClient, Batching, Message, Producer, SendResult
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, EXIT_SIGNAL, fail
from sprocketmq.cli.output import plural, print_json
from sprocketmq.cli.progress import Progress
from sprocketmq.cli.stopping import on_stop_signals
from sprocketmq.cli.topic import BATCH_QUEUES, QUEUE_TYPE
from sprocketmq.errors import ConfigError, InvalidMessage, InvalidName, MaybeStoredError, SprocketError, TopicNotFound
from sprocketmq.net.loops import new_event_loop
from sprocketmq.protocol.names import check_group, check_send_topic, check_tag

CHUNK_BYTES = 1 << 18
# Messages on their way at a time: enough to keep a broker busy, few enough that little is open when something fails.
MAX_IN_FLIGHT = 4096
MAX_LINE_BYTES = 4 << 20
# Answers are let in after so many.
BURST = 256
QUEUES = 8


@dataclass(frozen=True)
class Options:
    """What to send where. Raises InvalidName for a topic, tag or group that RocketMQ does not accept."""

    topic: str
    file: Path | None
    jsonl: bool
    whole: bool
    tag: str | None
    keys: tuple[str, ...]
    batch: bool
    batch_queues: bool
    group: str

    def __post_init__(self) -> None:
        check_send_topic(self.topic)
        check_group(self.group)
        if self.tag is not None:
            check_tag(self.tag)
        for key in self.keys:
            if key.split() != [key]:
                raise InvalidName("key", key, "a key is one word, as keys are stored separated by blanks")
        if self.jsonl and self.whole:
            raise InvalidMessage("--jsonl and --whole exclude each other: the input is either lines of JSON or one message")


class JsonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One line of JSON: what to send, and what ``consume --json`` says beyond that, which is not sent."""

    body: str | None = None
    body_base64: str | None = None
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    topic: Any = None
    broker_name: Any = None
    queue_id: Any = None
    queue_offset: Any = None
    msg_id: Any = None
    offset_msg_id: Any = None
    reconsume_times: Any = None
    born_timestamp_ms: Any = None
    store_timestamp_ms: Any = None


@dataclass
class Tally:
    """What came of it. ``queues`` maps (broker, queue) to count, first and last offset; ``failed`` has lines, whether they may be stored all
    the same, and why they were not acknowledged.
    """

    messages: int = 0
    size_bytes: int = 0
    requests: int = 0
    skipped: int = 0
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    failed: list[tuple[int, bool, str]] = field(default_factory=list)

    @property
    def unknown(self) -> int:
        """Messages whose answer did not come: they may be stored or not."""
        return sum(maybe_stored for _, maybe_stored, _ in self.failed)

    def add(self, line: int, size: int, result: SendResult | None, error: BaseException | None) -> None:
        """Note the outcome of one line."""
        if result is None:
            self.failed.append((line, isinstance(error, MaybeStoredError), str(error)))
            return
        self.messages += 1
        self.size_bytes += size
        at = self.queues.get((result.broker_name, result.queue_id))
        offset = result.queue_offset
        if at is None:
            self.queues[result.broker_name, result.queue_id] = [1, offset, offset]
        else:
            at[0] += 1
            at[1] = min(at[1], offset)
            at[2] = max(at[2], offset)

    def failures(self) -> list[str]:
        """Return what was not acknowledged, in words, lines that follow each other and failed alike together."""
        ranges: list[tuple[int, int, bool, str]] = []
        for line, maybe_stored, why in sorted(self.failed):
            if ranges and ranges[-1][1:] == (line - 1, maybe_stored, why):
                ranges[-1] = (ranges[-1][0], line, maybe_stored, why)
            else:
                ranges.append((line, line, maybe_stored, why))
        return [
            f"{f'line {first}' if first == last else f'lines {first} to {last}'} {'may be stored or not' if maybe_stored else 'not sent'}: {why}"
            for first, last, maybe_stored, why in ranges
        ]


_decode_json = msgspec.json.Decoder(JsonMessage).decode


def json_message(line: bytes, options: Options, number: int) -> Message:
    """Return the message of one JSON line; its own tag and keys go before the command line's. Raises InvalidMessage naming the line."""
    try:
        parsed = _decode_json(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidMessage(f"line {number} is not a message: {e}") from None
    if (parsed.body is None) == (parsed.body_base64 is None):
        raise InvalidMessage(f'line {number} is not a message: it needs either "body" (text) or "body_base64"')
    if parsed.body_base64 is not None:
        try:
            body = base64.b64decode(parsed.body_base64, validate=True)
        except binascii.Error as e:
            raise InvalidMessage(f"line {number} is not a message: body_base64 is not base64: {e}") from None
    else:
        body = (parsed.body or "").encode()
    if not body:
        raise InvalidMessage(f"line {number}: a message needs a body of at least one byte")
    return Message(options.topic, body, parsed.tag or options.tag, parsed.keys or options.keys, parsed.properties)


async def read_chunks(fd: int, progress: Progress) -> AsyncIterator[bytes]:
    """Yield what there is to read, waiting for a pipe or a terminal without holding up the loop."""
    mode = os.fstat(fd).st_mode
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
    while True:
        if waits:
            await _readable(fd)
        chunk = os.read(fd, CHUNK_BYTES)
        if not chunk:
            return
        progress.read(len(chunk))
        yield chunk


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def read_lines(fd: int, progress: Progress) -> AsyncIterator[list[bytes]]:
    """Yield complete lines as they come, without their ends; the last needs none. Raises InvalidMessage for one no broker would take."""
    rest = b""
    count = 0
    async for chunk in read_chunks(fd, progress):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        yield lines
        count += len(lines)
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidMessage(f"line {count + 1} has more than {MAX_LINE_BYTES} bytes, which is the most a message may have")
    if rest:
        yield [rest]


async def read_messages(fd: int, options: Options, tally: Tally, progress: Progress) -> AsyncIterator[Iterator[tuple[int, Message]]]:
    """Yield the messages of the lines that are there, each with the line's number, counted from 1; empty lines are left out."""
    number = 0

    def messages(lines: list[bytes]) -> Iterator[tuple[int, Message]]:
        nonlocal number
        for raw in lines:
            number += 1
            line = raw.removesuffix(b"\r")
            if line:
                yield (
                    number,
                    json_message(line, options, number) if options.jsonl else Message(options.topic, line, options.tag, options.keys),
                )
            else:
                tally.skipped += 1

    async for lines in read_lines(fd, progress):
        yield messages(lines)


async def read_whole(fd: int, options: Options, progress: Progress) -> AsyncIterator[Iterator[tuple[int, Message]]]:
    """Yield the one message that all of the input is. Raises InvalidMessage when it is empty or larger than 4 MiB."""
    parts = []
    size = 0
    async for chunk in read_chunks(fd, progress):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_LINE_BYTES:
            raise InvalidMessage(f"the input has more than {MAX_LINE_BYTES} bytes, which is the most a message may have")
    if not parts:
        raise InvalidMessage("the input is empty, and a message needs a body of at least one byte")
    yield iter([(1, Message(options.topic, b"".join(parts), options.tag, options.keys))])


async def create_batch_queues(namesrv: str, topic: str) -> None:
    """Create a topic of batch queues where there is none. Raises ConfigError when there is one of plain queues."""
    async with AdminClient(namesrv=namesrv) as admin:
        try:
            configs = await admin.topic_config(topic)
        except TopicNotFound:
            await admin.create_topic(topic, queues=QUEUES, attributes={QUEUE_TYPE: BATCH_QUEUES})
            return
    plain = sorted(name for name, config in configs.items() if config.attributes.get(QUEUE_TYPE) != BATCH_QUEUES)
    if plain:
        raise ConfigError(
            f"topic {topic!r} has plain queues on {', '.join(plain)}, which stay what they are: leave --batch-queues out, or name a topic that"
            " does not exist yet"
        )


async def _send_all(producer: Producer, groups: AsyncIterator[Iterator[tuple[int, Message]]], tally: Tally, progress: Progress) -> None:
    """Send messages until there are no more or one fails."""

    def done(line: int, size: int, result: SendResult | None, error: BaseException | None) -> None:
        tally.add(line, size, result, error)
        progress.sent(1)

    since_pause = 0
    async for messages in groups:
        for line, message in messages:
            if producer.in_flight >= MAX_IN_FLIGHT:
                await producer.room()
            try:
                producer.submit(message, partial(done, line, len(message.body)))
            except SprocketError as e:
                tally.add(line, 0, None, e)
            since_pause += 1
            if since_pause >= BURST:
                since_pause = 0
                await asyncio.sleep(0)
            if tally.failed:
                return


async def _close_now(producer: Producer) -> None:
    """Close ``producer`` without waiting for answers: what is in flight may be stored or not."""
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0)  # it takes no more messages now, and waits
    closing.cancel()
    await asyncio.wait([closing])


class _Run:
    """Sends the input. A first SIGINT or SIGTERM ends it as if the input had ended there; a second one does not wait for answers either."""

    def __init__(self, namesrv: str, fd: int, options: Options, tally: Tally, progress: Progress) -> None:
        self._namesrv = namesrv
        self._fd = fd
        self._options = options
        self._tally = tally
        self._progress = progress
        # What a signal cancels, the last first.
        self._parts: list[asyncio.Task[None]] = []
        # The signal that came while there was more to read, or to be answered.
        self.stopped_by: signal.Signals | None = None
        self.error: SprocketError | None = None

    async def run(self) -> None:
        """Send and wait for the answers; ``error`` is what is wrong with the input then. Raises what keeps sending from beginning."""
        whole = asyncio.ensure_future(self._send())
        self._parts.append(whole)
        with on_stop_signals(self._stop), contextlib.suppress(asyncio.CancelledError):
            await whole

    def _stop(self, number: signal.Signals) -> None:
        part = self._parts.pop() if self._parts else None
        if part is not None and part.cancel():
            self.stopped_by = number

    async def _send(self) -> None:
        options = self._options
        if options.batch_queues:
            await create_batch_queues(self._namesrv, options.topic)
        batching = Batching() if options.batch else None
        async with Producer(options.group, namesrv=self._namesrv, batching=batching, max_in_flight=MAX_IN_FLIGHT) as producer:
            tally, progress = self._tally, self._progress
            groups = read_whole(self._fd, options, progress) if options.whole else read_messages(self._fd, options, tally, progress)
            reading = asyncio.ensure_future(_send_all(producer, groups, tally, progress))
            self._parts.append(reading)
            try:
                await asyncio.wait([reading])
                await producer.flush()  # sends end by their time-outs at the latest
            except asyncio.CancelledError:
                await _close_now(producer)
                raise
            finally:
                stats = producer.batching_stats
                tally.requests = stats.batches + stats.direct if options.batch else tally.messages
        if not reading.cancelled():
            self._note(reading.exception())

    def _note(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, SprocketError):
            raise error
        self.error = error


def run(namesrv: str, options: Options, *, as_json: bool) -> int:
    """Send the input and print a summary. Returns 1 when anything was not acknowledged, saying which lines; 128 and the signal's number when
    one ended the input.
    """
    tally = Tally()
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        fd = sys.stdin.fileno() if options.file is None else stack.enter_context(options.file.open("rb")).fileno()
        progress = stack.enter_context(Progress(_size_of(fd), "sending"))
        sending = _Run(namesrv, fd, options, tally, progress)
        stack.enter_context(asyncio.Runner(loop_factory=new_event_loop)).run(sending.run())
    elapsed_s = time.perf_counter() - started
    failures = tally.failures()
    for failure in failures:
        fail(failure)
    if sending.error is not None:
        fail(str(sending.error))
    if as_json:
        print_json(_as_json(options.topic, tally, failures, elapsed_s))
    else:
        unknown = f"; {plural(tally.unknown, 'message')} may be stored or not" if tally.unknown else ""
        skipped = f"; {plural(tally.skipped, 'empty line')} left out" if tally.skipped else ""
        print(f"sent {plural(tally.messages, 'message')} to {options.topic} in {elapsed_s:.2f} s{unknown}{skipped}")
    if sending.stopped_by is not None:
        fail(f"stopped by {sending.stopped_by.name} before the input ended")
    if failures or sending.error is not None:
        return EXIT_FAILURE
    return EXIT_OK if sending.stopped_by is None else EXIT_SIGNAL + sending.stopped_by


def _as_json(topic: str, tally: Tally, failures: list[str], elapsed_s: float) -> dict[str, Any]:
    return {
        "topic": topic,
        "messages": tally.messages,
        "unknown": tally.unknown,
        "bytes": tally.size_bytes,
        "batches": tally.requests,
        "empty_lines": tally.skipped,
        "elapsed_s": round(elapsed_s, 3),
        "failures": failures,
        "queues": [
            {"broker_name": broker, "queue_id": queue, "messages": count, "first_offset": first, "last_offset": last}
            for (broker, queue), (count, first, last) in sorted(tally.queues.items())
        ],
    }


def _size_of(fd: int) -> int | None:
    facts = os.fstat(fd)
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None
