"""When a send is answered, and with which code: the only place for the rules of acknowledging.

::

    log     |<------ on the disk ------>|<- written ->|<- staged ->|
            0                        flushed      committed
                                        ^
    SYNC_FLUSH    answered up to here --+             ^
    ASYNC_FLUSH, or WAIT=false    answered up to here +

A send that waits is answered SUCCESS when the disk has the log up to its end, FLUSH_DISK_TIMEOUT when that takes longer than the limit
(it is stored, and the disk may yet get it), SERVICE_NOT_AVAILABLE when a flush failed: from then on nothing is acknowledged. (A replica's
verified offset joins the rule by handing ``covered`` the smaller of the two offsets.)

Nothing here has a clock, a thread or an event loop: callers pass times and offsets.
"""

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from sprocketmq.protocol.codes import ResponseCode

STORED = int(ResponseCode.SUCCESS)
LATE = int(ResponseCode.FLUSH_DISK_TIMEOUT)
LOST = int(ResponseCode.SERVICE_NOT_AVAILABLE)

_T = TypeVar("_T")


class _Group(NamedTuple):
    """The sends of one commit: where it ended in the log, when that was, what waits."""

    end: int
    since: float
    sends: list[object]


class Acks(Generic[_T]):
    """What waits for the disk, in the order of the log.

    ``sync`` is SYNC_FLUSH; without it nothing ever waits. At most ``max_sends`` wait, each at most ``timeout_s``; nothing more is taken
    once ``max_bytes`` of the log are not on the disk, and so a disk that hangs does not let memory grow. What is waiting is the caller's
    own kind of thing; each comes back exactly once.
    """

    __slots__ = ("_groups", "_max_bytes", "_timeout_s", "failed", "max_sends", "sync", "waiting")

    def __init__(self, *, sync: bool, timeout_s: float, max_sends: int, max_bytes: int) -> None:
        self.sync = sync
        self.failed = False
        self.waiting = 0
        self.max_sends = max_sends
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._groups: deque[_Group] = deque()

    def admits(self, unflushed: int, *, waits: bool) -> bool:
        """Tell whether one more send is accepted while ``unflushed`` bytes of the log are not on the disk; ``waits``: for the disk."""
        return unflushed < self._max_bytes and not (waits and self.waiting >= self.max_sends)

    def hold(self) -> None:
        """Count a staged send that will wait; ``wait`` or ``release`` must follow."""
        self.waiting += 1

    def release(self, count: int) -> None:
        """Stop counting staged sends that could not be committed."""
        self.waiting -= count

    def wait(self, end: int, now: float, sends: list[_T]) -> None:
        """Let held sends wait whose commit ended at log offset ``end``. Ends and times never decrease; not to be called after a failure."""
        self._groups.append(_Group(end, now, sends))  # type: ignore[arg-type]

    def covered(self, flushed: int) -> list[_T]:
        """Return the sends that are on the disk now that the log is flushed up to ``flushed``; none after a failure."""
        groups = self._groups
        found: list[_T] = []
        while groups and groups[0].end <= flushed:
            self._take(found)
        return found

    def overdue(self, now: float) -> list[_T]:
        """Remove and return the sends whose timeout is over."""
        groups = self._groups
        found: list[_T] = []
        while groups and now >= groups[0].since + self._timeout_s:
            self._take(found)
        return found

    def fail(self) -> list[_T]:
        """Remove and return everything that waits: a flush failed, and how much of it is on the disk is unknown."""
        self.failed = True
        found: list[_T] = []
        while self._groups:
            self._take(found)
        return found

    def _take(self, found: list[_T]) -> None:
        group = self._groups.popleft()
        self.waiting -= len(group.sends)
        found += group.sends  # type: ignore[arg-type]

    @property
    def oldest(self) -> float | None:
        """When the longest waiting send was written; None when nothing waits."""
        return self._groups[0].since if self._groups else None

    @property
    def deadline(self) -> float | None:
        """The earliest time at which ``overdue`` returns something; None when nothing waits."""
        return self._groups[0].since + self._timeout_s if self._groups else None


def wants_wait(properties: str) -> bool:
    """Tell whether a message asks to be answered only when it is as durable as the broker's mode makes it.

    Property WAIT says so; a message without one asks for it, and so does one with an empty value (which stands for none).
    """
    if "WAIT\x01" not in properties:
        return True
    for pair in properties.split("\x02"):
        if pair.startswith("WAIT\x01"):
            value = pair[5:]
            return not value or value.lower() == "true"
    return True
