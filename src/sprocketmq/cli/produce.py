"""``sprocketmq produce``: lines, JSON lines or one whole file from standard input into a topic.

AutoBatch gathers the messages into batches. Brokers create a missing topic with plain queues, unless batch queues are requested, which
store each batch as one record.
"""

import asyncio
import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from sprocketmq import AdminClient, Batching, Message, Producer, SendResult
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, EXIT_SIGNAL, fail
from sprocketmq.cli.output import plural, print_json
from sprocketmq.cli.produce_input import ProduceOptions, read_messages, read_whole
from sprocketmq.cli.produce_tally import Tally
from sprocketmq.cli.progress import MessageProgress
from sprocketmq.cli.stopping import on_stop_signals
from sprocketmq.cli.target import Target
from sprocketmq.cli.topic import BATCH_QUEUES, QUEUE_TYPE
from sprocketmq.errors import ConfigError, SprocketError, TopicNotFound
from sprocketmq.net.loops import new_event_loop

# Messages in flight: enough to keep a broker busy, few enough that little is open when a send fails.
MAX_IN_FLIGHT = 4096
# The loop yields after so many messages, so that responses are read.
BURST = 256
QUEUES = 8

__all__ = ["ProduceOptions", "run"]


async def create_batch_queues(target: Target, topic: str) -> None:
    """Create ``topic`` with batch queues if it is missing. Raises ConfigError when it has plain queues."""
    async with AdminClient(**target.options) as admin:
        try:
            configs = await admin.topic_config(topic)
        except TopicNotFound:
            await admin.create_topic(topic, queues=QUEUES, attributes={QUEUE_TYPE: BATCH_QUEUES})
            return
    plain = sorted(name for name, config in configs.items() if config.attributes.get(QUEUE_TYPE) != BATCH_QUEUES)
    if plain:
        raise ConfigError(
            f"topic {topic!r} has plain queues on {', '.join(plain)}, which cannot be changed: leave --batch-queues out or name a new topic"
        )


async def _send_all(
    producer: Producer, groups: AsyncIterator[Iterator[tuple[int, Message]]], tally: Tally, progress: MessageProgress
) -> None:
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
    await asyncio.sleep(0)  # it accepts no more messages now, and waits for answers
    closing.cancel()
    await asyncio.wait([closing])


class _Run:
    """Sends the input. A first SIGINT or SIGTERM acts as the end of the input; a second one does not wait for answers."""

    def __init__(self, target: Target, fd: int, options: ProduceOptions, tally: Tally, progress: MessageProgress) -> None:
        self._target = target
        self._fd = fd
        self._options = options
        self._tally = tally
        self._progress = progress
        # The tasks that signals cancel, the last first.
        self._parts: list[asyncio.Task[None]] = []
        # The signal that arrived before everything was read and answered.
        self.stopped_by: signal.Signals | None = None
        self.error: SprocketError | None = None

    async def run(self) -> None:
        """Send and wait for the answers; ``error`` is set for invalid input. Raises the error that prevents sending from starting."""
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
            await create_batch_queues(self._target, options.topic)
        batching = Batching() if options.batch else None
        async with Producer(
            options.group, **self._target.options, batching=batching, max_in_flight=MAX_IN_FLIGHT, trace=options.trace
        ) as producer:
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


def run(target: Target, options: ProduceOptions, *, as_json: bool) -> int:
    """Send the input and print a summary.

    Returns 1 when anything was not acknowledged, naming the lines; 128 plus the signal's number when a signal ended the input.
    """
    tally = Tally()
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        fd = sys.stdin.fileno() if options.file is None else stack.enter_context(options.file.open("rb")).fileno()
        progress = stack.enter_context(MessageProgress(_size_of(fd), "sending"))
        sending = _Run(target, fd, options, tally, progress)
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
        skipped = f"; {plural(tally.skipped, 'empty line')} skipped" if tally.skipped else ""
        unsafe = "".join(f"; {count:,} of them stored with status {status}" for status, count in sorted(tally.unsafe.items()))
        print(f"sent {plural(tally.messages, 'message')} to {options.topic} in {elapsed_s:.2f} s{unsafe}{unknown}{skipped}")
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
        "statuses": dict(sorted(tally.unsafe.items())),
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
