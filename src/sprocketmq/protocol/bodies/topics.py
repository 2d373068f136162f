"""Topics, routes, the cluster, and the registration of brokers."""

from struct import Struct
from typing import Any, Self

from msgspec import field

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.bodies.base import Body, DataVersion, convert
from sprocketmq.protocol.compression import CompressionType, decompress
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.protocol.ranges import Int32


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

    @property
    def has_batch_queues(self) -> bool:
        """Whether the broker keeps each batch of this topic as one record."""
        return self.attributes.get("queue.type") == "BatchCQ"


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


# --- broker registration ---

_COUNT = Struct(">i")
_MAX_REGISTER_BYTES = 64 << 20
_VERSION_WITH_MAPPINGS = 413


class RegisterBrokerBody(Body):
    """The registration that a broker sends to each nameserver (103)."""

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
        filter_servers = convert(loads(piece()), list[str])
        mappings = {}
        if version >= _VERSION_WITH_MAPPINGS:
            for _ in range(number()):
                mapping = convert(loads(piece()), dict[str, Any])
                mappings[str(mapping.get("topic", ""))] = mapping
        table = TopicConfigTable({t.topic_name: t for t in topics}, data_version, topic_queue_mapping_info_map=mappings)
        return cls(table, filter_servers)


def _topic_from_words(text: bytes) -> TopicConfig:
    try:
        name, reads, writes, perm, filter_type, *attributes = str(text, "utf-8").split(" ", 5)
    except ValueError:  # of the decoding, or fewer words
        raise RemoteProtocolError("a topic of a compressed registration does not have its five words") from None
    words = {"topicName": name, "readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicFilterType": filter_type}
    return convert({**words, "attributes": (loads(attributes[0]) if attributes and attributes[0] else {})}, TopicConfig)
