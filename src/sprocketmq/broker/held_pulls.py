"""Pulls that are held until a message arrives.

A pull that finds nothing and may wait is held: an arrival in its queue that its tags let through wakes it, else its deadline. Held
pulls share one timer; none has a task of its own.

A pull for a rare tag may find a long stretch of other messages before it when it wakes. It is read piece by piece, and in one turn of the
event loop held pulls are given no more than about a millisecond together; they go on in the next turn, one piece each, after everybody
else's requests.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import ceil

from sprocketmq.broker.checked_pull import Pull, response_code
from sprocketmq.broker.topics import Topic
from sprocketmq.clock import Clock
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.storage.store import ReadResult, ReadStatus

log = logging.getLogger(__name__)

TICK_S = 0.1
MAX_SUSPEND_S = 120.0
# What held pulls may use of one turn of the loop, in looks at a queue unit (80 ns), and the fixed cost of a read and its answer in that
# unit. Less than 1.5 ms; the last read may exceed it by what one read may look at.
TURN_WORK = 16_000
READ_WORK = 200

_NO_MATCH = ReadStatus.NO_MATCHED_MESSAGE


class HeldPulls:
    """Pulls that wait for messages; those of a connection that has had any are also in its ``attachment``, a set.

    ``read(pull)`` reads for a pull that wakes, and ``answer(pull, result)`` answers it. ``moved(pull, offset)`` answers one whose group
    continues at another offset.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        read: Callable[[Pull], ReadResult],
        answer: Callable[[Pull, ReadResult], None],
        moved: Callable[[Pull, int], None],
    ) -> None:
        self._clock = clock
        self._read = read
        self._answer = answer
        self._moved = moved
        self.count = 0
        self.deadlines: dict[int, dict[Pull, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self._work = 0  # of this turn of the loop
        self._woken: deque[Pull] = deque()

    def hold(self, pull: Pull, seconds: float) -> None:
        """Hold ``pull`` until a message for it arrives, for at most ``seconds``."""
        pull.keep()
        pull.tick = tick = ceil((self._clock.monotonic() + min(seconds, MAX_SUSPEND_S)) / TICK_S)
        pull.held = True
        pull.due = pull.woken = False
        pull.topic.held.setdefault(pull.queue_id, {})[pull] = None
        if pull.conn.attachment is None:
            pull.conn.attachment = set()
        pull.conn.attachment.add(pull)
        self.count += 1
        self.deadlines.setdefault(tick, {})[pull] = None
        if self._timer is None or tick < self._timer_tick:
            self._schedule(tick)

    def release(self, pull: Pull) -> None:
        """Stop holding ``pull``; the caller answers it."""
        pull.held = False
        waiting = pull.topic.held.get(pull.queue_id)
        if waiting is not None:
            waiting.pop(pull, None)
            if not waiting:
                del pull.topic.held[pull.queue_id]
        pull.conn.attachment.discard(pull)
        same_tick = self.deadlines.get(pull.tick)
        if same_tick is not None:
            same_tick.pop(pull, None)
            if not same_tick:
                del self.deadlines[pull.tick]
        self.count -= 1

    def _schedule(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        delay = max(0.0, tick * TICK_S - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._deadline)

    def _deadline(self) -> None:
        self._timer = None
        try:
            self.expire()
        finally:
            if self.deadlines:
                self._schedule(min(self.deadlines))

    def expire(self) -> None:
        """Answer the held pulls whose deadline has passed."""
        now = self._clock.monotonic() / TICK_S
        for tick in [tick for tick in self.deadlines if tick <= now]:
            for pull in self.deadlines.pop(tick):
                pull.due = True
                self._wake(pull)

    def _wake(self, pull: Pull) -> None:
        """Read for a held pull now, or in the next turn of the loop when this one has done enough."""
        if pull.woken:
            return
        if self._work < TURN_WORK:
            self._serve(pull)
        else:
            pull.woken = True
            self._woken.append(pull)

    def _serve(self, pull: Pull) -> None:
        """Read for a held pull, and answer it unless it has to go on waiting or reading."""
        if not self._work:
            asyncio.get_running_loop().call_soon(self._next_turn)
        try:
            self._read_on(pull)
        except Exception as e:  # the other held pulls are served all the same
            log.exception("a held pull of topic %s, queue %d, cannot be answered", pull.topic.name, pull.queue_id)
            if pull.held:
                self.release(pull)
            pull.conn.respond(pull.command, ResponseCode.SYSTEM_ERROR, ext={}, remark=f"internal error: {type(e).__name__}: {e}")

    def _read_on(self, pull: Pull) -> None:
        result = self._read(pull)
        self._work += READ_WORK + result.work
        if not pull.due:
            if result.status is _NO_MATCH:
                # Only messages with other tags: go on after them. The answer at the deadline tells the client how far the scan got.
                pull.offset = result.next_offset
                if result.next_offset < result.max_offset:
                    pull.woken = True
                    self._woken.append(pull)
                return
            if response_code(result.status, pull.offset) == ResponseCode.PULL_NOT_FOUND:
                return
        self.release(pull)
        self._answer(pull, result)

    def _next_turn(self) -> None:
        """Continue the woken pulls that were not read to the end, one read for each."""
        self._work = 0
        woken = self._woken
        while woken and self._work < TURN_WORK:
            pull = woken.popleft()
            pull.woken = False
            if pull.held:  # otherwise it was answered, or its connection ended
                self._serve(pull)

    def arrived(self, topic: Topic, queue_id: int, tags_code: int | None) -> None:
        """Wake the pulls on a queue whose filter matches ``tags_code``; None stands for several tags."""
        for pull in list(topic.held.get(queue_id, ())):
            codes = pull.tag_codes
            if codes is not None and tags_code is not None and tags_code not in codes:
                continue
            self._wake(pull)

    def offset_reset(self, group: str, topic: Topic, queue_id: int, offset: int) -> None:
        """Answer the held pulls of a group on a queue with ``offset``, where the group continues.

        Several pulls may wait, as a former owner of the queue cannot take its pull back. None of them counts as informed: the next pull is
        answered like that again.
        """
        for pull in list(topic.held.get(queue_id, ())):
            if pull.group.group_name == group and pull.offset != offset:
                self.release(pull)
                self._moved(pull, offset)

    def ends_at(self, topic: Topic, queue_id: int, end: int) -> None:
        """Answer pulls held beyond the end of a queue, which was longer on the former master: they continue at its end."""
        for pull in list(topic.held.get(queue_id, ())):
            if pull.offset > end:
                self.release(pull)
                self._moved(pull, end)

    def disconnected(self, conn: ServerConnection) -> None:
        """Forget the held pulls of a connection that ended."""
        for pull in list(conn.attachment or ()):
            self.release(pull)

    def close(self) -> None:
        """Stop the timer."""
        self._woken.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
