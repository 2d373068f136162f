"""Administration of topics, routes and brokers."""

import contextlib
import re
from collections.abc import Mapping

from sprocketmq.client.admin.one_broker import SingleBrokerAdmin
from sprocketmq.client.arguments import check_number
from sprocketmq.errors import (
    ConfigError,
    InvalidName,
    RetriableError,
    TopicNotFound,
)
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import (
    RuntimeInfo,
    TopicConfig,
    TopicList,
    TopicRoute,
    TopicStats,
)
from sprocketmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import (
    ClusterRequest,
    CreateTopic,
    DeleteTopicInNamesrv,
    RouteRequest,
    TopicRequest,
)
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_topic, is_system_topic

MAX_QUEUES = 65_536

_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


class TopicAdmin(SingleBrokerAdmin):
    """Topics, their queues and offsets, routes and brokers."""

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
        """Create ``topic`` with ``queues`` queues on every master, those of one cluster, or one broker; or change an existing topic.

        ``perm`` is the sum of 4 (read) and 2 (write). ``attributes`` are such as ``{"queue.type": "BatchCQ"}``; those that a topic has
        already are not sent again, as brokers refuse that for immutable ones. Returns when the nameservers know the topic.

        Example::

            from sprocketmq import AdminClient

            async with AdminClient(namesrv="127.0.0.1:9876") as admin:
                await admin.create_topic("clicks", queues=4, attributes={"queue.type": "BatchCQ"})
                print("clicks" in await admin.topics())
        """
        check_topic(topic)
        if is_system_topic(topic):
            raise InvalidName("topic", topic, "it is the name of a system topic, which brokers create themselves")
        check_number("queues", queues, least=1, most=MAX_QUEUES, whole=True)
        if type(perm) is not int or not 0 <= perm <= PERM_READ | PERM_WRITE | PERM_INHERIT:
            raise ConfigError(f"perm must add up 4 (read), 2 (write) and 1 (inherit), not {perm!r}")
        if attributes is not None and not isinstance(attributes, Mapping):
            raise ConfigError(f"attributes must be a mapping of names to values, not {attributes!r}")
        for name in attributes or ():
            if not _ATTRIBUTE.fullmatch(str(name)):
                raise ConfigError(f"{name!r} is not an attribute name: write it as 'queue.type', without the sign that mqadmin wants")
        masters = await self._masters(cluster, broker)
        await all_of(self._create_on(address, topic, queues, perm, attributes or {}) for address in masters.values())
        await self._instance.fetch_route(topic)

    async def _create_on(self, address: str, topic: str, queues: int, perm: int, attributes: Mapping[str, str]) -> None:
        if attributes:
            there = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, to_ext(TopicRequest(topic)))
            if there.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ConfigError(f"topics of the broker at {address} have no attributes: Apache's have them from 5.0 on")
            if there.code == ResponseCode.SUCCESS:
                has = TopicConfig.decode(there.body).attributes
                attributes = {name: value for name, value in attributes.items() if has.get(name) != value}
        text = ",".join(f"+{name}={value}" for name, value in attributes.items())
        header = CreateTopic(topic, queues, queues, perm, attributes=text)
        self._expect_success(await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, to_ext(header)), address)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete ``topic`` and its messages from every master (of one cluster), then from the nameservers. Harmless if unknown."""
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
        """Return the configuration of ``topic`` by broker name. Raises TopicNotFound."""
        route = await self._route(topic)
        configs = {}
        for name, address in route.readers.items():
            response = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, to_ext(TopicRequest(topic)))
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # by Apache's brokers before 5.0
                if (config := (await self.topic_configs_on(address)).get(topic)) is None:
                    raise TopicNotFound(topic, broker=name)
                configs[name] = config
            else:
                configs[name] = TopicConfig.decode(self._expect_success(response, address, topic).body)
        return configs

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Return the configuration of every topic, by topic and broker name, from the brokers that answer now."""
        configs: dict[str, dict[str, TopicConfig]] = {}
        for name, address in (await self._readers()).items():
            with contextlib.suppress(RetriableError):
                for topic, config in (await self.topic_configs_on(address)).items():
                    configs.setdefault(topic, {})[name] = config
        return configs

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the offsets and last store times of every queue of ``topic``, and messages put per second. Raises TopicNotFound."""
        route = await self._route(topic)
        total = TopicStats()
        for address in route.readers.values():
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

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime statistics of the broker at ``address``."""
        response = self._expect_success(await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, {}), address)
        return RuntimeInfo.decode(response.body).table

    # --- queues ---

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted. Raises TopicNotFound."""
        return sorted((await self._route(topic)).subscribe_queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._offsets.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later; the end of the queue when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)
