"""Administration by way of nameservers and brokers: topics, routes, clusters, consumer groups, offsets, single messages."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sprocketmq.client.arguments import check_number, check_queue
from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.message_lookup import BATCHES_SEARCHED, KEY, TAG, UNIQUE, Lookup, with_key
from sprocketmq.client.routes import MASTER_ID, Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import (
    BrokerBusy,
    ConfigError,
    GroupNotFound,
    InvalidName,
    RemoteProtocolError,
    RetriableError,
    TopicNotFound,
)
from sprocketmq.net.address import format_address
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import (
    ClusterInfo,
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ProducerConnection,
    RuntimeInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRoute,
    TopicStats,
)
from sprocketmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import (
    ClusterRequest,
    ConsumerGroupRequest,
    ConsumeStatsRequest,
    CreateTopic,
    DeleteSubscriptionGroup,
    DeleteTopicInNamesrv,
    PageRequest,
    ProducerGroupRequest,
    QueryMessage,
    ResetOffset,
    RouteRequest,
    RunningInfoRequest,
    TopicRequest,
    ViewMessage,
)
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_group, check_topic, is_system_topic
from sprocketmq.protocol.records import ReceivedMessage, decode_records

ADMIN_TIMEOUT_S = 5.0
MAX_QUEUES = 65_536
MAX_RETRY_QUEUES = 1024
# As many as a broker returns of one key.
MAX_FOUND = 64
# Groups asked for in one request.
GROUPS_PER_PAGE = 2000


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a consumer group has read one queue. All numbers count messages, also where batches are kept whole.

    ``committed_offset`` is where the group goes on (0 where it never committed), ``end_offset`` what the queue's next message will get,
    ``pulled_offset`` how far members have fetched (the committed offset where none is online), ``last_consumed_ms`` when the last consumed message was stored (0: none).
    """

    queue: MessageQueue
    committed_offset: int
    end_offset: int
    pulled_offset: int
    last_consumed_ms: int

    @property
    def lag(self) -> int:
        """Messages the group has not consumed yet."""
        return max(0, self.end_offset - self.committed_offset)

    @property
    def in_flight(self) -> int:
        """Messages that members have fetched and not consumed yet."""
        return max(0, self.pulled_offset - self.committed_offset)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a consumer group has read: queue by queue, sorted, and messages consumed per second over the last minute."""

    group: str
    queues: list[QueueProgress]
    consume_tps: float

    @property
    def lag(self) -> int:
        """Messages of all queues that the group has not consumed yet."""
        return sum(queue.lag for queue in self.queues)

    @property
    def in_flight(self) -> int:
        """Messages of all queues that members have fetched and not consumed yet."""
        return sum(queue.in_flight for queue in self.queues)


class AdminClient(Client):
    """Create, look at and delete topics and consumer groups; look at routes, brokers, progress and single messages; reset offsets.

    ``namesrv`` as for Producer. Use ``async with``. Methods raise BrokerError when a server refuses, BrokerBusy when it cannot now,
    NameserverUnavailable, ConnectFailed, ConnectionLost or RequestTimeout when it does not answer.
    """

    def __init__(
        self, *, namesrv: str | Sequence[str] | None = None, timeout_s: float = ADMIN_TIMEOUT_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        check_number("timeout_s", timeout_s, over=0)
        self._instance = Instance(namesrv, kind="AdminClient", clock=clock)
        self._offsets = OffsetRequests(self._instance)
        self._lookup = Lookup(self._instance, self._offsets, clock)
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        self._instance.check_loop()
        async with self._instance.changing:
            await self._instance.start()

    async def close(self) -> None:
        """Disconnect. Harmless when closed already."""
        self._instance.check_loop()
        async with self._instance.changing:
            await self._instance.close()

    # --- topics ---

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = PERM_READ | PERM_WRITE,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create ``topic`` with ``queues`` queues on every master, or those of one cluster, or one broker; or change it if it is there.

        ``perm`` adds up 4 read and 2 write. ``attributes`` are names with values, such as ``{"queue.type": "BatchCQ"}``; what a topic has
        already is not sent again, as brokers refuse that for unchangeable ones. Returns when the nameservers know the topic.
        """
        check_topic(topic)
        if is_system_topic(topic):
            raise InvalidName("topic", topic, "it is the name of a system topic, which brokers make themselves")
        check_number("queues", queues, least=1, most=MAX_QUEUES, whole=True)
        if type(perm) is not int or not 0 <= perm <= PERM_READ | PERM_WRITE | PERM_INHERIT:
            raise ConfigError(f"perm must add up 4 (read), 2 (write) and 1 (inherit), not {perm!r}")
        if attributes is not None and not isinstance(attributes, Mapping):
            raise ConfigError(f"attributes must be a mapping of names to values, not {attributes!r}")
        masters = await self._masters(cluster, broker)
        await all_of(self._create_on(address, topic, queues, perm, attributes or {}) for address in masters.values())
        await self._instance.fetch_route(topic)

    async def _create_on(self, address: str, topic: str, queues: int, perm: int, attributes: Mapping[str, str]) -> None:
        if attributes:
            there = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, to_ext(TopicRequest(topic)))
            if there.code == ResponseCode.SUCCESS:
                has = TopicConfig.decode(there.body).attributes
                attributes = {name: value for name, value in attributes.items() if has.get(name) != value}
        text = ",".join(f"+{name}={value}" for name, value in attributes.items())
        header = CreateTopic(topic, queues, queues, perm, attributes=text)
        self._expect_success(await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, to_ext(header)), address)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete ``topic`` and its messages from every master (of one cluster), then from the nameservers. Harmless when it is unknown."""
        check_topic(topic)
        masters = await self._masters(cluster, None)
        ext = to_ext(TopicRequest(topic))
        for address in masters.values():
            self._expect_success(await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, ext), address)
        ext = to_ext(DeleteTopicInNamesrv(topic, cluster))
        for namesrv in self._instance.namesrv.addresses:
            conn = await self._instance.namesrv.pool.get(namesrv)
            self._expect_success(await conn.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext=ext, timeout_s=self._timeout_s), namesrv)
        self._instance.routes.pop(topic, None)

    async def topics(self, *, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, sorted; of one cluster when given (an unknown cluster has none)."""
        if cluster is None:
            response = await self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            response = await self._ask_namesrv(RequestCode.GET_TOPICS_BY_CLUSTER, to_ext(ClusterRequest(cluster)))
        return sorted(TopicList.decode(response.body).topic_list)

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return how ``topic`` is set up, by broker name. Raises TopicNotFound."""
        route = await self._route(topic)
        configs = {}
        for name, address in route.masters.items():
            response = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, to_ext(TopicRequest(topic)))
            configs[name] = TopicConfig.decode(self._expect_success(response, address, topic).body)
        return configs

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Return how every topic is set up, by topic and broker name. What only brokers know that do not answer now is left out."""
        configs: dict[str, dict[str, TopicConfig]] = {}
        for name, brokers in (await self.cluster()).broker_addr_table.items():
            address = brokers.broker_addrs.get(MASTER_ID)
            if address is None:
                continue
            with contextlib.suppress(RetriableError):
                response = self._expect_success(await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, {}), address)
                for topic, config in TopicConfigTable.decode(response.body).topic_config_table.items():
                    configs.setdefault(topic, {})[name] = config
        return configs

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the offsets and last store times of every queue of ``topic``, and messages put per second. Raises TopicNotFound."""
        route = await self._route(topic)
        total = TopicStats()
        for address in route.masters.values():
            response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, to_ext(TopicRequest(topic)))
            stats = TopicStats.decode(self._expect_success(response, address, topic).body)
            total.offset_table |= stats.offset_table
            total.topic_put_tps += stats.topic_put_tps
        total.offset_table = dict(sorted(total.offset_table.items()))
        return total

    # --- routes and brokers ---

    async def route(self, topic: str) -> TopicRoute:
        """Return the nameserver's route of ``topic``. Raises TopicNotFound."""
        check_topic(topic)
        ext = to_ext(RouteRequest(topic, accept_standard_json_only=True))
        return TopicRoute.decode((await self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, topic)).body)

    async def cluster(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        return ClusterInfo.decode((await self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the statistics the broker at ``address`` gives of itself."""
        response = self._expect_success(await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, {}), address)
        return RuntimeInfo.decode(response.body).table

    # --- offsets ---

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted. Raises TopicNotFound."""
        return sorted((await self._route(topic)).subscribe_queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message kept."""
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the next message will get."""
        return await self._offsets.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later; the end of the queue when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return where ``group`` goes on in every queue of ``topic``, None where it never committed. Raises TopicNotFound."""
        check_group(group)
        queues = await self.queues(topic)
        offsets = await all_of(self._offsets.committed(group, queue) for queue in queues)
        return dict(zip(queues, offsets, strict=True))

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Have ``group`` go on at ``offset``. Members that run now keep their own place and overwrite it: stop them first."""
        check_group(group)
        await self._offsets.commit(group, queue, offset)

    async def consume_stats(self, group: str, topic: str) -> ConsumeStats:
        """Return how far ``group`` has read each queue of ``topic``, beside the queue's end. Raises TopicNotFound."""
        check_group(group)
        route = await self._route(topic)
        total = ConsumeStats()
        for address in route.masters.values():
            response = await self._ask(address, RequestCode.GET_CONSUME_STATS, to_ext(ConsumeStatsRequest(group, topic)))
            stats = ConsumeStats.decode(self._expect_success(response, address, topic).body)
            total.offset_table |= stats.offset_table
            total.consume_tps += stats.consume_tps
        total.offset_table = dict(sorted(total.offset_table.items()))
        return total

    # --- consumer groups ---

    async def groups(self, *, cluster: str | None = None) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups by name, sorted, RocketMQ's own ones included. Where brokers differ, the first one's word counts."""
        masters = await self._masters(cluster, None)
        tables = await all_of(self._groups_on(address) for address in masters.values())
        found: dict[str, SubscriptionGroupConfig] = {}
        for table in tables:
            found = table | found
        return dict(sorted(found.items()))

    async def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """Return how ``group`` is set up, by broker name. Raises GroupNotFound when no broker knows it."""
        check_group(group)
        masters = await self._masters(None, None)
        # Asking a broker for the one group would create it there.
        tables = await all_of(self._groups_on(address) for address in masters.values())
        found = {name: table[group] for name, table in zip(masters, tables, strict=True) if group in table}
        if not found:
            raise GroupNotFound(group)
        return found

    async def create_group(
        self,
        group: str,
        *,
        max_reconsume_times: int = 16,
        retry_queues: int = 1,
        orderly: bool = False,
        enabled: bool = True,
        broadcast: bool = True,
        consume_timeout_minutes: int = 15,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create ``group`` on every master, or those of one cluster, or one broker; or change it if it is there.

        ``max_reconsume_times`` failures put a message into ``%DLQ%group``; ``retry_queues`` is how many queues ``%RETRY%group`` gets; with 0 what
        fails is dropped.
        A group that is not ``enabled`` gets no messages. ``broadcast`` allows members that each get every message.
        """
        check_group(group)
        check_number("max_reconsume_times", max_reconsume_times, least=-1, whole=True)
        check_number("retry_queues", retry_queues, least=0, most=MAX_RETRY_QUEUES, whole=True)
        check_number("consume_timeout_minutes", consume_timeout_minutes, least=1, whole=True)
        config = SubscriptionGroupConfig(
            group,
            consume_enable=enabled,
            consume_broadcast_enable=broadcast,
            consume_message_orderly=orderly,
            retry_queue_nums=retry_queues,
            retry_max_times=max_reconsume_times,
            consume_timeout_minute=consume_timeout_minutes,
        )
        for address in (await self._masters(cluster, broker)).values():
            response = await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config.encode())
            self._expect_success(response, address)

    async def delete_group(self, group: str, *, offsets: bool = True, dead_letters: bool = False, cluster: str | None = None) -> None:
        """Delete ``group`` from every master (of one cluster) with its retry topic, its ``offsets``, and its ``dead_letters`` if asked to.

        Harmless when it is unknown. A group with running members comes back with their next heartbeat where groups create themselves.
        """
        check_group(group)
        for address in (await self._masters(cluster, None)).values():
            ext = to_ext(DeleteSubscriptionGroup(group, offsets))
            self._expect_success(await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext), address)
        await self.delete_topic(RETRY_PREFIX + group, cluster=cluster)
        if dead_letters:
            await self.delete_topic(DLQ_PREFIX + group, cluster=cluster)

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return how far ``group`` has read ``topic``, or everything it has read from, ``%RETRY%group`` included.

        Raises TopicNotFound. A group that never consumed anything has no queues.
        """
        check_group(group)
        masters = await self._masters(None, None) if topic is None else (await self._route(topic)).masters
        ext = to_ext(ConsumeStatsRequest(group, topic))
        answers = await all_of(self._ask(address, RequestCode.GET_CONSUME_STATS, ext) for address in masters.values())
        ext = to_ext(ConsumerGroupRequest(group))
        members = await all_of(self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext) for address in masters.values())
        queues: list[QueueProgress] = []
        tps = 0.0
        for address, answer, online in zip(masters.values(), answers, members, strict=True):
            stats = ConsumeStats.decode(self._expect_success(answer, address, topic or "").body)
            tps += stats.consume_tps
            # A broker remembers how far members had fetched that are gone, and with them what they had not consumed.
            alone = online.code == ResponseCode.CONSUMER_NOT_ONLINE
            queues += [
                QueueProgress(queue, o.consumer_offset, o.broker_offset, o.consumer_offset if alone else o.pull_offset, o.last_timestamp)
                for queue, o in stats.offset_table.items()
            ]
        return GroupProgress(group, sorted(queues, key=lambda progress: progress.queue), tps)

    async def reset_offsets(self, group: str, topic: str, to: str | float, *, queue: MessageQueue | None = None) -> dict[MessageQueue, int]:
        """Have ``group`` go on elsewhere in ``topic`` and return where, by queue; its running members go there, too.

        ``to`` is ``"first"`` (the oldest message kept), ``"last"`` (behind the newest) or a time in epoch seconds (the first message
        stored then or later); with ``queue`` in this queue only. Use ``reset_offset`` for an offset. Raises TopicNotFound, ConfigError.
        """
        if to not in ("first", "last") and (isinstance(to, str) or not 0 <= to < 1 << 53):
            raise ConfigError(f"offsets are reset to 'first', 'last' or a time in epoch seconds, not {to!r}")
        check_group(group)
        route = await self._route(topic)
        queues = sorted(route.subscribe_queues) if queue is None else [queue]
        addresses = [_master_of(route, each) for each in queues]

        async def place(each: MessageQueue) -> int:
            if to == "first":
                return await self._offsets.min_offset(each)
            if to == "last":
                return await self._offsets.max_offset(each)
            return await self._offsets.offset_at(each, round(float(to) * 1000))

        # Queue by queue: asked for a time, Apache's broker fails on empty batch queues, and goes to the last batch of older ones.
        offsets = await all_of(map(place, queues))
        await all_of(self._reset(group, *each) for each in zip(queues, addresses, offsets, strict=True))
        return dict(zip(queues, offsets, strict=True))

    async def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Have ``group`` go on at ``offset`` of one queue, its running members too. BrokerError when the queue does not reach so far."""
        check_group(group)
        check_queue(queue)
        check_number("offset", offset, least=0, whole=True)
        await self._reset(group, queue, _master_of(await self._route(queue.topic), queue), offset)

    async def _reset(self, group: str, queue: MessageQueue, address: str, offset: int) -> None:
        header = ResetOffset(queue.topic, group, 0, is_force=True, queue_id=queue.queue_id, offset=offset)
        response = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, to_ext(header))
        self._expect_success(response, address, queue.topic)

    async def consumers(self, group: str) -> ConsumerConnection:
        """Return the members of ``group`` that are online, of all brokers, and what they subscribe to; no connections when there is none."""
        check_group(group)
        found = ConsumerConnection()
        ext = to_ext(ConsumerGroupRequest(group))
        for address in (await self._masters(None, None)).values():
            response = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
            if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
                continue
            here = ConsumerConnection.decode(self._expect_success(response, address).body)
            known = {connection.client_id for connection in found.connection_set}
            here.connection_set = found.connection_set + [c for c in here.connection_set if c.client_id not in known]
            found = here
        return found

    async def producers(self, group: str) -> ProducerConnection:
        """Return the members of the producer group ``group`` that are online, of all brokers; none when there is none."""
        check_group(group)
        found: dict[str, Connection] = {}
        ext = to_ext(ProducerGroupRequest(group))
        for address in (await self._masters(None, None)).values():
            response = await self._ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ext)
            if response.code == ResponseCode.SYSTEM_ERROR and "not exist" in (response.remark or ""):
                continue
            here = ProducerConnection.decode(self._expect_success(response, address).body)
            found = {connection.client_id: connection for connection in here.connection_set} | found
        return ProducerConnection(list(found.values()))

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Return what a member of ``group`` says it is doing; ``client_id`` is one of ``consumers``. BrokerError when it is not online."""
        check_group(group)
        ext = to_ext(RunningInfoRequest(group, client_id))
        failure: Exception | None = None
        for address in (await self._masters(None, None)).values():
            response = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            if response.code == ResponseCode.SUCCESS:
                return ConsumerRunningInfo.decode(response.body)
            failure = failure or response_error(response, address)
        assert failure is not None, "there is a master"
        raise failure

    # --- single messages ---

    async def query_by_key(
        self, topic: str, key: str, *, max_count: int = MAX_FOUND, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[ReceivedMessage]:
        """Return the newest messages of ``topic`` that have ``key`` among their keys or as id, the oldest of them first.

        At most ``max_count``, which brokers limit to 64 each; stored in ``[begin_ms, end_ms]`` (wall-clock milliseconds). Of a batch that is
        kept whole those with the key. Batches that do not have the keys of their messages are looked through, within bounds.
        Raises TopicNotFound.
        """
        return (await self._query(topic, key, max_count, begin_ms, end_ms, KEY))[-max_count:]

    async def query_by_tag(
        self, topic: str, tag: str, *, max_count: int = MAX_FOUND, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[ReceivedMessage]:
        """Return the newest messages of ``topic`` with a tag, otherwise as ``query_by_key``."""
        return (await self._query(topic, tag, max_count, begin_ms, end_ms, TAG))[-max_count:]

    async def query_by_unique_key(self, topic: str, msg_id: str) -> list[ReceivedMessage]:
        """Return the messages of ``topic`` with this id (``SendResult.msg_id``): one, unless it was sent again; none when it is not known.

        The id of a batch that is kept whole gives all its messages. The id of a message inside one is searched for around the time it was
        made at. Raises TopicNotFound.
        """
        return await self._query(topic, msg_id, MAX_FOUND, 0, 2**63 - 1, UNIQUE)

    async def view_message(self, topic: str, msg_id: str) -> ReceivedMessage | None:
        """Return the message of ``topic`` with an id, its producer's (``msg_id``) or the broker's (``offset_msg_id``); None without one.

        The messages of a batch that is kept whole share the broker's id: it gives the first of them, and ``messages_at`` all. One that was
        sent again is returned as it was stored last. Raises TopicNotFound.
        """
        route = await self._route(topic)
        try:
            ip, port, _ = parse_offset_msg_id(msg_id)
        except RemoteProtocolError:
            pass  # a producer's, most likely
        else:
            if format_address(ip, port) in route.masters.values():
                found = [message for message in await self.messages_at(msg_id) if message.topic == topic]
                if found:
                    return found[0]
        found = await self.query_by_unique_key(topic, msg_id)
        return found[-1] if found else None

    async def messages_at(self, offset_msg_id: str) -> list[ReceivedMessage]:
        """Return the message with a broker's id (``SendResult.offset_msg_id``) from the broker it names; none when it is not there.

        Of a batch that is kept whole all messages, as they share the id. Raises ConfigError for a text that is no such id.
        """
        try:
            ip, port, physical = parse_offset_msg_id(offset_msg_id)
        except RemoteProtocolError as e:
            raise ConfigError(str(e)) from None
        self._instance.check()
        address = format_address(ip, port)
        response = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, to_ext(ViewMessage(physical)))
        if response.code == ResponseCode.SYSTEM_ERROR and (response.remark or "").startswith("can not find message"):
            return []
        return decode_records(bytes(self._expect_success(response, address).body), verify_crc=True)

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """Return the message at an offset of a queue, also one inside a batch; None when there is none. Raises TopicNotFound."""
        check_queue(queue)
        check_number("offset", offset, least=0, whole=True)
        await self._route(queue.topic)
        result = await self._lookup.pull(queue, offset, max_messages=1)
        return next((message for message in result.messages if message.queue_offset == offset), None)

    async def _query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, kind: str) -> list[ReceivedMessage]:
        """Ask every broker; those that do not look into batches themselves are read."""
        check_number("max_count", max_count, least=1, most=0x7FFFFFFF, whole=True)
        masters = (await self._route(topic)).masters
        ext = to_ext(QueryMessage(topic, key, max_count, begin_ms, end_ms, kind, kind == UNIQUE))
        responses = await all_of(self._ask(address, RequestCode.QUERY_MESSAGE, ext) for address in masters.values())
        found: dict[tuple[str, int, int], ReceivedMessage] = {}
        not_searched = set()
        for (name, address), response in zip(masters.items(), responses, strict=True):
            if BATCHES_SEARCHED not in (response.ext or {}):
                not_searched.add(name)
            if response.code != ResponseCode.QUERY_NOT_FOUND:
                for message in with_key(bytes(self._expect_success(response, address, topic).body), name, key, kind):
                    found[name, message.queue_id, message.queue_offset] = message
        if not_searched and not (found and kind == UNIQUE):
            queues = [queue for queue in await self._batch_queues(topic) if queue.broker_name in not_searched]
            for message in await self._lookup.search(queues, key, kind, max_count, begin_ms, end_ms):
                found[message.broker_name, message.queue_id, message.queue_offset] = message
        return sorted(found.values(), key=lambda m: (m.store_timestamp_ms, m.commitlog_offset, m.queue_offset))

    async def _batch_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` on brokers where it has batch queues."""
        configs = await self.topic_config(topic)
        return [queue for queue in await self.queues(topic) if configs[queue.broker_name].attributes.get("queue.type") == "BatchCQ"]

    # --- inside ---

    async def _route(self, topic: str) -> Route:
        self._instance.check()
        check_topic(topic)
        route = await self._instance.fetch_route(topic)
        if route is None:
            raise TopicNotFound(topic, ";".join(self._instance.namesrv.addresses))
        return route

    async def _masters(self, cluster: str | None, broker: str | None) -> dict[str, str]:
        info = await self.cluster()
        names = set(info.broker_addr_table) if cluster is None else set(info.cluster_addr_table.get(cluster, ()))
        if broker is not None:
            names &= {broker}
        masters = {
            name: data.broker_addrs[0] for name, data in sorted(info.broker_addr_table.items()) if name in names and 0 in data.broker_addrs
        }
        if not masters:
            wanted = f"broker {broker!r}" if broker else f"cluster {cluster!r}" if cluster else "broker"
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"no {wanted} is registered at {';'.join(self._instance.namesrv.addresses)} (clusters there: {known})")
        return masters

    async def _groups_on(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        found: dict[str, SubscriptionGroupConfig] = {}
        while True:
            ext = to_ext(PageRequest(group_seq=len(found), max_group_num=GROUPS_PER_PAGE))
            response = self._expect_success(await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ext), address)
            page = SubscriptionGroupTable.decode(response.body).subscription_group_table
            before = len(found)
            found |= page
            if len(found) == before or len(page) != GROUPS_PER_PAGE:  # older brokers know no pages and give everything
                return found

    async def _ask(self, address: str, code: RequestCode, ext: Mapping[str, str], body: bytes = b"") -> Command:
        return await self._instance.ask(address, code, ext=ext, body=body, timeout_s=self._timeout_s)

    async def _ask_namesrv(self, code: RequestCode, ext: Mapping[str, str] | None = None, topic: str = "") -> Command:
        self._instance.check()
        response = await self._instance.namesrv.request(code, ext=ext)
        return self._expect_success(response, ";".join(self._instance.namesrv.addresses), topic)

    @staticmethod
    def _expect_success(response: Command, address: str, topic: str = "") -> Command:
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, topic)
        return response


def _master_of(route: Route, queue: MessageQueue) -> str:
    if queue not in route.subscribe_queues:
        raise ConfigError(f"topic {queue.topic!r} has no queue {queue.queue_id} on a broker {queue.broker_name!r}")
    address = route.masters.get(queue.broker_name)
    if address is None:
        raise BrokerBusy(ResponseCode.SERVICE_NOT_AVAILABLE, f"broker {queue.broker_name} has no master at the moment")
    return address
