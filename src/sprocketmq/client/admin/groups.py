"""Administration of consumer groups: settings, offsets, progress, members."""

from dataclasses import dataclass

from sprocketmq.client.admin.resets import OffsetResets
from sprocketmq.client.arguments import check_bools, check_number
from sprocketmq.client.instance import response_error
from sprocketmq.errors import (
    GroupNotFound,
)
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ProducerConnection,
    SubscriptionGroupConfig,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import (
    ConsumerGroupRequest,
    ConsumeStatsRequest,
    DeleteSubscriptionGroup,
    ProducerGroupRequest,
    RunningInfoRequest,
)
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_group

MAX_RETRY_QUEUES = 1024


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a consumer group has read one queue. All numbers count messages, also in queues that store batches whole.

    ``committed_offset`` is the group's (0 if it never committed), ``end_offset`` that of the queue's next message, ``pulled_offset`` how
    far members have pulled (the committed offset if none is online), ``last_consumed_ms`` when the last consumed message was stored (0:
    none).
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
        """Messages that members have pulled and not consumed yet."""
        return max(0, self.pulled_offset - self.committed_offset)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a consumer group has read, by queue, sorted; and messages consumed per second over the last minute."""

    group: str
    queues: list[QueueProgress]
    consume_tps: float

    @property
    def lag(self) -> int:
        """Messages of all queues that the group has not consumed yet."""
        return sum(queue.lag for queue in self.queues)

    @property
    def in_flight(self) -> int:
        """Messages of all queues that members have pulled and not consumed yet."""
        return sum(queue.in_flight for queue in self.queues)


class GroupAdmin(OffsetResets):
    """Consumer groups, and the members of producer groups."""

    async def groups(self, *, cluster: str | None = None) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups by name, sorted, including RocketMQ's own. Where brokers differ, the first one counts."""
        brokers = await self._readers(cluster)
        tables = await all_of(self.groups_on(address) for address in brokers.values())
        found: dict[str, SubscriptionGroupConfig] = {}
        for table in tables:
            found = table | found
        return dict(sorted(found.items()))

    async def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the configuration of ``group`` by broker name. Raises GroupNotFound when no broker knows it."""
        check_group(group)
        brokers = await self._readers()
        # A request for a single group would create it at the broker.
        tables = await all_of(self.groups_on(address) for address in brokers.values())
        found = {name: table[group] for name, table in zip(brokers, tables, strict=True) if group in table}
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
        """Create ``group`` on every master, those of one cluster, or one broker; or change an existing group.

        After ``max_reconsume_times`` failures a message goes to ``%DLQ%group``. ``%RETRY%group`` gets ``retry_queues`` queues; with 0,
        failed messages are dropped. A group that is not ``enabled`` gets no messages. ``broadcast`` allows members that each get every
        message.
        """
        check_group(group)
        check_bools(orderly=orderly, enabled=enabled, broadcast=broadcast)
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

        Harmless if unknown. With running members, the group is created again by their next heartbeat if the broker creates groups.
        """
        check_group(group)
        check_bools(offsets=offsets, dead_letters=dead_letters)
        for address in (await self._masters(cluster, None)).values():
            ext = to_ext(DeleteSubscriptionGroup(group, offsets))
            self._expect_success(await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext), address)
        await self.delete_topic(RETRY_PREFIX + group, cluster=cluster)
        if dead_letters:
            await self.delete_topic(DLQ_PREFIX + group, cluster=cluster)

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return how far ``group`` has read ``topic``, or all topics it has read, including ``%RETRY%group``.

        Raises TopicNotFound. A group that never consumed anything has no queues.
        """
        check_group(group)
        brokers = await self._readers() if topic is None else (await self._route(topic)).readers
        ext = to_ext(ConsumeStatsRequest(group, topic))
        answers = await all_of(self._ask(address, RequestCode.GET_CONSUME_STATS, ext) for address in brokers.values())
        ext = to_ext(ConsumerGroupRequest(group))
        members = await all_of(self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext) for address in brokers.values())
        queues: list[QueueProgress] = []
        tps = 0.0
        for address, answer, online in zip(brokers.values(), answers, members, strict=True):
            stats = ConsumeStats.decode(self._expect_success(answer, address, topic or "").body)
            tps += stats.consume_tps
            # The broker remembers how far former members had pulled, but their unconsumed messages are not in flight any more.
            alone = online.code == ResponseCode.CONSUMER_NOT_ONLINE
            queues += [
                QueueProgress(queue, o.consumer_offset, o.broker_offset, o.consumer_offset if alone else o.pull_offset, o.last_timestamp)
                for queue, o in stats.offset_table.items()
            ]
        return GroupProgress(group, sorted(queues, key=lambda progress: progress.queue), tps)

    async def consumers(self, group: str) -> ConsumerConnection:
        """Return the members of ``group`` that are online at any broker, and their subscriptions; no connections if there are none."""
        check_group(group)
        found = ConsumerConnection()
        ext = to_ext(ConsumerGroupRequest(group))
        for address in (await self._readers()).values():
            response = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
            if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
                continue
            here = ConsumerConnection.decode(self._expect_success(response, address).body)
            known = {connection.client_id for connection in found.connection_set}
            here.connection_set = found.connection_set + [c for c in here.connection_set if c.client_id not in known]
            found = here
        return found

    async def producers(self, group: str) -> ProducerConnection:
        """Return the members of the producer group ``group`` that are online at any broker."""
        check_group(group)
        found: dict[str, Connection] = {}
        ext = to_ext(ProducerGroupRequest(group))
        for address in (await self._readers()).values():
            response = await self._ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ext)
            if response.code == ResponseCode.SYSTEM_ERROR and "not exist" in (response.remark or ""):
                continue
            here = ProducerConnection.decode(self._expect_success(response, address).body)
            found = {connection.client_id: connection for connection in here.connection_set} | found
        return ProducerConnection(list(found.values()))

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Return the state that a member of ``group`` reports; ``client_id`` is one of ``consumers``. BrokerError if it is offline."""
        check_group(group)
        ext = to_ext(RunningInfoRequest(group, client_id))
        failure: Exception | None = None
        for address in (await self._readers()).values():
            response = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            if response.code == ResponseCode.SUCCESS:
                return ConsumerRunningInfo.decode(response.body)
            failure = failure or response_error(response, address)
        assert failure is not None, "there is a broker"
        raise failure

    # --- committed offsets ---

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the committed offset of ``group`` in every queue of ``topic``, None where there is none. Raises TopicNotFound."""
        check_group(group)
        queues = await self.queues(topic)
        offsets = await all_of(self._offsets.committed(group, queue) for queue in queues)
        return dict(zip(queues, offsets, strict=True))

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit ``offset`` for ``group``. Stop running members first: they keep their position and overwrite it."""
        check_group(group)
        await self._offsets.commit(group, queue, offset)

    async def consume_stats(self, group: str, topic: str) -> ConsumeStats:
        """Return how far ``group`` has read each queue of ``topic``, beside the queue's end. Raises TopicNotFound."""
        check_group(group)
        route = await self._route(topic)
        total = ConsumeStats()
        for address in route.readers.values():
            response = await self._ask(address, RequestCode.GET_CONSUME_STATS, to_ext(ConsumeStatsRequest(group, topic)))
            stats = ConsumeStats.decode(self._expect_success(response, address, topic).body)
            total.offset_table |= stats.offset_table
            total.consume_tps += stats.consume_tps
        total.offset_table = dict(sorted(total.offset_table.items()))
        return total
