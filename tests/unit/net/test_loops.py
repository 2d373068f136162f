"""Loops in threads of their own: how they start, stop, refuse work, and what a forked child sees of them."""

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace

import pytest

from sprocketmq.errors import ClientClosed, ConfigError
from sprocketmq.net.loops import Inbox, InterruptibleFuture, LoopThread
from sprocketmq.testing import wait_until


@pytest.fixture
def thread():
    made = LoopThread("test-loop").start()
    yield made
    made.stop()


async def where() -> int:
    return threading.get_ident()


async def nothing() -> None:
    pass


def test_work_runs_in_the_thread_of_the_loop(thread):
    assert thread.run(where) == thread.submit(where).result(60) == thread.ident
    assert thread.alive
    assert not thread.is_current
    assert [each.name for each in threading.enumerate() if each.ident == thread.ident] == ["test-loop"]


def test_work_that_fails_raises_in_the_caller_and_the_loop_goes_on(thread):
    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        thread.run(fails)
    assert thread.run(where) == thread.ident


def test_the_coroutine_is_made_on_the_loop(thread):
    made_in = []

    def make():
        made_in.append(threading.get_ident())
        return nothing()

    thread.run(make)
    assert made_in == [thread.ident]


def test_arguments_that_do_not_fit_raise_in_the_caller_and_the_loop_goes_on(thread):
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given"):
        thread.run(lambda: where(1))
    assert thread.run(where) == thread.ident


def test_work_that_is_cancelled_before_the_loop_gets_to_it_never_begins(thread):
    go = threading.Event()
    began = []
    thread.call_soon(go.wait, 60)
    waiting = thread.submit(lambda: began.append(1) or nothing())
    assert waiting.cancel()
    go.set()
    thread.run(nothing)
    assert began == []


def test_an_interrupt_right_after_the_work_was_handed_over_cancels_it(thread, monkeypatch):
    hand_over = thread.call_soon
    began, ended = threading.Event(), threading.Event()

    async def hangs() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted(*arguments):
        hand_over(*arguments)
        assert began.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "call_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.run(hangs)
    assert ended.wait(60)


def test_work_that_takes_too_long_is_cancelled(thread):
    begun, ended = threading.Event(), threading.Event()

    async def hangs() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    while not begun.is_set():  # a busy machine may let the time pass before it begins
        with pytest.raises(TimeoutError):
            thread.run(hangs, timeout_s=0.01)
    assert ended.wait(60)


def test_a_blocking_call_on_the_loop_itself_is_refused(thread):
    async def waits_for_itself() -> None:
        thread.run(nothing)

    with pytest.raises(ConfigError, match="the thread test-loop would wait for itself"):
        thread.run(waits_for_itself)


def test_a_stop_cancels_what_is_left_and_refuses_what_comes_later(thread):
    began = threading.Event()

    async def hangs() -> None:
        began.set()
        await asyncio.Event().wait()

    left = thread.submit(hangs)
    assert began.wait(60)
    thread.stop()
    thread.stop()
    assert left.cancelled()
    assert not thread.alive
    assert thread.loop.is_closed()
    for refused in (lambda: thread.run(nothing), lambda: thread.submit(nothing), lambda: thread.call_soon(print)):
        with pytest.raises(ClientClosed, match="the event loop in the thread test-loop has stopped"):
            refused()


def test_a_loop_stops_itself_without_waiting(thread):
    async def stops() -> None:
        thread.stop()

    thread.submit(stops).result(60)
    wait_until(thread.loop.is_closed)


@pytest.mark.parametrize(
    ("module", "asked", "library"),
    [("gevent.monkey", "is_module_patched", "gevent"), ("eventlet.patcher", "is_monkey_patched", "eventlet")],
)
def test_no_loop_starts_in_a_thread_of_another_library(monkeypatch, module, asked, library):
    """The loop would stop all greenlets. ``tests/unit/client/test_event_loops.py`` has a program with gevent."""
    replaced = {"thread", "threading"}
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: replaced.__contains__}))
    with pytest.raises(ConfigError, match=f"cannot start: {library} has replaced Python's threads; leave them as they are: {library}"):
        LoopThread("loop").start()
    replaced.clear()
    LoopThread("loop").start().stop()


def test_a_thread_that_was_never_started_stops():
    LoopThread("never").stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_refuses_and_does_not_touch_the_parents_loop(thread):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            thread.stop()
            try:
                thread.run(nothing)
            except Exception as e:
                os.write(write, f"{thread.forked} {thread.alive} {e}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1000) == b"True False this test-loop was created before the process forked; create a new one in the child process"
    os.close(read)
    os.close(write)
    assert thread.run(where) == thread.ident


def test_items_arrive_in_order_and_share_a_wake_up(thread):
    began, go = threading.Event(), threading.Event()
    rounds: list[list[int]] = []

    def take(items: deque[int]) -> None:
        rounds.append([items.popleft() for _ in range(len(items))])

    def blocks() -> None:
        began.set()
        go.wait(60)

    inbox = Inbox(take)
    thread.call_soon(blocks)
    assert began.wait(60)
    for item in range(100):
        inbox.put(item, thread.loop)
    go.set()
    wait_until(lambda: len(rounds) == 1)
    inbox.put(100, thread.loop)
    wait_until(lambda: len(rounds) == 2)
    assert rounds == [[*range(100)], [100]]


def test_no_item_is_lost_while_several_threads_put(thread):
    taken: list[int] = []

    def take(items: deque[int]) -> None:
        while items:
            taken.append(items.popleft())

    inbox = Inbox(take)

    def put(first: int) -> None:
        for item in range(first, first + 5000):
            inbox.put(item, thread.loop)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        putting = [threading.Thread(target=put, args=(5000 * i,)) for i in range(4)]
        for each in putting:
            each.start()
        for each in putting:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    wait_until(lambda: len(taken) == 20_000)
    assert sorted(taken) == [*range(20_000)]
    for first in range(0, 20_000, 5000):
        assert [item for item in taken if first <= item < first + 5000] == [*range(first, first + 5000)]


def test_an_item_for_a_stopped_loop_is_refused(thread):
    inbox = Inbox(deque.clear)
    thread.stop()
    for _ in range(2):
        with pytest.raises(ClientClosed):
            inbox.put(1, thread.loop)


def test_a_wait_may_time_out_and_be_made_again(thread):
    go = threading.Event()

    async def waits() -> int:
        await asyncio.get_running_loop().run_in_executor(None, go.wait, 60)
        return 42

    future = thread.submit(waits)
    for wait in (future.result, future.exception):
        for timeout_s in (0, -1, 0.001):
            with pytest.raises(TimeoutError):
                wait(timeout_s)
    go.set()
    assert future.exception(60) is None
    assert future.result() == 42


def test_a_future_with_a_callback_is_freed_when_it_is_dropped():
    """Answers to pulls have megabytes, and the garbage collector counts objects only."""
    gc.disable()
    try:
        future: InterruptibleFuture[set[int]] = InterruptibleFuture()
        future.add_done_callback(lambda _: None)
        future.set_result({1})
        result = weakref.ref(future.result())
        del future
        assert result() is None
    finally:
        gc.enable()


def ends_of(future: InterruptibleFuture[int]) -> tuple[list[threading.Thread], list[object]]:
    """Start three threads that wait for ``future``; return them and the list in which they put what they get."""
    got: list[object] = []

    def take() -> None:
        try:
            got.append(future.result(60))
        except (ValueError, CancelledError) as e:
            got.append(type(e))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for each in threads:
        each.start()
    return threads, got


@pytest.mark.parametrize("callbacks", [0, 1, 2])
@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda future: future.set_result(7), 7),
        (lambda future: future.set_exception(ValueError("x")), ValueError),
        (lambda future: future.cancel(), CancelledError),
    ],
    ids=["result", "exception", "cancelled"],
)
def test_every_waiting_thread_and_callback_gets_the_end_of_a_future(end, outcome, callbacks):
    future: InterruptibleFuture[int] = InterruptibleFuture()
    asked: list[object] = []

    def ask(done: Future[int]) -> None:
        try:
            asked.append(done.result(0))
        except (ValueError, CancelledError) as e:
            asked.append(type(e))

    for _ in range(callbacks):
        future.add_done_callback(ask)
    threads, got = ends_of(future)
    end(future)
    for each in threads:
        each.join(60)
    assert got == [outcome] * 3
    future.add_done_callback(ask)
    assert asked == [outcome] * (callbacks + 1)
    assert future.done()
