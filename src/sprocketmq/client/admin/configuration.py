"""Settings of running brokers and nameservers, statistics by name, and lists of topics and groups that are made as a whole."""

from collections.abc import Mapping, Sequence

import msgspec

from sprocketmq.client.admin.replication import ReplicationAdmin
from sprocketmq.errors import ConfigError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import (
    BrokerStats,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import BrokerStatsRequest, GroupForbiddenRequest, GroupTopicRequest
from sprocketmq.protocol.names import check_group, check_topic
from sprocketmq.protocol.settings import decode_settings, encode_settings

Setting = str | int | bool


class ConfigurationAdmin(ReplicationAdmin):
    """Settings, statistics, and lists."""

    # --- settings ---

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of the broker at ``address``, under Apache's names. Our brokers mask secrets, Apache's do not."""
        return await self._settings_of(address)

    async def update_broker_config(self, address: str, changes: Mapping[str, Setting]) -> None:
        """Change settings of the broker at ``address`` while it runs, by Apache's names.

        Our broker takes those that docs/guide/broker-settings.md lists, all of ``changes`` or none; they outlive a restart. It refuses
        others by name (BrokerError). Apache's broker takes nearly any, ignores unknown names, and rewrites its configuration file.
        """
        body = _changes(changes)
        self._expect_success(await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, {}, body), address)

    async def namesrv_config(self, address: str | None = None) -> dict[str, str]:
        """Return the settings of the nameserver at ``address``; default: the first one this client was given."""
        address = address or self._instance.namesrv.addresses[0]
        return decode_settings((await self._ask_nameserver(address, RequestCode.GET_NAMESRV_CONFIG)).body)

    async def update_namesrv_config(self, changes: Mapping[str, Setting], *, address: str | None = None) -> None:
        """Change settings of the nameserver at ``address`` while it runs; default: of all that this client was given.

        Our nameserver takes ``max_connections``, until it stops, and refuses others by name (BrokerError).
        """
        body = _changes(changes)
        for each in [address] if address else self._instance.namesrv.addresses:
            await self._ask_nameserver(each, RequestCode.UPDATE_NAMESRV_CONFIG, body)

    async def _ask_nameserver(self, address: str, code: RequestCode, body: bytes = b"") -> Command:
        self._instance.check()
        conn = await self._instance.namesrv.pool.get(address, timeout_s=self._timeout_s)
        return self._expect_success(await conn.request(code, body=body, timeout_s=self._timeout_s), address)

    # --- statistics ---

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStats | None:
        """Return how often something happened at the broker at ``address`` in the last minute, hour and day; None when it never did.

        ``name`` is such as ``TOPIC_PUT_NUMS`` with the key ``topic``, or ``GROUP_GET_NUMS`` with ``topic@group``; ``avgpt`` of a window
        is the amount each time, here messages for each send request or pull.
        """
        response = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, to_ext(BrokerStatsRequest(name, key)))
        if response.code == ResponseCode.SYSTEM_ERROR and "not exist" in (response.remark or ""):
            return None
        return BrokerStats.decode(self._expect_success(response, address).body)

    async def consume_time_spans(self, group: str, topic: str) -> list[ConsumeTimeSpan]:
        """Return for each queue of ``topic`` when its messages were stored, and how long the group's next message has waited.

        Raises TopicNotFound. Apache's broker gives times of -1, and a ``delay_time`` without meaning, for a queue without a commit.
        """
        check_group(group)
        route = await self._route(topic)
        ext = to_ext(GroupTopicRequest(group, topic))
        answers = await all_of(self._ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, ext) for address in route.readers.values())
        spans: list[ConsumeTimeSpan] = []
        for address, answer in zip(route.readers.values(), answers, strict=True):
            spans += ConsumeTimeSpans.decode(self._expect_success(answer, address, topic).body).consume_time_span_set
        return sorted(spans, key=lambda span: span.message_queue)

    # --- lists of topics and groups ---

    async def create_topics(self, topics: Sequence[TopicConfig], *, cluster: str | None = None, broker: str | None = None) -> None:
        """Create or change several topics with one request to each master, those of one cluster, or one broker.

        Each broker takes all or none. Topics that look like that already are left out: Apache's broker would drop the whole list.
        """
        for config in topics:
            if not isinstance(config, TopicConfig):
                raise ConfigError(f"topics are given as TopicConfig, not {config!r}")
            check_topic(config.topic_name)
        masters = await self._masters(cluster, broker)
        known = await self.topic_configs()
        for name, address in masters.items():
            wanted = [change for config in topics if (change := _change(config, known.get(config.topic_name, {}).get(name))) is not None]
            if wanted:
                body = TopicConfigList(wanted).encode()
                self._expect_success(await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body), address)

    async def create_groups(
        self, groups: Sequence[SubscriptionGroupConfig], *, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Create or replace several consumer groups with one request to each master, those of one cluster, or one broker."""
        for config in groups:
            if not isinstance(config, SubscriptionGroupConfig):
                raise ConfigError(f"groups are given as SubscriptionGroupConfig, not {config!r}")
            check_group(config.group_name)
        body = SubscriptionGroupList(list(groups)).encode()
        for address in (await self._masters(cluster, broker)).values():
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
            self._expect_success(await self._ask(address, code, {}, body), address)

    async def group_readable(self, group: str, topic: str, readable: bool | None = None) -> dict[str, bool]:
        """Return by broker name whether ``group`` may read ``topic``; change it everywhere before when ``readable`` is given."""
        check_group(group)
        check_topic(topic)
        ext = to_ext(GroupForbiddenRequest(group, topic, readable))
        found: dict[str, bool] = {}
        for name, address in (await self._masters(None, None)).items():
            answer = self._expect_success(await self._ask(address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext), address)
            found[name] = GroupForbidden.decode(answer.body).readable
        return found


def _changes(changes: Mapping[str, Setting]) -> bytes:
    if not isinstance(changes, Mapping):
        raise ConfigError(f"changes must be a mapping of settings to values, not {changes!r}")
    for key, value in changes.items():
        if not key or not set("=\r\n").isdisjoint(key) or len(str(value).splitlines()) > 1:
            raise ConfigError(f"{key!r}={value!r} cannot be written as a setting: keys have no '=', and neither has line breaks")
    return encode_settings(changes)


def _change(wanted: TopicConfig, known: TopicConfig | None) -> TopicConfig | None:
    """Return the changes to request from a broker that has ``known``: signed attributes, or None when nothing changes."""
    has = known.attributes if known is not None else {}
    attributes = {f"+{key}": value for key, value in wanted.attributes.items() if has.get(key) != value}
    if known is not None and not attributes and msgspec.structs.replace(wanted, attributes=has) == known:
        return None
    return msgspec.structs.replace(wanted, attributes=attributes)
