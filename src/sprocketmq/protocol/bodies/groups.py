"""Groups and their clients: subscriptions, heartbeats, configurations, connections, locks."""

from typing import Any, Self

from msgspec import field

from sprocketmq.errors import InvalidName
from sprocketmq.protocol.bodies.base import Body, DataVersion, QueueRef
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.ranges import Int32, Int64


class SubscriptionData(Body):
    """The subscription of one consumer group to one topic: ``code_set`` has the tag codes of ``tags_set``."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[Int32] = field(default_factory=list)
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


def build_subscription(topic: str, expression: str, version: int) -> SubscriptionData:
    """Return the subscription to ``topic`` for ``"*"`` (or ``""``) or ``"tag || tag"``, as of ``version`` (wall-clock ms).

    Raises InvalidName when the expression is not a string, or names no tag.
    """
    if not isinstance(expression, str):
        raise InvalidName("subscription", expression, "it must be text: '*' for everything, or 'a || b'")
    if expression.strip() in ("", "*"):
        return SubscriptionData(topic, "*", sub_version=version)
    tags = list(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
    if not tags:
        raise InvalidName("subscription", expression, "it names no tag: use '*' for everything, or 'a || b'")
    return SubscriptionData(topic, expression, tags, [java_hash(tag) for tag in tags], version)


class ProducerData(Body):
    group_name: str


class ConsumerData(Body):
    """One consumer group of a client; the texts are the reference's enum names."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Body):
    """All groups of a client (34)."""

    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False

    @classmethod
    def _understood(cls, tree: Any) -> Any:
        groups = tree.get("consumerDataSet") if isinstance(tree, dict) else None
        for group in groups if isinstance(groups, list) else ():
            for name, values in _ENUMS.items() if isinstance(group, dict) else ():
                number = group.get(name)
                if type(number) is int and 0 <= number < len(values):
                    group[name] = values[number]
        return tree


# By field of a ConsumerData: the reference's enum, in the order of its numbers. Apache's client for C++ sends these instead of names.
_ENUMS = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}


class ConsumerIdList(Body):
    """Client ids of a consumer group (38)."""

    consumer_id_list: list[str] = field(default_factory=list)


class CheckClientConfig(Body):
    """A subscription to check (46)."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class QueryAssignment(Body):
    """Which queues of a topic a member of a group is to read (400)."""

    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str = ""
    message_model: str = "CLUSTERING"


class MessageQueueAssignment(Body):
    """One queue that a member is to read, and whether it pulls or pops; queue -1 stands for all of a broker."""

    message_queue: QueueRef
    mode: str = "PULL"
    attachments: dict[str, str] | None = None

    @classmethod
    def of(cls, queue: MessageQueue, mode: str) -> Self:
        """Return the assignment of a queue."""
        return cls(QueueRef.of(queue), mode)


class Assignments(Body):
    """The answer to 400: None, and the member keeps what it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class RequestMode(Body):
    """How a group reads a topic (401), and with how many other members each shares its queues when they pop."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0


class GroupList(Body):
    """Group names (300)."""

    group_list: list[str] = field(default_factory=list)


class SimpleSubscription(Body):
    topic: str
    expression: str | None = None
    expression_type: str | None = None
    version: Int64 = 0


class SubscriptionGroupConfig(Body):
    """One consumer group as the broker keeps it."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: list[SimpleSubscription] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupList(Body):
    """Consumer groups to create (225)."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class SubscriptionGroupTable(Body):
    """All consumer groups of a broker (201)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, Int32]] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class GroupForbidden(Body):
    """Whether a group may read a topic (353)."""

    group: str
    topic: str
    readable: bool


class Connection(Body):
    """One connected client; ``language`` is the enum's name."""

    client_id: str
    client_addr: str
    language: str = "JAVA"
    version: Int32 = 0


class ProducerConnection(Body):
    """Clients of a producer group (204)."""

    connection_set: list[Connection] = field(default_factory=list)


class ConsumerConnection(Body):
    """Clients of a consumer group and what they subscribe to (203)."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class ProducerInfo(Body):
    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str = "JAVA"
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTable(Body):
    """Clients of every producer group (328)."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class LockBatchRequest(Body):
    """Queues to lock (41) or unlock (42) for one client."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueRef] = field(default_factory=list)
    only_this_broker: bool = False


class LockBatchResponse(Body):
    """The queues that were granted (41)."""

    lock_ok_mq_set: list[QueueRef] = field(default_factory=list, name="lockOKMQSet")
