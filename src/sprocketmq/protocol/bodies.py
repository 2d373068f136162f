"""JSON bodies as typed values: Python names here, the wire's camel-case names there (docs/internals/remoting.md#json-bodies).

Each has ``decode(data)`` and ``encode()``. Reading is tolerant the way the reference is: members that are absent or null take
their defaults, unknown ones are ignored, numbers may come as text, maps may have the keys of ``jsondialect``. Writing leaves out
members that are None.
"""

from struct import Struct
from typing import Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import field

from sprocketmq.errors import InvalidName, LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.compression import CompressionType, decompress
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.jsondialect import dumps_with_queue_keys, loads
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.ranges import Int32, Int64

_T = TypeVar("_T")
_decoders: dict[type, Any] = {}
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


class Body(msgspec.Struct, rename="camel"):
    """What all bodies can do."""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Return the body in ``data``. Raises RemoteProtocolError when it is not JSON of this shape."""
        decode = _decoders.get(cls)
        if decode is None:
            decode = _decoders[cls] = msgspec.json.Decoder(cls, strict=False).decode
        try:
            return decode(data)
        except _UNREADABLE:
            return _convert(loads(data), cls)

    def encode(self) -> bytes:
        """Return the body as JSON. Raises LocalProtocolError when a value cannot be written."""
        try:
            return msgspec.json.encode(_plain(self))
        except (TypeError, ValueError, RecursionError) as e:
            raise LocalProtocolError(f"{type(self).__name__} cannot be written as JSON: {e}") from None

    @classmethod
    def decode_array(cls, data: bytes | memoryview) -> list[Self]:
        """Return the bodies of an array, none of no data. Raises RemoteProtocolError when it is not a JSON array of this shape."""
        return _convert(loads(data), list[cls]) if data else []  # type: ignore[valid-type]

    @staticmethod
    def encode_array(bodies: "list[Any]") -> bytes:
        """Return ``bodies`` as a JSON array."""
        return b"[%b]" % b",".join([body.encode() for body in bodies])


class _QueueTables(Body):
    """A body with maps keyed by message queues: ``_tables`` names each, with the type of its values."""

    _tables: ClassVar[dict[str, Any]] = {}

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        tree = loads(data)
        if not isinstance(tree, dict):
            raise RemoteProtocolError(f"{cls.__name__} is a JSON {type(tree).__name__}, not an object")
        return cls.of_tree(tree)

    @classmethod
    def of_tree(cls, tree: dict[Any, Any]) -> Self:
        tables = {}
        for name, kind in cls._tables.items():
            wire_name = cls.__struct_encode_fields__[cls.__struct_fields__.index(name)]
            tables[name] = _queue_table(tree.pop(wire_name, None), kind, wire_name)
        body = _convert(tree, cls)
        for name, table in tables.items():
            setattr(body, name, table)
        return body

    def encode(self) -> bytes:
        return dumps_with_queue_keys(_plain(self))


def _convert(tree: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(_without_nulls(tree), kind, strict=False)
    except _UNREADABLE as e:
        name = getattr(kind, "__name__", str(kind))
        raise RemoteProtocolError(f"body does not fit {name}: {e}") from None


def _without_nulls(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_without_nulls(value) for value in tree]
    return tree


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {wire: _plain(item) for wire, name in names if (item := getattr(value, name)) is not None}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _queue_table(tree: Any, kind: Any, name: str) -> dict[MessageQueue, Any]:
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise RemoteProtocolError(f"{name} is a {type(tree).__name__}, not an object")
    table = {}
    for key, value in tree.items():
        place = key
        if isinstance(place, str):  # a strict writer's way out: the queue as JSON text
            place = _convert(loads(place), QueueRef)
            place = (place.topic, place.broker_name, place.queue_id)
        if not isinstance(place, tuple):
            raise RemoteProtocolError(f"{name} has the key {key!r}, which is not a message queue")
        table[MessageQueue(*place)] = _convert(value, kind)
    return table


# --- shared parts -------------------------------------------------------------------------------------------------------


class DataVersion(Body, frozen=True):  # type: ignore[misc]  # msgspec allows a frozen child
    """When a table last changed. Equal versions mean equal tables."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after one more change, made at ``now_ms``."""
        return DataVersion(self.state_version, now_ms, self.counter + 1)


class QueueRef(Body, frozen=True, order=True):  # type: ignore[misc]
    """A message queue as a JSON object."""

    topic: str
    broker_name: str
    queue_id: Int32

    @classmethod
    def of(cls, queue: MessageQueue) -> Self:
        return cls(queue.topic, queue.broker_name, queue.queue_id)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


# --- topics and routes --------------------------------------------------------------------------------------------------


class TopicConfig(Body):
    """One topic on one broker."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicConfigList(Body):
    """Topics to create (18)."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


class TopicConfigTable(Body):
    """All topics of a broker, or the changed ones (21, and inside 103)."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion = DataVersion()
    topic_queue_mapping_detail_map: dict[str, Any] = field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] = field(default_factory=dict)


class TopicList(Body):
    """Topic names (206, 224, 304, 305, 343)."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class QueueData(Body):
    """How many queues a broker has for a topic."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32 = 6
    topic_sys_flag: Int32 = 0


class BrokerData(Body):
    """The addresses of one broker name: id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRoute(Body):
    """Where a topic's queues are (105)."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    queue_datas: list[QueueData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(Body):
    """All brokers by name, and broker names by cluster (106)."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class KvTable(Body):
    """Text by name (219, 28, the answer to 103)."""

    table: dict[str, str] = field(default_factory=dict)


class RuntimeInfo(KvTable):
    """A broker's statistics as text (28)."""


# --- broker registration ------------------------------------------------------------------------------------------------

_COUNT = Struct(">i")
_MAX_REGISTER_BYTES = 64 << 20
_VERSION_WITH_MAPPINGS = 413


class RegisterBrokerBody(Body):
    """What a broker tells each nameserver (103)."""

    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def decode_compressed(cls, data: bytes | memoryview, version: int = 513) -> Self:
        """Return the body of a registration whose header says ``compressed``, sent by a peer of ``version``.

        ::

            zlib of:  i32 n, data version JSON (n)
                      i32 topics, for each: i32 n, "name reads writes perm filterType attributesJson" (n)
                      i32 n, filter servers JSON (n)
                      from version 413 on: i32 mappings, for each: i32 n, JSON (n)

        Raises RemoteProtocolError when it does not inflate or a length runs past the end.
        """
        raw = decompress(data, CompressionType.ZLIB << 8, max_bytes=_MAX_REGISTER_BYTES)
        pos = 0

        def number() -> int:
            nonlocal pos
            if pos + 4 > len(raw):
                raise RemoteProtocolError("compressed registration is cut short")
            (value,) = _COUNT.unpack_from(raw, pos)
            pos += 4
            if not 0 <= value <= len(raw) - pos:
                raise RemoteProtocolError(f"compressed registration has an impossible length {value}")
            return value  # type: ignore[no-any-return]

        def piece() -> bytes:
            nonlocal pos
            length = number()
            pos += length
            return raw[pos - length : pos]

        data_version = DataVersion.decode(piece())
        topics = [_topic_from_words(piece()) for _ in range(number())]
        filter_servers = _convert(loads(piece()), list[str])
        mappings = {}
        if version >= _VERSION_WITH_MAPPINGS:
            for _ in range(number()):
                mapping = _convert(loads(piece()), dict[str, Any])
                mappings[str(mapping.get("topic", ""))] = mapping
        table = TopicConfigTable({t.topic_name: t for t in topics}, data_version, topic_queue_mapping_info_map=mappings)
        return cls(table, filter_servers)


def _topic_from_words(text: bytes) -> TopicConfig:
    try:
        name, reads, writes, perm, filter_type, *attributes = str(text, "utf-8").split(" ", 5)
    except ValueError:  # of the decoding, or fewer words
        raise RemoteProtocolError("a topic of a compressed registration does not have its five words") from None
    words = {"topicName": name, "readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicFilterType": filter_type}
    return _convert({**words, "attributes": (loads(attributes[0]) if attributes and attributes[0] else {})}, TopicConfig)


# --- clients and groups -------------------------------------------------------------------------------------------------


class SubscriptionData(Body):
    """What one consumer group wants of one topic: ``code_set`` has the tag codes of ``tags_set``."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[Int32] = field(default_factory=list)
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


def build_subscription(topic: str, expression: str, version: int) -> SubscriptionData:
    """Return the subscription to ``topic`` for ``"*"`` (or ``""``) or ``"tag || tag"``, as of ``version`` (wall-clock ms).

    Raises InvalidName when the expression is no text, or holds no tag at all.
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


class ResetOffsets(_QueueTables):
    """Where a group goes on in each queue (answer of 222, body of 220)."""

    _tables: ClassVar[dict[str, Any]] = {"offset_table": Int64}

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


class ConsumerStatus(_QueueTables):
    """Where members are: one member's own queues (221), or those of each client id (223)."""

    _tables: ClassVar[dict[str, Any]] = {"message_queue_table": Int64}

    message_queue_table: dict[MessageQueue, Int64] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(default_factory=dict)

    @classmethod
    def of_tree(cls, tree: dict[Any, Any]) -> Self:
        members = tree.pop("consumerTable", None) or {}
        if not isinstance(members, dict):
            raise RemoteProtocolError(f"consumerTable is a {type(members).__name__}, not an object")
        body = super().of_tree(tree)
        body.consumer_table = {str(name): _queue_table(table, Int64, "consumerTable") for name, table in members.items()}
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
    """How consuming a topic goes in one member (307): milliseconds a call, messages a second, failures in the last hour."""

    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(_QueueTables):
    """What one member of a group is doing (307)."""

    _tables: ClassVar[dict[str, Any]] = {"mq_table": ProcessQueueInfo}

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[str, Any] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeDirectlyResult(Body):
    """How one message fared that a member was asked to consume (309); ``consume_result`` is CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION."""

    consume_result: str = "CR_SUCCESS"
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Int64 = 0


# --- offsets and statistics ---------------------------------------------------------------------------------------------


class ConsumerOffsets(Body):
    """Committed offsets by ``topic@group`` and queue number (43, and the broker's own file)."""

    offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    pull_offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    group_topic_map: dict[str, list[str]] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class TopicOffset(Body):
    """One queue: its offsets, and the store time of its last message (0 when there is none)."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStats(_QueueTables):
    """The queues of a topic on one broker (202)."""

    _tables: ClassVar[dict[str, Any]] = {"offset_table": TopicOffset}

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class ConsumeOffset(Body):
    """One queue of a group: the broker's newest offset, the group's, and the store time before the group's."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    pull_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(_QueueTables):
    """How far a group has read (208)."""

    _tables: ClassVar[dict[str, Any]] = {"offset_table": ConsumeOffset}

    offset_table: dict[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0


class BrokerConsumeStats(Body):
    """How far every group has read on one broker (317): by group, a table for each topic, and the messages all of them lack."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str = ""
    total_diff: Int64 = 0
    total_inflight_diff: Int64 = 0

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        tree = loads(data)
        if not isinstance(tree, dict):
            raise RemoteProtocolError(f"{cls.__name__} is a JSON {type(tree).__name__}, not an object")
        groups = _convert(tree.pop("consumeStatsList", None) or [], list[dict[str, list[Any]]])
        body = _convert(tree, cls)
        body.consume_stats_list = [
            {name: [ConsumeStats.of_tree(stats) for stats in tables] for name, tables in entry.items()} for entry in groups
        ]
        return body

    def encode(self) -> bytes:
        return dumps_with_queue_keys(_plain(self))


class StatsWindow(Body):
    """How often something happened in a stretch of time: in all, a second, and an amount each time."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStats(Body):
    """One counter of a broker (315)."""

    stats_minute: StatsWindow = field(default_factory=StatsWindow)
    stats_hour: StatsWindow = field(default_factory=StatsWindow)
    stats_day: StatsWindow = field(default_factory=StatsWindow)


class QueueUnit(Body):
    """What a queue holds of one record (321). The names are the wire's; ``eval`` is of filters beyond tags."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    eval: bool = False


class ConsumeQueueUnits(Body):
    """A stretch of a queue (321)."""

    min_queue_index: Int64 = 0
    max_queue_index: Int64 = 0
    queue_data: list[QueueUnit] = field(default_factory=list)
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class GroupSubscription(Body):
    """What a group that is online wants of a topic (345)."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


# --- replication --------------------------------------------------------------------------------------------------------


class DelayOffsets(Body):
    """How many delayed messages of each level were delivered (45).

    ``log_offset`` and ``timers`` are this project's own: the end of the log that the table refers to, and the content of timers.json, for
    slaves that ask for it.
    """

    offset_table: dict[int, Int64] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    log_offset: Int64 | None = None
    timers: dict[str, Any] | None = None


class TimerMetrics(Body):
    """How many messages of each topic wait in Apache's timer wheel (61)."""

    timing_count: dict[str, Any] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class MessageRequestModes(Body):
    """Which groups consume by POP (402)."""

    message_request_mode_map: dict[str, Any] = field(default_factory=dict)


class HaConnectionInfo(Body):
    """One slave, as its master sees it: ``diff`` is how many bytes of log it lacks."""

    addr: str
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0


class HaClientInfo(Body):
    """A slave, as it sees itself; times are wall-clock milliseconds."""

    master_addr: str | None = None
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0
    transferred_byte_in_second: Int64 = 0
    is_activated: bool | None = None


class HaStatus(Body):
    """The state of replication on one broker (907)."""

    master: bool = False
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HaConnectionInfo] = field(default_factory=list)
    ha_client_runtime_info: HaClientInfo = field(default_factory=HaClientInfo)


# --- replication: epochs ------------------------------------------------------------------------------------------------


class EpochEntry(Body):
    """A stretch of a log that one master wrote; the last one has no end."""

    epoch: Int32 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = (1 << 63) - 1


class EpochCache(Body):
    """The epochs of a broker's log, oldest first, and where it ends (1007)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = 0
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: Int64 = 0


# --- users and policies -------------------------------------------------------------------------------------------------


class UserInfo(Body):
    """One user (3001 to 3005). Brokers of ours never send ``password``; ``keep_previous`` is ours too.

    With ``keep_previous`` a new password of 3002 is valid beside the one before.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None
    keep_previous: bool | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type}, {self.user_status})"


class PolicyEntryInfo(Body):
    """One entry of a policy; ``resource`` is such as ``Topic:t*``."""

    resource: str
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body):
    """The entries of one type, Custom where none is given."""

    entries: list[PolicyEntryInfo] = field(default_factory=list)
    policy_type: str | None = None


class AclInfo(Body):
    """The policies of one subject, ``User:name`` (3006 to 3010)."""

    subject: str | None = None
    policies: list[PolicyInfo] = field(default_factory=list)
