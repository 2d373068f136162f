"""The interface between the harness and a messaging system: a driver makes topics, producers and consumers.

A driver is a module of ``sprocketmq.omb.drivers`` with a function ``create(config) -> Driver`` (or ``-> LoadingDriver``, for a client
that is not Python and generates the load itself). It imports its client library in ``create`` and raises ConfigError, saying what to
install, when the library is missing.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sprocketmq.omb.plan import WorkerCommand, WorkerPlan, WorkerReport

if TYPE_CHECKING:
    import asyncio

# Called once per delivered batch with the stamps of its messages (microseconds since the epoch) and the sum of their payloads' lengths.
OnReceived = Callable[[Iterable[int], int], None]


class OnDone(Protocol):
    """Takes the outcome of one send; one object serves several messages. ``error`` is None for an acknowledged message.

    The methods are for clients that call back with two arguments, to save a function per message.
    """

    def __call__(self, error: object) -> None: ...

    def answered(self, result: object, error: object) -> None: ...

    def delivered(self, error: object, message: object) -> None: ...


class OmbProducer(Protocol):
    """Sends to one topic."""

    def send(self, key: bytes | None, payload: bytes, done: OnDone, tag: str | None = None) -> bool:
        """Begin to send, and call ``done`` on the loop once it is acknowledged or failed; False: the buffer is full, await ``room``.

        The harness sends many messages between two turns of the loop. A system without tags ignores ``tag``.
        """
        ...

    async def room(self) -> None:
        """Wait until ``send`` accepts a message."""
        ...

    async def flush(self) -> None:
        """Wait until each message was answered."""
        ...

    async def close(self) -> None: ...


class OmbConsumer(Protocol):
    """Receives from one topic as a member of a group; acknowledges what it received."""

    def pause(self) -> None:
        """Receive nothing until ``resume``; messages that were fetched already may still be received."""
        ...

    def resume(self) -> None: ...

    async def close(self) -> None: ...


class TopicDriver(Protocol):
    """What every driver does in the coordinating process. All coroutines run on one loop."""

    name: str

    async def start(self) -> None:
        """Connect; raises a SprocketError that names the address if nobody answers."""
        ...

    async def create_topics(self, topics: Sequence[str], partitions: int) -> None: ...

    async def delete_topics(self, topics: Sequence[str]) -> None: ...

    async def stop(self) -> None: ...


@runtime_checkable
class Driver(TopicDriver, Protocol):
    """A driver whose client runs in the worker's own Python process; one instance per worker."""

    async def producer(self, topic: str) -> OmbProducer: ...

    async def consumer(self, topic: str, subscription: str, received: OnReceived) -> OmbConsumer:
        """Join the group ``subscription``; a new group begins with the first message of the topic."""
        ...


@runtime_checkable
class LoadingDriver(TopicDriver, Protocol):
    """A driver that starts a process which generates the load and measures it."""

    def run_worker(self, plan: WorkerPlan, commands: "asyncio.Queue[WorkerCommand]") -> AsyncIterator[WorkerReport]:
        """Follow the plan and the commands; yield what ``sprocketmq.omb.plan`` says. Ends after the report with ``ended``.

        ``cpu_s`` counts the process that generates the load, not the Python process around it.
        """
        ...
