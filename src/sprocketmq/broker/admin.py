"""Administration: topics, groups, statistics, queue offsets (protocol, section 7.3, and 7.2.2 for 29 to 32)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from sprocketmq.broker.groups import GroupRefused
from sprocketmq.broker.topics import NO_LITE_TOPICS, Topic, TopicRefused
from sprocketmq.errors import ProtocolError, RemoteProtocolError, RetriableError
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumeOffset,
    ConsumerStatus,
    ConsumeStats,
    GroupList,
    GroupSubscription,
    ResetOffsets,
    RuntimeInfo,
    StatsWindow,
    SubscriptionGroupConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStats,
)
from sprocketmq.protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import (
    BrokerConsumeStatsRequest,
    BrokerStatsRequest,
    CloneGroupOffset,
    ConsumeDirectly,
    ConsumerStatusRequest,
    ConsumeStatsRequest,
    CreateTopic,
    DeleteSubscriptionGroup,
    GroupRequest,
    GroupTopicRequest,
    PageRequest,
    QueueRequest,
    ResetOffset,
    RunningInfoRequest,
    SearchOffset,
    TopicRequest,
)
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import SYSTEM_TOPICS

if TYPE_CHECKING:
    from sprocketmq.broker.server import Broker

VERSION_NAME = "V5_5_0"
# What a member may take to tell about itself.
MEMBER_TIMEOUT_S = 5.0
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000

Handler = Callable[[ServerConnection, Command], None]


class AdminHandlers:
    """Requests of administrators and tools. ``broker`` owns the tables they look into."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._topics = broker.topics
        self._groups = broker.groups
        self._clients = broker.clients
        self._offsets = broker.offsets
        self._store = broker.store
        self._tasks: set[asyncio.Task[None]] = set()
        self._background = Background(f"broker {broker.config.broker_name}")

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            code.UPDATE_AND_CREATE_TOPIC: self.create_topic,
            code.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            code.GET_TOPIC_CONFIG: self.topic_config,
            code.GET_ALL_TOPIC_CONFIG: self.all_topics,
            code.GET_TOPIC_STATS_INFO: self.topic_stats,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            code.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            code.GET_CONSUME_STATS: self.consume_stats,
            code.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            code.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of_group,
            code.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            code.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offsets,
            code.CLONE_GROUP_OFFSET: self.clone_offsets,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            code.GET_CONSUMER_RUNNING_INFO: self.running_info,
            code.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            code.VIEW_BROKER_STATS_DATA: self.counter,
            code.GET_MAX_OFFSET: self.max_offset,
            code.GET_MIN_OFFSET: self.min_offset,
            code.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            code.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
            code.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            code.GET_BROKER_CONFIG: self.config,
        }

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what takes longer than a request may; ``close`` waits for it a moment, then ends it."""
        self._tasks.add(task := self._background.spawn(work, "an answer to an administrator"))
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for answers that are still being worked on."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self._background.close()

    # --- topics ---

    def create_topic(self, conn: ServerConnection, command: Command) -> None:
        """Answer 17 after the topic is on disk and every reachable nameserver knows it."""
        request = command.header(CreateTopic)
        try:
            self._topics.create_or_update(request)
        except TopicRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        command.body = b""
        self.later(self._topic_settled(conn, command))

    async def _topic_settled(self, conn: ServerConnection, command: Command) -> None:
        try:
            await self._broker.topic_changes_settled()
        except OSError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"the topic table cannot be saved: {e}")
        else:
            conn.respond(command, ResponseCode.SUCCESS)

    def delete_topic(self, conn: ServerConnection, command: Command) -> None:
        """Answer 215: queues, offsets and the entry go; the log keeps its records."""
        name = command.header(TopicRequest).topic
        if not name.strip():
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark="The specified topic is blank.")
            return
        self._broker.sends.finish()  # what came before in this readiness is stored before its queue goes
        try:
            self._topics.check_not_own(name)
        except TopicRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        self._store.delete_topic(name)
        topic = self._topics.delete(name)
        if topic is not None:
            self._broker.pulls.topic_deleted(topic)
            self._offsets.drop_topic(name)
        command.body = b""
        self.later(self._topic_settled(conn, command))

    def topic_config(self, conn: ServerConnection, command: Command) -> None:
        """Answer 351."""
        name = command.header(TopicRequest).topic
        topic = self._topics.get(name)
        if topic is None:
            conn.respond(command, ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
        else:
            conn.respond(command, ResponseCode.SUCCESS, body=topic.config.encode())

    def all_topics(self, conn: ServerConnection, command: Command) -> None:
        """Answer 21: everything, or the page that was asked for."""
        page = command.header(PageRequest)
        configs = [topic.config for topic in self._topics]
        total = len(configs)
        if page.max_topic_num > 0:
            configs = configs[max(0, page.topic_seq) : max(0, page.topic_seq) + page.max_topic_num]
        table: TopicConfigTable = self._topics.wrapper(configs)
        conn.respond(command, ResponseCode.SUCCESS, ext={"totalTopicNum": str(total)}, body=table.encode())

    def topic_stats(self, conn: ServerConnection, command: Command) -> None:
        """Answer 202: offsets and last store time of each queue."""
        name = command.header(TopicRequest).topic
        topic = self._topics.get(name)
        if topic is None:
            conn.respond(command, ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
            return
        store = self._store
        table = {}
        for queue_id in range(topic.max_queue_id + 1):
            low, high = max(0, store.min_offset(name, queue_id)), max(0, store.max_offset(name, queue_id))
            last = store.store_time(name, queue_id, high - 1) if high > low else 0
            table[self._queue(name, queue_id)] = TopicOffset(low, high, max(0, last))
        put_tps = self._stored_since(topic, MINUTE_MS) * 1000 / MINUTE_MS
        conn.respond(command, ResponseCode.SUCCESS, body=TopicStats(table, put_tps).encode())

    def _stored_since(self, topic: Topic, window_ms: int) -> int:
        """Return how many messages a topic got in the last so many milliseconds."""
        since = self._broker.clock.time_ms() - window_ms
        queues = range(topic.max_queue_id + 1)
        return sum(self._store.max_offset(topic.name, queue_id) - self._first_since(topic.name, queue_id, since) for queue_id in queues)

    def _first_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the offset of the first message stored at a time or later, the end of the queue when there is none."""
        store = self._store
        offset = store.offset_by_time(topic, queue_id, time_ms)
        if topic not in store.batch_topics:
            return offset
        # From the last batch's own time on a search finds that batch, as clients know it from Apache's broker.
        if store.store_time(topic, queue_id, offset) < time_ms:
            return store.max_offset(topic, queue_id)
        before = store.offset_by_time(topic, queue_id, time_ms - 1, upper=True)
        if store.store_time(topic, queue_id, before) >= time_ms:
            return before
        return store.read(topic, queue_id, before, max_count=1, max_bytes=1).next_offset

    def system_topics(self, conn: ServerConnection, command: Command) -> None:
        """Answer 305."""
        names = sorted(SYSTEM_TOPICS | self._topics.own_names)
        conn.respond(command, ResponseCode.SUCCESS, body=TopicList(names).encode())

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.config.broker_name, queue_id)

    # --- groups ---

    def put_group(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200."""
        if not command.body:
            raise RemoteProtocolError("a subscription group without a body")
        try:
            self._groups.put(SubscriptionGroupConfig.decode(command.body))
        except GroupRefused as e:
            conn.respond(command, e.code, remark=e.remark)
        else:
            conn.respond(command, ResponseCode.SUCCESS)

    def all_groups(self, conn: ServerConnection, command: Command) -> None:
        """Answer 201: everything, or the page that was asked for."""
        page = command.header(PageRequest)
        table = self._groups.table()
        groups = list(table.subscription_group_table.items())
        total = len(groups)
        if page.max_group_num > 0:
            groups = groups[max(0, page.group_seq) : max(0, page.group_seq) + page.max_group_num]
        table.subscription_group_table = dict(groups)
        conn.respond(command, ResponseCode.SUCCESS, ext={"totalGroupNum": str(total)}, body=table.encode())

    def group_config(self, conn: ServerConnection, command: Command) -> None:
        """Answer 352. Asking for a group creates it where groups create themselves, as in the reference."""
        name = command.header(GroupRequest).group
        try:
            group = self._groups.find(name)
        except GroupRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        if group is None:
            remark = f"No group in this broker. group: {name}"
            conn.respond(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
        else:
            conn.respond(command, ResponseCode.SUCCESS, body=group.encode())

    def delete_group(self, conn: ServerConnection, command: Command) -> None:
        """Answer 207."""
        request = command.header(DeleteSubscriptionGroup)
        self._groups.delete(request.group_name)
        if request.clean_offset:
            self._offsets.drop_group(request.group_name)
        conn.respond(command, ResponseCode.SUCCESS)

    def consume_stats(self, conn: ServerConnection, command: Command) -> None:
        """Answer 208: how far a group has read, on one topic or all it has read from."""
        request = command.header(ConsumeStatsRequest)
        group = request.consumer_group
        names = {request.topic} if request.topic else set(self._offsets.topics_of(group))
        online = self._clients.consumers.get(group)
        if online is not None and not request.topic:
            names |= online.subscriptions.keys()
        topics = [topic for name in sorted(names) if (topic := self._topics.get(name)) is not None]
        conn.respond(command, ResponseCode.SUCCESS, body=self._progress(group, topics).encode())

    def _progress(self, group: str, topics: list[Topic]) -> ConsumeStats:
        store, offsets = self._store, self._offsets
        stats = ConsumeStats()
        for topic in topics:
            name = topic.name
            stats.consume_tps += self._broker.stats.got_in_a_minute(name, group) * 1000 / MINUTE_MS
            for queue_id in range(topic.read_queues):
                committed = offsets.get(group, name, queue_id) or 0
                pulled = offsets.pulled(group, name, queue_id) or 0
                before = store.store_time(name, queue_id, committed - 1) if committed > 0 else 0
                stats.offset_table[self._queue(name, queue_id)] = ConsumeOffset(
                    max(0, store.max_offset(name, queue_id)), committed, max(committed, pulled), max(0, before)
                )
        return stats

    def all_consume_stats(self, conn: ServerConnection, command: Command) -> None:
        """Answer 317: how far every group has read; of orderly groups only, or of the others."""
        wanted = command.header(BrokerConsumeStatsRequest).is_order
        body = BrokerConsumeStats(broker_addr=self._broker.address)
        read: dict[str, list[Topic]] = {}
        for name, group, _ in self._offsets:
            topic = self._topics.get(name)
            if topic is not None:
                read.setdefault(group, []).append(topic)
        for config in self._groups.table().subscription_group_table.values():
            topics = read.get(config.group_name, []) if config.consume_message_orderly == wanted else []
            tables = [self._progress(config.group_name, [topic]) for topic in topics]
            body.consume_stats_list.append({config.group_name: tables})
            for table in tables:
                body.total_diff += sum(o.broker_offset - o.consumer_offset for o in table.offset_table.values())
                body.total_inflight_diff += sum(o.pull_offset - o.consumer_offset for o in table.offset_table.values())
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    # --- where groups go on ---

    def reset_offsets(self, conn: ServerConnection, command: Command) -> None:
        """Answer 222: have a group go on at a time (-1: the end), or one queue of it at an offset; its members are told at their next pull."""
        request = command.header(ResetOffset)
        topic = self._topics.get(request.topic)
        if topic is None:
            conn.respond(command, ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {request.topic} does not exist")
            return
        if request.group not in self._groups:
            conn.respond(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"Group {request.group} does not exist")
            return
        one = request.queue_id if request.queue_id is not None and request.queue_id >= 0 else None
        if one is not None and one >= topic.read_queues:
            remark = f"queueId[{one}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:[{topic.read_queues}]"
            conn.respond(command, ResponseCode.INVALID_PARAMETER, remark=remark)
            return
        offsets: dict[int, int] = {}
        for queue_id in range(topic.read_queues) if one is None else (one,):
            low, high = self._store.min_offset(topic.name, queue_id), self._store.max_offset(topic.name, queue_id)
            if one is not None and request.offset is not None and request.offset >= 0:
                if not low <= request.offset <= high:
                    remark = f"Target offset {request.offset} not in consume queue range [{low}-{high}]"
                    conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
                    return
                offsets[queue_id] = request.offset
            elif request.timestamp_ms < 0:
                offsets[queue_id] = high
            else:
                offsets[queue_id] = self._first_since(topic.name, queue_id, request.timestamp_ms)
        for queue_id, offset in offsets.items():
            self._offsets.reset(request.group, topic.name, queue_id, offset)
            self._broker.pulls.offset_reset(request.group, topic, queue_id, offset)
        table = {self._queue(topic.name, queue_id): offset for queue_id, offset in offsets.items()}
        conn.respond(command, ResponseCode.SUCCESS, body=ResetOffsets(table).encode())

    def clone_offsets(self, conn: ServerConnection, command: Command) -> None:
        """Answer 314: give one group the offsets of another, of one topic or of all it has read; topics that are gone are left out."""
        request = command.header(CloneGroupOffset)
        names = [request.topic] if request.topic else self._offsets.topics_of(request.src_group)
        for name in names:
            if self._topics.get(name) is not None:
                self._offsets.clone(request.src_group, request.dest_group, name)
        conn.respond(command, ResponseCode.SUCCESS)

    # --- what members tell of themselves ---

    def _member(self, group: str, client_id: str) -> ServerConnection | None:
        online = self._clients.consumers.get(group)
        members = online.members.items() if online is not None else ()
        return next((conn for conn, member in members if member.client_id == client_id), None)

    def consumer_status(self, conn: ServerConnection, command: Command) -> None:
        """Answer 223: where each member of a group is, by asking all of them, or one."""
        request = command.header(ConsumerStatusRequest)
        online = self._clients.consumers.get(request.group)
        if online is None:
            remark = f"the consumer group[{request.group}] not online"
            conn.respond(command, ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
            return
        wanted = request.client_addr
        members = {c: member.client_id for c, member in online.members.items() if not wanted or member.client_id == wanted}
        command.body = b""
        self.later(self._collect_status(conn, command, request, members))

    async def _collect_status(
        self, conn: ServerConnection, command: Command, request: ConsumerStatusRequest, members: dict[ServerConnection, str]
    ) -> None:
        ext = {"topic": request.topic, "group": request.group}
        asked = [m.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=ext, timeout_s=MEMBER_TIMEOUT_S) for m in members]
        body = ConsumerStatus()
        for client_id, answer in zip(members.values(), await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS and answer.body:
                try:
                    body.consumer_table[client_id] = ConsumerStatus.decode(answer.body).message_queue_table
                except ProtocolError:
                    continue  # the others' answers count all the same
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    def running_info(self, conn: ServerConnection, command: Command) -> None:
        """Answer 307: what a member says it is doing."""
        request = command.header(RunningInfoRequest)
        self._pass_on(conn, command, request.consumer_group, request.client_id)

    def consume_directly(self, conn: ServerConnection, command: Command) -> None:
        """Answer 309: have a member consume a stored message now, and tell how that went."""
        request = command.header(ConsumeDirectly)
        try:
            _, _, physical = parse_offset_msg_id(request.msg_id or "")
        except RemoteProtocolError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
            return
        messages = self._broker.queries.messages_at(physical)
        if not messages:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {physical}")
            return
        self._pass_on(conn, command, request.consumer_group, request.client_id or "", bytes(messages[0]))

    def _pass_on(self, conn: ServerConnection, command: Command, group: str, client_id: str, body: bytes = b"") -> None:
        member = self._member(group, client_id)
        if member is None:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online")
            return
        command.body = b""

        async def ask() -> None:
            try:
                answer = await member.request(command.code, ext=dict(command.ext or {}), body=body, timeout_s=MEMBER_TIMEOUT_S)
            except RetriableError as e:
                conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"consumer <{group}> <{client_id}> does not answer: {e}")
            else:
                conn.respond(command, answer.code, ext=answer.ext or None, remark=answer.remark, body=bytes(answer.body))

        self.later(ask())

    def groups_of_topic(self, conn: ServerConnection, command: Command) -> None:
        """Answer 300: groups that read a topic, online or not."""
        name = command.header(TopicRequest).topic
        groups = {group.name for group in self._clients.consumers.values() if name in group.subscriptions}
        groups.update(self._offsets.groups_of(name))
        conn.respond(command, ResponseCode.SUCCESS, body=GroupList(sorted(groups)).encode())

    def topics_of_group(self, conn: ServerConnection, command: Command) -> None:
        """Answer 343: topics a group has committed offsets for."""
        name = command.header(GroupRequest).group
        topics = TopicList(sorted(self._offsets.topics_of(name)), self._broker.address)
        conn.respond(command, ResponseCode.SUCCESS, body=topics.encode())

    def subscription_of_group(self, conn: ServerConnection, command: Command) -> None:
        """Answer 345: what an online group wants of a topic."""
        request = command.header(GroupTopicRequest)
        online = self._clients.consumers.get(request.group)
        subscription = online.subscriptions.get(request.topic) if online is not None else None
        body = GroupSubscription(request.group, request.topic, subscription.data if subscription is not None else None)
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    # --- offsets of queues ---

    def _known(self, topic: str, queue_id: int) -> Topic | None:
        known = self._topics.get(topic)
        return known if known is not None and 0 <= queue_id <= known.max_queue_id else None

    def max_offset(self, conn: ServerConnection, command: Command) -> None:
        """Answer 30: the offset the next message will have; 0 for an unknown queue."""
        request = command.header(QueueRequest)
        offset = self._store.max_offset(request.topic, request.queue_id) if self._known(request.topic, request.queue_id) else 0
        conn.respond(command, ResponseCode.SUCCESS, ext={"offset": str(max(0, offset))})

    def min_offset(self, conn: ServerConnection, command: Command) -> None:
        """Answer 31: the first offset that can be read; 0 for an unknown queue."""
        request = command.header(QueueRequest)
        offset = self._store.min_offset(request.topic, request.queue_id) if self._known(request.topic, request.queue_id) else 0
        conn.respond(command, ResponseCode.SUCCESS, ext={"offset": str(max(0, offset))})

    def search_offset(self, conn: ServerConnection, command: Command) -> None:
        """Answer 29: LOWER the first offset stored at or after a time, UPPER the last at or before it."""
        request = command.header(SearchOffset)
        if request.lite_topic:
            conn.respond(command, ResponseCode.INVALID_PARAMETER, remark=NO_LITE_TOPICS)
            return
        upper = (request.boundary_type or "").upper() == "UPPER"
        offset = 0
        if self._known(request.topic, request.queue_id):
            offset = self._store.offset_by_time(request.topic, request.queue_id, request.timestamp_ms, upper=upper)
        conn.respond(command, ResponseCode.SUCCESS, ext={"offset": str(max(0, offset))})

    def earliest_store_time(self, conn: ServerConnection, command: Command) -> None:
        """Answer 32: when a queue's first message was stored, -1 without one."""
        request = command.header(QueueRequest)
        known = self._known(request.topic, request.queue_id)
        when = self._store.earliest_store_time(request.topic, request.queue_id) if known else -1
        conn.respond(command, ResponseCode.SUCCESS, ext={"timestamp": str(when)})

    # --- the broker itself ---

    def runtime_info(self, conn: ServerConnection, command: Command) -> None:
        """Answer 28: statistics as text, under the names tools look for."""
        conn.respond(command, ResponseCode.SUCCESS, body=RuntimeInfo(self.runtime_table()).encode())

    def counter(self, conn: ServerConnection, command: Command) -> None:
        """Answer 315: messages put to a topic, or read by a group (``topic@group``; of the last minute only)."""
        request = command.header(BrokerStatsRequest)
        name, _, group = request.stats_key.partition("@")
        topic = self._topics.get(name)
        if topic is not None and request.stats_name == "TOPIC_PUT_NUMS":
            windows = [_window(self._stored_since(topic, length), length) for length in (MINUTE_MS, HOUR_MS, DAY_MS)]
        elif topic is not None and group and request.stats_name == "GROUP_GET_NUMS":
            windows = [_window(self._broker.stats.got_in_a_minute(name, group), MINUTE_MS), StatsWindow(), StatsWindow()]
        else:
            remark = f"The stats <{request.stats_name}> <{request.stats_key}> not exist"
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        conn.respond(command, ResponseCode.SUCCESS, body=BrokerStats(*windows).encode())

    def runtime_table(self) -> dict[str, str]:
        """Return the runtime information; what this broker has no part for reads as idle."""
        broker, store, flusher, acks = self._broker, self._store, self._broker.flusher, self._broker.acks
        now = broker.clock.monotonic()
        up_s = (broker.clock.time_ms() - broker.stats.started_ms) // 1000
        days, rest = divmod(up_s, 86400)
        hours, rest = divmod(rest, 3600)
        minutes, seconds = divmod(rest, 60)
        behind_bytes, behind_ms = store.dispatch_lag
        total, free = broker.disk_space()
        ratio = f"{1 - free / total:.4f}" if total else "0.0"
        table = broker.stats.table()
        table.update(
            {
                "brokerActive": "true",
                "brokerVersion": str(PROTOCOL_VERSION),
                "brokerVersionDesc": VERSION_NAME,
                "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
                "commitLogMinOffset": str(store.commitlog_min_offset),
                "commitLogMaxOffset": str(store.commitlog_max_offset),
                "commitLogDirCapacity": f"Total : {total / 2**30:.1f} GiB, Free : {free / 2**30:.1f} GiB.",
                "commitLogDiskRatio": ratio,
                f"commitLogDiskRatio_{broker.config.store.root}/commitlog": ratio,
                "consumeQueueDiskRatio": ratio,
                "dispatchBehindBytes": str(behind_bytes),
                "dispatchBehindMs": str(behind_ms),
                "dispatchMaxBuffer": "0",
                "earliestMessageTimeStamp": str(broker.earliest_message_ms()),
                "getMessageEntireTimeMax": "0",
                "pageCacheLockTimeMills": str(broker.sends.busy_ms()),
                "remainHowManyDataToFlush": f"{broker.unflushed_bytes} B",
                "flushDiskType": broker.config.store.flush_disk_type,
                "flushTimesTotal": str(flusher.count),
                "flushEntireTimeMax": f"{flusher.longest_s * 1000:.1f}",
                "flushTimeAverage": f"{flusher.total_s / flusher.count * 1000:.3f}" if flusher.count else "0.0",
                "diskWritable": str(broker.cleaning.writable).lower(),
                "remainTransientStoreBufferNumbs": "0",
                "heldPulls": str(broker.pulls.held_count),
                **broker.connection_counters(),
                "timedMessagesWaiting": str(broker.delays.timers.waiting),
                "timerReadBehind": "0",
                "timerOffsetBehind": "0",
                "timerCongestNum": "0",
                "timerEnqueueTps": "0.0",
                "timerDequeueTps": "0.0",
            }
        )
        for level, (delivered, parked) in broker.delays.offsets().items():
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{parked}"
        for queue in ("send", "pull", "litePull", "query", "ack"):
            table[f"{queue}ThreadPoolQueueSize"] = "0"
            table[f"{queue}ThreadPoolQueueHeadWaitTimeMills"] = "0"
            table[f"{queue}ThreadPoolQueueCapacity"] = "10000"
        # What waits here is not a queue of threads but sends for the disk, and only with SYNC_FLUSH.
        table["sendThreadPoolQueueSize"] = str(acks.waiting)
        table["sendThreadPoolQueueHeadWaitTimeMills"] = str(round((now - acks.oldest) * 1000) if acks.oldest is not None else 0)
        table["sendThreadPoolQueueCapacity"] = str(acks.max_sends)
        table["EndTransactionQueueSize"] = "0"
        table["EndTransactionThreadPoolQueueCapacity"] = "0"
        return table

    def config(self, conn: ServerConnection, command: Command) -> None:
        """Answer 26: the configuration as ``key=value`` lines, under the reference's names."""
        config = self._broker.config
        store = config.store
        host, _, port = self._broker.address.rpartition(":")
        values = {
            "brokerClusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "brokerId": config.broker_id,
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": store.flush_disk_type,
            "brokerIP1": host.strip("[]"),
            "listenPort": port,
            "namesrvAddr": ";".join(config.namesrv),
            "storePathRootDir": str(store.root),
            "autoCreateTopicEnable": str(config.auto_create_topic).lower(),
            "autoCreateSubscriptionGroup": str(config.auto_create_group).lower(),
            "defaultTopicQueueNums": config.default_topic_queues,
            "maxMessageSize": config.max_message_bytes,
            "messageDelayLevel": store.message_delay_level,
            "flushIntervalCommitLog": round(config.flush_interval_s * 1000),
            "flushConsumerOffsetInterval": round(config.save_offsets_interval_s * 1000),
            "registerNameServerPeriod": round(config.register_interval_s * 1000),
            "maxTransferBytesOnMessageInMemory": config.max_transfer_bytes,
            "maxTransferCountOnMessageInMemory": config.max_transfer_count,
            "syncFlushTimeout": round(config.sync_flush_timeout_s * 1000),
            "osPageCacheBusyTimeOutMills": config.os_page_cache_busy_timeout_ms,
            "sendThreadPoolQueueCapacity": config.max_waiting_sends,
            "readUnCommitted": str(store.read_uncommitted).lower(),
            "mappedFileSizeCommitLog": store.commitlog_segment_bytes,
            "mappedFileSizeConsumeQueue": store.consumequeue_segment_bytes,
            "mapperFileSizeBatchConsumeQueue": store.batchqueue_segment_bytes,
            "messageIndexEnable": str(store.message_index_enable).lower(),
            "maxHashSlotNum": store.max_hash_slots,
            "maxIndexNum": store.max_index_entries,
            "enableBuildConsumeQueueConcurrently": str(store.enable_build_consume_queue_concurrently).lower(),
            "fileReservedTime": f"{store.file_reserved_hours:g}",
            "deleteWhen": store.delete_when,
            "cleanResourceInterval": round(config.clean_interval_s * 1000),
            "cleanFileForciblyEnable": str(store.clean_file_forcibly).lower(),
            "diskMaxUsedSpaceRatio": round(store.disk_max_used_ratio * 100),
            "diskSpaceCleanForciblyRatio": f"{store.disk_clean_forcibly_ratio:g}",
            "diskSpaceWarningLevelRatio": f"{store.disk_warning_ratio:g}",
            "regionId": config.region,
        }
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        version = msgspec.json.encode(self._topics.data_version).decode()
        conn.respond(command, ResponseCode.SUCCESS, ext={"version": version}, body=text.encode())


def _window(count: int, length_ms: int) -> StatsWindow:
    return StatsWindow(count, count * 1000 / length_ms, 1.0 if count else 0.0)
