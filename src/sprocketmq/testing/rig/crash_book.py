"""The expectations of a crash test: what was written to a store, and what of it must be there after a restart."""

from dataclasses import dataclass, field

Key = tuple[str, int]


class CrashFound(AssertionError):
    """After a crash the store lacks something, or has something wrong; the text says what and how to repeat it."""


@dataclass(slots=True)
class StagedMessage:
    """One message that was staged, with its place in the log."""

    identity: str
    body: bytes
    physical: int
    end: int


@dataclass
class Book:
    """The messages written to a store, kept by the test that drives it.

    ``queues`` has the messages of each queue by offset, without those of deleted topics. Those that end up to ``committed`` were committed,
    up to ``flushed`` covered by a flush. ``deleting`` is a topic whose deletion has begun, ``expired`` the log offset before which messages
    may have been deleted.
    """

    queues: dict[Key, list[StagedMessage]] = field(default_factory=dict)
    committed: int = 0
    flushed: int = 0
    deleting: str = ""
    expired: int = 0

    def note(self, key: Key, offset: int, written: StagedMessage) -> None:
        """Add a staged message. Raises CrashFound when the store did not give it the next offset."""
        known = self.queues.setdefault(key, [])
        if offset != len(known):
            raise CrashFound(f"queue {key} gave offset {offset} to {written.identity} where {len(known)} was next")
        known.append(written)

    def withdraw(self, end: int) -> None:
        """Remove messages staged after ``end``, which were refused."""
        for known in self.queues.values():
            while known and known[-1].end > end:
                known.pop()

    def deleted(self, topic: str) -> None:
        """Remove a topic that was deleted."""
        self.deleting = ""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]

    def problem(self, key: Key, low: int, high: int, found: dict[int, bytes], durable: int) -> str:
        """Return what is wrong with a queue of these bounds and bodies; messages that end up to ``durable`` must be there."""
        problem = self._problem(key, low, high, found, durable)
        if problem and key[0] == self.deleting and not found and (low, high) == (0, 0):
            return ""
        return problem

    def may_go(self, key: Key, offset: int) -> bool:
        """Whether a message may be missing because it has expired."""
        known = self.queues.get(key, [])
        return offset < len(known) and known[offset].physical < self.expired

    def _problem(self, key: Key, low: int, high: int, found: dict[int, bytes], durable: int) -> str:
        known = self.queues.get(key, [])
        if high > len(known):
            return f"the queue ends at {high}, but only {len(known)} messages were ever sent"
        for offset, body in found.items():
            if offset >= len(known) or known[offset].body != body:
                sent = f"sent was {known[offset].body[:40]!r}" if offset < len(known) else "nothing was sent there"
                return f"offset {offset} has the body {body[:40]!r}, {sent}"
        for offset, written in enumerate(known):
            if written.end <= durable and written.physical >= self.expired and offset not in found:
                return f"{written.identity} at offset {offset} is lost; the queue is [{low}, {high})"
        if high and high - 1 not in found and known[high - 1].physical >= self.expired:
            return f"the queue ends at {high}, but its last message is offset {max(found, default=-1)}"
        return ""
