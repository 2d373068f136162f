"""An asyncio event loop in virtual time: when nothing is ready to run, its clock jumps to the next timer.

::

    loop = VirtualLoop(random.Random(7))
    loop.run_until_complete(main())     # asyncio.sleep(3600) takes no time

The loop has no sockets and no threads. Network calls go to ``loop.network`` (``network.py``), and ``run_in_executor`` runs its function on
the loop, as one step at a random moment within ``LONGEST_JOB_S``. Callbacks run in the order in which they became due, so that a run
depends on the seed alone. Tasks hash by the order of their creation: sets of them iterate in the same order in every process.
"""

import asyncio
import contextlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeVar, cast

from sprocketmq.clock import ManualClock

_T = TypeVar("_T")

# How long work in a thread takes: mostly a moment, now and then longer than a client waits before it tries again.
SHORT_JOB_S = 0.002
LONGEST_JOB_S = 0.05
# No timer is due sooner: a deadline that is a rounding error away would be met at the same moment again and again.
LEAST_DELAY_S = 1e-6
# Callbacks at one moment of time after which the loop gives up: some code runs in a circle without waiting.
MOST_CALLBACKS_AT_ONCE = 50_000


class SimulationStuck(Exception):
    """The loop has nothing left to do, does not come forward in time, or has passed its last moment."""


class Pausable(Protocol):
    """What callbacks belong to: while it is ``frozen``, its callbacks are collected in ``parked`` and do not run."""

    frozen: bool
    parked: "deque[VirtualHandle]"


# The process a callback belongs to: inherited by everything that its tasks and callbacks start.
owner: ContextVar[Pausable | None] = ContextVar("owner", default=None)


class VirtualHandle(asyncio.TimerHandle):
    """A callback, due at ``when``."""

    __slots__ = ("owner",)

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: "VirtualLoop", context: Context) -> None:
        super().__init__(when, callback, args, loop, context)
        self.owner = context.get(owner)

    def run(self) -> None:
        self._run()


class _SerialTask(asyncio.Task[Any]):
    def __init__(self, serial: int, work: Coroutine[Any, Any, Any], **more: Any) -> None:
        self._serial = serial
        super().__init__(work, **more)

    def __hash__(self) -> int:
        return self._serial

    def forget(self) -> None:
        """Close what it runs; nobody warns that it has not ended."""
        self._log_destroy_pending = False
        with contextlib.suppress(BaseException):  # a task that does not end may refuse this too
            cast("Coroutine[Any, Any, Any]", self.get_coro()).close()


class _SerialFuture(asyncio.Future[Any]):
    def __init__(self, serial: int, loop: "VirtualLoop") -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class Connector(Protocol):
    """Connections and listeners for the loop."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    async def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.AbstractServer: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. ``rng`` decides when work of executors runs; ``network`` must be set before anything connects.

    It raises SimulationStuck out of ``run_until_complete`` at the time ``last_s``, and after ``most_callbacks`` of them.
    """

    network: Connector

    def __init__(self, rng: random.Random, *, start_s: float = 1000.0, last_s: float = float("inf"), most_callbacks: int = 1 << 62) -> None:
        super().__init__()
        self.last_s = last_s
        self.callbacks = 0
        self.most_callbacks = most_callbacks
        self._rng = rng
        self._now = start_s
        self._due: deque[VirtualHandle] = deque()
        self._timers: list[tuple[float, int, VirtualHandle]] = []
        self._serial = 0
        self._at_once = 0

    # --- time and callbacks ---

    def time(self) -> float:
        return self._now

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def call_soon(  # type: ignore[override]  # asyncio's is generic in the arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        handle = VirtualHandle(self._now, callback, args, self, copy_context() if context is None else context)
        self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no other threads

    def call_at(  # type: ignore[override]  # asyncio's is generic in the arguments
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        handle = VirtualHandle(when, callback, args, self, copy_context() if context is None else context)
        heapq.heappush(self._timers, (max(when, self._now + LEAST_DELAY_S), self._next_serial(), handle))
        return handle

    def call_later(  # type: ignore[override]  # asyncio's is generic in the arguments
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: it stays in the heap and is skipped when it is due."""

    def _run_once(self) -> None:
        """Run what is due now; called by ``run_forever`` until the loop is stopped."""
        timers, due = self._timers, self._due
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not due:
            if not timers:
                raise SimulationStuck("nothing is left to do: everybody waits for something that nobody will do")
            if timers[0][0] > self._now:
                self._now = timers[0][0]
                self._at_once = 0
            if self._now > self.last_s:
                raise SimulationStuck(f"not done at {self._now:.3f} s, the last moment")
        while timers and timers[0][0] <= self._now:
            due.append(heapq.heappop(timers)[2])
        count = len(due)
        self.callbacks += count
        self._at_once += count
        if self.callbacks > self.most_callbacks:
            raise SimulationStuck(f"not done after {self.callbacks} callbacks, at {self._now:.3f} s")
        if self._at_once > MOST_CALLBACKS_AT_ONCE:
            raise SimulationStuck(f"{self._at_once} callbacks at {self._now:.6f} s: some code does not wait, the next is {due[0]}")
        for _ in range(count):
            handle = due.popleft()
            if handle.cancelled():
                continue
            if (process := handle.owner) is not None and process.frozen:
                process.parked.append(handle)
            else:
                handle.run()

    def resume(self, process: Pausable) -> None:
        """Let the callbacks of a process run that was frozen."""
        process.frozen = False
        self._due += process.parked
        process.parked.clear()

    # --- tasks and futures ---

    def create_future(self) -> "asyncio.Future[Any]":
        return _SerialFuture(self._next_serial(), self)

    def create_task(
        self, coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T], *, name: object = None, context: Context | None = None, **_: Any
    ) -> "asyncio.Task[_T]":
        return _SerialTask(
            self._next_serial(),
            coro,  # type: ignore[arg-type]
            loop=self,
            name=None if name is None else str(name),
            context=context,
        )

    def end_tasks(self) -> None:
        """Cancel all tasks and generators and run until they have ended, so that nothing is left for the garbage collector."""
        left = sorted(asyncio.all_tasks(self), key=hash)
        for task in left:
            task.cancel()
        with contextlib.suppress(SimulationStuck):
            if left:
                self.run_until_complete(asyncio.wait(left))
            self.run_until_complete(self.shutdown_asyncgens())
        for task in asyncio.all_tasks(self):
            if isinstance(task, _SerialTask):
                task.forget()

    # --- threads ---

    def run_in_executor(  # type: ignore[override]  # asyncio's is generic in the arguments
        self,
        executor: object,  # noqa: ARG002 - there are no threads
        func: Callable[..., Any],
        *args: Any,
    ) -> "asyncio.Future[Any]":
        """Run ``func`` on the loop after a random time; what it returns is known a little later."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                outcome: Any = func(*args)
                settle: Callable[[Any], None] = future.set_result
            except Exception as e:  # noqa: BLE001 - whoever waits gets it
                outcome, settle = e, future.set_exception
            self.call_later(self.job_s(), lambda: None if future.done() else settle(outcome))

        self.call_later(self.job_s(), run)
        return future

    def job_s(self) -> float:
        """Return a random duration of one half of some work in a thread."""
        longest = LONGEST_JOB_S if self._rng.random() < 0.02 else SHORT_JOB_S
        return self._rng.random() * longest

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncio's signature
        """Nothing to shut down."""

    # --- network ---

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """Every host is an IPv4 address."""
        return [(2, 1, 6, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.listen(protocol_factory, host, port)


class LoopClock(ManualClock):
    """The clock of one machine: the loop's time, and a wall clock that a test may set.

    ``advance``, by which a slow simulated disk takes time, has no effect: nothing on the loop can take time.
    """

    __slots__ = ("_loop", "_skew_ms")

    def __init__(self, loop: VirtualLoop, wall_ms: int = 1_700_000_000_000) -> None:
        super().__init__(wall_ms)
        self._loop = loop
        self._skew_ms = wall_ms - round(loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def time_ms(self) -> int:
        return int(self._loop.time() * 1000) + self._skew_ms

    def advance(self, seconds: float) -> None:
        """Do nothing: the loop alone moves time."""

    def jump_wall(self, seconds: float) -> None:
        self._skew_ms += round(seconds * 1000)


class LoopFlusher:
    """The worker that flushes a log (``broker/flush_thread.py``), on the loop instead of in a thread."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._job: Callable[[], None] | None = None
        self._ended: Callable[[BaseException | None], None] | None = None
        self._asked = 0
        self._busy = False
        self._ending = False

    @property
    def alive(self) -> bool:
        return self._job is not None

    def start(self, job: Callable[[], None], ended: Callable[[BaseException | None], None]) -> None:
        self._job, self._ended = job, ended

    def ask(self) -> None:
        self._asked += 1
        self._next()

    def end(self) -> None:
        self._ending = True
        self._next()

    def join(self) -> None:
        """Nothing runs outside the loop."""

    def _next(self) -> None:
        if self._job is None or self._busy:
            return
        if self._asked:
            self._asked -= 1
            self._busy = True
            self._loop.call_later(self._loop.job_s(), self._run)
        elif self._ending:
            self._end(None)

    def _run(self) -> None:
        self._busy = False
        assert self._job is not None
        try:
            self._job()
        except Exception as e:  # noqa: BLE001 - told to whoever waits for the job, as the thread does
            self._end(e)
        else:
            self._next()

    def _end(self, error: BaseException | None) -> None:
        ended, self._job, self._ended = self._ended, None, None
        if ended is not None:
            ended(error)
