"""The base of all clients: ``async with``, and a warning when one is dropped without being closed."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import NoReturn, Self

from sprocketmq.client.instance import Instance
from sprocketmq.client.loop_bound import OPEN


class Client(ABC):
    """A client object with an ``Instance``. Background tasks must not keep it alive."""

    _instance: Instance

    @abstractmethod
    async def start(self) -> None:
        """Find a nameserver and start."""

    @abstractmethod
    async def close(self) -> None:
        """Stop and disconnect."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __del__(self) -> None:
        instance: Instance | None = self.__dict__.get("_instance")  # the constructor may have raised
        if instance is not None and instance.state == OPEN:
            instance.dropped(self, f"{instance.kind}{self._left_open()}")

    def __repr__(self) -> str:
        instance: Instance | None = self.__dict__.get("_instance")
        if instance is None:  # the constructor has raised
            return f"<{type(self).__name__}, not made>"
        group = getattr(self, "group", "")
        of = f" of group {group!r}" if group else ""
        return f"<{instance.kind}{of} at {';'.join(instance.namesrv.addresses)}, {instance.state_name}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise uncopied(self)

    def _left_open(self) -> str:
        """Return the warning's text after the kind of the client."""
        group = getattr(self, "group", "")
        return f" of group {group!r}" if group else ""


def uncopied(client: object) -> TypeError:
    """Return the error for a client that is pickled, or copied: it owns connections, which belong to one process."""
    kind = type(client).__name__
    return TypeError(f"a {kind} cannot be copied or sent to another process: make one there, from its arguments")


def instance_of(client: Client) -> Instance:
    """Return the instance of a client, for modules that wrap clients: it is not part of their public API."""
    return client._instance  # noqa: SLF001 - this module's own class


def left_open(client: Client) -> str:
    """Return the text of the warning about an unclosed client after the client's kind."""
    return client._left_open()  # noqa: SLF001 - this module's own class
