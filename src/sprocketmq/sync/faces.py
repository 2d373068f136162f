"""The base of the blocking clients: one background thread with an event loop, and the calls that wait for it."""

import atexit
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar
from weakref import WeakSet

from sprocketmq.client.lifecycle import Client, instance_of, left_open, uncopied
from sprocketmq.errors import ClientClosed, ConfigError, ForkedClient, SprocketError
from sprocketmq.net.loops import LoopThread

EXIT_GRACE_S = 5.0

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=Client)
_C_co = TypeVar("_C_co", bound=Client, covariant=True)


# --- the loop thread ----------------------------------------------------------------------------------------------------


class _SharedThread:
    """The loop thread of all open clients: started for the first of them, stopped after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self.thread: LoopThread | None = None

    def acquire(self) -> LoopThread:
        with self._lock:
            if self.thread is None:
                self.thread = LoopThread("sprocketmq-loop").start()
            self._users += 1
            return self.thread

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self.thread is None:
                return
            thread, self.thread = self.thread, None
        thread.stop()

    def forked(self) -> None:
        self._lock = threading.Lock()  # the thread that held it exists only in the parent
        self._users = 0
        self.thread = None


shared_thread: _SharedThread = _SharedThread()
_open_faces: "WeakSet[Face[Any]]" = WeakSet()
# Faces that were collected while open, until the loop has closed their clients.
dropped: "dict[Face[Any], Future[None]]" = {}


def _in_child() -> None:
    shared_thread.forked()
    _open_faces.clear()
    dropped.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _close_all() -> None:
    forgotten = list(_open_faces)
    wait(list(dropped.values()), EXIT_GRACE_S)
    for face in forgotten:
        try:
            face.end(EXIT_GRACE_S)
        except (SprocketError, TimeoutError):
            continue
    for face in forgotten:
        face.warn_unclosed()


# --- the common part ----------------------------------------------------------------------------------------------------------


class Face(Generic[_C_co]):
    """The common part of the blocking clients. ``with`` calls ``start`` and ``close``."""

    def __init__(self, wrapped: _C_co) -> None:
        self._client = wrapped
        self._instance = instance_of(wrapped)
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<sync.", 1)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise uncopied(self)

    def start(self) -> None:
        """Find a nameserver and start. Raises what the async client's ``start`` raises."""
        with self._lock:
            first = self._thread is None
            if first:
                self._thread = shared_thread.acquire()
        try:
            self._call(self._client.start)
        except BaseException:
            if first:
                self._leave()
            raise
        _open_faces.add(self)

    def close(self) -> None:
        """Do what the async client's ``close`` does. Has no effect when closed already, and in a forked child."""
        self.end(None)

    def end(self, timeout_s: float | None) -> None:
        """Do what ``close`` does within ``timeout_s`` seconds, or raise TimeoutError."""
        thread = self._thread
        if thread is None or thread.forked:
            return
        if thread.is_current:
            raise _waits_for_itself()
        try:
            self._call(self._client.close, timeout_s)
        finally:
            self._forget()

    def _forget(self) -> None:
        _open_faces.discard(self)
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            if self._thread is None:
                return
            self._thread = None
        shared_thread.release()

    def __del__(self) -> None:
        thread: LoopThread | None = self.__dict__.get("_thread")  # the constructor may have raised
        if thread is None or not self._instance.home:
            return
        _open_faces.discard(self)
        # Kept alive until the loop has closed its client: accepted messages are still sent, also when the program ends.
        try:
            future = dropped[self] = thread.submit(self._client.close)
        except (ClientClosed, ForkedClient):  # when the program ends, the loop may have stopped already
            pass
        else:
            future.add_done_callback(self._dropped_closed)
        self.warn_unclosed()

    def warn_unclosed(self, warn: Callable[..., None] = warnings.warn) -> None:
        """Warn that this client was not closed."""
        what = f"sync.{type(self).__name__}{left_open(self._client)}"
        warn(f"unclosed {what}: use 'with', or close(), before the program ends", ResourceWarning, source=self, stacklevel=3)

    def _dropped_closed(self, _: "Future[None]") -> None:
        dropped.pop(self, None)
        self._leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open_thread(self) -> LoopThread:
        """Return the loop thread of an open client. Raises ForkedClient, ClientClosed, or ConfigError on the loop's own thread."""
        instance = self._instance
        if not instance.home:
            instance.refuse()
        thread = self._thread
        if thread is None:
            raise ClientClosed(f"this {instance.kind} is closed: make a new one")
        return thread

    def _call(self, make: Callable[[], Coroutine[Any, Any, _R]], timeout_s: float | None = None) -> _R:
        thread = self._thread
        if thread is None or thread.is_current:
            raise _waits_for_itself()
        return thread.run(make, timeout_s)


def failure_of(error: BaseException, what: str, ends: str) -> BaseException:
    """Return the error for what a function in a thread of a client has raised: ``error``, if the loop of all clients can take it."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    # SystemExit would end the loop, and a future cannot hold a StopIteration.
    failure = RuntimeError(f"{what} raised {type(error).__name__}, which ends nothing but {ends}")
    failure.__cause__ = error
    return failure


def _waits_for_itself() -> ConfigError:
    return ConfigError("a blocking call on the background loop, as in a callback of submit, would wait for itself: use another thread")


def blocking(method: Callable[Concatenate[_C, _P], Coroutine[Any, Any, _R]]) -> Callable[Concatenate["Face[_C]", _P], _R]:
    """Return the blocking form of an async client's method."""

    @functools.wraps(method)
    def call(self: "Face[_C]", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        self._open_thread()
        return self._call(functools.partial(method, self._client, *args, **kwargs))

    call.__doc__ = inspect.cleandoc(method.__doc__ or "").partition("\n\nExample::")[0]  # the example awaits
    return call


def on_loop(method: Callable[Concatenate[_C, _P], _R]) -> Callable[Concatenate["Face[_C]", _P], _R]:
    """Return the blocking form of an async client's plain method: it runs on the loop, and the caller waits for its result."""

    @functools.wraps(method)
    def call(self: "Face[_C]", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        async def run() -> _R:
            return method(self._client, *args, **kwargs)

        self._open_thread()
        return self._call(run)

    return call


def arguments_of(make: Callable[_P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Give a constructor the arguments of ``make``, for type checkers and ``help``."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        return functools.wraps(make.__init__)(init)

    return decorate
