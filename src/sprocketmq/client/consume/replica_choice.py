"""Which broker of a name answers pulls: the master, a slave, or the one that its last answer suggested."""

from collections.abc import Mapping
from typing import Literal

from sprocketmq.client.consume.pull_requests import PullResult
from sprocketmq.client.routes import MASTER_ID, Route
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue

# The master; a slave where there is one; or the broker that the last answer suggested.
ReadFrom = Literal["master", "slave", "any"]


def check_replica(read_from: object) -> None:
    """Raise ConfigError unless ``read_from`` is one of ReadFrom."""
    if read_from not in ("master", "slave", "any"):
        raise ConfigError(f"read_from must be 'master', 'slave' or 'any', not {read_from!r}")


class ReplicaChoice:
    """Remembers for each queue the broker id that was suggested last. ``routes`` are those of the client, by topic."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes
        self._suggested: dict[MessageQueue, int] = {}

    def broker_id(self, queue: MessageQueue, read_from: ReadFrom, route: Route) -> int:
        """Return the id of the broker to ask for ``queue``; the master's where there is no slave."""
        if read_from == "any":
            return self._suggested.get(queue, MASTER_ID)
        if read_from == "master":
            return MASTER_ID
        return min((broker_id for broker_id in route.addresses.get(queue.broker_name, ()) if broker_id != MASTER_ID), default=MASTER_ID)

    def is_master(self, queue: MessageQueue, address: str) -> bool:
        """Whether ``address`` is the master of the queue's broker, as far as is known."""
        route = self._routes.get(queue.topic)
        return route is None or route.addresses.get(queue.broker_name, {}).get(MASTER_ID) == address

    def note(self, result: PullResult, from_master: bool) -> None:
        """Write down who answered, and which broker the answer suggests for the next pull."""
        if not from_master:
            result.came_from_slave()
        if result.suggested_broker_id != self._suggested.get(result.queue, MASTER_ID):
            self._suggested[result.queue] = result.suggested_broker_id
