"""The settings of a broker."""

from dataclasses import dataclass, field

from sprocketmq.broker.metrics.exposition import read_labels
from sprocketmq.broker.replication.roles import MASTER_ID, Role
from sprocketmq.errors import ConfigError
from sprocketmq.net.address import advertise_problem, parse_address, parse_addresses
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.names import MAX_TOPIC_LENGTH, SEND_FORBIDDEN_TOPICS, name_problem
from sprocketmq.protocol.traces import TRACE_TOPIC
from sprocketmq.security.config import SecurityConfig
from sprocketmq.storage.store import StoreConfig

# A frame has at most 16 MiB, header included.
MAX_MESSAGE_BYTES_LIMIT = 8 << 20
MAX_TRANSFER_BYTES_LIMIT = 15 << 20
MAX_BROKER_ID = 1 << 31
# The copies of a log: the master's and those of at most 16 slaves.
MAX_COPIES_OF_LOG = 17
MIN_SECRET_LENGTH = 16
BROKER_PERMISSIONS = (2, 4, 6)


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """One broker. Raises ConfigError for values that cannot work.

    ``host`` and ``port`` say where it listens (port 0: any free one); ``advertise`` is the host that nameservers give to clients: by
    default ``host``, or for a wildcard the first address that other machines can use. Without ``namesrv`` only clients that know its
    address find it.
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
    # What clients may do: the sum of 2 (write) and 4 (read).
    broker_permission: int = 6
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    # Whether the broker has the topic of message traces from its start, with one queue.
    trace_topic_enable: bool = False
    trace_topic: str = TRACE_TOPIC
    max_message_bytes: int = 4 << 20
    # Limits of the answer to one pull, besides the client's own. The ``in_disk`` ones hold for messages further behind the end of the log
    # than ``access_message_in_memory_max_ratio``. At least one message is always returned.
    max_transfer_count_on_message_in_memory: int = 4096
    max_transfer_bytes_on_message_in_memory: int = 4 << 20
    max_transfer_count_on_message_in_disk: int = 1024
    max_transfer_bytes_on_message_in_disk: int = 256 << 10
    # Old names, accepted until 0.2: where given, they limit pulls of all messages.
    max_transfer_count: int | None = None
    max_transfer_bytes: int | None = None
    # Whether consumers may filter by SQL92 expressions on properties.
    enable_property_filter: bool = True
    max_connections: int = 10_000
    max_held_pulls: int = 100_000
    flush_interval_s: float = 0.5
    # With SYNC_FLUSH a send is answered when it is on the disk. One that waits longer gets FLUSH_DISK_TIMEOUT, and is stored all the same.
    sync_flush_timeout_s: float = 5.0
    # How many sends may wait for the disk or slaves, and how many bytes may be unflushed; beyond either, sends get SYSTEM_BUSY.
    max_waiting_sends: int = 10_000
    max_waiting_bytes: int = 64 << 20
    os_page_cache_busy_timeout_ms: int = 1000
    clean_interval_s: float = 10.0
    register_interval_s: float = 30.0
    save_offsets_interval_s: float = 5.0
    # Whether producers may recall messages that wait for their delivery time.
    recall_message_enable: bool = True
    # Transactions. A producer is asked about one that has had no outcome for ``transaction_timeout_s``, or for as long as its message says,
    # then every ``transaction_check_interval_s``; after ``transaction_check_max`` checks the message is set aside. ``reject_transactions``
    # refuses all of them.
    transaction_timeout_s: float = 6.0
    transaction_check_interval_s: float = 30.0
    transaction_check_max: int = 15
    reject_transactions: bool = False
    region: str = field(default="DefaultRegion")
    # Replication. A master with ``ha_port`` None has no listener for slaves and announces none; 0 takes any free port, and so does a slave
    # without a port when it is promoted.
    role: Role = Role.ASYNC_MASTER
    ha_port: int | None = None
    # Shared by the master and its slaves; without one, and without inner credentials to derive one from, the HA port accepts everybody.
    ha_secret: str | None = field(default=None, repr=False)
    # Listen on ``port`` - 2 as well, where Apache's slaves ask for topics.
    fast_port_enable: bool = False
    # The ``host:port`` of the master's HA port, instead of what the nameserver says.
    ha_master_address: str | None = None
    # Copies that must have a send before SYNC_MASTER answers it, the master's own included. None: 2 for SYNC_MASTER, 1 for ASYNC_MASTER,
    # for a slave what its master has. A slave that is promoted becomes SYNC_MASTER with 2 or more, else ASYNC_MASTER.
    in_sync_replicas: int | None = None
    slave_timeout_s: float = 2.5  # clients wait for 3 s by default: they should receive FLUSH_SLAVE_TIMEOUT
    ha_max_gap_not_in_sync: int = 256 << 20
    ha_heartbeat_s: float = 5.0
    ha_housekeeping_s: float = 20.0
    ha_batch_bytes: int = 1 << 20
    ha_max_bytes_per_s: int | None = None
    # Slaves answer pulls, and masters suggest them for messages far behind the end of the log.
    slave_read_enable: bool = True
    # Messages further behind the end of the log than this part of the machine's memory, in percent, count as on the disk.
    access_message_in_memory_max_ratio: int = 40
    # Whether connections to the broker's ports, the HA port among them, may be or must be encrypted; None: plain only.
    tls: ServerTls | None = None
    # How the broker's own connections, to nameservers and its master, are encrypted; True: by the system's authorities, None: not at all.
    tls_client: TlsConfig | bool | None = None
    # Users and rights; None: everybody who can connect may use the broker.
    security: SecurityConfig | None = None

    # ``prom``: metrics for Prometheus at ``metrics_host`` and ``metrics_port``, else ``disable``. ``metrics_label`` is added to all series:
    # ``name:value,name:value``. A metric has at most ``metrics_max_series`` of them.
    metrics_exporter: str = "disable"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 5557
    metrics_label: str = ""
    metrics_max_series: int = 50_000

    def __post_init__(self) -> None:
        for what, name in (("cluster", self.cluster_name), ("broker", self.broker_name), ("region", self.region)):
            if problem := name_problem(name, MAX_TOPIC_LENGTH):
                raise ConfigError(f"{what} name {name!r} is not valid: {problem}")
        if (problem := name_problem(self.trace_topic, MAX_TOPIC_LENGTH)) or self.trace_topic in SEND_FORBIDDEN_TOPICS:
            raise ConfigError(f"trace_topic {self.trace_topic!r} is not valid: {problem or 'clients may not send to it'}")
        self._check_replication()
        self._check_metrics()
        self._take_old_limits()
        if self.advertise is not None and (problem := advertise_problem(self.advertise)):
            raise ConfigError(f"advertise {self.advertise!r} is not valid: {problem}")
        if self.namesrv:
            parse_addresses(";".join(self.namesrv))
        if self.broker_permission not in BROKER_PERMISSIONS:
            raise ConfigError(f"broker_permission is {self.broker_permission}, it must be 2 (write), 4 (read) or 6 (both)")
        ranges = (
            ("default_topic_queues", self.default_topic_queues, 1, 1024),
            ("max_message_bytes", self.max_message_bytes, 1, MAX_MESSAGE_BYTES_LIMIT),
            ("max_transfer_count_on_message_in_memory", self.max_transfer_count_on_message_in_memory, 1, 1 << 20),
            ("max_transfer_bytes_on_message_in_memory", self.max_transfer_bytes_on_message_in_memory, 1, MAX_TRANSFER_BYTES_LIMIT),
            ("max_transfer_count_on_message_in_disk", self.max_transfer_count_on_message_in_disk, 1, 1 << 20),
            ("max_transfer_bytes_on_message_in_disk", self.max_transfer_bytes_on_message_in_disk, 1, MAX_TRANSFER_BYTES_LIMIT),
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
            ("transaction_timeout_s", self.transaction_timeout_s, 0.05, 86_400.0),
            ("transaction_check_interval_s", self.transaction_check_interval_s, 0.05, 86_400.0),
            ("transaction_check_max", self.transaction_check_max, 1, 10_000),
            ("ha_port", self.ha_port or 0, 0, 65535),
            ("in_sync_replicas", self.copies_to_wait_for, 1, MAX_COPIES_OF_LOG),
            ("slave_timeout_s", self.slave_timeout_s, 0.001, 3600.0),
            ("ha_max_gap_not_in_sync", self.ha_max_gap_not_in_sync, 1, 1 << 40),
            ("ha_heartbeat_s", self.ha_heartbeat_s, 0.01, 60.0),
            ("ha_housekeeping_s", self.ha_housekeeping_s, 0.05, 600.0),
            ("ha_batch_bytes", self.ha_batch_bytes, 1 << 10, 16 << 20),
            ("ha_max_bytes_per_s", self.ha_max_bytes_per_s or 1 << 20, 1 << 10, 1 << 40),
            ("metrics_port", self.metrics_port, 0, 65535),
            ("metrics_max_series", self.metrics_max_series, 1, 10_000_000),
            ("access_message_in_memory_max_ratio", self.access_message_in_memory_max_ratio, 0, 100),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}, it must be from {low} to {high}")

    @property
    def has_metrics(self) -> bool:
        """Whether the broker exports metrics."""
        return self.metrics_exporter == "prom"

    @property
    def copies_to_wait_for(self) -> int:
        """``in_sync_replicas``, or its default for the role."""
        if self.in_sync_replicas is not None:
            return self.in_sync_replicas
        return 2 if self.role is Role.SYNC_MASTER else 1

    @property
    def replication_secret(self) -> str | None:
        """``ha_secret``, or the one that follows from the inner credentials; None when the HA port accepts everybody."""
        if self.ha_secret is not None or self.security is None:
            return self.ha_secret
        return self.security.replication_secret

    def _take_old_limits(self) -> None:
        for old in ("max_transfer_count", "max_transfer_bytes"):
            limit = getattr(self, old)
            if limit is not None:
                in_memory, in_disk = f"{old}_on_message_in_memory", f"{old}_on_message_in_disk"
                object.__setattr__(self, in_memory, limit)
                object.__setattr__(self, in_disk, min(limit, getattr(self, in_disk)))

    def _check_metrics(self) -> None:
        if self.metrics_exporter not in ("disable", "prom"):
            raise ConfigError(f"metrics_exporter is {self.metrics_exporter!r}, it must be disable or prom")
        read_labels(self.metrics_label)
        if self.has_metrics and self.metrics_port and self.metrics_port in (self.port, self.ha_port):
            raise ConfigError(f"metrics_port is {self.metrics_port}, as another port of this broker: metrics need a port of their own")

    def _check_replication(self) -> None:
        if not isinstance(self.role, Role):
            raise ConfigError(f"role is {self.role!r}, it must be one of Role: {', '.join(Role)}")
        if self.role is not Role.SLAVE and self.broker_id != MASTER_ID:
            raise ConfigError(f"broker id {self.broker_id}: {self.role} has the broker id 0; for another one make it a SLAVE (role)")
        if self.role is Role.SLAVE and not 1 <= self.broker_id <= MAX_BROKER_ID:
            raise ConfigError(f"broker id {self.broker_id}: give a SLAVE a broker id from 1 to {MAX_BROKER_ID}, another one for each slave")
        if self.role is Role.SLAVE and not self.namesrv:
            raise ConfigError("a SLAVE finds its master through nameservers: give their addresses (namesrv)")
        if self.role is Role.SYNC_MASTER and self.ha_port is None:
            raise ConfigError("SYNC_MASTER waits for slaves, which need a port: give ha_port (0: any free one), or the role ASYNC_MASTER")
        if self.ha_port and self.ha_port == self.port:
            raise ConfigError(f"ha_port and port are both {self.port}: slaves need a port of their own, such as {self.port % 65535 + 1}")
        if self.role is Role.SYNC_MASTER and self.copies_to_wait_for == 1:
            raise ConfigError(
                "in_sync_replicas is 1, so that SYNC_MASTER would wait for no slave: give 2 or more, or the role ASYNC_MASTER"
            )
        if self.role is Role.ASYNC_MASTER and self.copies_to_wait_for != 1:
            raise ConfigError(
                f"in_sync_replicas is {self.in_sync_replicas}, but ASYNC_MASTER waits for no slave: give the role SYNC_MASTER"
            )
        if self.fast_port_enable and 0 < self.port < 3:
            raise ConfigError(f"fast_port_enable needs the port {self.port - 2}: give a port from 3 on")
        if self.ha_secret is not None and len(self.ha_secret) < MIN_SECRET_LENGTH:
            raise ConfigError(
                f"ha_secret has {len(self.ha_secret)} characters, it must have at least {MIN_SECRET_LENGTH};"
                ' python -c "import secrets; print(secrets.token_hex(32))" makes one'
            )
        if self.security is not None and self.security.authentication_enabled:
            self._check_logins_of_brokers(self.security)
        if self.ha_master_address is not None:
            parse_address(self.ha_master_address)
        if self.ha_housekeeping_s <= self.ha_heartbeat_s:
            raise ConfigError(
                f"ha_housekeeping_s is {self.ha_housekeeping_s:g}, it must be longer than ha_heartbeat_s ({self.ha_heartbeat_s:g}):"
                " idle connections of slaves would be closed"
            )

    def _check_logins_of_brokers(self, security: SecurityConfig) -> None:
        if self.role is Role.SLAVE and security.inner_credentials is None:
            raise ConfigError("with authentication_enabled a SLAVE asks its master as a user: give both the same inner_credentials")
        if self.replication_secret is None and self.ha_port is not None:
            raise ConfigError(
                "with authentication_enabled slaves prove themselves at ha_port as well: give master and slaves the same"
                " inner_credentials, or the same ha_secret"
            )
