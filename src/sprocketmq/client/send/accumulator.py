"""AutoBatch (RIP-27): which messages share a batch, and when it is sent. Pure: no event loop, no sockets; time comes from a clock.

::

    add --QUEUED, WAKE--> open --full, due, end of turn, flush--> ready --take--> in flight --done--> gone
     +--SEND_SINGLY--> the caller sends the message by itself
     +--SEND_AT_ONCE--> the caller sends the message by itself --lone--> in flight --done--> gone

``held_bytes`` counts every message from ``add`` to ``done``, whatever becomes of its batch.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from sprocketmq.client.send.batch import Batch, BatchKey
from sprocketmq.client.send.batching import BATCH_BYTES, BUSY_BATCH_BYTES, BUSY_BATCHES, BUSY_DELAYS, Batching, BatchingStats
from sprocketmq.client.send.encoding import MAX_MERGED_KEYS_BYTES, MessageEncoder
from sprocketmq.client.send.queue_choice import queue_of
from sprocketmq.clock import Clock
from sprocketmq.protocol.layout import BATCH_ENTRY_OVERHEAD
from sprocketmq.protocol.message import NO_PROPERTIES, Message, MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX


class Added(Enum):
    """The outcome of adding a message."""

    QUEUED = "in an open batch"
    WAKE = "in a batch, and the caller has to look at ``take``, ``next_due`` and ``eager``"
    SEND_SINGLY = "not taken: it fits no batch, or too much is held"
    SEND_AT_ONCE = "not taken: nothing of its key is open or in flight (adaptive mode)"


QUEUED, WAKE, SEND_SINGLY, SEND_AT_ONCE = Added

_M = TypeVar("_M")


class Accumulator(Generic[_M]):
    """Gathers messages into batches by the rules of ``Batching``; the caller sends what ``take`` returns.

    ``check`` raises what is wrong with a topic and a queue, before a batch is opened. ``max_message_bytes`` bounds batches as it bounds
    single messages. ``queue_of_key`` returns the queue of a topic for an ordering key, None while it is not known; until then messages with
    a key are sent by themselves. Those of one queue keep their order, whatever their tags: the open batch of a queue leaves before one with
    another tag is opened.
    """

    def __init__(
        self,
        batching: Batching,
        clock: Clock,
        encoder: MessageEncoder,
        check: Callable[[str, MessageQueue | None], None],
        *,
        max_message_bytes: int,
        queue_of_key: Callable[[str, str], MessageQueue | None] = lambda _topic, _key: None,
    ) -> None:
        self._max_bytes = min(batching.max_bytes or BATCH_BYTES, max_message_bytes)
        self._grows = batching.max_bytes is None
        self._busy_bytes = min(BUSY_BATCH_BYTES, max_message_bytes) if self._grows else self._max_bytes
        self._delay_s = batching.max_delay_ms / 1000
        self._total = batching.total_max_bytes
        self._adaptive = batching.adaptive
        self._now = clock.monotonic
        self._encoder = encoder
        self._plain_properties = encoder.plain_properties
        self._check = check
        self._queue_of_key = queue_of_key
        # For each queue of messages with ordering keys: the key of the batch with the latest one.
        self._keyed: dict[MessageQueue, BatchKey] = {}
        # Open batches in the order they were opened, which is the order they are due.
        self.open: dict[BatchKey, Batch[_M]] = {}
        # The open batch that got the last message; or, when that has left, an unopened one of the same key; or one that no message matches.
        self._none: Batch[_M] = Batch(("", None, True, None))
        self._latest = self._none
        self._eager: list[Batch[_M]] = []
        self._ready: deque[Batch[_M]] = deque()
        # Sent and unanswered bytes by batch key.
        self._in_flight: dict[BatchKey, int] = {}
        # The batches of all keys that are sent and unanswered, and their bytes.
        self._unanswered = self._unanswered_bytes = 0
        # Until when batches that are due wait for an answer; 0 while none does.
        self._waits_until = 0.0
        self.held_bytes: int = 0
        self._batches = self._messages = self._direct = 0
        self._sizes = [0] * 17
        self._linger_s = self._longest_s = 0.0

    def add(self, message: Message, member: _M) -> Added:
        """Add a message to a batch of its key, and ``member``, which waits for its outcome.

        A batch that has no room for the message leaves first; one that would have no room for another like it leaves at once. When the
        message is not taken because it fits no batch, the open batch of its key leaves, so that the messages of a key are sent in order.
        Raises InvalidMessage or InvalidName; then nothing has changed.
        """
        # Short cut for a body with at most one key and ordinary properties, in a batch whose key was checked before. Without it a message
        # costs three times as much (benchmarks/micro/client.py, submit_auto_batch_callbacks). Everything else goes to ``_add_any``.
        batch = self._latest
        if (
            message.topic is not batch.topic
            or message.tag is not batch.tag
            or message.queue is not batch.queue
            or message.wait_store_ok is not batch.wait_store_ok
        ):
            try:
                another = self.open.get((message.topic, message.tag, message.wait_store_ok, message.queue))
            except TypeError:  # something unhashable
                return self._add_any(message, member)
            if another is None:
                return self._add_any(message, member)
            self._latest = batch = another
        body = message.body
        overhead = batch.overhead
        if (
            not overhead
            or not body
            or message.flag
            or message.delay_level
            or message.deliver_at_ms is not None
            or message.ordering_key is not None
        ):
            return self._add_any(message, member)
        size = overhead + len(body)
        front = b""
        if message.properties is not NO_PROPERTIES and message.properties:
            front = self._plain_properties(message.properties)
            size += len(front)
            if not front or overhead + len(front) > MAX_MERGED_KEYS_BYTES:
                return self._add_any(message, member)
        keys = message.keys
        if keys:
            if type(keys) is str:
                key = keys
            elif (type(keys) is tuple or type(keys) is list) and len(keys) == 1:
                key = keys[0]
            else:
                return self._add_any(message, member)
            # ``isprintable()`` rejects every whitespace character except ' '.
            if type(key) is not str or not key or not key.isprintable() or " " in key:
                return self._add_any(message, member)
            word = key.encode()
            merged = len(word) + 1
            if batch.merged_keys_bytes + overhead + merged + len(front) > MAX_MERGED_KEYS_BYTES:
                return self._add_any(message, member)
            front = b"%bKEYS\x01%b\x02" % (front, word)
            size += 5 + merged  # KEYS, 0x01, the word, 0x02
        used = batch.size + size
        held = self.held_bytes + size
        if held > self._total:
            return self._add_any(message, member)
        added = QUEUED
        if used > batch.limit:
            kind = batch.key
            if batch.limit or size > self._max_bytes or kind in self.open or (self._adaptive and kind not in self._in_flight):
                return self._add_any(message, member)  # full; or not to be opened here
            self._open(batch)
            added = WAKE
        if front:
            batch.fronts[len(batch.bodies)] = front
            if keys:
                batch.merged_keys[key] = None
                batch.merged_keys_bytes += merged
        batch.bodies.append(body)
        batch.members.append(member)
        batch.size = used
        self.held_bytes = held
        if used + size > batch.limit:
            self._leave(batch)
            return WAKE
        return added

    def _add_any(self, message: Message, member: _M) -> Added:
        topic, tag, wait, delayed = (
            message.topic,
            message.tag,
            message.wait_store_ok,
            message.delay_level or message.deliver_at_ms is not None,
        )
        key = self._key_of(message)
        keyed_queue: MessageQueue | None = None
        before: Batch[_M] | None = None
        if message.ordering_key is not None:
            keyed_queue = key[3]
            if keyed_queue is None:
                self._direct += 1
                return SEND_SINGLY
            latest = self._keyed.get(keyed_queue, key)
            before = self.open.get(latest) if latest != key else None
        try:
            batch = self.open.get(key)
            if batch is None and self._adaptive and not delayed and before is None and self._is_idle(key, message):
                return SEND_AT_ONCE
        except TypeError:  # something unhashable: the checks below raise what is wrong
            batch = None
        if batch is None:
            self._check(topic, message.queue)
        entry = self._encoder.entry(message)
        size, head, body, prefix, merged = entry
        held = self.held_bytes + size
        if before is not None:
            self._leave(before)
        if (
            size > self._max_bytes
            or held > self._total
            or delayed
            or (batch is None and topic.startswith(RETRY_PREFIX))
            or (merged and merged + len((tag or "").encode()) > MAX_MERGED_KEYS_BYTES)
        ):
            self._direct += 1
            if batch is not None:
                self._leave(batch)
            return SEND_SINGLY
        if keyed_queue is not None:
            self._keyed[keyed_queue] = key
        added = QUEUED if before is None else WAKE
        if batch is not None and (batch.size + size > batch.limit or (merged and batch.merged_keys_bytes + merged > MAX_MERGED_KEYS_BYTES)):
            self._leave(batch)
            batch = None
        if batch is None:
            batch = Batch(key)
            self._open(batch)
            if wait and (common := self._encoder.common(tag)) is not None:
                batch.prefix, batch.overhead = common
            added = WAKE
        if merged or message.properties or message.flag or keyed_queue is not None:
            batch.special[len(batch.bodies)] = head, prefix
            if merged:
                for word in (message.keys,) if type(message.keys) is str else message.keys:
                    batch.merged_keys[word] = None
                batch.merged_keys_bytes += merged
        else:
            batch.prefix, batch.overhead = prefix, size - len(body)
        batch.bodies.append(body)
        batch.members.append(member)
        self.held_bytes = held
        batch.size = used = batch.size + size
        if used + size > batch.limit:
            self._leave(batch)
            return WAKE
        return added

    def _key_of(self, message: Message) -> BatchKey:
        """Return the key of the batches a message may join; with an ordering key its queue is None while the route is not known."""
        key = message.ordering_key
        queue = queue_of(message) if key is None else self._queue_of_key(message.topic, key)
        return message.topic, message.tag, message.wait_store_ok, queue

    def _is_idle(self, key: BatchKey, message: Message) -> bool:
        if key in self.open or key in self._in_flight:
            return False
        size = BATCH_ENTRY_OVERHEAD + len(message.body)  # ``lone`` counts it like this
        return size <= self._max_bytes and self.held_bytes + size <= self._total

    def lone(self, message: Message) -> Batch[_M]:
        """Record that a message leaves at once, after SEND_AT_ONCE; it counts as a batch of one until ``done``."""
        batch: Batch[_M] = Batch(self._key_of(message))
        batch.size = BATCH_ENTRY_OVERHEAD + len(message.body)
        self._sent(batch)
        self.held_bytes += batch.size
        self._count(1, 0.0)
        return batch

    def take(self) -> Batch[_M] | None:
        """Return the next batch to send now, or None. Each must be passed to ``done`` once."""
        return self._ready.popleft() if self._ready else None

    def next_due(self) -> float | None:
        """Return when (monotonic seconds) ``expire`` should be called; None when no batch is open."""
        for batch in self.open.values():
            return self._waits_until or batch.opened_at + self._delay_s
        return None

    def expire(self) -> None:
        """Make every batch ready whose delay has passed; only those BUSY_DELAYS times as old while BUSY_BATCHES are unanswered."""
        now, delay = self._now(), self._delay_s
        self._waits_until = 0.0
        while self.open:
            batch = next(iter(self.open.values()))
            if batch.opened_at + delay > now:
                break
            if self._grows and self._unanswered >= BUSY_BATCHES and batch.opened_at + BUSY_DELAYS * delay > now:
                self._waits_until = now + delay  # not later, as a batch that is opened meanwhile is due then
                break
            self._leave(batch)

    @property
    def eager(self) -> bool:
        """Whether batches wait for the end of the turn only: ``end_turn`` should be called as soon as the caller has nothing to add."""
        return bool(self._eager) or (self._waits_until > 0.0 and self._unanswered < BUSY_BATCHES)

    def end_turn(self) -> None:
        """Make the batches ready that waited for an answer, and in adaptive mode those whose key has nothing in flight."""
        if self._waits_until:
            self.expire()
        eager, self._eager = self._eager, []
        for batch in eager:
            if self.open.get(batch.key) is batch:
                self._leave(batch)

    def flush(self) -> None:
        """Make every open batch ready."""
        for batch in list(self.open.values()):
            self._leave(batch)
        self._eager.clear()

    def done(self, batch: Batch[_M]) -> None:
        """Record that a batch was answered or has failed. In adaptive mode the open batch of its key is due when it was the last one."""
        size = batch.size
        self.held_bytes -= size
        self._unanswered -= 1
        self._unanswered_bytes -= size
        key = batch.key
        left = self._in_flight[key] - size
        if left:
            self._in_flight[key] = left
            return
        del self._in_flight[key]
        if self._adaptive:
            waiting = self.open.get(key)
            if waiting is not None:
                # At the end of the turn, because a task that was just answered may send more.
                self._eager.append(waiting)

    def stats(self) -> BatchingStats:
        """Return the counters as they are now."""
        return BatchingStats(
            batches=self._batches,
            messages=self._messages,
            direct=self._direct,
            histogram={1 << bits: count for bits, count in enumerate(self._sizes) if count},
            held_bytes=self.held_bytes,
            linger_ms_mean=self._linger_s / self._batches * 1000 if self._batches else 0.0,
            linger_ms_max=self._longest_s * 1000,
        )

    def _open(self, batch: Batch[_M]) -> None:
        batch.opened_at = self._now()
        unanswered = self._in_flight.get(batch.key, 0)
        # Half: were it all, senders who wait for their answers would end up in one batch, and client and broker would take turns.
        batch.limit = min(max(self._max_bytes, unanswered // 2, self._unanswered_bytes // (BUSY_BATCHES // 2)), self._busy_bytes)
        self.open[batch.key] = batch
        if self._adaptive and not unanswered:
            self._eager.append(batch)

    def _leave(self, batch: Batch[_M]) -> None:
        del self.open[batch.key]
        if batch is self._latest:
            self._latest = self._none
            if batch.overhead and batch.queue is None:  # a queue is checked again, as routes change
                following: Batch[_M] = Batch(batch.key)
                following.prefix, following.overhead = batch.prefix, batch.overhead
                self._latest = following
        self._sent(batch)
        self._ready.append(batch)
        self._count(len(batch.members), self._now() - batch.opened_at)

    def _sent(self, batch: Batch[_M]) -> None:
        self._in_flight[batch.key] = self._in_flight.get(batch.key, 0) + batch.size
        self._unanswered += 1
        self._unanswered_bytes += batch.size

    def _count(self, messages: int, lingered: float) -> None:
        self._batches += 1
        self._messages += messages
        self._sizes[messages.bit_length() - 1] += 1
        self._linger_s += lingered
        self._longest_s = max(self._longest_s, lingered)
