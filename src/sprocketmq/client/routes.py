"""Routes: the queues of a topic to write and to read, and the addresses of its brokers (docs/internals/requests.md#routes)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sprocketmq.errors import NoMaster, RetriableError, TopicReadOnly
from sprocketmq.protocol.bodies import TopicRoute
from sprocketmq.protocol.codes import PERM_READ, PERM_WRITE
from sprocketmq.protocol.message import MessageQueue

MASTER_ID = 0
# Queues of a topic that is created by its first message.
DEFAULT_TOPIC_QUEUES = 4


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of one topic. A ``provisional`` route is the template topic's: the broker creates the topic at the first send.

    ``clusters`` are the names of its brokers' clusters. ``masterless`` are those of its brokers that have queues to write and no master.
    ``away`` are addresses that accept no connections at the moment; routes that differ only in these are equal.
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    provisional: bool = False
    clusters: tuple[str, ...] = ()
    masterless: tuple[str, ...] = ()
    away: frozenset[str] = field(default=frozenset(), compare=False)

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address to read from: that of ``broker_id``, else of the master, else any; None when the route has none.

        Addresses that are away are chosen only when all are.
        """
        brokers = self.addresses.get(broker_name)
        if not brokers:
            return None
        if self.away:
            brokers = {number: address for number, address in brokers.items() if address not in self.away} or brokers
        return brokers.get(broker_id) or brokers.get(MASTER_ID) or next(iter(brokers.values()))

    def check_writable(self) -> None:
        """Raise NoMaster or TopicReadOnly when there is no queue to write."""
        if not self.publish_queues:
            raise NoMaster(self.masterless, self.topic) if self.masterless else TopicReadOnly(self.topic)

    def no_address(self, broker_name: str) -> RetriableError:
        """Return the error for a broker that has no master in this route, or is not in it."""
        if broker_name in self.addresses:
            return NoMaster([broker_name])
        return RetriableError(f"topic {self.topic!r} has no broker {broker_name!r} now (it has: {', '.join(self.addresses) or 'none'})")

    @property
    def readers(self) -> dict[str, str]:
        """The address to read from by broker name: the master's, or a slave's while the master is away."""
        return {name: address for name in self.addresses if (address := self.address(name)) is not None}

    @property
    def masters(self) -> dict[str, str]:
        """Master address by broker name."""
        return {name: brokers[MASTER_ID] for name, brokers in self.addresses.items() if MASTER_ID in brokers}

    @property
    def lock_keepers(self) -> dict[str, str]:
        """The address that keeps the locks of queues by broker name: the master's, or that of the first slave of a broker without one."""
        return {name: next(iter(brokers.values())) for name, brokers in self.addresses.items() if brokers}


def read_route(topic: str, data: TopicRoute, *, template: bool = False) -> Route:
    """Return the route in a nameserver's answer.

    Queues to write are those of brokers that allow writing and have a master, or those that an order topic lists; queues to read those of
    brokers that allow reading. With ``template`` the answer is the default topic's: ``topic`` gets at most four of its queues per broker.
    """
    addresses = {broker.broker_name: dict(sorted(broker.broker_addrs.items())) for broker in data.broker_datas if broker.broker_addrs}
    publish: list[MessageQueue] = []
    subscribe: list[MessageQueue] = []
    masterless: list[str] = []
    for queue_data in sorted(data.queue_datas, key=lambda q: q.broker_name):
        name = queue_data.broker_name
        writes, reads = queue_data.write_queue_nums, queue_data.read_queue_nums
        if template:
            writes = reads = min(DEFAULT_TOPIC_QUEUES, writes)
        if queue_data.perm & PERM_READ and name in addresses:
            subscribe += [MessageQueue(topic, name, i) for i in range(reads)]
        if queue_data.perm & PERM_WRITE and writes:
            if MASTER_ID in addresses.get(name, {}):
                publish += [MessageQueue(topic, name, i) for i in range(writes)]
            else:
                masterless.append(name)
    if data.order_topic_conf:
        publish = _order_queues(topic, data.order_topic_conf, addresses)
    clusters = tuple(sorted({broker.cluster for broker in data.broker_datas}))
    return Route(topic, tuple(publish), tuple(subscribe), addresses, provisional=template, clusters=clusters, masterless=tuple(masterless))


def _order_queues(topic: str, conf: str, addresses: Mapping[str, Mapping[int, str]]) -> list[MessageQueue]:
    queues: list[MessageQueue] = []
    for item in conf.split(";"):
        name, _, number = item.strip().rpartition(":")
        if number.isdecimal() and MASTER_ID in addresses.get(name, {}):
            queues += [MessageQueue(topic, name, i) for i in range(int(number))]
    return queues
