"""An interrupt at any point of a call that waits for a loop: it is raised, and the loop and later calls go on."""

import dis
import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from sprocketmq import Message, sync
from sprocketmq.net.loops import Inbox, LoopThread
from sprocketmq.testing import wait_until

# Far more than any call here has.
MOST_POINTS = 20_000

# CPython looks for signals behind these instructions only: a lock taken by ``with`` is always released.
CHECKING = tuple(code for code, name in enumerate(dis.opname) if name.startswith(("CALL", "RESUME", "JUMP_BACKWARD")))


def interrupted_at(number: int, call: Callable[[], object]) -> str | None:
    """Make ``call`` with an interrupt at its point ``number``, and return where that was; None when it has fewer."""
    left, where = number, None

    def enter(frame: FrameType, _: str, __: object) -> Any:
        last = -1

        def step(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left, where, last
            if event == "opcode":
                if last in CHECKING:
                    left -= 1
                    if left == 0:
                        where = f"{frame.f_code.co_qualname} line {frame.f_lineno}"
                        raise KeyboardInterrupt
                last = frame.f_code.co_code[frame.f_lasti]
            return step

        frame.f_trace = step  # before f_trace_opcodes: Python 3.13 looks here then
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    gc.disable()  # an interrupt in a finaliser is lost, whoever left the garbage
    sys.settrace(enter)
    try:
        call()
    except KeyboardInterrupt:
        return where
    finally:
        sys.settrace(None)
        gc.enable()
    assert where is None, f"an interrupt was lost in {where}"
    return None


def everywhere(call: Callable[[], object]) -> Iterator[str]:
    """Make ``call`` again and again, each time with an interrupt at its next point, until it has no more."""
    interrupted_at(0, call)  # Python 3.12 traces the instructions of a function from its second call on
    for number in range(1, MOST_POINTS):
        if (where := interrupted_at(number, call)) is None:
            assert number > 3, "nothing was interrupted"
            return
        yield where
    raise AssertionError("the call does not end")


async def answer() -> int:
    return 42


@pytest.fixture
def thread():
    made = LoopThread("test-loop").start()
    yield made
    made.stop()


def test_a_blocking_call(thread):
    for where in everywhere(partial(thread.run, answer, 60)):
        assert thread.submit(answer).result(60) == 42, where
        assert thread.alive, where


def test_a_wait_for_the_future_of_a_call(thread):
    for where in everywhere(lambda: thread.submit(answer).result(60)):
        assert thread.run(answer, 60) == 42, where


def test_an_item_for_the_loop(thread):
    taken = []

    def take(items: deque[int]) -> None:
        while items:
            taken.append(items.popleft())

    inbox = Inbox(take)
    for number, _ in enumerate(everywhere(lambda: inbox.put(0, thread.loop)), start=1):
        inbox.put(number, thread.loop)
        wait_until(lambda: taken[-1:] == [number])  # noqa: B023 - called at once


def test_a_start(monkeypatch):
    """Thread.start itself is not interruptible everywhere, for the reason that is given at InterruptibleFuture."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    never = LoopThread("never-started")
    with pytest.raises(KeyboardInterrupt):
        never.start()
    wait_until(never.loop.is_closed)
    assert not never.alive


def test_a_stop():
    made = []

    def stops() -> None:
        made[-1].stop()

    def start() -> None:
        made.append(LoopThread("stopped").start())

    start()
    for _ in everywhere(stops):
        made[-1].stop()
        wait_until(made[-1].loop.is_closed)
        start()
    assert not made[-1].alive


def test_a_send(rocketmq):
    with sync.Producer("interrupted", namesrv=rocketmq.namesrv) as producer:
        producer.send(Message("interrupted-sends", b"first"))
        for where in everywhere(lambda: producer.send(Message("interrupted-sends", b"x"), timeout_s=60)):
            assert producer.submit(Message("interrupted-sends", b"after")).result(60).queue_offset >= 0, where


def filled(rocketmq, topic: str) -> None:
    rocketmq.create_topic(topic, queues=1)
    with sync.Producer("interrupted", namesrv=rocketmq.namesrv) as producer:
        for first in range(0, 1000, 100):
            producer.send_batch([Message(topic, b"%d" % number) for number in range(first, first + 100)])


@pytest.mark.parametrize("size", [1, 3])
def test_a_poll(rocketmq, size):
    filled(rocketmq, f"interrupted-polls-{size}")
    got: list[Any] = []
    with sync.PullConsumer(f"cg-{size}", namesrv=rocketmq.namesrv, consume_from="first") as consumer:
        consumer.subscribe(f"interrupted-polls-{size}")

        def poll() -> None:
            got.extend(consumer.poll(size, timeout_s=60))

        poll()
        for where in everywhere(poll):
            last = len(got) - 1
            poll()
            # Nobody can help between the end of the call and what is done with its result.
            assert got[last + 1].queue_offset == got[last].queue_offset + 1 or "test_a_poll" in where, where


def test_an_iteration(rocketmq):
    filled(rocketmq, "interrupted-batches")
    got: set[int] = set()
    with sync.PushConsumer("cg", "interrupted-batches", namesrv=rocketmq.namesrv, consume_from="first", batch_max=1) as consumer:

        def take() -> None:
            batches = consumer.batches()
            try:
                for _ in range(3):
                    got.update(message.queue_offset for message in next(batches))
            finally:
                batches.close()

        for _ in everywhere(take):
            pass
        for batch in consumer.batches():
            got.update(message.queue_offset for message in batch)
            if len(got) == 1000:
                break
