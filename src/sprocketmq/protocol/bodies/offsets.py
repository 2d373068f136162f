"""Offsets, statistics, and the content of queues."""

from typing import Any, ClassVar, Self

from msgspec import field

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.bodies.base import Body, DataVersion, QueueRef, QueueTables, convert, plain
from sprocketmq.protocol.bodies.groups import SubscriptionData
from sprocketmq.protocol.jsondialect import dumps_with_queue_keys, loads
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.ranges import Int32, Int64


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


class TopicStats(QueueTables):
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


class ConsumeStats(QueueTables):
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
        groups = convert(tree.pop("consumeStatsList", None) or [], list[dict[str, list[Any]]])
        body = convert(tree, cls)
        body.consume_stats_list = [
            {name: [ConsumeStats.of_tree(stats) for stats in tables] for name, tables in entry.items()} for entry in groups
        ]
        return body

    def encode(self) -> bytes:
        return dumps_with_queue_keys(plain(self))


class ConsumeTimeSpan(Body):
    """One queue: store times of its oldest message, its newest, and the last one a group has consumed (ms; -1 and "" without one).

    ``delay_time`` is how long the group's next message has been stored; 0 when there is none.
    """

    message_queue: QueueRef
    min_time_stamp: Int64 = -1
    min_time_stamp_str: str = ""
    max_time_stamp: Int64 = -1
    max_time_stamp_str: str = ""
    consume_time_stamp: Int64 = -1
    consume_time_stamp_str: str = ""
    delay_time: Int64 = 0


class ConsumeTimeSpans(Body):
    """The queues of a topic, in times (303)."""

    consume_time_span_set: list[ConsumeTimeSpan] = field(default_factory=list)


class StatsWindow(Body):
    """Counts over a window of time: the total, the rate per second, and the average amount per event."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStats(Body):
    """One counter of a broker (315)."""

    stats_minute: StatsWindow = field(default_factory=StatsWindow)
    stats_hour: StatsWindow = field(default_factory=StatsWindow)
    stats_day: StatsWindow = field(default_factory=StatsWindow)


class QueueUnit(Body):
    """The unit of one record in a queue (321). The names are the wire's; ``eval`` is of filters beyond tags."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    eval: bool = False


class ConsumeQueueUnits(Body):
    """A range of units of a queue (321)."""

    min_queue_index: Int64 = 0
    max_queue_index: Int64 = 0
    queue_data: list[QueueUnit] = field(default_factory=list)
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class GroupSubscription(Body):
    """The subscription of an online group to a topic (345)."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
