"""``sprocketmq produce``: lines, JSON lines or one whole file from standard input into a topic.

AutoBatch makes batches of them, and a topic that does not exist yet becomes one of batch queues, which stores each batch as one record.
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
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.cli.output import plural, print_json
from sprocketmq.cli.progress import Progress
from sprocketmq.errors import InvalidMessage, MessageTooLarge, SprocketError, TopicNotFound
from sprocketmq.net.loops import new_event_loop
from sprocketmq.protocol.names import DEFAULT_TOPIC, check_group, check_send_topic, check_tag

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
    plain: bool
    group: str

    def __post_init__(self) -> None:
        check_send_topic(self.topic)
        check_group(self.group)
        if self.tag is not None:
            check_tag(self.tag)
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
    """What came of it. ``queues`` maps (broker, queue) to count, first and last offset; ``failed`` has lines and why they were not sent."""

    messages: int = 0
    size_bytes: int = 0
    requests: int = 0
    skipped: int = 0
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, size: int, result: SendResult | None, error: BaseException | None) -> None:
        """Note the outcome of one line."""
        if result is None:
            self.failed.append((line, str(error)))
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
        """Return what was not sent, in words, lines that follow each other and failed alike together."""
        ranges: list[tuple[int, int, str]] = []
        for line, why in sorted(self.failed):
            if ranges and ranges[-1][1:] == (line - 1, why):
                ranges[-1] = (ranges[-1][0], line, why)
            else:
                ranges.append((line, line, why))
        return [f"{f'line {first}' if first == last else f'lines {first} to {last}'} not sent: {why}" for first, last, why in ranges]


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
    """Yield complete lines as they come, without their ends; the last needs none. Raises MessageTooLarge for one no broker would take."""
    rest = b""
    async for chunk in read_chunks(fd, progress):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_LINE_BYTES:
            raise MessageTooLarge(len(rest), MAX_LINE_BYTES)
        yield lines
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
    """Yield the one message that all of the input is. Raises InvalidMessage when it is empty, MessageTooLarge beyond 4 MiB."""
    parts = []
    size = 0
    async for chunk in read_chunks(fd, progress):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_LINE_BYTES:
            raise MessageTooLarge(size, MAX_LINE_BYTES)
    if not parts:
        raise InvalidMessage("the input is empty, and a message needs a body of at least one byte")
    yield iter([(1, Message(options.topic, b"".join(parts), options.tag, options.keys))])


async def create_missing(namesrv: str, topic: str) -> None:
    """Create a topic of batch queues where there is none; not where brokers let no topics come to life by themselves."""
    async with AdminClient(namesrv=namesrv) as admin:
        try:
            await admin.route(topic)
        except TopicNotFound:
            with contextlib.suppress(TopicNotFound):  # the send will say what is missing
                await admin.route(DEFAULT_TOPIC)
                await admin.create_topic(topic, queues=QUEUES, attributes={"queue.type": "BatchCQ"})


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


async def _produce(namesrv: str, fd: int, options: Options, tally: Tally, progress: Progress) -> BaseException | None:
    """Send the input; return what ended it early: a SprocketError, or the CancelledError of an interrupt."""
    if options.batch and not options.plain and not options.whole:
        await create_missing(namesrv, options.topic)
    batching = Batching() if options.batch else None
    async with Producer(options.group, namesrv=namesrv, batching=batching, max_in_flight=MAX_IN_FLIGHT) as producer:
        ended: BaseException | None = None
        groups = read_whole(fd, options, progress) if options.whole else read_messages(fd, options, tally, progress)
        sending = asyncio.ensure_future(_send_all(producer, groups, tally, progress))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, sending.cancel)
        try:
            await sending
        except (SprocketError, asyncio.CancelledError) as e:
            ended = e
        await producer.flush()  # sends end by their time-outs at the latest
        stats = producer.batching_stats
        tally.requests = stats.batches + stats.direct if options.batch else tally.messages
        return ended


def run(namesrv: str, options: Options, *, as_json: bool) -> int:
    """Send the input and print a summary. Returns 1 when anything was not acknowledged, saying which lines."""
    tally = Tally()
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        fd = sys.stdin.fileno() if options.file is None else stack.enter_context(options.file.open("rb")).fileno()
        progress = stack.enter_context(Progress(_size_of(fd), "sending"))
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        ended = runner.run(_produce(namesrv, fd, options, tally, progress))
    failures = tally.failures()
    for failure in failures:
        fail(failure)
    if isinstance(ended, SprocketError):
        fail(str(ended))
    elapsed_s = time.perf_counter() - started
    if as_json:
        print_json(_as_json(options.topic, tally, failures, elapsed_s))
    else:
        skipped = f"; {plural(tally.skipped, 'empty line')} left out" if tally.skipped else ""
        print(f"sent {plural(tally.messages, 'message')} to {options.topic} in {elapsed_s:.2f} s{skipped}")
    if isinstance(ended, asyncio.CancelledError):
        fail("interrupted")
    return EXIT_FAILURE if failures or ended is not None else EXIT_OK


def _as_json(topic: str, tally: Tally, failures: list[str], elapsed_s: float) -> dict[str, Any]:
    return {
        "topic": topic,
        "messages": tally.messages,
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
