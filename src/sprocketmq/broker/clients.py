"""Connected clients: the members of producer and consumer groups and their connections (codes 34, 35, 38, 46, 203, 204, 328)."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from sprocketmq.broker.filters.refusals import FilterRefused, condition_of, is_sql
from sprocketmq.broker.filters.sql92 import Condition, compile_sql
from sprocketmq.broker.filters.tokens import ExpressionRefused
from sprocketmq.broker.groups import GroupRefused, GroupTable
from sprocketmq.broker.requesters import Requesters
from sprocketmq.broker.topics import TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import (
    CheckClientConfig,
    Connection,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
)
from sprocketmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import ConsumerGroupRequest, ProducerGroupRequest, UnregisterClient
from sprocketmq.protocol.names import MAX_GROUP_LENGTH, RETRY_PREFIX, name_problem

log = logging.getLogger(__name__)

EXPIRY_S = 120.0
# A client instance has a handful of groups; the limits keep one heartbeat from filling the tables.
MAX_GROUPS_PER_CLIENT = 1_000
MAX_SUBSCRIPTIONS_PER_GROUP = 10_000
# The members of a large group are notified of a change at once, and of later changes together at an interval that grows with the
# group: while n members join one after the other, each would otherwise be notified up to n times. Small groups are told of each change.
LARGE_GROUP = 8
NOTICE_INTERVAL_PER_MEMBER_S = 0.04
MAX_NOTICE_INTERVAL_S = 2.0
# Each is a system call. Large groups tend to change together; requests of other clients are handled between two turns of notices.
NOTICES_PER_TURN = 64

_LANGUAGES = {code.value: code.name for code in LanguageCode}


def language_name(language: int) -> str:
    """Return the name of a client's language."""
    return _LANGUAGES.get(language, "OTHER")


# The producer and the consumer groups of a connection, few as a rule: tuples of names cost a broker with many clients least.
_Memberships = tuple[tuple[str, ...], tuple[str, ...]]
_NONE: _Memberships = ((), ())


@dataclass(slots=True)
class Member:
    """One client in one group; ``wants`` has the expression that a consumer subscribes with, by topic."""

    client_id: str
    language: int
    version: int
    last_heard: float
    last_heard_ms: int
    wants: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Subscription:
    """A group's subscription to a topic: to messages with ``tag_codes``, or that meet ``condition``; without either, to everything.

    One with an SQL92 expression that cannot be compiled has neither, and gets nothing.
    """

    data: SubscriptionData
    tag_codes: frozenset[int] | None
    condition: Condition | None = None


@dataclass(slots=True)
class ConsumerGroup:
    """An online consumer group: its members by connection, and their last subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[ServerConnection, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    # The answer to 38, which all members ask for when one has joined or left; empty until it is asked for.
    id_list: bytes = b""


def tag_filter(data: SubscriptionData) -> frozenset[int] | None:
    """Return the tag codes that match a TAG subscription, None for everything."""
    if data.sub_string.strip() in ("", "*") or not data.code_set:
        return None
    return frozenset(data.code_set)


def _compare(group: ConsumerGroup, newcomer: Member, peer_log: PeerLog) -> None:
    """Warn when a member subscribes to something else than the others of its group: some messages would never be consumed."""
    for other in group.members.values():
        if other.wants == newcomer.wants:
            continue
        topic = min(topic for topic, _ in other.wants.items() ^ newcomer.wants.items())
        peer_log.event(
            f"{group.name} {newcomer.client_id} {topic}",
            "subscriptions_differ",
            group=group.name,
            topic=topic,
            client=newcomer.client_id,
            wants=newcomer.wants.get(topic, "nothing"),
            other=other.client_id,
            other_wants=other.wants.get(topic, "nothing"),
        )
        return


class ClientRegistry:
    """Producer and consumer groups that are online. A client leaves with its connection, or after 120 s without a heartbeat."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._peer_log = PeerLog(log, clock.monotonic)
        # Two, so that many clients of one group do not use up the log lines of other groups.
        self._member_log = PeerLog(log, clock.monotonic, level=logging.INFO)
        self._group_log = PeerLog(log, clock.monotonic, level=logging.INFO)
        self.producers: dict[str, dict[ServerConnection, Member]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.requesters = Requesters()
        # The groups of each connection, so that its end need not search all groups.
        self._of: dict[ServerConnection, _Memberships] = {}

    def _heard(self, members: dict[ServerConnection, Member], conn: ServerConnection, client_id: str, command: Command) -> Member:
        """Return the member that has sent a heartbeat on ``conn``, made when it is new and brought up to date otherwise."""
        now, now_ms = self._clock.monotonic(), self._clock.time_ms()
        member = members.get(conn)
        if member is None:
            member = members[conn] = Member(client_id, command.language, command.version, now, now_ms)
            return member
        member.client_id, member.language, member.version = client_id, command.language, command.version
        member.last_heard, member.last_heard_ms = now, now_ms
        return member

    def group_count(self, conn: ServerConnection, beat: HeartbeatData) -> int:
        """Return of how many groups a connection will be a member when this heartbeat is accepted."""
        producers, consumers = self._of.get(conn, _NONE)
        consuming = {*consumers, *(consumer.group_name for consumer in beat.consumer_data_set)}
        return len({*producers, *(producer.group_name for producer in beat.producer_data_set)}) + len(consuming)

    def join_producer(self, group: str, conn: ServerConnection, client_id: str, command: Command) -> None:
        """Register a member of a producer group, or renew it."""
        self.requesters.joined(conn, client_id)
        members = self.producers.setdefault(group, {})
        is_new = conn not in members
        member = self._heard(members, conn, client_id, command)
        if is_new:
            producers, consumers = self._of.get(conn, _NONE)
            self._of[conn] = ((*producers, group), consumers)
            self._log_joined("producer", group, conn, member)

    def join_consumer(self, data: ConsumerData, conn: ServerConnection, client_id: str, command: Command) -> bool:
        """Register a member of a consumer group, or renew it; True when the group's members or subscriptions changed."""
        name = data.group_name
        group = self.consumers.get(name)
        if group is None:
            group = self.consumers[name] = ConsumerGroup(name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        is_new = conn not in group.members
        if is_new:
            producers, consumers = self._of.get(conn, _NONE)
            self._of[conn] = (producers, (*consumers, name))
        changed = is_new or group.members[conn].client_id != client_id
        member = self._heard(group.members, conn, client_id, command)
        if changed:
            group.id_list = b""
            self._log_joined("consumer", name, conn, member)
        wanted = {subscription.topic: subscription for subscription in data.subscription_data_set}
        wants = {topic: subscription.sub_string for topic, subscription in wanted.items()}
        if is_new or member.wants != wants:
            member.wants = wants
            _compare(group, member, self._peer_log)
        for topic in [topic for topic in group.subscriptions if topic not in wanted]:
            del group.subscriptions[topic]
            changed = True
        for topic, subscription in wanted.items():
            known = group.subscriptions.get(topic)
            if known is None:
                changed = True
            elif known.data.sub_version >= subscription.sub_version:
                continue
            elif (known.data.sub_string, known.data.expression_type) != (subscription.sub_string, subscription.expression_type):
                changed = True
            group.subscriptions[topic] = self._subscribed(name, subscription)
        return changed

    def _subscribed(self, group: str, data: SubscriptionData) -> Subscription:
        if not is_sql(data.expression_type):
            return Subscription(data, tag_filter(data))
        try:
            return Subscription(data, None, compile_sql(data.sub_string))
        except ExpressionRefused as e:
            self._peer_log.event(f"{group} {data.topic}", "filter_refused", group=group, topic=data.topic, reason=e)
            return Subscription(data, None)

    def leave(self, conn: ServerConnection, *, producer_group: str | None = None, consumer_group: str | None = None) -> list[ConsumerGroup]:
        """Remove a client from the named groups and return the consumer group whose members changed, if any."""
        producers, consumers = self._of.pop(conn, _NONE)
        if producer_group in producers:
            producers = tuple(group for group in producers if group != producer_group)
            self._drop_producer(producer_group, conn, "unregistered")
            if not producers:
                self.requesters.left(conn)
        changed = []
        if consumer_group in consumers:
            consumers = tuple(group for group in consumers if group != consumer_group)
            changed = self._drop_consumer(consumer_group, conn, "unregistered")
        if producers or consumers:
            self._of[conn] = (producers, consumers)
        return changed

    def drop(self, conn: ServerConnection) -> list[ConsumerGroup]:
        """Forget a connection that ended and return the consumer groups it was in that still have members."""
        producers, consumers = self._of.pop(conn, _NONE)
        self.requesters.left(conn)
        for name in producers:
            self._drop_producer(name, conn, conn.close_reason)
        return [group for name in consumers for group in self._drop_consumer(name, conn, conn.close_reason)]

    def expire(self) -> list[ServerConnection]:
        """Return the connections that have not sent a heartbeat for 120 s; the caller closes them."""
        for peer_log in (self._peer_log, self._member_log, self._group_log):
            peer_log.sweep()
        limit = self._clock.monotonic() - EXPIRY_S
        silent: dict[ServerConnection, None] = {}
        for members in [*self.producers.values(), *(group.members for group in self.consumers.values())]:
            silent.update((conn, None) for conn, member in members.items() if member.last_heard < limit)
        return list(silent)

    def log_rebalanced(self, group: str) -> None:
        """Log that the members or subscriptions of a group have changed: its members divide the queues among themselves again."""
        online = self.consumers.get(group)
        self._group_log.event(group, "group_rebalanced", group=group, members=len(online.members) if online is not None else 0)

    def _log_joined(self, role: str, group: str, conn: ServerConnection, member: Member) -> None:
        language = _LANGUAGES.get(member.language, "OTHER")
        key = f"{member.client_id} {group}"
        self._member_log.event(key, "client_joined", role=role, group=group, client=member.client_id, peer=conn.peer, language=language)

    def _log_left(self, role: str, group: str, conn: ServerConnection, member: Member, reason: str) -> None:
        key = f"{member.client_id} {group}"
        self._member_log.event(key, "client_left", role=role, group=group, client=member.client_id, peer=conn.peer, reason=reason)

    def _drop_producer(self, name: str | None, conn: ServerConnection, reason: str) -> None:
        members = self.producers.get(name or "")
        if members is not None:
            if (member := members.pop(conn, None)) is not None:
                self._log_left("producer", name or "", conn, member, reason)
            if not members:
                del self.producers[name or ""]

    def _drop_consumer(self, name: str | None, conn: ServerConnection, reason: str) -> list[ConsumerGroup]:
        group = self.consumers.get(name or "")
        if group is None or (member := group.members.pop(conn, None)) is None:
            return []
        group.id_list = b""
        self._log_left("consumer", group.name, conn, member, reason)
        if not group.members:
            del self.consumers[group.name]
            return []
        return [group]


class ClientHandlers:
    """Requests of and about connected clients. ``filters`` says whether the broker filters by SQL92."""

    def __init__(self, clients: ClientRegistry, groups: GroupTable, topics: TopicTable, *, filters: bool) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._filters = filters
        # Groups whose members were told within their interval, and those of them that have changed since.
        self._told: set[str] = set()
        self._changed_since: set[str] = set()
        # Groups whose members are to be notified, in order, and those left of the group that is being notified.
        self._to_notify: dict[str, None] = {}
        self._notified_now = ""
        self._left: list[ServerConnection] = []
        # Whether some have been notified in this turn of the loop.
        self._notifying = False

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client_config,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def heartbeat(self, conn: ServerConnection, command: Command) -> None:
        """Answer 34: register the client under each of its groups and make the retry topic of each consumer group."""
        if not command.body:
            raise RemoteProtocolError("a heartbeat without a body")
        beat = HeartbeatData.decode(command.body)
        if self._clients.group_count(conn, beat) > MAX_GROUPS_PER_CLIENT:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"a client has at most {MAX_GROUPS_PER_CLIENT} groups")
            return
        if not beat.client_id:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark="a heartbeat names its client")
            return
        for consumer in beat.consumer_data_set:
            if len(consumer.subscription_data_set) > MAX_SUBSCRIPTIONS_PER_GROUP:
                remark = f"group {consumer.group_name} has more than {MAX_SUBSCRIPTIONS_PER_GROUP} subscriptions"
                conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
                return
        changed_any = False
        for consumer in beat.consumer_data_set:
            try:
                config = self._groups.find(consumer.group_name)
            except GroupRefused as e:
                conn.respond(command, e.code, remark=e.remark)
                return
            if config is None:
                continue  # the group may not be created by clients; its pulls are refused with the reason
            if config.retry_queue_nums > 0:
                self._topics.create_internal(RETRY_PREFIX + consumer.group_name, config.retry_queue_nums)
            changed = self._clients.join_consumer(consumer, conn, beat.client_id, command)
            changed_any |= changed
            if changed:
                self._tell_members(consumer.group_name)
        for producer in beat.producer_data_set:
            if not name_problem(producer.group_name, MAX_GROUP_LENGTH):
                self._clients.join_producer(producer.group_name, conn, beat.client_id, command)
        # Version 2 of the heartbeat (subscriptions left out when unchanged) is declined; clients then send them each time.
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true" if changed_any else "false"}
        conn.respond(command, ResponseCode.SUCCESS, ext=ext)

    def unregister(self, conn: ServerConnection, command: Command) -> None:
        """Answer 35: a client leaves a group."""
        header = command.header(UnregisterClient)
        groups = self._clients.leave(conn, producer_group=header.producer_group, consumer_group=header.consumer_group)
        conn.respond(command, ResponseCode.SUCCESS, ext={})
        for group in groups:
            self._tell_members(group.name)

    def disconnected(self, conn: ServerConnection) -> None:
        """Remove a client whose connection ended from its groups and notify the remaining members."""
        for group in self._clients.drop(conn):
            self._tell_members(group.name)

    def _tell_members(self, name: str) -> None:
        if name in self._told:
            self._changed_since.add(name)
            return
        group = self._clients.consumers.get(name)
        if group is not None and len(group.members) >= LARGE_GROUP:
            self._told.add(name)
            interval = min(NOTICE_INTERVAL_PER_MEMBER_S * len(group.members), MAX_NOTICE_INTERVAL_S)
            asyncio.get_running_loop().call_later(interval, self._tell_rest, name)
        self._notify(name)

    def _tell_rest(self, name: str) -> None:
        self._told.discard(name)
        if name in self._changed_since:
            self._changed_since.discard(name)
            self._tell_members(name)

    def _notify(self, name: str) -> None:
        self._clients.log_rebalanced(name)
        self._to_notify[name] = None
        if not self._notifying:
            self._notify_some()

    def _notify_some(self) -> None:
        """Notify the next members, at most NOTICES_PER_TURN of them, and the rest in the next turns of the loop."""
        room = NOTICES_PER_TURN
        while room > 0 and (self._left or self._to_notify):
            if not self._left:
                self._notified_now = name = next(iter(self._to_notify))
                del self._to_notify[name]
                self._left = self._noticed_members(name)
            now, self._left = self._left[:room], self._left[room:]
            for member in now:
                member.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": self._notified_now})
            room -= len(now)
        self._notifying = room < NOTICES_PER_TURN
        if self._notifying:
            asyncio.get_running_loop().call_soon(self._notify_some)

    def _noticed_members(self, name: str) -> list[ServerConnection]:
        """Return the members that want to know of a change in a group."""
        group = self._clients.consumers.get(name)
        config = self._groups.get(name)
        if group is None or config is None or not config.notify_consumer_ids_changed_enable or group.message_model == "BROADCASTING":
            return []
        return list(group.members)

    def consumer_list(self, conn: ServerConnection, command: Command) -> None:
        """Answer 38: the client ids of a group."""
        name = command.header(ConsumerGroupRequest).consumer_group
        group = self._clients.consumers.get(name)
        if group is None:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, ext={}, remark=f"no consumer for this group, {name}")
            return
        if not group.id_list:
            group.id_list = ConsumerIdList(list(dict.fromkeys(member.client_id for member in group.members.values()))).encode()
        conn.respond(command, ResponseCode.SUCCESS, ext={}, body=group.id_list)

    def check_client_config(self, conn: ServerConnection, command: Command) -> None:
        """Answer 46: whether a subscription can be served."""
        if command.body:
            subscription = CheckClientConfig.decode(command.body).subscription_data
            try:
                condition_of(subscription.expression_type, subscription.sub_string, filters=self._filters)
            except FilterRefused as e:
                conn.respond(command, e.code, remark=e.remark)
                return
        conn.respond(command, ResponseCode.SUCCESS)

    def consumer_connections(self, conn: ServerConnection, command: Command) -> None:
        """Answer 203: who is in a consumer group, and what it subscribes to."""
        name = command.header(ConsumerGroupRequest).consumer_group
        group = self._clients.consumers.get(name)
        if group is None:
            conn.respond(command, ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
            return
        body = ConsumerConnection(
            connection_set=[_connection(c, member) for c, member in group.members.items()],
            subscription_table={topic: subscription.data for topic, subscription in group.subscriptions.items()},
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    def producer_connections(self, conn: ServerConnection, command: Command) -> None:
        """Answer 204: who is in a producer group."""
        name = command.header(ProducerGroupRequest).producer_group
        members = self._clients.producers.get(name)
        if members is None:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
            return
        connections = [_connection(c, member) for c, member in members.items()]
        conn.respond(command, ResponseCode.SUCCESS, body=ProducerConnection(connections).encode())

    def all_producers(self, conn: ServerConnection, command: Command) -> None:
        """Answer 328: every producer group with its members."""
        table = {
            name: [
                ProducerInfo(m.client_id, f"/{c.peer}", language_name(m.language), m.version, m.last_heard_ms) for c, m in members.items()
            ]
            for name, members in self._clients.producers.items()
        }
        conn.respond(command, ResponseCode.SUCCESS, body=ProducerTable(table).encode())


def _connection(conn: ServerConnection, member: Member) -> Connection:
    return Connection(member.client_id, conn.peer, language_name(member.language), member.version)
