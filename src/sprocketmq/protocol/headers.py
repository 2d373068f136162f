"""Typed request and response headers: Python names here, the wire's names in ``rename`` (docs/internals/requests.md)."""

import msgspec

from sprocketmq.protocol.ranges import Int32, Int64

_V2_NAMES = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp_ms": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}


class SendMessageV2(msgspec.Struct, rename=_V2_NAMES, gc=False):
    """Header of 310 and 320: one-letter names."""

    producer_group: str
    topic: str
    queue_id: Int32
    born_timestamp_ms: Int64
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    sys_flag: Int32 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None


class SendMessageV1(msgspec.Struct, rename="camel", gc=False):
    """Header of 10: the same fields under their long names."""

    producer_group: str
    topic: str
    queue_id: Int32
    born_timestamp_ms: Int64 = msgspec.field(name="bornTimestamp")
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    sys_flag: Int32 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


SendHeader = SendMessageV1 | SendMessageV2


class PushReply(msgspec.Struct, rename="camel"):
    """A reply on its way to the producer that waits for it (326); addresses are ``host:port``."""

    topic: str
    producer_group: str = ""
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32 = 0
    sys_flag: Int32 = 0
    born_timestamp_ms: Int64 = msgspec.field(name="bornTimestamp", default=0)
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    born_host: str = ""
    store_host: str = ""
    store_timestamp_ms: Int64 = msgspec.field(name="storeTimestamp", default=0)


class SendResponse(msgspec.Struct, rename="camel", gc=False):
    """Where a send was stored; ``msg_id`` is a comma list for a batch on a plain topic."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class PullRequest(msgspec.Struct, rename="camel", gc=False):
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_ms: Int64 = msgspec.field(name="suspendTimeoutMillis", default=0)
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    lite_topic: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class PopRequest(msgspec.Struct, rename="camel", gc=False):
    """Header of 200050. Queue -1 stands for all; ``init_mode`` 0 begins a new group at the first message, 1 at the latest."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time_ms: Int64 = msgspec.field(name="invisibleTime")
    poll_time_ms: Int64 = msgspec.field(name="pollTime")
    born_time_ms: Int64 = msgspec.field(name="bornTime")
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopAck(msgspec.Struct, rename="camel", gc=False):
    """Header of 200051; ``extra_info`` is the receipt handle of the message at ``offset``."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class PopChange(msgspec.Struct, rename="camel", gc=False):
    """Header of 200053: the time from now until the message becomes visible again."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time_ms: Int64 = msgspec.field(name="invisibleTime")
    suspend: bool = False


class PopPeek(msgspec.Struct, rename="camel", gc=False):
    """Header of 200052."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class PopNotification(msgspec.Struct, rename="camel", gc=False):
    """Header of 200054: a notification when there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time_ms: Int64 = msgspec.field(name="pollTime")
    born_time_ms: Int64 = msgspec.field(name="bornTime")
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class PollingInfo(msgspec.Struct, rename="camel", gc=False):
    """Header of 200055: the waiting pops to count."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PullResponse(msgspec.Struct, rename="camel", gc=False):
    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class SendBack(msgspec.Struct, rename="camel"):
    """Give a message back to be consumed again later (36); ``offset`` is its place in the log.

    ``origin_msg_id`` names the message of an inner batch by its unique key. ``delay_level`` 0 lets the broker choose, below it goes to the
    dead letters.
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class EndTransaction(msgspec.Struct, rename="camel"):
    """The outcome of a transaction (37): the offset of its half message in the queue of halves and in the log, and the outcome.

    ``commit_or_rollback`` is a ``TransactionOutcome``.
    """

    producer_group: str
    half_offset: Int64 = msgspec.field(name="tranStateTableOffset")
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class CheckTransaction(msgspec.Struct, rename="camel"):
    """A broker's check of a transaction (39); the body is the half message as a record of its own topic."""

    half_offset: Int64 = msgspec.field(name="tranStateTableOffset")
    commit_log_offset: Int64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class ResumeCheck(msgspec.Struct, rename="camel"):
    """Resume the checks of a transaction that was given up on (323); ``msg_id`` has the log offset of its half message."""

    msg_id: str
    topic: str | None = None


class RecallMessage(msgspec.Struct, rename="camel"):
    """Take back a message that waits for its delivery time (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class QueryConsumerOffset(msgspec.Struct, rename="camel"):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(msgspec.Struct, rename="camel"):
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class QueueRequest(msgspec.Struct, rename="camel"):
    """Header of 30, 31 and 32: one queue."""

    topic: str
    queue_id: Int32


class SearchOffset(msgspec.Struct, rename="camel"):
    topic: str
    queue_id: Int32
    timestamp_ms: Int64 = msgspec.field(name="timestamp")
    boundary_type: str | None = None
    lite_topic: str | None = None


class OffsetResponse(msgspec.Struct):
    offset: Int64


class TimestampResponse(msgspec.Struct):
    timestamp: Int64


class TopicRequest(msgspec.Struct):
    """A request about one topic."""

    topic: str


class RouteRequest(msgspec.Struct, rename="camel"):
    topic: str
    accept_standard_json_only: bool | None = None


class CreateTopic(msgspec.Struct, rename="camel"):
    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str = "TBW102"
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class DeleteTopicInNamesrv(msgspec.Struct, rename="camel"):
    topic: str
    cluster_name: str | None = None


class RegisterBroker(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_ms: Int64 | None = msgspec.field(name="heartbeatTimeoutMillis", default=None)
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponse(msgspec.Struct, rename="camel"):
    """A nameserver's answer to a slave: its master's address, and the one for slaves. Absent while there is no master."""

    master_addr: str = ""
    ha_server_addr: str = ""


class HaInfo(msgspec.Struct, rename="camel"):
    """Header of 906, request and answer: a master's addresses, and the end of the log that it has flushed. Empty in a request."""

    master_address: str | None = None
    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None


class NotifyRoleChanged(msgspec.Struct, rename="camel"):
    """Header of 1008: which broker is the master from ``master_epoch`` on; without an address it is not known to the sender."""

    master_epoch: Int32
    master_address: str = ""
    master_broker_id: Int64 | None = None
    sync_state_set_epoch: Int32 | None = None


class BrokerIdentity(msgspec.Struct, rename="camel"):
    """Header of 104 and 322: the broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerHeartbeat(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 | None = None


class BrokerMemberGroup(msgspec.Struct, rename="camel"):
    broker_name: str
    cluster_name: str | None = None


class BrokerNameRequest(msgspec.Struct, rename="camel"):
    broker_name: str


class ClusterRequest(msgspec.Struct):
    cluster: str


class KvConfig(msgspec.Struct):
    namespace: str
    key: str
    value: str = ""


class KvNamespace(msgspec.Struct):
    namespace: str


class ConsumerGroupRequest(msgspec.Struct, rename="camel"):
    consumer_group: str


class ProducerGroupRequest(msgspec.Struct, rename="camel"):
    producer_group: str


class GroupRequest(msgspec.Struct):
    group: str


class UnregisterClient(msgspec.Struct, rename="camel"):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class DeleteSubscriptionGroup(msgspec.Struct, rename="camel"):
    group_name: str
    clean_offset: bool = False


class ConsumeStatsRequest(msgspec.Struct, rename="camel"):
    consumer_group: str
    topic: str | None = None


class ResetOffset(msgspec.Struct, rename="camel"):
    """Reset a group's offsets of a topic to a time (222), or inform a member of it (220). -1 is the newest message."""

    topic: str
    group: str
    timestamp_ms: Int64 = msgspec.field(name="timestamp")
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ConsumerStatusRequest(msgspec.Struct, rename="camel"):
    """Ask a broker (223) or a member (221) for the offsets of a group's members; without ``client_addr`` of all of them."""

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoRequest(msgspec.Struct, rename="camel"):
    """Request the running state of a member through its broker (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectly(msgspec.Struct, rename="camel"):
    """Ask one member to consume one message (309). The broker adds the stored message as the body when it forwards the request."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class ViewMessage(msgspec.Struct):
    offset: Int64
    topic: str | None = None


class QueryMessage(msgspec.Struct, rename="camel"):
    """Header of 12; the index type is K for a key, U for a unique key, T for a tag."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp_ms: Int64 = msgspec.field(name="beginTimestamp")
    end_timestamp_ms: Int64 = msgspec.field(name="endTimestamp")
    index_type: str | None = None
    unique_key_query: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryConsumeQueue(msgspec.Struct, rename="camel"):
    """Header of 321: ``count`` units of a queue from the queue offset ``index`` on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class BrokerConsumeStatsRequest(msgspec.Struct, rename="camel"):
    is_order: bool = False


class BrokerStatsRequest(msgspec.Struct, rename="camel"):
    stats_name: str
    stats_key: str


class CloneGroupOffset(msgspec.Struct, rename="camel"):
    """Header of 314: give one group another's offsets, of one topic or all."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class GroupTopicRequest(msgspec.Struct):
    group: str
    topic: str


class GroupForbiddenRequest(msgspec.Struct):
    """Header of 353: may ``group`` read ``topic``? Without ``readable`` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


class PageRequest(msgspec.Struct, rename="camel"):
    """Header of 21 and 201: tables may be asked for in pages."""

    topic_seq: Int32 = 0
    max_topic_num: Int32 = 0
    group_seq: Int32 = 0
    max_group_num: Int32 = 0


class UserRequest(msgspec.Struct):
    """Header of 3001 to 3004: the user."""

    username: str = ""


class UserFilter(msgspec.Struct):
    """Header of 3005: a part of the names wanted; absent for all."""

    filter: str | None = None


class AclRequest(msgspec.Struct, rename="camel"):
    """Header of 3006 to 3009: whose policies; to delete, only those of one type, or only the entry for one resource."""

    subject: str = ""
    policy_type: str | None = None
    resource: str | None = None


class AclFilter(msgspec.Struct, rename="camel"):
    """Header of 3010: parts of the subjects and of the resources wanted; absent for all."""

    subject_filter: str | None = None
    resource_filter: str | None = None
