"""Requests of a broker to single members of a group, and their answers."""

from typing import Any, ClassVar, Self

from msgspec import field

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.bodies.base import Body, QueueTables, queue_table
from sprocketmq.protocol.bodies.groups import SubscriptionData
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.ranges import Int32, Int64


class ResetOffsets(QueueTables):
    """The offset at which a group continues in each queue (answer of 222, body of 220)."""

    _tables: ClassVar[dict[str, Any]] = {"offset_table": Int64}

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


class ConsumerStatus(QueueTables):
    """The positions of members: one member's own queues (221), or those of each client id (223)."""

    _tables: ClassVar[dict[str, Any]] = {"message_queue_table": Int64}

    message_queue_table: dict[MessageQueue, Int64] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(default_factory=dict)

    @classmethod
    def of_tree(cls, tree: dict[Any, Any]) -> Self:
        members = tree.pop("consumerTable", None) or {}
        if not isinstance(members, dict):
            raise RemoteProtocolError(f"consumerTable is a {type(members).__name__}, not an object")
        body = super().of_tree(tree)
        body.consumer_table = {str(name): queue_table(table, Int64, "consumerTable") for name, table in members.items()}
        return body


class ProcessQueueInfo(Body):
    """One queue of a member (307): what waits there, and wall-clock ms of the last events. ``droped`` is the wire's spelling."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Int32 = field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class ConsumeStatus(Body):
    """Consumption of a topic by one member (307): milliseconds a call, messages a second, failures in the last hour."""

    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(QueueTables):
    """The running state of one member of a group (307)."""

    _tables: ClassVar[dict[str, Any]] = {"mq_table": ProcessQueueInfo}

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[str, Any] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeDirectlyResult(Body):
    """The outcome of consuming one message on request (309); ``consume_result`` is CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION."""

    consume_result: str = "CR_SUCCESS"
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Int64 = 0
