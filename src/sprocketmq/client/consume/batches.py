"""The iterator of ``PushConsumer.batches``."""

from typing import Self

from sprocketmq.client.consume.outcomes import Outcomes
from sprocketmq.client.consume.ready_queues import ReadyQueues
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.client.hook_calls import HandlerCall, HookCalls
from sprocketmq.client.instance import Instance


class Batches:
    """Acknowledges a batch when the loop asks for the next one; gives it back when the iterator is closed or dropped.

    This is a class because a generator that a loop leaves is closed some turns of the event loop later.
    """

    __slots__ = ("_batch", "_call", "_consumer", "_hooks", "_instance", "_outcomes", "_ready")

    def __init__(
        self, consumer: object, instance: Instance, ready: ReadyQueues, outcomes: Outcomes, hooks: HookCalls | None = None
    ) -> None:
        self._hooks = hooks
        self._call: HandlerCall | None = None
        self._consumer = consumer  # kept alive while the loop runs
        self._instance = instance
        self._ready = ready
        self._outcomes = outcomes
        self._batch: ReceivedBatch | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedBatch:
        self._instance.check_loop()
        if self._batch is not None:
            batch, self._batch = self._batch, None
            if self._call is not None:
                self._handled(batch, left=False)
            self._outcomes.acknowledge(batch)
        taken = await self._ready.take()
        if taken is None:
            raise StopAsyncIteration
        self._batch = taken
        if self._hooks is not None:
            self._call = self._hooks.handling(taken.queue, taken.delivered, taken.size_bytes, taken.attempts, iterated=True)
        return taken

    async def aclose(self) -> None:
        """Give back the batch that was not acknowledged."""
        self._instance.check_loop()
        self._give_back()

    def __del__(self) -> None:
        if self._instance.here:
            self._give_back()
        elif self._batch is not None:
            if self._call is not None:
                self._handled(self._batch, left=not self._batch.acknowledged)
            self._instance.soon(self._outcomes.give_back, self._batch)

    def _give_back(self) -> None:
        if self._batch is not None:
            batch, self._batch = self._batch, None
            if self._call is not None:
                self._handled(batch, left=not batch.acknowledged)
            self._outcomes.give_back(batch)

    def _handled(self, batch: ReceivedBatch, *, left: bool) -> None:
        call, self._call = self._call, None
        if self._hooks is not None and call is not None:
            self._hooks.handled(call, retried=batch.retried(), timed_out=batch.timed_out, left=left)
