"""The state of one group at one queue: the next offset, and the invisible messages, each with the time it becomes visible again.

::

    offset:      ... 40   41   42   43   44   45   46 ...
                 done   given  done  given again   next
                        |            when due
                     the floor: committed as the group's offset

Messages may be acknowledged in any order. The floor is committed as the group's offset: a broker that takes over the
offsets without this state, such as a slave, delivers from there: some messages again, and none is lost.

In order, a message that was acknowledged before an earlier one stays in flight until that one is acknowledged too: when the earlier one is
given again, the later ones follow it once more, as in the reference.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any

# Unacknowledged messages of one queue that a group may have; no more are popped from the queue until some are acknowledged.
MAX_IN_FLIGHT = 10_000
# Done messages leave entries, which are dropped when they outnumber the others by this.
_SLACK = 1_024


class Flight:
    """The state of a message that was delivered for the ``times``-th time and is invisible until ``visible_ms``.

    The messages of one pop share one, until something happens to one of them alone.
    """

    __slots__ = ("first_ms", "popped_ms", "times", "visible_ms")

    def __init__(self, popped_ms: int, visible_ms: int, times: int = 1, first_ms: int = 0) -> None:
        self.popped_ms = popped_ms
        self.visible_ms = visible_ms
        self.times = times
        self.first_ms = first_ms or popped_ms


class PopQueue:
    """The state of one group at one queue. ``committed`` is the floor as it was last committed."""

    __slots__ = ("_due", "_early", "_order", "_ready", "_visible", "attempt_id", "committed", "flights", "next")

    def __init__(self, start: int) -> None:
        self.next = start
        self.committed = start
        self.flights: dict[int, Flight] = {}
        # Of orderly pops: the last one, which its client may repeat.
        self.attempt_id = ""
        # The offsets that were acknowledged before an earlier one.
        self._early: set[int] = set()
        self._order: deque[int] = deque()
        # When messages become visible again, and their offsets: an entry for each pop.
        self._due: list[tuple[int, list[int]]] = []
        # The offsets that have become visible again, and a heap of them that may have more.
        self._visible: set[int] = set()
        self._ready: list[int] = []

    @property
    def floor(self) -> int:
        """The first offset that is not acknowledged."""
        order, flights = self._order, self.flights
        while order and order[0] not in flights:
            order.popleft()
        return order[0] if order else self.next

    @property
    def full(self) -> bool:
        return len(self.flights) >= MAX_IN_FLIGHT

    @property
    def next_due_ms(self) -> int | None:
        """When the next message becomes visible again; 0 for one that is visible already, None without any."""
        if self._first_ready() is not None:
            return 0
        due = self._due
        while due:
            visible_ms, offsets = due[0]
            while offsets:  # from the last one found: done messages are not checked again
                flight = self.flights.get(offsets[-1])
                if flight is not None and flight.visible_ms == visible_ms and offsets[-1] not in self._early:
                    return visible_ms
                offsets.pop()
            heappop(due)
        return None

    def blocks(self, now_ms: int) -> bool:
        """Whether a message is in flight at ``now_ms``: nothing is popped in order until it is acknowledged or visible again."""
        return any(flight.visible_ms > now_ms and offset not in self._early for offset, flight in self.flights.items())

    def _first_ready(self) -> int | None:
        ready = self._ready
        while ready:
            if ready[0] in self._visible:
                return ready[0]
            heappop(ready)
        return None

    # --- delivering ---

    def give(self, offsets: Iterable[int], popped_ms: int, visible_ms: int) -> None:
        """Record messages that are delivered for the first time, in the order of their offsets."""
        given = list(offsets)
        self.flights.update(dict.fromkeys(given, Flight(popped_ms, visible_ms)))
        self._order.extend(given)
        heappush(self._due, (visible_ms, given))
        self._tidy()

    def _tidy(self) -> None:
        """Drop the entries of done messages when there are many."""
        flights = self.flights
        most = 2 * len(flights) + _SLACK
        if len(self._order) > most:
            self._order = deque(sorted(flights))
        if len(self._due) > most:
            self._ready = sorted(self._visible)
            self._due = sorted((flight.visible_ms, [offset]) for offset, flight in flights.items() if offset not in self._visible)

    def take_due(self, now_ms: int) -> int | None:
        """Return the lowest offset that has become visible again, which the caller redelivers or drops."""
        due = self._due
        while due and due[0][0] <= now_ms:
            visible_ms, offsets = heappop(due)
            for offset in offsets:
                flight = self.flights.get(offset)
                if flight is not None and flight.visible_ms == visible_ms and offset not in self._visible and offset not in self._early:
                    self._visible.add(offset)
                    heappush(self._ready, offset)
        first = self._first_ready()
        if first is not None:
            heappop(self._ready)
            self._visible.discard(first)
        return first

    def put_back(self, offset: int) -> None:
        """Undo a ``take_due`` that returned ``offset``."""
        self._visible.add(offset)
        heappush(self._ready, offset)

    def give_again(self, offset: int, popped_ms: int, visible_ms: int) -> Flight:
        """Record that a message is redelivered."""
        before = self.flights[offset]
        # No two pops of a message have the same time: it tells their receipts apart.
        popped_ms = max(popped_ms, before.popped_ms + 1)
        flight = self.flights[offset] = Flight(popped_ms, visible_ms, before.times + 1, before.first_ms)
        self._early.discard(offset)
        heappush(self._due, (visible_ms, [offset]))
        self._tidy()
        return flight

    # --- receipts ---

    def acknowledge(self, offsets: Iterable[int], popped_ms: int) -> list[int]:
        """Forget messages that are done, with the time of their pop; return those for which that was the last one."""
        flights, done = self.flights, []
        for offset in offsets:
            flight = flights.get(offset)
            if flight is not None and flight.popped_ms == popped_ms:
                del flights[offset]
                done.append(offset)
        if self._visible:
            self._visible.difference_update(done)
        if self._early:
            self._drop_early()
        return done

    def acknowledge_in_order(self, offsets: Iterable[int], popped_ms: int) -> list[int]:
        """Do the same for messages that were popped in order; those after an unacknowledged one are kept until it is acknowledged."""
        flights, early = self.flights, self._early
        done = []
        for offset in offsets:
            flight = flights.get(offset)
            if flight is not None and flight.popped_ms == popped_ms and offset not in early:
                early.add(offset)
                done.append(offset)
        self._drop_early()
        return done

    def note_done_in_order(self, offsets: Iterable[int]) -> None:
        """Record messages that ``acknowledge_in_order`` has returned before."""
        self._early.update(offset for offset in offsets if offset in self.flights)
        self._drop_early()

    def _drop_early(self) -> None:
        """Forget the messages that are acknowledged and have none before them that is not."""
        while (first := self.floor) in self._early:
            self.drop(first)

    def drop(self, offset: int) -> None:
        """Forget a message that no longer exists."""
        self.flights.pop(offset, None)
        self._visible.discard(offset)
        self._early.discard(offset)

    def change(self, offset: int, popped_ms: int, now_ms: int, visible_ms: int, *, orderly: bool) -> Flight | None:
        """Change when a message becomes visible again; None when this is not the latest receipt of the message."""
        before = self.flights.get(offset)
        if before is None or before.popped_ms != popped_ms or offset in self._early:
            return None
        self._visible.discard(offset)
        if not orderly:
            popped_ms = max(now_ms, popped_ms + 1)
        flight = self.flights[offset] = Flight(popped_ms, visible_ms, before.times, before.first_ms)
        heappush(self._due, (visible_ms, [offset]))
        self._tidy()
        return flight

    def end_at(self, end: int) -> None:
        """Forget what is past the end of the queue: a crash of the machine lost these messages, and their offsets are reused."""
        self.next = min(self.next, end)
        for offset in [offset for offset in self.flights if offset >= end]:
            self.drop(offset)

    # --- as it is kept ---

    def snapshot(self) -> list[Any]:
        """Return the state as ``restored`` takes it."""
        flights = [[offset, f.popped_ms, f.visible_ms, f.times, f.first_ms] for offset, f in sorted(self.flights.items())]
        return [self.next, self.committed, self.attempt_id, flights, sorted(self._early)]

    @classmethod
    def restored(cls, state: list[Any]) -> "PopQueue":
        """Return the state that ``snapshot`` returned."""
        following, committed, attempt_id, flights, early = state
        queue = cls(following)
        queue.committed, queue.attempt_id = committed, attempt_id
        for offset, popped_ms, visible_ms, times, first_ms in flights:
            queue.flights[offset] = Flight(popped_ms, visible_ms, times, first_ms)
            queue._order.append(offset)
            queue._due.append((visible_ms, [offset]))
        heapify(queue._due)
        queue.note_done_in_order(early)
        return queue
