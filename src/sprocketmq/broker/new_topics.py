"""Topics that are created by their first message: its sends wait until the topic is on disk."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.send_rules import SendRefused
from sprocketmq.broker.topics import OVERLOAD, Topic, TopicTable, check_topic_name, topic_not_exist
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import SendHeader
from sprocketmq.protocol.names import RETRY_PREFIX, SEND_FORBIDDEN_TOPICS

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

# Bodies of sends that wait until their new topic is saved; beyond this, sends are answered with SYSTEM_BUSY.
MAX_PARKED_BYTES = 64 << 20


class NewTopics:
    """Creates topics for sends and parks the sends until the topic table is on disk.

    ``parked`` are the waiting sends by topic. ``saved`` returns the task that ends when the topic table is on disk; then ``send`` takes
    each of them again, ``unavailable`` answers those that cannot be taken, and ``finish`` commits them all.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        *,
        saved: "Callable[[], asyncio.Task[None]]",
        send: Callable[[ServerConnection, Command], None],
        unavailable: Callable[[ServerConnection, Command, BaseException], None],
        finish: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._saved = saved
        self._send = send
        self._unavailable = unavailable
        self._finish = finish
        self.parked: dict[str, list[tuple[ServerConnection, Command]]] = {}
        self.parked_bytes = 0

    def park(self, conn: ServerConnection, command: Command, header: SendHeader, topic: Topic | None) -> None:
        """Create the topic; its sends go on once its entry is on disk, or a crash could leave messages without a topic."""
        name = header.topic
        size = len(command.body)
        if self.parked_bytes + size > MAX_PARKED_BYTES:
            raise SendRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        if topic is None:
            check_topic_name(name)
            if name in SEND_FORBIDDEN_TOPICS:
                raise SendRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
            if name.startswith(RETRY_PREFIX) and self._groups.find(name.removeprefix(RETRY_PREFIX)) is None:
                raise SendRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
            if self._topics.create_for_send(name, header.default_topic, header.default_topic_queue_nums) is None:
                raise topic_not_exist(name)
            self.parked[name] = []
            self._saved().add_done_callback(lambda done: self._resume(name, done))
        self.parked_bytes += size
        command.body = bytes(command.body)
        self.parked[name].append((conn, command))

    def _resume(self, name: str, saving: "asyncio.Task[None]") -> None:
        waiting = self.parked.pop(name)
        error = OSError("the save of the topic table was cancelled") if saving.cancelled() else saving.exception()
        for conn, command in waiting:
            self.parked_bytes -= len(command.body)
            if conn.closed:
                continue
            try:
                if error is not None:
                    self._unavailable(conn, command, error)
                else:
                    self._send(conn, command)
            except Exception as e:  # the other sends wait as well
                log.exception("a send that waited for topic %s failed", name)
                self._unavailable(conn, command, e)
        self._finish()
