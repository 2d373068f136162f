"""``sprocketmq produce``: lines, JSON lines or one whole file from standard input into a topic."""

import base64
import binascii
import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sprocketmq import Message, SendResult, sync
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.cli.output import plural, print_json
from sprocketmq.cli.progress import Progress
from sprocketmq.errors import InvalidMessage, MessageTooLarge, SprocketError
from sprocketmq.protocol.names import check_group, check_send_topic, check_tag

CHUNK_BYTES = 1 << 18
# Batches on their way at a time: enough to keep a broker busy, few enough that little is open when something fails.
MAX_IN_FLIGHT_BATCHES = 4
MAX_LINE_BYTES = 4 << 20
MAX_BATCH_BYTES = 2 << 20


@dataclass(frozen=True)
class Options:
    """What to send where. Raises InvalidName for a topic, tag or group that RocketMQ does not accept."""

    topic: str
    file: Path | None
    jsonl: bool
    whole: bool
    tag: str | None
    keys: tuple[str, ...]
    batch: int
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
class Batch:
    """Messages to send together and the input lines they are from (first and last, counted from 1)."""

    messages: list[Message]
    first_line: int
    last_line: int


@dataclass
class Tally:
    """What came of it. ``queues`` maps (broker, queue) to count, first and last offset."""

    messages: int = 0
    size_bytes: int = 0
    batches: int = 0
    skipped: int = 0
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, messages: Sequence[Message], results: Sequence[SendResult]) -> None:
        self.batches += 1
        self.messages += len(results)
        self.size_bytes += sum(len(m.body) for m in messages)
        for result in results:
            at = self.queues.setdefault((result.broker_name, result.queue_id), [0, result.queue_offset, result.queue_offset])
            at[0] += 1
            at[1] = min(at[1], result.queue_offset)
            at[2] = max(at[2], result.queue_offset)


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


def read_lines(fd: int, progress: Progress) -> Iterator[list[bytes] | None]:
    """Yield complete lines as they come, without their ends, and None whenever the input has nothing more right now.

    The last line needs no end. Raises MessageTooLarge for a line that no broker would take.
    """
    rest = b""
    while True:
        if not select.select([fd], [], [], 0)[0]:
            yield None
        chunk = os.read(fd, CHUNK_BYTES)
        progress.read(len(chunk))
        if not chunk:
            break
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_LINE_BYTES:
            raise MessageTooLarge(len(rest), MAX_LINE_BYTES)
        if lines:
            yield lines
    if rest:
        yield [rest]


def cut_batches(lines: Iterator[list[bytes] | None], options: Options, tally: Tally) -> Iterator[Batch]:
    """Yield batches of up to ``options.batch`` messages and about 2 MiB; what is there goes when the input pauses."""
    messages: list[Message] = []
    size = 0
    number = first = 0
    for group in lines:
        if group is None:
            if messages:
                yield Batch(messages, first, number)
                messages, size = [], 0
            continue
        for raw in group:
            number += 1
            line = raw.removesuffix(b"\r")
            if not line:
                tally.skipped += 1
                continue
            try:
                message = json_message(line, options, number) if options.jsonl else Message(options.topic, line, options.tag, options.keys)
            except InvalidMessage:
                if messages:  # what came before the bad line is good
                    yield Batch(messages, first, number - 1)
                raise
            if not messages:
                first = number
            messages.append(message)
            size += len(message.body)
            if len(messages) >= options.batch or size >= MAX_BATCH_BYTES:
                yield Batch(messages, first, number)
                messages, size = [], 0
    if messages:
        yield Batch(messages, first, number)


def whole_input(fd: int, options: Options, progress: Progress) -> Iterator[Batch]:
    """Yield the one message that all of the input is. Raises InvalidMessage when it is empty, MessageTooLarge beyond 4 MiB."""
    parts = []
    size = 0
    while chunk := os.read(fd, CHUNK_BYTES):
        progress.read(len(chunk))
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_LINE_BYTES:
            raise MessageTooLarge(size, MAX_LINE_BYTES)
    if not parts:
        raise InvalidMessage("the input is empty, and a message needs a body of at least one byte")
    yield Batch([Message(options.topic, b"".join(parts), options.tag, options.keys)], 1, 1)


class _Sender:
    """Sends batches side by side and keeps the tally. ``failed`` says that no more should be sent."""

    def __init__(self, producer: sync.Producer, tally: Tally, progress: Progress) -> None:
        self._producer = producer
        self._tally = tally
        self._progress = progress
        self._pool = ThreadPoolExecutor(MAX_IN_FLIGHT_BATCHES, thread_name_prefix="produce")
        self._open: dict[Future[Sequence[SendResult]], Batch] = {}
        self.failed: SprocketError | None = None

    def send(self, batch: Batch) -> None:
        while len(self._open) >= MAX_IN_FLIGHT_BATCHES:
            self._take(wait(self._open, return_when=FIRST_COMPLETED).done)
        self._open[self._pool.submit(self._producer.send_batch, batch.messages)] = batch

    def finish(self) -> None:
        """Wait for what is on its way; sends end by their time-outs at the latest."""
        while self._open:
            self._take(wait(self._open, return_when=FIRST_COMPLETED).done)
        self._pool.shutdown()

    def _take(self, done: set[Future[Sequence[SendResult]]]) -> None:
        for future in done:
            batch = self._open.pop(future)
            try:
                results = future.result()
            except SprocketError as e:
                self.failed = self.failed or e
                which = (
                    f"line {batch.first_line}" if batch.first_line == batch.last_line else f"lines {batch.first_line} to {batch.last_line}"
                )
                self._tally.failures.append(f"{which} not sent: {e}")
            else:
                self._tally.add(batch.messages, results)
                self._progress.sent(len(results))


def run(namesrv: str, options: Options, *, as_json: bool) -> int:
    """Send the input and print a summary. Returns 1 when anything was not acknowledged, saying which lines."""
    tally = Tally()
    started = time.perf_counter()
    error: SprocketError | None = None
    interrupted = False
    with contextlib.ExitStack() as stack:
        fd = sys.stdin.fileno() if options.file is None else stack.enter_context(options.file.open("rb")).fileno()
        progress = stack.enter_context(Progress(_size_of(fd), "sending"))
        producer = stack.enter_context(sync.Producer(options.group, namesrv=namesrv))
        sender = _Sender(producer, tally, progress)
        batches = whole_input(fd, options, progress) if options.whole else cut_batches(read_lines(fd, progress), options, tally)
        try:
            for batch in batches:
                sender.send(batch)
                if sender.failed is not None:
                    break
        except SprocketError as e:
            error = e
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sender.finish()
    for failure in tally.failures:
        fail(failure)
    if error is not None:
        fail(str(error))
    elapsed_s = time.perf_counter() - started
    _summary(options.topic, tally, elapsed_s, as_json=as_json)
    if interrupted:
        fail("interrupted")
    return EXIT_FAILURE if tally.failures or error or interrupted else EXIT_OK


def _summary(topic: str, tally: Tally, elapsed_s: float, *, as_json: bool) -> None:
    if as_json:
        queues = [
            {"broker_name": broker, "queue_id": queue, "messages": count, "first_offset": first, "last_offset": last}
            for (broker, queue), (count, first, last) in sorted(tally.queues.items())
        ]
        print_json(
            {
                "topic": topic,
                "messages": tally.messages,
                "bytes": tally.size_bytes,
                "batches": tally.batches,
                "empty_lines": tally.skipped,
                "elapsed_s": round(elapsed_s, 3),
                "failures": tally.failures,
                "queues": queues,
            }
        )
        return
    skipped = f"; {plural(tally.skipped, 'empty line')} left out" if tally.skipped else ""
    print(f"sent {plural(tally.messages, 'message')} to {topic} in {elapsed_s:.2f} s{skipped}")


def _size_of(fd: int) -> int | None:
    facts = os.fstat(fd)
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None
