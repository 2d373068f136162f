"""Route tables as pure state: the addresses of live brokers, and the queues that they have for each topic.

Nothing here knows sockets or time: callers hand in ``now`` (monotonic seconds) and an ``owner`` (the connection a broker registered
over), and send what comes back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sprocketmq.errors import FatalError
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo, DataVersion, QueueData, RegisterBrokerBody, TopicConfig, TopicRoute
from sprocketmq.protocol.codes import PERM_READ, PERM_WRITE
from sprocketmq.protocol.headers import RegisterBroker

MASTER_ID = 0
DEFAULT_TIMEOUT_S = 120.0


class RegistrationRefused(FatalError):
    """A registration that would leave out the broker's other topics."""


@dataclass(slots=True)
class LiveBroker:
    """One broker process; it is removed after ``timeout_s`` seconds of silence."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    data_version: DataVersion
    last_heard: float
    timeout_s: float
    owner: object


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration: for a slave, the address of its master."""

    master_address: str | None = None
    ha_address: str | None = None


class RouteTables:
    """Everything a nameserver knows, by topic, broker name, cluster and address."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}

    # --- brokers ---

    def register(self, header: RegisterBroker, body: RegisterBrokerBody, *, owner: object, now: float) -> Registered:
        """Register a broker's topics, all of them or only the changed ones; topics that are not mentioned stay.

        A table whose data version is the one already known changes no queues. Raises RegistrationRefused when an unknown broker
        registers a single topic: its other topics would be missing until its next full registration.
        """
        table = body.topic_config_serialize_wrapper
        name, broker_id, address = header.broker_name, header.broker_id, header.broker_addr
        broker = self._brokers.get(name)
        if broker is not None and broker_id not in broker.broker_addrs and len(table.topic_config_table) == 1:
            raise RegistrationRefused("register broker failed")
        if broker is None:
            if len(table.topic_config_table) == 1:
                raise RegistrationRefused("register broker failed")
            broker = self._brokers[name] = BrokerData(cluster=header.cluster_name, broker_name=name)
        previous = broker.broker_addrs.get(broker_id)
        if previous is not None and previous != address:
            old = self._live.get((broker.cluster, previous))
            if old is not None and old.data_version.state_version > table.data_version.state_version:
                return Registered()  # a late registration of a replaced process
            self._live.pop((broker.cluster, previous), None)
        # One process has one id: a slave that became master must not keep its old entry.
        for other_id in [i for i, known in broker.broker_addrs.items() if known == address and i != broker_id]:
            del broker.broker_addrs[other_id]
        if broker.cluster != header.cluster_name:
            self._forget_cluster_member(broker.cluster, name)
            broker.cluster = header.cluster_name
        self._clusters.setdefault(header.cluster_name, {})[name] = None
        broker.broker_addrs[broker_id] = address
        broker.enable_acting_master = bool(header.enable_acting_master)

        key = (header.cluster_name, address)
        known = self._live.get(key)
        prime_slave = broker_id != MASTER_ID and header.enable_acting_master is not None and broker_id == min(broker.broker_addrs)
        if (broker_id == MASTER_ID or prime_slave) and (known is None or known.data_version != table.data_version):
            self._take_queues(name, table.topic_config_table.values(), read_only=prime_slave and broker.enable_acting_master)
        self._live[key] = LiveBroker(
            cluster=header.cluster_name,
            broker_name=name,
            broker_id=broker_id,
            address=address,
            ha_address=header.ha_server_addr,
            data_version=table.data_version,
            last_heard=now,
            timeout_s=header.heartbeat_timeout_ms / 1000 if header.heartbeat_timeout_ms else DEFAULT_TIMEOUT_S,
            owner=owner,
        )
        if broker_id != MASTER_ID and (master := broker.broker_addrs.get(MASTER_ID)):
            live = self._live.get((broker.cluster, master))
            if live is not None:
                return Registered(master, live.ha_address)
        return Registered()

    def _take_queues(self, broker_name: str, topics: Iterable[TopicConfig], *, read_only: bool) -> None:
        for topic in topics:
            perm = topic.perm & ~PERM_WRITE if read_only else topic.perm
            self._topics.setdefault(topic.topic_name, {})[broker_name] = QueueData(
                broker_name, topic.read_queue_nums, topic.write_queue_nums, perm, topic.topic_sys_flag
            )

    def unregister(self, cluster: str, broker_name: str, broker_id: int, address: str) -> None:
        """Forget one broker; with its last address also its name and its queues. Unknown brokers are ignored."""
        self._live.pop((cluster, address), None)
        broker = self._brokers.get(broker_name)
        if broker is None or broker.broker_addrs.get(broker_id) != address:
            return
        del broker.broker_addrs[broker_id]
        if broker.broker_addrs:
            return
        del self._brokers[broker_name]
        self._forget_cluster_member(broker.cluster, broker_name)
        for topic in [topic for topic, queues in self._topics.items() if broker_name in queues]:
            self._drop_queues(topic, broker_name)

    def _forget_cluster_member(self, cluster: str, broker_name: str) -> None:
        members = self._clusters.get(cluster)
        if members is not None:
            members.pop(broker_name, None)
            if not members:
                del self._clusters[cluster]

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic)
        if queues is not None and queues.pop(broker_name, None) is not None and not queues:
            del self._topics[topic]

    def heard(self, cluster: str, address: str, now: float) -> bool:
        """Record that a broker is alive; False when it is not registered."""
        live = self._live.get((cluster, address))
        if live is None:
            return False
        live.last_heard = now
        return True

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the data version of a broker's last registration, or None when it is not registered."""
        live = self._live.get((cluster, address))
        return live.data_version if live is not None else None

    def drop_owner(self, owner: object) -> list[LiveBroker]:
        """Forget the brokers that registered over ``owner`` (a connection that ended) and return them."""
        return self._drop([live for live in self._live.values() if live.owner is owner])

    def expire(self, now: float) -> list[LiveBroker]:
        """Forget the brokers that were silent for too long and return them."""
        return self._drop([live for live in self._live.values() if now - live.last_heard > live.timeout_s])

    def _drop(self, gone: list[LiveBroker]) -> list[LiveBroker]:
        for live in gone:
            self.unregister(live.cluster, live.broker_name, live.broker_id, live.address)
        return gone

    # --- topics ---

    def route(self, topic: str) -> TopicRoute | None:
        """Return where ``topic`` has queues, or None when no live broker has any."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        return TopicRoute(broker_datas=brokers, queue_datas=list(queues.values()))

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add queues of a topic on brokers that are registered; others are ignored."""
        for queue in queues:
            if queue.broker_name in self._brokers:
                self._topics.setdefault(topic, {})[queue.broker_name] = queue

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic's queues, those on one cluster's brokers or all."""
        names = self._topics.get(topic, {}) if cluster is None else self._clusters.get(cluster, {})
        for name in list(names):
            self._drop_queues(topic, name)

    def change_perm(self, broker_name: str, *, add: int = 0, remove: int = 0) -> int:
        """Set and clear permission bits of every topic of a broker; return how many topics it has."""
        count = 0
        for queues in self._topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queue.perm = (queue.perm | add) & ~remove
                count += 1
        return count

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take write permission from a broker's topics until its next changed registration; return how many there are."""
        return self.change_perm(broker_name, remove=PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Restore what ``wipe_write_perm`` took from a broker's topics; return how many there are."""
        return self.change_perm(broker_name, add=PERM_READ | PERM_WRITE)

    def topics(self) -> list[str]:
        """Return all topic names."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that have queues on a broker of ``cluster``; unknown clusters have none."""
        members = self._clusters.get(cluster, {})
        return [topic for topic, queues in self._topics.items() if not members.keys().isdisjoint(queues)]

    # --- overviews ---

    def clusters(self) -> ClusterInfo:
        """Return all brokers by name and broker names by cluster."""
        return ClusterInfo(dict(self._brokers), {cluster: list(names) for cluster, names in self._clusters.items()})

    def broker(self, broker_name: str) -> BrokerData | None:
        """Return one broker's addresses, or None."""
        return self._brokers.get(broker_name)

    def system_names(self) -> tuple[list[str], str | None]:
        """Return cluster and broker names, which are topics too, and the address of one broker (None without any)."""
        names: dict[str, None] = {}
        for cluster, members in self._clusters.items():
            names[cluster] = None
            names.update(members)
        address = next((addr for broker in self._brokers.values() for addr in broker.broker_addrs.values()), None)
        return list(names), address
