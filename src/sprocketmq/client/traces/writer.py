"""Writes trace records to the trace topic, in messages of many, by a producer of its own that is not traced.

Adding records never waits: those without room, and those that the brokers do not accept, are dropped and counted.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from sprocketmq.client.instance import Instance
from sprocketmq.client.loop_bound import CLOSING, OPEN
from sprocketmq.client.traces.config import TraceConfig, TraceStats
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.message import Message, SendResult

log = logging.getLogger(__name__)

# A trace message is full with as many characters (as Apache's clients have it), or as many bytes of keys: its properties may take 32,767
# bytes, and the broker adds its own.
MAX_BODY_CHARS = 128_000
MAX_KEYS_BYTES = 28 << 10
# A record with longer keys is found by the id of its message only.
MAX_KEYS_OF_RECORD = 2_000
MAX_IN_FLIGHT = 4
# Pause after a nameserver was not found, and between warnings.
RETRY_S = 5.0
WARNING_S = 60.0


class TraceProducer(Protocol):
    """The writer of trace messages: a ``Producer`` without traces."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def submit(self, message: Message, callback: Callable[[SendResult | None, BaseException | None], object], /) -> Any: ...


class _Full(NamedTuple):
    message: Message
    records: int


class TraceWriter:
    """Gathers the records of one client of ``group`` and writes them. Used on the event loop of ``instance``, whose client it belongs to.

    ``make_producer`` returns the producer, which is started when there is something to write.
    """

    def __init__(self, config: TraceConfig, group: str, instance: Instance, make_producer: Callable[[], TraceProducer]) -> None:
        self._config = config
        self._group = group
        self._instance = instance
        self._make_producer = make_producer
        self._producer: TraceProducer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._start_at = 0.0
        # The records of the next message, and its keys.
        self._records: list[str] = []
        self._keys: dict[str, None] = {}
        self._chars = self._keys_bytes = 0
        self._full: deque[_Full] = deque()
        self._in_flight = 0
        self._timer_set = self._closed = self._abandoned = False
        self._idle: asyncio.Future[None] | None = None
        self._written = self._waiting = 0
        # Records that were not made, or not written.
        self.dropped: int = 0
        self._problem = ""
        self._warned_at: float | None = None

    # --- records ---

    @property
    def open(self) -> bool:
        """Whether records are accepted."""
        return not self._closed and self._instance.state in (OPEN, CLOSING)

    @property
    def room(self) -> int:
        """How many more records may wait."""
        return self._config.max_waiting - self._waiting

    def drop(self, count: int) -> None:
        """Count records that were not made."""
        self.dropped += count

    def add(self, record: str, msg_id: str, keys: str = "") -> None:
        """Take a record about the message ``msg_id`` to write it soon; it is found by the id and by ``keys``, which blanks separate."""
        if self._waiting >= self._config.max_waiting or self._closed:
            self.dropped += 1
            return
        chars, size = len(record), len(msg_id) + 1
        words: list[str] = []
        if keys:
            words = [word for word in keys.split() if word.isprintable()]
            more = sum(len(word.encode(errors="replace")) + 1 for word in words)
            if size + more > MAX_KEYS_OF_RECORD:
                words, more = [], 0
            size += more
        if self._records and (self._keys_bytes + size > MAX_KEYS_BYTES or self._chars + chars > MAX_BODY_CHARS):
            self._cut()
        self._records.append(record)
        self._chars += chars
        self._keys_bytes += size
        self._keys[msg_id] = None
        for word in words:
            self._keys[word] = None
        self._waiting += 1
        if not self._timer_set:
            self._timer_set = True
            self._instance.timers.call_later(self._config.max_delay_s, self._due)

    def _due(self) -> None:
        self._timer_set = False
        self._cut()

    def _cut(self) -> None:
        """Make a message of the records so far."""
        if not self._records:
            return
        body = "".join(self._records).encode(errors="replace")
        self._full.append(_Full(Message(self._config.topic, body, keys=list(self._keys)), len(self._records)))
        self._records.clear()
        self._keys.clear()
        self._chars = self._keys_bytes = 0
        self._write()

    # --- writing ---

    def _write(self) -> None:
        if self._producer is None:
            self._start()
            return
        while self._full and self._in_flight < MAX_IN_FLIGHT:
            full = self._full.popleft()
            self._in_flight += 1
            try:
                self._producer.submit(full.message, partial(self._answered, full.records))
            except SprocketError as e:
                self._ended(full.records, e)

    def _start(self) -> None:
        now = self._instance.clock.monotonic()
        if self._starting is None and now >= self._start_at:
            self._start_at = now + RETRY_S
            self._starting = self._instance.spawn(self._start_producer(), f"start of the traces of group {self._group}")
        elif self._starting is None:
            self._drop_full()

    async def _start_producer(self) -> None:
        try:
            producer = self._make_producer()
            await producer.start()
        except SprocketError as e:
            self._starting = None
            self._failed(e)
            self._drop_full()
            return
        self._producer, self._starting = producer, None
        self._write()

    def _drop_full(self) -> None:
        while self._full:
            self._forget(self._full.popleft().records)

    def _answered(self, count: int, result: SendResult | None, error: BaseException | None) -> None:  # noqa: ARG002 - a callback of sends
        self._ended(count, error)

    def _ended(self, count: int, error: BaseException | None) -> None:
        if self._abandoned:  # counted as dropped already
            return
        self._in_flight -= 1
        if error is None:
            self._written += count
            self._problem = ""
            self._forget(count, dropped=0)
        else:
            self._failed(error)
            self._forget(count)
        self._write()

    def _forget(self, count: int, dropped: int | None = None) -> None:
        self._waiting -= count
        self.dropped += count if dropped is None else dropped
        if not self._waiting and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _failed(self, error: BaseException) -> None:
        now = self._instance.clock.monotonic()
        if not self._problem and (self._warned_at is None or now - self._warned_at >= WARNING_S):
            self._warned_at = now
            log.warning(
                "traces of group %s cannot be written to topic %s, which affects no other message; they are dropped and counted: %s",
                self._group,
                self._config.topic,
                error,
            )
        self._problem = str(error) or type(error).__name__

    # --- end ---

    async def close(self) -> None:
        """Write the waiting records, for at most ``close_timeout_s``, and end. The rest is dropped."""
        if not self.open:
            return
        self._cut()
        self._closed = True
        try:
            async with asyncio.timeout(self._config.close_timeout_s):
                if self._waiting:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
                if self._producer is not None:
                    await self._producer.close()
        except TimeoutError:
            self._abandoned = True
            self.dropped += self._waiting
            self._waiting = 0
            if self._producer is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0):  # cancels at the first wait: no answers are awaited
                        await self._producer.close()

    def stats(self) -> TraceStats:
        """Return the counters as they are now."""
        return TraceStats(self._written, self.dropped, self._waiting, self._problem)
