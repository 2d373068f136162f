"""The ledger of a reliability test: which messages were sent, acknowledged and received, and whether these agree.

::

    ledger = Ledger(seed=7)
    ledger.sent("a-1", b"...", lane="a")
    ledger.acknowledged("a-1", queue="orders/0", offset=0)
    ledger.received("a-1", b"...", queue="orders/0", offset=0)
    ledger.check().raise_if_bad()

A message is identified by an id that its body contains. A lost message was acknowledged and never received, a phantom was received and
never sent, a wrong one was received with another body. A message that was sent and never acknowledged may be received or not. Messages of
one lane (one sender that waits for each answer, one queue) must be received in the order in which they were sent.
"""

import zlib
from collections.abc import Hashable
from dataclasses import dataclass, field

# How many ids of each kind an error names; the first ones are usually enough to find the cause.
NAMED = 5


class LedgerMismatch(AssertionError):
    """The ledger does not add up; the text has the first ids of each kind of problem and the seed."""


@dataclass(frozen=True)
class LedgerReport:
    """The result: numbers of messages, and the ids of those with a problem, in the order in which they were recorded."""

    sent: int
    acknowledged: int
    received: int
    lost: tuple[str, ...] = ()
    phantom: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    misplaced: tuple[str, ...] = ()  # received at another offset than the acknowledgement said
    disordered: tuple[str, ...] = ()  # received after a later message of its lane
    seed: object = None

    def problems(self, *, duplicates_allowed: bool = False) -> dict[str, tuple[str, ...]]:
        """Return the kinds of problems found, each with its ids."""
        kinds = ("lost", "phantom", "wrong", "misplaced", "disordered", *(() if duplicates_allowed else ("duplicates",)))
        return {kind: getattr(self, kind) for kind in kinds if getattr(self, kind)}

    def raise_if_bad(self, *, duplicates_allowed: bool = False) -> None:
        """Raise LedgerMismatch if there are problems. Where senders retry, a message may be stored twice: use ``duplicates_allowed``."""
        problems = self.problems(duplicates_allowed=duplicates_allowed)
        if problems:
            raise LedgerMismatch(
                f"{self}: " + "; ".join(f"{len(ids)} {kind}, first {', '.join(ids[:NAMED])}" for kind, ids in problems.items())
            )

    def __str__(self) -> str:
        seed = "" if self.seed is None else f" (seed {self.seed})"
        return f"{self.sent} sent, {self.acknowledged} acknowledged, {self.received} received{seed}"


@dataclass
class _Entry:
    crc: int
    number: int
    lane: Hashable
    place: tuple[str, int] | None = None
    acknowledged: bool = False
    received: int = 0


@dataclass
class Ledger:
    """Records events of messages in any order; ``seed`` only appears in errors. Takes about 300 bytes per message."""

    seed: object = None
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _phantom: list[str] = field(default_factory=list)
    _wrong: list[str] = field(default_factory=list)
    _duplicates: list[str] = field(default_factory=list)
    _misplaced: list[str] = field(default_factory=list)
    _places: dict[Hashable, list[tuple[str, int, int, str]]] = field(default_factory=dict)
    _acknowledged: int = 0
    _received: int = 0

    def sent(self, identity: str, body: bytes, *, lane: Hashable = None) -> None:
        """Record a message that is about to be sent; with ``lane`` its order is checked. Raises ValueError for an id used before."""
        if identity in self._entries:
            raise ValueError(f"message id {identity!r} was used before")
        self._entries[identity] = _Entry(zlib.crc32(body), len(self._entries), lane)

    def acknowledged(self, identity: str, *, queue: str | None = None, offset: int = -1) -> None:
        """Record that the message counts as stored, and where, if the answer said so. Raises KeyError when it was never sent."""
        entry = self._entries[identity]
        self._acknowledged += not entry.acknowledged
        entry.acknowledged = True
        if queue is not None:
            entry.place = (queue, offset)

    def received(self, identity: str, body: bytes, *, queue: str, offset: int) -> None:
        """Record a message that was received."""
        self._received += 1
        entry = self._entries.get(identity)
        if entry is None:
            self._phantom.append(identity)
            return
        if zlib.crc32(body) != entry.crc:
            self._wrong.append(identity)
        entry.received += 1
        if entry.received == 2:
            self._duplicates.append(identity)
        elif entry.place is not None and entry.received == 1 and entry.place != (queue, offset):
            self._misplaced.append(identity)
        if entry.lane is not None:
            self._places.setdefault(entry.lane, []).append((queue, offset, entry.number, identity))

    def read_again(self) -> None:
        """Forget what was received, to read everything once more."""
        for entry in self._entries.values():
            entry.received = 0
        self._received = 0
        for noted in (self._phantom, self._wrong, self._duplicates, self._misplaced):
            noted.clear()
        self._places.clear()

    def check(self) -> LedgerReport:
        """Return the result as of now."""
        lost = tuple(identity for identity, e in self._entries.items() if e.acknowledged and not e.received)
        disordered = []
        for places in self._places.values():
            last: dict[str, int] = {}
            for queue, _, number, identity in sorted(places):
                if number < last.get(queue, -1):
                    disordered.append(identity)
                last[queue] = max(number, last.get(queue, -1))
        return LedgerReport(
            len(self._entries),
            self._acknowledged,
            self._received,
            lost,
            tuple(self._phantom),
            tuple(self._wrong),
            tuple(self._duplicates),
            tuple(self._misplaced),
            tuple(disordered),
            self.seed,
        )
