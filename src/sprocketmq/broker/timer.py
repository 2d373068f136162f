"""Timed messages (those with a delivery time of their own): which ones wait, and which have been delivered.

They are parked in one queue in the order they were sent, and become due in any order. A heap in memory has the delivery time and the queue
offset of each waiting message. A bit for each message from the oldest waiting one on is set once it is delivered; ``config/timers.json``
keeps the bits::

    queue offsets    ... base                                end
    bits                 1 1 1 0 1 0 0 1 1 ...
    heap                       ^   ^ ^           (delivery time, offset, topic)

A start reads the delivery times from the records of those that wait. This is not Apache's timer wheel: Apache's broker does not deliver
these messages, and a store in which some wait in a wheel is refused.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from sys import intern
from typing import Any

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.names import TIMER_TOPIC
from sprocketmq.protocol.properties import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, UNIQ_KEY, find_property
from sprocketmq.storage.store import MessageStore

# A waiting message takes about 150 bytes of memory; each message from the oldest waiting one on takes one bit in memory and in the file.
MAX_WAITING = 1_000_000
MAX_WINDOW = 1 << 25
_STEP = 1024
_DUE, _REAL_TOPIC, _RECALLED, _UNIQ_KEY = (name.encode() for name in (TIMER_OUT_MS, REAL_TOPIC, TIMER_DEL_UNIQKEY, UNIQ_KEY))


class Timers:
    """The timed messages of one store; the owner stages and delivers them."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._heap: list[tuple[int, int, str]] = []
        self._base = 0  # a multiple of 8
        self._bits = bytearray()
        self.delivered = 0
        # Waiting messages by topic; a marker of a recall has none.
        self.by_topic: Counter[str] = Counter()
        # Messages that were recalled, by topic and unique key, until their markers are due.
        self._recalled: set[tuple[str, str]] = set()

    # --- opening ---

    def open(self, tree: Mapping[Any, Any]) -> int:
        """Take the content of timers.json (empty when there is none), and return the end of the log that it refers to.

        Raises RemoteProtocolError when it has another form.
        """
        base, bits, log_offset = tree.get("base", 0), tree.get("delivered", ""), tree.get("logOffset", 0)
        if type(base) is not int or base < 0 or base % 8 or type(log_offset) is not int or type(bits) is not str:
            raise RemoteProtocolError("base, delivered or logOffset has the wrong type or value")
        try:
            self._bits = bytearray(b64decode(bits, validate=True))
        except ValueError:
            raise RemoteProtocolError("delivered is not base64 text") from None
        self._base = base
        self.forget_before(self._store.min_offset(TIMER_TOPIC, 0))
        return log_offset

    def first_waiting(self) -> int | None:
        """Return the log offset of the oldest message that may be waiting, None without one."""
        self._trim()
        offset = max(self._base, self._store.min_offset(TIMER_TOPIC, 0))
        units = self._store.units(TIMER_TOPIC, 0, offset, 1)
        return units[0][0] if units else None

    def load(self) -> None:
        """Find the waiting messages in the queue."""
        self._heap = []
        self.by_topic.clear()
        self._recalled = set()
        offset = max(self._base, self._store.min_offset(TIMER_TOPIC, 0))
        while units := self._store.units(TIMER_TOPIC, 0, offset, _STEP):
            for log_offset, _, _ in units:
                if not self.was_delivered(offset):
                    properties = self._store.properties_at(log_offset)
                    due, topic = None, ""
                    if properties is not None:
                        due = due_of(properties)
                        recalled = recalled_by(properties)
                        if recalled is None:
                            topic = intern(_text(find_property(properties, _REAL_TOPIC)))
                        else:
                            self._recalled.add(recalled)
                    self._heap.append((due or 0, offset, topic))  # a damaged record is handled when it is due: at once
                    self._count(topic)
                offset += 1
        heapify(self._heap)

    def forget_before(self, offset: int) -> None:
        """Count everything before ``offset`` as delivered, because it is no longer in the log."""
        whole = offset // 8 * 8
        if whole > self._base:
            del self._bits[: (whole - self._base) // 8]
            self._base = whole
        for one in range(whole, offset):
            self.mark(one)

    # --- waiting messages ---

    @property
    def used(self) -> bool:
        """Whether there has ever been a timed message."""
        return self._store.max_offset(TIMER_TOPIC, 0) > 0

    @property
    def waiting(self) -> int:
        return len(self._heap)

    def due_times(self) -> list[int]:
        """Return when each waiting message is due, in no order."""
        return [due_ms for due_ms, _, _ in self._heap]

    @property
    def full(self) -> bool:
        """Whether the limit of waiting messages is reached."""
        return len(self._heap) >= MAX_WAITING or len(self._bits) * 8 >= MAX_WINDOW

    @property
    def next_ms(self) -> int | None:
        """When the next message is due, None when none waits."""
        return self._heap[0][0] if self._heap else None

    def add(self, due_ms: int, offset: int, topic: str) -> None:
        """Add the message at queue offset ``offset``; a marker of a recall has ``topic`` ""."""
        topic = intern(topic)  # one text for all messages of a topic
        heappush(self._heap, (due_ms, offset, topic))
        self._count(topic)

    def _count(self, topic: str) -> None:
        if topic:
            self.by_topic[topic] += 1

    def take_due(self, now_ms: int, count: int) -> list[tuple[int, int, str]]:
        """Remove and return up to ``count`` messages that are due: time, offset and topic, earliest first."""
        heap = self._heap
        due: list[tuple[int, int, str]] = []
        while heap and heap[0][0] <= now_ms and len(due) < count:
            entry = heappop(heap)
            due.append(entry)
            if topic := entry[2]:
                self.by_topic[topic] -= 1
                if not self.by_topic[topic]:
                    del self.by_topic[topic]
        return due

    # --- recalled messages ---

    def recall(self, topic: str, uniq_key: str) -> None:
        """Record that a marker is stored for a message."""
        self._recalled.add((topic, uniq_key))

    def is_recalled(self, topic: str, uniq_key: str) -> bool:
        """Return whether a message was recalled."""
        return (topic, uniq_key) in self._recalled

    def forget_recall(self, recalled: tuple[str, str]) -> None:
        """Forget a recall: its marker is due, and so its message was."""
        self._recalled.discard(recalled)

    # --- delivered messages ---

    def mark(self, offset: int) -> None:
        """Record that the message at ``offset`` was delivered."""
        at = offset - self._base
        if at >= 0:
            if at >= len(self._bits) * 8:
                self._bits += bytes(at // 8 + 1 - len(self._bits))
            self._bits[at // 8] |= 1 << at % 8

    def was_delivered(self, offset: int) -> bool:
        at = offset - self._base
        return at < 0 or (at < len(self._bits) * 8 and bool(self._bits[at // 8] >> at % 8 & 1))

    def _trim(self) -> None:
        rest = self._bits.lstrip(b"\xff")
        self._base += 8 * (len(self._bits) - len(rest))
        self._bits = rest

    def tree(self, log_offset: int) -> dict[str, Any]:
        """Return the content for timers.json, which refers to the log up to ``log_offset``."""
        self._trim()
        return {"logOffset": log_offset, "base": self._base, "delivered": b64encode(self._bits).decode()}


def recalled_by(properties: bytes) -> tuple[str, str] | None:
    """Return topic and unique key of the message that a marker recalls, None for the properties of a message."""
    key = find_property(properties, _RECALLED)
    return None if key is None else (_text(find_property(properties, _REAL_TOPIC)), _text(key))


def named(properties: bytes) -> tuple[str, str]:
    """Return the topic and the unique key of a parked message, by which recalls name it."""
    return _text(find_property(properties, _REAL_TOPIC)), _text(find_property(properties, _UNIQ_KEY))


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def due_of(properties: bytes) -> int | None:
    """Return the delivery time (ms) of a parked message, None when it has none."""
    text = find_property(properties, _DUE)
    return int(text) if text and text.isdigit() and len(text) < 19 else None
