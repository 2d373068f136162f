"""Requests to one broker at a time, by its address: for tools that show what each broker answers, and which does not."""

from sprocketmq.client.admin.requests import AdminRequests
from sprocketmq.protocol.bodies import (
    BrokerStats,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicStats,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import (
    BrokerStatsRequest,
    ConsumerGroupRequest,
    ConsumeStatsRequest,
    PageRequest,
    RunningInfoRequest,
    TopicRequest,
)

# Groups requested at once.
GROUPS_PER_PAGE = 2000


class SingleBrokerAdmin(AdminRequests):
    """What one broker knows. No method looks up a route."""

    async def topic_configs_on(self, address: str) -> dict[str, TopicConfig]:
        """Return the configuration of every topic on the broker at ``address``."""
        response = self._expect_success(await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, {}), address)
        return TopicConfigTable.decode(response.body).topic_config_table

    async def topic_stats_on(self, address: str, topic: str) -> TopicStats:
        """Return the offsets and last store times of the queues of ``topic`` at ``address``. Raises TopicNotFound."""
        response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, to_ext(TopicRequest(topic)))
        return TopicStats.decode(self._expect_success(response, address, topic).body)

    async def groups_on(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the configuration of every consumer group on the broker at ``address``."""
        found: dict[str, SubscriptionGroupConfig] = {}
        while True:
            ext = to_ext(PageRequest(group_seq=len(found), max_group_num=GROUPS_PER_PAGE))
            response = self._expect_success(await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ext), address)
            page = SubscriptionGroupTable.decode(response.body).subscription_group_table
            before = len(found)
            found |= page
            if len(found) == before or len(page) != GROUPS_PER_PAGE:  # older brokers know no pages and give everything
                return found

    async def groups_of_topic_on(self, address: str, topic: str) -> list[str]:
        """Return the consumer groups that read ``topic`` at ``address``: those online, and those with committed offsets."""
        response = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, to_ext(TopicRequest(topic)))
        return sorted(GroupList.decode(self._expect_success(response, address, topic).body).group_list)

    async def consume_stats_on(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Return how far ``group`` has read the queues at ``address``, of one topic or of all that it has read."""
        response = await self._ask(address, RequestCode.GET_CONSUME_STATS, to_ext(ConsumeStatsRequest(group, topic)))
        return ConsumeStats.decode(self._expect_success(response, address, topic or "").body)

    async def members_on(self, address: str, group: str) -> ConsumerConnection | None:
        """Return the members of ``group`` that are connected to the broker at ``address``; None when none is."""
        response = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, to_ext(ConsumerGroupRequest(group)))
        if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        return ConsumerConnection.decode(self._expect_success(response, address).body)

    async def running_info_on(self, address: str, group: str, client_id: str) -> ConsumerRunningInfo:
        """Return the state that a member of ``group`` reports through the broker at ``address``. BrokerError if it is not there."""
        response = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, to_ext(RunningInfoRequest(group, client_id)))
        return ConsumerRunningInfo.decode(self._expect_success(response, address).body)

    async def counter_on(self, address: str, name: str, key: str) -> BrokerStats | None:
        """Return a counter of the broker at ``address``, such as TOPIC_PUT_NUMS of a topic; None when it has none of that name and key.

        Brokers have a counter from its first event on.
        """
        response = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, to_ext(BrokerStatsRequest(name, key)))
        if response.code == ResponseCode.SYSTEM_ERROR and "not exist" in (response.remark or ""):
            return None
        return BrokerStats.decode(self._expect_success(response, address).body)
