"""The members and settings with which the servers of a LocalCluster are started."""

from dataclasses import dataclass, replace
from pathlib import Path

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.replication.roles import Role
from sprocketmq.client.credentials import read_credentials
from sprocketmq.errors import ConfigError, FatalError
from sprocketmq.namesrv.server import NameServerConfig
from sprocketmq.net.server_tls import ServerTls, TlsMode
from sprocketmq.net.tls import TlsConfig
from sprocketmq.processes.members import Member
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.directory import SecureDirectory
from sprocketmq.storage.config import KV_CONFIG_FILE, StoreConfig

STOP_TIMEOUT_S = 30.0

# Temporary stores do not need the reference's sizes: log segments of 1 GiB, queue files of 6 MB, index files for twenty million keys.
# How long a transaction may have no outcome before its producer is asked; how many times that until it is asked again.
TRANSACTION_TIMEOUT_S = 6.0
CHECK_INTERVALS = 5
TEMPORARY_COMMITLOG_SEGMENT_BYTES = 64 << 20
TEMPORARY_CONSUMEQUEUE_SEGMENT_BYTES = 20 * 10_000
TEMPORARY_BATCHQUEUE_SEGMENT_BYTES = 46 * 10_000
TEMPORARY_HASH_SLOTS = 100_000
TEMPORARY_INDEX_ENTRIES = 400_000


class ClusterFailed(FatalError):
    """A nameserver or broker of a LocalCluster did not start, or ended on its own."""


@dataclass(frozen=True)
class ClusterPlan:
    """The members and settings of a cluster. ``root`` is where their stores are."""

    members: tuple[Member, ...]
    temporary: bool
    namesrv_port: int
    port: int
    start_timeout_s: float
    auto_create_topic: bool
    cluster_name: str
    default_topic_queues: int
    max_message_bytes: int
    flush_disk_type: str
    message_delay_level: str
    transaction_timeout_s: float
    role: Role
    in_sync_replicas: int | None
    root: Path = Path()
    secure: SecureDirectory | None = None

    @property
    def masters(self) -> list[Member]:
        """The brokers that start as masters."""
        return [member for member in self.members if member.is_master]

    @property
    def slaves(self) -> list[Member]:
        """The brokers that start as slaves."""
        return [member for member in self.members if not member.is_master]

    def member(self, name: str) -> Member:
        """Return the broker of a name. Raises ConfigError for a name that no broker has."""
        for member in self.members:
            if member.name == name:
                return member
        raise ConfigError(f"no broker {name!r} in this cluster: it has {', '.join(member.name for member in self.members)}")

    def store_of(self, member: Member) -> Path:
        """Return the directory of a broker's store."""
        return self.root if len(self.members) == 1 else member.store(self.root)

    @property
    def kv_directory(self) -> Path:
        """The directory in which the nameserver keeps its key-value configuration: the first broker's."""
        return self.store_of(self.members[0])

    @property
    def kv_file(self) -> Path:
        """The file of the nameserver's key-value configuration."""
        return self.kv_directory / KV_CONFIG_FILE

    @property
    def tls(self) -> ServerTls | None:
        """TLS of every port: enforced when the cluster is secure."""
        if self.secure is None:
            return None
        return ServerTls(mode=TlsMode.ENFORCING, cert_file=self.secure.certificate, key_file=self.secure.key)

    @property
    def security(self) -> SecurityConfig | None:
        """The access control of nameserver and brokers: all share one file of users."""
        if self.secure is None:
            return None
        return SecurityConfig(users_file=self.secure.users, inner_credentials=read_credentials(self.secure.inner_credentials))

    def namesrv_config(self, port: int) -> NameServerConfig:
        """Return the settings of the nameserver."""
        return NameServerConfig(port=port, tls=self.tls, security=self.security, cluster_name=self.cluster_name)

    def broker_config(self, namesrv: str, member: Member) -> BrokerConfig:
        """Return the settings of a broker that registers at ``namesrv``. Raises ConfigError for values that cannot work."""
        store = StoreConfig(
            root=self.store_of(member),
            max_message_bytes=self.max_message_bytes,
            flush_disk_type=self.flush_disk_type,
            message_delay_level=self.message_delay_level,
            # Tests and notebooks work on a disk that other programs have filled, too.
            disk_max_used_ratio=1.0,
            disk_clean_forcibly_ratio=1.0,
            disk_warning_ratio=1.0,
        )
        if self.temporary:
            store = replace(
                store,
                commitlog_segment_bytes=max(TEMPORARY_COMMITLOG_SEGMENT_BYTES, 4 * self.max_message_bytes),
                consumequeue_segment_bytes=TEMPORARY_CONSUMEQUEUE_SEGMENT_BYTES,
                batchqueue_segment_bytes=TEMPORARY_BATCHQUEUE_SEGMENT_BYTES,
                max_hash_slots=TEMPORARY_HASH_SLOTS,
                max_index_entries=TEMPORARY_INDEX_ENTRIES,
                preallocate=False,
            )
        return BrokerConfig(
            store=store,
            cluster_name=self.cluster_name,
            broker_name=member.broker_name,
            port=self.port,
            namesrv=(namesrv,) if namesrv else (),
            auto_create_topic=self.auto_create_topic,
            default_topic_queues=self.default_topic_queues,
            max_message_bytes=self.max_message_bytes,
            transaction_timeout_s=self.transaction_timeout_s,
            transaction_check_interval_s=self.transaction_timeout_s * CHECK_INTERVALS,
            role=self.role if member.is_master else Role.SLAVE,
            broker_id=member.broker_id,
            ha_port=0 if self.slaves else None,
            in_sync_replicas=self.in_sync_replicas,
            tls=self.tls,
            tls_client=TlsConfig(ca_file=self.secure.authority) if self.secure is not None else None,
            security=self.security,
        )
