"""Administration of topics, groups and committed offsets. Each handler names the request code it answers."""

import logging
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain
from typing import Any

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.groups import GroupRefused, GroupTable
from sprocketmq.broker.metrics.windows import Windows
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.pop.handlers import PopHandlers
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.staged_sends import StagedSends
from sprocketmq.broker.store_times import Place, StoreTimes
from sprocketmq.broker.topics import Topic, TopicRefused, TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import (
    BrokerConsumeStats,
    ConsumeOffset,
    ConsumeStats,
    GroupList,
    GroupSubscription,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStats,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import (
    BrokerConsumeStatsRequest,
    CloneGroupOffset,
    ConsumeStatsRequest,
    CreateTopic,
    DeleteSubscriptionGroup,
    GroupRequest,
    GroupTopicRequest,
    PageRequest,
    TopicRequest,
)
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import SYSTEM_TOPICS
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

Handler = Callable[[ServerConnection, Command], None]


class AdminHandlers:
    """Requests of administrators and tools about topics and groups.

    ``topics_settled`` waits until changed topics are saved and the nameservers know them; ``address`` returns the broker's own.
    """

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientRegistry,
        offsets: OffsetTable,
        windows: Windows,
        times: StoreTimes,
        *,
        address: Callable[[], str],
        sends: StagedSends,
        pulls: PullHandlers,
        pops: PopHandlers,
        topics_settled: Callable[[], Coroutine[Any, Any, None]],
        background: Background,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._windows = windows
        self._times = times
        self._address = address
        self._sends = sends
        self._pulls = pulls
        self._pops = pops
        self._topics_settled = topics_settled
        self._background = background
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            code.UPDATE_AND_CREATE_TOPIC: self.create_topic,
            code.UPDATE_AND_CREATE_TOPIC_LIST: self.create_topics,
            code.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            code.GET_TOPIC_CONFIG: self.topic_config,
            code.GET_ALL_TOPIC_CONFIG: self.all_topics,
            code.GET_TOPIC_STATS_INFO: self.topic_stats,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_groups,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            code.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            code.GET_CONSUME_STATS: self.consume_stats,
            code.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            code.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of_group,
            code.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            code.CLONE_GROUP_OFFSET: self.clone_offsets,
        }

    # --- topics ---

    def create_topic(self, conn: ServerConnection, command: Command) -> None:
        """Answer 17 after the topic is on disk and every reachable nameserver knows it."""
        self._create(conn, command, [command.header(CreateTopic)])

    def create_topics(self, conn: ServerConnection, command: Command) -> None:
        """Answer 18 as 17: all topics of the list are created or changed, or none."""
        if not command.body:
            raise RemoteProtocolError("a list of topics without a body")
        configs = TopicConfigList.decode(command.body).topic_config_list
        self._create(conn, command, [self._topics.request_for(config) for config in configs])

    def _create(self, conn: ServerConnection, command: Command, requests: list[CreateTopic]) -> None:
        before = {request.topic: topic.config if (topic := self._topics.get(request.topic)) else None for request in requests}
        try:
            self._topics.create_or_update(*requests)
        except TopicRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        for name, known in before.items():
            self._log_topic(conn, known, self._topics.get(name))
        command.body = b""
        self._background.spawn(self._answer_when_settled(conn, command), "an answer about a changed topic")

    def _log_topic(self, conn: ServerConnection, before: TopicConfig | None, topic: Topic | None) -> None:
        if topic is None or topic.config == before:
            return
        queues, perm = topic.write_queues, topic.config.perm
        if before is None:
            event(log, logging.INFO, "topic_created", topic=topic.name, queues=queues, perm=perm, by=conn.user, peer=conn.peer)
        else:
            event(log, logging.INFO, "topic_changed", topic=topic.name, queues=queues, perm=perm, by=conn.user, peer=conn.peer)

    async def _answer_when_settled(self, conn: ServerConnection, command: Command) -> None:
        try:
            await self._topics_settled()
        except OSError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"the topic table cannot be saved: {e}")
        else:
            conn.respond(command, ResponseCode.SUCCESS)

    def delete_topic(self, conn: ServerConnection, command: Command) -> None:
        """Answer 215: delete queues, offsets and the entry; the log keeps its records."""
        name = command.header(TopicRequest).topic
        if not name.strip():
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark="The specified topic is blank.")
            return
        self._sends.finish()  # store earlier requests of this read before their queue is deleted
        try:
            self._topics.check_not_own(name)
        except TopicRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        self._store.delete_topic(name)
        topic = self._topics.delete(name)
        if topic is not None:
            self._pulls.topic_deleted(topic)
            self._pops.topic_deleted(topic)
            self._offsets.drop_topic(name)
            event(log, logging.INFO, "topic_deleted", topic=name, by=conn.user, peer=conn.peer)
        command.body = b""
        self._background.spawn(self._answer_when_settled(conn, command), "an answer about a changed topic")

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

        def last_messages() -> Iterator[Place]:
            return ((name, queue_id, self._store.max_offset(name, queue_id) - 1) for queue_id in range(topic.max_queue_id + 1))

        self._times.when_in_memory(conn, command, last_messages, lambda: self._answer_topic_stats(conn, command, topic))

    def _answer_topic_stats(self, conn: ServerConnection, command: Command, topic: Topic) -> None:
        store, name = self._store, topic.name
        table = {}
        for queue_id in range(topic.max_queue_id + 1):
            low, high = max(0, store.min_offset(name, queue_id)), max(0, store.max_offset(name, queue_id))
            last = store.store_time(name, queue_id, high - 1) if high > low else 0
            table[self._queue(name, queue_id)] = TopicOffset(low, high, max(0, last))
        put_tps = self._windows.of_topic(topic.counters)[0].rate(0) if topic.counters is not None else 0.0
        conn.respond(command, ResponseCode.SUCCESS, body=TopicStats(table, put_tps).encode())

    def system_topics(self, conn: ServerConnection, command: Command) -> None:
        """Answer 305."""
        names = sorted(SYSTEM_TOPICS | self._topics.own_names)
        conn.respond(command, ResponseCode.SUCCESS, body=TopicList(names).encode())

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)

    # --- groups ---

    def put_group(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200."""
        if not command.body:
            raise RemoteProtocolError("a subscription group without a body")
        self._put_groups(conn, command, [SubscriptionGroupConfig.decode(command.body)])

    def put_groups(self, conn: ServerConnection, command: Command) -> None:
        """Answer 225: all groups of the list are created or changed, or none."""
        if not command.body:
            raise RemoteProtocolError("a list of subscription groups without a body")
        self._put_groups(conn, command, SubscriptionGroupList.decode(command.body).group_config_list)

    def _put_groups(self, conn: ServerConnection, command: Command, groups: list[SubscriptionGroupConfig]) -> None:
        before = [self._groups.get(group.group_name) for group in groups]
        try:
            self._groups.put(*groups)
        except GroupRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        for known, group in zip(before, groups, strict=True):
            if known is None:
                event(log, logging.INFO, "group_created", group=group.group_name, by=conn.user, peer=conn.peer)
            elif known != group:
                event(log, logging.INFO, "group_changed", group=group.group_name, by=conn.user, peer=conn.peer)
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
        """Answer 352. Asking for a group creates it where that is allowed, as in the reference."""
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
        if self._groups.delete(request.group_name):
            event(log, logging.INFO, "group_deleted", group=request.group_name, offsets=request.clean_offset, by=conn.user, peer=conn.peer)
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

        def answer() -> None:
            conn.respond(command, ResponseCode.SUCCESS, body=self._progress(group, topics).encode())

        self._times.when_in_memory(conn, command, lambda: self._last_consumed(group, topics), answer)

    def _last_consumed(self, group: str, topics: list[Topic]) -> Iterator[Place]:
        """Yield the places of the last messages that a group has consumed."""
        for topic in topics:
            for queue_id in range(topic.read_queues):
                if committed := self._offsets.get(group, topic.name, queue_id):
                    yield topic.name, queue_id, committed - 1

    def _progress(self, group: str, topics: list[Topic]) -> ConsumeStats:
        store, offsets = self._store, self._offsets
        stats = ConsumeStats()
        for topic in topics:
            name = topic.name
            got = topic.counters.groups.get(group) if topic.counters is not None else None
            stats.consume_tps += self._windows.of_group(got)[0].rate(0) if got is not None else 0.0
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
        read: dict[str, list[Topic]] = {}
        for name, group, _ in self._offsets:
            topic = self._topics.get(name)
            if topic is not None:
                read.setdefault(group, []).append(topic)
        groups = {
            config.group_name: read.get(config.group_name, []) if config.consume_message_orderly == wanted else []
            for config in self._groups.table().subscription_group_table.values()
        }

        def places() -> Iterator[Place]:
            return chain.from_iterable(self._last_consumed(group, topics) for group, topics in groups.items())

        self._times.when_in_memory(conn, command, places, lambda: self._answer_all_consume_stats(conn, command, groups))

    def _answer_all_consume_stats(self, conn: ServerConnection, command: Command, groups: dict[str, list[Topic]]) -> None:
        body = BrokerConsumeStats(broker_addr=self._address())
        for group, topics in groups.items():
            tables = [self._progress(group, [topic]) for topic in topics]
            body.consume_stats_list.append({group: tables})
            for table in tables:
                body.total_diff += sum(o.broker_offset - o.consumer_offset for o in table.offset_table.values())
                body.total_inflight_diff += sum(o.pull_offset - o.consumer_offset for o in table.offset_table.values())
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    def clone_offsets(self, conn: ServerConnection, command: Command) -> None:
        """Answer 314: give one group the offsets of another, of one topic or of all it has read; topics that are gone are left out."""
        request = command.header(CloneGroupOffset)
        names = [request.topic] if request.topic else self._offsets.topics_of(request.src_group)
        for name in names:
            if self._topics.get(name) is not None:
                self._offsets.clone(request.src_group, request.dest_group, name)
                event(
                    log,
                    logging.INFO,
                    "offsets_cloned",
                    group=request.dest_group,
                    source=request.src_group,
                    topic=name,
                    by=conn.user,
                    peer=conn.peer,
                )
        conn.respond(command, ResponseCode.SUCCESS)

    def groups_of_topic(self, conn: ServerConnection, command: Command) -> None:
        """Answer 300: groups that read a topic, online or not."""
        name = command.header(TopicRequest).topic
        groups = {group.name for group in self._clients.consumers.values() if name in group.subscriptions}
        groups.update(self._offsets.groups_of(name))
        conn.respond(command, ResponseCode.SUCCESS, body=GroupList(sorted(groups)).encode())

    def topics_of_group(self, conn: ServerConnection, command: Command) -> None:
        """Answer 343: the topics a group has committed offsets for."""
        name = command.header(GroupRequest).group
        topics = TopicList(sorted(self._offsets.topics_of(name)), self._address())
        conn.respond(command, ResponseCode.SUCCESS, body=topics.encode())

    def subscription_of_group(self, conn: ServerConnection, command: Command) -> None:
        """Answer 345: an online group's subscription to a topic."""
        request = command.header(GroupTopicRequest)
        online = self._clients.consumers.get(request.group)
        subscription = online.subscriptions.get(request.topic) if online is not None else None
        body = GroupSubscription(request.group, request.topic, subscription.data if subscription is not None else None)
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())
