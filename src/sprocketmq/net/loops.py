"""Event loops in threads of their own: ``LoopThread`` runs one, ``Inbox`` hands it items from other threads.

A signal handler may raise at nearly every instruction of the main thread, as Ctrl-C does. Whatever the main thread was doing here, the loop
and later calls go on.

::

    thread = LoopThread("sprocketmq-loop").start()
    future = thread.submit(lambda: client.send(message))   # a concurrent.futures.Future
    result = thread.run(lambda: client.send(message))      # waits for the result
    thread.stop()

Coroutines are made on the loop. One made by the caller would never be awaited if an interrupt came before it is handed over.
"""

import _thread
import asyncio
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar, cast

from sprocketmq.errors import ClientClosed, ConfigError, ForkedClient, SprocketError

_R = TypeVar("_R")
_T = TypeVar("_T")

# How long ``stop`` waits for the thread: its tasks are cancelled, so it ends soon unless one of them blocks.
STOP_TIMEOUT_S = 5.0
# How long a wait that cannot be interrupted lasts.
_SLICE_S = 0.1


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _loop_of_another_thread() -> asyncio.AbstractEventLoop:
    """Return a new event loop that leaves signals to the loop of this thread: on Windows, one made in the main thread would take them."""
    if sys.platform == "win32" and threading.current_thread() is threading.main_thread():
        before = signal.set_wakeup_fd(-1)
        try:
            return new_event_loop()
        finally:
            signal.set_wakeup_fd(before)
    return new_event_loop()


def ends_program(error: BaseException) -> bool:
    """Whether what a callback has raised is to go on through the event loop and end the program, as ``sys.exit`` or Ctrl-C.

    That is so in the main thread only: in another one it would end the loop alone, and with it what all its other users wait for.
    """
    return not isinstance(error, Exception | asyncio.CancelledError) and threading.current_thread() is threading.main_thread()


def _replaced_threads() -> str | None:
    """Return which library has replaced Python's threads in this process, and the call that leaves them, or None."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, ("_thread", "threading", "queue", "select"))):
        library, call = "gevent", "gevent.monkey.patch_all(thread=False, queue=False, select=False)"
    elif (eventlet := sys.modules.get("eventlet.patcher")) is not None and any(map(eventlet.is_monkey_patched, ("thread", "select"))):
        library, call = "eventlet", "eventlet.monkey_patch(thread=False, select=False)"
    else:
        return None
    return f"{library} has replaced Python's threads; leave them as they are: {call}"


def _acquire(lock: _thread.LockType, timeout_s: float | None) -> bool:
    """Wait for ``lock`` and take it; return False when it is not free within ``timeout_s``. Ctrl-C ends the wait."""
    if sys.platform == "win32":  # Ctrl-C has its effect after the wait there
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not lock.acquire(timeout=min(_SLICE_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
        return True
    return lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


class InterruptibleFuture(Future[_R]):
    """A future whose ``result`` and ``exception`` leave nothing behind when an interrupt ends them.

    Those of ``Future`` take a lock to wait. An interrupt can leave it taken: the thread that sets the result would wait for ever. Here each
    waiting thread sleeps on a lock of its own, which nobody else waits for.
    """

    # Attributes of the class as long as they have these values: most futures of sends have no callback, and many nobody who waits.
    _over = False
    _wakes_first = False
    _sleepers: list[_thread.LockType] | None = None

    def result(self, timeout: float | None = None) -> _R:
        """Do what ``Future.result`` does."""
        self._sleep(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Do what ``Future.exception`` does."""
        self._sleep(timeout)
        return super().exception(0)

    def set_result(self, result: _R) -> None:
        """Do what ``Future.set_result`` does."""
        super().set_result(result)
        self._wake()

    def set_exception(self, exception: BaseException | None) -> None:
        """Do what ``Future.set_exception`` does."""
        super().set_exception(exception)
        self._wake()

    def cancel(self) -> bool:
        """Do what ``Future.cancel`` does."""
        cancelled = super().cancel()
        if cancelled:
            self._wake()
        return cancelled

    def add_done_callback(self, fn: Callable[[Future[_R]], object]) -> None:
        """Do what ``Future.add_done_callback`` does."""
        if not self._wakes_first:  # a callback may ask for the result
            self._wakes_first = True
            super().add_done_callback(_wake_waiting)  # not a bound method, which would keep the future, and its result, in a cycle
        super().add_done_callback(fn)

    def _sleep(self, timeout_s: float | None) -> None:
        if not self._over and not self._ends(timeout_s):
            raise TimeoutError

    def _ends(self, timeout_s: float | None) -> bool:
        """Wait for the end; return False when there is none within ``timeout_s``."""
        sleeper = _thread.allocate_lock()
        sleeper.acquire()
        sleepers: list[_thread.LockType] = self.__dict__.setdefault("_sleepers", [])
        sleepers.append(sleeper)
        if self._over or _acquire(sleeper, timeout_s):
            return True
        with suppress(ValueError):  # it has ended just now
            sleepers.remove(sleeper)
        return False

    def _wake(self) -> None:
        self._over = True  # first: a thread that comes later does not sleep
        sleepers = self._sleepers
        while sleepers:
            sleepers.pop().release()


def _wake_waiting(future: Future[Any]) -> None:
    """Wake the threads that wait for an ``InterruptibleFuture``."""
    cast("InterruptibleFuture[Any]", future)._wake()  # noqa: SLF001 - this module's own class


class LoopThread:
    """An event loop in a daemon thread called ``name``. When the loop stops, the thread cancels the tasks that are left and closes it.

    In a forked child the thread does not exist: ``forked`` is true there, ``submit`` and ``run`` raise ForkedClient, and ``stop`` does
    nothing.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop: asyncio.AbstractEventLoop
        self.ident: int | None = None
        """What ``threading.get_ident()`` returns in the thread; None before ``start``."""
        self.forked = False
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> Self:
        """Start the thread. Raises RuntimeError when the process may have no more threads, and ConfigError when it has none of Python's.

        An event loop in a thread of gevent or eventlet would stop all of them.
        """
        if (replaced := _replaced_threads()) is not None:
            raise ConfigError(f"the thread {self.name} cannot start: {replaced}")
        self.loop = _loop_of_another_thread()
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except BaseException:
            self._stopping = True
            if thread.ident is None:
                self.loop.close()
            else:  # an interrupt has ended the wait for the thread, which runs
                self.loop.call_soon_threadsafe(self.loop.stop)
            raise
        self._thread = thread
        self.ident = thread.ident
        _running.add(self)
        return self

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self.ident

    @property
    def alive(self) -> bool:
        """Whether the thread was started, and neither ``stop`` was called nor has the loop ended by itself."""
        # Thread.is_alive marks a running thread as ended when an interrupt comes inside it.
        return self._thread is not None and not self.forked and not self._stopping

    def submit(self, make: Callable[[], Coroutine[Any, Any, _R]]) -> Future[_R]:
        """Run the coroutine that ``make`` returns on the loop, and return its future; cancelling the future cancels the coroutine.

        Raises ClientClosed when the loop has stopped, and ForkedClient in a forked child.
        """
        future: Future[_R] = InterruptibleFuture()
        self._hand_over(make, future)
        return future

    def run(self, make: Callable[[], Coroutine[Any, Any, _R]], timeout_s: float | None = None) -> _R:
        """Run the coroutine that ``make`` returns on the loop, and return its result. An interrupt, or ``timeout_s``, cancels it.

        Raises TimeoutError, ConfigError on the loop's own thread, and what ``submit`` raises.
        """
        if self.is_current:
            raise ConfigError(f"a blocking call in the thread {self.name} would wait for itself: await the call there instead")
        future: Future[_R] = InterruptibleFuture()
        try:
            self._hand_over(make, future)
            return future.result(timeout_s)
        except BaseException:
            future.cancel()  # has no effect when the work is done
            raise

    def _hand_over(self, make: Callable[[], Coroutine[Any, Any, _R]], future: Future[_R]) -> None:
        if not self.alive:
            raise self._refusal()
        self.call_soon(self._begin, make, future)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, _R]], future: Future[_R]) -> None:
        """Start the task whose end is that of ``future``, unless it was cancelled already."""
        if future.cancelled():
            return
        try:
            made = self.loop.create_task(make())
        except Exception as e:  # noqa: BLE001 - raised to the caller, as for arguments that do not fit
            if future.set_running_or_notify_cancel():
                future.set_exception(e)
            return
        task: asyncio.Task[_R] | None = made

        def cancelled(future: Future[_R]) -> None:
            if (running := task) is not None and future.cancelled():
                with suppress(RuntimeError):  # the loop was closed just now, and has cancelled its tasks
                    self.loop.call_soon_threadsafe(running.cancel)

        def ended(done: "asyncio.Task[_R]") -> None:
            # Else the task would be collected with the future, in the caller's thread: an interrupt during its finalisers is lost.
            nonlocal task
            task = None
            error = None if done.cancelled() else done.exception()
            if done.cancelled():
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        future.add_done_callback(cancelled)
        made.add_done_callback(ended)

    def call_soon(self, action: Callable[..., object], *arguments: object) -> None:
        """Call ``action`` on the loop in its next turn. Raises what ``submit`` raises."""
        try:
            self.loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:
            raise self._refusal() from None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the loop and wait up to ``timeout_s`` seconds for the thread's end, unless the thread itself calls. May be called twice."""
        thread = self._thread
        if thread is None or self.forked:
            return
        self._stopping = True
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            thread.join(timeout_s)

    def _refusal(self) -> SprocketError:
        return ForkedClient(self.name) if self.forked else ClientClosed(f"the event loop in the thread {self.name} has stopped")

    def _run(self) -> None:
        loop = self.loop
        if self._stopping:  # its start was interrupted
            loop.close()
            return
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            self._stopping = True
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            _running.discard(self)


# A forked child keeps its copies of the parent's loops: closing or collecting one would close file descriptors that it shares.
_running: set[LoopThread] = set()


def _mark_in_child() -> None:
    for thread in _running:
        thread.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_in_child)


class Inbox(Generic[_T]):
    """Items from other threads for a loop, in order. ``take(items)`` is called on the loop and empties the deque.

    Items that are put before the loop gets to them share one wake-up.
    """

    __slots__ = ("_items", "_take", "_waking")

    def __init__(self, take: Callable[[deque[_T]], None]) -> None:
        self._take = take
        self._items: deque[_T] = deque()
        self._waking = False

    def put(self, item: _T, loop: asyncio.AbstractEventLoop) -> None:
        """Queue ``item`` for the consumer on ``loop``, the same loop for all items. Raises ClientClosed when the loop is closed."""
        self._items.append(item)
        if not self._waking:
            try:
                self._waking = True
                loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                self._waking = False
                raise ClientClosed("the event loop that was to take this has stopped") from None
            except BaseException:  # an interrupt, before or after the loop was woken
                loop.call_soon_threadsafe(self._wake)
                raise

    def _wake(self) -> None:
        self._waking = False  # before the items are taken: what is put from now on wakes the loop again
        self._take(self._items)
