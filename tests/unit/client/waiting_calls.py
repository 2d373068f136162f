"""Calls of producers that wait at several points, and what is to be left of none of them."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sprocketmq import Message, Producer
from sprocketmq.testing import eventually

names = (f"n{i}" for i in itertools.count())


@asynccontextmanager
async def no_task_left():
    """Fail when a task that began in the block is there after it, or when one has failed unseen."""
    loop = asyncio.get_running_loop()
    before, unseen = asyncio.all_tasks(), []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    yield

    def left():
        return asyncio.all_tasks() - before - {asyncio.current_task()}

    await eventually(lambda: not left(), what="no task is left")
    assert unseen == []


async def submit_and_flush(producer: Producer) -> None:
    producer.submit(Message("orders", b"x"))
    await producer.flush()


async def send_and_recall(producer: Producer) -> None:
    sent = await producer.send(Message("orders", b"x", deliver_at_ms=round(time.time() * 1000) + 3_600_000))
    await producer.recall(sent.recall_handle)


async def send_many(producer: Producer) -> None:
    await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(20)))


SENDS: dict[str, Callable[[Producer], Awaitable[Any]]] = {
    "send": lambda producer: producer.send(Message("orders", b"x")),
    "send to a new topic": lambda producer: producer.send(Message(next(names), b"x")),
    "send_batch": lambda producer: producer.send_batch([Message("orders", b"x")] * 5),
    "send_oneway": lambda producer: producer.send_oneway(Message(next(names), b"x")),
    "queues": lambda producer: producer.queues(next(names)),
    "flush": submit_and_flush,
    "recall": send_and_recall,
    "gather": send_many,
}
