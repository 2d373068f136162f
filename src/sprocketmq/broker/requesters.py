"""The connections of producers by client id, by which replies name their requester."""

from sprocketmq.net.server import ServerConnection


class Requesters:
    """Finds the connection of a producer. A connection has one client id: that of its last heartbeat as a producer."""

    def __init__(self) -> None:
        self._connections: dict[str, tuple[ServerConnection, ...]] = {}
        self._ids: dict[ServerConnection, str] = {}

    def joined(self, conn: ServerConnection, client_id: str) -> None:
        """Record that the producer ``client_id`` has sent a heartbeat on ``conn``."""
        known = self._ids.get(conn)
        if known == client_id:
            return
        if known is not None:
            self.left(conn)
        self._ids[conn] = client_id
        self._connections[client_id] = (*self._connections.get(client_id, ()), conn)

    def left(self, conn: ServerConnection) -> None:
        """Forget a connection that has no producer any more."""
        client_id = self._ids.pop(conn, None)
        if client_id is None:
            return
        left = tuple(other for other in self._connections.pop(client_id) if other is not conn)
        if left:
            self._connections[client_id] = left

    def find(self, client_id: str) -> ServerConnection | None:
        """Return the newest connection of a producer, None when it has none."""
        connections = self._connections.get(client_id)
        return connections[-1] if connections else None
