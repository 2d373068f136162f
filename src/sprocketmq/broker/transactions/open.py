"""Transactions without an outcome: their half messages, and when their producers are asked about them. No I/O."""

from bisect import bisect_left
from collections import Counter, OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter

# About 250 bytes each.
MAX_OPEN = 500_000
# The newest outcomes are remembered: a producer may repeat one.
MAX_ENDED = 50_000
# Marks whose offsets are remembered; more are thinned out, and the saved offset is then a little older.
MAX_MARKS = 1_024


@dataclass(slots=True)
class OpenHalf:
    """A half message: the place of its record, its topic, when its producer is asked next (monotonic), and how often it has been."""

    log_offset: int
    topic: str
    ask_at: float
    checks: int = 0


class OpenTransactions:
    """Half messages without an outcome, by their offset in the queue of halves, which only grows."""

    def __init__(self) -> None:
        self._open: dict[int, OpenHalf] = {}
        self._due: list[tuple[float, int]] = []
        self._ended: OrderedDict[int, int] = OrderedDict()
        # Offsets in the queue of marks, with the highest half message that a mark up to there names.
        self._marks: list[tuple[int, int]] = []
        self.by_topic: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return len(self._open) >= MAX_OPEN

    def clear(self) -> None:
        """Forget everything."""
        for container in (self._open, self._due, self._ended, self._marks, self.by_topic):
            container.clear()

    # --- half messages ---

    def add(self, offset: int, half: OpenHalf) -> None:
        """Add a half message. One at the same offset is replaced: its send has failed."""
        known = self._open.get(offset)
        if known is not None:
            self._forget(known)
        self._open[offset] = half
        self.by_topic[half.topic] += 1
        heappush(self._due, (half.ask_at, offset))

    def get(self, offset: int, log_offset: int) -> OpenHalf | None:
        """Return the half message at an offset of queue and log, None when it has an outcome, or is unknown."""
        half = self._open.get(offset)
        return half if half is not None and half.log_offset == log_offset else None

    def end(self, offset: int, outcome: int) -> None:
        """Record the outcome of a transaction."""
        half = self.drop(offset)
        if half is not None:
            self._ended[half.log_offset] = outcome
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def drop(self, offset: int) -> OpenHalf | None:
        """Forget a half message, and return it."""
        half = self._open.pop(offset, None)
        if half is not None:
            self._forget(half)
        return half

    def outcome(self, log_offset: int) -> int | None:
        """Return the outcome of a recently ended transaction."""
        return self._ended.get(log_offset)

    def _forget(self, half: OpenHalf) -> None:
        self.by_topic[half.topic] -= 1
        if not self.by_topic[half.topic]:
            del self.by_topic[half.topic]

    # --- asking ---

    @property
    def next_at(self) -> float | None:
        """When the next producer has to be asked; None without open transactions."""
        due = self._due
        while due and not self._is_current(*due[0]):
            heappop(due)
        return due[0][0] if due else None

    def take_due(self, now: float, count: int) -> list[tuple[int, OpenHalf]]:
        """Return up to ``count`` half messages to ask about. The caller ends, drops or defers each."""
        found: list[tuple[int, OpenHalf]] = []
        due = self._due
        while due and due[0][0] <= now and len(found) < count:
            at, offset = heappop(due)
            if self._is_current(at, offset):
                found.append((offset, self._open[offset]))
        return found

    def defer(self, offset: int, half: OpenHalf, ask_at: float) -> None:
        """Schedule the check of a half message at its producer for ``ask_at``."""
        half.ask_at = ask_at
        heappush(self._due, (ask_at, offset))

    def _is_current(self, at: float, offset: int) -> bool:
        half = self._open.get(offset)
        return half is not None and half.ask_at == at

    # --- progress ---

    def note_mark(self, mark_offset: int, half_offset: int) -> None:
        """Record a mark in its queue, and the highest half message it names; in queue order."""
        highest = max(half_offset, self._marks[-1][1]) if self._marks else half_offset
        self._marks.append((mark_offset, highest))
        if len(self._marks) > MAX_MARKS:
            del self._marks[1::2]

    def progress(self, halves_end: int, marks_end: int) -> tuple[int, int]:
        """Return the first offset that is still needed in the queue of halves, and in that of marks; ``end`` is that of each queue."""
        first = next(iter(self._open), halves_end)
        needed = bisect_left(self._marks, first, key=itemgetter(1))
        if needed == len(self._marks):
            self._marks.clear()
            return first, marks_end
        # The marks before this one name half messages before the first open one. Between the two there may be marks that were thinned out.
        del self._marks[: max(0, needed - 1)]
        return first, self._marks[0][0]
