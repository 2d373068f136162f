"""The rules of acknowledgement, all in this module: when a send is answered, with which code, and when readers see it.

::

    log     |<-- on the disk -->|<- on enough replicas ->|<- written ->|<- staged ->|
            0                flushed                replicated      committed
                                ^                        ^             ^
    SYNC_FLUSH    answered -----+                        |             |
    SYNC_MASTER   answered ------------------------------+             |
    neither, or WAIT=false    answered --------------------------------+

A send waits for the disk (SYNC_FLUSH), for replicas (SYNC_MASTER), or for both, in whichever order they get there. It is stored in each
case below, and answered when both have an outcome:

    ============  ====================  ==================================  ====================
                  enough replicas       too late                            too few at the commit
    ============  ====================  ==================================  ====================
    on the disk   SUCCESS               FLUSH_SLAVE_TIMEOUT                 SLAVE_NOT_AVAILABLE
    too late      FLUSH_DISK_TIMEOUT    FLUSH_SLAVE_TIMEOUT                 SLAVE_NOT_AVAILABLE
    ============  ====================  ==================================  ====================

With too few replicas in sync when the send is committed it waits for the disk only. After a failed flush nothing is acknowledged: the
answer is SERVICE_NOT_AVAILABLE.

Readers see the log up to where both have it. What replicas did not get in time, or were too few for, is seen as well, but not before
anything that stands ahead of it in the log.

Nothing here has a clock, a thread or an event loop: callers pass times and offsets.
"""

from collections import deque
from typing import Generic, TypeVar

from sprocketmq.protocol.codes import ResponseCode

STORED = int(ResponseCode.SUCCESS)
DISK_LATE = int(ResponseCode.FLUSH_DISK_TIMEOUT)
REPLICAS_LATE = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
REPLICAS_MISSING = int(ResponseCode.SLAVE_NOT_AVAILABLE)
LOST = int(ResponseCode.SERVICE_NOT_AVAILABLE)

_PENDING = -1

_T = TypeVar("_T")


class _Group:
    """The sends of one commit: its range of the log, its time, the waiting sends, and the outcomes on disk and replicas as codes."""

    __slots__ = ("begin", "disk", "end", "replicas", "sends", "since")

    def __init__(self, begin: int, end: int, since: float, sends: list[object], disk: int, replicas: int) -> None:
        self.begin = begin
        self.end = end
        self.since = since
        self.sends = sends
        self.disk = disk
        self.replicas = replicas


class Acks(Generic[_T]):
    """What waits for disk and replicas, in log order.

    ``sync`` is SYNC_FLUSH; ``replicas`` is the number of slaves that must have a send with SYNC_MASTER, else 0; without either nothing ever
    waits. At most ``max_sends`` wait, for the disk at most ``timeout_s`` and for replicas ``replica_timeout_s``. Nothing more is accepted
    once ``max_bytes`` of the log are not where a waiting send needs them, so a disk or slave that hangs does not let memory grow. The
    waiting objects are the caller's; each is returned exactly once, with its code.

    ``withheld`` is the log offset from which on readers see nothing, as the next master may not have it; None when there is none.
    """

    __slots__ = (
        "_end",
        "_for_disk",
        "_for_replicas",
        "_max_bytes",
        "_replica_timeout_s",
        "_timeout_s",
        "failed",
        "max_sends",
        "replicas",
        "sync",
        "waiting",
        "withheld",
    )

    def __init__(
        self, *, sync: bool, replicas: int = 0, timeout_s: float, replica_timeout_s: float = 3.0, max_sends: int, max_bytes: int
    ) -> None:
        self.sync = sync
        self.replicas = replicas
        self.failed = False
        self.waiting = 0
        self.max_sends = max_sends
        self._timeout_s = timeout_s
        self._replica_timeout_s = replica_timeout_s
        self._max_bytes = max_bytes
        self._end = 0  # of the log after the last commit
        self.withheld: int | None = None
        # A group is in one or both, until the disk or the replicas have an outcome.
        self._for_disk: deque[_Group] = deque()
        self._for_replicas: deque[_Group] = deque()

    @property
    def waits(self) -> bool:
        """Whether sends that ask for it are answered later than their commit."""
        return self.sync or self.replicas > 0

    def admits(self, unflushed: int, end: int = 0, *, waits: bool) -> bool:
        """Return whether one more send is accepted; ``waits``: it will wait.

        ``unflushed`` bytes of the log are not on the disk, and it ends at ``end``.
        """
        behind = self._for_replicas
        return (
            unflushed < self._max_bytes
            and not (behind and end - behind[0].end >= self._max_bytes)
            and not (waits and self.waiting >= self.max_sends)
        )

    def hold(self) -> None:
        """Count a staged send that will wait; ``wait`` or ``release`` must follow."""
        self.waiting += 1

    def release(self, count: int) -> None:
        """Stop counting staged sends that could not be committed."""
        self.waiting -= count

    def wait(self, end: int, now: float, sends: list[_T], *, in_sync: bool = True) -> list[tuple[int, list[_T]]]:
        """Queue the held sends whose commit ended at log offset ``end``, and return those that need not wait, with their code.

        ``in_sync``: enough replicas are. With replicas it is called for every commit, also for one without sends that wait. Ends and times
        never decrease; not to be called after a failure.
        """
        disk = _PENDING if self.sync else STORED
        replicas = STORED if not self.replicas else _PENDING if in_sync else REPLICAS_MISSING
        group = _Group(self._end, end, now, sends, disk, replicas)  # type: ignore[arg-type]
        self._end = end
        if disk == _PENDING:
            self._for_disk.append(group)
        if replicas == _PENDING:
            self._for_replicas.append(group)
        elif disk != _PENDING:
            found: list[tuple[int, list[_T]]] = []
            self._settle(group, found)
            return found
        return []

    def covered(self, flushed: int, replicated: int = 0) -> list[tuple[int, list[_T]]]:
        """Return the sends to answer, with their codes, now that the log is flushed and replicated so far; none after a failure."""
        found: list[tuple[int, list[_T]]] = []
        groups = self._for_disk
        while groups and groups[0].end <= flushed:
            group = groups.popleft()
            group.disk = STORED
            if group.replicas != _PENDING:
                self._settle(group, found)
        groups = self._for_replicas
        while groups and groups[0].end <= replicated:
            group = groups.popleft()
            group.replicas = STORED
            if group.disk != _PENDING:
                self._settle(group, found)
        return found

    def overdue(self, now: float) -> list[tuple[int, list[_T]]]:
        """Remove and return the sends whose timeouts have passed, with their codes."""
        found: list[tuple[int, list[_T]]] = []
        groups = self._for_disk
        while groups and now >= groups[0].since + self._timeout_s:
            group = groups.popleft()
            group.disk = DISK_LATE
            if group.replicas != _PENDING:
                self._settle(group, found)
        groups = self._for_replicas
        while groups and now >= groups[0].since + self._replica_timeout_s:
            group = groups.popleft()
            group.replicas = REPLICAS_LATE
            if group.disk != _PENDING:
                self._settle(group, found)
        return found

    def visible(self, end: int, flushed: int, replicated: int = 0) -> int:
        """Return the log offset up to which readers may see a log that ends at ``end``, and is flushed and replicated so far.

        It may be lower than before, as slaves come and go: what readers have seen stays visible.
        """
        if self.sync:
            end = min(end, flushed)
        if groups := self._for_replicas:
            end = min(end, max(groups[0].begin, replicated))
        return end if self.withheld is None else min(end, self.withheld)

    def agreed(self, end: int) -> None:
        """Make the whole log, which ends at ``end``, visible to readers again: this is the master, or its log equals the master's."""
        self.withheld = None
        self._end = end

    def fail(self) -> list[_T]:
        """Remove and return everything that waits: a flush failed, and how much of it is on the disk is unknown."""
        self.failed = True
        return self.drop()

    def drop(self) -> list[_T]:
        """Remove and return everything that waits, because it must not be acknowledged any more. Readers see no more of it than now."""
        if self._for_replicas and self.withheld is None:
            self.withheld = self._for_replicas[0].begin
        groups = {id(group): group for group in (*self._for_disk, *self._for_replicas)}
        self._for_disk.clear()
        self._for_replicas.clear()
        found: list[_T] = []
        for group in sorted(groups.values(), key=lambda group: group.end):
            self.waiting -= len(group.sends)
            found += group.sends  # type: ignore[arg-type]
        return found

    def _settle(self, group: _Group, found: list[tuple[int, list[_T]]]) -> None:
        """Add a group with both outcomes to ``found``; neighbours with the same code are answered together."""
        if not group.sends:
            return
        self.waiting -= len(group.sends)
        code = group.replicas or group.disk  # the outcome of the replicas is the one that counts
        if found and found[-1][0] == code:
            found[-1][1].extend(group.sends)  # type: ignore[arg-type]
        else:
            found.append((code, group.sends))  # type: ignore[arg-type]

    @property
    def oldest(self) -> float | None:
        """When the longest waiting send was written; None when nothing waits."""
        return min((groups[0].since for groups in (self._for_disk, self._for_replicas) if groups), default=None)

    @property
    def deadline(self) -> float | None:
        """The earliest time at which ``overdue`` has something to do; None when nothing waits."""
        queues = ((self._for_disk, self._timeout_s), (self._for_replicas, self._replica_timeout_s))
        return min((groups[0].since + timeout_s for groups, timeout_s in queues if groups), default=None)


def wants_wait(properties: str) -> bool:
    """Return whether a message asks to be answered only when it is as durable as the broker's mode makes it.

    Property WAIT decides; a message without it, or with an empty value, asks for it.
    """
    if "WAIT\x01" not in properties:
        return True
    for pair in properties.split("\x02"):
        if pair.startswith("WAIT\x01"):
            value = pair[5:]
            return not value or value.lower() == "true"
    return True
