"""Consumer offsets: the position of each group in each queue (codes 14, 15 and 43)."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.cold_reads import ColdReads, DiskReads
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.memory import memory_bytes
from sprocketmq.broker.topics import TopicTable
from sprocketmq.broker.waiting_request import WaitingRequest
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import ConsumerOffsets, DataVersion
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import QueryConsumerOffset, UpdateConsumerOffset
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

SEPARATOR = "@"
# A member of a slave's consumerOffset.json that only this project has.
OWN_TABLE = "ownOffsetTable"
# A field of 15 that only our slaves send: what they hand over counts when it is higher, as another slave may have handed over more.
HANDED_OVER = "handedOver"
# The reference counts a table version per this many commits, as slaves copy the table when it changes.
COMMITS_PER_VERSION = 500
# A first message within this distance of the log's end counts as recent: 40 % of the memory, as in the reference.
YOUNG_BYTES = memory_bytes() * 2 // 5


class OffsetTable:
    """Committed offsets by topic, group and queue. ``dirty`` is set by changes and cleared by the code that saves them.

    ``resets`` has, by group, topic and queue, where an administrator has sent a group. A member is told at its next pull; until it pulls
    again, what members commit does not count.

    ``ends`` has, by group, topic and queue, where the queue ended when this broker was promoted, until the group pulls: a member that is
    ahead has read messages that only the former master had, and is told to go back, as other messages get their offsets.

    On a slave, ``own`` has the offsets that clients committed here, by ``topic@group`` and queue, until the master has them; None on a
    master. They are saved with the table.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._table: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._commits = 0
        self._told_commits = 0
        self.own: dict[tuple[str, int], int] | None = None
        self._saved_own: dict[tuple[str, int], int] = {}
        self.resets: dict[tuple[str, str, int], int] = {}
        self._told: set[tuple[str, str, int]] = set()
        self.ends: dict[tuple[str, str, int], int] = {}
        self.data_version = DataVersion(0, clock.time_ms(), 0)
        self.dirty = False

    def load(self, tree: Mapping[Any, Any]) -> None:
        """Take the content of consumerOffset.json. Raises RemoteProtocolError when it has another form."""
        body = ConsumerOffsets.decode(msgspec.json.encode(tree))
        self._table = body.offset_table
        self._pulled = body.pull_offset_table
        self.data_version = body.data_version
        own = _convert_own(tree.get(OWN_TABLE, {}))
        self._saved_own = {(key, queue_id): offset for key, queues in own.items() for queue_id, offset in queues.items()}

    def advance_version(self) -> DataVersion:
        """Return the data version, advanced when an offset has changed since the last call: slaves copy the table when it differs."""
        if self._commits != self._told_commits:
            self._told_commits = self._commits
            self.data_version = self.data_version.next(self._clock.time_ms())
        return self.data_version

    def wire(self) -> ConsumerOffsets:
        """Return the table as sent over the wire and stored in the file."""
        groups: dict[str, list[str]] = {}
        for topic, group, _ in self:
            groups.setdefault(group, []).append(topic)
        return ConsumerOffsets(self._table, self._pulled, groups, self.data_version)

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of what consumerOffset.json holds; inner keys are integers."""
        body = self.wire()
        own: dict[str, dict[int, int]] = {}
        for (key, queue_id), offset in (self.own or {}).items():
            own.setdefault(key, {})[queue_id] = offset
        return {
            **({OWN_TABLE: own} if own else {}),
            "dataVersion": msgspec.to_builtins(body.data_version),
            "groupTopicMap": body.group_topic_map,
            "offsetTable": {key: dict(queues) for key, queues in self._table.items()},
            "pullOffsetTable": {key: dict(queues) for key, queues in self._pulled.items()},
        }

    def __iter__(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        for key, queues in self._table.items():
            topic, _, group = key.partition(SEPARATOR)
            yield topic, group, queues

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a committed offset, or None."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return queues.get(queue_id) if queues else None

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset, also to a lower one."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
        if queues.get(queue_id) == offset:
            return
        queues[queue_id] = offset
        self.dirty = True
        if self.own is not None:
            self.own[key, queue_id] = offset
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.data_version = self.data_version.next(self._clock.time_ms())

    # --- on a slave ---

    def follow(self) -> None:
        """Note from now on what clients commit here, besides what was noted before a restart."""
        if self.own is None:
            self.own, self._saved_own = self._saved_own, {}

    def lead(self, max_offset: Callable[[str, int], int]) -> None:
        """Become the master's table; ``max_offset`` returns where a queue ends now, before anything new is stored."""
        self.own = None
        self.dirty = True
        for topic, group, queues in self:
            for queue_id, offset in queues.items():
                self.ends[group, topic, queue_id] = end = max_offset(topic, queue_id)
                queues[queue_id] = min(offset, end)

    def merge(self, theirs: ConsumerOffsets, *, rewound: bool) -> list[tuple[str, int, int]]:
        """Take the master's table, and return the newer offsets of this one: ``topic@group``, queue and offset; the master lacks them.

        Newer ones are those that clients committed here, while the master was gone. When it was ``rewound``, as it was killed before it
        had saved what this table has of it, every higher offset is. ``handed_over`` is to be called when the master has them.
        """
        if self.own is None:
            return []
        table = {key: dict(queues) for key, queues in theirs.offset_table.items()}
        ours = {(key, n): offset for key, queues in self._table.items() for n, offset in queues.items()} if rewound else self.own
        newer = [(key, n, offset) for (key, n), offset in ours.items() if offset > table.get(key, {}).get(n, -1)]
        self.own = {}
        for key, n, offset in newer:
            table.setdefault(key, {})[n] = self.own[key, n] = offset
        self.dirty = self.dirty or table != self._table
        self._table = table
        self._pulled = theirs.pull_offset_table
        self.data_version = theirs.data_version
        self._told_commits = self._commits
        return newer

    def handed_over(self, key: str, queue_id: int, offset: int) -> None:
        """Record that the master has an offset, or that it has no such group."""
        if self.own is not None and self.own.get((key, queue_id)) == offset:
            del self.own[key, queue_id]
            self.dirty = True

    # --- resets, and how far groups have pulled ---

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group to an offset, including the members that are reading now."""
        self.commit(group, topic, queue_id, offset)
        self.note_pulled(group, topic, queue_id, offset)
        self.resets[group, topic, queue_id] = offset
        self._told.discard((group, topic, queue_id))

    def moved(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the offset of a reset or a promotion that a member pulling at ``offset`` does not know yet, else None.

        A member is told once: one that pulls elsewhere afterwards does so on purpose.
        """
        key = (group, topic, queue_id)
        end = self.ends.pop(key, offset)
        if offset > end:
            return end
        to = self.resets.get(key)
        if to is None:
            return None
        if to != offset and key not in self._told:
            self._told.add(key)
            return to
        self.settle(key)
        return None

    def settle(self, key: tuple[str, str, int]) -> None:
        """Forget a reset that its member has learned of."""
        self.resets.pop(key, None)
        self.ends.pop(key, None)
        self._told.discard(key)

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return how far a group has pulled, None when it is not known."""
        queues = self._pulled.get(f"{topic}{SEPARATOR}{group}")
        return queues.get(queue_id) if queues else None

    def note_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record how far a group has pulled; shown to administrators, saved with the next commit."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give one group the offsets another has for a topic."""
        for queue_id, offset in self._table.get(f"{topic}{SEPARATOR}{source}", {}).items():
            self.commit(target, topic, queue_id, offset)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics a group has offsets for."""
        return [topic for topic, its_group, _ in self if its_group == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets for a topic."""
        return [group for its_topic, group, _ in self if its_topic == topic]

    def drop_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        self._drop(lambda its_topic, _: its_topic == topic)

    def drop_group(self, group: str) -> None:
        """Forget a deleted group."""
        self._drop(lambda _, its_group: its_group == group)

    def _drop(self, gone: Callable[[str, str], bool]) -> None:
        for table in (self._table, self._pulled):
            for key in list(table):
                topic, _, group = key.partition(SEPARATOR)
                if gone(topic, group):
                    del table[key]
                    self.dirty = True
                    self._commits += 1
        for group, topic, queue_id in list(self.resets):
            if gone(topic, group):
                self.settle((group, topic, queue_id))


def _convert_own(tree: Any) -> dict[str, dict[int, int]]:
    try:
        return msgspec.convert(tree, dict[str, dict[int, int]], strict=False)
    except msgspec.ValidationError as e:
        raise RemoteProtocolError(f"{OWN_TABLE} has another form: {e}") from None


class _Query(WaitingRequest):
    """A question for the offset of a group that has none."""

    __slots__ = ("queue_id", "topic")

    def __init__(self, conn: ServerConnection, command: Command, topic: str, queue_id: int) -> None:
        super().__init__(conn, command)
        self.topic = topic
        self.queue_id = queue_id


class OffsetHandlers:
    """Requests about committed offsets."""

    def __init__(
        self,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientRegistry,
        store: MessageStore,
        disk: DiskReads,
    ) -> None:
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._store = store
        self._cold: ColdReads[_Query] = ColdReads(disk, self._loaded)

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all,
        }

    def query(self, conn: ServerConnection, command: Command) -> None:
        """Answer 14. A group without an offset gets 0 on a queue that still has its first message; else its client decides."""
        header = command.header(QueryConsumerOffset)
        offset = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset is not None:
            conn.respond(command, ResponseCode.SUCCESS, ext={"offset": str(offset)})
        elif header.set_zero_if_not_found is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
            conn.respond(command, ResponseCode.QUERY_NOT_FOUND, ext={}, remark=remark)
        else:
            self._answer_without_offset(_Query(conn, command, header.topic, header.queue_id))

    def _answer_without_offset(self, query: _Query) -> None:
        topic, queue_id = query.topic, query.queue_id
        known = self._topics.get(topic)
        there = known is not None and 0 <= queue_id <= known.max_queue_id
        if there and not query.loads and not _is_short(self._store):
            cold = self._store.find_cold_first_unit(topic, queue_id)
            if cold is not None:
                if not self._cold.begin(query, cold):
                    query.answer_busy()
                return
        if there and is_young(self._store, topic, queue_id):
            query.conn.respond(query.command, ResponseCode.SUCCESS, ext={"offset": "0"}, since=query.since)
        else:
            remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            query.conn.respond(query.command, ResponseCode.QUERY_NOT_FOUND, ext={}, remark=remark, since=query.since)

    def _loaded(self, query: _Query) -> None:
        try:
            self._answer_without_offset(query)
        except Exception as e:
            log.exception("whether queue %d of topic %s is young cannot be told", query.queue_id, query.topic)
            query.answer_error(e)

    def update(self, conn: ServerConnection, command: Command) -> None:
        """Answer 15; mostly sent one-way."""
        header = command.header(UpdateConsumerOffset)
        topic = self._topics.get(header.topic)
        if header.consumer_group not in self._groups:
            code, remark = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!"
        elif topic is None:
            code, remark = ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!"
        elif not 0 <= header.queue_id <= topic.max_queue_id:
            code, remark = ResponseCode.INVALID_PARAMETER, f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
        elif header.commit_offset < 0:
            code, remark = ResponseCode.INVALID_PARAMETER, f"commitOffset[{header.commit_offset}] is illegal"
        elif HANDED_OVER in command.ext and header.commit_offset <= (
            self._offsets.get(header.consumer_group, header.topic, header.queue_id) or 0
        ):
            code, remark = ResponseCode.SUCCESS, "a higher offset is known"
        elif self._reset_is_news(header):
            code, remark = ResponseCode.SUCCESS, "Offset has been previously reset"
        else:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
            conn.respond(command, ResponseCode.SUCCESS)
            return
        conn.respond(command, code, remark=remark)

    def _reset_is_news(self, header: UpdateConsumerOffset) -> bool:
        """Return whether this comes from a member that has not learned of a reset yet. False when the group has no members."""
        key = (header.consumer_group, header.topic, header.queue_id)
        if header.commit_offset > self._offsets.ends.get(key, header.commit_offset):
            return True
        to = self._offsets.resets.get(key)
        if to is None:
            return False
        if to != header.commit_offset and header.consumer_group in self._clients.consumers:
            return True
        self._offsets.settle(key)
        return False

    def all(self, conn: ServerConnection, command: Command) -> None:
        """Answer 43: the whole table, as slaves copy it."""
        self._offsets.advance_version()
        conn.respond(command, ResponseCode.SUCCESS, body=self._offsets.wire().encode())


def is_young(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Return whether a queue still has its first message, and that is near the end of the log."""
    if store.min_offset(topic, queue_id) > 0 or store.max_offset(topic, queue_id) <= 0:
        return False
    if _is_short(store):
        return True
    units = store.units(topic, queue_id, 0, 1)
    return bool(units) and store.commitlog_max_offset - units[0][0] <= YOUNG_BYTES


def _is_short(store: MessageStore) -> bool:
    """Return whether everything in the log is near its end."""
    return store.commitlog_max_offset - store.commitlog_min_offset <= YOUNG_BYTES
