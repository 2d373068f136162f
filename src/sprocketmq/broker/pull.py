"""Pulls (codes 11 and 361), answered at once or held until a message arrives (``held_pulls``).

A pull of messages that are not in the page cache waits until another thread has read them (``cold_reads``).
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from sprocketmq.broker.checked_pull import Pull, PullRefused, from_the_asked_offset, response_code
from sprocketmq.broker.clients import ClientRegistry, tag_filter
from sprocketmq.broker.cold_reads import ColdReads, DiskReads
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.filters.reading import messages_at_once, read_matching
from sprocketmq.broker.filters.refusals import TURNED_OFF, FilterRefused, condition_of, is_sql
from sprocketmq.broker.filters.sql92 import Condition
from sprocketmq.broker.groups import GroupRefused, GroupTable
from sprocketmq.broker.held_pulls import HeldPulls
from sprocketmq.broker.memory import memory_bytes
from sprocketmq.broker.metrics.counters import BrokerCounters
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.replication.roles import MASTER_ID, BrokerRole
from sprocketmq.broker.topics import FAQ, NO_LITE_TOPICS, OVERLOAD, Topic, TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import InvalidName
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import SubscriptionGroupConfig, build_subscription
from sprocketmq.protocol.codes import PERM_READ, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import PullRequest
from sprocketmq.storage.store import DiskLimits, MessageStore, ReadResult, ReadStatus

log = logging.getLogger(__name__)

# Unread bytes of a connection above which it gets no more data; a client that pulls without reading has to ask again.
MAX_UNREAD_BYTES = 32 << 20

# A pull waits for its queue's units, then for its messages; after that many waits it is answered from wherever the data is.
MAX_LOADS = 3
# For this long after a wait, and for so many bytes, further pulls of a queue count as reads from the disk: they find what was read ahead.
# Whoever reads further without a wait finds messages that were in memory anyway, but for a page here and there.
BEHIND_S = 5.0
BEHIND_BYTES = 8 << 20
# While messages come in, and for so long after the last one, an answer with messages from the disk has a quarter of the bytes: a send waits
# for one such answer, 0.2 ms with 64 KiB and 0.5 ms with 256.
SENDS_LAST_S = 1.0

# The group under which tools read.
TOOLS_GROUP = "TOOLS_CONSUMER"

_FOUND = ReadStatus.FOUND
_MOVED = {ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY, ReadStatus.NO_MESSAGE_IN_QUEUE}

_EXT = b'{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d","topicSysFlag":"%d","groupSysFlag":"%d"}'


def _read_forbidden(group: str, topic: str) -> PullRefused:
    remark = f"the consumer group[{group}] is forbidden for topic[{topic}]"
    return PullRefused(ResponseCode.NO_PERMISSION, remark, forbidden_type=5)


@lru_cache(maxsize=4096)
def _parse_expression(topic: str, expression: str) -> frozenset[int] | None:
    return tag_filter(build_subscription(topic, expression, 0))


class PullHandlers:
    """Answer pulls at once, or hold them."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientRegistry,
        offsets: OffsetTable,
        counters: BrokerCounters,
        role: BrokerRole,
        *,
        disk: DiskReads,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._role = role
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._counters = counters
        self._clock = clock
        self.take_settings(config)
        self._host = config.host
        self._unread: dict[ServerConnection, int] = {}
        self.held = HeldPulls(clock, read=self._read, answer=self._answer, moved=self._answer_held_moved)
        self.arrived = self.held.arrived
        self._cold: ColdReads[Pull] = ColdReads(disk, self._loaded)
        self._sends = counters.put_requests
        self._sends_until = 0.0
        # Queues with a reader that is behind, until when that is assumed (monotonic s), and for how many more bytes.
        self._behind: dict[tuple[str, int], tuple[float, int]] = {}

    def take_settings(self, config: BrokerConfig) -> None:
        """Use the limits of ``config`` for the pulls that come from now on."""
        self._max_count = config.max_transfer_count_on_message_in_memory
        self._max_bytes = config.max_transfer_bytes_on_message_in_memory
        self._disk_count = config.max_transfer_count_on_message_in_disk
        self._disk_bytes = config.max_transfer_bytes_on_message_in_disk
        # Messages that are further behind the end of the log than this count as on the disk, and are better read from a slave.
        self._in_memory_bytes = memory_bytes() * config.access_message_in_memory_max_ratio // 100
        self._filters = config.enable_property_filter
        self._slave_read_enable = config.slave_read_enable
        self._max_held = config.max_held_pulls

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, conn: ServerConnection, command: Command) -> None:
        """Answer 11 or 361, now or when a message arrives."""
        try:
            self._pull(conn, command, command.header(PullRequest))
        except GroupRefused as e:
            conn.respond(command, e.code, ext={}, remark=e.remark)
        except PullRefused as e:
            self._refuse(conn, command, e)

    @staticmethod
    def _refuse(conn: ServerConnection, command: Command, refused: PullRefused) -> None:
        ext = {} if refused.forbidden_type is None else {"forbiddenType": str(refused.forbidden_type)}
        conn.respond(command, refused.code, ext=ext, remark=refused.remark)

    def _pull(self, conn: ServerConnection, command: Command, header: PullRequest) -> None:
        if self._role.is_slave and not self._slave_read_enable:
            remark = f"[REJECTREQUEST]system busy, start flow control for a while: this slave answers no pulls, ask {self._role.master}"
            raise PullRefused(ResponseCode.SYSTEM_BUSY, remark)
        name = header.topic
        group = self._groups.find(header.consumer_group)
        if group is None:
            remark = f"subscription group [{header.consumer_group}] does not exist, {FAQ}"
            raise PullRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            raise PullRefused(ResponseCode.NO_PERMISSION, remark, forbidden_type=2)
        topic = self._topics.get(name)
        if topic is None:
            raise PullRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! \n{FAQ}")
        if not topic.readable:
            if not self._topics.permission & PERM_READ:
                raise PullRefused(ResponseCode.NO_PERMISSION, "this broker's permission forbids pulling messages", forbidden_type=1)
            raise PullRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden", forbidden_type=3)
        if topic.unsupported:
            raise PullRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be read: {topic.unsupported}")
        if header.lite_topic:
            raise PullRefused(ResponseCode.INVALID_PARAMETER, NO_LITE_TOPICS)
        queue_id, offset, sys_flag = header.queue_id, header.queue_offset, header.sys_flag
        if not 0 <= queue_id < topic.read_queues:
            remark = (
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queues}] consumer:[/{conn.peer}]"
            )
            raise PullRefused(ResponseCode.INVALID_PARAMETER, remark)
        tag_codes, condition = self._filter(header, group)
        if topic.retry_group is not None:
            condition = None  # its messages met the condition before
        if self._offsets.resets or self._offsets.ends:
            moved = self._offsets.moved(header.consumer_group, name, queue_id, offset)
            if moved is not None:
                self._answer_moved(conn, command, topic, group, queue_id, moved)
                return
        if sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(header.consumer_group, name, queue_id, header.commit_offset)
        self._offsets.note_pulled(header.consumer_group, name, queue_id, offset)
        max_bytes = header.max_msg_bytes
        pull = Pull(
            conn,
            command,
            group,
            topic,
            queue_id,
            offset,
            max(1, min(header.max_msg_nums, self._max_count)),
            self._max_bytes if max_bytes is None else max(1, min(max_bytes, self._max_bytes)),
            tag_codes,
            condition=condition,
            own_subscription=bool(sys_flag & PULL_SUBSCRIPTION),
            suspend_s=header.suspend_timeout_ms / 1000 if sys_flag & PULL_SUSPEND else 0.0,
        )
        if self._behind and offset < self._store.max_offset(name, queue_id) and self._is_behind(name, queue_id):
            pull.max_count = min(pull.max_count, self._disk_count)
            pull.max_bytes = min(pull.max_bytes, self._bytes_from_disk())
            until, left = self._behind[name, queue_id]
            self._behind[name, queue_id] = until, left - pull.max_bytes
            if not self._wait_for_disk(pull):
                self._cold.later(pull)
        elif not self._wait_for_disk(pull):
            self._read_or_hold(pull)

    def _is_behind(self, topic: str, queue_id: int) -> bool:
        """Whether a pull of this queue has waited for the disk not long ago, or not many bytes ago."""
        until, left = self._behind.get((topic, queue_id), (0.0, 0))
        if left > 0 and until > self._clock.monotonic():
            return True
        self._behind.pop((topic, queue_id), None)
        return False

    def _read_or_hold(self, pull: Pull) -> None:
        result = self._read(pull)
        if result.status is _FOUND:
            if pull.topic.batch_queues and pull.group.group_name == TOOLS_GROUP:
                result = from_the_asked_offset(pull, result)
        elif pull.suspend_s > 0 and self._may_hold and response_code(result.status, pull.offset) == ResponseCode.PULL_NOT_FOUND:
            if self.held.count >= self._max_held:
                # Answering "nothing found" would make the client ask again at once; an error makes it wait.
                raise PullRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
            self.held.hold(pull, pull.suspend_s)
            return
        self._answer(pull, result)

    @property
    def held_count(self) -> int:
        """How many pulls wait for messages."""
        return self.held.count

    @property
    def cold_count(self) -> int:
        """How many pulls wait for the disk."""
        return len(self._cold)

    @property
    def _may_hold(self) -> bool:
        """Whether pulls wait here for messages; a slave sends them to its master while that is there."""
        return not (self._role.is_slave and self._role.master_alive)

    # --- messages on the disk ---

    def _wait_for_disk(self, pull: Pull) -> bool:
        """Read what ``pull`` needs from the disk in another thread; False when it needs nothing, or has waited often enough."""
        if pull.condition is not None:
            units = messages_at_once(pull.condition)
        else:
            units = pull.max_count if pull.tag_codes is None else max(pull.max_count, self._store.max_filter_units)
        cold = self._store.find_cold(pull.topic.name, pull.queue_id, pull.offset, units, units if pull.tag_codes is None else None)
        if cold is None:
            pull.max_units = None
            return False
        pull.max_units = cold.max_units
        if not cold.waits:
            return False
        if pull.loads == MAX_LOADS:
            cold.release()
            return False
        if not self._cold.begin(pull, cold):
            raise PullRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        if not cold.slight:
            self._behind[pull.topic.name, pull.queue_id] = self._clock.monotonic() + BEHIND_S, BEHIND_BYTES
        return True

    def _loaded(self, pull: Pull) -> None:
        """Answer a pull whose messages are now cached. Called for one pull per turn of the loop."""
        try:
            if not self._wait_for_disk(pull):
                self._read_or_hold(pull)
        except PullRefused as e:
            self._refuse(pull.conn, pull.command, e)
        except Exception as e:
            log.exception("a pull of topic %s, queue %d, cannot be answered", pull.topic.name, pull.queue_id)
            pull.conn.respond(pull.command, ResponseCode.SYSTEM_ERROR, ext={}, remark=f"internal error: {type(e).__name__}: {e}")

    def _bytes_from_disk(self) -> int:
        """Return the limit of an answer with messages that are likely to be read from the disk: a lower one while messages come in."""
        now, sends = self._clock.monotonic(), self._counters.put_requests
        if sends != self._sends:
            self._sends, self._sends_until = sends, now + SENDS_LAST_S
        return self._disk_bytes // 4 or 1 if now < self._sends_until else self._disk_bytes

    def _filter(self, header: PullRequest, group: SubscriptionGroupConfig) -> tuple[frozenset[int] | None, Condition | None]:
        """Return the tags, or the condition, of the request itself, or of the group's last heartbeat."""
        name = header.topic
        if header.sys_flag & PULL_SUBSCRIPTION:
            expression = header.subscription
            if is_sql(header.expression_type):
                try:
                    return None, condition_of(header.expression_type, expression, filters=self._filters)
                except FilterRefused as e:
                    raise PullRefused(e.code, e.remark) from None
            if expression is None or expression == "*":
                return None, None
            try:
                return _parse_expression(name, expression), None
            except InvalidName:
                raise PullRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None
        online = self._clients.consumers.get(header.consumer_group)
        if online is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist\n{FAQ}")
        if online.message_model == "BROADCASTING" and not group.consume_broadcast_enable:
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise PullRefused(ResponseCode.NO_PERMISSION, remark, forbidden_type=4)
        if not self._groups.may_read(header.consumer_group, name):
            raise _read_forbidden(header.consumer_group, name)
        subscription = online.subscriptions.get(name)
        if subscription is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist\n{FAQ}")
        if subscription.data.sub_version < header.sub_version:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if is_sql(subscription.data.expression_type):
            if not self._filters:
                raise PullRefused(ResponseCode.SYSTEM_ERROR, TURNED_OFF)
            if subscription.condition is None:
                remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
                raise PullRefused(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        return subscription.tag_codes, subscription.condition

    def _read(self, pull: Pull) -> ReadResult:
        disk_before = self._store.commitlog_max_offset if pull.loads else self._store.commitlog_max_offset - self._in_memory_bytes
        disk = DiskLimits(disk_before, self._disk_count, self._bytes_from_disk()) if disk_before > 0 else None
        if pull.condition is not None:
            return read_matching(
                self._store,
                pull.topic.name,
                pull.queue_id,
                pull.offset,
                pull.condition,
                max_count=pull.max_count,
                max_bytes=pull.max_bytes,
                disk=disk,
                max_units=pull.max_units,
            )
        return self._store.read(
            pull.topic.name,
            pull.queue_id,
            pull.offset,
            max_count=pull.max_count,
            max_bytes=pull.max_bytes,
            tag_codes=pull.tag_codes,
            disk=disk,
            max_units=pull.max_units,
        )

    def _answer(self, pull: Pull, result: ReadResult) -> None:
        conn, counters = pull.conn, self._counters
        code = response_code(result.status, pull.offset)
        next_offset = result.next_offset
        remark = result.status.name
        suggested = MASTER_ID
        if self._slave_read_enable:
            slowly = 0 <= result.log_offset < self._store.commitlog_max_offset - self._in_memory_bytes
            suggested = pull.group.which_broker_when_consume_slowly if slowly else pull.group.broker_id
            if self._role.is_slave and code != ResponseCode.SUCCESS:
                code, next_offset, suggested = self._answer_of_slave(pull, result, code, suggested, slowly)
            elif self._role.is_slave and not slowly and self._role.master_alive:
                suggested = MASTER_ID
        body: list[bytes | memoryview] = []
        if code == ResponseCode.SUCCESS:
            size = sum(map(len, result.buffers))
            unread = self._unread.get(conn)
            if unread is None:
                unread = conn.write_backlog
            if unread > MAX_UNREAD_BYTES:
                # The client has to read what was sent before it gets more; it will ask for the same again.
                code, next_offset, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset, "unread responses pile up"
            else:
                if not self._unread:
                    # In the loop's next turn everything is with the transports, and they know.
                    asyncio.get_running_loop().call_soon(self._unread.clear)
                self._unread[conn] = unread + size
                body += result.buffers
                count = result.count
                counters.get_found += 1
                counters.get_messages += count
                counters.get_bytes += size
                got = counters.of_group(pull.topic, pull.group.group_name)
                got.get_requests += 1
                got.get_messages += count
                got.get_bytes += size
                self._offsets.note_pulled(pull.group.group_name, pull.topic.name, pull.queue_id, next_offset)
        else:
            counters.get_missed += 1
        ext = _EXT % (
            suggested,
            next_offset,
            result.min_offset,
            result.max_offset,
            pull.topic.config.topic_sys_flag,
            pull.group.group_sys_flag,
        )
        conn.respond(pull.command, code, ext=ext, remark=remark, body=body, since=pull.since, long_polling=pull.tick > 0)

    def _answer_of_slave(self, pull: Pull, result: ReadResult, code: int, suggested: int, slowly: bool) -> tuple[int, int, int]:
        """Return code, next offset and suggestion of a slave that has found nothing.

        It moves no offset, as its log may lag behind the master's: the consumer asks again, and the master while that is there.
        """
        next_offset = result.next_offset
        if result.status in _MOVED:
            next_offset = pull.offset
            if code == ResponseCode.PULL_OFFSET_MOVED:
                code, suggested = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.group.broker_id
        if self._role.master_alive and not slowly:
            code, suggested = ResponseCode.PULL_RETRY_IMMEDIATELY, MASTER_ID
        return code, next_offset, suggested

    def _answer_moved(
        self, conn: ServerConnection, command: Command, topic: Topic, group: SubscriptionGroupConfig, queue_id: int, offset: int
    ) -> None:
        """Answer a member with ``offset``, to which an administrator moved its group."""
        low, high = self._store.min_offset(topic.name, queue_id), self._store.max_offset(topic.name, queue_id)
        ext = _EXT % (MASTER_ID, offset, low, high, topic.config.topic_sys_flag, group.group_sys_flag)
        conn.respond(command, ResponseCode.PULL_OFFSET_MOVED, ext=ext, remark="OFFSET_RESET")

    def _answer_held_moved(self, pull: Pull, offset: int) -> None:
        self._answer_moved(pull.conn, pull.command, pull.topic, pull.group, pull.queue_id, offset)

    # --- pulls that wait ---

    def reading_forbidden(self, group: str, name: str) -> None:
        """Refuse the waiting pulls of a group that may no longer read a topic, except those that bring their own subscription."""
        topic = self._topics.get(name)
        for pull in self._cold.drop(lambda pull: pull.topic is topic and pull.group.group_name == group and not pull.own_subscription):
            self._refuse(pull.conn, pull.command, _read_forbidden(group, name))
        for waiting in list(topic.held.values()) if topic is not None else ():
            for pull in [pull for pull in waiting if pull.group.group_name == group and not pull.own_subscription]:
                self.held.release(pull)
                self._refuse(pull.conn, pull.command, _read_forbidden(group, name))

    def access_changed(self, refusal: Callable[[ServerConnection, Command], str]) -> None:
        """Refuse the waiting pulls for which ``refusal`` returns a reason: users or policies have changed."""
        waiting = [pull for topic in self._topics for pulls in topic.held.values() for pull in pulls]
        refused = {pull: remark for pull in [*waiting, *self._cold.waiting] if (remark := refusal(pull.conn, pull.command))}
        self._cold.drop(lambda pull: pull in refused)
        for pull, remark in refused.items():
            if pull in pull.topic.held.get(pull.queue_id, ()):
                self.held.release(pull)
            self._refuse(pull.conn, pull.command, PullRefused(ResponseCode.NO_PERMISSION, remark))

    def topic_deleted(self, topic: Topic) -> None:
        """Answer the pulls that wait on a deleted topic."""
        waiting = [pull for pulls in topic.held.values() for pull in pulls]
        for pull in waiting:
            self.held.release(pull)
        for queue_id in range(topic.read_queues):
            self._behind.pop((topic.name, queue_id), None)
        for pull in waiting + self._cold.drop(lambda pull: pull.topic is topic):
            remark = f"topic[{topic.name}] not exist, apply first please! \n{FAQ}"
            pull.conn.respond(pull.command, ResponseCode.TOPIC_NOT_EXIST, ext={}, remark=remark)

    def disconnected(self, conn: ServerConnection) -> None:
        """Forget the pulls of a connection that ended."""
        self.held.disconnected(conn)
        if len(self._cold):
            self._cold.drop(lambda pull: pull.conn is conn)
        self._unread.pop(conn, None)

    def close(self) -> None:
        """Stop the timer; pulls that wait end with their connections."""
        self.held.close()
        self._cold.close()
