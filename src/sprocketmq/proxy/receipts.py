"""Receipt handles: the place of a popped message and its invisible time, as text that clients send back.

``startOffset popTime invisibleTime reviveQueue kind broker queueId queueOffset commitLogOffset``; brokers know the first eight fields. The
kind tells the topic that holds the message: 0 the topic itself, 1 and 2 the group's retry topic by its old and its new name.
"""

import re
from typing import NamedTuple, Self

from sprocketmq.proxy.codes import Code, Refused

NORMAL, RETRY, RETRY_V2 = 0, 1, 2
# Queue that marks pops in order.
ORDERLY_REVIVE_QUEUE = 999

# Numbers, the broker's name, numbers.
_HANDLE = re.compile(r"((?:-?\d+ ){4}\d)[ ]([^ ]+)[ ]((?:-?\d+ ){2}-?\d+)", re.ASCII)
_MAX_LENGTH = 1_000


class Receipt(NamedTuple):
    """One receipt handle."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: int
    broker_name: str
    queue_id: int
    queue_offset: int
    log_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a handle that a client gave. Raises Refused."""
        match = _HANDLE.fullmatch(text) if len(text) <= _MAX_LENGTH else None
        if match is None:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "this is not a receipt handle: give one back as a receive call returned it")
        start, popped, invisible, revive, kind = (int(text) for text in match.group(1).split(" "))
        queue_id, offset, log_offset = (int(text) for text in match.group(3).split(" "))
        if kind not in (NORMAL, RETRY, RETRY_V2) or any(not -1 <= n < 2**63 for n in (start, popped, invisible, offset, log_offset)):
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "this receipt handle has impossible fields")
        return cls(start, popped, invisible, revive, kind, match.group(2), queue_id, offset, log_offset)

    def __str__(self) -> str:
        return f"{self.extra_info} {self.log_offset}"

    @property
    def extra_info(self) -> str:
        """The part that brokers read."""
        return " ".join(str(part) for part in self[:8])

    @property
    def expires_ms(self) -> int:
        """When the message becomes visible again; the handle is void from then on."""
        return self.pop_time_ms + self.invisible_ms

    def topic(self, group: str, topic: str) -> str:
        """Return the topic that holds the message."""
        if self.kind == RETRY:
            return f"%RETRY%{group}_{topic}"
        if self.kind == RETRY_V2:
            return f"%RETRY%{group}+{topic}"
        return topic

    def renewed(self, pop_time_ms: int, invisible_ms: int, revive_queue: int) -> Self:
        """Return the handle after a change of the invisible time, from the broker's answer."""
        start = self.start_offset if revive_queue == ORDERLY_REVIVE_QUEUE else self.queue_offset
        return self._replace(start_offset=start, pop_time_ms=pop_time_ms, invisible_ms=invisible_ms, revive_queue=revive_queue)


def kind_of(stored_topic: str) -> int:
    """Return the kind of the topic that holds a message."""
    if not stored_topic.startswith("%RETRY%"):
        return NORMAL
    return RETRY_V2 if "+" in stored_topic else RETRY


def offsets_of(text: str) -> dict[tuple[int, int], list[int]]:
    """Return the offsets of ``startOffsetInfo`` or ``msgOffsetInfo`` by kind and queue. Raises ValueError."""
    found = {}
    for item in filter(None, text.split(";")):
        kind, queue_id, offsets = item.split(" ")
        found[int(kind), int(queue_id)] = [int(offset) for offset in offsets.split(",")]
    return found


def deliveries_of(text: str) -> dict[tuple[int, int], int]:
    """Return the deliveries before of ``orderCountInfo``, by queue id and offset. Raises ValueError."""
    found = {}
    for item in filter(None, text.split(";")):
        _, place, count = item.split(" ")
        if place.startswith("qo"):
            queue_id, _, offset = place[2:].partition("%")
            found[int(queue_id), int(offset)] = int(count)
    return found
