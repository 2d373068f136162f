"""The sources of a broker's metrics."""

from collections.abc import Callable

from sprocketmq.broker.metrics.counters import TopicCounters
from sprocketmq.broker.metrics.latencies import Latencies
from sprocketmq.broker.metrics.loop_lag import LoopLag
from sprocketmq.broker.parts import BrokerParts
from sprocketmq.broker.scraping.lags import Lag
from sprocketmq.net.server import RemotingServer


class Sources:
    """The parts of a broker that metrics need.

    ``counted`` has its topics' counters, ``lags`` those of its groups; both are computed for each page.
    """

    address: Callable[[], str]
    counted: list[TopicCounters]
    lags: list[Lag]

    def __init__(self, broker: BrokerParts, latencies: Latencies, loop_lag: LoopLag, servers: tuple[RemotingServer, ...]) -> None:
        self.latencies = latencies
        self.loop_lag = loop_lag
        self.servers = servers
        self.config = broker.config
        self.counters = broker.counters
        self.store = broker.store
        self.topics = broker.topics
        self.groups = broker.groups
        self.clients = broker.clients
        self.offsets = broker.offsets
        self.role = broker.role
        self.address = lambda: broker.address
        self.new_topics = broker.sends.new_topics
        self.pulls = broker.pulls
        self.pops = broker.pops
        self.acks = broker.acks
        self.flusher = broker.flusher
        self.delays = broker.delays
        self.transactions = broker.transactions
        self.replication = broker.replication
        self.fs = broker.fs
        self.threads = broker.threads
        self.clock = broker.clock
        self.counted = []
        self.lags = []
