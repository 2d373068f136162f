"""The request modes of groups: pull or pop, and how many members share a queue (``messageRequestMode.json``)."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.bodies import MessageRequestModes, RequestMode

PULL, POP = "PULL", "POP"
# Entries: one for each group and topic that an administrator has set.
MAX_MODES = 100_000


class RequestModeTable:
    """The modes by topic and group; without one a group pulls, as in the reference. ``changed`` is called after each change."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed
        self._modes: dict[str, dict[str, RequestMode]] = {}

    def get(self, topic: str, group: str) -> RequestMode:
        """Return the mode of a group at a topic."""
        return self._modes.get(topic, {}).get(group) or RequestMode(topic, group, PULL, -1)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return sum(map(len, self._modes.values())) >= MAX_MODES

    def put(self, mode: RequestMode) -> None:
        """Set the mode of a group at a topic."""
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._changed()

    def replace(self, modes: MessageRequestModes) -> None:
        """Replace the table by the master's."""
        if modes.message_request_mode_map != self._modes:
            self._modes = modes.message_request_mode_map
            self._changed()

    def wire(self) -> MessageRequestModes:
        """Return the table as sent over the wire and stored in the file."""
        return MessageRequestModes(self._modes)

    def snapshot(self) -> dict[str, Any]:
        """Return the content for messageRequestMode.json."""
        tree: dict[str, Any] = msgspec.json.decode(self.wire().encode())
        return tree

    def load(self, tree: Mapping[Any, Any]) -> None:
        """Take the content of messageRequestMode.json. Raises RemoteProtocolError when it has another form."""
        self._modes = MessageRequestModes.decode(msgspec.json.encode(tree)).message_request_mode_map
        if any(mode.mode not in (PULL, POP) for modes in self._modes.values() for mode in modes.values()):
            raise RemoteProtocolError("a mode is neither PULL nor POP")
