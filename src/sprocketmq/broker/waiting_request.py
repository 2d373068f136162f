"""A request that may be answered in a later turn of the loop."""

from sprocketmq.broker.topics import OVERLOAD
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command


class WaitingRequest:
    """Whom to answer. ``loads`` counts the waits for the disk; ``since`` is when handling began, 0 until the request waits."""

    __slots__ = ("command", "conn", "loads", "since")

    def __init__(self, conn: ServerConnection, command: Command) -> None:
        self.conn = conn
        self.command = command
        self.loads = 0
        self.since = 0.0

    def keep(self) -> None:
        """Prepare for an answer in a later turn of the loop."""
        self.command.body = b""  # a view of it would keep the receive buffer alive
        self.since = self.since or self.conn.handling_since

    def answer_busy(self) -> None:
        """Answer that too many requests wait already."""
        self.conn.respond(self.command, ResponseCode.SYSTEM_BUSY, remark=OVERLOAD, since=self.since)

    def answer_error(self, error: Exception) -> None:
        """Answer with an error that was not expected; the caller logs it."""
        remark = f"internal error: {type(error).__name__}: {error}"
        self.conn.respond(self.command, ResponseCode.SYSTEM_ERROR, remark=remark, since=self.since)
