"""A Spark task's sends when their background tasks fail or are cancelled: who waits is told, and never waits for ever."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from sprocketmq.errors import ClientClosed
from sprocketmq.net.loops import LoopThread
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.sink.sending import Sender

QUEUE = MessageQueue("t", "broker-a", 0)


class Lot:
    """As much of a lot as sending looks at."""

    topic = "t"
    queue = QUEUE
    single = False
    born_ms = 0

    def body(self) -> bytes:
        return b"body"

    def properties(self, _) -> str:
        return ""

    def flag(self) -> int:
        return 0

    def __len__(self) -> int:
        return 1


class Access:
    """A loop in a thread, and a producer that does as ``send`` says."""

    def __init__(self) -> None:
        self.thread = LoopThread("spark-sink-test").start()
        self.background = Background("Spark sink")
        self.ids = SimpleNamespace(next=None)
        self.producer = self
        self.send = None

    async def send_encoded(self, *_, **__) -> None:
        await self.send()

    def close(self) -> None:
        self.thread.run(self.background.close)
        self.thread.stop()


@pytest.fixture
def access():
    made = Access()
    yield made
    made.close()


@pytest.mark.parametrize("ordered", [True, False])
def test_lots_whose_task_is_cancelled_end_with_an_error(access, ordered):
    began = threading.Event()

    async def hangs():
        began.set()
        await asyncio.Event().wait()

    access.send = hangs
    sender = Sender(access, max_in_flight=3, ordered=ordered)
    for _ in range(3):
        sender.put(Lot())
    assert began.wait(60)
    access.thread.call_soon(lambda: [task.cancel() for task in list(access.background._tasks)])
    with pytest.raises(ClientClosed, match="cancelled"):
        sender.finish()
    assert not sender.lanes


@pytest.mark.parametrize("ordered", [True, False])
def test_lots_that_fail_in_the_program_end_with_that_error(access, ordered):
    async def fails():
        raise ValueError("a fault in the program")

    access.send = fails
    sender = Sender(access, max_in_flight=3, ordered=ordered)
    try:
        for _ in range(3):
            sender.put(Lot())
    except ValueError:
        pass
    with pytest.raises(ValueError, match="a fault in the program"):
        sender.finish()
    assert not sender.lanes


@pytest.mark.parametrize("ordered", [True, False])
def test_lots_that_are_sent_are_counted_and_leave_nothing(access, ordered):
    async def sends():
        await asyncio.sleep(0)

    access.send = sends
    sender = Sender(access, max_in_flight=3, ordered=ordered)
    for _ in range(50):
        sender.put(Lot())
    sender.finish()
    assert (sender.rows, sender.requests, sender.bytes) == (50, 50, 200)
    assert not sender.lanes
