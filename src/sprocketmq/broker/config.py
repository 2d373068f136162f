"""The settings of a broker."""

from dataclasses import dataclass, field

from sprocketmq.errors import ConfigError
from sprocketmq.net.address import advertise_problem, parse_addresses
from sprocketmq.protocol.names import MAX_TOPIC_LENGTH, name_problem
from sprocketmq.storage.store import StoreConfig

# A frame has 16 MiB; a body near that would leave no room for its header.
MAX_MESSAGE_BYTES_LIMIT = 8 << 20
MAX_TRANSFER_BYTES_LIMIT = 15 << 20


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """One broker. Raises ConfigError for values that cannot work.

    ``host`` and ``port`` say where it listens (port 0: any free one); ``advertise`` is the host it tells nameservers, by default
    ``host``, or for a wildcard the first address other machines can use. ``namesrv`` may be empty: the broker then serves who knows it.
    A broker does not start while a live one of the same name is registered, unless ``take_over`` is set.
    """

    store: StoreConfig
    cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    host: str = "127.0.0.1"
    port: int = 10911
    advertise: str | None = None
    namesrv: tuple[str, ...] = ()
    take_over: bool = False
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    max_message_bytes: int = 4 << 20
    # Limits of one pull's answer, besides the client's own. At least one message is always returned.
    max_transfer_count: int = 4096
    max_transfer_bytes: int = 4 << 20
    max_connections: int = 10_000
    max_held_pulls: int = 100_000
    flush_interval_s: float = 0.5
    # With SYNC_FLUSH a send is answered when it is on the disk. One that waits longer gets FLUSH_DISK_TIMEOUT, and is stored all the same.
    sync_flush_timeout_s: float = 5.0
    # Sends that may wait, and bytes of the log that may be unflushed; beyond either, sends are answered with SYSTEM_BUSY.
    max_waiting_sends: int = 10_000
    max_waiting_bytes: int = 64 << 20
    os_page_cache_busy_timeout_ms: int = 1000
    clean_interval_s: float = 10.0
    register_interval_s: float = 30.0
    save_offsets_interval_s: float = 5.0
    region: str = field(default="DefaultRegion")

    def __post_init__(self) -> None:
        for what, name in (("cluster", self.cluster_name), ("broker", self.broker_name), ("region", self.region)):
            if problem := name_problem(name, MAX_TOPIC_LENGTH):
                raise ConfigError(f"{what} name {name!r} is not valid: {problem}")
        if self.broker_id != 0:
            raise ConfigError(f"broker id {self.broker_id}: only masters (id 0) are supported")
        if self.advertise is not None and (problem := advertise_problem(self.advertise)):
            raise ConfigError(f"advertise {self.advertise!r} is not valid: {problem}")
        if self.namesrv:
            parse_addresses(";".join(self.namesrv))
        ranges = (
            ("default_topic_queues", self.default_topic_queues, 1, 1024),
            ("max_message_bytes", self.max_message_bytes, 1, MAX_MESSAGE_BYTES_LIMIT),
            ("max_transfer_count", self.max_transfer_count, 1, 1 << 20),
            ("max_transfer_bytes", self.max_transfer_bytes, 1, MAX_TRANSFER_BYTES_LIMIT),
            ("max_connections", self.max_connections, 1, 1 << 20),
            ("max_held_pulls", self.max_held_pulls, 0, 10_000_000),
            ("flush_interval_s", self.flush_interval_s, 0.001, 3600.0),
            ("sync_flush_timeout_s", self.sync_flush_timeout_s, 0.001, 3600.0),
            ("max_waiting_sends", self.max_waiting_sends, 1, 10_000_000),
            ("max_waiting_bytes", self.max_waiting_bytes, 1, 1 << 40),
            ("os_page_cache_busy_timeout_ms", self.os_page_cache_busy_timeout_ms, 1, 3_600_000),
            ("clean_interval_s", self.clean_interval_s, 0.01, 3600.0),
            ("register_interval_s", self.register_interval_s, 1.0, 60.0),
            ("save_offsets_interval_s", self.save_offsets_interval_s, 0.01, 3600.0),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}, it must be from {low} to {high}")
