"""The input of ``sprocketmq produce``: lines, JSON lines or one whole file, as messages."""

import asyncio
import base64
import binascii
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sprocketmq import Message
from sprocketmq.cli.produce_tally import Tally
from sprocketmq.cli.progress import MessageProgress
from sprocketmq.errors import InvalidMessage, InvalidName
from sprocketmq.protocol.names import check_group, check_send_topic, check_tag

CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 4 << 20


@dataclass(frozen=True)
class ProduceOptions:
    """What to send and where. Raises InvalidName for a topic, tag or group that RocketMQ does not accept."""

    topic: str
    file: Path | None
    jsonl: bool
    whole: bool
    tag: str | None
    keys: tuple[str, ...]
    batch: bool
    batch_queues: bool
    group: str
    trace: bool = False

    def __post_init__(self) -> None:
        check_send_topic(self.topic)
        check_group(self.group)
        if self.tag is not None:
            check_tag(self.tag)
        for key in self.keys:
            if key.split() != [key]:
                raise InvalidName("key", key, "a key is one word, because keys are stored separated by blanks")
        if self.jsonl and self.whole:
            raise InvalidMessage("--jsonl and --whole exclude each other: the input is either lines of JSON or one message")


class JsonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One line of JSON: the message, and further fields of ``consume --json``, which are not sent."""

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


_decode_json = msgspec.json.Decoder(JsonMessage).decode


def json_message(line: bytes, options: ProduceOptions, number: int) -> Message:
    """Return the message of one JSON line; its tag and keys override the command line's. Raises InvalidMessage naming the line."""
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


async def read_chunks(fd: int, progress: MessageProgress) -> AsyncIterator[bytes]:
    """Yield chunks of the input, waiting for a pipe or a terminal without blocking the loop."""
    mode = os.fstat(fd).st_mode
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
    while True:
        if waits and sys.platform == "win32":
            chunk = await _read_in_thread(fd)
        else:
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


async def _read_in_thread(fd: int) -> bytes:
    """Read where the loop cannot wait for a pipe. A command that is stopped leaves the thread, which ends with the process."""
    done: Future[bytes] = Future()
    done.set_running_or_notify_cancel()  # it is not cancelled: the thread sets it whatever becomes of the command

    def read() -> None:
        try:
            done.set_result(os.read(fd, CHUNK_BYTES))
        except OSError as e:
            done.set_exception(e)

    threading.Thread(target=read, name="sprocketmq-input", daemon=True).start()
    return await asyncio.wrap_future(done)


async def read_lines(fd: int, progress: MessageProgress) -> AsyncIterator[list[bytes]]:
    """Yield complete lines as they arrive, without their ends; the last line needs none. Raises InvalidMessage for one that is too long."""
    rest = b""
    count = 0
    async for chunk in read_chunks(fd, progress):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        yield lines
        count += len(lines)
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidMessage(f"line {count + 1} has more than {MAX_LINE_BYTES} bytes, the limit of a message")
    if rest:
        yield [rest]


async def read_messages(
    fd: int, options: ProduceOptions, tally: Tally, progress: MessageProgress
) -> AsyncIterator[Iterator[tuple[int, Message]]]:
    """Yield the messages of the lines read so far, each with its line number, counted from 1; empty lines are skipped."""
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


async def read_whole(fd: int, options: ProduceOptions, progress: MessageProgress) -> AsyncIterator[Iterator[tuple[int, Message]]]:
    """Yield the whole input as one message. Raises InvalidMessage when it is empty or larger than 4 MiB."""
    parts = []
    size = 0
    async for chunk in read_chunks(fd, progress):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_LINE_BYTES:
            raise InvalidMessage(f"the input has more than {MAX_LINE_BYTES} bytes, the limit of a message")
    if not parts:
        raise InvalidMessage("the input is empty, but a message needs a body of at least one byte")
    yield iter([(1, Message(options.topic, b"".join(parts), options.tag, options.keys))])
