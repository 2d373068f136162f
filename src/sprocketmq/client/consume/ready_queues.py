"""Hands out batches: the queues that have messages ready, and the tasks that wait for one."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.client.instance import Instance
from sprocketmq.client.loop_bound import OPEN
from sprocketmq.errors import SprocketError

log = logging.getLogger(__name__)

# While batches are ready, ``take`` yields to the event loop this often, for pulls, heartbeats and the program's own tasks.
YIELD_S = 0.02


class ReadyQueues:
    """Serves the queues in turn, in batches of up to ``batch_max`` messages. ``may_take`` tells whether a queue may be handed out now.

    ``failure`` is the error that ended the consumer, None while it works.
    """

    def __init__(self, instance: Instance, group: str, batch_max: int, may_take: Callable[[ProcessQueue], bool]) -> None:
        self.failure: SprocketError | None = None
        self._instance = instance
        self._group = group
        self._batch_max = batch_max
        self._may_take = may_take
        self._ready: deque[ProcessQueue] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._yield_at = 0.0

    @property
    def waiting(self) -> int:
        """How many tasks wait for a batch."""
        return len(self._takers)

    async def take(self) -> ReceivedBatch | None:
        """Return the next batch, None when the consumer is closed. Raises the error that ended it."""
        clock = self._instance.clock
        while True:
            if clock.monotonic() >= self._yield_at:
                await asyncio.sleep(0)
                self._yield_at = clock.monotonic() + YIELD_S
            # Nothing is awaited from here to the waiter: a consumer closed in between would not wake a later waiter.
            if self.failure is not None:
                raise self.failure
            if self._instance.state != OPEN:
                return None
            batch = self.take_ready()
            if batch is not None:
                return batch
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._wake_one()  # this waiter was woken for a batch that it will not take
                raise

    def take_ready(self) -> ReceivedBatch | None:
        """Return a batch that is ready now, or None."""
        while self._ready:
            pq = self._ready.popleft()
            batch = None if pq.dropped or not self._may_take(pq) else pq.take(self._batch_max, self._instance.clock.monotonic())
            if batch is not None:
                if pq.ready:
                    self.offer(pq)
                return batch
        return None

    def offer(self, pq: ProcessQueue) -> None:
        """Record that ``pq`` has messages, once for each batch, so that queues take turns. A surplus entry finds nothing and is dropped."""
        self._ready.append(pq)
        self._wake_one()

    def offer_if_ready(self, pq: ProcessQueue) -> None:
        """Do as ``offer`` if ``pq`` would hand out a batch now."""
        if pq.ready:
            self.offer(pq)

    def fail(self, error: SprocketError) -> None:
        """End the consumer: every ``take`` raises ``error`` from now on. Only the first error counts."""
        if self.failure is None:
            log.error("consumer group %s ends: %s", self._group, error)
            self.failure = error
            self.wake_all()

    def wake_all(self) -> None:
        """Wake every waiting task, so that it looks at the state of the consumer."""
        for waiter in self._takers:
            if not waiter.done():
                waiter.set_result(None)
        self._takers.clear()

    def _wake_one(self) -> None:
        while self._takers:
            waiter = self._takers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
