"""Runs handlers: workers that take batches and call a handler with them, and single messages that a broker asks to have handled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from sprocketmq.client.consume.outcomes import Outcomes
from sprocketmq.client.consume.ready_queues import ReadyQueues
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.client.hook_calls import HandlerCall, HookCalls
from sprocketmq.clock import Clock
from sprocketmq.errors import ConfigError
from sprocketmq.net.tasks import begin_soon
from sprocketmq.protocol.bodies import ConsumeDirectlyResult
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage

log = logging.getLogger(__name__)

Handler = Callable[[ReceivedBatch], Awaitable[Any] | Any]

# The consumer whose handler runs in this context.
_caller: ContextVar["Handlers | None"] = ContextVar("sprocketmq_handlers", default=None)


class Handlers:
    """The handlers of one push consumer. ``tasks`` are those that ``listen`` returned and that still run."""

    def __init__(
        self, group: str, ready: ReadyQueues, outcomes: Outcomes, clock: Clock, *, orderly: bool, hooks: HookCalls | None = None
    ) -> None:
        self._hooks = hooks
        self.tasks: set[asyncio.Task[None]] = set()
        self._group = group
        self._ready = ready
        self._outcomes = outcomes
        self._clock = clock
        self._orderly = orderly
        self._handler: Handler | None = None
        self._warned_return_value = False

    @property
    def calling(self) -> bool:
        """Whether the caller is one of these handlers, or a task or thread that works for it."""
        return _caller.get() is self

    def listen(self, handler: Handler, concurrency: int) -> "asyncio.Task[None]":
        """Call ``handler`` with every batch, in up to ``concurrency`` workers; see ``PushConsumer.listen``."""
        if any(not task.done() and not task.cancelling() for task in self.tasks):
            raise ConfigError(
                f"a handler of group {self._group} listens already, and two would divide the batches between them: pass concurrency for"
                " more calls at a time, decide by batch.queue.topic in the handler, or cancel the task of the first listen"
            )
        if self._hooks is not None:
            handler = _observed(handler, self._hooks)
        self._handler = handler
        task = ListenTask(self._listen(handler, concurrency), self._group)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and error is not self._ready.failure:
            log.error("consumer group %s: listening has ended, its handler is no longer called", self._group, exc_info=error)

    async def _listen(self, handler: Handler, concurrency: int) -> None:
        crew = _Crew(lambda: self._work(handler, crew), concurrency)
        try:
            crew.grow()
            while crew.workers:
                for worker in await crew.ended():
                    if worker.cancelled():
                        log.error("consumer group %s: a call of the handler was cancelled, and not by the consumer", self._group)
                        crew.grow()
                    else:
                        worker.result()  # raises the error that ended the consumer
        finally:
            await crew.dismiss()

    async def _work(self, handler: Handler, crew: "_Crew") -> None:
        _caller.set(self)
        while (batch := await self._ready.take()) is not None:
            if not self._ready.waiting:
                crew.grow()  # for the next batch, while this one is handled
            try:
                result = handler(batch)
                if hasattr(result, "__await__"):
                    result = await result
            except Exception as e:  # noqa: BLE001 - a handler's error fails its batch
                self._outcomes.failed(batch, e)
            except asyncio.CancelledError as e:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    self._outcomes.give_back(batch)
                    raise
                self._outcomes.failed(batch, e)  # something that the handler awaited was cancelled, not this worker
            except BaseException:
                self._outcomes.give_back(batch)
                raise
            else:
                if result is not None:
                    self._warn_return_value(result)
                self._outcomes.acknowledge(batch)

    def _warn_return_value(self, result: object) -> None:
        if not self._warned_return_value:
            self._warned_return_value = True
            log.warning(
                "consumer group %s: the handler returned %r, which is ignored: a batch is consumed when the handler returns;"
                " raise, or call batch.retry(message), to have messages delivered again",
                self._group,
                result,
            )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Call the handler with a message that an operator chose. It belongs to no queue: nothing is committed or sent back."""
        result = ConsumeDirectlyResult(order=self._orderly)
        if self._handler is None:
            result.consume_result = "CR_RETURN_NULL"
            result.remark = "this consumer iterates over batches() and has no handler to call: use listen()"
            return result
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        batch = ReceivedBatch([message], queue, len(message.stored_body), 0, 0, lambda _: None)
        started = self._clock.monotonic()
        called = _caller.set(self)
        try:
            returned = self._handler(batch)
            if hasattr(returned, "__await__"):
                await returned
        except Exception as e:
            log.warning("consumer group %s: the handler failed for message %s, sent by a broker", self._group, message.msg_id, exc_info=e)
            result.consume_result = "CR_THROW_EXCEPTION"
            result.remark = f"{type(e).__name__}: {e}"
        else:
            if batch.to_retry(failed=False):
                result.consume_result = "CR_LATER"
        finally:
            _caller.reset(called)
        result.spent_time_mills = round((self._clock.monotonic() - started) * 1000)
        return result


class _Crew:
    """The workers of one ``listen``: as many as have been busy at a time, one more, and at most ``limit``. ``work()`` is what each does.

    Idle workers are memory, and objects for the garbage collector to visit: of 20 that a consumer may have, most need few.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], limit: int) -> None:
        self.workers: set[asyncio.Task[None]] = set()
        self._work = work
        self._limit = limit
        self._ended: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    def grow(self) -> None:
        """Start a worker, unless there are enough."""
        if len(self.workers) < self._limit:
            worker = begin_soon(asyncio.get_running_loop(), self._work())
            self.workers.add(worker)
            worker.add_done_callback(self._note)

    def _note(self, worker: "asyncio.Task[None]") -> None:
        self.workers.discard(worker)
        self._ended.append(worker)
        self._changed.set()

    async def ended(self) -> list["asyncio.Task[None]"]:
        """Return the workers that have ended since the last call; there is at least one."""
        await self._changed.wait()
        self._changed.clear()
        ended, self._ended = self._ended, []
        return ended

    async def dismiss(self) -> None:
        """Cancel the workers and return when they have ended."""
        workers = [*self.workers]
        for worker in workers:
            worker.cancel()
        # The error that ended the consumer ended several workers at once: every one's is retrieved.
        await asyncio.gather(*workers, *self._ended, return_exceptions=True)


def _observed(handler: Handler, hooks: HookCalls) -> Handler:
    """Wrap ``handler`` between the calls of ``handling`` and ``handled``."""

    def observed(batch: ReceivedBatch) -> object:
        call = hooks.handling(batch.queue, batch.delivered, batch.size_bytes, batch.attempts)
        return handler(batch) if call is None else between(batch, call)

    async def between(batch: ReceivedBatch, call: HandlerCall) -> object:
        error: BaseException | None = None
        try:
            result = handler(batch)
            if hasattr(result, "__await__"):
                result = await result
        except BaseException as e:
            error = e
            raise
        finally:
            hooks.handled(call, retried=batch.retried(failed=error is not None), timed_out=batch.timed_out, error=error)
        return result

    return observed


class ListenTask(asyncio.Task[None]):
    """The task of ``PushConsumer.listen``. A task group starts its own tasks and refuses this one; its error shows what to call instead."""

    def __init__(self, work: Coroutine[Any, Any, None], group: str) -> None:
        super().__init__(work)
        self._group = group

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "ended" if self.done() else "running"
        return f"<the task of listen() of group {self._group!r}, {state}; for a task group: create_task(consumer.run(handler))>"
