"""Settings of a running broker: which ones requests may change, and the file that keeps the changes.

Nothing here touches security, addresses, the store or what is deleted: those are given when the broker starts, by who may start it.

A change outlives a restart. ``config/changedSettings.json`` holds each changed setting with the value that was given at the start::

    {"brokerPermission":{"value":"4","given":"6"}}

When the value given at a start is another one than then, somebody has edited the configuration since: the edited value counts, and the
change is dropped.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sprocketmq.broker.config import BROKER_PERMISSIONS, MAX_TRANSFER_BYTES_LIMIT, BrokerConfig
from sprocketmq.protocol.settings import Kind, OneOf, Switch, Value, Whole, to_text

log = logging.getLogger(__name__)

# The settings that requests may change: the name in BrokerConfig by Apache's, and what the value may be.
CHANGEABLE: Mapping[str, tuple[str, Kind]] = {
    "brokerPermission": ("broker_permission", OneOf(BROKER_PERMISSIONS)),
    "autoCreateTopicEnable": ("auto_create_topic", Switch()),
    "autoCreateSubscriptionGroup": ("auto_create_group", Switch()),
    "slaveReadEnable": ("slave_read_enable", Switch()),
    "accessMessageInMemoryMaxRatio": ("access_message_in_memory_max_ratio", Whole(0, 100)),
    "maxTransferCountOnMessageInMemory": ("max_transfer_count_on_message_in_memory", Whole(1, 1 << 20)),
    "maxTransferBytesOnMessageInMemory": ("max_transfer_bytes_on_message_in_memory", Whole(1, MAX_TRANSFER_BYTES_LIMIT)),
    "maxTransferCountOnMessageInDisk": ("max_transfer_count_on_message_in_disk", Whole(1, 1 << 20)),
    "maxTransferBytesOnMessageInDisk": ("max_transfer_bytes_on_message_in_disk", Whole(1, MAX_TRANSFER_BYTES_LIMIT)),
    "sendThreadPoolQueueCapacity": ("max_waiting_sends", Whole(1, 10_000_000)),
    "pullThreadPoolQueueCapacity": ("max_held_pulls", Whole(0, 10_000_000)),
    "max_connections": ("max_connections", Whole(1, 1 << 20)),
}
KINDS: Mapping[str, Kind] = {key: kind for key, (_, kind) in CHANGEABLE.items()}


class ChangedSettings:
    """The configuration that a broker was started with, and what requests have changed since."""

    def __init__(self, given: BrokerConfig) -> None:
        self._given = given
        self.changes: dict[str, Value] = {}
        self.config = given

    def take(self, changes: Mapping[str, Value]) -> None:
        """Replace all changes to the given configuration by ``changes``."""
        self.changes = {key: value for key, value in changes.items() if value != self._given_value(key)}
        values: dict[str, Any] = {CHANGEABLE[key][0]: value for key, value in self.changes.items()}
        # Otherwise the old names of the pull limits would override the new ones again.
        self.config = replace(self._given, max_transfer_count=None, max_transfer_bytes=None, **values)

    def _given_value(self, key: str) -> Value:
        value: Value = getattr(self._given, CHANGEABLE[key][0])
        return value

    def load(self, tree: Mapping[Any, Any]) -> None:
        """Take the file's content. An entry that is not valid, or whose setting was given another value since, is logged and left out."""
        changes: dict[str, Value] = {}
        for key, entry in tree.items():
            try:
                given = to_text(self._given_value(key))
                value = KINDS[key].read(str(entry["value"]))
                then = entry["given"]
            except (KeyError, TypeError, ValueError):
                log.warning("changed setting %.60r is not valid and is left out: %.60r", key, entry)
                continue
            if then == given:
                changes[key] = value
            else:
                log.warning("%s was changed to %s while it was %s; it is given as %s now, which counts", key, to_text(value), then, given)
        self.take(changes)

    def snapshot(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {key: {"value": to_text(value), "given": to_text(self._given_value(key))} for key, value in self.changes.items()}
