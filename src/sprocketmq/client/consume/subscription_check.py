"""The warning about members of one group that subscribe to different messages."""

import logging
from collections.abc import Mapping

from sprocketmq.client.consume.pull_requests import TAG
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.errors import RetriableError, SprocketError
from sprocketmq.protocol.bodies import CheckClientConfig, ConsumerConnection, SubscriptionData
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import ConsumerGroupRequest
from sprocketmq.protocol.names import RETRY_PREFIX

log = logging.getLogger(__name__)


class SubscriptionCheck:
    """Compares the ``subscriptions`` of one member with those that brokers know of its group. Each difference is logged once."""

    def __init__(self, instance: Instance, group: str, subscriptions: Mapping[str, SubscriptionData]) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._reported: dict[str, str] = {}

    async def compare(self) -> None:
        """Warn when the last heartbeat of the group had another subscription than this member: some messages reach neither of them."""
        table = await self._group_subscriptions()
        if table is None:
            return
        retry = RETRY_PREFIX + self._group
        for topic in sorted({*table, *self._subscriptions} - {retry}):
            theirs, ours = _describe(table.get(topic)), _describe(self._subscriptions.get(topic))
            if theirs != ours and self._reported.get(topic) != theirs:
                log.warning(
                    "consumer group %s: another member subscribes to %s of topic %s, this one to %s: all members must subscribe"
                    " to the same, or they miss messages; give one of them another group",
                    self._group,
                    theirs,
                    topic,
                    ours,
                )
            self._reported[topic] = theirs

    async def conditions(self) -> None:
        """Ask the brokers of each topic to check the condition of the subscription. Raises the error of one that refuses it.

        A broker that cannot be reached is left out: it refuses the pulls.
        """
        for topic, subscription in self._subscriptions.items():
            route = self._instance.routes.get(topic)
            if subscription.expression_type == TAG or route is None:
                continue
            body = CheckClientConfig(self._instance.client_id, self._group, subscription).encode()
            for address in route.masters.values():
                try:
                    answer = await self._instance.ask(address, RequestCode.CHECK_CLIENT_CONFIG, ext={}, body=body)
                except RetriableError as e:
                    log.warning("consumer group %s: broker %s has not checked %s: %s", self._group, address, _describe(subscription), e)
                    continue
                if answer.code != ResponseCode.SUCCESS:
                    raise response_error(answer, address, topic)

    async def _group_subscriptions(self) -> dict[str, SubscriptionData] | None:
        for topic in self._subscriptions:
            route = self._instance.routes.get(topic)
            for name in route.addresses if route else ():
                address = route.address(name) if route else None
                if address is None:
                    continue
                try:
                    ext = to_ext(ConsumerGroupRequest(self._group))
                    response = await self._instance.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext=ext)
                    if response.code == ResponseCode.SUCCESS:
                        return ConsumerConnection.decode(response.body).subscription_table
                except SprocketError as e:
                    log.debug("consumer group %s: cannot read the subscriptions of other members: %s", self._group, e)
                else:
                    return None
        return None


def _describe(subscription: SubscriptionData | None) -> str:
    if subscription is None:
        return "nothing"
    if subscription.expression_type != TAG:
        return f"{subscription.expression_type} {subscription.sub_string!r}"
    return f"tags {' || '.join(sorted(subscription.tags_set))!r}" if subscription.tags_set else "everything"
