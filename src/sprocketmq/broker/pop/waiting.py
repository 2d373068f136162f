"""Pops that wait for a message: woken by an arrival in their topic, by a message that becomes visible again, else at their deadline.

Woken pops are served once, at the end of this turn of the event loop. Pops of the same kind are served in order of arrival, until one
finds nothing.
"""

import asyncio
from collections.abc import Callable, Iterator

from sprocketmq.broker.filters.sql92 import Condition
from sprocketmq.broker.topics import Topic
from sprocketmq.broker.waiting_request import WaitingRequest
from sprocketmq.clock import Clock
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.command import Command

TICK_S = 0.1
# Pops that may wait: of one group at one topic, and of all.
MAX_OF_ONE = 1_024
MAX_WAITING = 100_000


class PopWaiter(WaitingRequest):
    """One checked pop, notification or peek, and whom to answer."""

    __slots__ = (
        "attempt_id",
        "condition",
        "deadline",
        "group",
        "init_mode",
        "invisible_ms",
        "max_count",
        "notifies",
        "order",
        "peeks",
        "queue_id",
        "tag_codes",
        "topic",
        "visits",
    )

    def __init__(
        self,
        conn: ServerConnection,
        command: Command,
        group: SubscriptionGroupConfig,
        topic: Topic,
        queue_id: int,
        *,
        max_count: int,
        invisible_ms: int,
        init_mode: int,
        filters: tuple[frozenset[int] | None, Condition | None],
        order: bool,
        attempt_id: str,
        notifies: bool = False,
        peeks: bool = False,
    ) -> None:
        super().__init__(conn, command)
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.max_count = max_count
        self.invisible_ms = invisible_ms
        self.init_mode = init_mode
        self.tag_codes, self.condition = filters
        self.order = order
        self.attempt_id = attempt_id
        self.notifies = notifies
        self.peeks = peeks
        self.deadline = 0.0
        # The queues in the order in which it looks at them, while it waits for the disk.
        self.visits: list[tuple[int, int]] | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """The key of pops that find the same messages."""
        return self.group.group_name, self.queue_id, self.tag_codes, self.condition, self.order, self.attempt_id, self.notifies


class PopWaiters:
    """The pops that wait. ``serve(waiter)`` answers one if it finds something and tells whether; ``expire(waiter)`` answers with nothing.

    ``due(topic)`` tells whether a message of the topic has become visible again.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        serve: Callable[[PopWaiter], bool],
        expire: Callable[[PopWaiter], None],
        due: Callable[[Topic], bool],
    ) -> None:
        self._clock = clock
        self._serve = serve
        self._expire = expire
        self._due = due
        self.count = 0
        self._by_topic: dict[Topic, dict[PopWaiter, None]] = {}
        self._by_conn: dict[ServerConnection, set[PopWaiter]] = {}
        self._of_one: dict[tuple[str, str], int] = {}
        self._woken: dict[Topic, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[PopWaiter]:
        return iter([waiter for waiters in self._by_topic.values() for waiter in waiters])

    def waiting(self, group: str, topic: Topic, queue_id: int) -> int:
        """Return how many pops of a group wait at one queue, or with -1 at all of them."""
        return sum(waiter.group.group_name == group and waiter.queue_id == queue_id for waiter in self._by_topic.get(topic, ()))

    def admits(self, waiter: PopWaiter) -> bool:
        """Whether there is room for another one."""
        return self.count < MAX_WAITING and self._of_one.get(self._key(waiter), 0) < MAX_OF_ONE

    @staticmethod
    def _key(waiter: PopWaiter) -> tuple[str, str]:
        return waiter.topic.name, waiter.group.group_name

    def hold(self, waiter: PopWaiter) -> None:
        """Hold a pop until its deadline."""
        waiter.keep()
        self._by_topic.setdefault(waiter.topic, {})[waiter] = None
        self._by_conn.setdefault(waiter.conn, set()).add(waiter)
        key = self._key(waiter)
        self._of_one[key] = self._of_one.get(key, 0) + 1
        waiter.topic.pops += 1
        self.count += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def release(self, waiter: PopWaiter) -> None:
        """Stop holding a pop; the caller answers it."""
        waiters = self._by_topic[waiter.topic]
        del waiters[waiter]
        if not waiters:
            del self._by_topic[waiter.topic]
        of_conn = self._by_conn[waiter.conn]
        of_conn.discard(waiter)
        if not of_conn:
            del self._by_conn[waiter.conn]
        key = self._key(waiter)
        self._of_one[key] -= 1
        if not self._of_one[key]:
            del self._of_one[key]
        waiter.topic.pops -= 1
        self.count -= 1

    # --- waking ---

    def wake(self, topic: Topic) -> None:
        """Look at the pops of a topic at the end of this turn of the loop."""
        if topic in self._by_topic and topic not in self._woken:
            if not self._woken:
                asyncio.get_running_loop().call_soon(self._serve_woken)
            self._woken[topic] = None

    def _serve_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for topic in woken:
            nothing: set[tuple[object, ...]] = set()
            for waiter in list(self._by_topic.get(topic, ())):
                if waiter.kind not in nothing and not self._serve(waiter):
                    nothing.add(waiter.kind)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.expire()
        finally:
            if self.count:
                self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def expire(self) -> None:
        """Answer the pops whose deadline has passed, and wake those of topics with messages that became visible again."""
        now = self._clock.monotonic()
        for topic, waiters in list(self._by_topic.items()):
            if self._due(topic):
                self.wake(topic)
            for waiter in [waiter for waiter in waiters if waiter.deadline <= now]:
                if not self._serve(waiter):
                    self.release(waiter)
                    self._expire(waiter)

    # --- ends ---

    def disconnected(self, conn: ServerConnection) -> None:
        """Forget the pops of a connection that ended."""
        for waiter in list(self._by_conn.get(conn, ())):
            self.release(waiter)

    def close(self) -> None:
        """Stop the timer."""
        self._woken.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
