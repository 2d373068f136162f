"""Administration by way of nameservers and brokers: topics, routes, clusters, offsets, single messages."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.offsets import Offsets
from sprocketmq.client.routes import Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, RemoteProtocolError, TopicNotFound
from sprocketmq.net.address import format_address
from sprocketmq.protocol.bodies import ClusterInfo, ConsumeStats, RuntimeInfo, TopicConfig, TopicList, TopicRoute, TopicStats
from sprocketmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import (
    ClusterRequest,
    ConsumeStatsRequest,
    CreateTopic,
    DeleteTopicInNamesrv,
    QueryMessage,
    RouteRequest,
    TopicRequest,
    ViewMessage,
)
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_topic
from sprocketmq.protocol.records import ReceivedMessage, decode_records, walk_records

ADMIN_TIMEOUT_S = 5.0
MAX_QUEUES = 65_536
# As many as a broker returns of one key.
MAX_FOUND = 64


class AdminClient:
    """Create, look at and delete topics; look at routes, brokers, offsets and single messages.

    ``namesrv`` as for Producer. Use ``async with``. Methods raise BrokerError when a server refuses, BrokerBusy when it cannot now,
    NameserverUnavailable, ConnectFailed, ConnectionLost or RequestTimeout when it does not answer.
    """

    def __init__(
        self, *, namesrv: str | Sequence[str] | None = None, timeout_s: float = ADMIN_TIMEOUT_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._instance = Instance(namesrv, kind="AdminClient", clock=clock)
        self._offsets = Offsets(self._instance)
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        await self._instance.start()

    async def close(self) -> None:
        """Disconnect. Harmless when closed already."""
        await self._instance.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

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
        if not 1 <= queues <= MAX_QUEUES:
            raise ConfigError(f"queues must be from 1 to {MAX_QUEUES}, not {queues}")
        if not 0 <= perm <= PERM_READ | PERM_WRITE | PERM_INHERIT:
            raise ConfigError(f"perm must add up 4 (read), 2 (write) and 1 (inherit), not {perm}")
        masters = await self._masters(cluster, broker)
        await asyncio.gather(*(self._create_on(address, topic, queues, perm, attributes or {}) for address in masters.values()))
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
        offsets = await asyncio.gather(*(self._offsets.committed(group, queue) for queue in queues))
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

    # --- single messages ---

    async def query_by_key(
        self, topic: str, key: str, *, max_count: int = MAX_FOUND, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[ReceivedMessage]:
        """Return the newest messages of ``topic`` that have ``key`` among their keys or as id, the oldest of them first.

        At most ``max_count``, which brokers limit to 64 each; stored in ``[begin_ms, end_ms]`` (wall-clock milliseconds). Of a batch that is
        kept whole those with the key, which its broker only finds when the batch has it as well. Raises TopicNotFound.
        """
        if not 1 <= max_count <= 0x7FFFFFFF:
            raise ConfigError(f"max_count must be positive, not {max_count}")
        return (await self._query(topic, key, max_count, begin_ms, end_ms, unique=False))[-max_count:]

    async def query_by_unique_key(self, topic: str, msg_id: str) -> list[ReceivedMessage]:
        """Return the messages of ``topic`` with this id (``SendResult.msg_id``): one, unless it was sent again; none when it is not known.

        The id of a batch that is kept whole gives all its messages. Raises TopicNotFound.
        """
        return await self._query(topic, msg_id, MAX_FOUND, 0, 2**63 - 1, unique=True)

    async def view_message(self, offset_msg_id: str) -> list[ReceivedMessage]:
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

    async def _query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, unique: bool) -> list[ReceivedMessage]:
        route = await self._route(topic)
        ext = to_ext(QueryMessage(topic, key, max_count, begin_ms, end_ms, "U" if unique else "K", unique))
        masters = route.masters
        responses = await asyncio.gather(*(self._ask(address, RequestCode.QUERY_MESSAGE, ext) for address in masters.values()))
        found: list[ReceivedMessage] = []
        for (name, address), response in zip(masters.items(), responses, strict=True):
            if response.code != ResponseCode.QUERY_NOT_FOUND:
                body = bytes(self._expect_success(response, address, topic).body)
                found += _with_key(body, name, key, unique=unique)
        return sorted(found, key=lambda message: message.store_timestamp_ms)

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

    async def _ask(self, address: str, code: RequestCode, ext: Mapping[str, str]) -> Command:
        return await self._instance.ask(address, code, ext=ext, timeout_s=self._timeout_s)

    async def _ask_namesrv(self, code: RequestCode, ext: Mapping[str, str] | None = None, topic: str = "") -> Command:
        self._instance.check()
        response = await self._instance.namesrv.request(code, ext=ext)
        return self._expect_success(response, ";".join(self._instance.namesrv.addresses), topic)

    @staticmethod
    def _expect_success(response: Command, address: str, topic: str = "") -> Command:
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, topic)
        return response


def _with_key(body: bytes, broker_name: str, key: str, *, unique: bool) -> list[ReceivedMessage]:
    """Return the messages of records that have a key, or with ``unique`` that id; Apache's brokers compare hashes only."""

    def has_key(message: ReceivedMessage) -> bool:
        return message.properties.get("UNIQ_KEY") == key or (not unique and key in message.keys)

    found = []
    for at, size in walk_records(body):
        record = ReceivedMessage(body, at, size, broker_name)
        record.verify_crc()
        messages = decode_records(memoryview(body)[at : at + size], broker_name=broker_name)
        matching = [message for message in messages if has_key(message)]
        found += matching or (messages if has_key(record) else [])
    return found
