"""Administration: topics, groups, statistics, queue offsets (protocol, section 7.3, and 7.2.2 for 29 to 32)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from sprocketmq.broker.groups import GroupRefused
from sprocketmq.broker.topics import Topic, TopicRefused
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import (
    ConsumeOffset,
    ConsumeStats,
    GroupList,
    RuntimeInfo,
    SubscriptionGroupConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStats,
)
from sprocketmq.protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import (
    ConsumeStatsRequest,
    CreateTopic,
    DeleteSubscriptionGroup,
    GroupRequest,
    PageRequest,
    QueueRequest,
    SearchOffset,
    TopicRequest,
)
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import SYSTEM_TOPICS

if TYPE_CHECKING:
    from sprocketmq.broker.server import Broker

VERSION_NAME = "V5_5_0"

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
            code.GET_MAX_OFFSET: self.max_offset,
            code.GET_MIN_OFFSET: self.min_offset,
            code.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            code.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
            code.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            code.GET_BROKER_CONFIG: self.config,
        }

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for answers that are still being worked on."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        for task in self._tasks:
            task.cancel()

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
        self._later(self._topic_settled(conn, command))

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
        self._later(self._topic_settled(conn, command))

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
        conn.respond(command, ResponseCode.SUCCESS, body=TopicStats(table).encode())

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
        group, store = request.consumer_group, self._store
        names = {request.topic} if request.topic else set(self._offsets.topics_of(group))
        online = self._clients.consumers.get(group)
        if online is not None and not request.topic:
            names |= online.subscriptions.keys()
        table = {}
        for name in sorted(names):
            topic = self._topics.get(name)
            if topic is None:
                continue
            for queue_id in range(topic.read_queues):
                newest = max(0, store.max_offset(name, queue_id))
                committed = self._offsets.get(group, name, queue_id)
                if committed is None:
                    committed = 0
                pulled = self._offsets.pulled(group, name, queue_id)
                before = store.store_time(name, queue_id, committed - 1) if committed > 0 else 0
                table[self._queue(name, queue_id)] = ConsumeOffset(
                    newest, committed, max(committed, pulled if pulled is not None else 0), max(0, before)
                )
        conn.respond(command, ResponseCode.SUCCESS, body=ConsumeStats(table).encode())

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
                "connections": str(broker.connection_count),
                "timerReadBehind": "0",
                "timerOffsetBehind": "0",
                "timerCongestNum": "0",
                "timerEnqueueTps": "0.0",
                "timerDequeueTps": "0.0",
            }
        )
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
