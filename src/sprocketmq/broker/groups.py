"""Subscription groups: the settings of each consumer group, online or not, and the topics that it may not read."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sprocketmq.broker.attributes import GROUP_ATTRIBUTES, AttributeRefused, change_attributes
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import FatalError
from sprocketmq.events import event
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import DataVersion, GroupForbidden, SubscriptionGroupConfig, SubscriptionGroupTable
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import GroupForbiddenRequest
from sprocketmq.protocol.names import MAX_GROUP_LENGTH, SYSTEM_GROUPS, name_problem

log = logging.getLogger(__name__)

# Requests create groups; the limit keeps a client that invents names from growing the table for ever.
MAX_GROUPS = 100_000
# Forbidden pairs of group and topic; the whole table is saved with each change.
MAX_FORBIDDEN = 10_000
# The bit for reading in a forbidden table's number.
READ_BIT = 1 << 2


# Attributes of groups in the reference for lite topics, which this broker does not have.
LITE_ATTRIBUTES = frozenset(
    {
        "lite.bind.topic",
        "lite.sub.model",
        "lite.sub.reset.offset.exclusive",
        "lite.sub.reset.offset.unsubscribe",
        "lite.sub.client.quota",
        "lite.sub.client.max.event.cnt",
        "lite.sub.wildcard",
    }
)


class GroupRefused(FatalError):
    """A group that cannot be created or used; ``code`` is the response code that says so."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class GroupTable:
    """All groups by name. ``changed`` is called after each change; the owner saves the file."""

    def __init__(self, *, auto_create: bool, clock: Clock = SYSTEM_CLOCK, changed: Callable[[], None] = lambda: None) -> None:
        self.auto_create = auto_create
        self._clock = clock
        self._changed = changed
        self._forbidden: dict[str, dict[str, int]] = {}
        self.event_log = PeerLog(log, clock.monotonic, level=logging.INFO)  # of what clients create
        self.data_version = DataVersion(0, clock.time_ms(), 0)
        self._groups = {name: SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def load(self, tree: Mapping[Any, Any]) -> None:
        """Take the content of subscriptionGroup.json. Raises RemoteProtocolError when it has another form."""
        table = SubscriptionGroupTable.decode(msgspec.json.encode(tree))
        self._groups.update(table.subscription_group_table)
        self._forbidden = table.forbidden_table
        self.data_version = table.data_version

    def replace(self, table: SubscriptionGroupTable) -> None:
        """Take the groups of the master that is followed, with their data version. The system's groups stay."""
        system = {name: SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS}
        self._groups = {**system, **table.subscription_group_table}
        self._forbidden = table.forbidden_table
        self.data_version = table.data_version
        self._changed()

    def table(self) -> SubscriptionGroupTable:
        """Return all groups in wire form."""
        return SubscriptionGroupTable(dict(self._groups), self._forbidden, self.data_version)

    def snapshot(self) -> dict[str, Any]:
        """Return what subscriptionGroup.json holds."""
        tree: dict[str, Any] = msgspec.json.decode(self.table().encode())
        return tree

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, created when that is allowed; None for an unknown one. Raises GroupRefused for a bad name."""
        group = self._groups.get(name)
        if group is None and self.auto_create:
            group = SubscriptionGroupConfig(name)
            self.put(group)
            self.event_log.event(name, "group_created", group=name)
        return group

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return an existing group, or None."""
        return self._groups.get(name)

    def put(self, *groups: SubscriptionGroupConfig) -> None:
        """Create or replace groups, all or none; their ``attributes`` are changes, whose keys have signs, as in the reference.

        Raises GroupRefused for a bad name, impossible numbers or attributes, or when there are too many.
        """
        changed: dict[str, SubscriptionGroupConfig] = {}
        new = 0
        for group in groups:
            name = group.group_name
            self._check(group)
            if (attributes := self._attributes(group)) != group.attributes:
                group = msgspec.structs.replace(group, attributes=attributes)  # noqa: PLW2901 - as it is kept
            if name in changed:
                raise GroupRefused(ResponseCode.INVALID_PARAMETER, f"the group {name} is given twice")
            if self._groups.get(name) != group:
                changed[name] = group
                new += name not in self._groups
        if new and len(self._groups) + new > MAX_GROUPS:
            raise GroupRefused(ResponseCode.SYSTEM_ERROR, f"this broker has {MAX_GROUPS} subscription groups, its limit")
        if changed:
            self._groups.update(changed)
            self._touch()

    def _check(self, group: SubscriptionGroupConfig) -> None:
        name = group.group_name
        if problem := name_problem(name, MAX_GROUP_LENGTH):
            raise GroupRefused(ResponseCode.INVALID_PARAMETER, f"the specified group {name!r} is illegal: {problem}")
        if group.retry_queue_nums < 0 or group.retry_queue_nums > 1024:
            raise GroupRefused(ResponseCode.INVALID_PARAMETER, f"retryQueueNums[{group.retry_queue_nums}] is outside 0..1024")

    def _attributes(self, group: SubscriptionGroupConfig) -> dict[str, str]:
        """Return a group's attributes after its changes. Attributes in stored form, without signs, change nothing."""
        known = self._groups.get(group.group_name)
        if known is not None and known.attributes == group.attributes:
            return group.attributes
        for name in group.attributes:
            if name[1:] in LITE_ATTRIBUTES:
                remark = f"the attribute {name[1:]} cannot be set: this broker has no lite topics"
                raise GroupRefused(ResponseCode.SYSTEM_ERROR, remark)
        try:
            return change_attributes(None if known is None else known.attributes, group.attributes, GROUP_ATTRIBUTES)
        except AttributeRefused as e:
            raise GroupRefused(ResponseCode.SYSTEM_ERROR, str(e)) from None

    def delete(self, name: str) -> bool:
        """Remove a group; False when there was none."""
        forbidden = self._forbidden.pop(name, None)
        if self._groups.pop(name, None) is None and forbidden is None:
            return False
        self._touch()
        return True

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether an administrator lets a group read a topic."""
        topics = self._forbidden.get(group)
        return topics is None or max(topics.get(topic, 0), 0) & READ_BIT == 0

    def forbid_reading(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again. Raises GroupRefused when too many pairs are forbidden already."""
        if self.may_read(group, topic) != forbidden:
            return
        if forbidden and sum(map(len, self._forbidden.values())) >= MAX_FORBIDDEN:
            remark = f"{MAX_FORBIDDEN} pairs of group and topic are forbidden on this broker, its limit"
            raise GroupRefused(ResponseCode.SYSTEM_ERROR, remark)
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = max(topics.get(topic, 0), 0) ^ READ_BIT
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self._touch()

    def _touch(self) -> None:
        self.data_version = self.data_version.next(self._clock.time_ms())
        self._changed()


class ForbiddingHandlers:
    """Answer 353. ``told`` is called with each group and topic that it may no longer read."""

    def __init__(self, groups: GroupTable, *, told: Callable[[str, str], None]) -> None:
        self._groups = groups
        self._told = told

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid}

    def forbid(self, conn: ServerConnection, command: Command) -> None:
        """Answer 353: forbid a group to read a topic or allow it, as ``readable`` says, and return the new state."""
        request = command.header(GroupForbiddenRequest)
        if request.readable is not None:
            try:
                self._groups.forbid_reading(request.group, request.topic, forbidden=not request.readable)
            except GroupRefused as e:
                conn.respond(command, e.code, remark=e.remark)
                return
            event(
                log,
                logging.INFO,
                "group_permission_changed",
                group=request.group,
                topic=request.topic,
                readable=request.readable,
                by=conn.user,
                peer=conn.peer,
            )
        readable = self._groups.may_read(request.group, request.topic)
        if not readable:
            self._told(request.group, request.topic)
        conn.respond(command, ResponseCode.SUCCESS, remark="", body=GroupForbidden(request.group, request.topic, readable).encode())
