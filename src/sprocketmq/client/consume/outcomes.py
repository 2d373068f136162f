"""The outcomes of a batch after its handler has ended: acknowledged, sent back, handed out again, or timed out."""

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from sprocketmq.client.consume.give_backs import GiveBacks
from sprocketmq.client.consume.group_member import GroupMember
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.consume.pull_loop import PullLoops
from sprocketmq.client.consume.ready_queues import ReadyQueues
from sprocketmq.client.consume.received_batch import BEHIND, DEAD_LETTER, ReceivedBatch
from sprocketmq.client.instance import Instance
from sprocketmq.client.stats import ConsumerCounts
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.records import ReceivedMessage

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

# A message that no broker took back is handed out again here after this time.
LOCAL_RETRY_S = 5.0
# Delay level of messages whose handler timed out.
TIMED_OUT_LEVEL = 3


class Outcomes:
    """Settles the batches of one push consumer.

    ``give_backs`` sends failed messages to the broker. In an ``orderly`` consumer they are handed out again after ``suspend_s`` instead, up
    to ``max_times``. A handler may take ``timeout_s``. ``tasks`` are those that give messages back now.
    """

    def __init__(
        self,
        instance: Instance,
        member: GroupMember,
        pulls: PullLoops,
        ready: ReadyQueues,
        give_backs: GiveBacks,
        *,
        orderly: bool,
        max_times: int,
        suspend_s: float,
        timeout_s: float,
        counts: ConsumerCounts,
    ) -> None:
        self._counts = counts
        self.tasks: set[asyncio.Task[None]] = set()
        self._instance = instance
        self._member = member
        self._pulls = pulls
        self._ready = ready
        self._give_backs = give_backs
        self._orderly = orderly
        self._max_times = max_times
        self._suspend_s = suspend_s
        self._timeout_s = timeout_s

    def acknowledge(self, batch: ReceivedBatch) -> None:
        """Count ``batch`` as consumed, except for messages given to ``retry``."""
        self._instance.check_loop()
        self._count(batch)
        self._end(batch, batch.to_retry(failed=False, orderly=self._orderly))

    def failed(self, batch: ReceivedBatch, error: BaseException) -> None:
        """Log that the handler of ``batch`` raised ``error``, and redeliver the messages that it did not mark done."""
        self._count(batch)
        self._counts.handler_failures.add(error)
        again = batch.to_retry(failed=True, orderly=self._orderly)
        log.error(
            "consumer group %s: a handler failed for %d messages of %s from offset %d; %d of them %s",
            self._member.group,
            len(batch.delivered),
            batch.queue,
            batch.delivered[0].queue_offset,
            len(again),
            "are dropped, as the group broadcasts" if self._member.broadcasting else "come again",
            exc_info=error,
        )
        self._end(batch, again)

    def give_back(self, batch: ReceivedBatch) -> None:
        """Hand ``batch`` out again: no handler processed it."""
        pq = self._member.queues.get(batch.queue)
        if pq is not None and pq.give_back(batch):
            self._member.batch_ended(pq)
            self._ready.offer_if_ready(pq)

    async def check_overdue(self) -> None:
        """Send back the messages that handlers have held for longer than the timeout."""
        before = self._instance.clock.monotonic() - self._timeout_s
        for pq in list(self._member.queues.values()):
            for batch in pq.overdue(before):
                batch.timed_out = True
                self._counts.timed_out += 1
                again = [(m, level or TIMED_OUT_LEVEL) for m, level in batch.to_retry(failed=True)]
                log.warning(
                    "consumer group %s: a handler has held %d messages of %s from offset %d for over %g s; %d of them %s",
                    self._member.group,
                    len(batch.delivered),
                    batch.queue,
                    batch.delivered[0].queue_offset,
                    self._timeout_s,
                    len(again),
                    "are dropped, as the group broadcasts" if self._member.broadcasting else "are sent back",
                )
                self._end(batch, again)

    def _end(self, batch: ReceivedBatch, again: list[tuple[ReceivedMessage, int]]) -> None:
        """Count ``batch`` as consumed except for ``again``. Without effect if it has timed out, or its queue was released or moved."""
        pq = self._member.queues.get(batch.queue)
        if pq is None:
            return
        if not again or self._member.broadcasting:
            pq.finish(batch)
            self._go_on(pq)
            return
        rest = pq.finish(batch, [message for message, _ in again])
        if rest is not None:
            self._counts.retried += len(rest)
        if rest is not None and self._orderly:
            self._suspend(pq, rest, again)
        elif rest is not None:
            self._settle(self._send_back(pq, rest, again), rest, LOCAL_RETRY_S)
        self._go_on(pq)

    def _count(self, batch: ReceivedBatch) -> None:
        if not batch.counted:
            batch.counted = True
            self._counts.handled(len(batch.delivered), self._instance.clock.monotonic() - batch.taken_at)

    def _go_on(self, pq: ProcessQueue) -> None:
        if not pq.full:
            self._pulls.go_on(pq)
        if self._orderly:
            self._member.batch_ended(pq)
            self._ready.offer_if_ready(pq)

    def _settle(self, work: Coroutine[Any, Any, None], rest: ReceivedBatch, delay_s: float) -> None:
        """Run ``work``, which brings messages of ``rest`` to a broker. Those left when it ends or fails are handed out again later."""
        task = self._instance.spawn(work, f"messages of {rest.queue} given back")
        self.tasks.add(task)

        def ended(_: object) -> None:
            self.tasks.discard(task)
            if rest:
                self._again_later(rest, delay_s)

        task.add_done_callback(ended)

    def _again_later(self, rest: ReceivedBatch, delay_s: float) -> None:
        self._instance.timers.call_later(delay_s, lambda: self.give_back(rest))

    async def _send_back(self, pq: ProcessQueue, rest: ReceivedBatch, levels: list[tuple[ReceivedMessage, int]]) -> None:
        pq.consumed(rest, await self._give_backs.send(pq, levels))
        self._go_on(pq)
        for message in rest:
            message.failures += 1

    # --- ordered queues ---

    def _suspend(self, pq: ProcessQueue, rest: ReceivedBatch, marks: list[tuple[ReceivedMessage, int]]) -> None:
        """Hand the messages of an ordered queue out again after a pause; those that failed too often become dead letters first."""
        failed = [(message, mark) for message, mark in marks if mark != BEHIND]
        given_up = [message for message, mark in failed if mark == DEAD_LETTER or message.reconsume_times >= self._max_times]
        for message, _ in failed:
            if message not in given_up:
                message.failures += 1
        if given_up:
            self._settle(self._make_dead_letters(pq, rest, given_up), rest, self._suspend_s)
        else:
            self._again_later(rest, self._suspend_s)

    async def _make_dead_letters(self, pq: ProcessQueue, rest: ReceivedBatch, messages: list[ReceivedMessage]) -> None:
        """Publish ``messages`` as dead letters; one that could not be published stays in ``rest``."""
        for message in messages:
            try:
                await self._give_backs.make_dead_letter(pq.queue, message)
            except SprocketError as e:
                log.warning("consumer group %s: message %s did not become a dead letter: %s", self._member.group, message.msg_id, e)
                message.failures += 1
            else:
                pq.consumed(rest, [message])
        self._go_on(pq)
