"""Background tasks: their owners, and what happens when a task ends while its owner lives.

Every task of a client, broker or nameserver is created here. A task that fails, or is cancelled by code that does not own it, is logged as
an error. A task that has to live as long as its owner is started again::

    background = Background("broker-a")
    background.keep("registration", self._keep_registered)     # started again, after 0.1 s, 0.2 s ... 30 s
    background.every(5.0, self.save_offsets, "offset saves")   # a run that fails is logged, and the next one follows
    background.spawn(self._answer(request), "an answer")       # runs once
    await background.close()                                   # cancelled by the owner: nothing is logged

Several tasks can wait for one by ``share`` or ``settled``: cancelling a waiter then cancels nothing else. All begin in the loop's next turn
(``begin_soon``), so that whoever creates a task can note it before it runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from inspect import isawaitable
from typing import Any, TypeVar

from sprocketmq.errors import SprocketError

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Pause before a kept task is started again: doubled each time, and reset when the task ran for SOUND_S.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
SOUND_S = 60.0


class _Stray(RuntimeError):
    """A task was cancelled by code that does not own it."""


class Background:
    """The background tasks of one ``owner``, its name in log lines. Belongs to one event loop."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.closed: bool = False
        self.kept: set[Kept] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, _T], name: str, *, awaited: bool = False) -> "asyncio.Task[_T]":
        """Run ``work`` once, until it ends or the owner closes. A failure is logged, unless ``awaited``: others wait for the task."""
        task = begin_soon(asyncio.get_running_loop(), work, name=f"{self.owner}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._heard if awaited else self._ended)
        return task

    def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "Kept":
        """Run ``work()`` until it returns, is stopped, or the owner closes; after any other end, which is logged, it is run again."""
        kept = Kept(self, name, work)
        self.kept.add(kept)
        return kept

    def every(
        self,
        period_s: float,
        job: Callable[[], Awaitable[Any] | None],
        name: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> "Kept":
        """Run ``job`` every ``period_s`` seconds. Errors are logged, and the next run follows all the same."""

        async def repeat() -> None:
            while True:
                await sleep(period_s)
                if self.closed:
                    return
                try:
                    done = job()
                    if isawaitable(done):
                        await done
                except SprocketError as e:
                    log.warning("%s: %s: %s", self.owner, name, e)
                except Exception:
                    log.exception("%s: %s failed, again in %g s", self.owner, name, period_s)

        return self.keep(name, repeat)

    def retire(self) -> None:
        """Restart nothing; running tasks continue until ``close``."""
        self.closed = True

    def cancel(self) -> list["asyncio.Task[Any]"]:
        """Cancel everything except the caller's own task, and return the tasks that may not have ended yet."""
        self.closed = True
        current = _current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        ending = [*self._tasks, *(kept.task for kept in list(self.kept) if kept.stop())]
        return [task for task in ending if task is not current]

    async def end(self, task: "asyncio.Task[Any] | None") -> None:
        """Cancel one task that ``spawn`` made, as its owner, and return when it has ended: nothing is logged."""
        if task is None or task.done():
            return
        task.remove_done_callback(self._ended)
        self._tasks.discard(task)
        task.cancel()
        await asyncio.wait([task])
        self._heard(task)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Stop what is kept, and wait up to ``timeout_s`` seconds for the tasks that ``spawn`` made; ``close`` cancels the rest."""
        self.closed = True
        current = _current_task()
        stopped = [kept.task for kept in list(self.kept) if kept.stop() and kept.task is not current]
        if stopped:
            await asyncio.wait(stopped)
        waited_for = [task for task in self._tasks if task is not current]
        if waited_for:
            await asyncio.wait(waited_for, timeout=timeout_s)

    async def close(self) -> None:
        """Cancel everything and return when it has ended. May be called twice."""
        ending = self.cancel()
        if ending:
            await asyncio.wait(ending)

    def _heard(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the waiters may be gone

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            if (error := task.exception()) is not None:
                log.error("%s failed", task.get_name(), exc_info=error)
        elif not self.closed:
            # A loop that shuts down cancels all tasks as well, and does not run later calls.
            task.get_loop().call_later(FIRST_PAUSE_S, self._report_cancelled, task.get_name())

    def _report_cancelled(self, name: str) -> None:
        if not self.closed:
            log.error("%s was cancelled by code that does not own it: its work is not done", name)


class Kept:
    """A task that lives as long as its owner. ``task`` is the current or last asyncio task."""

    def __init__(self, background: Background, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self._background = background
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._cancelled = False
        self._pause_s = FIRST_PAUSE_S
        self._timer: asyncio.TimerHandle | None = None
        self._run()

    @property
    def alive(self) -> bool:
        """Whether it runs or will be started again."""
        return not self._stopped

    def stop(self) -> bool:
        """Cancel it for good (the caller's own task is left running); return whether it was alive."""
        if self._stopped:
            return False
        self._finish()
        if self.task is not _current_task():
            self.task.cancel()
        return True

    def _finish(self) -> None:
        self._stopped = True
        self._background.kept.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        if self._cancelled:
            self._cancelled = False
            log.error("%s: %s was cancelled by code that does not own it; it runs again", self._background.owner, self.name)
        self._began = self._loop.time()
        self.task: asyncio.Task[None] = begin_soon(self._loop, self._work(), name=f"{self._background.owner}: {self.name}")
        self.task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._cancelled = task.cancelled()
        error = None if self._cancelled else task.exception()
        if self._stopped or self._background.closed or not (self._cancelled or error):
            self._finish()
            if error is not None and not isinstance(error, SprocketError):
                log.error("%s: %s failed while it was stopped", self._background.owner, self.name, exc_info=error)
            return
        if self._loop.time() - self._began >= SOUND_S:
            self._pause_s = FIRST_PAUSE_S
        if error is not None:
            log.error("%s: %s failed, it runs again in %g s", self._background.owner, self.name, self._pause_s, exc_info=error)
        self._timer = self._loop.call_later(self._pause_s, self._run)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


def begin_soon(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T], name: str | None = None) -> "asyncio.Task[_T]":
    """Create a task that begins in the loop's next turn, also where the program's task factory would begin it at once.

    ``asyncio.eager_task_factory`` of Python 3.12 does so: a task could end, and look itself up, before its creator has it.
    """
    if loop.get_task_factory() is None:
        return loop.create_task(work, name=name)
    return asyncio.Task(work, loop=loop, name=name)


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs: the owner is closed from outside
        return None


async def share(task: "asyncio.Future[_T]", gone: Callable[[], BaseException]) -> _T:
    """Wait for a task that others wait for too, and return its result.

    Cancelling a waiter does not cancel the task. When the task's owner cancels it, waiters get ``gone()`` instead of a CancelledError, as
    they were not cancelled themselves.
    """
    await settled(task)
    if task.cancelled():
        raise gone()
    return task.result()


async def settled(task: "asyncio.Future[Any]") -> None:
    """Wait until a task has ended, successfully or not. Cancelling the waiter does not cancel the task."""
    if not task.done():
        await asyncio.wait((task,))


async def all_of(works: Iterable[Awaitable[_T]]) -> list[_T]:
    """Wait for all of them and return their results, or raise the first error once all have ended, so that none runs on unnoticed."""
    waited_for = list(works)
    if not waited_for:
        return []
    results = await asyncio.gather(*waited_for, return_exceptions=True)
    for error in [result for result in results if isinstance(result, BaseException)]:
        raise (
            _Stray("a part of the work was cancelled by code that does not own it") if isinstance(error, asyncio.CancelledError) else error
        )
    return results  # type: ignore[return-value]  # none is an exception
